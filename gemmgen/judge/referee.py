"""The referee: runs a candidate on the emulator under every check, and names the kind of each failure.

Outputs are poisoned and marked unwritten before each call, inputs are read-only, every array has guards, two calls share the module's
variables, and several orders of warps must agree. Errors are compared with a derived bound, never with a tolerance.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, numpy_type, to_elements, to_numbers
from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.core.formulas import round_up
from gemmgen.emulator import residues
from gemmgen.emulator.arithmetic import FIELD
from gemmgen.emulator.blocks import polls
from gemmgen.emulator.data_flow import ProgramFlow, flow_of, instructions_of
from gemmgen.emulator.literals import (
    counts_of_blocks,
    factors_of,
    floats_of,
    integers_of,
    limits_of,
    limits_of_arithmetic,
    numbers_of_counts,
)
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import Float, Integer, Variable
from gemmgen.judge import extremes
from gemmgen.judge.candidates import Called, Candidate, CandidateFailed, Conditions, ImpossibleLaunch, KernelCandidate
from gemmgen.judge.decisions import Noted
from gemmgen.judge.reference import Arrays, Question, Reference
from gemmgen.judge.solving import DRAWS, Solver, Unknown
from gemmgen.judge.task import BESIDE, DEEP, FAR, POWER, WIDE, Argument, Task, evaluate, fits, grid_of_shapes
from gemmgen.judge.text import (
    address_that_decides,
    bits_of_approximation,
    bits_of_state,
    date_of_build,
    marks,
    other_builds,
    takes_alignment,
)
from gemmgen.proof.prover import KernelProof
from gemmgen.sanitizer.findings import Finding, findings_report

KINDS = {
    "out-of-bounds": "reads or writes beyond its arrays, where other results may lie",
    "writes-input": "changes an array that is an input",
    "unwritten-output": "leaves elements of an output as they were",
    "reads-output": "reads an output, or shared or local memory, before anything was written there",
    "wrong-function": "computes another function on ordinary data",
    "wrong-at-shape": "computes another function at shapes other than the ones given",
    "wrong-for-data": "computes another function for data of other signs or magnitudes",
    "constant-output": "returns the same for different inputs",
    "keeps-state": "returns values that an earlier call left in memory",
    "special-values": "loses NaN or infinities, or makes them up",
    "imprecise": "errs by more than the bound of its computation",
    "race": "races, so that its result is a matter of luck",
    "order-dependent": "gives different bits under different orders of warps",
    "hangs": "does not come to an end, or stops at a barrier that others do not reach",
    "reads-clock": "reads a clock, a counter of events or the date of its build, which no result may depend on",
    "untested": "decides by its data in a way that none of the data brought about, so that its function is unknown there",
    "reads-addresses": "decides by the addresses of its arrays, or keeps one for later calls",
    "another-build": "computes another function when it is built for another architecture or by nvcc",
    "reads-processor": "reads the identity of the multiprocessor or the warp's slot, which no result may depend on",
    "reads-environment": "has host code that asks for environment variables, its machine or its libraries, which no result may depend on",
    "reads-device": "computes something else, or launches no kernel, if its device has another name, size or clock, or time another pace",
    "misaligned": "accesses memory at addresses that are not aligned",
    "another-polynomial": "is another polynomial over a finite field",
    "fails": "ends with an error of its host code, or cannot be launched",
    "invalid": "uses a barrier, a matrix, a copy, a cluster or registers in a way that their instructions do not allow",
    "fails-on-gpu": "fails on a GPU, or writes beyond its arrays there",
    "wrong-on-gpu": "computes another function on a GPU",
    "wrong-after-timing": "left wrong results in the timed run, or computes wrong results after it from new data",
    "traps": "ends by a trap or a failed assertion",
    "allocates": "allocates device memory or prints, where a kernel only computes",
    "unknown": "uses instructions that the emulator does not execute, so no verdict is possible",
}
"""Kinds of failures, each with a description of the candidate's behaviour."""
_LONG_INTEGERS = "integers of 23 bits"
"""Data whose sums float32 does not hold."""
SCHEDULES = 2
_STARVED: tuple[Literal["later", "earlier"], ...] = ("later", "earlier")
_PROBLEMS_OF_BUILDS = 3
"""Number of the last problems that other builds of a source compute, in addition to the first problem."""
LATER = (0, 1, 1 << 20)
"""Numbers of calls between the first call and the one whose results must not depend on them."""
_OFTEN = (30, 500, 1 << 13, 1 << 17)
"""Numbers of calls before the compared one that are tried for kernels in addition to ``LATER``."""
_MANY_BLOCKS = 300
"""Blocks of a launch that come in random order."""
_MAX_OFTEN = 12
_WITH_INFINITY = ("f32", "f16", "bf16")
_LITERALS = 48
"""Numbers of a code that are tried as data, and as many as sizes."""
_FARTHEST = 1 << 21
"""Sizes that numbers of a code are tried as are below."""
_WHOLE_RANGE = 1 << 62
_LIMITS = tuple((1 << bits) - less for bits in (31, 32) for less in (0, 1))
"""Numbers that integers of 32 bits end at, by which a kernel may choose wider ones."""
_TINY = 2.0**-140
_EXTREMES = (np.nan, np.inf, -np.inf, 0.0, _TINY, 0.5)
_SMALL_SIZES = (2, 3, 4, 5, 6)
_MAX_OF_NANS = 8
"""Inputs with a NaN in each row, each in other columns."""
_SEARCHED, _MAX_SEARCHED = 100, 72
"""Shapes that a search tries, and the first size that is none of theirs."""
_BATCHES = 4
"""Times that sizes are drawn, after the first partly as in the rare combinations that met a decision before."""
_GUESSES, _SHAPES_OF_DECISION, _MAX_SOLUTIONS = 24, 2, 16
"""Solutions of a decision by sizes that are looked at, the shapes of them that are run, and those of all decisions."""
_MAX_ENTRIES = 128
"""Entries of a table that sizes select from, each of which is tried."""
_MAX_SOLVED = 1 << 13
"""Numbers of a code from which on no shapes are sought in which sums or products of sizes have that value."""
_MAX_LITERAL = 1 << 9
"""Remainders that are tried as sizes are below."""
_OFFSETS = (16, 32, 64, 128)
"""Bytes behind an aligned address at which arrays begin, if a kernel tests their alignment; and those of one element."""
_LESS_WORK = 0.75
"""Fraction of the first call's instructions that a later call on the same inputs must at least execute."""


@dataclass(frozen=True)
class Failure:
    """One kind of failure, with the shape and the message of its first occurrence."""

    kind: str
    shape: dict[str, int]
    message: str


