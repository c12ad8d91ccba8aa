"""Measures device time of instances on a GPU, beside a vendor library in the same run.

N launches are captured in a CUDA graph that rotates among enough sets of arrays for the inputs to exceed the L2; the
graphs of all contestants are replayed in turns, on random data; only checked kernels are timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.elements import to_elements
from gemmgen.core.errors import LaunchError, VerificationError
from gemmgen.kernels.family import Case, Cost, Expected, KernelPlan, Peer
from gemmgen.perf.agreement import agree, windows
from gemmgen.perf.clocks import ClockReader, Clocks
from gemmgen.perf.contestants import Contestant, capture_torch, measure_in_turns
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.perf.rotation import Rotation
from gemmgen.perf.timing import capture, new_stream
from gemmgen.runtime.arrays import bind
from gemmgen.runtime.cuda.driver import CudaError, LoadedBinary, call, release
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import compare_elements

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.toolchain.nvrtc import Binary

REFERENCE = "the family's reference"
FLUSHED = 2.0**-118
"""Size below which a peer may have 0 in place of a result. ``x / (1 + exp(-x))`` by CUDA's fast division is 0 where the divisor is above
2^126 (CUDA C++ Programming Guide, appendix "Mathematical Functions"): torch's silu(-88) is 0, the exact value -5e-37. There, |x| is
below 104, so the loss is below 104 / 2^126 < 2^-119; results that are rounded to bfloat16 are no larger than twice that."""
REFERENCE_OPERATIONS = 4e10
"""Limit of operations up to which a problem without a peer is checked against the family's reference on the CPU."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance to be timed, compiled for the device."""

    plan: KernelPlan
    binary: Binary


