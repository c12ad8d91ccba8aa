"""Verdicts on kernels whose tiles pass through a ring of barriers in shared memory: see ``gemmgen.proof.rings`` for the induction."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import z3

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.formulas import Formula
from gemmgen.core.graphs import cycles
from gemmgen.emulator.ptx.syntax import Function, Instruction, Module
from gemmgen.hardware.tensor_map import ELEMENT_BYTES
from gemmgen.kernels.launch import KernelLaunch, LaunchSequence, TensorMapArgument
from gemmgen.proof.boxes import stored_once, tiles
from gemmgen.proof.clusters import follow_cluster, of_clusters
from gemmgen.proof.complete import not_stored
from gemmgen.proof.contract import Contract
from gemmgen.proof.control import Unliftable
from gemmgen.proof.coverage import Product, product_of
from gemmgen.proof.data import Access
from gemmgen.proof.direct import note_direct_accesses
from gemmgen.proof.filling import left_out
from gemmgen.proof.fragments import Form, Fragments
from gemmgen.proof.handover import stored_by_several
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.members import incomplete_masks, incomplete_warps, missing_lanes
from gemmgen.proof.obligations import Verdict, formula
from gemmgen.proof.registers import read_unwritten
from gemmgen.proof.rings import PROPERTIES, Findings, Ring, follow, place_of
from gemmgen.proof.roles import FEW_ITERATIONS, SHARED_BASE, Runner, Step
from gemmgen.proof.semantics import _ARITHMETIC, _special
from gemmgen.proof.solver import Solver
from gemmgen.proof.symbols import Content, Expression, compares_floats, negation_free, signed
from gemmgen.proof.tensor_memory import follow_tensor_memory, uses_tensor_memory
from gemmgen.proof.tiles import ended_early, one_tile
from gemmgen.proof.values import Value, as_term, choose, constant

MOST = (1 << 31) - 1
MILLISECONDS = 1000
"""Time for the question whether a comparison has one outcome only."""


def verdicts(sequence: LaunchSequence, launch: KernelLaunch, module: Module, function: Function, solver: Solver) -> dict[str, Verdict]:
    """The properties of one kernel with a ring. Raises ``Unliftable``, ``Inexpressible``, ``OutOfTime``."""
    contract = Contract(sequence, launch)
    product = product_of(sequence)

    def fragments(maps: Mapping[str, TensorMapArgument], size: int) -> Fragments | None:
        if product is None:
            return None
        dimensions = {**product.operands, **product.results}
        named: dict[str, tuple[str, ...]] = {}
        for map_ in maps.values():
            axes = _axes(map_, sequence, contract, solver)
            if axes is not None and map_.array in dimensions:
                named[map_.name] = tuple(dimensions[map_.array][axis] for axis in axes)
        types = {array.name: array.type for array in sequence.arrays}
        return Fragments(function, maps, named, types, product.dimension, (SHARED_BASE, size), launch.threads)

    ring: Ring
    runner: Runner
    if launch.cluster != (1, 1, 1) and not uses_tensor_memory(function):
        of_cluster = Knowledge(module, function, Contract(sequence, of_clusters(launch)), solver)
        ring, runner = follow_cluster(sequence, launch, module, function, solver.check_time, _decider(of_cluster))
    elif uses_tensor_memory(function):
        ring, runner = follow_tensor_memory(sequence, launch, module, function, solver.check_time)
    else:
        ring, runner = follow(sequence, launch, module, function, solver.check_time, fragments)
    for map_ in sequence.tensor_maps:
        if map_.name in ring.used_maps:
            holds = _is_the_array(map_, sequence, contract, solver)
            ring.findings.note("memory", ("map", map_.name), holds, f"{map_.name} is not {map_.array} as its launch describes it")
        if map_.name in ring.written_maps:
            ring.findings.note("once", ("map", map_.name), holds, f"{map_.name} is not {map_.array} as its launch describes it")
            array = next(each for each in sequence.arrays if each.name == map_.array)
            ring.findings.note("memory", ("written", map_.name), array.writes, f"{map_.array} is an input")
    _note_arrays_that_are_read(ring, sequence)
    unwritten = next(read_unwritten(function, runner.flow), None)
    why = "" if unwritten is None else f"{unwritten[1].name} may be read before it is written"
    masked, shuffled = next(incomplete_masks(function, launch.threads), None), next(missing_lanes(function, launch.threads), None)
    ring.findings.note("progress", "masks", masked is None, "lanes that its mask may leave out execute it", masked)
    ring.findings.note("initialised", "lanes", shuffled is None, "it may read from a lane that the block does not have", shuffled)
    short = next(incomplete_warps(function, launch.threads), None)
    ring.findings.note("progress", "warps", short is None, "it needs all lanes of a warp, and the block's last warp has fewer", short)
    trap = next((each for each in function.body if each.opcode == "trap"), None)
    ring.findings.note("progress", "trap", trap is None, "a thread may come to it", trap)
    ring.findings.note("initialised", "registers", unwritten is None, why, None if unwritten is None else unwritten[0])
    known = Knowledge(module, function, contract if launch.cluster == (1, 1, 1) else Contract(sequence, of_clusters(launch)), solver)
    if known.contradiction():
        raise Unliftable(None, "no problem with a block fulfils the preconditions")
    in_range = _in_range(known)
    loops = _ends(runner.steps, in_range)
    for beginning, limit in runner.beginnings:
        fits = _fits(beginning, limit, known)
        for name in PROPERTIES:
            ring.findings.note(name, ("beginning", beginning, limit), fits, "the iterations of a loop may overflow")
    ring.findings.note("progress", "loops", loops, "a loop was not proved to end")
    if not ring.findings.reasons["once"] and ring.sends:
        why = "see progress"
        if loops:
            why = stored_once(ring.sends, runner.steps, sequence, known, lambda content: _value(content, known), in_range)
        ring.findings.note("once", "boxes", not why, why)
    sent = {map_.array for map_ in sequence.tensor_maps if map_.name in ring.written_maps}
    fetched = {map_.array for map_ in sequence.tensor_maps if map_.name in ring.fetched_maps}
    accesses: Sequence[Access] | None = ()
    lifter: Lifter | None = None
    why_incomplete = "once and progress must be proved first"
    direct = list(ring.direct.values())
    if direct and uses_tensor_memory(function):
        # A sound verdict on one iteration for each tile is one on a loop over tiles. Whether all tiles have iterations is not asked.
        accesses, why_incomplete = None, "results that threads store in a loop over tiles are not followed"
        lifted, of_tile = ended_early(function, direct), _of_tiles(sequence, launch, runner, known, in_range)
        iteration = None if of_tile is None else one_tile(lifted, direct)
        if of_tile is None or iteration is None:
            for name in ("memory", "once", "races", "initialised"):
                ring.findings.note(name, "direct", False, why_incomplete, direct[0])
        else:
            note_direct_accesses(ring.findings, module, iteration, of_tile, solver, direct, sent, fetched)
    elif direct:
        lifter = note_direct_accesses(ring.findings, module, function, contract, solver, direct, sent, fetched)
        accesses = None if lifter is None else lifter.known.lifted.accesses
    by_property = {name: _verdict(name, ring.findings) for name in PROPERTIES}
    if not by_property["races"].holds:  # a race may change barriers and slots, which the induction over their uses takes for unchanged
        for name in ("progress", "initialised", *(["memory"] if uses_tensor_memory(function) else [])):  # threads load its address
            by_property[name].unproved.append("races must be proved first")
    ready = by_property["once"].holds and by_property["progress"].holds
    missing = Verdict("complete", unproved=[why_incomplete])
    by_property["complete"] = _complete(ring, runner, lifter, sequence, known, in_range) if ready and accesses is not None else missing
    if any(array.workspace for array in contract.arrays.values()):
        ready = all(by_property[name].holds for name in ("memory", "races", "progress"))
        missing = Verdict("handover", unproved=["memory, races and progress must be proved first"])
        by_property["handover"] = _handover(contract, accesses, sent, fetched) if ready and accesses is not None else missing
        if not by_property["once"].holds and any(contract.arrays[name].workspace for name in sent):
            by_property["handover"].unproved.append("once must be proved first: several threads may store one partial result")
        if lifter is not None:
            mine = [each for each in accesses or () if contract.in_workspace(each.address)]
            by_property["handover"].unproved += stored_by_several(lifter.known, mine)
        reads = [each for each in accesses or () if not each.writes and contract.in_workspace(each.address)]
        if accesses is None or reads or any(contract.arrays[name].workspace for name in fetched):
            by_property["initialised"].unproved.append("elements of the workspace that this launch reads may never be stored")
    if product is not None and ring.fragments is None:
        by_property["coverage"] = Verdict("coverage", unproved=["sums in tensor memory, or of blocks in clusters, are not followed"])
    elif product is not None:
        ready = all(by_property[name].holds for name in ("memory", "races", "progress"))
        missing = Verdict("coverage", unproved=["memory, races and progress must be proved first"])
        by_property["coverage"] = _coverage(ring, product, known) if ready else missing
    return by_property


def _note_arrays_that_are_read(ring: Ring, sequence: LaunchSequence) -> None:
    """No box is loaded from an array that nothing wrote before the kernel, or that the kernel stores boxes to."""
    arrays = {array.name: array for array in sequence.arrays}
    fetched = {map_.array for map_ in sequence.tensor_maps if map_.name in ring.fetched_maps}
    sent = {map_.array for map_ in sequence.tensor_maps if map_.name in ring.written_maps}
    for name in fetched:
        ring.findings.note("initialised", ("fetched", name), arrays[name].role != "output", f"TMA reads {name}, which nothing wrote before")
        apart = name not in sent or arrays[name].role == "workspace"
        ring.findings.note("races", ("fetched", name), apart, f"TMA reads and stores {name}")


def _of_tiles(
    sequence: LaunchSequence, launch: KernelLaunch, runner: Runner, known: Knowledge, in_range: Callable[[Step], bool]
) -> Contract | None:
    """The contract of a grid with a block for each tile, if the blocks of a persistent grid have each tile below their number once."""
    tree = launch.grid[0].tree
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.func.id != "min" or len(tree.args) != 2:
        return None
    if any(str(formula) != "1" for formula in launch.grid[1:]):
        return None
    tiles = Formula(ast.unparse(tree.args[0]))
    one_each = replace(launch, grid=(tiles, *launch.grid[1:]))
    index, grid = Expression("%ctaid.x"), Expression("%nctaid.x")
    counters = {step.counter for step in runner.steps if step.counter is not None and step.counter.mentions(index)}
    if len(counters) != 1:
        return None
    (counter,) = counters
    if len(counter.arguments) != 3 or {*counter.arguments[:2]} != {index, grid}:
        return None
    named = [step for step in runner.steps if step.counter == counter]
    apart = all(step.step == grid or (not step.grows and step.step == index) for step in named)
    limit = _value(counter.arguments[2], known)
    contract = Contract(sequence, one_each, MOST)
    if not apart or limit is None or limit.base or not all(in_range(step) for step in named if step.outcome):
        return None
    return contract if known.proves((), limit.z3 <= contract.grid[0]) else None


def _handover(contract: Contract, accesses: Sequence[Access], sent: Collection[str], fetched: Collection[str]) -> Verdict:
    """A kernel with a ring only stores to a workspace, or only reads from it: launches before and after it do the rest."""
    here = [access for access in accesses if access.address is None or contract.in_workspace(access.address)]
    stored = any(access.writes for access in here) or any(contract.arrays[name].workspace for name in sent)
    read = not all(access.kind == "store" for access in here) or any(contract.arrays[name].workspace for name in fetched)
    verdict = Verdict("handover", len(here) + len(sent) + len(fetched))
    if stored and read:
        verdict.unproved.append("blocks read data that blocks of this launch store, by no known protocol")
    if stored and not (z3.is_int_value(zero := z3.simplify(contract.zero_bytes)) and zero.as_long() == 0):
        verdict.unproved.append("blocks may store to bytes of the workspace that must be 0 after a launch")
    verdict.proved = verdict.obligations - len(verdict.unproved)
    return verdict


def _complete(
    ring: Ring,
    runner: Runner,
    lifter: Lifter | None,
    sequence: LaunchSequence,
    known: Knowledge,
    in_range: Callable[[Step], bool],
) -> Verdict:
    """Every element of every result that the kernel is given leaves in a box, or its threads store it."""
    verdict = Verdict("complete")
    accesses = [] if lifter is None else lifter.known.lifted.accesses
    written = {access.address.base for access in accesses if access.writes and access.address is not None}
    counter = tiles(ring.sends, runner.steps, in_range) if ring.sends else None
    for array in known.contract.arrays.values():
        if not array.writable or array.workspace or not known.contract.used(array.name):
            continue
        verdict.obligations += 1
        if lifter is not None and array.name in written:
            why = not_stored(lifter, array)
        elif isinstance(counter, str):
            why = counter
        else:
            why = left_out(ring, array.name, counter, sequence, known, lambda content: _value(content, known))
        verdict.proved += not why
        if why:
            verdict.unproved.append(f"{array.name}: {why}")
    return verdict


def _coverage(ring: Ring, product: Product, known: Knowledge) -> Verdict:
    """Every element that leaves is one whole sum over k: ``gemmgen.proof.fragments`` followed the sums, and this proves their counts."""
    fragments = ring.fragments
    assert fragments is not None
    verdict = Verdict("coverage", len(fragments.checked) + len(fragments.obligations))
    verdict.unproved += [place_of(reason, at) for reason, at in fragments.reasons.items()]
    if any(each.opcode == "st" for each in ring.direct.values()):
        verdict.unproved.append("threads store results themselves")
    if not ring.sends:
        verdict.unproved.append("no store to the result was found")
    if verdict.unproved:
        return verdict
    array, axes = next(iter(product.operands.items()))
    contract = known.contract.arrays[array]
    k = as_term(contract.shape[[axes[axis] for axis in contract.axes].index(product.dimension)])
    symbols: dict[Expression, Value] = {}
    for each in sorted(fragments.obligations, key=repr):
        total = _total(each.count, symbols, known)
        path = [] if total is None else _decisions(each.facts, symbols, known)
        goal = None if total is None else total >= k if each.whole else total < 1 << 31
        if goal is None or not known.proves(path, goal):
            why = f"the sum may end before {product.dimension}" if each.whole else "the products of a sum may overflow"
            verdict.unproved.append(why if goal is None else f"{why}; not shown: {formula(goal)}")
            break
    verdict.proved = verdict.obligations - len(verdict.unproved)
    return verdict


def _total(count: Form, symbols: dict[Expression, Value], known: Knowledge) -> z3.ArithRef | None:
    """A count of products as a number; None if a part of it has no formula."""
    total: z3.ArithRef = z3.IntVal(count.number)
    for content, times in count.terms:
        value = _value(content, known, symbols)
        if value is None or value.base:
            return None
        total = total + value.z3 * times
    return total


def _decisions(facts: Collection[tuple[Expression, bool]], symbols: dict[Expression, Value], known: Knowledge) -> list[z3.BoolRef]:
    """The comparisons of signed numbers among some decisions, as far as they have formulas."""
    comparisons: list[z3.BoolRef] = []
    for fact, outcome in sorted(facts, key=repr):
        values = [_value(part, known, symbols) for part in fact.arguments]
        if all(value is not None and not value.base for value in values):
            one, other = (value.z3 for value in values if value is not None)
            comparisons.append(one < other if outcome else one >= other)
    return comparisons


def _verdict(name: str, findings: Findings) -> Verdict:
    count, reasons = len(findings.checked[name]), findings.reasons[name]
    return Verdict(name, count, max(0, count - len(reasons)), list(reasons))


def _is_the_array(map_: TensorMapArgument, sequence: LaunchSequence, contract: Contract, solver: Solver) -> bool:
    """True if a map's elements are those of its array: TMA then touches no others, whatever its coordinates are."""
    return _axes(map_, sequence, contract, solver) is not None


