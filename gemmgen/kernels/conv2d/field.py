"""Convolutions over a finite field. NumPy sums the products, and the kernel in which each thread computes one result does the rest.

The finishing kernel has one pixel whose channels are the elements of y: its bias holds alpha times the sums, plus the bias. Where results
are integers, or there is a zero point or a further operand, the same kernel computes everything, on images in NHWC."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gemmgen.emulator import residues
from gemmgen.kernels.conv2d.direct import DirectPlan
from gemmgen.kernels.conv2d.layouts import WITH_ZEROS, nchw32_to_nchw, plain_filters, reorder_filter, restore_filter, tap_sums
from gemmgen.kernels.conv2d.oracle import bordered_tiles, each_case
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.reference import from_nchw, to_nchw
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.spec import DirectMainloop, NoActivation
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.family import Case, FieldPart

_SHARED_FIELDS = ("kind", "zero_point", "bias", "residual", "alpha", "beta", "gamma", "activation", "epilogue")
_BORDERED = ("3 x 3, padding 1", "1 x 1", "several blocks", "one below a tile", "one tile")
_CUT = ("pixels one above a tile", "columns and rows one above", "one above a tile", "2 x 2 tiles")


def reference_spec(plan: FinishingPlan) -> dict[str, Any]:
    """The direct kernel with the same types, factors and operations; of one element a thread where the instance is a direct kernel."""
    spec = plan.spec
    if _sums_in_numpy(plan):
        return _finishing_spec(plan)
    fields = spec.model_dump(mode="json", exclude_unset=True)
    shared_fields = {name: fields[name] for name in _SHARED_FIELDS if name in fields}
    if plan.unit:
        shared_fields.pop("activation", None)
    return shared_fields | {
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


def _sums_in_numpy(plan: FinishingPlan) -> bool:
    """True if y is a function of alpha times sums plus bias, and of z."""
    outputs = [array.name for array in plan.sequence.arrays if array.writes and array.role != "workspace"]
    return not (plan.exact or plan.spec.epilogue) and plan.spec.zero_point == "none" and outputs == ["y"]


def _finishing_spec(plan: FinishingPlan) -> dict[str, Any]:
    """The direct kernel of the same residual and activation, whose bias is the whole sum."""
    fields = plan.spec.model_dump(mode="json", exclude_unset=True)
    shared_fields = {name: fields[name] for name in ("kind", "residual", "gamma", "activation") if name in fields}
    if plan.unit:
        shared_fields.pop("activation", None)
    return shared_fields | {
        "mainloop": {"strategy": "direct", "pixels": 1},
        "alpha": "one",
        "beta": "one",
        "bias": "f32",
        "input": {"type": plan.spec.input.type, "layout": "nhwc"},
        "output": {"type": "f32" if plan.unit or residues.pairs.get() is not None else plan.spec.output.type, "layout": "nhwc"},
        "convolution": {"groups": "argument"},
        "store": "direct",
        "label": "field_finishing",
    }


def field_cases(plan: FinishingPlan) -> list[Case]:
    """A problem of several tiles of which the last is cut, with a border. Instances without such tiles have a filter of 3 x 3 with a
    border, where they take one, and several strips of which the last is cut; else the problem with most pixels. Problems without a
    result, as of an image that is smaller than an instance's filter, would show nothing."""
    if isinstance(plan, Conv2dPlan | WarpgroupPlan):
        tiles = list(bordered_tiles(plan))
        if tiles:
            return [next((case for case in tiles if _elements(plan, case) < residues.POISONED), tiles[-1])]
    cases: dict[str, Case] = {}
    for case in (case for case in each_case(plan) if case.dimensions["p"] * case.dimensions["q"] > 0):
        cases.setdefault(case.name, case)
        if _BORDERED[0] in cases and _CUT[0] in cases:
            break
    most = max(cases, key=lambda name: math.prod(cases[name].dimensions[extent] for extent in "npq"))
    chosen = [next(name for name in (*names, most) if name in cases) for names in (_BORDERED, _CUT)]
    return [cases[name] for name in dict.fromkeys(chosen)]


