"""Convolutions as requests: the arguments of ``ops.conv2d`` understood, and how an instance does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gemmgen.core.errors import SpecError
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.problem import SIZE_NAMES, complete
from gemmgen.kernels.conv2d.spec import AnyActivation, Conv2dSpec, Convolution, NoActivation, Output
from gemmgen.kernels.requests import Fit, Layout, Request, changed_fields, replaced, say_once

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
    """True if alpha may be other than 1; the same for beta and gamma."""
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


def fit(spec: Conv2dSpec, request: Conv2dRequest) -> Fit | str:
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


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> Conv2dRequest:
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


LAYERS = (
    # c, h = w, k, r = s, stride, padding
    (64, 56, 64, 1, 1, 0), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 1, 0), (256, 56, 64, 1, 1, 0), (256, 56, 128, 1, 1, 0),
    (128, 56, 128, 3, 2, 1), (128, 28, 512, 1, 1, 0), (256, 56, 512, 1, 2, 0), (512, 28, 128, 1, 1, 0), (128, 28, 128, 3, 1, 1),
    (512, 28, 256, 1, 1, 0), (256, 28, 256, 3, 2, 1), (256, 14, 1024, 1, 1, 0), (512, 28, 1024, 1, 2, 0), (1024, 14, 256, 1, 1, 0),
    (256, 14, 256, 3, 1, 1), (1024, 14, 512, 1, 1, 0), (512, 14, 512, 3, 2, 1), (512, 7, 2048, 1, 1, 0), (1024, 14, 2048, 1, 2, 0),
    (2048, 7, 512, 1, 1, 0), (512, 7, 512, 3, 1, 1),
)  # fmt: skip


def problem_grid(fine: bool) -> list[str]:
    """Every distinct layer after the first, for batches from one image to many."""
    batches = (16, 128, 1, 8, 64, 256) if fine else (16, 128)
    layers = {n: LAYERS if fine or n == batches[0] else LAYERS[1::3] for n in batches}
    return [f"{n},{c},{h},{h},{k},{r},{r},{stride},{padding}" for n in batches for c, h, k, r, stride, padding in layers[n]]


def operand_orders(plan: Conv2dPlan) -> Mapping[str, str]:
    """The order of the filter's output channels, as ``gemmgen.layouts.reorder_filter`` knows it."""
    return {"w": plan.filter_order}
