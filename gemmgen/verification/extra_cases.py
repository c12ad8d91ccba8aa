"""Cases beyond those of a family's list: few mistakes show in them alone, so that certificates do without and ``gemmgen verify`` has them.

A kernel of a fixed number of blocks has more of them than a small problem has tiles, so that no block would take a second one:
launched with fewer blocks, the same code does. Deep cases are a family's own.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from gemmgen.codegen.rendering import render
from gemmgen.kernels.family import Case, InstancePlan, KernelPlan
from gemmgen.kernels.planning import plan as plan_of
from gemmgen.verification.case_arrays import MAX_CASE_BYTES, case_bytes
from gemmgen.verification.oracle import oracle_of

_SEVERAL_TILES = ("tiles of many steps", "2 x 3 tiles", "2 x 3 tiles of each of 2 problems", "primes")


def extra_cases(plan: InstancePlan) -> list[tuple[InstancePlan, Case]]:
    """Deep cases, and cases of several tiles for each block, each with the plan that it is launched by: of the same name and code."""
    if not isinstance(plan, KernelPlan) or plan.spec.sizes:
        return []
    deep = getattr(oracle_of(plan.spec.kind), "deep_cases", None)
    cases = [(plan, case) for case in deep(plan)] if deep is not None else []
    return [(launched, case) for launched, case in (*cases, *few_block_cases(plan)) if case_bytes(launched, case) <= MAX_CASE_BYTES]


def few_block_cases(plan: KernelPlan) -> list[tuple[KernelPlan, Case]]:
    """Cases of several tiles for each block; none for kernels whose blocks take one tile each, or whose code depends on their number."""
    few = with_few_blocks(plan) if shares_out_tiles(plan) else None
    if few is None:
        return []
    oracle = oracle_of(few.spec.kind)
    own = getattr(oracle, "cases_of_several_tiles", None)
    cases = {case.name: case for case in oracle.cases(few) if case.name in _SEVERAL_TILES}
    few_cases = [*cases.values(), *(own(few) if own is not None else [])]
    return [(few, replace(case, name=f"{case.name}, few blocks")) for case in few_cases if case_bytes(few, case) <= MAX_CASE_BYTES]


def shares_out_tiles(plan: KernelPlan) -> bool:
    """True for kernels of a fixed number of blocks, which take one tile after another."""
    return bool(getattr(getattr(plan.spec, "mainloop", None), "persistent_blocks", 0))


def with_few_blocks(plan: KernelPlan) -> KernelPlan | None:
    """The plan of a kernel that shares out tiles, launched with no more than two clusters; its name and entries stay.

    None if its code would be another.
    """
    cluster = max(prod(launch.cluster) for launch in plan.sequence.launches)
    spec: Any = plan.spec
    mainloop = spec.mainloop.model_copy(update={"persistent_blocks": 2 * cluster})
    few = plan_of(spec.model_copy(update={"mainloop": mainloop}), plan.architecture)
    assert isinstance(few, KernelPlan)
    if code_of(render(few).text).replace(few.name, plan.name) != code_of(render(plan).text):
        return None
    pairs = zip(few.sequence.launches, plan.sequence.launches, strict=True)
    launches = tuple(replace(launch, entry=own.entry) for launch, own in pairs)
    return replace(few, name=plan.name, sequence=replace(few.sequence, name=plan.sequence.name, launches=launches))


def code_of(source: str) -> str:
    """The lines of a source that have more than a comment, without comments and indentation."""
    lines = (" ".join(line.partition("//")[0].split()) for line in source.split("\n"))
    return "\n".join(line for line in lines if line)