def _axes(map_: TensorMapArgument, sequence: LaunchSequence, contract: Contract, solver: Solver) -> tuple[int, ...] | None:
    """The axes of an array that those of its map are; None if the map is not that of the whole array."""
    array = next(each for each in sequence.arrays if each.name == map_.array)
    size = ELEMENTS[array.type].bytes
    if ELEMENT_BYTES[map_.element] != size or map_.im2col is not None or len(map_.extents) != len(array.shape):
        return None

    def same(a: z3.ArithRef, b: z3.ArithRef) -> bool:
        difference = z3.simplify(a - b, som=True)
        if z3.is_int_value(difference):
            return bool(difference.as_long() == 0)
        return solver.proves(contract.facts, a == b)

    if not same(contract.term(map_.offset_bytes), z3.IntVal(0)):
        return None
    axes: list[int] = []
    left = list(range(len(array.shape)))
    strides = [z3.IntVal(size), *[contract.term(stride) for stride in map_.strides]]
    for extent, stride in zip(map_.extents, strides, strict=True):
        fits = [
            axis
            for axis in left
            if same(contract.term(array.strides[axis]) * size, stride) and same(contract.term(array.shape[axis]), contract.term(extent))
        ]
        if not fits:
            return None
        left.remove(fits[0])
        axes.append(fits[0])
    return tuple(axes)


