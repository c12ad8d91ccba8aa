"""One product on tensor cores: every instance that fits and torch, checked on small integers and replayed in turns."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.requests import MOST_ALIGNMENT, Fit, Layout
from gemmgen.perf.contestants import Contestant, measure_in_turns, torch_contestant, trial_seconds
from gemmgen.perf.timing import capture
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.toolchain.nvrtc import Binary

TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "s32": torch.int32,
    "s8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
GRAPH_SECONDS = 1e-3
KEPT = 1.1
"""Instances that took so many times as long as the best in a trial are timed no further."""
MOST_SETS = 512
MOST_BYTES = 6e9
INT_MM_ROWS = 17
"""Rows from which on ``torch._int_mm`` computes."""
HALF_ROUNDING = 2.0**-7
"""Largest relative difference of results with an epilogue: rounded twice, to bfloat16."""


@dataclass(frozen=True)
class Entry:
    """An instance fitted to a request, compiled."""

    name: str
    fit: Fit
    plan: KernelPlan
    dimensions: Mapping[str, int]
    binary: Binary


@dataclass
class Outcome:
    """Microseconds of one launch: median, 10th and 90th percentile; of instances that a trial ruled out, the trial's alone."""

    times: dict[str, list[float]] = field(default_factory=dict)
    trials: dict[str, float] = field(default_factory=dict)
    peer: list[float] | None = None
    fused: list[float] | None = None
    """torch with ``addmm`` for product and bias."""
    wrong: list[str] = field(default_factory=list)


