"""Results that a kernel reads as well: no thread may read an element that another one stores.

Where no two threads store one element, it is enough that a thread that reads an element stores it itself.
"""

from __future__ import annotations

from gemmgen.proof.data import Access
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import NO_ARRAY, Verdict, place
from gemmgen.proof.values import conjunction

MILLISECONDS = 1000


def read_by_others(lifter: Lifter, once: Verdict) -> str:
    """Why an element may be read by one thread and stored by another; empty if none is. Workspaces have other rules."""
    arrays, accesses = lifter.known.contract.arrays, lifter.known.lifted.accesses
    for access in accesses:
        if access.space in ("global", "generic") and access.base is None:
            return f"{place(access)}: {NO_ARRAY}"
    elsewhere = [each for each in accesses if each.space == "global" and each.base not in arrays]
    for store in elsewhere:
        if store.writes:
            return f"{place(store)}: threads share the variable that it changes"
    for array in arrays.values():
        mine = [each for each in accesses if each.base == array.name]
        loads, stores = [each for each in mine if each.kind == "load"], [each for each in mine if each.writes]
        if array.workspace or not loads or not stores:
            continue
        for load in loads:
            if load.instruction.has("nc"):
                return f"{place(load)}: what it reads must not change while the kernel runs"
            if load.instruction.opcode == "cp":
                return f"{place(load)}: it may still read after the thread's next statements, which may store there"
            if not once.holds or not any(_is_stored_by_its_reader(lifter, load, store) for store in stores):
                return f"{place(load)}: another thread may store what it reads"
    return ""


def _is_stored_by_its_reader(lifter: Lifter, load: Access, store: Access) -> bool:
    known = lifter.known
    if store.kind != "store" or not isinstance(load.size, int) or not isinstance(store.size, int):
        return False
    assert load.address is not None and store.address is not None
    (rest, offset), (rest_, offset_) = known.polynomials.split(load.address.z3), known.polynomials.split(store.address.z3)
    if rest != rest_ or offset < offset_ or offset + load.size > offset_ + store.size:
        return False
    here = {condition if isinstance(condition, bool) else condition.get_id() for condition in load.path}
    missing = [each for each in store.path if (each if isinstance(each, bool) else each.get_id()) not in here]
    return all(known.proves(load.path, conjunction([each]), MILLISECONDS) for each in missing)
