"""Partial results: each element of a workspace that a kernel loads was stored, by its own blocks or by a launch before it.

For each load, the prover looks for a store that a thread of some block makes to the same bytes: the block's index follows from the
load's address, and the thread has the index of the loading thread, or this modulo a power of two. z3 proves that the addresses are equal,
that such a block exists, and that this thread comes to the store. That the store comes first is ``handover``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import z3

from gemmgen.emulator.ptx.syntax import Function, Module
from gemmgen.kernels.launch import KernelLaunch, LaunchSequence
from gemmgen.proof.contract import Contract
from gemmgen.proof.data import Access
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import place
from gemmgen.proof.polynomials import Monomial
from gemmgen.proof.rings import uses_rings
from gemmgen.proof.terms import mentions, node_of
from gemmgen.proof.tickets import tickets
from gemmgen.proof.values import as_condition

MAX_THREADS = 1024


@dataclass(frozen=True)
class _Source:
    """Stores of one launch; ``named``: numbers of the parts of a block's index that the loading block shares with the storing one."""

    lifter: Lifter
    stores: Sequence[Access]
    named: frozenset[int]


def never_stored(lifter: Lifter, sequence: LaunchSequence, launch: KernelLaunch, module: Module, *, handed_over: bool) -> list[str]:
    """Loads from a workspace whose elements may never be stored. ``handed_over``: the property ``handover`` is proved."""
    here = [access for access in _global(lifter) if lifter.known.contract.in_workspace(access.address)]
    loads = [access for access in here if access.kind != "store" and not access.writes]
    if not loads:
        return []
    if any(access.writes for access in here):
        if not handed_over:
            return ["partial results of this launch: handover must be proved first"]
        drawn = tickets(lifter)
        if not drawn:
            return []  # a word that is waited for is stored, and those before it are 0
        stores = [access for access in here if access.kind == "store" and not any(access is reset for reset in drawn[0].resets)]
        sources = [_Source(lifter, stores, drawn[0].parts)]
    else:
        sources = list(_earlier(lifter, sequence, launch, module))
    lost = next((load for load in loads if not any(_is_stored(lifter, load, source) for source in sources)), None)
    return [] if lost is None else [f"{place(lost)}: this element of the workspace may never be stored"]


def _global(lifter: Lifter) -> list[Access]:
    return [access for access in lifter.known.lifted.accesses if access.space not in ("shared", "local")]


def _earlier(lifter: Lifter, sequence: LaunchSequence, launch: KernelLaunch, module: Module) -> Iterator[_Source]:
    """The launches before one that have no ring."""
    for earlier in sequence.launches[: sequence.launches.index(launch)]:
        function: Function = module.functions[earlier.entry]
        if uses_rings(function):
            continue
        before = Lifter(module, function, Contract(sequence, earlier), lifter.known.solver)
        before.lift()
        stores = [each for each in _global(before) if each.kind == "store" and before.known.contract.in_workspace(each.address)]
        yield _Source(before, stores, frozenset())


def _is_stored(lifter: Lifter, load: Access, source: _Source) -> bool:
    """True if each part of a load as wide as a store was stored."""
    for store in source.stores:
        if not isinstance(load.size, int) or not isinstance(store.size, int) or load.size % store.size or store.iterations:
            continue
        offsets = range(0, load.size, store.size)
        if all(any(_meets(lifter, load, at, each, source) for each in source.stores if each.size == store.size) for at in offsets):
            return True
    return False


def _meets(lifter: Lifter, load: Access, offset: int, store: Access, source: _Source) -> bool:
    """True if some thread of some block makes a store to the bytes at an offset of a load."""
    known, theirs = lifter.known, source.lifter.known
    guards = None if store.iterations else source.lifter.guards(store.block, store.path)
    if guards is None or load.address is None or store.address is None:
        return False
    blocks = [part for parts in theirs.block_parts.values() for part in parts]
    threads = [value.z3 for value in theirs.thread.values() if not isinstance(value.term, int)]
    own = [symbol for symbol in theirs.private if not any(symbol.eq(each) for each in (*blocks, *threads))]
    if len(threads) > 1 or mentions(store.address.z3, own) or any(mentions(as_condition(guard), own) for guard in guards):
        return False
    free = [part for part in blocks if part.get_id() not in source.named]
    fresh = {part.get_id(): z3.Int(f"{part} of the store") for part in free}
    wanted = load.address.z3 + offset
    for thread in _threads(known):
        chosen = [(part, fresh[part.get_id()]) for part in free] + [(each, thread) for each in threads]
        indices = _block_of(known, wanted, z3.substitute(store.address.z3, *chosen), list(fresh.values()))
        if indices is None:
            continue

        here = z3.Int("the wanted address")
        claims = [here == store.address.z3]
        claims += [z3.And(part >= 0, part < theirs.extents[part.get_id()]) for part in free]
        claims += [z3.And(each >= 0, each < theirs.contract.launch.threads) for each in threads]
        claims += [as_condition(guard) for guard in guards]
        goals = [z3.substitute(z3.substitute(z3.substitute(claim, *chosen), *indices), (here, wanted)) for claim in claims]
        if all(known.proves(load.path, goal) for goal in goals):
            return True
    return False


def _threads(known: Knowledge) -> list[z3.ArithRef]:
    """Candidates for the storing thread: the loading one, and its index modulo powers of two."""
    own = known.thread["x"].z3
    powers = [1 << place for place in range(MAX_THREADS.bit_length()) if 1 << place < known.contract.launch.threads]
    return [own, *[own % power if power > 1 else z3.IntVal(0) for power in powers]]


def _block_of(
    known: Knowledge, wanted: z3.ArithRef, address: z3.ArithRef, parts: Sequence[z3.ArithRef]
) -> list[tuple[z3.ArithRef, z3.ArithRef]] | None:
    """Parts of the index of the block that stores to a wanted address; None if they do not follow from it."""
    replaced: list[tuple[z3.ArithRef, z3.ArithRef]] = []
    form, goal = known.polynomials.of(address), known.polynomials.of(wanted)
    last: tuple[z3.ArithRef, int] | None = None
    for part in parts:
        places = [(monomial, number) for monomial, number in form.items() if part.get_id() in monomial]
        if len(places) != 1 or places[0][0].count(part.get_id()) != 1:
            return None
        ((monomial, number),) = places
        extent = list(monomial)
        extent.remove(part.get_id())
        if not extent:
            if last is not None or number <= 0:
                return None
            last = part, number
            continue
        index = _coefficient(known, goal, tuple(extent), number)
        if index is None:
            return None
        replaced.append((part, index))
    if last is not None:
        part, number = last
        rest = z3.substitute(address, *replaced, (part, z3.IntVal(0)))
        replaced.append((part, z3.simplify(wanted - rest, som=True) / number))
    return replaced


def _coefficient(known: Knowledge, form: dict[Monomial, int], extent: Monomial, number: int) -> z3.ArithRef | None:
    """The sum that a number of the problem is multiplied by, divided by a number; None if it is no multiple."""
    problem = {symbol.get_id() for symbol in known.contract.symbols.values()}
    total: z3.ArithRef = z3.IntVal(0)
    for monomial, times in form.items():
        left = list(monomial)
        if not all(left.count(factor) >= extent.count(factor) for factor in extent):
            continue
        for factor in extent:
            left.remove(factor)
        if any(node_of(known.polynomials.term(factor)).symbols <= problem for factor in left):
            continue
        if times % number:
            return None
        total = total + z3.Product(z3.IntVal(times // number), *map(known.polynomials.term, left))
    return total