class Operands:
    """Memory of the operands of a request, in as many sets as exceed the L2 twice."""

    def __init__(self, request: GemmRequest, entries: Sequence[Entry], l2_bytes: int) -> None:
        self.layouts: dict[tuple[str, tuple[int, ...]], Layout] = {
            (request.operands[0], request.a.shape): request.a,
            (request.operands[1], request.b.shape): request.b,
            ("out", request.c.shape): request.c,
        }
        if request.residual is not None:
            self.layouts["residual", request.c.shape] = request.residual
        for entry in entries:
            for name, layout in entry.fit.arrays.values():
                if name not in (*request.operands, "out", "residual"):
                    self.layouts.setdefault((name, layout.shape), layout)
        sizes = {key: self._elements(layout) for key, layout in self.layouts.items()}
        total = sum(size * self.layouts[key].element_bytes for key, size in sizes.items())
        read = total - sizes["out", request.c.shape] * request.c.element_bytes
        self.count = max(2, min(math.ceil(2 * l2_bytes / read), MOST_SETS, int(MOST_BYTES / total)))
        self.memory = {
            key: torch.empty((self.count, (size + 512) // 256 * 256), dtype=TYPES[self.layouts[key].type], device="cuda")
            for key, size in sizes.items()
        }

    @staticmethod
    def _elements(layout: Layout) -> int:
        return 1 + sum((extent - 1) * stride for extent, stride in zip(layout.shape, layout.strides, strict=True))

    def tensor(self, index: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One operand of a set as the request sees it."""
        key = (name, shape)
        memory = self.memory[key][index]
        return memory.as_strided(shape, self.layouts[key].strides, memory.storage_offset() + self._start(key))

    def _start(self, key: tuple[str, tuple[int, ...]]) -> int:
        """Elements from a multiple of 16 bytes to the first, where no more alignment is promised than that of ``alignment`` bytes."""
        layout = self.layouts[key]
        return layout.alignment // layout.element_bytes if layout.alignment < MOST_ALIGNMENT else 0

    def pointers(self, index: int, fit: Fit) -> dict[str, int]:
        """Addresses of the arrays of an instance in a set."""
        found = {}
        for array, (name, layout) in fit.arrays.items():
            shape = layout.shape if (name, layout.shape) in self.memory else (*layout.shape[:-2], *layout.shape[:-3:-1])
            found[array] = int(self.tensor(index, name, shape).data_ptr())
        return found

    def fill(self, integers: bool) -> None:
        """Small integers in the first set, or random numbers in all."""
        for (name, _), memory in self.memory.items():
            target = memory[:1] if integers else memory
            if name == "out":
                target.view(torch.uint8).fill_(0x7F)
            elif integers:
                target.copy_(torch.randint(-2, 3, target.shape, device="cuda").float())
            elif memory.dtype == torch.int8:
                target.random_(-128, 128)
            else:
                for part in target:
                    part.copy_(torch.randn(part.shape, device="cuda"))


def measure(
    request: GemmRequest, entries: Sequence[Entry], l2_bytes: int, rounds: int, sample: Callable[[], None], kept: float = KEPT
) -> Outcome:
    """Checks all entries, and times torch and those that took no more than ``kept`` times as long as the best in a trial."""
    outcome = Outcome()
    with ExitStack() as cleanup, torch.no_grad():
        operands = Operands(request, entries, l2_bytes)
        stream = torch.cuda.Stream()
        handle = int(stream.cuda_stream)
        launches: dict[str, Callable[[int], None]] = {}
        operands.fill(integers=True)
        expected = _expected(request, operands)
        out = operands.tensor(0, "out", request.c.shape)
        for entry in entries:
            launch = _launch(cleanup, entry, operands, handle)
            out.view(torch.uint8).fill_(0x7F) if out.is_contiguous() else out.zero_()
            torch.cuda.synchronize()
            launch(0)
            torch.cuda.synchronize()
            if _agrees(request, out, expected):
                launches[entry.name] = launch
            else:
                outcome.wrong.append(entry.name)
        del expected
        operands.fill(integers=False)
        torch.cuda.synchronize()
        own = [Contestant(name, "candidate", launch, partial(capture, cleanup, handle)) for name, launch in launches.items()]
        seconds = trial_seconds(handle, own, operands.count) if own else []
        outcome.trials = {one.name: value * 1e6 for one, value in zip(own, seconds, strict=True)}
        contestants = [one for one, value in zip(own, seconds, strict=True) if value <= kept * min(seconds)]
        for name in ("peer", "fused") if request.epilogue and request.epilogue[0].op == "bias" else ("peer",):
            peer = _peer(cleanup, request, operands, stream, name)
            contestants += [peer] if peer is not None else []
        if contestants:
            samples, counts = measure_in_turns(handle, contestants, operands.count, rounds, sample, GRAPH_SECONDS)
            figures = {
                one.name: [float(value) / count * 1e6 for value in np.percentile(np.array(values), [50, 10, 90])]
                for one, values, count in zip(contestants, samples, counts, strict=True)
            }
            outcome.peer, outcome.fused = figures.pop("peer", None), figures.pop("fused", None)
            outcome.times = figures
        torch.cuda.synchronize()
    del operands
    gc.collect()
    torch.cuda.empty_cache()
    return outcome


def _launch(cleanup: ExitStack, entry: Entry, operands: Operands, stream: int) -> Callable[[int], None]:
    loaded = LoadedBinary(entry.binary.cubin, entry.binary.architecture, 0)
    cleanup.callback(loaded.unload)
    sequence = entry.plan.sequence
    launcher = Launcher(loaded, sequence.resolve(entry.dimensions), entry.dimensions)
    workspace: dict[str, int] = {}
    if size := sequence.workspace_bytes.evaluate(entry.dimensions):
        memory = torch.zeros(size, dtype=torch.uint8, device="cuda")
        cleanup.callback(memory.untyped_storage)  # the stack keeps it alive as long as the graphs
        workspace = dict.fromkeys(sequence.workspace_names, int(memory.data_ptr()))
    scalars = {"gamma": 1.0} | sequence.default_scalars
    values = [launcher.values(operands.pointers(index, entry.fit) | workspace, scalars) for index in range(operands.count)]
    return lambda index: launcher.launch(stream, *values[index])


def _steps(request: GemmRequest, operands: Operands, index: int) -> list[tuple[str, Any]]:
    """The epilogue's operations with what they read."""
    found: list[tuple[str, Any]] = []
    for operation in request.epilogue:
        if operation.op == "residual":
            found.append(("residual", operands.tensor(index, "residual", request.c.shape)))
        elif operation.op in ("bias", "factor"):
            name = "bias" if operation.op == "bias" else request.scales[len([step for step, _ in found if step == "factor"])]
            extent = {"row": request.m, "column": request.n}.get(operation.model_dump()["per"], 1)
            value = operands.tensor(index, name, (extent,))
            found.append((operation.op, value[:, None] if operation.model_dump()["per"] == "row" else value))
        else:
            found.append((operation.op, None))
    return found


def _applied(step: str, value: torch.Tensor, read: Any) -> torch.Tensor:
    """One operation, as eager torch computes it."""
    if step in ("bias", "residual"):
        return value + read
    if step == "factor":
        return value * read
    return torch.relu(value) if step == "relu" else torch.nn.functional.gelu(value)


def _expected(request: GemmRequest, operands: Operands) -> torch.Tensor:
    """The result on small integers, from float32, which holds all sums of such."""
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (operands.tensor(0, name, layout.shape).float() for name, layout in zip(request.operands, (request.a, request.b), strict=True))
    value = torch.matmul(a, b)
    for step, read in _steps(request, operands, 0):
        value = _applied(step, value, None if read is None else read.float())
    kind = TYPES[request.c.type]
    return value.round().clamp(-128, 127).to(kind) if kind == torch.int8 else value.to(kind)


def _agrees(request: GemmRequest, got: torch.Tensor, expected: torch.Tensor) -> bool:
    if request.epilogue and got.dtype.is_floating_point:
        return torch.allclose(got.float(), expected.float(), rtol=HALF_ROUNDING, atol=HALF_ROUNDING)
    if got.dtype.itemsize == 1:
        return torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    return torch.equal(got, expected)


def _peer(
    cleanup: ExitStack, request: GemmRequest, operands: Operands, stream: torch.cuda.Stream, name: Literal["peer", "fused"]
) -> Contestant | None:
    """torch as a contestant; None where it has no such product.

    ``_int_mm`` gives int32: a result of s8 with scales is compared with it alone. An epilogue is a chain of operations, of which ``addmm``
    takes over the first if ``fused``.
    """
    calls = [_call(request, operands, index, name == "fused") for index in range(operands.count)]
    torch.backends.cuda.matmul.allow_tf32 = request.precision == "tf32"
    found = torch_contestant(cleanup, torch, stream, name, lambda index: calls[index]())
    try:
        found.enqueue(0)
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"torch refuses {request.text}: {str(error).splitlines()[0][:120]}", flush=True)
        return None
    return found


def _call(request: GemmRequest, operands: Operands, index: int, fused: bool) -> Callable[[], Any]:
    a, b = (operands.tensor(index, name, layout.shape) for name, layout in zip(request.operands, (request.a, request.b), strict=True))
    c = operands.tensor(index, "out", request.c.shape)
    if request.a.type == "s8":
        result = c if c.dtype == torch.int32 else torch.empty(request.c.shape, dtype=torch.int32, device="cuda")
        return lambda: torch._int_mm(a, b, out=result)
    if request.a.type == "e4m3":
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=c.dtype, out=c)
    steps = _steps(request, operands, index)
    if not steps:
        return lambda: torch.matmul(a, b, out=c)

    def chain() -> torch.Tensor:
        value = torch.addmm(steps[0][1], a, b) if fused else torch.matmul(a, b)
        for step, read in steps[1:] if fused else steps:
            value = _applied(step, value, read)
        return value

    return chain
