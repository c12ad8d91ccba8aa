"""The referee as one function."""

from __future__ import annotations

from pathlib import Path

from gemmgen.core.errors import SpecError
from gemmgen.judge.referee import Referee, Verdict
from gemmgen.judge.reference import PythonReference, Reference
from gemmgen.judge.spec_reference import SpecReference
from gemmgen.judge.task import parse_shapes, read_task
from gemmgen.kernels.shipped import spec_path
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import read_kernel_file


def judge(candidate: Path, task: Path, reference: tuple[Path, str], shapes: tuple[str, ...]) -> Verdict:
    """The verdict on a kernel file. ``reference``: a file of Python and a function in it, or a spec and nothing. ``shapes`` are written
    ``m=64,n=48,k=32``. Raises ``GemmgenError`` if it cannot be judged."""
    if not shapes:
        raise SpecError("a judgement needs a shape, such as m=64,n=48,k=32")
    file, function = reference
    read = read_task(task)
    if function and not file.is_file():
        raise SpecError(f"the reference {file} is no file")
    source: Reference = PythonReference(file, function) if function else SpecReference(file, read)
    code = read_kernel_file(candidate, CompileOptions(read.architecture), read.entry)
    return Referee(code, read, source, parse_shapes(shapes)).judge()


def parse_reference(text: str) -> tuple[Path, str]:
    """``FILE.py:FUNCTION``, or a spec's file or name and no function. Raises ``SpecError``."""
    file, _, function = text.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        return Path(file), function
    if text.endswith(".py") or file.endswith(".py"):
        raise SpecError(f"--reference {text!r}: expected FILE.py:FUNCTION, or a spec")
    return spec_path(text), ""