def _elements(plan: FinishingPlan, case: Case) -> int:
    """Elements of 16 bits."""
    arrays = [array for array in plan.sequence.arrays if array.role != "workspace" and residues.CODE_BITS.get(array.type) == 16]
    return sum(math.prod(extent.evaluate(case.dimensions) for extent in array.shape) for array in arrays)


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
    spec = plan.spec
    filters = plain_filters(arrays["filter"], plan.filter_order, case.dimensions)
    given = {"x": _nhwc(to_nchw(arrays["x"], spec.input.layout)), "filter": np.asarray(reorder_filter(filters, "taps"))}
    if "z" in arrays:
        given["z"] = _nhwc(to_nchw(arrays["z"], spec.output.layout))
        if plan.unit and given["z"].dtype != np.uint32:
            given["z"] = residues.of_integers(given["z"]).view(np.float32)
    if _sums_in_numpy(plan):
        yield _finishing(plan, case, filters, arrays, scalars)
        return
    sizes = {name: case.dimensions[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q")}
    sizes |= {name: value for name, value in case.dimensions.items() if name.startswith(("stride_", "padding_", "dilation_", "groups"))}

    def arrange(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(from_nchw(values.transpose(0, 3, 1, 2), spec.output.layout))

    yield FieldPart(sizes, {}, given, arrange=arrange, stored=_unit_bytes if plan.unit else None, whole=True)


def _finishing(
    plan: FinishingPlan, case: Case, filters: npt.NDArray[Any], arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]
) -> FieldPart:
    """One pixel with a channel for each element of y."""
    spec, sizes = plan.spec, case.dimensions
    images = _residues(to_nchw(arrays["x"], spec.input.layout), spec.input.type)
    total = _sums(images, _residues(filters, "s8" if spec.input.type == "u8" else spec.input.type), sizes)
    if spec.alpha == "argument":
        total = residues.multiplied(total, np.uint64(scalars["alpha"]))
    elif spec.alpha == "channel":
        total = residues.multiplied(total, residues.canonical(arrays["alpha"].view(np.uint32))[: sizes["k"]])
    if spec.bias != "none":
        bias = arrays["bias"]
        added = residues.of_integers(bias) if spec.bias == "s32" else bias.view(np.uint32)
        if spec.beta == "argument":
            added = residues.multiplied(added, np.uint64(scalars["beta"]))
        total = total + added[: sizes["k"]].astype(np.uint64)
    shape, count = total.shape, total.size
    given = {
        "x": np.zeros((1, 1, 1, 1), _WORDS[spec.input.type]),
        "filter": np.zeros((1, 1, count), _WORDS[spec.input.type]),
        "bias": residues.words(residues.canonical(total)).reshape(-1),
    }
    if "z" in arrays:
        z = _nhwc(to_nchw(arrays["z"], spec.output.layout))[..., : sizes["k"]].reshape(-1)
        given["z"] = residues.of_integers(z) if plan.unit and z.dtype != np.uint32 else z

    known = residues.pairs.get()

    def arrange(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        arranged = np.asarray(from_nchw(values.reshape(shape).transpose(0, 3, 1, 2), spec.output.layout))
        return arranged if known is None else _paired_bytes(known, arranged, plan.unit)

    stored = _unit_bytes if plan.unit else None
    if known is not None:
        stored = _units if plan.unit else _bounded
    copies = stored is not None and "z" not in arrays and (plan.unit or isinstance(spec.activation, NoActivation))
    pixel = {"n": 1, "c": 1, "h": 1, "w": 1, "k": count, "r": 1, "s": 1, "p": 1, "q": 1, "groups": 1}
    pixel |= {f"{name}_{axis}": int(name != "padding") for name in ("stride", "padding", "dilation") for axis in "hw"}
    return FieldPart(pixel, {}, given, arrange=arrange, stored=stored, whole=True, results={"y": given["bias"]} if copies else None)


_WORDS = {"s8": np.int8, "u8": np.uint8, "f16": np.uint16, "bf16": np.uint16}


def _residues(values: npt.NDArray[Any], type_name: str) -> npt.NDArray[np.uint64]:
    """Elements as canonical residues, if they are not residues already, of elements that are parts of words."""
    if values.dtype == np.uint32:
        return residues.canonical(values).reshape(values.shape)
    if type_name in ("s8", "u8"):
        return residues.of_integers(values).astype(np.uint64).reshape(values.shape)
    return residues.canonical(residues.of_codes(np.ascontiguousarray(values).view(np.uint16), type_name)).reshape(values.shape)


def _sums(images: npt.NDArray[np.uint64], filters: npt.NDArray[np.uint64], sizes: Mapping[str, int]) -> npt.NDArray[np.uint64]:
    """The convolution of images (n, c, h, w) with filters (k, c / groups, r, s), in NHWC."""
    groups, channels, n, p, q = sizes["groups"], sizes["k"], sizes["n"], sizes["p"], sizes["q"]
    rows, columns = sizes["padding_h"], sizes["padding_w"]
    padded = np.pad(images[:, : sizes["c"]], ((0, 0), (0, 0), (rows, rows), (columns, columns)))
    taps = []
    for r in range(sizes["r"]):
        for s in range(sizes["s"]):
            top, left = r * sizes["dilation_h"], s * sizes["dilation_w"]
            down, across = sizes["stride_h"], sizes["stride_w"]
            taps.append(padded[:, :, top : top + down * (p - 1) + 1 : down, left : left + across * (q - 1) + 1 : across])
    # (groups, n p q, taps, channels of a group)
    columns_of_group = np.stack(taps, -1).reshape(n, groups, -1, p, q, len(taps)).transpose(1, 0, 3, 4, 5, 2)
    factors = filters.reshape(groups, channels // groups, -1, len(taps)).transpose(0, 3, 2, 1)
    depth = factors.shape[1] * factors.shape[2]
    product = residues.matrix_product(columns_of_group.reshape(groups, n * p * q, depth), factors.reshape(groups, depth, -1))
    return product.transpose(1, 0, 2).reshape(n, p, q, channels)


_LARGE = 1.5 * 2**23
"""The number that is added to write an integer into the lowest bits of a sum."""


def _units(results: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Results that are bounded on a scale of 128ths, before the lowest byte is taken (``templates/conv2d/output.cu.j2``)."""
    scaled = residues.multiplied(results, residues.of_float(1 / 128))
    units = residues.opaque("saturated", [scaled]).reshape(results.shape)
    return residues.canonical(residues.multiplied(units, np.uint64(128)) + np.uint64(residues.of_float(_LARGE)))


def _bounded(results: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Results between -128 and 127, before the lowest byte is taken."""
    above = residues.opaque("max.f32", [results, residues.of_float(-128.0)], commutes=True)
    inside = residues.opaque("min.f32", [above, residues.of_float(127.0)], commutes=True).reshape(results.shape)
    return residues.canonical(inside.astype(np.uint64) + np.uint64(residues.of_float(_LARGE)))


def _unit_bytes(results: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Results as int8 on a scale of 128ths."""
    low = _units(results) & np.uint64(0xFF)
    return (low - (low >> np.uint64(7))).astype(np.uint8).view(np.int8).astype(np.int64)


def _paired_bytes(known: residues.Pairs, results: npt.NDArray[Any], unit: bool) -> npt.NDArray[Any]:
    """Results before their lowest bytes are taken as int8, two neighbours by one code."""
    codes = known.codes(results[..., 0::2], results[..., 1::2])
    if unit:
        codes = codes - (codes >> np.uint32(7) & np.uint32(0x0101))
    return np.ascontiguousarray(codes.astype(np.uint16)).view(np.int8).astype(np.int64)


def _nhwc(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1))


def derived(plan: FinishingPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The filter as the caller makes it: zeros wherever an order of lanes has more places than the filter elements, and sums of taps."""
    if plan.filter_order in WITH_ZEROS:
        return {"filter": reorder_filter(plain_filters(arrays["filter"], plan.filter_order, case.dimensions), plan.filter_order)}
    if "tap_sums" not in arrays:
        return {}
    filters = restore_filter(arrays["filter"], plan.filter_order)
    filters = filters if filters.ndim == 4 else nchw32_to_nchw(filters)
    return {"tap_sums": tap_sums(filters)[..., : arrays["tap_sums"].shape[-1]]}


def in_words(plan: FinishingPlan) -> tuple[str, ...]:
    """The factors, where they are int8, and results are rounded sums of their products, and an int8 residual."""
    names = {array.name for array in plan.sequence.arrays}
    alone = {"x", "filter", "y", "alpha", "bias", "z", "workspace"} >= names
    plain = _sums_in_numpy(plan) and plan.spec.input.type == "s8" and plan.filter_order not in WITH_ZEROS
    plain = plain and ("z" not in names or plan.spec.output.type == "s8")
    return tuple(name for name in ("x", "filter", "z") if name in names) if alone and plain else ()


def in_pairs(plan: FinishingPlan) -> tuple[str, ...]:
    """Results of 8 bits, which are packed into words."""
    return ("y",) if in_words(plan) and plan.spec.output.type == "s8" else ()


def unclaimed(plan: FinishingPlan) -> tuple[str, ...]:
    """Nothing is left out."""
    return ()
