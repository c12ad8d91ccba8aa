"""Convolutions as requests: the arguments of ``ops.conv2d`` understood, and how an instance does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import pydantic

from gemmgen.core.errors import LaunchError, SpecError
from gemmgen.kernels.conv2d.problem import SIZE_NAMES, complete
from gemmgen.kernels.conv2d.spec import AnyActivation, Conv2dSpec, Convolution, NoActivation, Output
from gemmgen.kernels.epilogue.operations import Operation
from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request, Result, changed_fields, replaced, say_once

CHANNELS = 32
ALIGNMENT = 16
_PARAMETERS = tuple(Convolution.model_fields)
_NO_ACTIVATION = NoActivation()


@dataclass(frozen=True)
class Conv2dRequest(Request):
    """y = activation(alpha * convolution(x, filter) + beta * bias + gamma * z); all arrays lie without gaps."""

    kind: ClassVar[str] = "conv2d"
    problem: tuple[tuple[str, int], ...]
    """Every dimension by name."""
    output: Literal["s8", "s32", "f32"] = "s8"
    layout: Literal["nchw32", "nhwc", "nchw4"] = "nchw32"
    bias: Literal["none", "s32", "f32"] = "none"
    residual: bool = False
    alpha: bool = True
    """Whether alpha may be other than 1; the same for beta and gamma."""
    beta: bool = False
    gamma: bool = False
    activation: AnyActivation = _NO_ACTIVATION

    @property
    def sizes(self) -> tuple[int, ...]:
        known = dict(self.problem)
        return tuple(known[name] for name in SIZE_NAMES)

    @property
    def is_empty(self) -> bool:
        known = dict(self.problem)
        return 0 in (known["n"], known["k"], known["p"], known["q"])

    @property
    def traits(self) -> tuple[str, ...]:
        known = dict(self.problem)
        return (
            "" if known["groups"] == 1 else f"groups={known['groups']}",
            "" if known["dilation_h"] == 1 else f"dilation={known['dilation_h']}",
            "" if self.output == "s8" else self.output,
            "" if self.layout == "nchw32" else self.layout,
            "residual" if self.residual else "",
        )

    def output_shape(self) -> tuple[int, ...]:
        """Extents of y."""
        n, k, p, q = (dict(self.problem)[name] for name in ("n", "k", "p", "q"))
        return {"nchw32": (n, k // 32, p, q, 32), "nchw4": (n, k // 4, p, q, 4), "nhwc": (n, p, q, k)}[self.layout]


def fit_conv2d(spec: Conv2dSpec, request: Conv2dRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    known = dict(request.problem)
    depth = known["c"] // known["groups"] * known["r"] * known["s"]
    if depth > spec.maximum_depth:
        return f"it sums at most {spec.maximum_depth} products, the problem has {depth}"
    fixed = spec.convolution.model_dump()
    parameters: dict[str, Any] = {name: fixed[name] if fixed[name] in ("argument", known[name]) else "argument" for name in _PARAMETERS}
    if fixed["groups"] != "argument":
        parameters["groups"] = known["groups"]
    exact = request.output == "s32"
    changes: dict[str, Any] = {
        "convolution": Convolution(**parameters),
        "bias": request.bias,
        "residual": request.residual,
        "alpha": "one" if exact else "argument" if request.alpha else spec.alpha,
        "beta": "one" if exact else "argument" if request.beta else spec.beta,
        "gamma": "one" if exact else "argument" if request.gamma else spec.gamma,
        "activation": request.activation,
        "epilogue": (),
        "output": Output(type=request.output, layout=request.layout),
    }
    changed = replaced(spec, changes)
    blocks, y = known["c"] // CHANNELS, Layout.packed(request.output_shape(), request.output)
    arrays = {
        "x": ("x", Layout.packed((known["n"], blocks, known["h"], known["w"], CHANNELS), "s8")),
        "filter": ("w", Layout.packed((blocks // known["groups"], known["r"], known["s"], known["k"], CHANNELS), "s8")),
        "y": ("out", y),
    }
    if request.bias != "none":
        arrays["bias"] = ("bias", Layout.packed((known["k"],), request.bias))
    if request.residual:
        arrays["z"] = ("residual", y)
    given = {name: known[name] for name in (*_PARAMETERS, "n", "h", "w", "p", "q")}
    return Fit(changed, arrays, {"alpha": "alpha", "beta": "beta", "gamma": "gamma"}, given, changed_fields(spec, changed))


def interpret_conv2d(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
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


def packed_request(sizes: Sequence[int], options: Sequence[str]) -> Conv2dRequest:
    """A request from sizes and words: ``groups=2``, ``dilation=2``, ``s32``, ``nhwc``, ``residual``. Raises ``SpecError``."""
    given = dict(zip(SIZE_NAMES, sizes, strict=True))
    fields: dict[str, Any] = {}
    said: dict[str, str] = {}
    for option in options:
        name, _, number = option.partition("=")
        if name in ("groups", "dilation") and number.isdecimal() and 0 < int(number) < 2**20:
            say_once(said, name, option)
            given |= {"groups": int(number)} if name == "groups" else {"dilation_h": int(number), "dilation_w": int(number)}
        elif option in ("s8", "s32", "f32"):
            say_once(said, "output", option)
            fields["output"] = option
        elif option in ("nchw32", "nhwc", "nchw4"):
            say_once(said, "layout", option)
            fields["layout"] = option
        elif option == "residual":
            fields["residual"] = True
        else:
            need = "groups=N, dilation=N, s8, s32, f32, nchw32, nhwc, nchw4 or residual"
            raise SpecError(f"a convolution has no option {option!r}: need {need}")
    problem = complete(Conv2dSpec.model_construct(convolution=Convolution(groups="argument")), given)
    return Conv2dRequest(tuple(problem.items()), bias="s32", **{"alpha": fields.get("output") != "s32", **fields})
