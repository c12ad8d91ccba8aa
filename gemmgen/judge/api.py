"""The judge as one function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from gemmgen.core.errors import EnvironmentMissing, SpecError
from gemmgen.judge.candidates import Candidate, KernelCandidate
from gemmgen.judge.proofs import prove
from gemmgen.judge.referee import OnDevice, Referee, Timing, Verdict
from gemmgen.judge.reference import PythonReference, Reference
from gemmgen.judge.spec_reference import SpecReference
from gemmgen.judge.task import Task, parse_shapes, read_task
from gemmgen.kernels.shipped import spec_path
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import read_kernel_file


def judge(
    candidate: Path,
    task: Path,
    reference: tuple[Path, str],
    shapes: tuple[str, ...],
    *,
    run_native: bool = False,
    time: str | None = None,
    peer: tuple[Path, str] | None = None,
    prove_seconds: float = 0.0,
    seed: int | None = None,
) -> Verdict:
    """The verdict on a kernel, a program, a torch extension or a Triton kernel.

    ``reference`` is a Python file and a function in it, or a spec and an empty string. ``shapes`` are written ``m=64,n=48,k=32``.
    With ``run_native``, host code and Python of the candidate may run natively, and kernels also run on a GPU if there is one. Then
    ``time`` is a shape to time, beside ``peer``, a Python file and a function on torch tensors. ``prove_seconds`` limits the time for
    proofs about a kernel; 0 tries none. ``seed`` draws the data; None draws a new seed, which the verdict states. Raises
    ``GemmgenError`` if the candidate cannot be judged.
    """
    if not shapes:
        raise SpecError("a judgement needs a shape, such as m=64,n=48,k=32")
    file, function = reference
    read = read_task(task)
    if function and not file.is_file():
        raise SpecError(f"the reference {file} is no file")
    source: Reference = PythonReference(file, function) if function else SpecReference(file, read)
    if (time is not None or peer is not None) and not run_native:
        raise SpecError("a time needs --run-native: the kernel runs on the GPU then")
    timed = parse_shapes((time,))[0] if time is not None else None
    with opened(candidate, read, run_native) as opened_candidate, ExitStack() as cleanup:
        device = _on_device(opened_candidate, cleanup, timed is not None) if run_native else None
        timing = None if device is None else Timing(timed, None if peer is None else (str(peer[0].resolve()), peer[1]))
        proof = partial(prove, opened_candidate, prove_seconds) if prove_seconds and isinstance(opened_candidate, KernelCandidate) else None
        return Referee(opened_candidate, read, source, parse_shapes(shapes), device, timing, proof, seed).judge()


def _on_device(candidate: Candidate, cleanup: ExitStack, needed: bool) -> OnDevice | None:
    """The candidate on a GPU; None if there is none, or if it has host code. Raises ``GemmgenError`` if one is ``needed``."""
    from gemmgen.judge.device import DeviceCandidate
    from gemmgen.runtime.cuda.driver import gpu_available, why_no_gpu

    if not isinstance(candidate, KernelCandidate):
        if needed:
            raise SpecError("kernels are timed, programs and torch extensions are not: their host code runs on the emulator's runtime")
        return None
    if not gpu_available():
        if needed:
            raise EnvironmentMissing(why_no_gpu())
        return None
    made = DeviceCandidate(candidate)
    cleanup.callback(made.close)
    return made


@contextmanager
def opened(file: Path, task: Task, run_native: bool) -> Iterator[Candidate]:
    """The candidate in a file. Raises ``GemmgenError``."""
    native = "a program" if task.command is not None else "a torch extension" if task.function is not None else ""
    native = native or ("a Triton kernel" if file.suffix == ".py" else "")
    if native and not run_native:
        raise SpecError(f"{file}: {native} has host code, which runs as native code; --run-native allows it, in a process with limits")
    if task.command is not None or task.function is not None:
        from gemmgen.judge.programs import built

        with built(file, task) as program:
            yield program
    elif native:
        from gemmgen.judge.triton import compiled

        yield compiled(file, task)
    else:
        yield KernelCandidate(read_kernel_file(file, CompileOptions(task.architecture), task.entry), task)


def parse_reference(text: str) -> tuple[Path, str]:
    """``FILE.py:FUNCTION``, or a spec's file or name and no function. Raises ``SpecError``."""
    file, _, function = text.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        return Path(file), function
    if text.endswith(".py") or file.endswith(".py"):
        raise SpecError(f"--reference {text!r}: expected FILE.py:FUNCTION, or a spec")
    return spec_path(text), ""
