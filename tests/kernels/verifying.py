"""Verification of a spec on the emulator by cases of given names, with a planted mistake if one is given."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gemmgen
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import VerificationReport, verify_binary

CORNERS = {"alpha of 0", "beta of 0", "not-a-numbers and infinities"}
"""Cases that specs without these factors, and those of integers, lack."""


def verified(
    spec: dict[str, Any], names: Collection[str] | None = None, planted: tuple[str, str] | None = None, architecture: str | None = None
) -> VerificationReport:
    """The report on cases of these names, or on all. ``planted``: a text of the source, which must be there, and another in its place."""
    plan = gemmgen.plan(spec, architecture)
    source = gemmgen.render(plan).text
    if planted is not None:
        assert planted[0] in source
        source = source.replace(*planted)
    cases = [case for case in oracle_of(plan.spec.kind).cases(plan) if names is None or case.name in names]
    assert cases and {case.name for case in cases} >= set(names or ()) - CORNERS
    binary = compile_source(source, architecture=plan.architecture.name, options=COMPILE_OPTIONS)
    return verify_binary(plan, binary, EmulatorBackend(), cases=cases)


def passes(
    spec: dict[str, Any], names: Collection[str] | None = None, planted: tuple[str, str] | None = None, architecture: str | None = None
) -> bool:
    """True if all cases of these names pass."""
    return verified(spec, names, planted, architecture).passed