@dataclass(frozen=True, slots=True)
class Timing:
    """Device time of one launch in microseconds: median, and 10th and 90th percentile over the rounds."""

    name: str
    kind: Literal["candidate", "peer"]
    median_us: float
    p10_us: float
    p90_us: float
    operations_per_second: float
    bytes_per_second: float
    checked: str
    """Reference that its result was compared with before it was timed, or why it was not."""
    launches_per_graph: int = 1
    """Launches that were timed together; graphs of all contestants take about the same time."""

    @property
    def spread_us(self) -> float:
        """The distance between the percentiles."""
        return self.p90_us - self.p10_us

    @property
    def us(self) -> float:
        """The median."""
        return self.median_us

    @property
    def range_us(self) -> tuple[float, float]:
        """The percentiles."""
        return self.p10_us, self.p90_us


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two contestants of one run. ``speedup`` is the other's median time over that of ``name``."""

    name: str
    other: str
    speedup: float
    verdict: Literal["faster", "slower", "tie"]
    """``tie`` if the medians differ by no more than the larger spread."""


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """Measurement: its subject, its device, its method."""

    problem: dict[str, int]
    scalars: dict[str, float]
    device: str
    compute_capability: tuple[int, int]
    driver: str
    cuda: tuple[int, int]
    date: str
    """UTC, ISO 8601."""
    clocks: Clocks
    inputs: Literal["rotated beyond the L2", "resident in the L2"]
    buffer_sets: int
    input_bytes: int
    """Bytes of the inputs of all sets."""
    l2_bytes: int
    rounds: int
    timings: tuple[Timing, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]

    @property
    def conditions(self) -> str:
        """The device, its clock, the date and the method in a few words, for people."""
        clock = f", SM clock {self.clocks.sm_median:.0f} MHz" if self.clocks.sm_median else ""
        return f"{self.device}{clock}, {self.date}, {self.inputs}, median of {self.rounds} rounds"

    @property
    def clock_rates(self) -> dict[str, float | None]:
        """Medians in MHz, by the names that sweeps record; None for one that is not known."""
        return {"sm_clock_mhz": self.clocks.sm_median, "memory_clock_mhz": self.clocks.memory_median}

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def benchmark(
    candidates: Sequence[Candidate],
    problem: Mapping[str, int],
    *,
    scalars: Mapping[str, float] | None = None,
    ordinal: int = 0,
    with_peer: bool = True,
    l2_resident: bool = False,
    rounds: int = 50,
    seed: int = 0,
) -> BenchmarkReport:
    """Times ``candidates`` of one family on one problem, and the family's peer if torch is there.

    ``problem`` holds a value for every dimension; candidates share the layout of their arrays. ``l2_resident`` uses one
    set of arrays instead of as many as exceed twice the L2. Before anything is timed, each candidate's result on small
    integers, which every summation order gives exactly, is compared with the peer's, or with the family's reference.

    Runs in this process. Raises ``EnvironmentMissing`` without a GPU, ``LaunchError`` if a candidate cannot be launched
    on the problem or faults, ``VerificationError`` if a result is wrong.
    """
    from gemmgen.runtime.cuda.driver import current_device, gpu

    if not candidates:
        raise LaunchError("there is nothing to time: no candidate was given")
    _require_same_arrays(candidates)
    device = gpu(ordinal)
    clocks = ClockReader(device.pci_bus_id)
    defaults = [candidate.plan.sequence.default_scalars for candidate in candidates]
    values = {name: value for each in defaults for name, value in each.items()} | dict(scalars or {})
    known = {scalar.name for candidate in candidates for scalar in candidate.plan.sequence.scalars}
    if unknown := sorted(set(values) - known):
        raise LaunchError(f"no candidate has a scalar argument {unknown[0]}; there are {', '.join(sorted(known)) or 'none'}")
    with ExitStack() as cleanup:
        cleanup.enter_context(current_device(ordinal))
        run = Contest(cleanup, candidates, dict(problem), values, ordinal, 0 if l2_resident else 2 * device.l2_bytes)
        run.prepare(with_peer, seed)
        samples, launches = run.measure(rounds, clocks.sample)
    cost = cost_model_of(candidates[0].plan.spec.kind).cost(candidates[0].plan, problem)
    timings = tuple(
        _timing(contestant, seconds, count, cost) for contestant, seconds, count in zip(run.contestants, samples, launches, strict=True)
    )
    beyond = not l2_resident and run.rotation.input_bytes > device.l2_bytes
    return BenchmarkReport(
        problem=dict(problem),
        scalars=values,
        device=device.name,
        compute_capability=device.compute_capability,
        driver=clocks.driver_version,
        cuda=device.cuda_version,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        clocks=clocks.summary(),
        inputs="rotated beyond the L2" if beyond else "resident in the L2",
        buffer_sets=run.rotation.count,
        input_bytes=run.rotation.input_bytes,
        l2_bytes=device.l2_bytes,
        rounds=len(samples[0]),
        timings=timings,
        comparisons=compare(timings),
        notes=tuple(dict.fromkeys(run.notes)),
    )


def compare(timings: Sequence[Timing]) -> tuple[Comparison, ...]:
    """Each candidate against the peer, and every later candidate against the first."""
    peers = [timing for timing in timings if timing.kind == "peer"]
    own = [timing for timing in timings if timing.kind == "candidate"]
    pairs = [(one, other) for one in own for other in peers] + [(one, own[0]) for one in own[1:]]
    return tuple(_compare(one, other) for one, other in pairs)


def _compare(one: Timing, other: Timing) -> Comparison:
    difference = other.median_us - one.median_us
    verdict: Literal["faster", "slower", "tie"] = "faster" if difference > 0 else "slower"
    if abs(difference) <= max(one.spread_us, other.spread_us):
        verdict = "tie"
    return Comparison(one.name, other.name, other.median_us / one.median_us, verdict)


def _timing(contestant: Contestant, seconds: Sequence[float], launches: int, cost: Cost) -> Timing:
    import numpy as np

    p10, median, p90 = (float(value) / launches for value in np.percentile(np.array(seconds), [10, 50, 90]))
    return Timing(
        name=contestant.name,
        kind=contestant.kind,
        median_us=median * 1e6,
        p10_us=p10 * 1e6,
        p90_us=p90 * 1e6,
        operations_per_second=cost.operations / median,
        bytes_per_second=cost.bytes / median,
        checked=contestant.checked,
        launches_per_graph=launches,
    )


