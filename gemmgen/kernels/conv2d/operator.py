"""``gemmgen.ops.conv2d``: from the arrays and options of a call to the request that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from gemmgen.core.elements import BY_WORD, ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import pair
from gemmgen.kernels.conv2d.matcher import ACTIVATIONS, ALIGNMENT, CHANNELS, Conv2dRequest, complete_request
from gemmgen.kernels.conv2d.spec import MAX_STEP, AnyActivation, Input, NoActivation
from gemmgen.kernels.epilogue.activations import activations
from gemmgen.kernels.epilogue.operations import Formula, FormulaOutput, Operation
from gemmgen.kernels.requests import Interpretation, Layout, Result


def interpret(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: those of ``ops.conv2d``; ``filter_shape`` (k, c / groups, r, s); ``scaled``,
    ``bias_scaled``, ``residual_scaled``: whether alpha, beta, gamma differ from 1. Raises ``LaunchError``."""
    x = operands["x"]
    channels_last = len(x.shape) == 4
    _packed("x", x, ("s8", "u8", "f16", "bf16"))
    if not channels_last and (len(x.shape) != 5 or x.shape[4] != CHANNELS):
        need = "(n, c, h, w) with the channels side by side in memory, or NCHW32, (n, c / 32, h, w, 32); see gemmgen.layouts"
        raise LaunchError(f"conv2d: x has shape {x.shape}, need {need}")
    filter_type = "s8" if x.type == "u8" else x.type
    if "w" in operands and operands["w"].type != filter_type:
        raise LaunchError(f"conv2d: the filter has elements {_word(operands['w'].type)}, need {_word(filter_type)}")
    k, c_group, r, s = options["filter_shape"]
    if not all(options["filter_shape"]):
        raise LaunchError(f"conv2d: the filter has shape {options['filter_shape']}, need a channel in, a channel out and a tap at least")
    groups = options.get("groups", 1)
    if channels_last:
        n, h, w, c = x.shape
    else:
        n, blocks, h, w, _ = x.shape
        c = blocks * CHANNELS
    given = {"n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s, "groups": groups}
    for name in ("stride", "padding", "dilation"):
        steps = pair("conv2d", name, options.get(name, 0 if name == "padding" else 1))
        if max(steps) > MAX_STEP:
            raise LaunchError(f"conv2d: {name} is {max(steps)}, need at most {MAX_STEP}")
        given[f"{name}_h"], given[f"{name}_w"] = steps
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise LaunchError(f"conv2d: groups is {groups!r}, need a positive integer")
    if c_group * groups != given["c"]:
        raise LaunchError(f"conv2d: the filter has {c_group} input channels for {groups} groups, x has {given['c']}")
    of = Input.model_validate({"type": x.type, "layout": "nhwc" if channels_last else "nchw32"})
    layout = options.get("layout") or of.layout
    if layout not in ("nchw32", "nhwc", "nchw4"):
        raise LaunchError(f"conv2d: layout is {layout!r}, need nchw32, nhwc or nchw4")
    for extent, taps, way in (("h", "r", "h"), ("w", "s", "w")):
        reach = given[f"dilation_{way}"] * (given[taps] - 1) + 1
        padded = given[extent] + 2 * given[f"padding_{way}"]
        if reach > padded:
            raise LaunchError(f"conv2d: the filter reaches over {reach} elements along {way}, the padded image has {padded}")
    problem = complete_request(of, layout, given)
    bias = operands.get("bias")
    if bias is not None:
        _packed("bias", bias, ("s32", "f32"))
        if bias.shape != (k,):
            raise LaunchError(f"conv2d: bias has shape {bias.shape}, need ({k},)")
    alphas = operands.get("alpha")
    if alphas is not None:
        _packed("alpha", alphas, ("f32",))
        if alphas.shape != (k,):
            raise LaunchError(f"conv2d: alpha has shape {alphas.shape}, need ({k},), or a number")
    out = operands.get("out")
    wanted = options.get("output") or ELEMENTS[x.type].word
    kind = out.type if out is not None else BY_WORD.get(wanted)
    allowed = ("s8", "u8", "s32", "f32", "f16", "bf16")
    if kind is None or kind not in allowed:
        words = [_word(name) for name in allowed]
        raise LaunchError(f"conv2d: results have elements {kind or wanted!r}, need {', '.join(words[:-1])} or {words[-1]}")
    scaled = {"alpha": options.get("scaled"), "beta": options.get("bias_scaled"), "gamma": options.get("residual_scaled")}
    if kind == "s32" and (alphas is not None or any(scaled.values())):
        raise LaunchError("conv2d: int32 results are exact sums, which alpha, beta and gamma cannot scale")
    first, others = _activation(options.get("activation"))
    request = Conv2dRequest(
        tuple(problem.items()),
        kind,  # type: ignore[arg-type]
        layout,
        bias.type if bias is not None else "none",  # type: ignore[arg-type]
        "residual" in operands,
        bool(scaled["alpha"]),
        bool(scaled["beta"]),
        bool(scaled["gamma"]),
        first,
        of,
        alphas is not None,
        "tap_sums" in operands,
        (*others, *(options.get("epilogue") or ())),
        invariant=bool(options.get("batch_invariant")),
    )
    request = replace(request, named=_named(request, operands))
    for name in ("out", "residual"):
        array = operands.get(name)
        if array is not None:
            _packed(name, array, (kind,))
            if array.shape != request.output_shape():
                raise LaunchError(f"conv2d: {name} has shape {array.shape}, need {request.output_shape()} ({layout.upper()})")
    return Interpretation(request, (Result("out", request.output_shape(), kind),))


def _named(request: Conv2dRequest, operands: Mapping[str, Layout]) -> tuple[tuple[str, Layout | None], ...]:
    """The operands and further outputs of the epilogue's formulas. Raises ``LaunchError`` for those that have no place in a convolution."""
    layouts: list[tuple[str, Layout | None]] = []
    k = dict(request.problem)["k"]
    pixels = tuple(dict(request.problem)[name] for name in ("n", "p", "q"))
    shapes: Mapping[str, tuple[int, ...]] = {"channel": (k,), "row": (prod(pixels),), "result": request.output_shape(), "memory": (1,)}
    for one in request.epilogue:
        wanted = [(operand.name, str(operand.per), operand.stored or "f32") for operand in one.operands()]
        wanted += [(name, _place(output), output.type) for name, output in one.extra_outputs.items()]
        for name, per, kind in wanted:
            if per == "all":
                layouts.append((name, None))
                continue
            per = "channel" if per == "column" else per
            if per not in shapes:
                need = "a number, per row (a value for each pixel), per channel or per element"
                raise LaunchError(f"conv2d: {name} is per {per}, need {need}")
            layout = operands[name]
            if kind == "bool" and layout.type in ("u8", "s8"):  # calls see arrays of truth values as bytes
                layout = replace(layout, type="bool")
            _packed(name, layout, (kind,))
            others = {"memory": ((),), "row": (pixels,)}.get(per, ())
            if layout.shape not in (shapes[per], *others):
                need = " or ".join(map(str, (shapes[per], *others)))
                raise LaunchError(f"conv2d: {name} has shape {layout.shape}, need {need}, {_PLACES[per]}")
            layouts.append((name, Layout.packed(shapes[per], layout.type, layout.alignment) if others else layout))
    return tuple(layouts)


_PLACES = {"channel": "per channel", "row": "per pixel", "result": "per element", "memory": "one number"}


def _place(output: FormulaOutput) -> str:
    """The axis of a further output as operands have it."""
    if output.reduce is None:
        return "result"
    return {"all": "memory", None: "memory"}.get(output.per, str(output.per))


def _word(kind: str) -> str:
    return ELEMENTS[kind].word if kind in ELEMENTS else kind


def _packed(name: str, layout: Layout, types: tuple[str, ...]) -> None:
    if layout.type not in types:
        need = " or ".join(_word(kind) for kind in types)
        raise LaunchError(f"conv2d: {name} has elements {_word(layout.type)}, need {need}")
    plain = Layout.packed(layout.shape, layout.type)
    same = all(one == other for extent, one, other in zip(layout.shape, layout.strides, plain.strides, strict=True) if extent > 1)
    if not layout.is_empty and not same and len(layout.shape) == 4:
        raise LaunchError(
            f"conv2d: {name} must have its channels side by side in memory, pixel after pixel without gaps: torch.channels_last, or with "
            f"NumPy np.ascontiguousarray({name}.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)"
        )
    if not layout.is_empty and (not same or layout.alignment < ALIGNMENT):
        raise LaunchError(f"conv2d: {name} must be contiguous and start at a multiple of {ALIGNMENT} bytes; pass a contiguous copy")


def _activation(wanted: object) -> tuple[AnyActivation, tuple[Operation, ...]]:
    """The activation of a spec, and the operations after it, of an ``activation``. Raises ``LaunchError``."""
    if wanted == "none":
        return NoActivation(), ()
    activation = activations("conv2d", wanted, ACTIVATIONS)
    return (
        (activation[0], tuple(activation[1:]))
        if activation and not isinstance(activation[0], Formula)
        else (NoActivation(), tuple(activation))
    )