def _in_range(known: Knowledge) -> Callable[[Step], bool]:
    """True if a step's counter, below its limit, does not overflow; each comparison is asked about once."""
    answers: dict[tuple[Expression | None, Content | None], bool] = {}

    def bounded(step: Step) -> bool:
        key = (step.comparison, step.step)
        if key not in answers:
            answers[key] = _stays_in_range(step, known)
        return answers[key]

    return bounded


def _decider(known: Knowledge) -> Callable[[Expression], bool | None]:
    """The outcome of comparisons of signed numbers that the launch alone decides, such as whether a cluster has a second tile."""
    answers: dict[Expression, bool | None] = {}

    def outcome(comparison: Expression) -> bool | None:
        if comparison in answers:
            return answers[comparison]
        answers[comparison] = None
        if comparison.operation == "lt.s32" and not _has_counter(comparison):
            one, other = (_value(part, known) for part in comparison.arguments)
            if one is not None and other is not None and not one.base and not other.base:
                below = known.seen(one, 32, True, ()).z3 < known.seen(other, 32, True, ()).z3
                always = known.proves((), below, MILLISECONDS)
                answers[comparison] = True if always else False if known.proves((), z3.Not(below), MILLISECONDS) else None
        return answers[comparison]

    return outcome


def _ends(steps: Sequence[Step], bounded: Callable[[Step], bool]) -> bool:
    """True if every path ends: each cycle of states counts towards a limit that the cycle does not change."""
    pending = [list(steps)]
    while pending:
        edges = pending.pop()
        for inside in _cycles(edges):
            counters = {step.counter for step in inside if step.counter is not None and step.grows and step.outcome}
            chosen = None
            moving = {step.counter for step in inside if step.counter is not None}
            for counter in counters:
                named = [step for step in inside if step.counter == counter]
                fixed = not any(_limit_mentions(step, moving) for step in named)
                if fixed and all(step.grows for step in named) and all(bounded(step) for step in named if step.outcome):
                    chosen = counter
            if chosen is None:
                return False
            pending.append([step for step in inside if not (step.counter == chosen and step.outcome)])
    return True


