"""Fits of instances to requests: steps that strategies share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.epilogue.operations import Factor, argument_name
from gemmgen.kernels.epilogue.steps import numbered
from gemmgen.kernels.gemm.grouping import ENDS
from gemmgen.kernels.gemm.request import GemmRequest, alignment_elements, is_stored, vector_type
from gemmgen.kernels.gemm.scaling import Scales, scale_name
from gemmgen.kernels.gemm.spec import Alignment, GemmSpec, Multiples, Storage
from gemmgen.kernels.requests import MAX_ALIGNMENT, Fit, Layout, changed_fields, replaced

MARGIN_OF_TF32 = 1.1
"""Estimated time of an instance written for tf32, over that of one for smaller types with tiles of tf32, from which on this one is taken:
its times were measured for those types."""
VARIES = "it divides k in another way for another number of rows"


def divides_by_size(spec: GemmSpec) -> bool:
    """True if the division of k depends on the sizes of a problem."""
    return spec.decomposition.scheme == "stream_k" or getattr(spec.decomposition, "slices", 1) == "launch"


@dataclass(frozen=True)
class Placed:
    """A request in the storage order of an instance."""

    request: GemmRequest
    """The one that the instance computes: that which was asked for, or its transpose."""
    transpose: str
    row_major: Mapping[str, bool]
    """Storage order in which the instance reads a and b."""
    alignment: dict[str, int]

    @property
    def result_bytes(self) -> int:
        """Bytes that addresses of rows of C, or of columns, are multiples of."""
        return self.alignment["c"] * self.request.c.element_bytes


def placed(spec: GemmSpec, request: GemmRequest, transposed_c: bool = False) -> Placed | str:
    """The request in an instance's storage order, or the reason that there is none; ``transposed_c``: C is taken as its transpose."""
    row_major = spec.order == "row_major"
    if transposed_c or not is_stored(request.c, row_major):
        request = request.transposed
    if not is_stored(request.c, row_major):
        return "C is stored neither row-major nor column-major"
    if request.residual is not None and not is_stored(request.residual, row_major):
        return "the residual is not stored like the result"
    letters, orders = "", {}
    for name, layout, wanted in (("a", request.a, spec.transpose[0]), ("b", request.b, spec.transpose[1])):
        stored = (wanted == "n") == row_major
        if not is_stored(layout, stored):
            stored, wanted = not stored, "t" if wanted == "n" else "n"
        if not is_stored(layout, stored):
            return f"{name.upper()} is stored neither row-major nor column-major"
        letters += wanted
        orders[name] = stored
    named = {one.name: one.layout for one in request.named if one.per == "result" and one.layout is not None}
    for name, layout in named.items():
        if not is_stored(layout, row_major):
            return f"the epilogue's {name} is not stored like the result"
    elements = [*named.values()]
    like_c = [request.c] + ([] if request.residual is None else [request.residual])
    like_c += [layout for layout in elements if layout.type == request.c.type]
    # Results that TMA stores meet its alignment for every type.
    promised_c = MAX_ALIGNMENT // request.c.element_bytes if spec.store == "tma" else spec.alignment.c
    alignment = {
        "a": alignment_elements(spec.alignment.a, request.a, orders["a"]),
        "b": alignment_elements(spec.alignment.b, request.b, orders["b"]),
        "c": min(alignment_elements(promised_c, layout, row_major) for layout in like_c),
    }
    if request.second is not None:
        if not is_stored(request.second, orders["b"]):
            return "the two matrices are not stored alike"
        alignment["b"] = min(alignment["b"], alignment_elements(spec.alignment.b, request.second, orders["b"]))
    return Placed(request, letters, orders, alignment)


