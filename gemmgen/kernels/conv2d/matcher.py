"""Convolutions as requests: the arguments of ``ops.conv2d`` understood, and how an instance does them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import pydantic

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import SpecError
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.conv2d.few_channels import chosen_rows
from gemmgen.kernels.conv2d.grouped import KNOWN, SLICE, grouped_tile, pixels_of_tile
from gemmgen.kernels.conv2d.layouts import FILLED_ELEMENTS, NEIGHBOURS, even
from gemmgen.kernels.conv2d.problem import SIZE_NAMES, complete, is_depthwise
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.spec import (
    MAX_STEP,
    AnyActivation,
    Conv2dSpec,
    Convolution,
    DirectMainloop,
    Element,
    FewChannelsMainloop,
    GroupedMainloop,
    Input,
    NoActivation,
    Output,
    TensorMemoryMainloop,
    WarpgroupMainloop,
)
from gemmgen.kernels.conv2d.warpgroup import StagedRows
from gemmgen.kernels.epilogue.operations import Operation, argument_name
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.problem_words import unknown_word
from gemmgen.kernels.requests import Fit, Layout, Request, changed_fields, replaced, say_once

CHANNELS = 32
ACTIVATIONS = ("relu", "leaky_relu", "h_swish")
"""Activations that a problem's words name."""
ALIGNMENT = 16
_PARAMETERS = tuple(Convolution.model_fields)
_NO_ACTIVATION = NoActivation()
_INPUT = Input()


INVARIANT_BATCHES = (1, 8, 64)
"""Numbers of images that an instance is chosen for whose results do not depend on the number."""


