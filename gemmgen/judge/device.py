"""A candidate's kernel on a GPU: its results with guards around all arrays, and its time beside a peer.

Kernels run in separate processes: a kernel that faults or does not end affects only its process.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.core.elements import DataType, numpy_type
from gemmgen.core.errors import GemmgenError, LaunchError
from gemmgen.core.files import read_plain
from gemmgen.core.formulas import Formula
from gemmgen.core.text import printable
from gemmgen.judge.candidates import Called, CandidateFailed, KernelCandidate, poisoned
from gemmgen.judge.referee import Times
from gemmgen.judge.reference import Arrays
from gemmgen.judge.task import Task, evaluate
from gemmgen.kernels.launch import Argument, ArrayArgument, ArrayRole, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.cuda.backend import GpuBackend
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import KernelCode, find_entry, load_kernel
from gemmgen.toolchain.nvrtc import Binary

SECONDS = 120
"""Limit of a measurement."""
RUN_SECONDS = 30
"""Limit of one launch whose results are checked."""
_MAX_ANSWER = 8 << 30


def packed_array(name: str, kind: DataType, role: ArrayRole, shape: Sequence[int]) -> ArrayArgument:
    """A contiguous array of a fixed shape."""
    extents = tuple(Formula(str(extent)) for extent in shape)
    strides = tuple(Formula(str(math.prod(shape[axis + 1 :]))) for axis in range(len(shape)))
    return ArrayArgument(name, kind, role, extents, strides, alignment=1, meaning="an array")


def sequence_of(task: Task, entry: str, sizes: Mapping[str, int], scratch: tuple[int, ...] = ()) -> tuple[LaunchSequence, dict[str, int]]:
    """The launch of a task for one problem, and the integers that it passes."""
    arguments: list[Argument] = []
    numbers: dict[str, int] = {}
    own = dict(sizes)
    for argument in task.arguments:
        if argument.shape is None:
            numbers[argument.name] = evaluate(argument.value if argument.value is not None else argument.name, own)
            arguments.append(ScalarArgument(argument.name, "s32", "an integer"))
            continue
        arguments.append(packed_array(argument.name, argument.type, argument.role, [evaluate(extent, own) for extent in argument.shape]))
    grid = [max(1, evaluate(size, own)) for size in task.grid]
    for number, count in enumerate(scratch):
        arguments.append(packed_array(f"scratch_{number}", "u8", "inout", [count * int(np.prod(grid))]))
    x, y, z = (Formula(str(size)) for size in [*grid, 1, 1][:3])
    blocks = [max(1, evaluate(size, own)) for size in task.block]
    threads = (blocks[0], *[*blocks[1:], 1, 1][:2])
    shared = Formula(str(evaluate(task.shared_bytes, own)))
    launch = KernelLaunch(entry, (x, y, z), (threads[0], threads[1], threads[2]), tuple(one.name for one in arguments), shared)
    return LaunchSequence(entry, (), tuple(arguments), (launch,)), numbers


class DeviceCandidate:
    """A kernel on a GPU. Raises ``EnvironmentMissing`` without one."""

    def __init__(self, kernel: KernelCandidate, ordinal: int = 0) -> None:
        self.kernel, self.task = kernel, kernel.task
        self.device = gpu(ordinal)
        code = _for_device(kernel.code, self.task, self.device.architecture.name if self.device.architecture is not None else "")
        self.entry = find_entry(code, self.task.entry).symbol
        image = code.cubin or code.ptx.encode() + b"\0"
        # PTX is compiled by the driver, for any device.
        self.binary = Binary(code.ptx, image, code.architecture if code.cubin else "PTX", (), (0, 0), "", "", {})
        self.backend = GpuBackend(ordinal, RUN_SECONDS)

    @property
    def description(self) -> str:
        """The device."""
        return str(self.device)

    def call(self, sizes: dict[str, int], inputs: Arrays) -> Called:
        """Outputs of one launch. Raises ``CandidateFailed``."""
        sequence, numbers = sequence_of(self.task, self.entry, sizes, self.kernel.scratch)
        outputs: Arrays = {}
        buffers: dict[str, HostBuffer] = {}
        for argument in sequence.arrays:
            shape = tuple(extent.evaluate({}) for extent in argument.shape)
            if argument.name in inputs:
                array = inputs[argument.name].copy()
            elif argument.role == "output":
                array = outputs[argument.name] = poisoned(shape, argument.type)
            else:
                array = np.zeros(shape, numpy_type(argument.type))
            buffers[argument.name] = HostBuffer(array.reshape(-1))
        try:
            self.backend.run(self.binary, sequence, {}, numbers, buffers)
        except LaunchError as error:
            raise CandidateFailed("fails-on-gpu", str(error)) from error
        for name, array in inputs.items():
            if buffers[name].storage.tobytes() != array.tobytes():
                raise CandidateFailed("writes-input", f"{name} is another array after a launch on the GPU")
        return Called(outputs, {name: np.ones(array.nbytes, np.bool_) for name, array in outputs.items()})

    def close(self) -> None:
        """Ends the process that launches kernels."""
        self.backend.close()

    def timed(self, sizes: dict[str, int], inputs: Arrays, unseen: Arrays, peer: tuple[str, str] | None) -> tuple[Times, Arrays, Arrays]:
        """The time of a call, the outputs of the timed launches, and the outputs of a later launch on ``unseen`` inputs.

        ``peer`` names a Python file and a function in it, which computes with torch tensors. Raises ``CandidateFailed``, and
        ``GemmgenError`` if the measurement fails otherwise."""
        sequence, numbers = sequence_of(self.task, self.entry, sizes, self.kernel.scratch)
        question = {
            "ordinal": self.device.ordinal,
            "architecture": self.binary.architecture,
            "sizes": sizes,
            "numbers": numbers,
            "arrays": [[one.name, one.type, one.role, [extent.evaluate({}) for extent in one.shape]] for one in sequence.arrays],
            "entry": self.entry,
            "grid": sequence.launches[0].grid_of({}),
            "block": sequence.launches[0].block,
            "shared_bytes": sequence.launches[0].dynamic_shared_bytes.evaluate({}),
            "parameters": sequence.launches[0].arguments,
            "peer": peer,
        }
        with tempfile.TemporaryDirectory(prefix="gemmgen-judge-") as name:
            folder = Path(name)
            (folder / "image").write_bytes(self.binary.cubin)
            (folder / "question.json").write_text(json.dumps(question))
            for label, arrays in (("seen", inputs), ("unseen", unseen)):
                for own, array in arrays.items():
                    (folder / f"{label}.{own}").write_bytes(array.tobytes())
            answer = _measured(folder)
            if "fault" in answer:
                raise CandidateFailed("fails-on-gpu", printable(str(answer["fault"]), 300))
            measured = [
                {one: _output(folder / f"{label}.{one}", self.task, one, sizes) for one in _outputs(self.task)}
                for label in ("timed", "after")
            ]
        peer_us = answer.get("peer_us")
        times = Times(
            str(self.device), sizes, float(answer["candidate_us"]), None if peer_us is None else float(peer_us), str(answer.get("peer", ""))
        )
        return times, measured[0], measured[1]


def _for_device(code: KernelCode, task: Task, architecture: str) -> KernelCode:
    """The kernel as machine code of the device, if its source is available."""
    if code.source is None or not architecture:
        return code
    return load_kernel(code.source, code.name, code.folder, CompileOptions(architecture), task.entry)


def _measured(folder: Path) -> dict[str, Any]:
    """The answer of the process that measures. Raises ``GemmgenError``."""
    command = [sys.executable, "-m", "gemmgen.judge.device_child", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"fault": f"the measurement took more than {SECONDS} s"}
    try:
        answer = json.loads(read_plain(folder / "answer.json", 1 << 20))
    except (OSError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise GemmgenError(f"the measurement ended without a result (status {done.returncode}): {printable(last, 300)}") from None
    if not isinstance(answer, dict) or not ("fault" in answer or isinstance(answer.get("candidate_us"), float)):
        raise GemmgenError("the measurement gave no time")
    return answer


def _outputs(task: Task) -> list[str]:
    return [argument.name for argument in task.arrays if argument.role == "output"]


def _output(file: Path, task: Task, name: str, sizes: dict[str, int]) -> Any:
    argument = next(one for one in task.arrays if one.name == name)
    shape = tuple(evaluate(extent, sizes) for extent in argument.shape or ())
    data = read_plain(file, _MAX_ANSWER)
    return np.frombuffer(data, numpy_type(argument.type)).reshape(shape)