def _cycles(edges: Sequence[Step]) -> list[list[Step]]:
    """The edges within each strongly connected part of a graph."""
    following: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        following[edge.before].append(edge.after)
    components = cycles(list(following), lambda node: following.get(node, ()))
    number = {node: place for place, component in enumerate(components) for node in component}
    inside: dict[int, list[Step]] = defaultdict(list)
    for edge in edges:
        if edge.before in number and number[edge.before] == number.get(edge.after):
            inside[number[edge.before]].append(edge)
    return list(inside.values())


def _stays_in_range(step: Step, known: Knowledge) -> bool:
    """True if a counter below its limit does not overflow by a step that is at least one."""
    comparison = step.comparison
    if comparison is None or comparison.operation != "lt.s32" or step.step is None:
        return False
    limit = comparison.arguments[1]
    if isinstance(limit, tuple) or isinstance(step.step, tuple):
        return False
    if step.step == 1:
        return True
    if isinstance(limit, Expression) and _has_counter(limit):
        return False
    by, most = _value(step.step, known), _value(limit, known)
    if by is None or most is None or by.base or most.base:
        return False
    goal = z3.And(as_term(by.term) >= 1, z3.Or(as_term(most.term) < 1, as_term(by.term) + as_term(most.term) - 1 <= MOST))
    return known.proves((), goal)