@dataclass(frozen=True)
class Conv2dRequest(Request):
    """y = activation(alpha * convolution(x, filter) + beta * bias + gamma * z); all arrays lie without gaps."""

    kind: ClassVar[str] = "conv2d"
    problem: tuple[tuple[str, int], ...]
    """Every dimension by name."""
    output: Element = "s8"
    layout: Literal["nchw32", "nhwc", "nchw4"] = "nchw32"
    bias: Literal["none", "s32", "f32"] = "none"
    residual: bool = False
    alpha: bool = True
    """True if alpha may be other than 1; the same for beta and gamma."""
    beta: bool = False
    gamma: bool = False
    activation: AnyActivation = _NO_ACTIVATION
    input: Input = _INPUT
    """The type and the layout of x."""
    alphas: bool = False
    """True if each output channel has a separate alpha."""
    zero_point: bool = False
    """True if a number other than 0 stands for zero in x."""
    epilogue: tuple[Operation, ...] = ()
    """Operations after the activation."""
    named: tuple[tuple[str, Layout | None], ...] = ()
    """Operands and further outputs of formulas among these, by name; None: a number."""
    invariant: bool = False
    """True if an image must give the same bits beside any number of others."""

    @property
    def companions(self) -> tuple[Conv2dRequest, ...]:
        if not self.invariant:
            return ()
        batches = ({**dict(self.problem), "n": images} for images in INVARIANT_BATCHES)
        return tuple(replace(self, problem=tuple(problem.items())) for problem in batches)

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
            "" if self.output == "s8" and not self._of_floats else self.output,
            "" if self.layout == self._usual_layout else self.layout,
            "bias" if self._of_floats and self.bias != "none" else "",
            "residual" if self.residual else "",
            "" if self.input.type == _input_type(self.output) else f"of_{self.input.type}",
            "" if self.input.layout == self._usual_layout else f"from_{self.input.layout}",
        )

    @property
    def _of_floats(self) -> bool:
        return ELEMENTS[self.input.type].is_float

    @property
    def _usual_layout(self) -> str:
        return "nhwc" if self._of_floats else "nchw32"

    def output_shape(self) -> tuple[int, ...]:
        """Extents of y."""
        n, k, p, q = (dict(self.problem)[name] for name in ("n", "k", "p", "q"))
        return {"nchw32": (n, k // 32, p, q, 32), "nchw4": (n, k // 4, p, q, 4), "nhwc": (n, p, q, k)}[self.layout]


def numeric_class_of(plan: KernelPlan, dimensions: Mapping[str, int]) -> str:
    """Each instance is a class: channels and taps are added up in an order that depends on neither the image nor their number."""
    return plan.name


def fit(spec: Conv2dSpec, request: Conv2dRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    known = dict(request.problem)
    depth = known["c"] // known["groups"] * known["r"] * known["s"]
    if depth > spec.maximum_depth and request.input.type in ("s8", "u8"):
        return f"it sums at most {spec.maximum_depth} products, the problem has {depth}"
    if not _takes(spec, request.input):
        return f"it takes {spec.input.type} in {spec.input.layout.upper()}, x is {request.input.type} in {request.input.layout.upper()}"
    fixed = spec.convolution.model_dump()
    parameters: dict[str, Any] = {name: fixed[name] if fixed[name] in ("argument", known[name]) else "argument" for name in _PARAMETERS}
    changes: dict[str, Any] = {}
    if isinstance(spec.mainloop, DirectMainloop):
        changes["input"] = request.input
        if is_depthwise(spec):
            vector = _neighbours(spec.mainloop, known)
            if vector is None:
                return "it convolves each of an even number of channels with one filter"
            if "nchw32" in (request.input.layout, request.layout) or request.layout != "nhwc":
                return "it takes and writes NHWC"
            changes["mainloop"] = spec.mainloop.model_copy(update={"channels": vector})
            parameters |= {name: known[name] for name in (*_UNROLLED, "c", "k", "groups")}
    elif isinstance(spec.mainloop, GroupedMainloop):
        if refusal := _not_grouped(request, known):
            return refusal
        changes["input"] = request.input
        # An image's bits must not depend on the number of others: one tile for all batches.
        rows, columns, parts = pixels_of_tile(known | {"n": min(known["n"], 1)} if request.invariant else known)
        changes["mainloop"] = spec.mainloop.model_copy(update={"rows": rows, "columns": columns, "parts": parts})
        parameters |= {name: known[name] for name in KNOWN}
    elif isinstance(spec.mainloop, FewChannelsMainloop):
        if refusal := _not_few_channels(request, known):
            return refusal
        changes["input"] = request.input
        changes["mainloop"] = chosen_rows(known)
        parameters |= {name: known[name] for name in KNOWN}
    elif spec.mainloop is not None:
        if known["groups"] != 1:
            if refusal := _not_wide_groups(spec.mainloop, request, known):
                return refusal
            parameters |= {name: known[name] for name in ("c", "k", "groups")}
        if isinstance(spec.mainloop, WarpgroupMainloop) and spec.mainloop.rows == "pixels":
            if request.output not in ("f16", "bf16") or request.layout != "nhwc" or known["groups"] != 1 or known["k"] % ROW_UNIT:
                return f"it writes multiples of {ROW_UNIT} channels of 16-bit floats in NHWC, in one group"
            changes["mainloop"] = with_channels(spec.mainloop, known["k"])
        if request.layout == "nchw4":
            return f"it does not write {request.layout.upper()}"
        if request.layout != "nhwc" and spec.mainloop.activations == "windows":
            return f"it does not write {request.layout.upper()}"
        if spec.mainloop.activations == "rows" and any(known[name] != fixed[name] for name in _POINTWISE):
            return "it takes filters of one tap, stride 1 and no padding"
        if spec.mainloop.activations == "windows" and any(known[name] != fixed[name] for name in _WINDOWS):
            return f"it takes filters of {fixed['s']} columns, without stride and dilation along them"
        widest = 2 if request.layout == "nhwc" else 1
        staged = ELEMENTS[request.output].bytes <= widest and known["k"] * ELEMENTS[request.output].bytes % ALIGNMENT == 0
        changes["input"] = request.input
        staged_as = spec.store if request.layout == "nhwc" else "shared"
        changes["store"] = staged_as if staged and ELEMENTS[spec.output.type].bytes <= 2 else "shared" if staged else "direct"
        if request.zero_point and spec.mainloop.activations in ("windows", "vectors"):
            return "it takes no zero point"
    elif request.alphas or request.zero_point:
        return "it takes one alpha for all output channels, and no zero point"
    if fixed["groups"] != "argument":
        parameters["groups"] = known["groups"]
    if beyond := [name for name, value in parameters.items() if value != "argument" and value > MAX_STEP]:
        return f"it is compiled for a {beyond[0]} of at most {MAX_STEP}"
    exact = request.output == "s32"
    changes |= {
        "convolution": Convolution(**parameters),
        "bias": request.bias,
        "zero_point": "argument" if request.zero_point else "none",
        "residual": request.residual,
        "alpha": "one" if exact else "channel" if request.alphas else "argument" if request.alpha else _one_factor(spec.alpha),
        "beta": "one" if exact else "argument" if request.beta else spec.beta,
        "gamma": "one" if exact else "argument" if request.gamma else spec.gamma,
        "activation": request.activation,
        "epilogue": request.epilogue,
        "output": Output(type=request.output, layout=request.layout),
    }
    changed = replaced(spec, changes)
    y = Layout.packed(request.output_shape(), request.output)
    arrays = _inputs(spec, request, known) | {"y": ("out", y)}
    if request.bias != "none":
        arrays["bias"] = ("bias", Layout.packed((known["k"],), request.bias))
    if request.residual:
        arrays["z"] = ("residual", y)
    if request.zero_point and not isinstance(spec.mainloop, DirectMainloop):
        arrays["tap_sums"] = ("tap_sums", Layout.packed((known["r"] + 1, known["s"] + 1, known["k"]), "s32"))
    if request.alphas:
        arrays["alpha"] = ("alpha", Layout.packed((known["k"],), "f32"))
    written = {name for one in request.epilogue for name in one.extra_outputs}
    for name, layout in request.named:
        if layout is not None:
            arrays[argument_name(name) if name in written else argument_name(name).lower()] = (name, layout)
    given = {name: known[name] for name in (*_PARAMETERS, "n", "h", "w", "p", "q")}
    factors = {name: name for name in ("alpha", "beta", "gamma", "zero_point")}
    factors |= {argument_name(name): name for name, layout in request.named if layout is None}
    return Fit(changed, arrays, factors, given, changed_fields(spec, changed))


ROW_UNIT = 8
"""Output channels of a vector of results, where rows are pixels."""


def with_channels(mainloop: WarpgroupMainloop, k: int) -> WarpgroupMainloop:
    """A mainloop whose rows are pixels with tiles that divide ``k`` output channels evenly, at most those of its tile, and as many stages
    as fit."""
    tile = mainloop.tile
    sharers = mainloop.cluster.blocks if mainloop.cluster is not None and mainloop.cluster.share == "filter" else 1
    channels = round_up(ceil_div(k, ceil_div(k, tile.channels)), ROW_UNIT * sharers)
    stage = (tile.pixels + channels) * ROW_BYTES
    staging = mainloop.consumers * StagedRows(channels, 2).group_bytes
    stages = min(MAX_STAGES, (SHARED_BYTES // mainloop.min_blocks_per_sm - staging - RESERVED_BYTES) // stage)
    changed = tile.model_copy(update={"channels": channels})
    return mainloop.model_copy(update={"tile": changed, "stages": max(2, stages)})


ROW_BYTES, SHARED_BYTES, RESERVED_BYTES, MAX_STAGES = 128, 227 << 10, 1280, 8
"""Bytes of a step of a pixel or a filter; shared memory of a multiprocessor, and what a block has beside its tiles; stages at most."""
_UNROLLED = ("r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w")
"""Fields that instances fix whose threads have several channels: their loops over taps are unrolled. They fix the channels too, by
which addresses then advance as constants."""


def _neighbours(mainloop: DirectMainloop, known: Mapping[str, int]) -> int | None:
    """Channels of a thread where each is convolved separately; None where they are not, or fill no vector."""
    if not known["groups"] == known["c"] == known["k"]:
        return None
    return next((vector for vector in (8, 4, 2) if vector <= mainloop.channels and known["c"] % vector == 0), None)


MAX_GROUPED = 128
"""Channels of a group up to which neighbouring groups share instructions where they do not fill them."""


def _not_grouped(request: Conv2dRequest, known: Mapping[str, int]) -> str:
    """Why the layer is not one of groups of few channels; empty if it is."""
    inputs, outputs = (known[name] // known["groups"] for name in ("c", "k"))
    if known["groups"] == 1:
        return "it takes several groups"
    if outputs % SLICE and (inputs != outputs or inputs > MAX_GROUPED):
        return f"it takes groups of as many output as input channels, up to {MAX_GROUPED}, or of a multiple of {SLICE} output channels"
    if inputs != outputs and inputs % 8:
        return "it takes a multiple of 8 input channels in a group"
    if known["c"] == known["groups"]:
        return "channels that are convolved one by one would share instructions with their neighbours"
    if known["c"] % 8:
        return "it takes multiples of 8 channels"
    return _not_floats_in_nhwc(request)


def _not_wide_groups(mainloop: WarpgroupMainloop | TensorMemoryMainloop, request: Conv2dRequest, known: Mapping[str, int]) -> str:
    """Why tiles of the instance would have channels of several groups; empty if each has those of one."""
    if isinstance(mainloop, TensorMemoryMainloop):
        return f"it convolves all channels together, the problem has {known['groups']} groups"
    tile, cluster = mainloop.tile, mainloop.cluster
    if known["c"] % (known["groups"] * tile.k) or known["k"] % (known["groups"] * tile.channels):
        return f"it takes groups of multiples of {tile.k} input and {tile.channels} output channels"
    if mainloop.activations == "vectors" or (cluster is not None and cluster.share == "pixels"):
        return "its blocks share pixels among channels of several groups"
    if "nchw32" in (request.input.layout, request.layout) or request.zero_point:
        return "it takes several groups in NHWC, without a zero point"
    return ""


def _not_few_channels(request: Conv2dRequest, known: Mapping[str, int]) -> str:
    """Why the layer is not one of few channels of which a row of taps is one sum; empty if it is."""
    if known["groups"] != 1 or known["dilation_w"] != 1:
        return "it takes one group, without dilation along the rows"
    return _not_floats_in_nhwc(request)


def _not_floats_in_nhwc(request: Conv2dRequest) -> str:
    if "nchw32" in (request.input.layout, request.layout) or request.layout != "nhwc":
        return "it takes and writes NHWC"
    return "" if request.output in ("f16", "bf16", "f32") else f"it does not write {request.output}"


def _takes(spec: Conv2dSpec, of: Input) -> bool:
    """True if the instance can be made for an x of this type and layout: of elements of the same size, walked through in the same way."""
    if spec.mainloop is None:
        return spec.input == of
    if isinstance(spec.mainloop, DirectMainloop):
        return True
    if isinstance(spec.mainloop, GroupedMainloop | FewChannelsMainloop):
        return ELEMENTS[of.type].is_float
    if of.layout == "nchw32" and ELEMENTS[of.type].is_float:
        return False
    same_size = ELEMENTS[spec.input.type].bytes == ELEMENTS[of.type].bytes
    return same_size and (spec.input.layout == of.layout or spec.mainloop.activations == "im2col")


_POINTWISE = ("r", "s", "stride_h", "stride_w", "padding_h", "padding_w")
_WINDOWS = ("s", "stride_w", "dilation_w")
"""Fields that instances fix which read x as a matrix of pixels, or share pixels among the taps of a row of the filter."""


def _one_factor(alpha: str) -> str:
    """Form of alpha where there is one for all channels."""
    return "argument" if alpha == "channel" else alpha


def _inputs(spec: Conv2dSpec, request: Conv2dRequest, known: Mapping[str, int]) -> dict[str, tuple[str, Layout]]:
    """x and the filter, in the order that the instance reads."""
    kind, c, blocks = request.input.type, known["c"], known["c"] // CHANNELS
    x: tuple[int, ...] = (known["n"], known["h"], known["w"], c)
    if request.input.layout == "nchw32":
        x = (known["n"], blocks, known["h"], known["w"], CHANNELS)
    filters: tuple[int, ...] = (blocks // known["groups"], known["r"], known["s"], known["k"], CHANNELS)
    if isinstance(spec.mainloop, FewChannelsMainloop):
        filters = (ceil_div(known["k"], 16), known["r"], ceil_div(known["s"] * even(c), 16), 32, 8)
    elif isinstance(spec.mainloop, GroupedMainloop):
        tile = grouped_tile(known, 1, 1, 1)
        slices = ceil_div(known["k"], tile.block) * tile.steps if tile.diagonal else known["k"] // SLICE
        filters = (slices, known["r"], known["s"], tile.steps, 32, 8)
    elif isinstance(spec.mainloop, DirectMainloop):
        filters = (known["r"], known["s"], c // known["groups"], known["k"])
    elif spec.mainloop is not None:
        staged = ELEMENTS[request.output].bytes == 1 and known["k"] % ALIGNMENT == 0
        rows = round_up(known["k"], NEIGHBOURS) if staged else known["k"]
        filters = (rows, known["r"], known["s"], c // known["groups"])
        if spec.mainloop.activations == "vectors":
            depth = known["r"] * known["s"] * c // known["groups"]
            filters = (rows, round_up(depth, FILLED_ELEMENTS))
    return {"x": ("x", Layout.packed(x, kind)), "filter": ("w", Layout.packed(filters, "s8" if kind == "u8" else kind))}


def _input_type(output: str) -> str:
    """The type of x where a problem names that of the results only."""
    return output if output in ("f16", "bf16") else "s8"


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> Conv2dRequest:
    """A request from sizes and words: ``f16``, ``groups=2``, ``dilation=2``, ``s32``, ``nhwc``, ``residual``. Raises ``SpecError``.

    Without a type it is of int8 with a bias, in blocks of 32 channels; of 16-bit floats, in NHWC, with a bias if ``bias`` is named.
    """
    given = dict(zip(SIZE_NAMES, sizes, strict=True))
    if given["stride_h"] == 0:
        raise SpecError("a convolution has stride_h 0, need at least 1")
    fields: dict[str, Any] = {}
    said: dict[str, str] = {}
    given_input: dict[str, Any] = {}
    with_bias = False
    for option in options:
        name, _, number = option.partition("=")
        if name in ("groups", "dilation") and number.isascii() and number.isdecimal() and 0 < int(number) < 2**20:
            say_once(said, name, option)
            given |= {"groups": int(number)} if name == "groups" else {"dilation_h": int(number), "dilation_w": int(number)}
        elif option in get_args(Element):
            say_once(said, "output", option)
            fields["output"] = option
        elif option in ("nchw32", "nhwc", "nchw4"):
            say_once(said, "layout", option)
            fields["layout"] = option
        elif option.startswith("of_") and option[3:] in ("s8", "u8", "f16", "bf16"):
            say_once(said, "type of x", option)
            given_input["type"] = option[3:]
        elif option in ("from_nhwc", "from_nchw32"):
            say_once(said, "layout of x", option)
            given_input["layout"] = option.removeprefix("from_")
        elif option == "bias":
            with_bias = True
        elif option == "residual":
            fields["residual"] = True
        elif option in ACTIVATIONS:
            say_once(said, "activation", option)
            fields["activation"] = pydantic.TypeAdapter(AnyActivation).validate_python({"op": option})
        else:
            need = "groups=N, dilation=N, a type of results (s8, u8, s32, f32, f16, bf16), nchw32, nhwc, nchw4, bias, residual, "
            need += f"{', '.join(ACTIVATIONS)}, of_s8, of_u8, of_f16, of_bf16, from_nhwc or from_nchw32"
            raise unknown_word("a convolution", option, re.findall(r"\w+", need), need)
    element = given_input.setdefault("type", _input_type(fields.get("output", "s8")))
    if ELEMENTS[element].is_float:
        given_input.setdefault("layout", "nhwc")
        fields = {"output": element, "layout": "nhwc", "bias": "f32" if with_bias else "none", "alpha": False, **fields}
    else:
        fields = {"bias": "s32", "alpha": fields.get("output") != "s32", **fields}
    of = Input(**given_input)
    problem = complete_request(of, fields.get("layout", "nchw32"), given)
    return Conv2dRequest(tuple(problem.items()), input=of, **fields)


def complete_request(of: Input, layout: str, given: Mapping[str, int]) -> dict[str, int]:
    """All dimensions of a problem, of which ``given`` has at least the sizes. Raises ``LaunchError`` if no layout holds the channels."""
    output = Output.model_construct(layout=layout, type="f32")  # results of 32 bits ask for nothing
    anything = DirectMainloop(strategy="direct")  # instances have their own constraints
    spec = Conv2dSpec.model_construct(
        convolution=Convolution(groups="argument"), input=of, output=output, store="direct", mainloop=anything
    )
    problem: dict[str, int] = complete(spec, given)
    return problem


LAYERS = (
    # c, h = w, k, r = s, stride, padding
    (64, 56, 64, 1, 1, 0),
    (64, 56, 64, 3, 1, 1),
    (64, 56, 256, 1, 1, 0),
    (256, 56, 64, 1, 1, 0),
    (256, 56, 128, 1, 1, 0),
    (128, 56, 128, 3, 2, 1),
    (128, 28, 512, 1, 1, 0),
    (256, 56, 512, 1, 2, 0),
    (512, 28, 128, 1, 1, 0),
    (128, 28, 128, 3, 1, 1),
    (512, 28, 256, 1, 1, 0),
    (256, 28, 256, 3, 2, 1),
    (256, 14, 1024, 1, 1, 0),
    (512, 28, 1024, 1, 2, 0),
    (1024, 14, 256, 1, 1, 0),
    (256, 14, 256, 3, 1, 1),
    (1024, 14, 512, 1, 1, 0),
    (512, 14, 512, 3, 2, 1),
    (512, 7, 2048, 1, 1, 0),
    (1024, 14, 2048, 1, 2, 0),
    (2048, 7, 512, 1, 1, 0),
    (512, 7, 512, 3, 1, 1),
)


def problem_grid(fine: bool) -> list[str]:
    """Every distinct layer after the first, for batches from one image to many."""
    batches = (16, 128, 1, 8, 64, 256) if fine else (16, 128)
    layers = {n: LAYERS if fine or n == batches[0] else LAYERS[1::3] for n in batches}
    return [f"{n},{c},{h},{h},{k},{r},{r},{stride},{padding}" for n in batches for c, h, k, r, stride, padding in layers[n]]


def operand_orders(plan: FinishingPlan) -> Mapping[str, str]:
    """The order of the filter's output channels, as ``gemmgen.layouts.reorder_filter`` knows it."""
    return {"w": plan.filter_order}
