"""Candidates: a kernel as the referee calls it, on the emulator's memory with poisoned outputs and read-only inputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from gemmgen import emulator
from gemmgen.core.elements import numpy_type
from gemmgen.emulator import Buffer
from gemmgen.emulator.arithmetic import REAL, Arithmetic
from gemmgen.emulator.buffers import PAGE
from gemmgen.emulator.errors import InFlightRead, InFlightWrite
from gemmgen.emulator.program import Program, link
from gemmgen.judge.decisions import COUNTERS, Noted, noted_decisions
from gemmgen.judge.patience import impatient
from gemmgen.judge.reference import Arrays
from gemmgen.judge.task import Task, evaluate
from gemmgen.sanitizer.findings import Finding, findings_of
from gemmgen.sanitizer.launches import Launch, module_variables
from gemmgen.sanitizer.source import KernelCode, find_entry

if TYPE_CHECKING:
    from gemmgen.sanitizer.programs.session import DeviceAnswers

STEP_LIMIT = 200_000
_STARVED_STEPS, _GIVING_UP_STEPS = 8_000, 60_000
POISON = 0xFF
_COUNTED_CALLS = 6
"""Calls that are run before the last of many; a counter that begins anew after fewer shows."""
_ELSEWHERE = 1 << 16
"""Alignment of outputs that lie elsewhere, so that an address from an earlier call leads to none."""
_KINDS: tuple[tuple[type[emulator.EmulatorError], str], ...] = (
    (emulator.ReadOnly, "writes-input"),
    (emulator.OutOfBounds, "out-of-bounds"),
    (emulator.Misaligned, "misaligned"),
    (emulator.Deadlock, "hangs"),
    (emulator.DivergentBarrier, "hangs"),
    (emulator.DivergentWarp, "hangs"),
    (emulator.Trapped, "traps"),
    (emulator.UnwrittenRead, "reads-output"),
    (emulator.UndefinedRegister, "reads-output"),
    (emulator.HazardError, "race"),
    *((error, "race") for error in (emulator.UnfinishedCopy, emulator.RegisterInFlight, emulator.UnfinishedWgmma)),
    *((error, "race") for error in (emulator.TensorMemoryInFlight, emulator.UnfinishedTensorOperation)),
    *((error, "invalid") for error in (emulator.TensorMemoryMisuse, emulator.InvalidMatrix, emulator.InvalidCopy)),
    *((error, "invalid") for error in (emulator.BarrierMisuse, emulator.ClusterMisuse, emulator.RegisterPoolMisuse)),
    (emulator.BadAllocation, "invalid"),
    (emulator.BadLaunch, "fails"),
    (emulator.ParseError, "unknown"),
    (InFlightRead, "race"),
    (InFlightWrite, "race"),
    (emulator.UnknownInstruction, "unknown"),
)


@dataclass(frozen=True)
class Called:
    """Results of one call."""

    outputs: Arrays
    written: Arrays
    """A flag for each byte of each output."""
    on_device: bool = True
    """False if host code may have computed with the data; a run over a field then cannot refuse the candidate."""
    instructions: int = 0
    """Executed instructions of all lanes; 0 if they were not counted."""
    launches: int = 0
    """Launches of kernels by host code."""


@dataclass(frozen=True)
class Conditions:
    """Circumstances of a call."""

    warp_order: int | None = None
    """Seed of a random order of warps; None: the default order."""
    starves: Literal["", "later", "earlier"] = ""
    """Warps that those that poll starve."""
    gives_up: bool = False
    """True: waits that count their turns give up after one."""
    elsewhere: bool = False
    """True: arrays have other addresses than in other calls."""
    arithmetic: Arithmetic = REAL
    one_block: bool = False
    """True: only the first block runs."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Bytes by which arrays begin behind an aligned address."""
    device: DeviceAnswers | None = None
    """The device that the runtime reports to host code; None: the emulator."""


