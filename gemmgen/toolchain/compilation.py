"""From a plan to its binary."""

from __future__ import annotations

from typing import Any

from gemmgen.codegen.rendering import render
from gemmgen.core.cache import Cache
from gemmgen.kernels.family import KernelPlan
from gemmgen.toolchain.host import HostBinary, compile_c, has_compiled_c
from gemmgen.toolchain.nvrtc import Binary, cached_source, compile_source

COMPILE_OPTIONS = ("--fmad=false",)
"""Multiplications and additions are fused only where the source says so, so that every backend computes the same bits."""


def compile_plan(planned: KernelPlan) -> Binary:
    """The binary of a plan, for the plan's architecture, through the user's compile cache."""
    source = render(planned)
    return compile_source(
        source.text,
        architecture=planned.architecture.name,
        options=COMPILE_OPTIONS,
        name=source.file_name,
        cache=Cache(),
    )


def cached_plan(planned: KernelPlan) -> Binary | None:
    """The binary of a plan, if the user's compile cache has it."""
    source = render(planned)
    return cached_source(source.text, architecture=planned.architecture.name, options=COMPILE_OPTIONS, name=source.file_name, cache=Cache())


def host_plan_is_cached(planned: Any) -> bool:
    """True if the user's compile cache has the shared library of a plan. Raises ``EnvironmentMissing`` without a compiler."""
    return has_compiled_c(render(planned).text, architecture=planned.architecture, options=planned.compiler_options, cache=Cache())


def compile_host_plan(planned: Any, *, sanitize: bool = False) -> HostBinary:
    """The shared library of a plan for a processor, through the user's compile cache. Raises ``EnvironmentMissing`` without a compiler."""
    return compile_c(
        render(planned).text,
        name=planned.name,
        architecture=planned.architecture,
        options=planned.compiler_options,
        sanitize=sanitize,
        cache=Cache(),
    )
