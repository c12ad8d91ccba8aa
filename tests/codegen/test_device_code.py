"""Device code is CUDA of its own: each file compiles alone, and each name is defined once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmgen.codegen.device_code import parse
from gemmgen.core.resources import resource_directory
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source

ROOT = resource_directory("templates") / "device"
FILES = [(path, "sm_75" if path.parent.name == "turing" else "sm_90a") for path in sorted(ROOT.rglob("*.cuh"))]


@pytest.mark.parametrize(("path", "architecture"), FILES, ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_a_file_of_device_code_compiles_alone(path: Path, architecture: str) -> None:
    binary = compile_source(path.read_text(), architecture=architecture, options=COMPILE_OPTIONS, name=path.name, cache=None)
    assert binary.architecture == architecture


def test_a_definition_stands_in_one_file() -> None:
    names = [definition.name for path, architecture in FILES if architecture != "sm_75" for definition in parse(path.read_text())]
    assert sorted(names) == sorted(set(names))
