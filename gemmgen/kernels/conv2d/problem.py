"""The integers of a convolution: dimensions, derived values, and an instance's expectations.

Every parameter is a dimension of the launch sequence, also one that the spec fixes, which is then expected to have its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.kernels.conv2d.spec import MAX_DEPTH, MAX_LAUNCH_EXTENT, Conv2dSpec, DirectMainloop, FewChannelsMainloop, GroupedMainloop
from gemmgen.kernels.conv2d.tiles import CHANNELS
from gemmgen.kernels.launch import Constraint, Dimension, ScalarArgument

MAX_EXTENT = 2**31 - 1 - 1024
"""Largest number of pixels: indices of a tile that reaches past the last still fit into an int."""

HELPER = "gemmgen.layouts.nchw_to_nchw32 and reorder_filter fill up with zeros"
PARAMETERS = (
    "c",
    "k",
    "r",
    "s",
    "stride_h",
    "stride_w",
    "padding_h",
    "padding_w",
    "dilation_h",
    "dilation_w",
    "groups",
)
"""The fields of ``Convolution``, each a dimension."""

_MEANINGS = {
    "n": "images",
    "c": "input channels",
    "c_blocks": "blocks of 32 input channels",
    "h": "rows of an image",
    "w": "columns of an image",
    "k": "output channels",
    "r": "rows of the filter",
    "s": "columns of the filter",
    "p": "rows of an output image",
    "q": "columns of an output image",
    "stride_h": "rows between outputs",
    "stride_w": "columns between outputs",
    "padding_h": "rows of zeros above and below",
    "padding_w": "columns of zeros left and right",
    "dilation_h": "rows between filter taps",
    "dilation_w": "columns between filter taps",
    "groups": "groups of channels that are convolved separately",
}


def fixed_parameters(spec: Conv2dSpec) -> dict[str, int]:
    """The parameters that the spec gives a number."""
    fields = spec.convolution.model_dump()
    return {name: value for name, value in fields.items() if value != "argument"}


def output_extent(size: str, padding: str, filter_size: str, stride: str, dilation: str) -> str:
    """Rows or columns of an output image, as a formula."""
    reach = f"({size} + 2 * {padding} - {dilation} * ({filter_size} - 1))"
    return f"select({reach} >= 1, ({reach} - 1) // {stride} + 1, 0)"


EXTENT_P = output_extent("h", "padding_h", "r", "stride_h", "dilation_h")
EXTENT_Q = output_extent("w", "padding_w", "s", "stride_w", "dilation_w")

OUTPUT_EXTENTS = (
    (f"p == {EXTENT_P}", "p must be the output height that h, padding, filter, stride and dilation give"),
    (f"q == {EXTENT_Q}", "q must be the output width that w, padding, filter, stride and dilation give"),
)
_REACH = "max(p * stride_h, q * stride_w) + max(h + r * dilation_h, w + s * dilation_w)"
COORDINATES = (f"{_REACH} <= {MAX_EXTENT}", f"{_REACH} must be at most {MAX_EXTENT}; an int holds coordinates in x, padding included")


def specialised(fixed: Mapping[str, int]) -> list[tuple[str, str]]:
    """Constraints of a kernel whose source holds ``fixed``, with their explanations."""
    return [(f"{name} == {value}", f"{name} must be {value}; the kernel is specialised for it") for name, value in fixed.items()]


def explained(limits: Sequence[tuple[str, str]]) -> tuple[Constraint, ...]:
    """Constraints of conditions and their explanations."""
    return tuple(Constraint(Formula(condition), explanation) for condition, explanation in limits)


def dimensions(spec: Conv2dSpec) -> tuple[Dimension, ...]:
    """All integers of a problem."""
    fixed = fixed_parameters(spec)
    defaults = {
        "c": "32 * c_blocks",
        "c_blocks": "c // 32",
        "p": EXTENT_P,
        "q": EXTENT_Q,
        "stride_h": "1",
        "stride_w": "1",
        "padding_h": "0",
        "padding_w": "0",
        "dilation_h": "1",
        "dilation_w": "1",
        "groups": "1",
    }
    defaults |= {name: str(value) for name, value in fixed.items() if name not in ("c", "k", "r", "s")}
    blocked = spec.input.layout == "nchw32"
    if not blocked:
        del defaults["c"]
    if is_depthwise(spec):
        defaults["groups"] = "c"
    zero = {"n", "p", "q", "padding_h", "padding_w"}
    return tuple(
        Dimension(
            name,
            meaning,
            minimum=0 if name in zero else 1,
            maximum=MAX_EXTENT,
            default=Formula(defaults[name]) if name in defaults else None,
        )
        for name, meaning in _MEANINGS.items()
        if blocked or name != "c_blocks"
    )


def integer(dimension: Dimension) -> ScalarArgument:
    """A dimension as a kernel's argument."""
    return ScalarArgument(dimension.name, "s32", dimension.meaning)


