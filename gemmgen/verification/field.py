"""One run for all data: an instance over a finite field, held against a plain kernel of its family on the same residues.

A kernel whose control flow does not depend on its data computes polynomials of its inputs, and opaque functions of polynomials.
If one of its results differs from the plain kernel's as a polynomial, it differs at a random point of the field, except with a
probability of at most the degree over the number of values that are drawn from (Schwartz, Zippel). The claim is about one size, one
order of execution and exact arithmetic: it says nothing of rounding, overflow, NaN or races.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import GemmgenError, PlanError
from gemmgen.emulator import NoFieldMeaning, residues
from gemmgen.emulator.arithmetic import FIELD
from gemmgen.emulator.data_flow import ProgramFlow, flow_of
from gemmgen.emulator.data_loads import DataLoads
from gemmgen.emulator.number_bits import bits_of_numbers
from gemmgen.emulator.packed_results import packing_of
from gemmgen.emulator.residue_words import WORD_BYTES, Words, whole_words
from gemmgen.emulator.whole_words import multiplies_on_tensor_cores, sums_only_move, words_taken_apart
from gemmgen.hardware.target import Architecture
from gemmgen.kernels import family, family_module, has_family_module
from gemmgen.kernels.family import Case, FieldPart, KernelPlan
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.kernels.planning import plan as plan_of
from gemmgen.runtime.emulation import EmulatorBackend, KernelFault
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.case_arrays import CaseMemory, require_memory
from gemmgen.verification.extrema import verify_extremum
from gemmgen.verification.observed import programs_of
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.staged import Stages, run_stages

WANTED_BITS = 28
"""Runs are repeated until a wrong kernel passes all of them with a probability below 2 to the minus this."""
_SCALAR_LIMIT = 0x7F800000
"""Residues of scalars are odd, which no code is, and below: as float32 they are no NaN, whose bits a conversion could change."""
_INTEGERS = ("s8", "u8", "s32", "u32")
_PLAIN = ("u16", "s32", "u32", "s64", "bool")
"""Types of arrays that are not drawn from the field."""
_FIELD_BITS = 31
_NEVER = 1 << 30
_ROUNDED, _ROUNDED_MORE = 4, 1 << 13
"""Numbers that an instance may round to 16 bits: so many times as many as it stores, and some more."""
_COLLISIONS = {"s8": 258 / 65536, "u8": (129**2 + 127) / 65536}
"""Chance that two numbers are rounded to one integer: some saturation stores 127 for 128, and that of unsigned integers 0 for all below."""
_INTERNED_TYPES = ("f32", "bf16", "f16")
"""Types of arrays of instances whose 16-bit numbers are interned, not hashed."""
METHOD = 5
"""Version of the claims: certificates quote no record of another one."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_Codes = Literal["numbers", "interned", "words"]
"""The residues that codes of elements stand for: a code times 2^16; one of different random residues, for each code of 16 bits, which
rounding keeps; and for elements of 8 bits as well, by the words that four of them lie in."""
FIRST_PAIRED_ARCHITECTURE = "sm_80"
"""The oldest architecture whose conversions to bfloat16 are instructions; before, they are integer arithmetic on real bits."""


class FieldOracle(Protocol):
    """The module ``field`` of a family."""

    def reference_spec(self, plan: Any) -> dict[str, Any]:
        """Fields of the plain spec that must compute the same function."""

    def field_cases(self, plan: Any) -> list[Case]:
        """The problems that are run over the field."""

    def excluded(self, plan: Any) -> str:
        """The reason why nothing can be claimed for this instance, or nothing."""

    def degree(self, plan: Any) -> int:
        """Degree of a result as a polynomial of all drawn values."""

    def parts(self, plan: Any, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]) -> Iterator[FieldPart]:
        """The plain kernel's problems that make up a case."""

    def types(self, plan: Any) -> Mapping[str, str]:
        """The types of arrays whose elements do not count in full, as tf32 in words of float32."""

    def polynomial(
        self, plan: Any, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]
    ) -> dict[str, npt.NDArray[Any]] | None:
        """The results where they are polynomials that NumPy computes at once; None if a plain kernel has to."""

    def unclaimed(self, plan: Any) -> tuple[str, ...]:
        """Names of outputs that nothing is claimed about."""


