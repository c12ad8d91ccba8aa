"""The vendor's GEMM on the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gemmgen.kernels.epilogue.steps import Access
from gemmgen.kernels.gemm.plan import GemmPlan


def cublas(plan: GemmPlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[str, Callable[[], None]] | None:
    """cuBLAS through torch, TF32 off: ``addmm`` into C, then the epilogue as separate torch operations; None for mixed types."""
    if len({matrix.type for matrix in (plan.matrix_a, plan.matrix_b, plan.matrix_c)}) > 1:
        return None
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    a, b, c = arrays["A"], arrays["B"], arrays["C"]
    alpha, beta = scalars.get("alpha", 1.0), scalars.get("beta", 0.0)

    combine = torch.baddbmm if plan.batched else torch.addmm

    def read(access: Access) -> Any:
        array = arrays.get(access.name, scalars.get(access.name))
        return array[:, None] if access.operand.per == "row" else array

    def run() -> None:
        if alpha == 1 and beta == 0:
            torch.matmul(a, b, out=c)
        else:
            combine(c, a, b, beta=beta, alpha=alpha, out=c)
        for step in plan.epilogue:
            result = step.operation.apply_torch(c, [read(access) for access in step.accesses])
            if result is not c:
                c.copy_(result)

    return ("cuBLAS (torch)" if not plan.epilogue else "cuBLAS + torch epilogue"), run