def _require_same_arrays(candidates: Sequence[Candidate]) -> None:
    def layout(candidate: Candidate) -> list[tuple[Any, ...]]:
        arrays = [array for array in candidate.plan.sequence.arrays if array.role != "workspace"]
        return [(a.name, a.type, a.role, [str(s) for s in a.shape], [str(s) for s in a.strides]) for a in arrays]

    first = candidates[0]
    for other in candidates[1:]:
        if layout(other) != layout(first):
            raise LaunchError(f"{first.plan.name} and {other.plan.name} take different arrays, so that they cannot be timed together")


class Contest:
    """One problem on one device: the memory, the contestants, and the stream for their replays."""

    def __init__(
        self,
        cleanup: ExitStack,
        candidates: Sequence[Candidate],
        problem: dict[str, int],
        scalars: dict[str, float],
        ordinal: int,
        rotate_bytes: int,
    ) -> None:
        self.notes: list[str] = []
        self.contestants: list[Contestant] = []
        self._cleanup, self._problem, self._scalars, self._ordinal = cleanup, problem, dict(scalars), ordinal
        self._plan = candidates[0].plan
        self._model = cost_model_of(self._plan.spec.kind)
        self._calls: list[tuple[Candidate, Launcher, dict[str, int]]] = []
        self._bounds: dict[str, Expected] = {}
        self._windows: list[tuple[dict[str, tuple[slice, ...]], dict[str, Expected]]] = []
        self.rotation: Rotation = Rotation(cleanup, self._plan.sequence.arrays, problem, ordinal, rotate_bytes)
        for candidate in candidates:
            sequence = candidate.plan.sequence
            own = {scalar.name: scalars[scalar.name] for scalar in sequence.scalars if scalar.name in scalars}
            self._scalars |= bind(sequence, self.rotation.views(0), {**own, **problem}).scalars
            loaded = LoadedBinary(candidate.binary.cubin, candidate.binary.architecture, ordinal)
            cleanup.callback(loaded.unload)
            launcher = Launcher(loaded, sequence.resolve(problem), problem)
            if launcher.is_empty:
                raise LaunchError(f"{sequence.name} has nothing to do for {problem}: there is nothing to time")
            workspace: dict[str, int] = {}
            workspace_bytes, zero_bytes = sequence.workspace_bytes.evaluate(problem), sequence.workspace_zero_bytes.evaluate(problem)
            if workspace_bytes:
                pointer = int(call("cuMemAlloc", workspace_bytes))
                cleanup.callback(release, "cuMemFree", pointer)
                if zero_bytes:
                    call("cuMemsetD8", pointer, 0, zero_bytes)
                workspace = dict.fromkeys(sequence.workspace_names, pointer)
            self._calls.append((candidate, launcher, workspace))

    def prepare(self, with_peer: bool, seed: int) -> None:
        """Makes the contestants, checks them on small integers, and fills the arrays with random data."""
        import numpy as np

        torch = _torch() if with_peer else None
        if with_peer and torch is None:
            self.notes.append("no peer: torch is not installed or sees no GPU")
        self._make_stream(torch)
        rng = np.random.default_rng(seed)
        self._check(torch, rng)
        self.rotation.fill_random(rng)
        for name in self._places:
            values = self._place_values(name, rng)
            for index in range(self.rotation.count):
                self.rotation.upload(index, name, values)
        call("cuCtxSynchronize")
        self.contestants = [self._candidate(*entry) for entry in self._calls]
        for contestant in self.contestants:
            contestant.checked = self._checked
        peer = self._peer(torch, self._scalars, self.rotation.count)
        if peer is not None:
            self.contestants.append(peer)

    def measure(self, rounds: int, sample: Callable[[], None]) -> tuple[list[list[float]], list[int]]:
        """Seconds of each graph by contestant and round, and how many launches each contestant's graph holds.

        All graphs take about the same time, so that the cost of starting one weighs the same for slow and fast contestants.
        """
        for contestant in self.contestants:
            contestant.enqueue(0)
        self._synchronize()
        return measure_in_turns(self._stream, self.contestants, self.rotation.count, rounds, sample)

    def _make_stream(self, torch: Any) -> None:
        if torch is None:
            self._stream = new_stream(self._cleanup)
        else:
            # A stream of torch's, since torch's allocator has to know the stream that it captures on.
            self._torch_stream = torch.cuda.Stream(device=self._ordinal)
            self._stream = int(self._torch_stream.cuda_stream)

    def _candidate(self, candidate: Candidate, launcher: Launcher, workspace: dict[str, int]) -> Contestant:
        sets = range(self.rotation.count)
        values = [launcher.values(self.rotation.pointers(index) | workspace, self._scalars) for index in sets]
        return Contestant(
            name=candidate.plan.name,
            kind="candidate",
            enqueue=lambda index: launcher.launch(self._stream, *values[index]),
            capture=lambda enqueue: capture(self._cleanup, self._stream, enqueue),
        )

    def _peer(self, torch: Any, scalars: Mapping[str, float], sets: int) -> Contestant | None:
        """The vendor's library on the first ``sets`` sets; None, with a note, if there is none."""
        if torch is None:
            return None
        peers: list[Peer] = []
        stream = self._torch_stream
        with torch.cuda.stream(stream):
            for index in range(sets):
                made = self._model.peer(self._plan, self._problem, self.rotation.torch_tensors(index, torch), scalars)
                if isinstance(made, str):
                    self.notes.append(f"no peer: {made}")
                    return None
                peers.append(made)

        def enqueue(index: int) -> None:
            with torch.cuda.stream(stream):
                peers[index].run()

        def deliver(index: int) -> None:
            with torch.cuda.stream(stream):
                if (finish := peers[index].deliver) is not None:
                    finish()

        return Contestant(
            name=peers[0].name,
            kind="peer",
            deliver=deliver,
            enqueue=enqueue,
            capture=lambda work: capture_torch(self._cleanup, torch, stream, work),
            checked="the peer itself",
        )

    @property
    def _places(self) -> list[str]:
        """Arrays that say where others' elements belong, such as the ends of groups."""
        return [one.name for one in self.rotation.arguments if one.reads and not one.writes and one.type in ("s32", "s64")]

    def _place_values(self, name: str, rng: np.random.Generator) -> npt.NDArray[Any]:
        """Values of one of these as the family's verification fills it."""
        case = Case("benchmark", self._problem, dict(self._scalars), "integers")
        return oracle_of(self._plan.spec.kind).fill(self._plan, case, name, self.rotation.shape(name), rng)

    def _check(self, torch: object, rng: np.random.Generator) -> None:
        """Runs everything once on small integers in the first set; ``VerificationError`` if results differ."""
        scalars = {name: value if value in (-2, -1, 0, 1, 2) else type(value)(2) for name, value in self._scalars.items()}
        inputs = {
            argument.name: rng.integers(-2, 3, self.rotation.shape(argument.name))
            if not argument.type.startswith("u")
            else rng.integers(0, 3, self.rotation.shape(argument.name))
            for argument in self.rotation.arguments
            if argument.reads
        }
        inputs |= {name: self._place_values(name, rng) for name in self._places}
        self._fill(inputs)
        peer = self._peer(torch, scalars, 1)
        if peer is not None:

            def both(made: Contestant = peer) -> None:
                made.enqueue(0)
                if made.deliver is not None:
                    made.deliver(0)

            expected, against = self._outputs(both, inputs), peer.name
        elif self._model.cost(self._plan, self._problem).operations <= REFERENCE_OPERATIONS:
            expected = {name: result.value for name, result in self._reference(inputs, scalars).items()}
            against = REFERENCE
        else:
            self._checked = "not checked: no peer, and too large for the reference on the CPU"
            self.notes.append("results were not checked: no peer, and too large for the reference on the CPU")
            return
        bounded = False
        for candidate, launcher, workspace in self._calls:
            values = launcher.values(self.rotation.pointers(0) | workspace, scalars)
            got = self._outputs(partial(launcher.launch, self._stream, *values), inputs)
            for name, wanted in expected.items():
                compared = flushed(got[name], wanted) if peer is not None else wanted
                problem = first_difference(name, got[name], compared)
                if problem and not self._within_bounds(name, got[name], compared, inputs, scalars):
                    raise VerificationError(f"{candidate.plan.name} differs from {against}: {problem}")
                bounded |= bool(problem)
        self._checked = f"within the bound of {REFERENCE} on small integers" if bounded else f"equal to {against} on small integers"

    def _within_bounds(
        self,
        name: str,
        got: npt.NDArray[Any],
        peer: npt.NDArray[Any],
        inputs: Mapping[str, npt.NDArray[Any]],
        scalars: Mapping[str, float],
    ) -> bool:
        """True if results that are rounded even for integers, a mean or a SiLU, are within the bound of the reference: everywhere, or in a
        large problem on parts of it, and then as close to the peer's results elsewhere."""
        operations = self._model.cost(self._plan, self._problem).operations
        if operations <= REFERENCE_OPERATIONS:
            if not self._bounds:
                self._bounds = self._reference(inputs, scalars)
            return not compare_elements(name, got, self._bounds[name])[1]
        arguments = self.rotation.arguments
        if not self._windows:
            for window in windows(arguments, self._problem, operations):
                parts = {argument.name: window.part(argument) for argument in arguments}
                problem = self._problem | {window.dimension: window.count}
                read = {argument: array[parts[argument]] for argument, array in inputs.items()}
                self._windows.append((parts, self._reference(read, scalars, problem)))
        return bool(self._windows) and agree(name, got, peer, [(parts[name], found[name]) for parts, found in self._windows])

    def _fill(self, inputs: Mapping[str, npt.NDArray[Any]]) -> None:
        """The first set's inputs, and poison where results will be."""
        for argument in self.rotation.arguments:
            if argument.reads:
                self.rotation.upload(0, argument.name, inputs[argument.name])
            else:
                self.rotation.poison(0, argument.name)
        self._synchronize()

    def _outputs(self, launch: Callable[[], None], inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        self._fill(inputs)
        launch()
        self._synchronize()
        return {argument.name: self.rotation.download(0, argument.name) for argument in self.rotation.arguments if argument.writes}

    def _reference(
        self, inputs: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, float], problem: dict[str, int] | None = None
    ) -> dict[str, Expected]:
        """The family's results for these inputs; ``problem``: the dimensions, if they are not those that are timed."""
        import numpy as np

        from gemmgen.core.elements import numpy_type

        sizes = self._problem if problem is None else problem
        arrays = {
            argument.name: to_elements(argument.type, inputs[argument.name])
            if argument.reads
            else np.zeros([extent.evaluate(sizes) for extent in argument.shape], numpy_type(argument.type))
            for argument in self.rotation.arguments
        }
        return oracle_of(self._plan.spec.kind).reference(self._plan, Case("benchmark", sizes, scalars, "integers"), arrays)

    def _synchronize(self) -> None:
        try:
            call("cuCtxSynchronize")
        except CudaError as error:
            names = ", ".join(candidate.plan.name for candidate, _, _ in self._calls)
            raise LaunchError(f"{error}, while timing {names}") from None


def flushed(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The peer's results, with ``got`` where the peer has 0 and ``got`` is below ``FLUSHED``."""
    import numpy as np

    if got.dtype.kind != "f":
        return expected
    return np.where((expected == 0) & (np.abs(got) < FLUSHED), got, expected)


def first_difference(name: str, got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> str:
    """The first element in which two arrays differ, in words; empty if there is none. NaN differs from everything."""
    import numpy as np

    wrong = np.argwhere(~(got == expected))
    if not len(wrong):
        return ""
    where = tuple(int(index) for index in wrong[0])
    place = ", ".join(map(str, where))
    return f"{name}[{place}] is {got[where]}, expected {expected[where]}; {len(wrong)} of {got.size} elements differ"


def _torch() -> Any:
    """The module torch, if it can be imported and sees a GPU; else None."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        return None
    try:
        import torch
    except (ImportError, OSError, RuntimeError):
        return None
    return torch if torch.cuda.is_available() else None