@dataclass(frozen=True)
class FieldReport:
    """Outcome of the runs of one instance over the field."""

    name: str
    outcome: str
    """``passed``, ``wrong``, or ``not claimed``."""
    runs: int
    miss_bits: float
    """A wrong kernel passes with a probability below 2 to the minus this."""
    sizes: Mapping[str, int]
    """The problem that was run, or the first of several."""
    reason: str
    """The first wrong element, or why nothing is claimed."""
    seconds: float
    elements: int = 0

    @property
    def text(self) -> str:
        """The outcome in one line."""
        if self.outcome != "passed":
            return f"{self.outcome}: {self.reason}"
        return f"passed, wrong with probability below 2^-{math.floor(self.miss_bits)}"

    def to_json(self) -> dict[str, Any]:
        """The report as plain data, without times."""
        fields: dict[str, Any] = {"outcome": self.outcome, "runs": self.runs, "dimensions": dict(self.sizes)}
        if self.outcome == "passed":
            fields |= {"wrong_with_probability_below": f"2^-{math.floor(self.miss_bits)}", "elements": self.elements}
        return fields | ({"reason": self.reason} if self.reason else {})


def verify_field(plan: KernelPlan, binary: Binary | None = None, *, bits: int = WANTED_BITS) -> FieldReport:
    """Runs an instance over the field as often as it takes to make a miss less likely than 2 to the minus ``bits``.

    Hazards are not checked, which ordinary cases do. Without a ``binary``, the instance is compiled, for sm_80 if its own architecture is
    older.
    """
    started = time.perf_counter()

    def report(
        outcome: str, reason: str = "", runs: int = 0, miss: float = 0.0, sizes: Mapping[str, int] | None = None, elements: int = 0
    ) -> FieldReport:
        return FieldReport(plan.name, outcome, runs, miss, sizes or {}, reason, time.perf_counter() - started, elements)

    kind = plan.spec.kind
    if not has_family_module(kind, "field"):
        return report("not claimed", f"kernels of kind {kind} have no reference over a field")
    oracle = cast("FieldOracle", family_module(kind, "field"))
    reason = oracle.excluded(plan)
    if reason:
        return report("not claimed", reason)
    if binary is None and _is_older(plan):
        plan = plan_of(plan.spec, FIRST_PAIRED_ARCHITECTURE)
    binary = binary or compile_plan(plan)
    cases = _cases_of(oracle, plan)
    sizes = cases[0].dimensions
    if (extremum := getattr(oracle, "extremum", lambda plan: None)(plan)) is not None:
        try:
            verdict = verify_extremum(plan, binary, cases[0], extremum)
        except KernelFault as fault:
            unknown = isinstance(fault.__cause__, NoFieldMeaning)
            return report("not claimed" if unknown else "wrong", str(fault.__cause__ if unknown else fault).splitlines()[0], 1, 0.0, sizes)
        return report(verdict.outcome, verdict.reason, verdict.runs, verdict.miss_bits, sizes, verdict.elements)
    reference = Reference(plan, oracle)
    stages = _stages(plan, oracle, cases[0])
    by_hashes = miss_bits_of_run(plan, oracle, *([stages.code_bits] if stages is not None else []))
    for flow in reference.flows_of(binary) if stages is None else ():
        # A choice by a comparison with a number hides errors that no probability bounds.
        if choices := flow.dependence((), flow.flagged_words.tests | flow.infinity_tests).choices:
            return report("not claimed", f"a choice depends on data: {choices[0].text.strip()}", 0, 0.0, sizes)
    elements, total, miss_bits = 0, 0, math.inf
    for case in cases:
        chances: dict[_Codes, float] = {"numbers": by_hashes}
        if stages is None:
            chances["interned"] = miss_bits_of_interned_codes(plan, oracle, case)
            chances["words"] = miss_bits_of_words(plan, binary, oracle, case)
        elif (of_case := _stages(plan, oracle, case)) is not None:
            chances["words"] = miss_bits_of_prepared_words(plan, binary, oracle, of_case)
        better: tuple[_Codes, ...] = ("words", "interned")
        ways = [way for way in better if _runs(bits, chances.get(way, 0.0)) <= _runs(bits, by_hashes)]
        ways.append("numbers")
        for way in ways:
            per_run = chances[way]
            runs = _runs(bits, per_run)
            try:
                for seed in range(runs):
                    wrong, compared, doubt = _run(plan, binary, reference, case, seed, way)
                    if doubt:
                        return report("not claimed", doubt, seed + 1, 0.0, case.dimensions)
                    if wrong and way == "words":
                        # Words of which a kernel uses the elements in another order show nothing.
                        raise OverflowError
                    if wrong:
                        return report("wrong", wrong, seed + 1, 0.0, case.dimensions)
                    elements += compared
            except OverflowError:
                # The instance rounds more numbers than it stores.
                continue
            except KernelFault as fault:
                if way != "numbers":
                    continue
                if isinstance(fault.__cause__, NoFieldMeaning):
                    return report("not claimed", str(fault.__cause__).splitlines()[0])
                return report("wrong", str(fault), total + 1, 0.0, case.dimensions)
            except PlanError as error:
                return report("not claimed", f"there is no plain kernel for it: {error}")
            except GemmgenError as error:
                return report("wrong", str(error), total + 1, 0.0, case.dimensions)
            total, miss_bits = total + runs, min(miss_bits, per_run * runs)
            break
    return report("passed", "", total, miss_bits, sizes, elements)


