"""Operations on rows as a kernel family."""

from __future__ import annotations

from gemmgen.kernels.family import Family
from gemmgen.kernels.rows.plan import RowsPlan, packed_problem, plan_rows
from gemmgen.kernels.rows.spec import RowsSpec

TYPICAL = {"m": 8192, "n": 4096}


def _instance_sizes(plan: RowsPlan) -> dict[str, int]:
    return {"m": TYPICAL["m"], "n": min(TYPICAL["n"], plan.most_columns)}


family = Family("rows", RowsSpec, plan_rows, tuple(TYPICAL), tuple(TYPICAL.values()), packed_problem, _instance_sizes)
