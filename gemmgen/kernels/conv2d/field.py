"""Convolutions over a finite field: the kernel in which each thread sums up by itself, on images in NHWC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gemmgen.emulator import residues
from gemmgen.kernels.conv2d.direct import DirectPlan
from gemmgen.kernels.conv2d.layouts import nchw32_to_nchw, reorder_filter, restore_filter, tap_sums
from gemmgen.kernels.conv2d.oracle import cases
from gemmgen.kernels.conv2d.reference import from_nchw, to_nchw
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.spec import DirectMainloop
from gemmgen.kernels.family import Case, FieldPart

_KEPT = ("kind", "zero_point", "bias", "residual", "alpha", "beta", "gamma", "activation", "epilogue")
_CASES = ("3 x 3, padding 1", "1 x 1", "2 x 2 tiles", "one tile")


def reference_spec(plan: FinishingPlan) -> dict[str, Any]:
    """The direct kernel with the same types, factors and operations; of one element a thread where the instance is a direct kernel."""
    spec = plan.spec
    fields = spec.model_dump(mode="json", exclude_unset=True)
    kept = {name: fields[name] for name in _KEPT if name in fields}
    if plan.unit:
        kept.pop("activation", None)
    return kept | {
        "mainloop": {
            "strategy": "direct",
            "pixels": 1 if not isinstance(plan, DirectPlan) or cast("DirectMainloop", spec.mainloop).pixels > 1 else 2,
        },
        "input": {"type": spec.input.type, "layout": "nhwc"},
        "output": {"type": "f32" if plan.unit else spec.output.type, "layout": "nhwc"},
        "convolution": {"groups": "argument"},
        "store": "direct",
        "label": "field_reference",
    }


def field_cases(plan: FinishingPlan) -> list[Case]:
    """A filter of 3 x 3 with a border, where the instance takes one."""
    found = cases(plan)
    names = {case.name: case for case in reversed(found)}
    return [next((names[name] for name in _CASES if name in names), found[0])]


def excluded(plan: FinishingPlan) -> str:
    """Nothing is left out."""
    return ""


def degree(plan: FinishingPlan) -> int:
    """Two factors and alpha; beta and the bias, gamma and the residual are of no higher degree."""
    return 3


def types(plan: FinishingPlan) -> dict[str, str]:
    """All elements count in full."""
    return {}


def polynomial(
    plan: FinishingPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]
) -> dict[str, npt.NDArray[Any]] | None:
    """Left to the plain kernel."""
    return None


def parts(plan: FinishingPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]) -> Iterator[FieldPart]:
    """The whole problem, its arrays in the layouts of the direct kernel."""
    spec, channels = plan.spec, case.dimensions["k"]
    filters = restore_filter(arrays["filter"], plan.filter_order)
    filters = (filters if filters.ndim == 4 else nchw32_to_nchw(filters))[:channels]
    given = {"x": _nhwc(to_nchw(arrays["x"], spec.input.layout)), "filter": np.asarray(reorder_filter(filters, "taps"))}
    if "z" in arrays:
        given["z"] = _nhwc(to_nchw(arrays["z"], spec.output.layout))
        if plan.unit:
            given["z"] = residues.of_integers(given["z"]).view(np.float32)
    sizes = {name: case.dimensions[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q")}
    sizes |= {name: value for name, value in case.dimensions.items() if name.startswith(("stride_", "padding_", "dilation_", "groups"))}

    def arrange(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(from_nchw(values.transpose(0, 3, 1, 2), spec.output.layout))

    yield FieldPart(sizes, {}, given, arrange=arrange, stored=_unit_bytes if plan.unit else None, whole=True)


def _unit_bytes(results: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Results as int8 where they are bounded on a scale of 128ths, before they are rounded (``templates/conv2d/output.cu.j2``)."""
    scaled = residues.multiplied(results, residues.of_float(1 / 128))
    units = residues.opaque("saturated", [scaled]).reshape(results.shape)
    low = residues.canonical(residues.multiplied(units, np.uint64(128)) + np.uint64(residues.of_float(1.5 * 2**23))) & np.uint64(0xFF)
    return (low - (low >> np.uint64(7))).astype(np.uint8).view(np.int8).astype(np.int64)


def _nhwc(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1))


def derived(plan: FinishingPlan, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Sums over the filter, which the caller computes from it."""
    if "tap_sums" not in arrays:
        return {}
    filters = restore_filter(arrays["filter"], plan.filter_order)
    filters = filters if filters.ndim == 4 else nchw32_to_nchw(filters)
    return {"tap_sums": tap_sums(filters)[..., : arrays["tap_sums"].shape[-1]]}


def unclaimed(plan: FinishingPlan) -> tuple[str, ...]:
    """Nothing is left out."""
    return ()