_last_cases: list[tuple[KernelPlan, list[Case]]] = []
"""The last plan, and its problems."""


def _cases_of(oracle: FieldOracle, plan: KernelPlan) -> list[Case]:
    """The problems of a plan, of the last one remembered. Raises ``GemmgenError`` if they do not fit into memory."""
    if not (_last_cases and _last_cases[0][0] is plan):
        cases = oracle.field_cases(plan)
        require_memory(plan, cases)
        _last_cases[:] = [(plan, cases)]
    return _last_cases[0][1]


def _runs(bits: int, per_run: float) -> int:
    """Runs until a wrong kernel passes with a probability below 2 to the minus ``bits``."""
    return max(1, math.ceil(bits / per_run)) if per_run > 0 else _NEVER


def _is_older(plan: KernelPlan) -> bool:
    return plan.architecture.compute_capability < (8, 0)


def _stages(plan: KernelPlan, oracle: FieldOracle, case: Case) -> Stages | None:
    """The two stages of a problem, where an instance prepares real numbers first."""
    stages: Stages | None = getattr(oracle, "stages", lambda plan, case: None)(plan, case)
    return stages


def miss_bits_of_run(plan: KernelPlan, oracle: FieldOracle, most: int = _FIELD_BITS) -> float:
    """Bits of confidence of one run: the degree over the number of codes that are drawn from, at most 2 to the power of ``most``, and
    collisions of rounded results."""
    arrays = [array for array in plan.sequence.arrays if array.role != "workspace"]
    types = oracle.types(plan)
    drawn = min(_code_bits(types.get(array.name, array.type)) for array in arrays if array.reads and array.type not in _PLAIN)
    stored = [array.type for array in arrays if array.writes and array.name not in oracle.unclaimed(plan)]
    collision = max(_COLLISIONS.get(each, 0.0 if _code_bits(each) >= _FIELD_BITS else 2.0 ** -_code_bits(each)) for each in stored)
    chance: float | None = getattr(oracle, "chance_of_zero", lambda plan: None)(plan)
    return -math.log2((oracle.degree(plan) * 2.0 ** -min(drawn, most) if chance is None else chance) + collision)


def miss_bits_of_interned_codes(plan: KernelPlan, oracle: FieldOracle, case: Case) -> float:
    """Bits of confidence of one run in which codes of 16 bits are indices of different random residues, so that rounding loses nothing: the
    degree over the residues that are drawn from. 0 for instances with other types.

    If there are more elements than codes, elements that share one are the same variable, which makes a polynomial zero with a probability
    of the degree over the number of codes."""
    arrays = [array for array in plan.sequence.arrays if array.role != "workspace" and array.type not in _PLAIN]
    if oracle.types(plan) or any(array.type not in _INTERNED_TYPES for array in arrays) or all(array.type == "f32" for array in arrays):
        return 0.0
    return _bits_of_random_residues(plan, oracle, case)