@dataclass(frozen=True)
class Times:
    """Device times of one call of the candidate and of a peer, in microseconds, on sets of arrays that exceed the L2."""

    device: str
    sizes: dict[str, int]
    candidate_us: float
    peer_us: float | None
    peer: str
    """The peer's name, or the reason why there is none."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        fields: dict[str, Any] = {
            "device": self.device,
            "sizes": self.sizes,
            "candidate_us": round(self.candidate_us, 3),
            "peer": self.peer,
        }
        if self.peer_us is not None:
            fields |= {"peer_us": round(self.peer_us, 3), "peer_over_candidate": round(self.peer_us / self.candidate_us, 4)}
        return fields


@dataclass(frozen=True)
class Timing:
    """A problem to be timed. Without ``sizes`` it is the first given shape. ``peer`` names a Python file and a function in it."""

    sizes: dict[str, int] | None = None
    peer: tuple[str, str] | None = None


class OnDevice(Protocol):
    """The candidate on a GPU."""

    @property
    def description(self) -> str:
        """The device."""

    def call(self, sizes: dict[str, int], inputs: Arrays) -> Called:
        """Outputs of one launch. Raises ``CandidateFailed``."""

    def timed(self, sizes: dict[str, int], inputs: Arrays, unseen: Arrays, peer: tuple[str, str] | None) -> tuple[Times, Arrays, Arrays]:
        """The time of a call, the outputs of the timed launches, and the outputs of a later launch on ``unseen`` inputs. Raises
        ``CandidateFailed``."""


@dataclass
class Verdict:
    """The referee's answer."""

    candidate: str
    failures: list[Failure] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    """Checks that were made, in words."""
    notes: list[str] = field(default_factory=list)
    """Needs of the candidate that a device may not meet, in words."""
    shapes: list[dict[str, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Findings of the emulator, with their places in the source."""
    worst_ratio: float = 0.0
    """Largest error over its bound."""
    proofs: dict[str, str] = field(default_factory=dict)
    """Outcome of the proof of each property: ``proved`` or ``unproved``."""
    times: Times | None = None
    """Device time beside a peer, where a GPU was used."""
    seed: int = 0
    """Seed of the random data; a second verdict with it draws the same data."""
    seconds: float = 0.0

    @property
    def accepted(self) -> bool:
        """True if nothing failed."""
        return not self.failures

    @property
    def kinds(self) -> list[str]:
        """Kinds of failures, each once."""
        return list(dict.fromkeys(failure.kind for failure in self.failures))

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            "candidate": self.candidate,
            "accepted": self.accepted,
            "kinds": self.kinds,
            "failures": [{"kind": f.kind, "meaning": KINDS[f.kind], "shape": f.shape, "message": f.message} for f in self.failures],
            **findings_report(self.findings),
            "checks": self.checks,
            "notes": self.notes,
            "shapes": self.shapes,
            "worst_ratio": round(self.worst_ratio, 4),
            "proofs": self.proofs,
            "times": None if self.times is None else self.times.to_json(),
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
        }


_Number = TypeVar("_Number", int, float)
Plan = list[tuple[dict[str, int], str]]
"""Sizes of problems, and their kind of data."""
Problems = list[tuple[dict[str, int], Arrays]]
Draw = Callable[[np.random.Generator, tuple[int, ...]], npt.NDArray[Any]]
_DATA: dict[str, Draw] = {
    "ordinary": lambda rng, shape: rng.normal(0, 1, shape),
    "other ordinary": lambda rng, shape: rng.normal(0, 1, shape),
    "integers": lambda rng, shape: rng.integers(-4, 5, shape).astype(np.float64),
    "negative": lambda rng, shape: -rng.uniform(0.5, 2.0, shape),
    "large": lambda rng, shape: rng.normal(0, 1, shape) * 1e4,
    "small": lambda rng, shape: rng.normal(0, 1, shape) * 1e-4,
    "huge": lambda rng, shape: rng.normal(0, 1, shape) * 1e15,
    "tiny": lambda rng, shape: rng.normal(0, 1, shape) * 1e-15,
    "of many magnitudes": lambda rng, shape: rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-3, 3, shape),
    "zeros": lambda rng, shape: np.zeros(shape),
    "around a large number": lambda rng, shape: 1e3 + rng.normal(0, 1, shape),
    "ascending": lambda rng, shape: np.sort(rng.normal(0, 1, shape), axis=-1) if shape else rng.normal(0, 1, shape),
    "descending": lambda rng, shape: -np.sort(rng.normal(0, 1, shape), axis=-1) if shape else rng.normal(0, 1, shape),
    "ascending downwards": lambda rng, shape: np.sort(rng.normal(0, 1, shape), axis=0) if shape else rng.normal(0, 1, shape),
    "in runs": lambda rng, shape: _in_runs(rng, shape),
    "in periods": lambda rng, shape: _in_periods(rng, shape),
    "behind zeros": lambda rng, shape: _behind_zeros(rng, shape),
    "few terms": lambda rng, shape: rng.normal(0, 1, shape) * (rng.random(shape) < 1 / max((1, *shape))),
}


def _in_runs(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Numbers that repeat, 40 on average, along the last axis."""
    fresh = rng.random(shape) < 1 / 40
    place = np.maximum.accumulate(np.where(fresh, np.arange(fresh.size).reshape(shape), 0).reshape(-1))
    repeated: npt.NDArray[np.float64] = rng.normal(0, 1, fresh.size)[place].reshape(shape)
    return repeated


def _in_periods(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Numbers that repeat after every sixteenth along the last axis, but not in its last quarter."""
    numbers: npt.NDArray[np.float64] = rng.normal(0, 1, shape)
    if shape:
        length = 3 * shape[-1] // 4
        numbers[..., :length] = numbers[..., np.arange(length) % 16]
    return numbers


def _behind_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Zeros in the second quarter of each line, and numbers around them."""
    numbers: npt.NDArray[np.float64] = rng.normal(0, 1, shape)
    if shape:
        numbers[..., shape[-1] // 4 : shape[-1] // 2] = 0.0
    return numbers


def _holds_numbers(variable: Variable) -> bool:
    """True if a variable has initial values that may be floating-point numbers; strings, which are unaligned bytes, do not."""
    text = variable.element_bytes == 1 and variable.alignment <= 1
    return not text and any(isinstance(value, Float) or (isinstance(value, Integer) and value.value) for value in variable.initial)


class Referee:
    """Judges one candidate."""

    def __init__(
        self,
        candidate: Candidate,
        task: Task,
        reference: Reference,
        shapes: list[dict[str, int]],
        device: OnDevice | None = None,
        timing: Timing | None = None,
        prove: Callable[[], KernelProof | str] | None = None,
        seed: int | None = None,
    ) -> None:
        """``device`` runs the kernel on a GPU as well, and ``timing`` is the problem that is timed there. ``prove`` is the proof of the
        kernel's properties. ``seed`` draws the data; None selects a random seed, so that no kernel can recognise the data."""
        self.device, self.timing, self.prove = device, timing, prove
        self.candidate, self.task, self.reference = candidate, task, reference
        self.given = [dict(shape) for shape in shapes]
        self.shapes = grid_of_shapes(task, shapes)
        if isinstance(candidate, KernelCandidate) and any(program.polls for program in candidate.programs()):
            # Thousands of blocks that wait for one another take minutes.
            self.shapes = [shape for shape in self.shapes if shape in self.given or max(shape.values(), default=0) < WIDE]
        self.seed = secrets.randbits(32) if seed is None else seed
        self.verdict = Verdict(candidate.name, shapes=self.shapes, seed=self.seed)
        self._has_own_bounds = False
        """True if the first answer of the reference contains bounds of errors."""

    # -- running ---------------------------------------------------------------------------------------------------

    def _inputs(self, sizes: dict[str, int], data: str, seed: int = 0) -> Arrays:
        rng = np.random.default_rng([self.seed, seed, *data.encode(), *sizes.values()])
        arrays: Arrays = {}
        for argument in self.task.arrays:
            if argument.role == "input":
                shape = tuple(evaluate(extent, sizes) for extent in argument.shape or ())
                # Products of one input with few elements have few terms.
                own = "ordinary" if data == "few terms" and arrays else data
                arrays[argument.name] = _drawn(argument, own, rng, shape)
        return arrays

    def _numbers(self, arrays: Arrays) -> Arrays:
        """Elements as numbers: float64, or integers."""
        types = {argument.name: argument.type for argument in self.task.arrays}
        return {
            name: to_numbers(types[name], array).astype(np.float64 if ELEMENTS[types[name]].is_float else np.int64)
            for name, array in arrays.items()
        }

    def _fail(self, kind: str, sizes: dict[str, int], message: str) -> None:
        if kind not in self.verdict.kinds:
            self.verdict.failures.append(Failure(kind, dict(sizes), message.splitlines()[0][:400] if message else ""))

    def _try(self, sizes: dict[str, int], call: Callable[[], Called | None]) -> Called | None:
        """The result of a call; None if the call failed. Notes the failure."""
        try:
            return call()
        except CandidateFailed as failure:
            if isinstance(failure, ImpossibleLaunch) and sizes in self.given:
                raise SpecError(f"{', '.join(f'{name}={value}' for name, value in sizes.items())}: {failure}") from None
            if failure.kind not in self.verdict.kinds:
                self.verdict.findings += failure.findings
            self._fail(failure.kind, sizes, str(failure))
            return None

    def _run(self, sizes: dict[str, int], inputs: Arrays, conditions: Conditions = Conditions()) -> Called | None:  # noqa: B008
        return self._try(sizes, lambda: self.candidate.call(sizes, inputs, conditions))

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        """Runs all checks. Raises ``GemmgenError`` if the reference or the task cannot be used."""
        began = time.perf_counter()
        plan = [(sizes, data) for sizes in self.given[:1] for data in _DATA]
        if any(argument.role == "input" and argument.type == "s32" for argument in self.task.arrays):
            plan.append((self.given[0], _LONG_INTEGERS))
        plan += [(sizes, "ordinary") for sizes in self.shapes if sizes != self.given[0]]
        plan += [(sizes, "integers") for sizes in self.shapes[-2:] if sizes != self.given[0]]
        plan += [(sizes, "few terms") for sizes in self.shapes if sizes != self.given[0] and FAR <= max(sizes.values(), default=0) != DEEP]
        inputs = [self._inputs(sizes, data) for sizes, data in plan]
        questions = _with_magnitudes([Question(sizes, self._numbers(arrays)) for (sizes, _), arrays in zip(plan, inputs, strict=True)])
        special = self._special_inputs()
        field_inputs, field_residues = self._residues()
        questions.append(Question(self.given[0], field_residues, residues.MODULUS))
        answers = self.reference.answers(questions)
        wanted, magnitudes, of_field = answers[: len(plan)], answers[len(plan) : -1], answers[-1]
        self._has_own_bounds = any(name.endswith("_bound") for name in wanted[0])
        few = [(sizes, arrays) if data == "few terms" else None for (sizes, data), arrays in zip(plan, inputs, strict=True)]
        counts = self._numbers_of_terms(few)
        runs = []
        for (sizes, data), arrays, expected, magnitude, terms in zip(plan, inputs, wanted, magnitudes, counts, strict=True):
            run = self._run(sizes, arrays)
            runs.append(run)
            if run is not None:
                self._compare(sizes, data, run, expected, magnitude, terms=terms)
        self.verdict.checks.append(
            f"{len(plan)} problems in {len(self.shapes)} shapes and {len(_DATA)} kinds of data, with hazards and guards"
        )
        self._check_text()
        literals = self._check_literals()
        if self.verdict.accepted:
            self._check_decisions(zip((sizes for sizes, _ in plan), inputs, strict=True), special, literals)
            self._search_shapes()
            self._check_tables()
        self._check_alignment(inputs[0], wanted[0], magnitudes[0])
        self._check_builds(plan, inputs, wanted, magnitudes)
        self._check_devices(inputs[0], runs[0], wanted[0], magnitudes[0])
        self._check_constant(runs[0], runs[1], wanted[0], wanted[1])
        self._check_orders(inputs[0], runs[0], wanted[0], magnitudes[0])
        self._check_state(inputs, runs[0])
        self._check_specials(special)
        self._check_field(field_inputs, of_field)
        if self.prove is not None:
            self._check_proof(self.prove())
        if self.device is not None:
            self._check_device(self.device, plan, inputs, wanted, magnitudes)
            if self.timing is not None:
                self._check_timed(self.device, self.timing)
        self.verdict.seconds = time.perf_counter() - began
        return self.verdict

    def _numbers_of_terms(self, problems: Sequence[tuple[dict[str, int], Arrays] | None]) -> list[Arrays | None]:
        """The number of terms of each result that are not zero, for these problems, where the reference sums products with factors of 1, as
        its result for ones, a size, shows."""
        ones = {name: np.ones_like(array) for name, array in self._numbers(self._inputs(self.given[0], "ordinary")).items()}
        questions = [Question(self.given[0], ones)]
        for sizes, arrays in (problem for problem in problems if problem is not None):
            questions.append(Question(sizes, {name: (array != 0).astype(array.dtype) for name, array in self._numbers(arrays).items()}))
        of_ones, *counts = self.reference.answers(questions)
        sums = [
            name for name, array in of_ones.items() if array.size and array.min() == array.max() and array.flat[0] in self.given[0].values()
        ]
        by_problem = iter(counts)
        return [
            None if problem is None else {name: array for name, array in next(by_problem).items() if name in sums} for problem in problems
        ]

    def _check_text(self) -> None:
        for text in self.candidate.texts():
            for kind, message in marks(text):
                self._fail(kind, {}, message)
        for program in self.candidate.programs():
            if (inst := address_that_decides(program)) is not None:
                self._fail("reads-addresses", {}, f"an array's address decides: {inst.text.strip()}")
            if (inst := bits_of_approximation(program)) is not None:
                self._fail("reads-processor", {}, f"the last bits of an approximate function decide: {inst.text.strip()}")
            if (inst := bits_of_state(program)) is not None:
                self._fail("reads-processor", {}, f"the bits of a barrier's state decide: {inst.text.strip()}")
        if isinstance(self.candidate, KernelCandidate) and (macro := date_of_build(self.candidate.code)):
            self._fail("reads-clock", {}, f"the source uses {macro}")
        if name := getattr(self.candidate, "asks_for", ""):
            self._fail("reads-environment", {}, f"host code calls or reads {name}")
        self.verdict.checks.append("PTX reads no clock, allocates nothing, and does not decide by addresses")

    def _in_code(self, read: Callable[[Program], Iterable[_Number]]) -> list[_Number]:
        """Numbers that a reading of the text finds in the candidate's programs."""
        return [value for program in self.candidate.programs() for value in read(program)]

    def _check_decisions(self, ordinary: Iterable[tuple[dict[str, int], Arrays]], special: list[Arrays], literals: Problems) -> None:
        """Refuses kernels with a decision by their inputs that is the same in all problems."""
        if not isinstance(self.candidate, KernelCandidate) or (noted := self.candidate.noted) is None:
            return
        base, answers = self.given[0], noted.answers()
        for sizes, arrays in (*ordinary, *literals):
            # Where all is zero, a wrong decision may not show.
            if any(array.any() for array in arrays.values()):
                self.candidate.note_answers(noted, sizes, arrays, answers)
        if self.task.special_values != "ignore":
            for arrays in special:
                self._note_extremes(noted, base, arrays, answers)
        for arrays in self._with_lines_of_zeros():
            if any(True for _ in noted.one_sided(answers)) and self.candidate.note_answers(noted, base, arrays, answers):
                self._check_found(base, arrays)
        mixed, alone = self._sets_of_numbers(), [(value,) for value in _EXTREMES if value != 0]
        # Calls of functions in a table, which are decisions by data, may depend on remainders of sizes.
        small = [{**base, name: round_up(size, self.task.multiples.get(name, 1))} for name in base for size in _SMALL_SIZES]
        for sizes in (base, *(sizes for sizes in small if fits(self.task, sizes)), *self.shapes):
            # Loops over many elements have unrolled copies of their decisions, and loops over the rest.
            for values in (*mixed, *alone) if sizes == base or max(sizes.values(), default=0) >= FAR else mixed:
                if any(True for _ in noted.one_sided(answers)):
                    arrays, before = self._sprinkled(sizes, values), answers.copy()
                    if self._note_extremes(noted, sizes, arrays, answers) and not self._check_found(sizes, arrays):
                        answers[:] = before
        for inst, answer in noted.one_sided(answers):
            line = f" in line {inst.location.own().line}" if inst.location is not None else ""
            self._fail("untested", base, f"a decision by data{line} is always {str(answer).lower()}: {inst.text.strip()}")
        for inst in noted.unwatched:
            self._fail("untested", base, f"the answers of a decision by data cannot be noted: {inst.text.strip()}")
        self.verdict.checks.append(f"both answers of {len(noted.decisions)} decisions by data")

    def _sets_of_numbers(self) -> list[Sequence[float]]:
        """Numbers that are put among ordinary ones together: finite ones first, as inputs may never hold others."""
        own = [sign * value for value in self._in_code(floats_of)[:_LITERALS] for sign in (1, -1)]
        beside = [value * factor for value in own for factor in (1, 2, 0.5)]
        least, most = extremes.MODERATE
        tiny, huge = (
            [value for value in beside if 2.0**-148 < abs(value) < least],
            [value for value in beside if most < abs(value) < 2.0**127],
        )
        finite = [value for value in _EXTREMES if math.isfinite(value)]
        alone = [(value,) for value in (min(tiny, key=abs, default=0.0), max(huge, default=0.0)) if value]
        return [each for each in (finite, _EXTREMES, [value for value in own if least <= abs(value) <= most], tiny, huge, *alone) if each]

    def _note_extremes(self, noted: Noted, sizes: dict[str, int], arrays: Arrays, answers: npt.NDArray[np.uint32]) -> bool:
        """Adds the answers of decisions; True if some are new. Judges the results also with fewer undefined, infinite, tiny or huge numbers
        that bring a new answer, for where all results are undefined or the same, a wrong decision does not show."""
        assert isinstance(self.candidate, KernelCandidate)
        before = answers.copy()
        is_new = self.candidate.note_answers(noted, sizes, arrays, answers)
        numbers = self._numbers(arrays)
        places = [(name, int(place)) for name, each in numbers.items() for place in np.flatnonzero(extremes.are_extreme(each))]
        if not is_new or sizes != self.given[0] or (self.task.special_values == "ignore" and not extremes.are_finite(numbers)):
            return is_new
        usual, fewer = self._inputs(sizes, "ordinary", seed=53), arrays
        while len(places) > 1:
            for some in (places[: len(places) // 2], places[len(places) // 2 :]):
                tried = {name: each.copy() for name, each in fewer.items()}
                for name, place in set(places) - set(some):
                    tried[name].reshape(-1)[place] = usual[name].reshape(-1)[place]
                if self.candidate.note_answers(noted, sizes, tried, before.copy()):
                    fewer, places = tried, some
                    break
            else:
                break
        self._check_extremes([(sizes, fewer)])
        return is_new

    def _check_found(self, sizes: dict[str, int], arrays: Arrays) -> bool:
        """Judges the results of a problem by which a decision had a new answer; False if no wrong result would show, as all may be zero."""
        if not extremes.are_moderate(self._numbers(arrays)):
            return self._check_extremes([(sizes, arrays)])
        if (run := self._run(sizes, arrays)) is not None:
            wanted, magnitude = self.reference.answers(_with_magnitudes([Question(sizes, self._numbers(arrays))]))
            self._compare(sizes, "further", run, wanted, magnitude)
        return True

    def _search_shapes(self) -> None:
        """Looks for shapes by which decisions have other answers than in all shapes so far, beginning with those that had new ones."""
        if not isinstance(self.candidate, KernelCandidate) or any(program.polls for program in self.candidate.programs()):
            return
        noted = self.candidate.noted_by_sizes
        if noted is None:
            return
        answers, rng = noted.answers(), np.random.default_rng([self.seed, 37])
        for sizes in (sizes for sizes in self.shapes if max(sizes.values(), default=0) < FAR):
            self.candidate.note_answers(noted, sizes, self._inputs(sizes, "ordinary"), answers, one_block=True)
        known, tried = [self.given[0]], 0
        factors = list(dict.fromkeys(self._in_code(factors_of)))
        literals = list(dict.fromkeys(self._in_code(integers_of)))
        counted = [value for value in self._in_code(numbers_of_counts) if value <= POWER]
        remainders = [(name, size) for size in (*counted, *_with_remainders(factors, literals)) for name in known[0]][: _SEARCHED // 2]
        solved = list(self._solved(literals, factors))[:_SEARCHED]
        while tried < _SEARCHED + len(solved) and any(True for _ in noted.one_sided(answers)):
            sizes = dict(known[rng.integers(0, len(known))])
            names = list(sizes)
            if tried < len(solved):
                names, sizes = [], solved[tried]
            elif remainders:
                name, size = remainders.pop(0)
                names, sizes[name] = [], round_up(size, self.task.multiples.get(name, 1))
            for name in names if tried % 3 == 0 or len(names) < 2 else [names[rng.integers(0, len(names))]]:
                size = int(rng.integers(1, _MAX_SEARCHED))
                if factors and tried % 2:
                    size = factors[rng.integers(0, len(factors))] * int(rng.integers(1, 4))
                sizes[name] = round_up(size, self.task.multiples.get(name, 1))
            tried += 1
            if not fits(self.task, sizes):
                continue
            inputs = self._inputs(sizes, "ordinary")
            if self.candidate.note_answers(noted, sizes, inputs, answers, one_block=True):
                known.append(sizes)
                self._check_found(sizes, inputs)
        tried += self._try_solutions(noted, answers, literals)
        for inst, answer in noted.one_sided(answers):
            numbers = [operand.value for operand in inst.operands if isinstance(operand, Integer)]
            if inst.opcode == "setp" and any(_FARTHEST < value < _WHOLE_RANGE and value not in _LIMITS for value in numbers):
                self._fail("untested", self.given[0], f"a decision by sizes is {str(answer).lower()} in all shapes: {inst.text.strip()}")
        self.verdict.checks.append(f"{tried} further shapes, led by decisions by sizes")

    def _try_solutions(self, noted: Noted, answers: npt.NDArray[np.uint32], literals: Sequence[int]) -> int:
        """Judges shapes for which decisions should have the answers that they had in no shape; the number of these shapes."""
        assert isinstance(self.candidate, KernelCandidate)
        (program,), names = self.candidate.programs(), list(self.given[0])
        shapes: dict[tuple[int, ...], dict[str, int]] = {}
        open_decisions = list(noted.one_sided(answers))
        rare: dict[str, list[npt.NDArray[np.int64]]] = {}
        for batch in range(_BATCHES):
            drawn = self._drawn(literals, batch, {name: np.concatenate(parts) for name, parts in rare.items()})
            solver = Solver(program, self._kernel_inputs(drawn))
            for inst, answer in list(open_decisions):
                with suppress(Unknown):
                    places = np.flatnonzero(np.broadcast_to(solver.gives(inst, not answer), DRAWS))
                    for name in drawn if 0 < len(places) < DRAWS // 100 else ():
                        rare.setdefault(name, []).append(drawn[name][places])
                    cost = np.prod([drawn[name][places].astype(np.float64) for name in names], axis=0)
                    solved = ({name: int(drawn[name][place]) for name in names} for place in places[np.argsort(cost)[:_GUESSES]])
                    if fitting := [sizes for sizes in solved if fits(self.task, sizes)][:_SHAPES_OF_DECISION]:
                        shapes |= {tuple(sizes.values()): sizes for sizes in fitting}
                        open_decisions.remove((inst, answer))
        for sizes in list(shapes.values())[:_MAX_SOLUTIONS]:
            inputs = self._inputs(sizes, "ordinary")
            if self.candidate.note_answers(noted, sizes, inputs, answers):
                self._check_found(sizes, inputs)
        return min(len(shapes), _MAX_SOLUTIONS)

    def _check_tables(self) -> None:
        """Runs all small sizes if the kernel reads a variable of its module at a place that follows from sizes: each entry may be wrong."""
        if not isinstance(self.candidate, KernelCandidate):
            return
        (program,) = self.candidate.programs()
        variables = {name: placed.variable for name, placed in program.symbols.items() if _holds_numbers(placed.variable)}
        solver = Solver(program, self._kernel_inputs({name: np.ones(1, np.int64) for name in self.given[0]}))
        entries = max((count for count in solver.tables(variables) if count <= _MAX_ENTRIES), default=0)
        if not entries:
            return
        small = {name: min(size, BESIDE) for name, size in self.given[0].items()}
        shapes = [{**small, name: size} for name in small for size in range(1, entries + 1)]
        shapes = [sizes for sizes in shapes if fits(self.task, sizes)]
        arrays = [self._inputs(sizes, "ordinary") for sizes in shapes]
        answers = self.reference.answers(_with_magnitudes([Question(s, self._numbers(a)) for s, a in zip(shapes, arrays, strict=True)]))
        for sizes, inputs, wanted, magnitude in zip(shapes, arrays, answers, answers[len(shapes) :], strict=False):
            if (run := self._run(sizes, inputs)) is not None:
                self._compare(sizes, "ordinary", run, wanted, magnitude)
        self.verdict.checks.append(f"{len(shapes)} small sizes, as the kernel reads a table of {entries} numbers by them")

    def _drawn(self, literals: Sequence[int], batch: int, rare: Arrays) -> dict[str, npt.NDArray[np.int64]]:
        """Random problems, threads and blocks: sizes that are numbers of the code and numbers beside them, small ones, and one large one at
        most. Two thirds of the values are those of ``rare`` combinations, if there are any."""
        rng, names = np.random.default_rng([self.seed, 61, batch]), list(self.given[0])
        own = np.array([1, *(near for value in literals for near in (value - 1, value, value + 1) if 0 < near < _FARTHEST)])
        large, drawn = rng.integers(0, 2 * len(names), DRAWS), {}
        for place, name in enumerate(names):
            small = rng.integers(1, _MAX_SEARCHED, DRAWS)
            any_size = np.exp2(rng.uniform(0, math.log2(_FARTHEST), DRAWS)).astype(np.int64)
            sizes = np.where(rng.random(DRAWS) < 0.4, rng.choice(own, DRAWS), np.where(large == place, any_size, small))
            step = self.task.multiples.get(name, 1)
            drawn[name] = (sizes + step - 1) // step * step
        for axis, extent in zip("xyz", (*self.task.block, 1, 1), strict=False):
            drawn[f"%tid.{axis}"] = rng.integers(0, max(1, evaluate(extent, self.given[0])), DRAWS)
            drawn[f"%ctaid.{axis}"] = rng.integers(0, 64 if len(self.task.grid) > "xyz".index(axis) else 1, DRAWS)
        if rare:
            chosen = rng.integers(0, len(next(iter(rare.values()))), DRAWS)
            drawn = {name: np.where(rng.random(DRAWS) < 1 / 3, values, rare[name][chosen]) for name, values in drawn.items()}
        return drawn

    def _kernel_inputs(self, drawn: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, npt.NDArray[np.int64]]:
        """Values of parameters and of special registers that PTX reads, for these sizes, threads and blocks."""
        assert isinstance(self.candidate, KernelCandidate)
        values = {name: each for name, each in drawn.items() if name.startswith("%")}
        for parameter, argument in zip(self.candidate.entry.parameters, self.task.arguments, strict=False):
            size = argument.name if argument.value is None else argument.value
            if argument.shape is None and size in drawn:
                values[parameter.name] = drawn[str(size)]
        for axis, extent in zip("xyz", (*self.task.block, 1, 1), strict=False):
            values[f"%ntid.{axis}"] = np.array(max(1, evaluate(extent, self.given[0])))
        return values

    def _solved(self, literals: Sequence[int], factors: Sequence[int]) -> Iterator[dict[str, int]]:
        """Shapes in which a number of the code is a number of blocks, the sum of all sizes, or the sum, the product or the ratio of two."""
        base = self.given[0]
        for value in [value for value in literals if 3 < value < _MAX_SOLVED][:_LITERALS]:
            share = value // len(base)
            shapes: list[dict[str, int] | None] = [{**dict.fromkeys(base, share), next(iter(base)): value - share * (len(base) - 1)}]
            for one, other in itertools.combinations(base, 2):
                divisor = max(each for each in range(1, math.isqrt(value) + 1) if value % each == 0)
                for size, rest in ((divisor, value // divisor), (value // 2, value - value // 2)):
                    shapes += [{**base, one: size, other: rest}, {**base, one: rest, other: size}]
            for shape in (*shapes, self._with_blocks(value)):
                if shape is not None and not any(size % self.task.multiples.get(name, 1) for name, size in shape.items()):
                    yield shape
        for (one, other), factor in itertools.product(itertools.permutations(base, 2), [2, *factors][:_LITERALS]):
            size = round_up(37, self.task.multiples.get(one, 1))
            if factor < _MAX_SEARCHED and not size * factor % self.task.multiples.get(other, 1):
                yield {**base, one: size, other: size * factor}

    def _with_lines_of_zeros(self) -> Iterator[Arrays]:
        """Ordinary inputs whose first and last elements are zero; and those with lines of zeros in each direction."""
        for axis in (None, -1, 0):
            arrays, rng = self._inputs(self.given[0], "ordinary", seed=43), np.random.default_rng([self.seed, 47])
            for array in arrays.values():
                flat = array.reshape(-1)
                if axis is None and flat.size:
                    flat[[0, -1]] = np.zeros(1, array.dtype)[0]
                elif array.ndim and axis is not None:
                    lines = np.moveaxis(array, axis, -1)
                    lines[rng.random(lines.shape[:-1]) < 0.5] = np.zeros(1, array.dtype)[0]
            yield arrays

    def _sprinkled(self, sizes: dict[str, int], values: Sequence[float]) -> Arrays:
        """Ordinary inputs with some of these numbers; with one number alone, inputs that hold no other."""
        arrays, rng = self._inputs(sizes, "ordinary"), np.random.default_rng([self.seed, 31])
        for argument in self.task.arrays:
            if argument.role == "input" and ELEMENTS[argument.type].is_float and values:
                flat = arrays[argument.name].reshape(-1)
                chosen = rng.random(flat.size) < (1.0 if len(values) == 1 else 0.25)
                drawn = rng.choice(np.array(values, np.float32), int(chosen.sum()))
                flat[chosen] = to_elements(argument.type, drawn)
        return arrays

    def _check_alignment(self, inputs: Arrays, wanted: Arrays, magnitude: Arrays) -> None:
        """Runs kernels that test their arrays' alignment on arrays that are aligned to less."""
        if not isinstance(self.candidate, KernelCandidate) or not any(takes_alignment(program) for program in self.candidate.programs()):
            return
        elements = {argument.name: ELEMENTS[argument.type].bytes for argument in self.task.arrays}
        offsets = [dict.fromkeys(elements, count) for count in _OFFSETS]
        offsets += [dict(elements), *({name: size} for name, size in elements.items())]
        for each in offsets:
            run = self._run(self.given[0], inputs, Conditions(offsets=each))
            if run is not None:
                self._compare(self.given[0], "ordinary", run, wanted, magnitude, "reads-addresses")
        self.verdict.checks.append(f"{len(offsets)} alignments of the arrays")

    def _check_literals(self) -> Problems:
        """Runs problems that hold the numbers of the code, as data and as sizes: a kernel may decide by one that no data hold by chance."""
        base, plan, few = self.given[0], [], []
        floats = list(dict.fromkeys(self._in_code(floats_of)))[:_LITERALS]
        for argument in self.task.arrays if floats else ():
            if argument.role == "input" and ELEMENTS[argument.type].format is not None:
                for moderate, others in ((True, "ordinary"), (False, "ordinary"), (False, "zeros")):
                    arrays = self._inputs(base, others, seed=17)
                    if self._place_numbers(argument, arrays[argument.name], floats, moderate):
                        plan.append((base, arrays, moderate))
        sizes = {value for read in (limits_of, limits_of_arithmetic) for value in self._in_code(read) if value > POWER}
        for value in sorted(sizes)[:_LITERALS]:
            for name, size in itertools.product(base, (value, value + 2)):
                step = self.task.multiples.get(name, 1)
                shape = {**{each: min(usual, self.task.tile.get(each, 16) + 1) for each, usual in base.items()}, name: size}
                shape = {each: round_up(extent, self.task.multiples.get(each, 1)) for each, extent in shape.items()}
                if value // step * step + 2 * step < _FARTHEST and fits(self.task, shape):
                    plan.append((shape, self._inputs(shape, "ordinary"), True))
                    if value >= FAR and size > value:
                        few.append((shape, self._inputs(shape, "few terms")))
            if (many := self._with_blocks(value + 1)) is not None:
                plan.append((many, self._inputs(many, "ordinary"), True))
        for value in sorted(value for value in self._in_code(counts_of_blocks) if value <= POWER):
            if (many := self._with_blocks(value)) is not None:
                plan.append((many, self._inputs(many, "ordinary"), True))
        if not plan:
            return []
        self._check_few_terms(few)
        questions = _with_magnitudes([Question(shape, self._numbers(arrays)) for shape, arrays, _ in plan])
        answers, has_failed = self.reference.answers(questions), False
        for (shape, arrays, moderate), wanted, magnitude in zip(plan, answers, answers[len(plan) :], strict=False):
            is_far = max(shape.values(), default=0) >= FAR
            if is_far and has_failed:
                continue
            if not moderate and self._has_own_bounds:
                self._check_extremes([(shape, arrays)])
                continue
            run = self._run(shape, arrays)
            if run is not None:
                self._compare(shape, "literals of the code as", run, wanted, magnitude)
            # A kernel that fails on many elements has as many findings on more, which take minutes to note.
            has_failed |= is_far and run is None
        self.verdict.checks.append(f"{len(plan)} problems that hold the numbers of the code")
        return [(shape, arrays) for shape, arrays, _ in plan]

    def _check_few_terms(self, problems: Problems) -> None:
        """Runs problems of which few terms are not zero, whose bound hides no narrow type."""
        questions = _with_magnitudes([Question(sizes, self._numbers(arrays)) for sizes, arrays in problems])
        answers = self.reference.answers(questions) if questions else []
        counts = self._numbers_of_terms(problems) if problems else []
        for (sizes, arrays), wanted, magnitude, terms in zip(problems, answers, answers[len(problems) :], counts, strict=False):
            if (run := self._run(sizes, arrays)) is not None:
                self._compare(sizes, "few terms", run, wanted, magnitude, terms=terms)

    def _with_blocks(self, blocks: int) -> dict[str, int] | None:
        """The smallest problem with so many blocks in which one size grows and the others are 1; None if none fits."""
        for name in self.given[0]:
            step = self.task.multiples.get(name, 1)
            sizes = {each: self.task.multiples.get(each, 1) for each in self.given[0]}
            while max(evaluate(extent, sizes) for extent in self.task.grid) < blocks and sizes[name] < _FARTHEST:
                sizes[name] *= 2
            low, high = sizes[name] // 2, sizes[name]
            while high - low > step:
                middle = round_up((low + high) // 2, step)
                many = max(evaluate(extent, {**sizes, name: middle}) for extent in self.task.grid) >= blocks
                low, high = (low, middle) if many and middle < high else (middle, high)
            sizes[name] = high
            if max(evaluate(extent, sizes) for extent in self.task.grid) >= blocks and fits(self.task, sizes):
                return sizes
        return None

    def _place_numbers(self, argument: Argument, array: npt.NDArray[Any], floats: list[float], moderate: bool) -> bool:
        """Puts numbers, and numbers beside them, among the elements of an array. ``moderate``: those whose squares float32 holds."""
        element = ELEMENTS[argument.type].format
        assert element is not None
        around = [value * factor for factor in (1, -1, 1 + 2.0**-9, 1 - 2.0**-9, 2, 0.5) for value in floats]
        least, most = (1e-15, 1e15) if moderate else (2.0**-120, 2.0**120)
        values = [value for value in around if least <= abs(value) <= min(most, element.largest)]
        if not moderate:
            values = [value for value in values if not 1e-15 <= abs(value) <= 1e15]
        flat = array.reshape(-1)
        places = np.random.default_rng([self.seed, 19]).permutation(flat.size)[: (3 * flat.size + 3) // 4]
        if not values or not places.size:
            return False
        flat[places] = to_elements(argument.type, np.resize(np.array(values, np.float32), places.size))
        return True

    def _check_devices(self, inputs: Arrays, first: Called | None, wanted: Arrays, magnitude: Arrays) -> None:
        """Runs programs that ask for their device or the time, with another answer in each run."""
        devices, patient = list(getattr(self.candidate, "devices", ())), True
        if first is None or not devices:
            return
        sizes = self.given[0]
        for device in devices:
            told = device if patient or device.pace > 1 else replace(device, pace=1.0)
            what = f"told of {told.name[:40]}, and of time at {told.pace:g} times its pace"
            try:
                run = self.candidate.call(sizes, inputs, Conditions(device=told))
            except CandidateFailed as failure:
                # A program may end, or measure for seconds that do not pass.
                patient &= failure.kind != "hangs"
                if failure.kind not in ("fails", "hangs", "unknown"):
                    self._fail("reads-device", sizes, f"{what}: {failure}")
                continue
            self._compare(sizes, f"ordinary, {what}; the", run, wanted, magnitude, "reads-device")
            if bool(run.launches) != bool(first.launches):
                counts = f"{run.launches} launches instead of {first.launches}"
                self._fail("reads-device", sizes, f"{counts}, {what}")
        self.verdict.checks.append(f"{len(devices)} other devices and paces of time that the program is told of")

    def _check_builds(self, plan: Plan, inputs: list[Arrays], wanted: list[Arrays], magnitudes: list[Arrays]) -> None:
        """Runs other builds of a source that tests the architecture or the compiler."""
        if not isinstance(self.candidate, KernelCandidate):
            return
        far = [place for place, (_, data) in enumerate(plan) if data == "ordinary"][-_PROBLEMS_OF_BUILDS:]
        for description, code in other_builds(self.candidate.code):
            if code is None:
                self.verdict.checks.append(f"not built {description}: it does not compile here")
                continue
            other = KernelCandidate(code, self.task, self.candidate.scratch)
            for place in dict.fromkeys((0, *far)):
                sizes, data = plan[place]
                try:
                    run = other.call(sizes, inputs[place])
                except CandidateFailed as failure:
                    if failure.kind != "unknown":
                        self._fail("another-build", sizes, f"built {description}: {failure}")
                    break
                self._compare(sizes, f"{data}, built {description}", run, wanted[place], magnitudes[place], "another-build")
            self.verdict.checks.append(f"the source as built {description}")

    def _compare(
        self,
        sizes: dict[str, int],
        data: str,
        run: Called,
        wanted: Arrays,
        magnitude: Arrays,
        kind: str = "",
        terms: Arrays | None = None,
    ) -> None:
        """Notes the first wrong element as ``kind``, by default as the kind of its error. ``terms`` are the numbers of terms that are not
        zero."""
        for argument in self.task.arrays:
            if argument.role != "output":
                continue
            name, got = argument.name, run.outputs[argument.name]
            if name not in wanted or wanted[name].shape != got.shape:
                raise GemmgenError(f"the reference returns no array {name} of shape {got.shape}")
            if not run.written[name].all():
                missing = int((~run.written[name]).sum()) // got.itemsize
                self._fail("unwritten-output", sizes, f"{missing} of {got.size} elements of {name} are not written")
                continue
            got = to_numbers(argument.type, got).astype(np.float64)
            bound = self._bound(argument, sizes, wanted, magnitude, terms)
            with np.errstate(all="ignore"):
                error = np.abs(got - wanted[name].astype(np.float64))
                ratio = np.where((got == wanted[name]) | np.isinf(bound), 0.0, error / bound)
            # An undefined element of one side, or another infinity, is wrong.
            ratio = np.where(np.isnan(got) & np.isnan(wanted[name].astype(np.float64)), 0.0, np.where(np.isnan(ratio), np.inf, ratio))
            worst = float(ratio.max(initial=0.0))
            if worst <= 1:
                self.verdict.worst_ratio = max(self.verdict.worst_ratio, worst)
                continue
            at = tuple(int(index) for index in np.argwhere(ratio > 1)[0])
            difference = (
                f"{name}{list(at)} is {got[at]:.9g}, expected {float(wanted[name][at]):.9g} within {float(bound[at]):.3g} ({data} data)"
            )
            self._fail(kind or self._kind_of_error(sizes, data, error, np.abs(magnitude.get(name, wanted[name]))), sizes, difference)

    def _bound(
        self, argument: Argument, sizes: dict[str, int], wanted: Arrays, magnitude: Arrays, terms: Arrays | None
    ) -> npt.NDArray[np.float64]:
        """Largest allowed error of each element: 0 for integers, otherwise the bound of sums in float32 plus the rounding to the type."""
        name, element = argument.name, ELEMENTS[argument.type]
        value = wanted[name].astype(np.float64)
        if element.format is None:
            least, most = element.limits
            return np.where((value < least) | (value > most), np.inf, 0.0)
        given = wanted.get(f"{name}_bound")
        if given is not None and (given.shape != value.shape or not (given >= 0).all()):
            raise GemmgenError(f"the reference's {name}_bound must have the shape {value.shape} and no negative or undefined element")
        if given is not None and not self.reference.any_order:
            return given.astype(np.float64)
        sum_of_magnitudes = np.abs(magnitude.get(name, wanted[name])).astype(np.float64)
        with np.errstate(invalid="ignore"):
            if given is None and (np.abs(value) > sum_of_magnitudes * (1 + 1e-6) + 1e-30).any():
                raise GemmgenError(
                    f"the reference's {name} exceeds its result for the magnitudes of its inputs, so it is not a sum of products "
                    f"with positive factors; return a bound of its errors, too, as {name}_bound"
                )
        bound = derived_bound(sizes, value, sum_of_magnitudes, (terms or {}).get(name))
        bound = np.where(sum_of_magnitudes + bound >= np.finfo(np.float32).max, np.inf, bound)
        if argument.type != "f32":
            bound = bound + element.format.roundoff * (np.abs(value) + bound) + element.format.smallest / 2
            bound = np.where(np.abs(value) + bound >= element.format.largest, np.inf, bound)
        return bound if given is None else np.maximum(bound, given)

    def _kind_of_error(self, sizes: dict[str, int], data: str, error: npt.NDArray[Any], magnitude: npt.NDArray[Any]) -> str:
        with np.errstate(all="ignore"):
            relative = np.nanmax(np.where(magnitude > 0, error / magnitude, np.where(error > 0, np.inf, 0.0)), initial=0.0)
        wrong = {"wrong-function", "wrong-at-shape", "wrong-for-data"} & set(self.verdict.kinds)
        if relative < 2.0**-6 and not np.isnan(error).any() and not wrong:
            return "imprecise"
        if sizes != self.given[0]:
            return "wrong-at-shape" if "wrong-function" not in self.verdict.kinds else "wrong-function"
        return "wrong-function" if data in ("ordinary", "other ordinary") else "wrong-for-data"

    def _check_constant(self, first: Called | None, second: Called | None, one: Arrays, other: Arrays) -> None:
        self.verdict.checks.append("different inputs give different outputs")
        if first is None or second is None:
            return
        for name, values in first.outputs.items():
            same = values.tobytes() == second.outputs[name].tobytes()
            if same and name in one and one[name].tobytes() != other[name].tobytes():
                self._fail("constant-output", self.given[0], f"{name} is the same for different inputs")

    def _check_orders(self, inputs: Arrays, usual: Called | None, wanted: Arrays, magnitude: Arrays) -> None:
        self.verdict.checks.append(f"{SCHEDULES} further orders of warps, and those in which warps that poll starve all others")
        if usual is None:
            return
        self._check_starved(inputs, usual, wanted, magnitude)
        for seed in range(1, SCHEDULES + 1):
            run = self._run(self.given[0], inputs, Conditions(warp_order=seed))
            if run is None or self.task.order == "any":
                continue
            for name, values in usual.outputs.items():
                if values.tobytes() != run.outputs[name].tobytes():
                    self._fail("order-dependent", self.given[0], f"{name} has other bits under schedule {seed}")
        self._check_arrivals()

    def _check_arrivals(self) -> None:
        """Runs a kernel with atomics on many blocks that come in random order: it may decide by how far a block is from its place."""
        if not isinstance(self.candidate, KernelCandidate) or any(program.polls for program in self.candidate.programs()):
            return
        draws = any(inst.opcode == "atom" for program in self.candidate.programs() for inst in instructions_of(program))
        sizes = self._with_blocks(_MANY_BLOCKS) if draws else None
        if sizes is not None:
            inputs = self._inputs(sizes, "ordinary")
            run = self._run(sizes, inputs, Conditions(warp_order=3))
            numbers = self._numbers(inputs)
            magnitudes = {name: np.abs(array) for name, array in numbers.items()}
            expected, magnitude = self.reference.answers([Question(sizes, numbers), Question(sizes, magnitudes)])
            if run is not None:
                self._compare(sizes, "ordinary", run, expected, magnitude, "order-dependent")

    def _check_starved(self, inputs: Arrays, usual: Called, wanted: Arrays, magnitude: Arrays) -> None:
        """A kernel that waits without end gives no verdict here, nor does one that ends by a trap; one that gives up after some turns
        continues without the data."""
        counts = isinstance(self.candidate, KernelCandidate) and self.candidate.impatient is not None
        if not counts and not any(program.polls for program in self.candidate.programs()):
            return
        for starves, gives_up in itertools.product(_STARVED, (False, True) if counts else (False,)):
            try:
                run = self.candidate.call(self.given[0], inputs, Conditions(starves=starves, gives_up=gives_up))
            except CandidateFailed as failure:
                if failure.kind not in ("hangs", "traps"):
                    self._try(self.given[0], partial(_raise, failure))
                elif starves == "later" and not gives_up and failure.kind == "hangs" and self._waits_for_memory():
                    blocks = math.prod(max(1, evaluate(extent, self.given[0])) for extent in self.task.grid)
                    told = f"blocks wait for later ones: a device must hold all blocks of a launch at once, {blocks} of the first shape"
                    self.verdict.notes.append(told)
                continue
            self._compare(self.given[0], "ordinary", run, wanted, magnitude, "order-dependent")
            for name, values in usual.outputs.items():
                if self.task.order != "any" and values.tobytes() != run.outputs[name].tobytes():
                    self._fail("order-dependent", self.given[0], f"{name} has other bits where warps wait for data in vain")

    def _waits_for_memory(self) -> bool:
        """True if the kernel has several blocks, and waits for values in global memory, which other blocks may write."""
        several = any(evaluate(extent, self.given[0]) > 1 for extent in self.task.grid)
        waits = (polls(block.instructions) for program in self.candidate.programs() for block in program.blocks if block.polling)
        return several and any(inst is not None and inst.opcode != "mbarrier" and not inst.first_of(("shared", "local")) for inst in waits)

    def _check_state(self, inputs: list[Arrays], first: Called | None) -> None:
        """Runs calls that find the variables of earlier calls: one on other data, one on data of which half is as before, one after many
        calls, and one on the same data, which must execute nearly as many instructions as the first call."""
        self.verdict.checks.append("later calls, on other data and poisoned memory, that find the variables of earlier ones")
        sizes, rng = self.given[0], np.random.default_rng([self.seed, 13])
        mixed = {
            name: np.where(rng.integers(0, 2, array.shape, dtype=np.bool_), array, inputs[1][name]) for name, array in inputs[0].items()
        }
        plan = [(inputs[1], LATER[0]), (mixed, LATER[1]), (inputs[1], LATER[2])]
        if isinstance(self.candidate, KernelCandidate):
            # A call that counts the calls before it is wrong from a number on that it compares them with, or at this number.
            limits = [value for value in self._in_code(integers_of) if 2 < value < LATER[2]]
            numbers = dict.fromkeys((*_OFTEN, *(value - less for value in limits for less in (1, 0))))
            plan += [(inputs[1], more) for more in list(numbers)[:_MAX_OFTEN]]
        for last, more in plan:
            later = self._try(sizes, partial(self.candidate.later_call, sizes, inputs[0], last, more))
            alone = self._run(sizes, last) if later is not None else None
            if alone is None or later is None:
                return
            for name, values in alone.outputs.items():
                if values.tobytes() != later.outputs[name].tobytes() or not later.written[name].all():
                    after = f"{more + 1:,} others" if more else "another"
                    self._fail("keeps-state", sizes, f"{name} of a call after {after} depends on them")
        again = self._try(sizes, partial(self.candidate.later_call, sizes, inputs[0], inputs[0]))
        if first is not None and again is not None and again.instructions < _LESS_WORK * first.instructions:
            counts = f"{again.instructions:,} instructions instead of {first.instructions:,}"
            self._fail("keeps-state", sizes, f"a second call on the same inputs executes {counts}: it keeps results of the first")

    def _check_proof(self, proof: KernelProof | str) -> None:
        """Notes the properties that hold for every problem, and runs counterexamples like other problems."""
        if isinstance(proof, str):
            self.verdict.checks.append(f"no proof: {proof}")
            return
        for each in proof.properties:
            self.verdict.proofs[each.name] = "proved" if each.status == "proved" else "unproved"
            if each.counterexample is not None:
                self._run_counterexample(each.counterexample["problem"])
        self.verdict.checks.append(f"proofs for every problem: {', '.join(proof.proved) or 'none'}")

    def _run_counterexample(self, problem: Mapping[str, int]) -> None:
        sizes = {name: int(problem[name]) for name in self.given[0] if name in problem}
        if len(sizes) < len(self.given[0]) or not fits(self.task, sizes):
            return
        inputs = self._inputs(sizes, "ordinary")
        numbers = self._numbers(inputs)
        magnitudes = {name: np.abs(array) for name, array in numbers.items()}
        run = self._run(sizes, inputs)
        if run is not None:
            expected, magnitude = self.reference.answers([Question(sizes, numbers), Question(sizes, magnitudes)])
            self._compare(sizes, "ordinary", run, expected, magnitude)

    def _check_device(self, device: OnDevice, plan: Plan, inputs: list[Arrays], wanted: list[Arrays], magnitudes: list[Arrays]) -> None:
        """Runs the problems on a GPU as well, and judges the results."""
        for (sizes, data), arrays, expected, magnitude in zip(plan, inputs, wanted, magnitudes, strict=True):
            run = self._try(sizes, partial(device.call, sizes, arrays))
            if run is not None:
                self._compare(sizes, data, run, expected, magnitude, "wrong-on-gpu")
        self.verdict.checks.append(f"{len(plan)} problems on {device.description}, with guards")

    def _check_timed(self, device: OnDevice, timing: Timing) -> None:
        """Notes the time, and judges the results of the timed launches and of a later launch on other data."""
        sizes = timing.sizes or self.given[0]
        seen, unseen = self._inputs(sizes, "ordinary", seed=21), self._inputs(sizes, "ordinary", seed=secrets.randbits(31))
        try:
            self.verdict.times, *left = device.timed(sizes, seen, unseen, timing.peer)
        except CandidateFailed as failure:
            self._fail(failure.kind, sizes, str(failure))
            return
        for arrays, outputs in zip((seen, unseen), left, strict=True):
            numbers = self._numbers(arrays)
            magnitudes = {name: np.abs(array) for name, array in numbers.items()}
            expected, magnitude = self.reference.answers([Question(sizes, numbers), Question(sizes, magnitudes)])
            run = Called(outputs, {name: np.ones(array.nbytes, np.bool_) for name, array in outputs.items()})
            self._compare(sizes, "ordinary", run, expected, magnitude, "wrong-after-timing")
        self.verdict.checks.append("results after the timed run, on data that it saw and on data that it did not")

    def _special_inputs(self) -> list[Arrays]:
        """Ordinary inputs with NaN, infinities and a zero in each; then, for each input, the same with zeros in half of its elements, and
        inputs of which one line in a direction is NaN: results of other lines must be numbers; and inputs with one NaN in each row."""
        floats = [argument.name for argument in self.task.arrays if argument.role == "input" and argument.type in _WITH_INFINITY]
        types = {argument.name: argument.type for argument in self.task.arrays}
        inputs = []
        for turn, zeroed in enumerate((None, *(floats if len(floats) > 1 else ()))):
            arrays = self._inputs(self.given[0], "ordinary", seed=7 + turn)
            rng = np.random.default_rng([self.seed, 11, turn])
            for name in floats:
                flat = arrays[name].reshape(-1)
                if name == zeroed:
                    flat[turn % 2 :: 2] = to_elements(types[name], np.zeros(1, np.float32))[0]
                    continue
                for value in (np.nan, np.inf, -np.inf, 0.0) if flat.size else ():
                    flat[rng.integers(0, flat.size)] = to_elements(types[name], np.array([value], np.float32))[0]
            inputs.append(arrays)
        for value in (np.nan, np.inf, _TINY):
            arrays = self._inputs(self.given[0], "ordinary", seed=59)
            for name in floats:
                arrays[name].reshape(-1)[[0, -1] if arrays[name].size else []] = to_elements(types[name], np.array([value], np.float32))[0]
            inputs.append(arrays)
        for turn, name in enumerate(floats):
            rng = np.random.default_rng([self.seed, 23, turn])
            for axis in range(arrays[name].ndim):
                arrays = self._inputs(self.given[0], "ordinary", seed=29 + turn)
                lines = np.moveaxis(arrays[name], axis, 0)
                if lines.size:
                    # Lines before it and behind it exist, if there are three.
                    lines[rng.integers(1, len(lines) - 1) if len(lines) > 2 else 0] = to_elements(
                        types[name], np.array([np.nan], np.float32)
                    )[0]
                inputs.append(arrays)
            if arrays[name].ndim < 2 or not arrays[name].size:
                continue
            rows, columns = arrays[name].reshape(-1, arrays[name].shape[-1]).shape
            for first in range(0, columns, rows)[:_MAX_OF_NANS]:
                # One NaN in each row, each time in another place of it.
                arrays = self._inputs(self.given[0], "ordinary", seed=41 + turn)
                lines = arrays[name].reshape(rows, columns)
                lines[np.arange(rows), (first + np.arange(rows)) % columns] = to_elements(types[name], np.array([np.nan], np.float32))[0]
                inputs.append(arrays)
        return inputs

    def _check_specials(self, inputs: list[Arrays]) -> None:
        if self.task.special_values != "ignore":
            self.verdict.checks.append("NaN and infinities, beside numbers and zeros")
            self._check_extremes([(self.given[0], arrays) for arrays in inputs])

    def _check_extremes(self, problems: Problems) -> bool:
        """Judges the results for data with undefined, infinite, tiny or huge numbers, in every element that is defined there; False if all
        results may be zero or anything."""
        shows = False
        own = any(ELEMENTS[argument.type].format is None for argument in self.task.arrays if argument.role == "output")
        finite = not own and not self._has_own_bounds
        questions: list[Question] = []
        for sizes, arrays in problems:
            numbers = self._numbers(arrays)
            questions += [Question(sizes, each) for each in (numbers, *extremes.stand_ins(numbers, finite=finite))]
        answers = [
            {name: np.where(np.isnan(each), np.inf, each) if name.endswith("_bound") else each for name, each in answer.items()}
            for answer in self.reference.answers(_with_magnitudes(questions))
        ]
        for number, (sizes, arrays) in enumerate(problems):
            numbers = self._numbers(arrays)
            ignored = self.task.special_values == "ignore" and not extremes.are_finite(numbers)
            run = None if ignored else self._run(sizes, arrays)
            pairs = [(answers[place], answers[len(questions) + place]) for place in range(3 * number, 3 * number + 3)]
            shows |= run is None or self._compare_extremes(sizes, numbers, run, pairs)
        return shows

    def _compare_extremes(self, sizes: dict[str, int], numbers: Arrays, run: Called, answers: Sequence[tuple[Arrays, Arrays]]) -> bool:
        """Notes the first wrong element; False if none could be wrong. ``answers`` are the reference's results for the numbers and for each
        of their stand-ins, each with the result for the magnitudes."""
        (wanted, _), *others = answers
        shows = False
        overflows, flushed = extremes.may_overflow(numbers), extremes.flushed(numbers, sizes)
        for argument in (argument for argument in self.task.arrays if argument.role == "output"):
            name, shape = argument.name, run.outputs[argument.name].shape
            if any(name not in values or values[name].shape != shape for values, _ in answers):
                raise GemmgenError(f"the reference returns no array {name} of shape {shape}")
            if not run.written[name].all():
                self._fail("unwritten-output", sizes, f"elements of {name} are not written for data with extreme numbers")
                continue
            got, value = to_numbers(argument.type, run.outputs[name]).astype(np.float64), wanted[name].astype(np.float64)
            bounds = [self._bound(argument, sizes, values, magnitudes, None) for values, magnitudes in answers]
            results = [(values[name].astype(np.float64), bound) for (values, _), bound in zip(others, bounds[1:], strict=True)]
            allowed = extremes.allowance_of_stand_ins(value, results)
            if ELEMENTS[argument.type].format is not None and f"{name}_bound" not in wanted:
                allowed = np.where(np.isfinite(bounds[0]), bounds[0], allowed) + flushed
            lost = np.zeros(shape, np.bool_)
            if argument.type in _WITH_INFINITY and wanted[name].dtype.kind == "f":
                lost = extremes.lost(got, value, overflows=overflows)
                shows |= not bool(np.isfinite(value).all())
            if lost.any():
                at = tuple(int(index) for index in np.argwhere(lost)[0])
                self._fail("special-values", sizes, f"{name}{list(at)} is {got[at]}, expected {value[at]}")
            with np.errstate(all="ignore"):
                wrong = np.isfinite(value) & ~lost & np.isfinite(allowed) & ~(np.abs(got - value) <= allowed)
                error = np.where(wrong, np.abs(got - value), 0.0)
                shows |= bool((np.isfinite(value) & (np.abs(value) > allowed)).any())
            if wrong.any():
                at = tuple(int(index) for index in np.argwhere(wrong)[0])
                message = (
                    f"{name}{list(at)} is {got[at]:.9g}, expected {value[at]:.9g} within {allowed[at]:.3g} (data with extreme numbers)"
                )
                self._fail(self._kind_of_error(sizes, "further", error, np.abs(value)), sizes, message)
        return shows

    def _residues(self) -> tuple[Arrays, Arrays]:
        """Random elements of the inputs, and the residues or integers that they represent."""
        rng = np.random.default_rng([self.seed, 5])
        arrays: Arrays = {}
        meant: Arrays = {}
        types = {argument.name: argument.type for argument in self.task.arrays}
        for name, array in self._inputs(self.given[0], "ordinary").items():
            if ELEMENTS[types[name]].is_float:
                most = residues.MODULUS if types[name] == "f32" else 1 << 8 * array.itemsize
                codes = rng.integers(0, most, array.shape, dtype=np.uint64)
                arrays[name] = codes.astype(f"u{array.itemsize}").view(array.dtype)
                meant[name] = residues.canonical(residues.of_codes(codes, types[name])).reshape(array.shape).astype(np.int64)
            else:
                arrays[name], meant[name] = array, array.astype(np.int64)
        return arrays, meant

    def _check_field(self, inputs: Arrays, wanted: Arrays) -> None:
        """Compares the candidate with the reference over a finite field, if the reference is a polynomial."""
        for program in self.candidate.programs():
            if any(_holds_numbers(placed.variable) for placed in program.symbols.values()):
                self.verdict.checks.append("no field test: variables begin with numbers, whose bits are other residues")
                return
            dependence = ProgramFlow(program).dependence(())
            if dependence.reason or dependence.choices:
                self.verdict.checks.append("no field test: data decide about control flow or values")
                return
        try:
            run = self.candidate.call(self.given[0], inputs, Conditions(arithmetic=FIELD))
        except CandidateFailed:
            self.verdict.checks.append("no field test: an instruction has no meaning over a field")
            return
        compared = False
        for argument in self.task.arrays:
            name = argument.name
            if argument.role != "output" or not ELEMENTS[argument.type].is_float or name not in wanted:
                continue
            got, expected = run.outputs[name].reshape(-1), wanted[name].reshape(-1)
            if expected.size != got.size:
                continue
            compared = True
            words = got.view(f"u{got.itemsize}").astype(np.uint64)
            if argument.type == "f32":
                words = residues.canonical(words)
            else:
                expected = residues.narrowed(expected, residues.CODE_BITS[argument.type])
            if (words != expected).any():
                if any(flow_of(program).selections.hashed for program in self.candidate.programs()):
                    # Such a choice is a function of all numbers that take part in it, and the reference does not have it.
                    self.verdict.checks.append("no field test: data decide about values")
                    return
                if not run.on_device:
                    self.verdict.checks.append("no field test: host code may compute with the data")
                    return
                at = int(np.flatnonzero(words != expected)[0])
                self._fail("another-polynomial", self.given[0], f"{name}, element {at}, is another polynomial of the inputs")
        self.verdict.checks.append("one run over a finite field" if compared else "no field test: the reference is no polynomial")


def _with_magnitudes(questions: list[Question]) -> list[Question]:
    """The questions, and then the same for the magnitudes of the inputs."""
    return questions + [Question(each.sizes, {name: np.abs(array) for name, array in each.arrays.items()}) for each in questions]


def _with_remainders(factors: Sequence[int], literals: Sequence[int]) -> Iterator[int]:
    """Sizes that leave a literal as the remainder by a factor, and numbers beside those."""
    sizes: dict[int, None] = {}
    for literal in (value for value in literals if 0 < value < _MAX_LITERAL):
        sizes |= dict.fromkeys((literal, literal + 1))
    for factor, literal in itertools.product(factors, literals):
        if 0 < literal < factor:
            sizes[factor + literal] = None
    yield from sizes


def _raise(failure: CandidateFailed) -> None:
    raise failure


def _drawn(argument: Argument, data: str, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Random elements of an input, from a narrower range for types with few exponents."""
    element = ELEMENTS[argument.type]
    if data == _LONG_INTEGERS:
        if argument.type == "s32":
            return rng.integers(-(1 << 22), 1 << 22, shape, dtype=np.int32)
        data = "ordinary"
    if element.format is None:
        # Sums of huge integers leave their type, and tiny ones are zero.
        data = {"huge": "large", "tiny": "ordinary"}.get(data, data)
    drawn = _DATA[data](rng, shape)
    if element.format is None:
        least, most = element.limits
        clipped: npt.NDArray[Any] = np.clip(np.rint(drawn * 8), least, most)
        return clipped.astype(numpy_type(argument.type))
    if argument.type not in ("f32", "bf16") and data in ("large", "small", "huge", "tiny", "of many magnitudes"):
        drawn = np.sign(drawn) * np.abs(drawn) ** (0.3 if argument.type == "f16" else 0.15)
    return to_elements(argument.type, drawn.astype(np.float32))


def derived_bound(
    sizes: dict[str, int], value: npt.NDArray[Any], magnitude: npt.NDArray[Any], terms: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.float64]:
    """Largest error of sums of products in float32 in any order: each term takes part in at most as many roundings as a sum has
    terms, of which no array's extent has more than the product of the two largest sizes (Higham, section 3.1). ``terms``: the numbers
    of those that are not zero; adding zero rounds nothing."""
    roundings = max([*sizes.values(), 1]) + 8 if terms is None else np.minimum(terms, max([*sizes.values(), 1])) + 8
    unit = 2.0**-24
    gamma = roundings * unit / (1 - roundings * unit)
    bound: npt.NDArray[np.float64] = gamma * np.maximum(magnitude, np.abs(value)).astype(np.float64) + 2.0**-126
    return bound
