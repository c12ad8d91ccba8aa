"""The same reduction in torch, on the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmgen.kernels.reduction.plan import ReductionPlan


def torch_reduction(plan: ReductionPlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[str, Any] | None:
    """A callable that writes the result as the kernel does; None where torch has no single operation for it."""
    import torch

    a, x = plan.arithmetic, arrays["X"]
    axis = 0 if plan.spec.shape in ("all", "columns") else 1
    if a.epilogue or plan.spec.prologue or a.state == "moments" or "Y" not in arrays:
        return None
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
    return None if call is None or not same_types else (f"torch.{a.operation}", call)
