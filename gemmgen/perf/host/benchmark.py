"""Times instances on this machine's processor, in turns with the libraries that are installed."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.errors import LaunchError, VerificationError
from gemmgen.core.extras import install_command
from gemmgen.hardware.cpu import host_name
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.perf.host.rates import HostRates, fma_operations, measure_rates
from gemmgen.runtime.native import LoadedLibrary
from gemmgen.toolchain.host import HostBinary

if TYPE_CHECKING:
    import numpy.typing as npt

MIN_TURN_SECONDS = 2e-4
"""Shorter calls are made several times in each turn."""
POLL_SECONDS = 0.005
MAX_POLL_SECONDS = 1.0
WARM_SECONDS = 0.01
"""Calls before each turn of several threads: processors that stood still take milliseconds to come back where they are virtual."""
TURN_SECONDS = 0.3
"""About as long as a turn of several threads takes beside its calls."""
BEST_PART = 25
"""Percentile of the times that stands for a contestant: on a shared machine, times above it mostly come from other processes."""


@dataclass(frozen=True)
class HostTiming:
    """The time of one call, in microseconds: the first quartile of all turns, the median, and the 90th percentile."""

    name: str
    kind: Literal["candidate", "peer"]
    us: float
    median_us: float
    p90_us: float
    operations_per_second: float
    of_fma_rate: float
    """Part of the rate of multiply-adds in the same rounds, the median."""

    @property
    def range_us(self) -> tuple[float, float]:
        """The first quartile and the 90th percentile."""
        return self.us, self.p90_us


@dataclass(frozen=True)
class HostReport:
    """Measurement: its subject, its device, its method."""

    problem: dict[str, int]
    threads: int
    processor: str
    date: str
    """UTC, ISO 8601."""
    clock: str
    rounds: int
    rates: HostRates
    fma_operations_per_second: float
    """Measured in turns with the contestants."""
    timings: tuple[HostTiming, ...]
    ratios: dict[str, dict[str, float]]
    """For each contestant the times of all others over its own: the median of the rounds' ratios, since a temporary
    slowdown of the machine affects whole rounds."""
    quartiles: dict[str, dict[str, tuple[float, float]]]
    """The first and the third quartile of those ratios."""

    @property
    def conditions(self) -> str:
        """The device, the date and the method in a few words, for people."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.processor}, {threads}, {self.date}, {self.clock}, first quartile of {self.rounds} rounds"

    def ratio(self, name: str, other: str) -> float:
        """Time of ``other`` over that of ``name``."""
        return self.ratios[name][other]

    @property
    def clock_rates(self) -> dict[str, float | None]:
        """Empty: processors' clocks are not read."""
        return {}

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def all_threads() -> int:
    """Number of threads that the process may run at a time."""
    return len(os.sched_getaffinity(0))


def benchmark_host(
    candidates: Sequence[tuple[CpuGemmPlan, HostBinary]],
    problem: Mapping[str, int],
    threads: int = 1,
    rounds: int = 50,
    with_peers: bool = True,
    seed: int = 0,
    names: Sequence[str] = (),
) -> HostReport:
    """Times ``candidates`` on one problem; they share the layout of their arrays. ``names``: their names in the report.

    Each contestant runs in each round, so that other load on the machine affects all of them. One thread is timed by its own
    processor time, which does not count while others have the processor; several are timed by the clock on the wall. Every result
    on small integers is compared with NumPy's before anything is timed. Raises ``VerificationError`` if one is wrong.
    """
    import numpy as np

    first = candidates[0][0]
    arrays = _arrays(first, problem, np.random.default_rng(seed))
    calls: dict[str, tuple[Literal["candidate", "peer"], Callable[[], object]]] = {}
    libraries = []
    for index, (plan, binary) in enumerate(candidates):
        if _layout(plan) != _layout(first):
            raise LaunchError(f"{first.name} and {plan.name} take different arrays, so that they cannot be timed together")
        library = LoadedLibrary(binary, plan.sequence)
        library.set_threads(threads)
        libraries.append(library)
        calls[names[index] if names else plan.name] = ("candidate", _call(library, plan, problem, arrays))
    if with_peers and not first.epilogue:
        calls |= {name: ("peer", call) for name, call in peers(first, arrays).items()}
    with limited_threads(threads):
        _check(first, calls, arrays)
        clock, clock_name = (time.thread_time, "processor time") if threads == 1 else (time.perf_counter, "wall clock")
        rates = measure_rates(first.architecture, threads)
        with fma_operations(first.architecture, threads) as (chains, operations):
            everyone = {name: call for name, (_, call) in calls.items()} | {"": chains}
            samples = in_turns(everyone, rounds, clock, alone=threads > 1)
    for library in libraries:
        library.set_threads(0)
    cost = cost_model_of(first.spec.kind).cost(first, problem)
    rate = operations / float(np.percentile(samples[""], BEST_PART))
    ratios = {name: {other: float(np.median(np.divide(samples[other], samples[name]))) for other in calls} for name in calls}
    spread = {name: {other: _quartiles(np.divide(samples[other], samples[name])) for other in calls} for name in calls}
    timings = []
    for name, (kind, _) in calls.items():
        seconds, median, p90 = (float(value) for value in np.percentile(samples[name], [BEST_PART, 50, 90]))
        done = cost.operations / seconds
        part = float(np.median(np.divide(samples[""], samples[name]))) * cost.operations / operations
        timings.append(HostTiming(name, kind, seconds * 1e6, median * 1e6, p90 * 1e6, done, part))
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return HostReport(dict(problem), threads, host_name(), date, clock_name, rounds, rates, rate, tuple(timings), ratios, spread)


