"""Bytes and operations of a quantising kernel's launches, and the same by torch."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.kernels.family import Cost, Fetch, Peer, Work
from gemmgen.kernels.quantise.plan import QuantisePlan, moved_bytes

OPERATIONS = 3
"""Operations of an element: a maximum, a division, a conversion."""
REGISTERS = 40
REGISTERS_OF_TILES = 96
"""A lane keeps 64 elements of a block of 128 x 128."""


def cost(plan: QuantisePlan, problem: Mapping[str, int]) -> Cost:
    """Three operations an element; x, y and the scales cross the memory bus once."""
    return Cost(float(OPERATIONS * problem["m"] * problem["k"]), float(moved_bytes(plan, problem)), "fp32")


def fetches(plan: QuantisePlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
    """x once, or twice where its largest magnitude is not known at the first reading; y once."""
    elements = problem["m"] * problem["k"]
    twice = 2.0 if plan.spec.block in ("row", "tensor") else 1.0
    return Fetch("x", float(elements * plan.x.element_bytes), twice), Fetch("y", float(elements * plan.y.element_bytes), 1.0)


def executed_operations(plan: QuantisePlan, problem: Mapping[str, int]) -> float:
    """The operations of ``cost``: only blocks at edges have more lanes than elements."""
    return cost(plan, problem).operations


def work(plan: QuantisePlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launches of one problem."""
    elements = float(problem["m"] * problem["k"])
    works = []
    for index, launch in enumerate(plan.sequence.resolve(problem)):
        blocks = max(launch.grid[0], 1)
        last = index == plan.main_launch
        works.append(
            Work(
                blocks=blocks,
                threads=plan.threads,
                registers=REGISTERS_OF_TILES if plan.spec.block == "128x128" else REGISTERS,
                shared_bytes=0,
                steps=1.0,
                operations=OPERATIONS * elements / blocks,
                unit="fp32",
                issue=2.0,
                shared_clocks=0.0,
                loaded_bytes=elements / blocks * plan.x.element_bytes,
                in_flight=1.0,
                stored_bytes=elements / blocks * plan.y.element_bytes if last else 0.0,
                memory_bytes=float(moved_bytes(plan, problem)) if last else elements * plan.x.element_bytes,
                follows=last and plan.by_tensor,
                early=plan.spec.early_launch,
            )
        )
    return tuple(works)


def peer(plan: QuantisePlan, problem: Mapping[str, int], arrays: Mapping[str, object], scalars: Mapping[str, float]) -> Peer | str:
    """None: a library would round other quotients."""
    return "no library quantises with scales of blocks; gemmgen bench compares with the reference"