def _limit_mentions(step: Step, counters: Collection[Expression]) -> bool:
    """True if the limit of a step's comparison depends on one of some counters."""
    limit = step.comparison.arguments[1] if step.comparison is not None else None
    return isinstance(limit, Expression) and any(limit.mentions(counter) for counter in counters)


def _fits(beginning: Content, limit: Content, known: Knowledge) -> bool:
    """True if a beginning and the iterations of its loop, up to a limit of at least 1 or a few more than the beginning, do not overflow."""
    counters: dict[Expression, Value] = {}
    first, iterations = _value(beginning, known, counters), _value(limit, known, counters)
    if first is None or iterations is None or first.base or iterations.base:
        return False
    return known.proves([iterations.z3 >= 1], z3.And(first.z3 + iterations.z3 <= MOST, first.z3 + FEW_ITERATIONS + 1 <= MOST))


def _has_counter(expression: Expression) -> bool:
    return expression.operation == "counter" or any(isinstance(part, Expression) and _has_counter(part) for part in expression.arguments)


def _value(content: Content, known: Knowledge, counters: dict[Expression, Value] | None = None) -> Value | None:
    """An expression of the launch as an integer; None if a part of it has no formula.

    With ``counters``, each counter is any number of 32 bits, which is kept there.
    """
    if isinstance(content, int):
        return constant(signed(content, 64 if content >> 32 else 32))
    if isinstance(content, tuple):
        return None
    if content.operation == "counter" and counters is not None:
        if content not in counters:
            counters[content] = known.symbol("counter", -MOST - 1, MOST)
        return counters[content]
    if content.operation == "param":
        (number,) = content.arguments
        return known.contract.parameter(number) if isinstance(number, int) else None
    if content.operation.startswith("%"):
        return _special(known, content.operation)
    opcode, *modifiers = content.operation.split(".")
    meaning = _ARITHMETIC.get(opcode)
    if opcode == "selp":
        return _chosen(content, known, counters)
    parts = [_value(part, known, counters) for part in content.arguments]
    values = [part for part in parts if part is not None]
    kind = next((word for word in reversed(modifiers) if word[1:] in ("16", "32", "64")), "")
    if meaning is None or len(values) < len(parts) or not kind:
        return None
    if kind.endswith("64") and any(isinstance(part, int) and 1 << 31 <= part < 1 << 32 for part in content.arguments):
        return None
    instruction = Instruction(opcode, tuple(modifiers), (), None, False, 0, content.operation, None)
    value = meaning(known, instruction, values, int(kind[1:]), kind.startswith("s"), ())
    if value is None:
        return None
    return known.seen(value, int(kind[1:]) * (2 if "wide" in modifiers else 1), True, ())


def _chosen(content: Expression, known: Knowledge, counters: dict[Expression, Value] | None) -> Value | None:
    """One of two numbers by a comparison of floats, which may come out either way; None for other comparisons."""
    *numbers, comparison = content.arguments
    yes, no = (_value(number, known, counters) for number in numbers)
    if yes is None or no is None or not isinstance(comparison, Expression):
        return None
    plain, negated = negation_free(comparison)
    if not compares_floats(plain):
        return None
    return choose(z3.Bool(repr(plain)), no, yes) if negated else choose(z3.Bool(repr(plain)), yes, no)
