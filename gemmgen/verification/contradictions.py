"""Runs on small problems that may contradict a proof: a second opinion before a property is called proved.

The prover and the emulator read the same PTX in two ways. Where a run shows a fault of a property that is proved, one of the two is wrong,
and the property does not count as proved.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, to_numbers
from gemmgen.core.errors import GemmgenError
from gemmgen.emulator.blocks import BasicBlock
from gemmgen.emulator.data_flow import instructions_of
from gemmgen.emulator.errors import EmulatorError, ParseError, UnknownInstruction
from gemmgen.emulator.geometry import Geometry, Lanes
from gemmgen.emulator.hazards.report import (
    GlobalRace,
    LockstepRace,
    MissedBarrier,
    SameValue,
    UndefinedRegister,
    UnwrittenRead,
    VolatileRace,
)
from gemmgen.emulator.interleavings import ScheduleDependent
from gemmgen.emulator.literals import limits_of
from gemmgen.emulator.memory import GLOBAL_BASE, Access, Observer, Space, Spaces
from gemmgen.emulator.program import Program, link
from gemmgen.kernels.family import Case
from gemmgen.kernels.launch import ArrayArgument, LaunchSequence, ScalarArgument
from gemmgen.proof.contract import Contract, Inexpressible, assumed_apart
from gemmgen.proof.coverage import Product, product_of
from gemmgen.proof.prover import CONTRADICTED, KernelProof, Property
from gemmgen.runtime.emulation import EmulatorBackend, KernelFault
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.case_arrays import CaseMemory
from gemmgen.verification.replay import confirms

MAX_SIZE = 300
LARGE = 130
"""Largest size that is tried for a number of the code, and the size beyond which others are tried first."""
DEEP = 11
"""Tiles along a dimension that no result has, such as k, of one problem: more than rings have stages."""
MAX_DEPTH = 3000
MAX_PROBLEMS, TWICE = 48, 12
"""Problems that are run, and those among them that are run with two sets of data."""
MAX_ELEMENTS = 1 << 21
"""Elements of all arrays of a problem."""
MAX_THREADS = 1 << 17
WORK = 100_000
"""Instructions of basic blocks that all runs for one kernel may execute; many lanes, and products of matrices, count as several."""
MAX_SHARE = WORK // 8
"""Part of that work that one run may do."""
FAR = 1 << 20
"""Large operands, for sums that an epilogue does not take for small."""
LANES_AT_ONCE = 4096
PRODUCT, PRODUCTS = 20, ("mma", "wgmma", "tcgen05")
_CERTAIN = (LockstepRace, VolatileRace, SameValue, MissedBarrier)
"""Findings that are no errors by themselves, but contradict a proof."""
_INVARIANT = "the result depends on other numbers than those of its row and column, or on their order"


class _Spent(Exception):
    """A run has had its share of the work."""


@dataclass(frozen=True)
class _Contradiction:
    """One property of one launch, and the text of what a run showed."""

    property: str
    launch: int
    told: str


class _Watch(Observer):
    """The work of a run, and each launch's accesses to arrays: block and thread in one number, offset, bytes."""

    def __init__(self, names: Iterable[str], work: float) -> None:
        self._names, self.left = frozenset(names), work
        self.rows: list[dict[tuple[str, str], list[npt.NDArray[np.int64]]]] = []
        self.boxes: list[bool] = []
        """True for launches whose engines store."""
        self._memory: object = None

    def restarted(self) -> None:
        self.rows[-1].clear()

    def wave_started(self, geometry: Geometry, spaces: Spaces) -> None:
        self._geometry, self._spaces = geometry, spaces
        memory = spaces.global_.data
        if memory is not self._memory:
            self._memory = memory
            self._costs: dict[int, int] = {}
            self.rows.append(defaultdict(list))
            self.boxes.append(False)

    def block_started(self, block: BasicBlock, lanes: Lanes | None) -> None:
        count = self._geometry.lanes if lanes is None else len(lanes)
        if block.index not in self._costs:
            self._costs[block.index] = 1 + sum(PRODUCT if inst.opcode in PRODUCTS else 1 for inst in block.body)
        self.left -= self._costs[block.index] * (1 + count / LANES_AT_ONCE)
        if self.left < 0:
            raise _Spent

    def box_moved(self, instruction: Any, kind: str, rows: np.ndarray, unit: int, blocks: int) -> None:
        self.boxes[-1] |= kind != "load"

    def accessed(self, space: Space, access: Access, lanes: Lanes | None, addresses: np.ndarray) -> None:
        if space is not self._spaces.global_:
            return
        offsets = addresses.astype(np.int64) - GLOBAL_BASE
        self.boxes[-1] |= access.instruction.opcode == "cp" and access.instruction.has("bulk") and access.kind != "load"
        for region in self._spaces.global_.regions:
            name = region.name
            if name not in self._names:
                continue
            inside = (offsets >= region.start) & (offsets < region.stop)
            if inside.any():
                who = np.arange(self._geometry.lanes) if lanes is None else lanes
                threads = self._geometry.threads_of_grid(who)[inside]
                width = np.full(len(threads), access.width)
                self.rows[-1][name, access.kind].append(np.stack([threads, offsets[inside] - region.start, width], axis=1))


