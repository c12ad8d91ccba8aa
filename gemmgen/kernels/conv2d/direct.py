"""Convolutions whose threads sum up by themselves: plan and launch sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.conv2d.checks import exact_reasons, mainloop_reasons
from gemmgen.kernels.conv2d.epilogue import plan_operations, saturation_of
from gemmgen.kernels.conv2d.problem import (
    COORDINATES,
    HELPER,
    MAX_EXTENT,
    OUTPUT_EXTENTS,
    channel_units,
    fixed_parameters,
    is_depthwise,
    most_products,
)
from gemmgen.kernels.conv2d.results import CONSTANT_NAMES, FinishingPlan, LayerConstant
from gemmgen.kernels.conv2d.sequence import filter_array, packed, single_launch
from gemmgen.kernels.conv2d.spec import Conv2dSpec, DirectMainloop
from gemmgen.kernels.conv2d.tiles import CHANNELS
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.tiles.unrolling import unroll_pragma

LANE_BYTES = 64
"""Neighbouring channels of a pixel that threads side by side read, in bytes: two sectors. More would leave fewer pixels to a block, whose
filter taps share their loads."""
MAX_ALIGNMENT = 16
"""Bytes of the widest access."""
MAX_UNROLLED = 4096
"""Products that a thread's unrolled loops hold."""
MAX_KEPT_FACTORS = 98
"""Factors that a thread keeps in registers; of more it reads those of a row of taps when it needs them."""
MAX_WINDOW = 32
"""Rows or columns of x that a thread reads."""

DIVISORS = {"channels": "k", "group_channels": "(k // groups)", "image_pixels": "(p * q)", "q": "q"}
"""Divisors of the kernel, by name."""


@dataclass(frozen=True)
class DirectPlan(FinishingPlan):
    """A convolution instance without tiles."""

    threads: int
    pixels: int
    """Consecutive pixels of one output channel that a thread computes."""
    unroll_pragma: str
    """The line before the loop over a tap's input channels; empty where its unrolling is left to the compiler."""

    channels: int
    """Neighbouring channels of a thread, each convolved separately; 1 for threads that compute one, of any group."""
    rows: int
    """Rows of pixels of a thread."""
    lanes: int
    """Threads side by side along the channels, with several channels each."""

    @property
    def input_bytes(self) -> int:
        """Bytes of a thread's channels of x."""
        return self.channels * ELEMENTS[self.spec.input.type].bytes

    @property
    def keeps_factors(self) -> bool:
        """True if a thread keeps the factors of all taps of its channels in registers."""
        fixed = fixed_parameters(self.spec)
        return int(fixed.get("r", MAX_UNROLLED) * fixed.get("s", 1)) * self.channels <= MAX_KEPT_FACTORS

    @property
    def output_bytes(self) -> int:
        """Alignment of a thread's channels of y."""
        return min(self.channels * ELEMENTS[self.output.type].bytes, MAX_ALIGNMENT)

    @property
    def blocked(self) -> bool:
        """True if x has its channels in blocks of 32."""
        return bool(self.spec.input.layout == "nchw32")

    @property
    def block_channels(self) -> int:
        """Channels that lie side by side in NCHW32."""
        return CHANNELS

    @property
    def blocks_of_y(self) -> int:
        """Output channels in a block of y's layout; 1 for NHWC."""
        return channel_units(self.spec)[1]

    @property
    def accumulator(self) -> str:
        return "float" if ELEMENTS[self.spec.input.type].is_float else "int"


