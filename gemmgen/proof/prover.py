"""Proves properties of the PTX of a launch sequence for every problem that its preconditions allow.

Trusted: the PTX reader and the meaning of single statements here, z3, ptxas, and that arrays lie in memory without wrapping around.
A statement that is not modelled leaves every property unproved.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.hardware.target import ARCHITECTURES, MAX_CLUSTER
from gemmgen.kernels.launch import KernelLaunch, LaunchSequence

if TYPE_CHECKING:
    from gemmgen.emulator.ptx.syntax import Function, Module
    from gemmgen.proof.obligations import Verdict

ASSUMED_BLOCKS = "no grid of more than 2^30 blocks"
ASSUMED_APART = "no two arrays overlap"
ASSUMED_RUNNING = "every block of a grid runs, whatever others wait for"
ASSUMED_ZERO = "counters and words of a workspace are 0 before a launch"
ASSUMED_LIMITS = "grids and shared memory are within the limits of a launch"
CONTRADICTED = "a run on the emulator contradicts the proof"
MAX_DEPTH = 64
"""Threads of a block along z, on every architecture."""
SECONDS = 60.0
"""Time for one kernel."""


@dataclass(frozen=True)
class Property:
    """One property of one kernel."""

    name: str
    meaning: str
    status: Literal["proved", "refuted", "unproved", "contradicted"]
    """Contradicted: it was proved, and a run shows a fault."""
    obligations: int
    proved: int
    reasons: tuple[str, ...] = ()
    """Statements that stand in the way."""
    counterexample: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class KernelProof:
    """The properties of one kernel of a sequence."""

    entry: str
    properties: tuple[Property, ...]
    seconds: float
    queries: int

    @property
    def proved(self) -> tuple[str, ...]:
        """Names of the properties that were proved."""
        return tuple(each.name for each in self.properties if each.status == "proved")

    def to_json(self) -> dict[str, Any]:
        """The result as plain data."""
        return asdict(self)


def domain(sequence: LaunchSequence) -> tuple[str, ...]:
    """The preconditions that a proof holds under, as formulas over the problem."""
    from gemmgen.proof.contract import assumed_apart

    bounds = [f"{dimension.minimum} <= {dimension.name} <= {dimension.maximum}" for dimension in sequence.dimensions]
    apart = [f"different elements of {name} have different addresses" for name in assumed_apart(sequence)]
    running = [ASSUMED_RUNNING, ASSUMED_ZERO] if _shares(sequence) else []
    sizes = [formula for launch in sequence.launches for formula in (*launch.grid[1:], launch.dynamic_shared_bytes)]
    limits = [ASSUMED_LIMITS] if any(formula.names for formula in sizes) else []
    arrays = [ASSUMED_APART] if len(sequence.arrays) > 1 else []
    conditions = [str(constraint.condition) for constraint in sequence.constraints]
    return (*bounds, *conditions, *arrays, *apart, *running, ASSUMED_BLOCKS, *limits)


def _shares(sequence: LaunchSequence) -> bool:
    """True if blocks may share results by a workspace."""
    return any(array.role == "workspace" for array in sequence.arrays)


def prove_kernel(sequence: LaunchSequence, launch: KernelLaunch, ptx: str, seconds: float = SECONDS) -> KernelProof:
    """The properties of one kernel. Raises ``EnvironmentMissing`` where z3 is not installed."""
    try:
        import z3  # noqa: F401
    except ImportError:
        raise EnvironmentMissing("proofs need z3: pip install 'gemmgen[proof]'") from None
    from gemmgen.emulator.ptx.parser import parse
    from gemmgen.proof.clusters import uses_cluster
    from gemmgen.proof.complete import complete
    from gemmgen.proof.contract import Contract, Inexpressible
    from gemmgen.proof.control import Unliftable
    from gemmgen.proof.coverage import coverage, product_of
    from gemmgen.proof.flags import ended_waits
    from gemmgen.proof.forms import is_understood
    from gemmgen.proof.handover import begun_early, handover
    from gemmgen.proof.in_place import read_by_others
    from gemmgen.proof.initialised import initialised
    from gemmgen.proof.lifting import Lifter
    from gemmgen.proof.obligations import MEANINGS, PROPERTIES, Verdict, memory, once, progress, races
    from gemmgen.proof.partial import never_stored
    from gemmgen.proof.protocols import verdicts as ring_verdicts
    from gemmgen.proof.rings import uses_rings
    from gemmgen.proof.slicing import with_floats
    from gemmgen.proof.solver import OutOfTime, Solver
    from gemmgen.proof.terms import forget_terms
    from gemmgen.proof.tickets import common_loads

    began = time.process_time()
    forget_terms()
    solver = Solver(seconds)
    verdicts: dict[str, Verdict] = {}
    obstacle = ""
    names: tuple[str, ...] = (*PROPERTIES, "initialised", *(["handover"] if _shares(sequence) else []))
    try:
        module = parse(ptx)
        entry = next((each for each in module.functions.values() if each.is_entry and each.name == launch.entry), None)
        if entry is None:
            raise Unliftable(None, f"the PTX has no kernel {launch.entry}")
        function = with_floats(entry)
        if function.problem is not None:
            raise Unliftable(None, str(function.problem).partition("\n")[0])
        other = next((each for each in function.body if not is_understood(each)), None)
        if other is not None:
            raise Unliftable(other, "this form of a statement is not modelled")
        product = product_of(sequence)
        names = (*names, "complete")
        if launch.cluster != (1, 1, 1) and _shares(sequence):
            raise Unliftable(None, "clusters of blocks that share a workspace are not modelled")
        required = function.directives.get("reqnctapercluster", ())
        if required and (*required, 1, 1)[:3] != launch.cluster:
            raise Unliftable(None, "a launch with other clusters than the kernel requires")
        if why := _no_launch(module, function, launch):
            raise Unliftable(None, why)
        contract = Contract(sequence, launch)
        if not contract.has_problem():
            raise Unliftable(None, "no problem with a block was found that fulfils the preconditions")
        if uses_rings(function) or uses_cluster(function):
            if product is not None:
                names = (*names, "coverage")
            verdicts |= ring_verdicts(sequence, launch, module, function, solver)
        else:
            lifter = Lifter(module, function, contract, solver)
            if product is not None:
                names = (*names, "coverage")
                lifter.known.tracks_data = True
            lifter.lift()
            if lifter.known.contradiction():
                raise Unliftable(None, "the facts about this kernel contradict each other")
            ended = ended_waits(lifter)
            verdicts["progress"] = progress(lifter, ended=ended)
            verdicts["memory"] = memory(lifter)
            inside = not verdicts["memory"].spaces & {"shared", "generic"}
            common = common_loads(lifter) if not _meets(verdicts["progress"]) else frozenset()
            with_loads = progress(lifter, common, ended) if common else verdicts["progress"]
            free = races(lifter, _meets(with_loads), inside)
            if common and free.holds:
                # By induction over barriers: up to one that threads miss there is no race, so that they load the same.
                verdicts["progress"] = with_loads
            elif common:
                verdicts["progress"] = progress(lifter, ended=ended)
            ordered = free.holds and verdicts["progress"].holds
            verdicts["once"] = once(lifter, verdicts["memory"], ordered and verdicts["memory"].holds)
            if why := read_by_others(lifter, verdicts["once"]):
                free.unproved.append(why)
            free.unproved += begun_early(lifter)
            verdicts["races"] = free  # only now: the time may be used up before
            missing = Verdict("initialised", unproved=["races and progress must be proved first"])
            before = initialised(lifter) if ordered else missing
            if _shares(sequence):
                ready = ordered and verdicts["memory"].holds
                missing = Verdict("handover", unproved=["memory, races and progress must be proved first"])
                verdicts["handover"] = handover(lifter, ended) if ready else missing
            if _shares(sequence) and ordered:
                handed_over = verdicts["handover"].holds
                before.unproved += never_stored(lifter, sequence, launch, module, handed_over=handed_over)
            verdicts["initialised"] = before
            ready = verdicts["progress"].holds
            missing = Verdict("complete", unproved=["progress must be proved first"])
            verdicts["complete"] = complete(lifter, ordered and verdicts["memory"].holds) if ready else missing
            if product is not None:
                ready = all(verdicts[name].holds for name in ("memory", "races", "progress"))
                missing = Verdict("coverage", unproved=["memory, races and progress must be proved first"])
                verdicts["coverage"] = coverage(lifter, product) if ready else missing
    except Unliftable as error:
        obstacle = str(error)
    except Inexpressible as error:
        obstacle = f"a precondition has no formula here: {error}"
    except OutOfTime:
        obstacle = f"the time is used up: {seconds:g} s"
    properties = []
    for name in names:
        verdict = verdicts.get(name)
        if verdict is None:
            properties.append(Property(name, MEANINGS[name], "unproved", 0, 0, (obstacle,)))
            continue
        status: Literal["proved", "refuted", "unproved"] = "proved" if verdict.holds else "unproved"
        example = asdict(verdict.counterexamples[0]) if verdict.counterexamples else None
        reasons = [*verdict.unproved]
        reasons += [f"seems not to hold at: {each.statement} {each.line}".strip() for each in verdict.counterexamples]
        properties.append(Property(name, MEANINGS[name], status, verdict.obligations, verdict.proved, tuple(reasons), example))
    return KernelProof(launch.entry, tuple(properties), time.process_time() - began, solver.queries)


def _no_launch(module: Module, function: Function, launch: KernelLaunch) -> str:
    """Why no device makes a launch: its block or its shared memory; empty if some may. Sizes that depend on the problem are assumed."""
    most, exact = function.directives.get("maxntid"), function.directives.get("reqntid")
    if (most and launch.threads > prod(most)) or (exact and (*exact, 1, 1)[:3] != launch.block):
        return "a launch with a block that the kernel does not allow"
    if len(function.parameters) != len(launch.arguments):
        return f"a launch with {len(launch.arguments)} arguments of a kernel with {len(function.parameters)} parameters"
    if launch.block[2] > MAX_DEPTH:
        return f"a block of {launch.block[2]} threads along z; a GPU has at most {MAX_DEPTH}"
    if prod(launch.cluster) > MAX_CLUSTER:
        return f"a cluster of {prod(launch.cluster)} blocks; a launch may ask for {MAX_CLUSTER}"
    static = sum(each.size for each in (*module.variables.values(), *function.variables) if each.space == "shared")
    dynamic = 0 if launch.dynamic_shared_bytes.names else launch.dynamic_shared_bytes.evaluate({})
    device = ARCHITECTURES.get(module.target)
    if device is None:
        return f"the limits of {module.target} are not known"
    if static > device.static_shared_bytes_per_block or static + dynamic > device.shared_bytes_per_block:
        return f"{static} static and {dynamic} dynamic bytes of shared memory are more than a block of {device.name} may have"
    return ""


def _meets(progress: Verdict) -> bool:
    """True if no barrier was found that some threads may miss."""
    return not any("barrier" in reason for reason in progress.unproved)


def prove_sequence(sequence: LaunchSequence, ptx: str, seconds: float = SECONDS) -> Sequence[KernelProof]:
    """The properties of every kernel of a sequence, each within so many seconds."""
    return tuple(prove_kernel(sequence, launch, ptx, seconds) for launch in sequence.launches)
