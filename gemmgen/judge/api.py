"""The referee as one function."""

from __future__ import annotations

from pathlib import Path

from gemmgen.core.errors import SpecError
from gemmgen.judge.referee import Referee, Verdict
from gemmgen.judge.task import parse_shapes, read_task
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import read_kernel_file


def judge(candidate: Path, task: Path, reference: tuple[Path, str], shapes: tuple[str, ...]) -> Verdict:
    """The verdict on a kernel file. ``shapes`` are written ``m=64,n=48,k=32``. Raises ``GemmgenError`` if it cannot be judged."""
    if not shapes:
        raise SpecError("a judgement needs a shape, such as m=64,n=48,k=32")
    if not reference[0].is_file():
        raise SpecError(f"the reference {reference[0]} is no file")
    read = read_task(task)
    code = read_kernel_file(candidate, CompileOptions(read.architecture), read.entry)
    return Referee(code, read, reference, parse_shapes(shapes)).judge()