def _quartiles(values: npt.NDArray[Any]) -> tuple[float, float]:
    import numpy as np

    first, third = (float(value) for value in np.percentile(values, [25, 75]))
    return first, third


def in_turns(
    calls: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float], alone: bool = False
) -> dict[str, list[float]]:
    """Seconds of one call of each, for every round; in each round each has its turn.

    ``alone``: it begins when no thread of another library is awake, and calls for a while before it is timed. OpenBLAS's threads wait
    for work by spinning, for a tenth of a second: as long as they do, they take the cores from the next contestant.
    """
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        repeats[name] = max(1, int(MIN_TURN_SECONDS / max(time.perf_counter() - started, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = repeats[name]
            if alone:
                wait_for_other_threads()
            warm = time.perf_counter() + (WARM_SECONDS if alone else 0.0)
            call()  # cache contents left by the previous one count for nobody
            while time.perf_counter() < warm:
                call()
            started = clock()
            for _ in range(count):
                call()
            samples[name].append((clock() - started) / count)
    return samples


def wait_for_other_threads() -> None:
    """A pause until no other thread of this process runs, a second at most."""
    end = time.perf_counter() + MAX_POLL_SECONDS
    before = _other_threads_time()
    while time.perf_counter() < end:
        time.sleep(POLL_SECONDS)
        now = _other_threads_time()
        if now - before < 0.02 * POLL_SECONDS:
            return
        before = now


def _other_threads_time() -> float:
    """Seconds that the process has run, but for this thread."""
    return time.process_time() - time.thread_time()


def peers(plan: CpuGemmPlan, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Callable[[], object]]:
    """The libraries that are installed, each as a call on the same arrays: NumPy's BLAS, and by way of torch its BLAS, which multiplies
    float32 there, and oneDNN, which makes a new result at every call."""
    import numpy as np

    a, b, c = arrays["A"], arrays["B"], arrays["C"]
    if plan.swapped:
        a, b, c = b.T, a.T, c.T
    calls: dict[str, Callable[[], object]] = {f"{blas_name()} (NumPy)": lambda: np.matmul(a, b, out=c)}
    if importlib.util.find_spec("torch") is not None:
        import torch

        left, right, out = (torch.from_numpy(array) for array in (a, b, c))
        name = "MKL" if torch.backends.mkl.is_available() else "BLAS"
        calls[f"{name} (torch)"] = lambda: torch.mm(left, right, out=out)
        if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            weights = right.t()
            calls["oneDNN (torch)"] = lambda: torch.ops.mkldnn._linear_pointwise(left, weights, None, "none", [], "")
    return calls


def blas_name() -> str:
    """The BLAS that NumPy uses."""
    import numpy as np

    try:
        known = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]  # type: ignore[index, call-overload, unused-ignore]
    except (KeyError, TypeError):
        return "BLAS"
    return "OpenBLAS" if "openblas" in str(known) else str(known)


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Sets the number of threads of the libraries' calls meanwhile."""
    if importlib.util.find_spec("threadpoolctl") is None:
        raise LaunchError(f"threadpoolctl is needed to tell other libraries how many threads to use: {install_command('cpu')}")
    import sys

    import threadpoolctl

    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    with threadpoolctl.threadpool_limits(threads):
        if torch is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)


def _arrays(plan: CpuGemmPlan, problem: Mapping[str, int], rng: Any) -> dict[str, npt.NDArray[Any]]:
    import numpy as np

    arrays = {}
    for argument in plan.sequence.arrays:
        shape = tuple(extent.evaluate(problem) for extent in argument.shape)
        strides = [stride.evaluate(problem) for stride in argument.strides]
        size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
        memory = np.empty(size + 16, np.float32)
        start = -memory.ctypes.data % 64 // 4
        whole = memory[start : start + size]
        view = np.lib.stride_tricks.as_strided(whole, shape, [4 * stride for stride in strides])
        view[...] = rng.integers(-4, 5, shape)
        arrays[argument.name] = view
    return arrays


def _layout(plan: CpuGemmPlan) -> list[tuple[str, ...]]:
    return [(a.name, str(a.shape), str(a.strides)) for a in plan.sequence.arrays]


def _call(
    library: LoadedLibrary, plan: CpuGemmPlan, problem: Mapping[str, int], arrays: Mapping[str, npt.NDArray[Any]]
) -> Callable[[], object]:
    """The function with its arguments converted once."""
    numbers = {**problem, **plan.sequence.default_scalars}
    types = library.function.argtypes
    values = []
    for argument, kind in zip(plan.sequence.parameters_of(0), types, strict=True):
        if isinstance(argument, ArrayArgument):
            values.append(ctypes.c_void_p(arrays[argument.name].ctypes.data))
        else:
            values.append(kind(numbers[argument.name]))
    function = library.function
    return lambda: function(*values)


def _check(plan: CpuGemmPlan, calls: Mapping[str, tuple[str, Callable[[], object]]], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Compares every result with that of the first; small integers have one result, for any order of the sum."""
    import numpy as np

    want = None if plan.epilogue else arrays["A"] @ arrays["B"]
    for name, (_, call) in calls.items():
        arrays["C"][...] = np.nan
        result = call()
        got = arrays["C"]
        if hasattr(result, "numpy"):
            got = result.numpy().T if plan.swapped else result.numpy()
        if want is None:
            want = got.copy()
        if not np.array_equal(got, want):
            raise VerificationError(f"{name} computes something else than NumPy")
