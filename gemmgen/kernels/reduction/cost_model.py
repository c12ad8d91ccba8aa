"""The work of a reduction's launches, for the model of their time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.family import Cost, Fetch, Peer, Work
from gemmgen.kernels.reduction.plan import BlockLayout, ColumnLayout, LaneLayout, ReductionPlan
from gemmgen.kernels.reduction.tensor import TensorLayout

BASE_REGISTERS = 24


def work(plan: ReductionPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
    """The launches of one problem. A step of a block is as many elements as its loads bring at a time."""
    resolved = plan.sequence.resolve(problem)
    if not resolved:
        return ()
    main = resolved[1 if plan.finish == "atomic" and len(resolved) > 1 else 0]
    blocks = main.grid[0] * main.grid[1] * main.grid[2]
    size = ELEMENTS[plan.arithmetic.stored].bytes
    outer, reduced, inner = plan.extents(problem)
    results = outer * inner
    elements = float(reduced * results)
    tile = _tile(plan, results)
    stored = ELEMENTS[plan.arithmetic.output].bytes * results / max(blocks, 1) + plan.arithmetic.state_bytes
    # A warp's loads that do not fill their sectors cost whole ones.
    contiguous = _contiguous(plan, problem)
    waste = max(1.0, min(32 / size, 32 / max(contiguous * size, 1)))
    loaded = ceil_div(plan.vector_bytes, 4) if plan.packs else plan.vector * max(1, size // 4)
    registers = BASE_REGISTERS + plan.unroll * loaded + plan.accumulators * plan.arithmetic.state_registers
    share = elements / max(blocks, 1)
    wide_loads = isinstance(plan.layout, TensorLayout) and plan.vector > 1
    work = [
        Work(
            blocks=blocks,
            threads=plan.threads,
            registers=min(255, registers),
            shared_bytes=plan.shared_bytes,
            steps=max(1.0, share / tile),
            operations=2.0 * min(tile, share) * _state_cost(plan),
            unit=_unit(plan),
            issue=1.0 if wide_loads else 2.0,
            shared_clocks=0.0,
            loaded_bytes=min(tile, share) * size * waste,
            in_flight=2.0 if wide_loads else 1.0,
            stored_bytes=stored,
            memory_bytes=elements * size + results * ELEMENTS[plan.arithmetic.output].bytes,
            turns=2 if plan.finish in ("last_block", "first_block") and problem.get("parts", 2) > 1 else 1,
            early=plan.early_launch,
        )
    ]
    if plan.finish in ("two_pass", "atomic") and len(resolved) > 1:
        other = resolved[1] if plan.finish == "two_pass" else resolved[0]
        count = other.grid[0] * other.grid[1] * other.grid[2]
        partial = float(blocks * plan.arithmetic.state_bytes) / count
        early = plan.early_launch
        work.append(Work(count, other.block[0], 32, 0, 1.0, 0.0, "fp32", 1.0, 0.0, partial, 1.0, 8.0, 0.0, follows=True, early=early))
    return tuple(work)


def _state_cost(plan: ReductionPlan) -> float:
    """Operations on an element's state, in units of those on a number; kernels for tensors see the elements in order."""
    if plan.arithmetic.state in ("scalar", "large_sum", "norm"):
        return 1.0
    return 2.0 if isinstance(plan.layout, TensorLayout) else 4.0


def _tile(plan: ReductionPlan, results: int) -> float:
    """Elements that a block's loads bring at a time."""
    per_thread = plan.vector * plan.unroll
    if isinstance(plan.layout, LaneLayout):  # lanes whose row does not exist load nothing
        return float(plan.layout.lanes * per_thread * min(plan.layout.rows_per_block, max(results, 1)))
    if isinstance(plan.layout, TensorLayout):
        return float(plan.threads * per_thread * plan.layout.choice.columns)
    if isinstance(plan.layout, BlockLayout):
        per_thread = {"one": 1, "pair": 2}.get(plan.layout.loads, per_thread)
    return float(plan.threads * per_thread)