class CandidateFailed(Exception):
    """A call that ended in an error, with its kind of failure and the emulator's findings."""

    def __init__(self, kind: str, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.kind, self.findings = kind, tuple(findings)


class ImpossibleLaunch(CandidateFailed):
    """A launch that no device takes: the task may not describe the kernel."""


class Candidate(Protocol):
    """Code that computes a task's outputs."""

    name: str

    def call(self, sizes: dict[str, int], inputs: Arrays, conditions: Conditions = Conditions()) -> Called:
        """Outputs of one call on fresh memory. Raises ``CandidateFailed``."""

    def later_call(self, sizes: dict[str, int], first: Arrays, last: Arrays, more: int = 0) -> Called | None:
        """Outputs of a call with the inputs ``last`` after 1 + ``more`` calls with the inputs ``first``, whose state it finds. None if a
        candidate keeps no state between calls. Raises ``CandidateFailed``."""

    def texts(self) -> Sequence[str]:
        """PTX of all kernels; for programs, the modules that calls have loaded so far."""

    def programs(self) -> Sequence[Program]:
        """The kernels that calls have launched."""


def poisoned(shape: tuple[int, ...], type_name: str) -> npt.NDArray[Any]:
    """An output array that holds poison."""
    holder = numpy_type(type_name)
    return np.full(int(np.prod(shape)) * holder.itemsize, POISON, np.uint8).view(holder).reshape(shape)


def _words(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """A copy of an array's bytes as 32-bit words, padded with zeros."""
    raw = array.view(np.uint8).reshape(-1)
    return np.concatenate([raw, np.zeros(-raw.size % 4, np.uint8)]).view(np.uint32)


def _counted_on(states: Sequence[npt.NDArray[np.uint32]], more: int) -> npt.NDArray[np.uint32]:
    """The state after 1 + ``more`` calls, extrapolated from the ``states`` after the first calls: words to which every call has added the
    same number continue to grow, words that every call has changed otherwise become random, and all other words stay."""
    if len(states) < 3:
        return states[-1]
    held = np.stack(states)
    steps = np.diff(held, axis=0)
    counts = (steps == steps[0]).all(axis=0)
    after = states[-1] + np.where(counts, steps[0], 0).astype(np.uint32) * np.uint32(more + 1 - len(states))
    new = ~counts & (np.diff(np.sort(held, axis=0), axis=0) != 0).all(axis=0)
    return np.where(new, np.random.default_rng(more).integers(0, 1 << 32, after.shape, dtype=np.uint32), after)


def kind_of(error: type[emulator.EmulatorError]) -> str:
    """The kind of failure that an error of the emulator is."""
    return next((name for type_, name in _KINDS if issubclass(error, type_)), "hangs")


class KernelCandidate:
    """A kernel, launched as the task says."""

    def __init__(self, code: KernelCode, task: Task, scratch: Sequence[int] = ()) -> None:
        """``scratch`` holds bytes per block, one for each further parameter that points to scratch memory, as Triton passes them."""
        self.code, self.task, self.name, self.scratch = code, task, code.name, tuple(scratch)
        self.entry = find_entry(code, task.entry)

    def texts(self) -> Sequence[str]:
        """The kernel's PTX."""
        return (self.code.ptx,)

    @cached_property
    def impatient(self) -> str | None:
        """PTX whose waits give up after one turn, and whose questions to barriers are answered at once; None if it has none of both."""
        (program,) = self.programs()
        return impatient(program, self.code.ptx)

    def programs(self) -> Sequence[Program]:
        """The kernel."""
        return (link(self.code.ptx, self.entry.symbol),)

    def call(self, sizes: dict[str, int], inputs: Arrays, conditions: Conditions = Conditions()) -> Called:
        """Outputs of one launch."""
        return self._launch(sizes, inputs, conditions)

    @cached_property
    def noted(self) -> Noted | None:
        """The kernel with notes of its decisions by inputs; None if it makes none."""
        (program,) = self.programs()
        return noted_decisions(program, self.code.ptx)

    @cached_property
    def noted_by_sizes(self) -> Noted | None:
        """The kernel with notes of its decisions by sizes and threads; None if it makes none."""
        (program,) = self.programs()
        return noted_decisions(program, self.code.ptx, by_sizes=True)

    def note_answers(
        self, noted: Noted, sizes: dict[str, int], inputs: Arrays, answers: npt.NDArray[np.uint32], *, one_block: bool = False
    ) -> bool:
        """Runs the kernel, or its first block alone, without checks for hazards, and adds the answers that its decisions had; True if some
        are new."""
        before = answers.copy()
        with suppress(CandidateFailed):
            self._launch(sizes, inputs, Conditions(one_block=one_block), {COUNTERS: answers}, noted.ptx)
        return bool((answers != before).any())

    def later_call(self, sizes: dict[str, int], first: Arrays, last: Arrays, more: int = 0) -> Called | None:
        """Outputs of a launch that finds the module's variables of earlier launches. Of many earlier launches, the first few are run, and
        their counters are extrapolated."""
        launch = Launch(self.entry, (1,), (1,), 0, ())
        # Headers declare thousands of constants that no kernel reads.
        named = Counter(re.findall(r"[\w$]+", self.code.ptx))
        symbols = {name: array for name, array in module_variables(self.code, [launch, launch], {}).items() if named[name] > 1}
        if not symbols:
            return None
        states: list[dict[str, npt.NDArray[Any]]] = []
        for _ in range(1 + min(more, _COUNTED_CALLS)):
            self._launch(sizes, first, Conditions(), symbols)
            states.append({name: _words(array) for name, array in symbols.items()})
        for name, array in symbols.items():
            array.view(np.uint8).reshape(-1)[:] = _counted_on([state[name] for state in states], more).view(np.uint8)[: array.nbytes]
        return self._launch(sizes, last, Conditions(elsewhere=not more), symbols)

    def _launch(
        self, sizes: dict[str, int], inputs: Arrays, conditions: Conditions, symbols: dict[str, Any] | None = None, noted: str = ""
    ) -> Called:
        schedule: emulator.Schedule | None = emulator.FirstWarp(last=conditions.starves == "earlier") if conditions.starves else None
        if conditions.warp_order is not None:
            schedule = emulator.RandomWarps(conditions.warp_order)
        outputs: Arrays = {}
        written: Arrays = {}
        args: list[Any] = []
        grid = [1 if conditions.one_block else max(1, evaluate(size, sizes)) for size in self.task.grid]
        for argument in self.task.arguments:
            if argument.shape is None:
                args.append(evaluate(argument.value if argument.value is not None else argument.name, sizes))
                continue
            shape = tuple(evaluate(extent, sizes) for extent in argument.shape)
            if argument.role == "input":
                args.append(Buffer(inputs[argument.name].copy(), conditions.offsets.get(argument.name), argument.name, writable=False))
                continue
            outputs[argument.name] = poisoned(shape, argument.type)
            written[argument.name] = np.zeros(outputs[argument.name].nbytes, np.bool_)
            alignment = _ELSEWHERE if conditions.elsewhere else PAGE
            offset = conditions.offsets.get(argument.name)
            args.append(Buffer(outputs[argument.name], offset, argument.name, written=written[argument.name], alignment=alignment))
        for count in self.scratch:
            size = count * int(np.prod(grid))
            args.append(Buffer(np.zeros(size, np.uint8), name="scratch") if size else 0)
        try:
            result = emulator.launch(
                noted or (self.impatient or self.code.ptx if conditions.gives_up else self.code.ptx),
                self.entry.symbol,
                grid=grid,
                block=[max(1, evaluate(size, sizes)) for size in self.task.block],
                shared_bytes=evaluate(self.task.shared_bytes, sizes),
                args=args,
                source=self.code.text_of,
                schedule=schedule,
                hazards=not noted,
                # Compiled code counts turns of loops, not the long bodies that waits may have; waves that poll hold all blocks anyway.
                lanes_per_wave=1 if any(program.polls for program in self.programs()) else None,
                step_limit=_GIVING_UP_STEPS if conditions.gives_up else _STARVED_STEPS if conditions.starves else STEP_LIMIT,
                symbols=symbols,
                arithmetic=conditions.arithmetic,
            )
        except emulator.BadLaunch as error:
            raise ImpossibleLaunch("fails", str(error)) from error
        except emulator.EmulatorError as error:
            raise CandidateFailed(kind_of(type(error)), str(error), findings_of(error, (), self.code.text_of)) from error
        if unfinished := tuple(each for each in result.findings if isinstance(each, emulator.UnfinishedCopy)):
            raise CandidateFailed("race", str(unfinished[0]).removeprefix("warning: "), findings_of(None, unfinished, self.code.text_of))
        return Called(outputs, written, instructions=result.total_instructions)
