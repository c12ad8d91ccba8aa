"""Accesses to global memory by the threads of a kernel with a ring, such as an epilogue that stores registers.

The statements of the ring compute no address outside of shared memory. They decide no branch, except for waits that are repeated until they
succeed. So this module skips them, and lifts the thread like a thread of any other kernel, with unknown outcomes of waits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gemmgen.emulator.ptx.syntax import Function, Instruction, Module
from gemmgen.proof.contract import Contract
from gemmgen.proof.control import Unliftable
from gemmgen.proof.in_place import read_by_others
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.obligations import NO_ARRAY, memory, once
from gemmgen.proof.rings import Findings
from gemmgen.proof.solver import OutOfTime, Solver


def note_direct_accesses(
    findings: Findings,
    module: Module,
    function: Function,
    contract: Contract,
    solver: Solver,
    direct: Sequence[Instruction],
    sent: Collection[str],
    fetched: Collection[str],
) -> Lifter | None:
    """Notes in ``findings`` whether the accesses ``direct`` lie within their arrays, store no element twice and read no output.

    Returns the threads as they were lifted; None if their accesses are not known.

    ``sent`` names the arrays that TMA stores to, ``fetched`` those that it loads: direct accesses to these stay unproved, but for loads of
    what TMA only loads. If the kernel cannot be lifted, or time runs out, the reason is noted with all properties of such accesses.
    """
    try:
        lifter = Lifter(module, function, contract, solver)
        lifter.known.of_ring = True
        lifter.lift()
        if lifter.known.contradiction():
            raise Unliftable(None, "the facts about this kernel contradict each other")
        within = memory(lifter)
        stored = once(lifter, within)
        verdicts = [within, stored]
        why = read_by_others(lifter, stored)
        findings.note("races", "read in place", not why, why)
    except (Unliftable, OutOfTime) as error:
        why = str(error) or "the time is used up"
        for name in ("memory", "once", "races", "initialised"):
            findings.note(name, "direct", False, f"{direct[0].text.strip()}: {why}")
        return None
    accesses = lifter.known.lifted.accesses
    seen = {id(access.instruction) for access in accesses}
    lost = next((each for each in direct if id(each) not in seen), None)
    for name in ("memory", "once", "races", "initialised"):
        findings.note(name, "direct", lost is None, "was not lifted", lost)
    for verdict in verdicts:
        reasons = [*verdict.unproved, *[f"seems not to hold at: {each.statement}" for each in verdict.counterexamples]]
        findings.note(verdict.name, ("direct", verdict.obligations), not reasons, reasons[0] if reasons else "")
        for reason in reasons[1:]:
            findings.note(verdict.name, ("direct", reason), False, reason)
    for access in accesses:
        name = access.base or ""
        array = contract.arrays.get(name)
        if access.writes:
            findings.note("once", ("direct", access.instruction.line), name not in sent, f"{name} is stored by TMA as well")
            workspace = array is not None and array.workspace
            findings.note("races", ("fetched", name), workspace or name not in fetched, f"{name} is read by TMA")
            continue
        if access.space in ("global", "generic") and access.base is None:
            findings.note("initialised", ("direct", access.instruction.line), False, NO_ARRAY, access.instruction)
        workspace = array is not None and array.workspace
        findings.note("races", ("sent", name), workspace or name not in sent, f"{name} is stored by TMA")
        if array is not None and array.role == "output":
            findings.note("initialised", ("direct", access.instruction.line), False, f"reads {name}, which nothing wrote before the kernel")
    return lifter if lost is None else None