def _contiguous(plan: ReductionPlan, problem: Mapping[str, int]) -> int:
    """Neighbouring elements that neighbouring threads read."""
    if isinstance(plan.layout, TensorLayout):
        if plan.layout.flat:
            return plan.threads * plan.vector
        along, last = plan.layout.inner, plan.layout.reduced[-1]
        whole = problem[along] if plan.layout.contiguous or problem[f"{along}_stride"] == 1 else 1
        if plan.layout.keeps_inner and not plan.layout.contiguous and problem[f"{last}_stride"] == 1 and plan.unroll >= problem[last]:
            whole = max(whole, problem[last] * plan.threads)  # all of a row by the loads of a thread, which share their lines in the L1
        return whole
    if plan.strided:
        strides = {name: problem[f"stride_{name}"] for name in ("outer", "reduced", "inner")}
        along = "reduced" if isinstance(plan.layout, LaneLayout) else "inner"
        return problem[along] if strides[along] == 1 else 1
    if isinstance(plan.layout, ColumnLayout):
        return min(plan.layout.lanes * plan.vector, problem.get("inner", 1))
    if isinstance(plan.layout, LaneLayout):
        return min(plan.layout.lanes * plan.vector, problem["reduced"])
    return problem["reduced"]


def cost(plan: ReductionPlan, problem: Mapping[str, int]) -> Cost:
    """One operation and one read for each element, one write for each result."""
    outer, reduced, inner = plan.extents(problem)
    results = outer * inner
    elements = reduced * results
    stored = sum(ELEMENTS[array.type].bytes for array in plan.sequence.arrays if array.role == "output")
    read = ELEMENTS[plan.arithmetic.stored].bytes * elements
    return Cost(float(elements), float(read + stored * results), _unit(plan))


def _unit(plan: ReductionPlan) -> str:
    """The unit that combines elements; float64 has a separate one."""
    return "fp64" if plan.arithmetic.compute == "f64" else "fp32"


def fetches(plan: ReductionPlan, problem: Mapping[str, int]) -> tuple[Fetch, ...]:
    """All arrays once: no element serves two threads."""
    return (Fetch("all arrays", cost(plan, problem).bytes, 1.0),)


def executed_operations(plan: ReductionPlan, problem: Mapping[str, int]) -> float:
    """The operations of ``cost``: padding takes part in none."""
    return cost(plan, problem).operations


def peer(plan: ReductionPlan, problem: Mapping[str, int], arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> Peer | str:
    """torch's operation that writes the result as the kernel does, where there is a single one."""
    import torch

    a, x = plan.arithmetic, arrays["X"]
    axis = 0 if plan.spec.shape in ("all", "columns") else 1
    if a.epilogue or plan.spec.prologue or a.state == "moments" or "Y" not in arrays:
        return "torch has no single operation for it"
    target = arrays["Y"].reshape(()) if plan.spec.shape == "all" else arrays["Y"]
    with_out = {
        "sum": lambda: torch.sum(x, axis, dtype=target.dtype, out=target),
        "mean": lambda: torch.mean(x, axis, dtype=target.dtype, out=target),
        "min": lambda: torch.amin(x, axis, out=target),
        "max": lambda: torch.amax(x, axis, out=target),
        "argmin": lambda: torch.argmin(x, axis, out=target),
        "argmax": lambda: torch.argmax(x, axis, out=target),
        "logsumexp": lambda: torch.logsumexp(x, axis, out=target),
        "l2_norm": lambda: torch.linalg.vector_norm(x, 2, axis, out=target),
        "l1_norm": lambda: torch.linalg.vector_norm(x, 1, axis, out=target),
        "product": lambda: torch.prod(x, axis, dtype=target.dtype, out=target),
    }
    call = with_out.get(a.operation)
    same_types = a.stored == a.output or a.operation in ("sum", "mean", "product", "argmin", "argmax")
    if call is None or not same_types:
        return f"torch has no {a.operation} of {a.stored} into {a.output}"
    return Peer(f"torch.{a.operation}", call)