def miss_bits_of_words(plan: KernelPlan, binary: Binary, oracle: FieldOracle, case: Case) -> float:
    """Bits of confidence of one run in which elements that lie in one word have the residues of the word: the degree over the residues that
    are drawn from. 0 for instances that may take words apart, or use other types."""
    types = oracle.types(plan)
    names = tuple(types) or _names_in_words(plan, oracle)
    arrays = [array for array in plan.sequence.arrays if array.role != "workspace"]
    others = [array for array in arrays if array.name not in names]
    if types:
        fits = set(types.values()) == {"tf32"} and _elements_of(plan, names, case) <= residues.LongCodes.MOST
        return _bits_of_random_residues(plan, oracle, case) if fits and all(array.type in _INTERNED_TYPES for array in others) else 0.0
    paired = _names_in_pairs(plan, oracle)
    known = [array for array in others if (array.type == "s32" and (paired or not array.reads)) or array.name in paired]
    if not names or any(array.type not in (*_INTERNED_TYPES, "s64") for array in others if array not in known):
        return 0.0
    if any(word_axis(array, case) is None for array in arrays if array.name in names):
        return 0.0
    programs = programs_of(plan, binary)
    multiplying = [program for program in programs if multiplies_on_tensor_cores(program)]
    # Launches without tensor cores only add what earlier ones stored.
    if programs[: len(multiplying)] != multiplying or any(words_taken_apart(program) for program in multiplying):
        return 0.0
    if any(array.type == "s8" for array in arrays) and not all(sums_only_move(program) for program in programs):
        return 0.0
    if paired:
        packings = [packing_of(program) for program in programs]
        results = sum(math.prod(extent.evaluate(case.dimensions) for extent in array.shape) for array in arrays if array.name in paired)
        if not any(each.words for each in packings) or any(each.taken_apart for each in packings) or results > 2 * residues.Pairs.MOST:
            return 0.0
        if any(word_axis(array, case) is None for array in arrays if array.name in paired):
            return 0.0
    return _bits_of_random_residues(plan, oracle, case, names)


def miss_bits_of_prepared_words(plan: KernelPlan, binary: Binary, oracle: FieldOracle, stages: Stages) -> float:
    """Bits of confidence of one run in which the words that a first stage prepares are indices of random residues, one for each number in
    them. 0 for instances that may take words apart, or have too many numbers."""
    programs = [program for program in programs_of(plan, binary)[stages.launches :] if multiplies_on_tensor_cores(program)]
    if stages.elements_of_word == 1:
        fits = stages.elements <= residues.LongCodes.MOST
    else:
        fits = stages.elements_of_word > 1 and not any(words_taken_apart(program) for program in programs)
    return -math.log2(oracle.degree(plan) / (residues.MODULUS - (1 << 17))) if fits else 0.0


def _bits_of_random_residues(plan: KernelPlan, oracle: FieldOracle, case: Case, in_words: Collection[str] = ()) -> float:
    """Bits of confidence of one run whose elements, but for those that share codes of 16 bits, are different random residues."""
    drawn, pool = _interned_codes(plan, case, in_words)
    degree = oracle.degree(plan)
    chance = degree / (residues.MODULUS - (1 << 17)) + (0.0 if drawn <= pool else degree / max(pool, 1))
    return -math.log2(chance) if pool > degree else 0.0


def _names_in_words(plan: KernelPlan, oracle: FieldOracle) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(oracle, "in_words", lambda plan: ())(plan)
    return (*names, *_scales_in_words(plan, oracle)) if names else ()


def _scales_in_words(plan: KernelPlan, oracle: FieldOracle) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(oracle, "scales_in_words", lambda plan: ())(plan)
    return names


def _elements_in_word(plan: KernelPlan, oracle: FieldOracle) -> int:
    """Elements of a factor that a word of 32 bits holds: bytes, or numbers of 4 bits."""
    count: int = getattr(oracle, "elements_in_word", lambda plan: WORD_BYTES)(plan)
    return count


def _names_in_pairs(plan: KernelPlan, oracle: FieldOracle) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(oracle, "in_pairs", lambda plan: ())(plan)
    return names


def word_axis(array: ArrayArgument, case: Case) -> int | None:
    """The axis along which an array of bytes, or of numbers of 16 bits, consists of whole words; None if there is none."""
    shape = [extent.evaluate(case.dimensions) for extent in array.shape]
    strides = [stride.evaluate(case.dimensions) for stride in array.strides]
    axes = [axis for axis, stride in enumerate(strides) if stride == 1]
    apart = [case.offsets.get(array.name, 0), *(stride for stride in strides if stride != 1)]
    size = ELEMENTS[array.type].bytes
    if len(axes) != 1 or any(distance * size % WORD_BYTES for distance in (shape[axes[0]], *apart)):
        return None
    return axes[0]


