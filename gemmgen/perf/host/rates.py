"""The roofs of this machine's processor, measured: fused multiply-adds a second, and bytes read from memory a second."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from gemmgen.core.cache import Cache
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.cpu import CpuArchitecture, cpu_architecture
from gemmgen.runtime.native.library import loaded_library
from gemmgen.toolchain.host import compile_c

CHAINS = 12
"""Chains of multiply-adds in ``rates.c``."""
TURNS = 400_000
READ_BYTES = 256 << 20
"""More than the last level of today's caches holds."""
ROUNDS = 5


@dataclass(frozen=True)
class HostRates:
    """Best rate of a number of threads together."""

    threads: int
    operations_per_second: float
    """Operations on float32; a fused multiply-add counts as two."""
    bytes_per_second: float


@cache
def _library(architecture: str) -> ctypes.CDLL:
    wanted = cpu_architecture(architecture)
    source = (resource_directory("templates") / "cpu_gemm" / "rates.c").read_text()
    options = ("-std=gnu11", "-O2", "-ffp-contract=fast", f"-DVECTOR_BYTES={wanted.vector_bytes}", *wanted.compiler_flags)
    library = loaded_library(compile_c(source, name="rates", architecture=wanted, options=options, cache=Cache()))
    library.fma_chains.argtypes = [ctypes.c_long, ctypes.c_void_p]
    library.read_floats.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return library


def turns_for(threads: int) -> int:
    """Turns of the chains: of several threads ten times as many, which is long beside the time in which they are handed their work."""
    return TURNS if threads == 1 else 10 * TURNS


def measure_rates(architecture: CpuArchitecture, threads: int) -> HostRates:
    """The rates of ``threads`` threads that all run at once; the best of a few rounds. Raises ``EnvironmentMissing`` without a compiler."""
    import numpy as np

    library = _library(architecture.name)
    out = np.zeros((threads, 64), np.float32)
    floats = READ_BYTES // 4 // threads
    memory = np.ones((threads, floats), np.float32)  # written, so that every page has its own memory
    turns = turns_for(threads)
    multiply = _best(threads, lambda index: library.fma_chains(turns, out[index].ctypes.data))
    read = _best(threads, lambda index: library.read_floats(memory[index].ctypes.data, floats, out[index].ctypes.data))
    operations = 2.0 * threads * turns * CHAINS * architecture.lanes
    return HostRates(threads, operations / multiply, 4.0 * threads * floats / read)


@contextmanager
def fma_operations(architecture: CpuArchitecture, threads: int) -> Iterator[tuple[Callable[[], object], float]]:
    """A call that does nothing but multiply-adds, on several threads, to be timed beside others, and its operations."""
    import numpy as np

    library, out = _library(architecture.name), np.zeros((threads, 64), np.float32)
    if threads == 1:
        turns = TURNS // 10
        yield lambda: library.fma_chains(turns, out.ctypes.data), 2.0 * turns * CHAINS * architecture.lanes
        return
    turns = turns_for(threads)
    with ThreadPoolExecutor(threads) as pool:
        places = [out[index].ctypes.data for index in range(threads)]
        yield (
            lambda: list(pool.map(lambda place: library.fma_chains(turns, place), places)),
            2.0 * threads * turns * CHAINS * architecture.lanes,
        )


def _best(threads: int, work: Callable[[int], None]) -> float:
    """The least time in which all threads did their work. One thread's counts without the time that the system gave to others."""
    best = float("inf")
    for _ in range(ROUNDS):
        if threads == 1:
            started = time.thread_time()
            work(0)
            best = min(best, time.thread_time() - started)
            continue
        barrier = threading.Barrier(threads + 1)

        def run(index: int, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            work(index)

        workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
        for worker in workers:
            worker.start()
        barrier.wait()
        started = time.perf_counter()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - started)
    return best