def most_products(spec: Conv2dSpec) -> int:
    """The most products of a sum that fits into int32, of uint8 numbers and of differences from a zero point half as many."""
    wide = spec.input.type == "u8" or (isinstance(spec.mainloop, DirectMainloop) and spec.zero_point != "none")
    return min(spec.maximum_depth, MAX_DEPTH // 2) if wide else spec.maximum_depth


def is_depthwise(spec: Conv2dSpec) -> bool:
    """True for kernels that convolve each channel separately."""
    return isinstance(spec.mainloop, DirectMainloop) and spec.mainloop.channels > 1


def channel_units(spec: Conv2dSpec) -> tuple[int, int]:
    """Numbers that input and output channels are multiples of: those of one group, or, with ``strategy: direct``, of all."""
    if isinstance(spec.mainloop, DirectMainloop):
        if spec.mainloop.channels > 1:
            return spec.mainloop.channels, spec.mainloop.channels
        return CHANNELS if spec.input.layout == "nchw32" else 1, {"nchw32": CHANNELS, "nchw4": 4, "nhwc": 1}[spec.output.layout]
    if isinstance(spec.mainloop, FewChannelsMainloop):
        return 1, 1
    if isinstance(spec.mainloop, GroupedMainloop):
        return 8, 8
    c = CHANNELS if spec.input.layout == "nchw32" else 16 // ELEMENTS[spec.input.type].bytes
    if spec.mainloop is None or spec.output.layout != "nhwc":
        return c, CHANNELS
    return c, 16 // ELEMENTS[spec.output.type].bytes if spec.store != "direct" else 1


def channel_multiples(spec: Conv2dSpec, groups: int) -> tuple[int, int]:
    """Numbers that all input and all output channels are multiples of, where they are convolved in so many groups."""
    c, k = channel_units(spec)
    return (lcm(c, groups), lcm(k, groups)) if isinstance(spec.mainloop, DirectMainloop | GroupedMainloop) else (c * groups, k * groups)


def constraints(spec: Conv2dSpec, table: bool) -> tuple[Constraint, ...]:
    """Constraints of the instance; ``table``: whether it reads precomputed steps."""
    fixed = fixed_parameters(spec)
    limits = [
        ("c == 32 * c_blocks", f"c must be a multiple of 32, as x holds blocks of 32 channels ({HELPER})"),
        ("c % (32 * groups) == 0", f"c / groups must be a multiple of 32, the channels of a block of x ({HELPER})"),
        ("k % (32 * groups) == 0", f"k / groups must be a multiple of 32, the channels of a block of y ({HELPER})"),
        *OUTPUT_EXTENTS,
        (
            f"c // groups * r * s <= {spec.maximum_depth}",
            f"sums must have at most {spec.maximum_depth} products each, "
            + ("so that they fit into int32" if spec.maximum_depth == MAX_DEPTH else "the spec's maximum_depth"),
        ),
        (f"n * p * q <= {MAX_EXTENT}", f"n p q must be at most {MAX_EXTENT}; an int counts the pixels of y"),
        (
            f"c * (h + 2 * padding_h + dilation_h * r) * (w + 2 * padding_w + dilation_w * s) <= {2**31 - 1}",
            "an image of x with its padding, and r rows and s columns beyond, must have at most 2147483647 elements; "
            "an int holds their offsets",
        ),
    ]
    limits += specialised(fixed)
    if table and not ("r" in fixed and "s" in fixed):
        limits.append(
            (
                f"r * s <= {spec.maximum_taps}",
                f"r s must be at most {spec.maximum_taps}; so many filter taps have room in the kernel's parameters",
            )
        )
        limits += [(f"{name} <= {MAX_LAUNCH_EXTENT}", f"{name} must be at most {MAX_LAUNCH_EXTENT}") for name in ("r", "s")]
    return explained(limits)


SIZE_NAMES = ("n", "c", "h", "w", "k", "r", "s", "stride_h", "padding_h")


def complete(spec: Conv2dSpec, given: Mapping[str, int]) -> dict[str, int]:
    """All dimensions of a problem, of which ``given`` has at least n, c, h, w, k, r and s.

    Fixed values come from the spec; columns are treated like rows, other parameters take their defaults. Raises
    ``LaunchError`` if ``given`` contradicts the spec or a channel count is not a multiple of the instance's requirement.
    """
    problem = dict(given)
    for name, value in fixed_parameters(spec).items():
        if problem.setdefault(name, value) != value:
            raise LaunchError(f"{name} is {problem[name]}, but the instance was made for {name} = {value}")
    for name in ("stride", "padding", "dilation"):
        default = 0 if name == "padding" else 1
        problem.setdefault(f"{name}_h", default)
        problem.setdefault(f"{name}_w", problem[f"{name}_h"])
    problem.setdefault("groups", problem["c"] if is_depthwise(spec) else 1)
    for name, unit, multiple in zip(("c", "k"), channel_units(spec), channel_multiples(spec, problem["groups"]), strict=True):
        if problem[name] % multiple:
            need = f"{multiple} with {problem['groups']} groups" if problem["groups"] > 1 else str(unit)
            raise LaunchError(f"{name} is {problem[name]}, need a multiple of {need}" + (f": {HELPER}" if unit > 1 else ""))
    if spec.input.layout == "nchw32":
        problem["c_blocks"] = problem["c"] // CHANNELS
    problem["p"] = Formula(EXTENT_P).evaluate(problem)
    problem["q"] = Formula(EXTENT_Q).evaluate(problem)
    return problem


def sizes(spec: Conv2dSpec, values: Sequence[int]) -> dict[str, int]:
    """The problem of ``values``, in the order of ``SIZE_NAMES``."""
    return complete(spec, dict(zip(SIZE_NAMES, values, strict=True)))