def contradict(sequence: LaunchSequence, ptx: str, architecture: str, proofs: Sequence[KernelProof]) -> tuple[KernelProof, ...]:
    """The proofs, with properties called contradicted for which a run on a small problem shows a fault, and unproved if there is no run."""
    claimed = [set(proof.proved) for proof in proofs]
    seen: dict[tuple[int, str], str] = {}
    unknown = ""
    if any(claimed):
        try:
            net = _Net(sequence, ptx, architecture, claimed)
            for contradiction in net.contradictions():
                seen.setdefault((contradiction.launch, contradiction.property), contradiction.told)
            unknown = net.unknown
        except EmulatorError as error:
            unknown = f"{error.title}: {error.message}"

    def judged(number: int, each: Property) -> Property:
        if each.status == "proved" and unknown:
            return replace(each, status="unproved", reasons=(f"the emulator does not run the kernel: {unknown}",))
        if each.status != "proved" or (number, each.name) not in seen:
            return each
        told = f"{CONTRADICTED}, so the prover or the emulator is wrong: {seen[number, each.name]}"
        return replace(each, status="contradicted", reasons=(told, "the same command repeats the proof and the run; please report this"))

    return tuple(replace(proof, properties=tuple(judged(number, each) for each in proof.properties)) for number, proof in enumerate(proofs))