def changes_for(spec: GemmSpec, placed: Placed, truncated: bool = False, units: int = 1) -> dict[str, object]:
    """Fields of the spec that the request decides; ``truncated``: float32 factors are read as tf32; ``units``: elements of which C has a
    whole number in each row, or in each column if it is column-major."""
    request = placed.request
    extents = {"m": request.m, "n": request.n, "k": request.k}
    promised = {name: getattr(spec.multiple_of, name) for name in extents}
    along = "n" if spec.order == "row_major" else "m"
    promised[along] = lcm(promised[along], units)
    types = {"a": request.a.type, "b": request.b.type}
    if truncated:
        types = {name: "tf32" if kind == "f32" else kind for name, kind in types.items()}
    return {
        "transpose": placed.transpose,
        "alpha": "argument" if request.scaled else spec.alpha,
        "beta": "argument" if request.accumulates else spec.beta,
        "storage": Storage.model_validate({**types, "c": request.c.type}),
        "batch": "strided" if request.batched else "grouped" if request.groups is not None else "none",
        "grouping": request.grouping,
        "triangles": request.triangles,
        "alignment": Alignment.model_validate(placed.alignment),
        "multiple_of": Multiples(**{name: promised[name] if extent % promised[name] == 0 else 1 for name, extent in extents.items()}),
        "scales": Scales.model_validate({operand: by.stored(operand) for operand, by in request.block_scales}),
        "epilogue": request.epilogue,
        "dual": request.second is not None,
        "amax": request.amax,
    }


def fitted(
    spec: GemmSpec,
    request: GemmRequest,
    changes: Mapping[str, object],
    margin: float = 1.0,
    kept: Mapping[str, tuple[str, Layout]] | None = None,
) -> Fit:
    """The instance's spec with ``changes``, and the operands and numbers that its arguments are; ``kept``: arguments that callers keep."""
    changed = replaced(spec, changes)
    arrays = {"A": (request.operands[0], request.a), "B": (request.operands[1], request.b), "C": ("out", request.c)}
    arrays |= kept or {}
    scalars = {"alpha": "alpha", "beta": "beta"}
    factors = [operation for operation in request.epilogue if isinstance(operation, Factor)]
    for index, (factor, scale) in enumerate(zip(factors, request.scales, strict=True)):
        arrays[numbered("factor", index)] = (scale, _vector(request, factor.per, "f32"))
    if request.amax != "none":
        arrays["amax"] = ("amax", Layout.packed((1,), "f32", ELEMENTS["f32"].bytes))
    for operand, by in request.block_scales:
        arrays[scale_name(operand)] = (by.name, by.layout)
    if request.offsets is not None:
        arrays[ENDS[request.grouping.rows]] = ("offsets", request.offsets)
    if request.depths is not None:
        arrays["offsets"] = ("offsets", request.depths)
    if request.gather is not None:
        arrays["gather"] = ("gather", request.gather)
    if request.scatter is not None:
        arrays["scatter"] = ("scatter", request.scatter)
    if request.second is not None:
        arrays["B2"] = (request.second_operand, request.second)
    for operation in request.epilogue:
        if operation.op == "residual" and request.residual is not None:
            arrays["Z"] = ("residual", request.residual)
            scalars["gamma"] = "gamma"
        elif operation.op == "bias":
            per = operation.model_dump()["per"]
            if per == "all":
                scalars["bias"] = "bias"
            else:
                arrays["bias"] = ("bias", _vector(request, per, vector_type(request.c.type)))
    for one in request.named:
        if one.layout is None:
            scalars[argument_name(one.name)] = one.name
        else:
            kind = one.layout.type
            whole = one.per == "result" or one.reduced
            arrays[argument_name(one.name)] = (one.name, one.layout if whole else _vector(request, one.per, kind))
    margin *= MARGIN_OF_TF32 if changed.storage.a == "tf32" != spec.storage.a else 1.0
    return Fit(changed, arrays, scalars, derived=changed_fields(spec, changed), margin=margin)


def _vector(request: GemmRequest, per: str, kind: str) -> Layout:
    """Values for each row or column, of each group if there are groups, or the only one."""
    shape: tuple[int, ...] = ({"row": request.m, "column": request.n, "group": request.groups or 0}.get(per, 1),)
    if per == "column" and request.groups is not None:
        shape = (request.groups, *shape)
    return Layout.packed(shape, kind, ELEMENTS[kind].bytes)


def multiply_add_fit(spec: GemmSpec, request: GemmRequest) -> Fit | str:
    """The fit of an instance by multiply-adds whose blocks have tiles of C."""
    if request.amax != "none":
        return "it does not look for the largest absolute value"
    if request.groups is not None:
        return "it has no groups of rows"
    fit = placed(spec, request)
    return fit if isinstance(fit, str) else fitted(spec, fit.request, changes_for(spec, fit))
