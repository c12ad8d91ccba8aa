"""Layout of the templates themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmgen.codegen.rendering import WIDTH
from gemmgen.core.resources import resource_directory

ROOT = resource_directory("templates")
TEMPLATES = sorted(path for path in ROOT.rglob("*") if path.is_file())
WIDEST = 160


def too_long(path: Path, limit: int) -> list[int]:
    """Numbers of the lines of a file that are longer than so many columns."""
    return [number for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > limit]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_line_of_a_template_is_too_long(path: Path) -> None:
    assert too_long(path, WIDEST) == []


@pytest.mark.parametrize("path", sorted((ROOT / "device").rglob("*.cuh")), ids=lambda path: path.stem)
def test_device_code_fits_a_line_of_generated_code(path: Path) -> None:
    assert too_long(path, WIDTH) == []