class _Net:
    """Runs of one sequence."""

    def __init__(self, sequence: LaunchSequence, ptx: str, architecture: str, claimed: Sequence[set[str]]) -> None:
        self.sequence, self.claimed = sequence, claimed
        self._binary = Binary(ptx, b"", architecture, (), (0, 0), "", "", {})
        self._programs: dict[str, Program] = {launch.entry: link(ptx, launch.entry) for launch in sequence.launches}
        self._arrays = {array.name: array for array in sequence.arrays if array.role != "workspace"}
        self._roles = {array.name: array.role for array in sequence.arrays}
        sizes = {dimension.name for dimension in sequence.dimensions}
        self._scalars = [each for each in sequence.arguments if isinstance(each, ScalarArgument) and each.name not in sizes]
        self._atomic = any(inst.opcode in ("atom", "red") for program in self._programs.values() for inst in instructions_of(program))
        self._left = float(WORK)
        self._limits = sorted({number for program in self._programs.values() for number in limits_of(program)})
        self.unknown = ""
        """Why the emulator does not run the kernel at all, or to its end."""
        self._runs = self._ends = 0
        self._product = product_of(sequence) if "coverage" in claimed[0] else None

    def contradictions(self) -> Iterator[_Contradiction]:
        """All contradictions that are seen before the work is done."""
        for place, problem in enumerate(self._problems()):
            try:
                for draw in (place % 2, 1 - place % 2)[: 2 if place < TWICE else 1]:
                    yield from self._seen(problem, 2 * place + draw)
                if self._product is not None:
                    yield from self._of_product(problem, self._product, place)
            except _Spent:
                if self._left < MAX_SHARE:
                    break
        if self._runs and not self._ends:
            self.unknown = f"none of {self._runs} runs on small problems ended within {MAX_SHARE} instructions"

    # Problems --------------------------------------------------------------------------------------------------------------

    def _problems(self) -> Iterator[dict[str, int]]:
        """Problems that the preconditions allow, the smallest first, then those about the numbers of the launches and of the code."""
        try:
            contract = Contract(self.sequence, self.sequence.launches[0])
        except Inexpressible:
            return
        named = {name for array in self.sequence.arrays for extent in array.shape for name in extent.names}
        named |= {name for launch in self.sequence.launches for formula in launch.grid for name in formula.names}
        strides = {name for array in self.sequence.arrays for stride in array.strides for name in stride.names} - named
        sizes = [dimension.name for dimension in self.sequence.dimensions if dimension.name not in strides]
        wanted: list[dict[str, int]] = [dict.fromkeys(sizes, value) for value in (1, 0, 2, 3)]
        wanted += [{name: 0, **{other: 3 for other in sizes if other != name}} for name in sizes if len(sizes) > 1]
        stored = {name for array in self._arrays.values() if array.writes for extent in array.shape for name in extent.names}
        deep = min(DEEP * self._depth, MAX_DEPTH) + 1
        wanted += [{name: deep, **{other: 3 for other in sizes if other != name}} for name in sizes if name not in stored]
        # Every size takes every value, beside other values of the others and beside small ones.
        values = self._values()
        shift = max(len(values) // max(len(sizes), 1), 1)
        for first, value in enumerate(values):
            wanted.append({name: values[(first + turn * shift) % len(values)] for turn, name in enumerate(sizes)})
            if len(sizes) > 1:
                large = sizes[first % len(sizes)]
                wanted.append({large: value, **{other: 1 + first % 3 for other in sizes if other != large}})
        known: set[tuple[tuple[str, int], ...]] = set()
        for place, sought in enumerate(wanted):
            wide = max(sought.values(), default=1) + place % 3 * 4 if place % 4 < 3 else 1
            usual = {name: self.sequence.completed(sought).get(name, wide) for name in sorted(strides)}
            problem = contract.example({**sought, **usual})
            key = tuple(sorted((problem or {}).items()))
            if problem is not None and key not in known and self._is_small(problem):
                known.add(key)
                yield problem
            if len(known) >= MAX_PROBLEMS:
                return

    @property
    def _depth(self) -> int:
        """The largest number up to ``MAX_SIZE`` that the code compares something with: often the depth of a stage."""
        return max((number for number in self._limits if 1 < number <= MAX_SIZE), default=16)

    def _values(self) -> list[int]:
        """Sizes about the numbers of the grids, of the preconditions, of the blocks and of comparisons in the code."""
        launches = self.sequence.launches
        texts = [str(formula) for launch in launches for formula in (*launch.grid, launch.dynamic_shared_bytes)]
        texts += [str(constraint.condition) for constraint in self.sequence.constraints]
        first = [int(number) for text in texts for number in re.findall(r"\b\d+\b", text)]
        first += [extent for launch in launches for extent in (*launch.block, launch.threads)]
        rest = sorted({abs(number) for number in self._limits})
        sizes: dict[int, None] = {}
        for number in [*first, *rest]:
            sizes |= dict.fromkeys(value for value in (number + 1, number, number - 1) if 3 < value <= MAX_SIZE)
        sizes |= dict.fromkeys(value for value in (2 * number + 1 for number in first) if 3 < value <= MAX_SIZE)
        return sorted(sizes, key=lambda value: value > LARGE)

    def _is_small(self, problem: Mapping[str, int]) -> bool:
        grids = [launch.grid_of(problem) for launch in self.sequence.launches]
        if any(x * y * z * launch.threads > MAX_THREADS for (x, y, z), launch in zip(grids, self.sequence.launches, strict=True)):
            return False
        elements = self.sequence.workspace_bytes.evaluate(problem)
        for array in self._arrays.values():
            extents = [extent.evaluate(problem) for extent in array.shape]
            strides = [abs(stride.evaluate(problem)) for stride in array.strides]
            elements += sum(max(extent - 1, 0) * stride for extent, stride in zip(extents, strides, strict=True))
        if elements > MAX_ELEMENTS:
            return False
        apart = (_places(CaseMemory.of(self._arrays[name], self._case(problem, 0))) for name in assumed_apart(self.sequence))
        return all(len(np.unique(places)) == len(places) for places in apart)

    # Runs ------------------------------------------------------------------------------------------------------------------

    def _case(self, problem: Mapping[str, int], draw: int) -> Case:
        """A problem with its numbers. In odd draws, arrays are aligned to no more than the launch demands, and scalars are 0."""
        offsets = {name: array.alignment // ELEMENTS[array.type].bytes * (draw % 2) for name, array in self._arrays.items()}
        scalars = {each.name: 0.0 if draw % 2 else 2.0 for each in self._scalars}
        return Case("draw", problem, scalars, offsets=offsets, seed=draw)

    def _memory(self, case: Case, zeros: bool = True) -> dict[str, CaseMemory]:
        memory = {name: CaseMemory.of(array, case) for name, array in self._arrays.items()}
        for index, piece in enumerate(memory.values()):
            if piece.array.reads:
                numbers = _numbers(piece.array, piece.view.shape, case.generator(index), case.seed % 2)
                piece.fill(numbers if zeros else np.where(numbers == 0, 1, numbers))
        return memory

    def _run(self, case: Case, memory: Mapping[str, CaseMemory], hazards: bool, schedules: int = 1) -> tuple[_Watch, GemmgenError | None]:
        share = min(self._left, MAX_SHARE)
        watch = _Watch(self._arrays, share)
        backend = EmulatorBackend([watch], hazards=hazards, schedules=schedules)
        buffers = {name: piece.buffer for name, piece in memory.items()}
        error: GemmgenError | None = None
        try:
            backend.run(self._binary, self.sequence, case.dimensions, case.scalars, buffers)
        except GemmgenError as caught:
            error = caught
        finally:
            self._left -= share - watch.left
            self._runs += watch.left < share  # without blocks there is nothing to end
        self._ends += watch.left < share
        return watch, error

    def _seen(self, problem: Mapping[str, int], draw: int) -> Iterator[_Contradiction]:
        case = self._case(problem, draw)
        shown = f"for {_shown(problem)}: " if problem else ""
        for hazards, schedules in ((True, 1 + draw % 2), (False, 1)):
            memory = self._memory(case)
            watch, error = self._run(case, memory, hazards, schedules)
            seen = list(self._of_accesses(watch, schedules, case, memory) if error is None else self._of_error(error))
            yield from (replace(each, told=shown + each.told) for each in seen)
            if seen or error is None:
                return

    def _launches(self, name: str, entry: str | None = None, beside: Iterable[str] = ()) -> list[int]:
        """The launches, of one entry if it is given, of which a property is proved, and others ``beside`` it."""
        wanted = {name, *beside}
        return [
            number for number, each in enumerate(self.sequence.launches) if wanted <= self.claimed[number] and entry in (None, each.entry)
        ]

    def _of_error(self, error: GemmgenError) -> Iterator[_Contradiction]:
        if not isinstance(error, KernelFault):
            if "leave its workspace as it" in str(error):
                yield from (_Contradiction("handover", launch, str(error)) for launch in self._launches("handover"))
            return
        first = error.error
        if isinstance(first, UnknownInstruction | ParseError):
            self.unknown = f"{first.title}: {first.message}"
            return
        if isinstance(first, ScheduleDependent):
            launches = [] if self._atomic else self._launches("races", error.entry, ("memory", "once", "initialised"))
            yield from (_Contradiction("races", launch, f"{first.title}: {first.message}") for launch in launches)
            return
        for each in (first, *getattr(first, "also", ()), getattr(first, "ending", None)):
            if each is not None and (name := self._property_of(each)):
                # An access beyond its array may reach another one.
                beside = () if self._role_of(each) is None else ("memory",)
                told = f"{each.title}: {each.message}" + (f" ({each.instruction.text.strip()})" if each.instruction is not None else "")
                yield from (_Contradiction(name, launch, told) for launch in self._launches(name, error.entry, beside))

    def _role_of(self, error: EmulatorError) -> str | None:
        """The role of the array that a fault is about; None if it is about none."""
        names = getattr(error, "place", "").partition("[")[0].split("/")
        return next((self._roles[name] for name in names if name in self._roles), None)

    def _property_of(self, error: EmulatorError) -> str:
        """The property that a fault contradicts; empty if it is none of those that are proved."""
        role = self._role_of(error)
        if isinstance(error, UnwrittenRead):
            # Memory between an input's elements is marked as unwritten as well.
            return {"workspace": "handover", "input": "memory", "inout": ""}.get(role or "", "initialised")
        if isinstance(error, UndefinedRegister):
            return "initialised"
        if getattr(error, "severity", "error") != "error" and not isinstance(error, _CERTAIN):
            return ""
        in_global = role is not None or getattr(error, "place", "").startswith("global")
        if isinstance(error, GlobalRace) or (in_global and isinstance(error, SameValue | VolatileRace)):
            return "handover" if role == "workspace" and isinstance(error, GlobalRace) else ""
        return next((name for name in ("memory", "progress", "races") if confirms(name, f"{error.title}: ")), "")

    # Accesses --------------------------------------------------------------------------------------------------------------

    def _of_accesses(self, watch: _Watch, schedules: int, case: Case, memory: Mapping[str, CaseMemory]) -> Iterator[_Contradiction]:
        """Elements that two threads store, that none stores, and stores beside elements."""
        ran = [number for number, launch in enumerate(self.sequence.launches) if 0 not in launch.grid_of(case.dimensions)]
        rows = dict(zip(ran, watch.rows[::schedules], strict=False))
        boxes = dict(zip(ran, watch.boxes[::schedules], strict=False))
        alone = len(self.sequence.launches) == 1
        for number, launch in enumerate(self.sequence.launches):
            for name, piece in memory.items():
                if not piece.array.writes or not (alone or name in launch.arguments):
                    continue
                by_kind = {kind: np.concatenate(each) for (array, kind), each in rows.get(number, {}).items() if array == name}
                for each, text in _faults(piece, by_kind, boxes.get(number, False)).items():
                    # A store beyond its array may reach another one.
                    if {each, "complete" if each == "complete" else "memory"} <= self.claimed[number]:
                        yield _Contradiction(each, number, text)

    # Products --------------------------------------------------------------------------------------------------------------

    def _of_product(self, problem: Mapping[str, int], product: Product, place: int) -> Iterator[_Contradiction]:
        """Results that change where the sum over k of their row and column does not, or never change."""
        (result,) = product.results
        if problem[product.dimension] < 1 or any(problem[name] < 1 for name in product.results[result]):
            return
        scalars = {each.name: 2.0 if each.name == "alpha" else (2.0, -3.0, 0.0)[place % 3] for each in self._scalars}
        case = replace(self._case(problem, 2 * place), scalars=scalars)
        rng = np.random.default_rng(place)
        shapes = {name: tuple(problem[each] for each in axes) for name, axes in product.operands.items()}
        base = {name: rng.integers(-2, 3, shape).astype(np.float64) for name, shape in shapes.items()}
        first = self._product_of(case, base)
        if first is None:
            return
        depth, along = problem[product.dimension], {name: axes.index(product.dimension) for name, axes in product.operands.items()}
        order = rng.permutation(depth)
        signs = 1.0 - 2.0 * rng.integers(0, 2, depth)
        spread = {name: np.expand_dims(signs, tuple({*range(base[name].ndim)} - {along[name]})) for name in base}
        everywhere = np.ones(first.shape, np.bool_)
        tries = [({name: np.take(base[name], order, along[name]) for name in base}, everywhere)]
        if all(ELEMENTS[kind].is_float or kind[0] == "s" for kind in product.types.values()):
            tries.append(({name: base[name] * spread[name] for name in base}, everywhere))
        for name, axes in product.operands.items():
            # Half of the operand's lines along k change, and with them only the results of these lines.
            keeps = rng.random([1 if axis == product.dimension else problem[axis] for axis in axes]) < 0.5
            changed = rng.integers(-2, 3, shapes[name]).astype(np.float64)
            lines = np.take(keeps, 0, axes.index(product.dimension))
            left = [axis for axis in axes if axis != product.dimension]
            lines = lines.transpose(np.argsort([product.results[result].index(axis) for axis in left]))
            beside = tuple(place for place, axis in enumerate(product.results[result]) if axis not in left)
            tries.append(
                ({**base, name: np.where(keeps, base[name], changed)}, np.broadcast_to(np.expand_dims(lines, beside), first.shape))
            )
        for arrays, unchanged in tries:
            other = self._product_of(case, arrays)
            if other is not None and (differs := np.argwhere(unchanged & _differ(first, other))).size:
                at = "".join(f"[{number}]" for number in differs[0])
                yield _Contradiction("coverage", 0, f"for {_shown(problem)}: {_INVARIANT}: {result}{at}")
                return
        constant = np.full(first.shape, place < TWICE)
        case = replace(case, scalars=dict.fromkeys(scalars, 2.0))  # with 0, or limits below 0, an epilogue may be constant
        results: list[npt.NDArray[Any]] = []
        far = FAR if all(kind in ("f32", "tf32", "f64") for kind in product.types.values()) else 16
        for low, high in ((-2, 0), (1, 3), (-far, 1 - far), (far, far + 1)) if place < TWICE else ():
            ranges = zip(base, ((low, high), (1, 3) if abs(low) < far else (far, far + 1)), strict=True)
            other = self._product_of(case, {name: rng.integers(*ends, shapes[name]).astype(np.float64) for name, ends in ranges})
            results += [] if other is None else [other]
            constant &= other is not None and results[0] == other
        if constant.any():
            at = "".join(f"[{number}]" for number in np.argwhere(constant)[0])
            yield _Contradiction("coverage", 0, f"for {_shown(problem)}: {result}{at} is the same for all operands")

    def _product_of(self, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any] | None:
        """The result for some operands, and other inputs without a 0, which an epilogue may multiply by; None if the run fails."""
        memory = self._memory(case, zeros=False)
        for name, array in arrays.items():
            memory[name].fill(array)
        _, error = self._run(case, memory, False)
        (result,) = (piece for piece in memory.values() if piece.array.writes)
        return None if error is not None else to_numbers(result.array.type, result.view).astype(np.float64)


def _differ(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True for finite numbers that are not equal: others may be quotients by a 0 of either sign."""
    differ: npt.NDArray[np.bool_] = np.isfinite(one) & np.isfinite(other) & (one != other)
    return differ


def _shown(problem: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in problem.items())


def _numbers(array: ArrayArgument, shape: tuple[int, ...], rng: np.random.Generator, draw: int) -> npt.NDArray[np.float64]:
    """Data for an array: small integers with signs and zeros; then extremes and reals."""
    element = ELEMENTS[array.type]
    if array.type == "ue8m0":
        return np.ldexp(1.0, rng.integers(-2, 3, shape))
    unsigned = not element.is_float and array.type[0] != "s"
    if not draw:
        small = rng.integers(-3, 4, shape).astype(np.float64)
        return np.abs(small) if unsigned else small
    if element.is_float:
        return np.where(rng.random(shape) < 0.2, 0.0, rng.normal(0, 4, shape))
    bits = 8 * element.bytes if array.type != "bool" else 1
    ends = [0, 1, 2 ** min(bits, 31) - 1] if unsigned else [-(2 ** min(bits - 1, 31)), -1, 0, 1, 63, 64, 2 ** min(bits - 1, 31) - 1]
    return rng.choice(np.array(ends, np.float64), shape)


def _faults(piece: CaseMemory, rows: Mapping[str, npt.NDArray[np.int64]], by_engines: bool) -> dict[str, str]:
    """Properties that the accesses of a launch to one result contradict, each with a text."""
    size, name = piece.view.itemsize, piece.array.name
    elements = _places(piece)
    told: dict[str, str] = {}
    none = np.zeros((0, 2), np.int64)
    stored, changed, loaded = (
        np.concatenate([none, *(_by_element(rows[kind], size) for kind in kinds if kind in rows)])
        for kinds in (("store",), ("store", "atomic"), ("load",))
    )
    beside = np.setdiff1d(changed[:, 0], elements)
    if beside.size:
        told["memory"] = f"a store {beside[0] * size} bytes from the start of {name}, where it has no element"
    everyone = np.unique(changed, axis=0)
    several = everyone[1:, 0][everyone[1:, 0] == everyone[:-1, 0]]
    twice = np.intersect1d(several, stored[:, 0])
    if twice.size:
        told["once"] = f"several threads store element {twice[0]} of the memory of {name}"
    if loaded.size and stored.size:
        # A thread that reads an element must be the only one that stores it.
        by = dict(np.unique(stored, axis=0).tolist())
        read = next((element for element, thread in np.unique(loaded, axis=0).tolist() if by.get(element, thread) != thread), None)
        if read is not None:
            told["races"] = f"a thread reads element {read} of the memory of {name}, which another one stores"
    if not by_engines:
        missing = np.setdiff1d(elements, changed[:, 0])
        if missing.size:
            told["complete"] = f"element {missing[0]} of the memory of {name} is not stored"
    return told


def _places(piece: CaseMemory) -> npt.NDArray[np.int64]:
    """The places of an array's elements in its memory."""
    places = np.full(1, piece.buffer.origin_bytes // piece.view.itemsize, np.int64)
    for extent, stride in zip(piece.view.shape, piece.view.strides, strict=True):
        places = (places[:, None] + np.arange(extent) * (stride // piece.view.itemsize)).ravel()
    return places


def _by_element(rows: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Element and thread of each access, once for each element that it touches."""
    threads, offsets, widths = rows.T
    first, last = offsets // size, (offsets + widths - 1) // size
    longest = int((last - first).max(initial=0)) + 1
    pieces = [np.stack([first + step, threads], axis=1)[first + step <= last] for step in range(longest)]
    return np.unique(np.concatenate(pieces), axis=0)
