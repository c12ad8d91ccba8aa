"""The elements of y: the operations one after the other, each with its error bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, FLOATS, to_numbers
from gemmgen.kernels.elementwise.access import axis_of
from gemmgen.kernels.elementwise.plan import ElementwisePlan
from gemmgen.kernels.epilogue.numbers import to_type, tracked
from gemmgen.kernels.epilogue.steps import Access, apply_steps
from gemmgen.kernels.family import Case, Expected


def reference(plan: ElementwisePlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """The expected y of one case."""

    def read(access: Access) -> npt.NDArray[Any]:
        if access.operand.per == "all":
            return np.asarray(case.scalars[access.name])
        values = to_numbers(access.stored, arrays[access.name])
        axis = axis_of(access.operand.per, plan.rank)
        return values if axis is None else values.reshape([-1 if one == axis else 1 for one in range(plan.rank)])

    with np.errstate(all="ignore"):
        values = tracked(to_numbers(plan.stored, arrays["x"]), ELEMENTS[plan.stored].computed_in)
        final = to_type(apply_steps(plan.steps, values, read), plan.output)
        value, bound = final.value, final.bound
        if final.kind in FLOATS:
            value = value.astype(np.float64)
            bound = bound + np.where((bound > 0) & (value != final.value), np.abs(np.spacing(value)), 0.0)
    return {"y": Expected(value, np.broadcast_to(bound, value.shape), signed_zeros=final.kind in FLOATS)}
