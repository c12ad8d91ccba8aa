"""A pytest plugin: the fixture `cuda_emulator` runs kernels on the emulator, and findings fail the test.

    def test_saxpy(cuda_emulator):
        result = cuda_emulator("saxpy.cu", grid=4, block=256, args=[1000, 2.0, x, y])
        assert_allclose(result["y"], 2 * x + y)

The marker `cuda_emulator(strict=..., schedules=..., allow=[...])` gives settings for all launches of a test; `allow` names codes of
findings that do not fail it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gemmgen.sanitizer.api import Result

Emulate = Callable[..., "Result"]


def pytest_configure(config: pytest.Config) -> None:
    """Tells pytest of the marker."""
    config.addinivalue_line(
        "markers", "cuda_emulator(strict, schedules, allow, ...): settings of gemmgen.emulate for the fixture cuda_emulator"
    )


@pytest.fixture
def cuda_emulator(request: pytest.FixtureRequest) -> Emulate:
    """``gemmgen.emulate``, failing the test with the messages of its findings."""
    marker = request.node.get_closest_marker("cuda_emulator")
    settings: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    allowed = _allowed(settings.pop("allow", ()))

    def run(*positional: Any, **given: Any) -> Result:
        from gemmgen.core.errors import GemmgenError
        from gemmgen.sanitizer.api import emulate

        try:
            result = emulate(*positional, **{**settings, **given})
        except GemmgenError as error:
            # A launch that cannot be made is the test's own mistake; the message suffices.
            pytest.fail(str(error), pytrace=False)
        errors = [finding for finding in result.findings if finding.severity == "error" and finding.code not in allowed]
        if errors:
            pytest.fail("\n\n".join(str(finding) for finding in errors), pytrace=False)
        return result

    return run


def _allowed(codes: str | Collection[str]) -> set[str]:
    """The codes of a marker; an unknown code fails the test."""
    from gemmgen.sanitizer.explanations import codes_of_findings

    allowed, known = {codes} if isinstance(codes, str) else set(codes), codes_of_findings()
    if wrong := sorted(allowed - set(known)):
        pytest.fail(f"cuda_emulator(allow={wrong}): no finding has this name; the names are {', '.join(known)}", pytrace=False)
    return allowed
