"""``gemmgen.ops.conv2d``: from the arrays and options of a call to the request that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pydantic

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.conv2d.matcher import ALIGNMENT, CHANNELS, Conv2dRequest
from gemmgen.kernels.conv2d.problem import complete
from gemmgen.kernels.conv2d.spec import AnyActivation, Conv2dSpec, Convolution
from gemmgen.kernels.epilogue.operations import Operation
from gemmgen.kernels.requests import Interpretation, Layout, Result

NAMES = ("conv2d",)


def interpret(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: those of ``ops.conv2d``; ``filter_shape`` (k, c / groups, r, s); ``scaled``,
    ``bias_scaled``, ``residual_scaled``: whether alpha, beta, gamma differ from 1. Raises ``LaunchError``."""
    x = operands["x"]
    _packed("x", x, ("s8",))
    if len(x.shape) != 5 or x.shape[4] != CHANNELS:
        raise LaunchError(f"conv2d: x has shape {x.shape}, need NCHW32: (n, c / 32, h, w, 32); see gemmgen.layouts.nchw_to_nchw32")
    if "w" in operands and operands["w"].type != "s8":
        raise LaunchError(f"conv2d: the filter has elements {operands['w'].type}, need int8")
    k, c_group, r, s = options["filter_shape"]
    groups = options.get("groups", 1)
    n, blocks, h, w, _ = x.shape
    given = {"n": n, "c": blocks * CHANNELS, "h": h, "w": w, "k": k, "r": r, "s": s, "groups": groups}
    for name in ("stride", "padding", "dilation"):
        pair = options.get(name, 0 if name == "padding" else 1)
        pair = (pair, pair) if isinstance(pair, int) else tuple(pair) if isinstance(pair, tuple | list) else ()
        least = 0 if name == "padding" else 1
        if len(pair) != 2 or any(isinstance(part, bool) or not isinstance(part, int) or part < least for part in pair):
            need = f"an integer of at least {least}, or one for rows and one for columns"
            raise LaunchError(f"conv2d: {name} is {options.get(name)!r}, need {need}")
        given[f"{name}_h"], given[f"{name}_w"] = pair
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise LaunchError(f"conv2d: groups is {groups!r}, need a positive integer")
    if c_group * groups != given["c"]:
        raise LaunchError(f"conv2d: the filter has {c_group} input channels for {groups} groups, x has {given['c']}")
    problem = complete(Conv2dSpec.model_construct(convolution=Convolution(groups="argument")), given)
    bias = operands.get("bias")
    if bias is not None:
        _packed("bias", bias, ("s32", "f32"))
        if bias.shape != (k,):
            raise LaunchError(f"conv2d: bias has shape {bias.shape}, need ({k},)")
    out = operands.get("out")
    kind = out.type if out is not None else {"int8": "s8", "int32": "s32", "float32": "f32"}.get(options.get("output", "int8"))
    layout = options.get("layout", "nchw32")
    if kind not in ("s8", "s32", "f32"):
        raise LaunchError(f"conv2d: results have elements {kind or options.get('output')!r}, need int8, int32 or float32")
    if layout not in ("nchw32", "nhwc", "nchw4"):
        raise LaunchError(f"conv2d: layout is {layout!r}, need nchw32, nhwc or nchw4")
    scaled = {"alpha": options.get("scaled"), "beta": options.get("bias_scaled"), "gamma": options.get("residual_scaled")}
    if kind == "s32" and any(scaled.values()):
        raise LaunchError("conv2d: int32 results are exact sums, which alpha, beta and gamma cannot scale")
    request = Conv2dRequest(
        tuple(problem.items()), kind, layout, bias.type if bias is not None else "none", "residual" in operands,  # type: ignore[arg-type]
        bool(scaled["alpha"]), bool(scaled["beta"]), bool(scaled["gamma"]), _activation(options.get("activation")),
    )  # fmt: skip
    for name in ("out", "residual"):
        array = operands.get(name)
        if array is not None:
            _packed(name, array, (kind,))
            if array.shape != request.output_shape():
                raise LaunchError(f"conv2d: {name} has shape {array.shape}, need {request.output_shape()} ({layout.upper()})")
    return Interpretation(request, (Result("out", request.output_shape(), kind),))


def _packed(name: str, layout: Layout, types: tuple[str, ...]) -> None:
    if layout.type not in types:
        words = {"s8": "int8", "s32": "int32", "f32": "float32"}
        need = " or ".join(words[kind] for kind in types)
        raise LaunchError(f"conv2d: {name} has elements {words.get(layout.type, layout.type)}, need {need}")
    plain = Layout.packed(layout.shape, layout.type)
    same = all(one == other for extent, one, other in zip(layout.shape, layout.strides, plain.strides, strict=True) if extent > 1)
    if not layout.is_empty and (not same or layout.alignment < ALIGNMENT):
        raise LaunchError(f"conv2d: {name} must be contiguous and start at a multiple of {ALIGNMENT} bytes; pass a contiguous copy")


@cache
def _adapter() -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(AnyActivation)


def _activation(wanted: Any) -> AnyActivation:
    fields = {"op": "none"} if wanted is None else {"op": wanted} if isinstance(wanted, str) else dict(wanted)
    try:
        found: AnyActivation = _adapter().validate_python(fields)
    except pydantic.ValidationError as error:
        raise LaunchError(f"conv2d: activation {wanted!r}: {error.errors(include_url=False)[0]['msg']}") from None
    if isinstance(found, Operation) and found.operands():
        raise LaunchError(f"conv2d: activation {wanted!r} reads more than the value; a spec's epilogue can have it")
    return found