def plan_direct(spec: Conv2dSpec, mainloop: DirectMainloop, architecture: Architecture) -> DirectPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    message = f"no kernel for this spec on {architecture.name}:"
    reasons = architecture_reasons(spec, architecture) + launch_reasons(spec.early_launch, spec)
    reasons += [*mainloop_reasons(spec), *exact_reasons(spec), *_reasons(spec), *_depthwise_reasons(spec, mainloop)]
    if reasons:
        raise PlanError(message, reasons)
    saturation = saturation_of(spec)
    computed = spec.output.type != "s32" and saturation is None
    steps = plan_operations(spec, reasons) if computed else ()
    if reasons:
        raise PlanError(message, reasons)
    fixed = fixed_parameters(spec)
    of = spec.input.type + ("_nchw32" if spec.input.layout == "nchw32" else "")
    depthwise = is_depthwise(spec)
    lanes = max(1, LANE_BYTES // (mainloop.channels * ELEMENTS[spec.input.type].bytes)) if depthwise else 1
    shape = f"{mainloop.rows}x{mainloop.pixels}x{mainloop.channels}" if depthwise else f"{mainloop.threads}x{mainloop.pixels}"
    parts = ["depthwise" if depthwise else "direct", of, shape, f"{spec.output.type}_{spec.output.layout}"]
    name = instance_name("conv2d", parts, spec)
    sequence = _sequence(spec, mainloop, name, steps, lanes)
    return DirectPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=sequence,
        template="conv2d/depthwise.cu.j2" if depthwise else "conv2d/direct.cu.j2",
        shared_memory=(),
        dynamic_shared_bytes=0,
        spec=spec,
        filter_order="taps",
        v={name: written if name in fixed else name for name, written in CONSTANT_NAMES.items()},
        constants=tuple(
            LayerConstant(written, fixed[name])
            for name, written in CONSTANT_NAMES.items()
            if name in fixed and (name != "groups" or not depthwise)
        ),
        divisors=tuple(_divisors(mainloop, lanes)),
        saturation=saturation,
        unit=False,
        biased=False,
        steps=steps,
        kernel_arguments=sequence.parameters_of(0),
        threads=mainloop.threads,
        pixels=mainloop.pixels,
        unroll_pragma=unroll_pragma(mainloop.unroll),
        channels=mainloop.channels,
        rows=mainloop.rows,
        lanes=lanes,
    )


def _divisors(mainloop: DirectMainloop, lanes: int) -> dict[str, str]:
    """Divisors of the kernel, by name; never 0, since results of a layer without pixels may still be written: a sum of nothing."""
    counts = DIVISORS if mainloop.channels == 1 else _tiles(mainloop, lanes)
    return {name: f"max({count}, 1)" for name, count in counts.items()}


def _tiles(mainloop: DirectMainloop, lanes: int) -> dict[str, str]:
    return {
        "channel_tiles": f"ceil_div(k, {mainloop.channels * lanes})",
        "strips": f"ceil_div(q, {mainloop.pixels})",
        "bands": f"ceil_div(p, {mainloop.rows})",
    }


def _blocks(mainloop: DirectMainloop, lanes: int) -> str:
    """Blocks of a launch, as a formula."""
    if mainloop.channels == 1:
        return f"ceil_div(ceil_div(n * p * q, {mainloop.pixels}) * k, {mainloop.threads})"
    tiles = _tiles(mainloop, lanes)
    strips = f"n * {tiles['bands']} * {tiles['strips']}"
    return f"ceil_div({strips}, {mainloop.threads // lanes}) * {tiles['channel_tiles']}"


