"""Runs a kernel on the emulator on one problem that a proof says is wrong, to see whether it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.family import KernelPlan
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.case_arrays import require_memory
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case


def replay(plan: KernelPlan, binary: Binary, problem: Mapping[str, int]) -> str:
    """The fault that the emulator finds on a problem; empty if the kernel is right there, or if the problem cannot be run."""
    cases = oracle_of(plan.spec.kind).cases(plan)
    if not cases:
        return ""
    case = replace(cases[0], name="counterexample", dimensions={**cases[0].dimensions, **problem}, offsets={}, seed=0)
    try:
        require_memory(plan, [case])
        result = verify_case(plan, binary, EmulatorBackend(), case)
    except GemmgenError:
        return ""
    return result.failure
