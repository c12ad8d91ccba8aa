"""The strategies of GEMM, each a package whose parts are imported when they are first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.spec import GemmSpec

STRATEGIES = {
    "naive": "gemmgen.kernels.gemm.naive",
    "tiled": "gemmgen.kernels.gemm.simt",
    "gemv": "gemmgen.kernels.gemm.gemv",
    "mma_sync": "gemmgen.kernels.gemm.mma_sync",
    "wgmma": "gemmgen.kernels.gemm.wgmma",
    "tcgen05": "gemmgen.kernels.gemm.tcgen05",
    "narrow_weights": "gemmgen.kernels.gemm.narrow_weights",
    "split_precision": "gemmgen.kernels.gemm.split_precision",
    "remainders": "gemmgen.kernels.gemm.remainders",
}
"""The package of each strategy by its name in specs; float32 by smaller types is one strategy for every instruction,
float64 by 8-bit integers another.

The modules of a package: ``plan`` makes the plan, ``explain`` and ``pictures`` show it, ``cost`` counts its work, ``matching`` fits
specs to requests. A further strategy is a package, a mainloop in ``gemmgen.kernels.gemm.spec`` and a line here.
"""


def strategy_of(spec: GemmSpec) -> str:
    """The strategy that plans a spec."""
    arithmetic = getattr(spec.mainloop, "arithmetic", None)
    if arithmetic is not None and arithmetic.f64_by is not None:
        return "remainders"
    return "split_precision" if arithmetic is not None and arithmetic.f32_by is not None else spec.mainloop.strategy


@cache
def _module(package: str, name: str) -> ModuleType:
    return import_module(f"{package}.{name}")


def part_for(spec: GemmSpec, name: str) -> ModuleType:
    """A module of the strategy that plans a spec."""
    return _module(STRATEGIES[strategy_of(spec)], name)


@cache
def import_for_choice() -> None:
    """Imports the modules by which a choice compares instances of files with points, so that none is left for later choices."""
    for strategy in ("tiled", "gemv", "mma_sync", "wgmma"):
        for name in ("matching", "plan", "cost"):
            _module(STRATEGIES[strategy], name)


def part_of(plan: GemmPlan, name: str) -> ModuleType:
    """A module of the strategy that made a plan."""
    return _module(type(plan).__module__.rpartition(".")[0], name)