def _depthwise_reasons(spec: Conv2dSpec, mainloop: DirectMainloop) -> Iterator[Reason]:
    """Why a thread cannot have several channels, each convolved separately."""
    if mainloop.channels == 1:
        if mainloop.rows > 1:
            yield Reason("rows", "mainloop.rows", str(mainloop.rows), "1 with channels: 1", "channels: 8 for depthwise convolution")
        return
    fixed = fixed_parameters(spec)
    for name in ("r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w"):
        if name not in fixed:
            yield Reason("depthwise", f"convolution.{name}", "argument", "a number with mainloop.channels: the loop over taps is unrolled")
    fixed_channels = {fixed[name] for name in ("c", "k", "groups") if name in fixed}
    if len(fixed_channels) > 1:
        got = ", ".join(f"{name} = {fixed[name]}" for name in ("c", "k", "groups") if name in fixed)
        yield Reason("depthwise", "convolution.groups", got, "equal to c and k with mainloop.channels: each channel has one filter")
    for field, layout in (("input", spec.input.layout), ("output", spec.output.layout)):
        if layout != "nhwc":
            yield Reason("depthwise", f"{field}.layout", layout, "nhwc with mainloop.channels")
    if mainloop.unroll != "auto":
        yield Reason("unroll", "mainloop.unroll", str(mainloop.unroll), "auto with mainloop.channels: a group has one input channel")
    products = fixed.get("r", 1) * fixed.get("s", 1) * mainloop.rows * mainloop.pixels * mainloop.channels
    if products > MAX_UNROLLED:
        yield Reason("depthwise", "convolution", f"{products} products in a thread", f"at most {MAX_UNROLLED}", "channels: 1")
    columns = (mainloop.pixels - 1) * fixed.get("stride_w", 1) + (fixed.get("s", 1) - 1) * fixed.get("dilation_w", 1) + 1
    lines = (mainloop.rows - 1) * fixed.get("stride_h", 1) + (fixed.get("r", 1) - 1) * fixed.get("dilation_h", 1) + 1
    for extent, name in ((columns, "columns"), (lines, "rows")):
        if extent > MAX_WINDOW:
            yield Reason("depthwise", "convolution", f"{extent} {name} of x in a thread", f"at most {MAX_WINDOW}", "channels: 1")


def _reasons(spec: Conv2dSpec) -> Iterator[Reason]:
    fixed = fixed_parameters(spec)
    for name, unit, field, layout in zip(
        ("c", "k"), channel_units(spec), ("input", "output"), (spec.input.layout, spec.output.layout), strict=True
    ):
        if fixed.get(name, unit) % unit:
            need = f"a multiple of {unit} with {field}.layout: {layout}"
            yield Reason("channels", f"convolution.{name}", str(fixed[name]), need, HELPER)
    if spec.store != "direct":
        yield Reason("store", "store", spec.store, "direct with strategy: direct", "store: direct")
    if ELEMENTS[spec.input.type].is_float and spec.zero_point != "none":
        yield Reason("zero_point", "zero_point", spec.zero_point, "none for floating-point types")


def _sequence(spec: Conv2dSpec, mainloop: DirectMainloop, name: str, steps: tuple[Step, ...], lanes: int) -> LaunchSequence:
    blocked = spec.input.layout == "nchw32"
    extents = ("n", f"c // {CHANNELS}", "h", "w", str(CHANNELS)) if blocked else ("n", "h", "w", "c")
    x = packed("x", spec.input.type, "input", extents, f"the images in {spec.input.layout.upper()}")
    filters = filter_array(spec, ("r", "s", "c // groups", "k"), "taps")
    results = f"(n * p * q + {mainloop.pixels}) * k"
    limits = [
        ("c % groups == 0", "c must be a multiple of groups; groups have equally many input channels"),
        ("k % groups == 0", "k must be a multiple of groups; groups have equally many output channels"),
        *OUTPUT_EXTENTS,
        (f"{results} <= {MAX_EXTENT}", f"{results} must be at most {MAX_EXTENT}; an int counts the results of all threads"),
        COORDINATES,
    ]
    if is_depthwise(spec):
        limits.append(("groups == c", "groups must be c: the kernel convolves each channel separately"))
        limits.append(("k == c", "k must be c: each channel has one filter"))
    if spec.input.type in ("s8", "u8"):
        most = most_products(spec)
        limits.append((f"c // groups * r * s <= {most}", f"sums must have at most {most} products each, so that they fit into int32"))
    for channels, unit in zip(("c", "k"), channel_units(spec), strict=True):
        if unit > 1:
            condition = f"c == {CHANNELS} * c_blocks" if blocked and channels == "c" else f"{channels} % {unit} == 0"
            limits.append((condition, f"{channels} must be a multiple of {unit}, the channels that lie side by side ({HELPER})"))
    divisors, blocks = _divisors(mainloop, lanes), _blocks(mainloop, lanes)
    return single_launch(spec, name, x, filters, steps, divisors, limits, blocks=blocks, threads=mainloop.threads)
