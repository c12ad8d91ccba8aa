"""Runs a kernel on the emulator on one problem that a proof says is wrong, to see whether it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.family import KernelPlan
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.case_arrays import require_memory
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

_CONFIRMING: Mapping[str, re.Pattern[str]] = {
    "memory": re.compile("out of bounds|write to read-only memory|misaligned address|invalid asynchronous copy"),
    "races": re.compile(".*( race|in flight|read-only load|unordered|too narrow|several threads store|outlives|fence)"),
    "once": re.compile("global memory race: write of .*(write|the same instruction)|several threads store the same value"),
    "progress": re.compile("divergent|deadlock|misused|barrier that not all|trap"),
}
"""Faults by the beginnings of their texts that show that a property does not hold. Another fault of the same run says nothing of it."""


def confirms(property_: str, fault: str) -> bool:
    """True if a fault, its title first, shows that a property does not hold."""
    pattern = _CONFIRMING.get(property_)
    return pattern is None or pattern.match(fault) is not None


def replay(plan: KernelPlan, binary: Binary, property_: str, example: Mapping[str, Any]) -> str:
    """The fault of a property that the emulator finds on a counterexample; empty if it finds none, or if the problem cannot be run."""
    cases = oracle_of(plan.spec.kind).cases(plan)
    if not cases:
        return ""
    case = replace(cases[0], name="counterexample", dimensions={**cases[0].dimensions, **example["problem"]}, offsets={}, seed=0)
    try:
        require_memory(plan, [case])
        result = verify_case(plan, binary, EmulatorBackend(), case)
    except GemmgenError:
        return ""
    return next((line for line in result.failure.strip().splitlines() if confirms(property_, line)), "")