def _interned_codes(plan: KernelPlan, case: Case, in_words: Collection[str] = ()) -> tuple[int, int]:
    """Elements of 16 bits that are drawn, but for those that are parts of words, and codes to draw them from."""
    counts = {reads: 0 for reads in (True, False)}
    for array in plan.sequence.arrays:
        if array.role != "workspace" and array.type in _INTERNED_TYPES and array.type != "f32" and array.name not in in_words:
            size = math.prod(extent.evaluate(case.dimensions) for extent in array.shape)
            counts[True] += size * array.reads
            counts[False] += size * array.writes
    return counts[True], residues.POISONED - 1 - counts[False]


def _code_bits(type_name: str) -> int:
    return residues.CODE_BITS.get(type_name, 8 * ELEMENTS[type_name].bytes)


def _run(
    plan: KernelPlan,
    binary: Binary,
    reference: Reference,
    case: Case,
    seed: int,
    way: _Codes = "numbers",
) -> tuple[str, int, str]:
    """One run: the first wrong element, the number of elements compared, and why nothing can be claimed."""
    rng = np.random.default_rng([seed, case.seed])
    names = _names_in_words(plan, reference.oracle) if way == "words" else ()
    elements, pool = _interned_codes(plan, case, names)
    most = residues.POISONED - 1
    # Instances also round sums of rows and columns beyond the result's, which they do not store.
    results = max(most - pool, min(_ROUNDED * (most - pool) + _ROUNDED_MORE, most - elements))
    interned = way != "numbers" and any(array.type in _INTERNED_TYPES and array.type != "f32" for array in plan.sequence.arrays)
    token = residues.interned.set(residues.Interned(rng, elements, results) if interned else None)
    drawn = Words(rng, _bytes_of(plan, names, case) // WORD_BYTES, _elements_in_word(plan, reference.oracle)) if names else None
    prepared = _stages(plan, reference.oracle, case) if way == "words" else None
    if prepared is not None and prepared.elements_of_word > 1:
        drawn = Words(rng, prepared.elements // prepared.elements_of_word, prepared.elements_of_word)
    of_words = whole_words.set(drawn)
    paired = way == "words" and bool(_names_in_pairs(plan, reference.oracle))
    of_pairs = residues.pairs.set(residues.Pairs(rng) if paired else None)
    long = way == "words" and (bool(reference.types) or (prepared is not None and prepared.elements_of_word == 1))
    of_tf32 = residues.long_codes.set(residues.LongCodes(rng) if long else None)
    try:
        return _run_on(plan, binary, reference, case, seed, rng)
    finally:
        residues.interned.reset(token)
        whole_words.reset(of_words)
        residues.pairs.reset(of_pairs)
        residues.long_codes.reset(of_tf32)


def _elements_of(plan: KernelPlan, names: Sequence[str], case: Case) -> int:
    arrays = [array for array in plan.sequence.arrays if array.name in names]
    return sum(math.prod(extent.evaluate(case.dimensions) for extent in array.shape) for array in arrays)


def _bytes_of(plan: KernelPlan, names: Sequence[str], case: Case) -> int:
    return sum(
        _elements_of(plan, (array.name,), case) * ELEMENTS[array.type].bytes for array in plan.sequence.arrays if array.name in names
    )


def _run_on(
    plan: KernelPlan,
    binary: Binary,
    reference: Reference,
    case: Case,
    seed: int,
    rng: np.random.Generator,
) -> tuple[str, int, str]:
    """One run with the numbers of 16 bits that have been set up."""
    memory = {array.name: CaseMemory.of(array, case) for array in plan.sequence.arrays if array.role != "workspace"}
    in_words = _names_in_words(plan, reference.oracle)
    for index, (name, piece) in enumerate(memory.items()):
        if piece.array.reads:
            _fill(plan, case, reference.types.get(name, piece.array.type), piece, rng, case.generator(index), in_words)
    if (derived := getattr(reference.oracle, "derived", None)) is not None:
        for name, values in derived(plan, case, {name: piece.view for name, piece in memory.items()}).items():
            memory[name].view[...] = values
    scalars = _scalars(plan, rng)
    before = {name: piece.view.copy() for name, piece in memory.items()}
    storage = {name: piece.buffer.storage.copy() for name, piece in memory.items() if piece.array.writes}
    data = {name for name, piece in memory.items() if piece.array.type not in ("u16", "s32", "u32", "s64") and name != "offsets"}
    flows = reference.flows_of(binary)
    first_run = seed == 0
    product = None
    stages = _stages(plan, reference.oracle, case)
    if stages is not None:
        staged = run_stages(plan, binary, stages, case, memory, scalars, seed)
        if staged.wrong:
            return staged.wrong, 0, ""
        loads, before, product, flows = staged.loads, staged.before, staged.product, flows[stages.launches :]
    else:
        loads = DataLoads(data, bytes_too=any(flow.flagged_words.tests for flow in flows))
        backend = EmulatorBackend((loads,) if first_run else (), hazards=False, arithmetic=FIELD)
        backend.run(binary, plan.sequence, case.dimensions, scalars, {name: piece.buffer for name, piece in memory.items()})
    compared = 0
    for name, index, values in reference.results(case, before, scalars, product):
        piece = memory[name]
        wrong = _compare(name, piece.array.type, piece.view[index], values)
        compared += values.size
        if wrong:
            return wrong, compared, ""
    for name, earlier in storage.items():
        if stray := memory[name].stray_write(earlier, True):
            return stray, compared, ""
    return "", compared, _doubt(flows, loads, _has_integers(plan)) if first_run else ""


def _doubt(flows: Sequence[ProgramFlow], loads: DataLoads, has_integers: bool) -> str:
    """Why the kernel is no polynomial: data decide about branches, addresses or values, or the bits of floats are computed with."""
    flags = frozenset[int]().union(*(flow.flagged_words.flags(loads.bytes_of, loads.instructions) for flow in flows))
    if flags != frozenset[int]().union(*(flow.flagged_words.tests for flow in flows)):
        return "words that are tested for zero hold more than numbers with a flag"
    for flow in flows:
        plain = flags | loads.of_given | flow.infinity_tests
        dependence = flow.dependence(loads.instructions.values(), plain)
        if dependence.reason:
            return dependence.reason
        if (inst := bits_of_numbers(flow, plain, has_integers=has_integers)) is not None:
            return f"it computes with the bits of numbers, and residues have no sign: {inst.text.strip()}"
        if dependence.choices:
            return f"a choice depends on data: {dependence.choices[0].text.strip()}"
    return ""


def _has_integers(plan: KernelPlan) -> bool:
    """True if factors or results are integers of 8 bits, whose sums and roundings are arithmetic on integers."""
    types = {array.type for array in plan.sequence.arrays if array.role != "workspace"}
    return "s8" in types or (plan.spec.kind == "conv2d" and "u8" in types)


def _fill(
    plan: KernelPlan,
    case: Case,
    type_name: str,
    piece: CaseMemory,
    rng: np.random.Generator,
    own: np.random.Generator,
    in_words: Collection[str] = (),
) -> None:
    """Random codes of an array's type; arrays of integers that are no factors get the family's values."""
    name, shape = piece.array.name, piece.view.shape
    if name == "amax":
        piece.fill(np.zeros(shape))
    elif name in ("offsets", "metadata") or type_name in ("s64", "bool"):
        piece.fill(oracle_of(plan.spec.kind).fill(plan, case, name, shape, own))
    elif type_name == "s32" and residues.pairs.get() is not None:
        piece.fill(rng.integers(0, residues.MODULUS, shape))
    elif type_name in ("s32", "u32"):
        piece.fill(rng.integers(-(1 << 20) if type_name == "s32" else 0, 1 << 20, shape))
    elif (drawn := whole_words.get()) is not None and name in in_words:
        axis, word = word_axis(piece.array, case), _WORDS[ELEMENTS[type_name].bytes]
        assert axis is not None
        along = np.moveaxis(piece.view, axis, -1)
        words = along.shape[-1] * ELEMENTS[type_name].bytes // WORD_BYTES
        along.view(word)[...] = drawn.draw((*along.shape[:-1], words)).view(word)
    elif (long := residues.long_codes.get()) is not None and type_name == "tf32":
        piece.view.view(np.uint32)[...] = long.draw(shape)
    elif (interned := residues.interned.get()) is not None:
        if type_name == "f32":
            piece.view.view(np.uint32)[...] = residues.without_code(rng.integers(0, residues.MODULUS, shape, dtype=np.uint32))
        else:
            piece.view.view(np.uint16)[...] = interned.draw(shape)
    else:
        word = _WORDS[ELEMENTS[type_name].bytes]
        limit = residues.MODULUS if type_name == "f32" else 1 << 8 * np.dtype(word).itemsize
        codes = rng.integers(0, limit, shape, dtype=np.uint64).astype(word)
        piece.view.view(word)[...] = codes & np.uint32(0xFFFFE000) if type_name == "tf32" else codes


def _scalars(plan: KernelPlan, rng: np.random.Generator) -> dict[str, Any]:
    """A residue for every float32 that is passed by value."""
    dimensions = {dimension.name for dimension in plan.sequence.dimensions}
    return {
        scalar.name: np.uint32(rng.integers(2, _SCALAR_LIMIT) | 1).view(np.float32)
        for scalar in plan.sequence.scalars
        if scalar.type == "f32" and scalar.name not in dimensions
    }


def _residues_of(type_name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """An array's elements as residues in float32's words."""
    if type_name in _INTEGERS:
        return residues.of_integers(values).reshape(values.shape)
    codes = np.ascontiguousarray(values).view(_WORDS[values.itemsize])
    return residues.words(residues.canonical(residues.of_codes(codes, type_name))).reshape(values.shape)


@lru_cache(maxsize=8)
def _plain_kernel(spec: str, architecture: Architecture) -> tuple[KernelPlan, Binary]:
    planned = plan_of(json.loads(spec), architecture)
    return planned, compile_plan(planned)


class Reference:
    """The function that an instance must compute: a polynomial in NumPy, or a plain kernel of its family."""

    def __init__(self, plan: KernelPlan, oracle: FieldOracle) -> None:
        self.plan, self.oracle = plan, oracle
        self.types = dict(oracle.types(plan))
        self.in_words = plan.spec.kind != "conv2d"
        self._plain: dict[bool, tuple[KernelPlan, Binary]] = {}
        self._flows: list[ProgramFlow] = []

    def flows_of(self, binary: Binary) -> list[ProgramFlow]:
        """The flow of data through the programs of the instance's launches. Its instructions are those that the emulator runs."""
        programs = programs_of(self.plan, binary)
        if [id(flow.program) for flow in self._flows] != [id(program) for program in programs]:
            self._flows = [flow_of(program) for program in programs]
        return self._flows

    def results(
        self, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, Any], product: npt.NDArray[Any] | None = None
    ) -> Iterator[tuple[str, Any, npt.NDArray[Any]]]:
        """Name of an output, the part of it, and the elements that belong there, as they are stored. ``product``: of the values that the
        first stage of an instance with two has prepared.

        Raises ``PlanError`` if there is no plain kernel."""
        own = {array.name: self.types.get(array.name, array.type) for array in self.plan.sequence.arrays}
        given = {name: values if own[name] in _PLAIN else _residues_of(own[name], values) for name, values in arrays.items()}
        if (drawn := whole_words.get()) is not None:
            of_words = self._of_words(drawn, case, arrays)
            given |= of_words
            arrays = {**arrays, **of_words}
        if product is not None:
            given["product"] = product
        words = {name: int(np.asarray(value, np.float32).view(np.uint32)) for name, value in scalars.items()}
        skipped = self.oracle.unclaimed(self.plan)
        direct = self.oracle.polynomial(self.plan, case, given, words)
        if direct is not None:
            yield from ((name, ..., rounded_residues(own[name], values)) for name, values in direct.items())
            return
        for problem in self.oracle.parts(self.plan, case, given if self.in_words else arrays, words):
            for name, values in self._of_plain_kernel(problem, arrays, given, scalars).items():
                if name not in skipped:
                    yield name, problem.chosen.get(name, ...), values

    def _of_words(self, drawn: Words, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Residues of the arrays whose elements are parts of words."""
        words = {}
        names, scales = _names_in_words(self.plan, self.oracle), _scales_in_words(self.plan, self.oracle)
        for array in (array for array in self.plan.sequence.arrays if array.name in names):
            axis = word_axis(array, case)
            assert axis is not None
            values = arrays[array.name]
            along = np.ascontiguousarray(np.moveaxis(values.view(_WORDS[values.itemsize]), axis, -1))
            of_line = drawn.of_bytes if array.name in scales else drawn.of_elements
            words[array.name] = np.moveaxis(of_line(along), -1, axis)
        return words

    def _of_plain_kernel(
        self,
        problem: FieldPart,
        arrays: Mapping[str, npt.NDArray[Any]],
        given: Mapping[str, npt.NDArray[Any]],
        scalars: Mapping[str, Any],
    ) -> dict[str, npt.NDArray[Any]]:
        if problem.results is not None:
            return _finished(problem, problem.results)
        in_pairs = residues.pairs.get() is not None
        if in_pairs not in self._plain:
            self._plain[in_pairs] = _plain_kernel(json.dumps(self.oracle.reference_spec(self.plan)), self.plan.architecture)
        reference, binary = self._plain[in_pairs]
        of_kind = family(reference.spec.kind)
        sizes = problem.sizes
        if not problem.whole:
            sizes = of_kind.problem(reference, [sizes[name] for name in of_kind.instance_sizes(reference)])
        case = Case("field", sizes)
        pieces = {array.name: CaseMemory.of(array, case) for array in reference.sequence.arrays if array.role != "workspace"}
        for name, piece in pieces.items():
            if piece.array.reads:
                values = problem.given.get(name)
                if values is None:
                    source = given if piece.array.type == "f32" else arrays
                    values = source[name][problem.chosen.get(name, ...)]
                piece.view.view(values.dtype)[...] = values.reshape(piece.view.shape)
                if piece.array.type == "f32":
                    patterns = piece.view.view(np.uint32)
                    patterns[...] = residues.written(patterns)
        own_scalars = {scalar.name: scalars[scalar.name] for scalar in reference.sequence.scalars if scalar.name in scalars}
        own_scalars |= {name: np.uint32(value).view(np.float32) for name, value in problem.scalars.items()}
        backend = EmulatorBackend(hazards=False, arithmetic=FIELD)
        backend.run(binary, reference.sequence, case.dimensions, own_scalars, {name: piece.buffer for name, piece in pieces.items()})
        written = {name: piece for name, piece in pieces.items() if piece.array.writes}
        if problem.stored is None:
            results = {name: self._stored(name, piece) for name, piece in written.items()}
            return results if problem.arrange is None else {name: problem.arrange(name, values) for name, values in results.items()}
        return _finished(problem, {name: np.ascontiguousarray(piece.view).view(np.uint32) for name, piece in written.items()})

    def _stored(self, name: str, piece: CaseMemory) -> npt.NDArray[Any]:
        """A result of the plain kernel as the instance stores it."""
        wanted = next(array.type for array in self.plan.sequence.arrays if array.name == name)
        values = np.ascontiguousarray(piece.view)
        if wanted in _INTEGERS and piece.array.type == wanted:
            return values.astype(np.int64)
        words = values.view(_WORDS[values.itemsize])
        return words if piece.array.type == wanted != "f32" else rounded_residues(wanted, residues.read(words))


def _finished(problem: FieldPart, words: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Results of float32 as they are stored, in the order of the instance."""
    assert problem.stored is not None
    results = {name: problem.stored(residues.canonical(residues.read(values))) for name, values in words.items()}
    return results if problem.arrange is None else {name: problem.arrange(name, values) for name, values in results.items()}


def rounded_residues(type_name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Residues as they are stored in a type: hashes of as many bits for narrower ones. Signed integers are stored as they are."""
    if values.dtype.kind == "i":
        return values
    if type_name == "f32":
        return residues.words(residues.canonical(values)).reshape(values.shape)
    if type_name in ("s8", "u8", "s32"):
        signed = residues.narrowed(values, 8).astype(np.int64).reshape(values.shape) - 128
        return np.maximum(signed, 0) if type_name == "u8" else signed
    bits = residues.CODE_BITS[type_name]
    return residues.narrowed(values, bits).reshape(values.shape)


def _compare(name: str, type_name: str, got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> str:
    """A message about the first element that is another residue; empty if there is none."""
    if type_name == "s32" and whole_words.get() is not None:
        actual: npt.NDArray[Any] = residues.canonical(np.ascontiguousarray(got).view(np.uint32)).reshape(got.shape)
        wanted = wanted % residues.MODULUS
    elif type_name in _INTEGERS:
        actual = got.astype(np.int64)
    else:
        actual = np.ascontiguousarray(got).view(_WORDS[got.itemsize])
    if type_name == "f32":
        actual = rounded_residues("f32", residues.read(actual))
    different = np.argwhere(actual != wanted.reshape(got.shape))
    if not len(different):
        return ""
    at = tuple(int(index) for index in different[0])
    place = ", ".join(map(str, at))
    return f"{name}[{place}] is another polynomial; {len(different)} of {got.size} elements are wrong over the field"
