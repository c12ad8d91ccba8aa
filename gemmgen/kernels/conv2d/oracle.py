"""The problems that a convolution instance is verified on, derived from its tile and from its spec's fixed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import round_up
from gemmgen.kernels.accuracy import accumulated
from gemmgen.kernels.conv2d.cost_model import cost
from gemmgen.kernels.conv2d.direct import DirectPlan
from gemmgen.kernels.conv2d.few_channels import FewChannelsPlan
from gemmgen.kernels.conv2d.grouped import GroupedPlan
from gemmgen.kernels.conv2d.layouts import WITH_ZEROS, reorder_filter
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.problem import channel_multiples, channel_units, complete, fixed_parameters, is_depthwise
from gemmgen.kernels.conv2d.reference import reference as convolved
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.sequence import VECTOR_ALIGNMENT
from gemmgen.kernels.conv2d.spec import MAX_LAUNCH_EXTENT
from gemmgen.kernels.conv2d.tiles import CHANNELS
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.family import Case, Expected
from gemmgen.kernels.math.tensor_accuracy import sum_error

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TIES = "ties of rounding"
SMALL = (-3, 4)
RARE = 0.01
"""Share of the pixels that are infinite or no number, where some are."""
UNEVEN_WINDOW = {"r": 3, "s": 3, "stride_h": 2, "stride_w": 3, "padding_h": 0, "padding_w": 2, "dilation_h": 1, "dilation_w": 2}
"""A filter of 3 x 3 whose strides, padding and dilation differ between the two directions."""


def cases(plan: FinishingPlan) -> list[Case]:
    """All problems that an instance is verified on."""
    return list(each_case(plan))


def each_case(plan: FinishingPlan) -> Iterator[Case]:
    """Filters, strides, paddings and dilations of all kinds, edges of the tile, saturation, ties, and nothing at all.

    A problem that the spec's fixed parameters contradict takes their values instead; equal ones are left out.
    """
    fixed = fixed_parameters(plan.spec)
    seen: set[tuple[Any, ...]] = set()
    usual = _usual_data(plan)

    def add(name: str, wanted: Mapping[str, int], data: object = usual, **more: object) -> Iterator[Case]:
        problem = _fitted(plan, wanted, fixed)
        if problem is None:
            return
        key = (tuple(sorted(problem.items())), data, name == TIES, tuple(sorted(more.items() if "offsets" not in more else [("o", 1)])))
        if key not in seen:
            seen.add(key)
            yield _case(plan, name, problem, data, **more)

    if isinstance(plan, WarpgroupPlan):
        shapes = _pixel_shapes(plan)
    elif isinstance(plan, DirectPlan):
        shapes = _direct_shapes(plan)
    elif isinstance(plan, GroupedPlan | FewChannelsPlan):
        shapes = _grouped_shapes(plan)
    else:
        assert isinstance(plan, Conv2dPlan)
        shapes = _shapes(plan)
    for name, wanted in shapes.items():
        yield from add(name, wanted)
    small = {"n": 2, "c": 64, "h": 7, "w": 5, "k": 64, "r": 3, "s": 3, "padding": 1}
    yield from add("small integers", small, "integers")
    yield from add(TIES, {"n": 1, "c": 32, "h": 6, "w": 7, "k": 64, "r": 1, "s": 1}, "integers")
    yield from add("least aligned pointers", small, offsets=_offsets(plan))
    yield from add("no images", {"n": 0, "c": 32, "h": 4, "w": 4, "k": 32, "r": 3, "s": 3, "padding": 1})
    yield from add("filter larger than the padded image", {"n": 1, "c": 32, "h": 2, "w": 2, "k": 32, "r": 3, "s": 3})


def bordered_tiles(plan: Conv2dPlan | WarpgroupPlan) -> Iterator[Case]:
    """Images of 7 x 7 with a border that are more than one tile of pixels, the last of them cut, with fewer and fewer filters; none for an
    instance that can have no such problem."""
    if isinstance(plan, WarpgroupPlan):
        pixels, c = plan.loop.tile_pixels, plan.loop.tile_k
    else:
        pixels, c = plan.pixel_tile.rows, CHANNELS * plan.planes
    image = {"c": c, "h": 7, "w": 7, "r": 3, "s": 3, "padding": 1}
    one = _fitted(plan, {**image, "n": 1, "k": 32}, fixed_parameters(plan.spec))
    if one is None or one["p"] * one["q"] == 0:
        return
    for k in (96, 64, 32):
        problem = _fitted(plan, {**image, "n": pixels // (one["p"] * one["q"]) + 1, "k": k}, fixed_parameters(plan.spec))
        if problem is not None and problem["n"] * problem["p"] * problem["q"] > pixels:
            yield _case(plan, "several tiles with a border", problem, _usual_data(plan))


def _usual_data(plan: FinishingPlan) -> Any:
    return "extremes" if plan.spec.input.type in ("s8", "u8") else "reals"


def _case(plan: FinishingPlan, name: str, problem: Mapping[str, int], data: Any, **more: Any) -> Case:
    return Case(name, problem, _scalars(plan, problem, name), data, seed=sum(problem.values()), **more)


def deep_cases(plan: FinishingPlan) -> list[Case]:
    """Infinities and NaN in single pixels, for kernels that multiply zeros with pixels that are no part of a sum, or could."""
    vectors = isinstance(plan, WarpgroupPlan) and plan.loop.vectors
    if not (vectors or isinstance(plan, GroupedPlan | FewChannelsPlan)) or _usual_data(plan) != "reals":
        return []
    problem = _fitted(
        plan, {"c": 72 if vectors else 64, "k": 64, "r": 3, "s": 3, "n": 2, "h": 9, "w": 11, "padding": 1}, fixed_parameters(plan.spec)
    )
    return [] if problem is None else [_case(plan, "not-a-numbers and infinities", problem, "nonfinite")]


def cases_of_several_tiles(plan: FinishingPlan) -> list[Case]:
    """Cases for a block that takes several tiles, each of which ends with the last stage."""
    if not isinstance(plan, WarpgroupPlan):
        return []
    loop = plan.loop
    tiles = 2 * max(1, loop.persistent_blocks // loop.cluster_blocks) * loop.cluster_n
    wanted = {"n": 1, "c": loop.tile_k * loop.stages, "h": 1, "w": tiles * loop.tile_pixels - 5, "k": 16, "r": 1, "s": 1}
    problem = _fitted(plan, wanted, fixed_parameters(plan.spec))
    return [] if problem is None else [_case(plan, "tiles of whole turns", problem, _usual_data(plan))]


def _shapes(plan: Conv2dPlan) -> dict[str, dict[str, int]]:
    """Problems by name: n, c, h, w, k, r, s; ``stride``, ``padding``, ``dilation`` for both directions, or one with _h or _w."""
    pixels, channels = plan.pixel_tile.rows, plan.filter_tile.rows
    c = CHANNELS * plan.planes
    shapes = {
        "one pixel": {"n": 1, "c": c, "h": 1, "w": 1, "k": 32, "r": 1, "s": 1},
        "1 x 1": {"n": 1, "c": 2 * c, "h": 7, "w": 7, "k": 64, "r": 1, "s": 1},
        "1 x 1, stride 2": {"n": 2, "c": c, "h": 9, "w": 7, "k": 64, "r": 1, "s": 1, "stride": 2},
        "1 x 1, padding 1": {"n": 1, "c": c, "h": 4, "w": 5, "k": 32, "r": 1, "s": 1, "padding": 1},
        "3 x 3, padding 1": {"n": 1, "c": c, "h": 7, "w": 7, "k": 64, "r": 3, "s": 3, "padding": 1},
        "3 x 3, no padding": {"n": 2, "c": c, "h": 6, "w": 5, "k": 32, "r": 3, "s": 3},
        "3 x 3, padding 3": {"n": 1, "c": 32, "h": 3, "w": 4, "k": 32, "r": 3, "s": 3, "padding": 3},
        "3 x 3, stride 2": {"n": 1, "c": 96, "h": 9, "w": 8, "k": 32, "r": 3, "s": 3, "stride": 2, "padding": 1},
        "3 x 3, dilation 2": {"n": 1, "c": c, "h": 8, "w": 9, "k": 32, "r": 3, "s": 3, "padding": 2, "dilation": 2},
        "3 x 3, uneven": {"n": 1, "c": 32, "h": 11, "w": 9, "k": 32, **UNEVEN_WINDOW},
        "5 x 5, stride 3": {"n": 1, "c": 64, "h": 13, "w": 11, "k": 32, "r": 5, "s": 5, "stride": 3, "padding": 2},
        "7 x 7, stride 2": {"n": 1, "c": 32, "h": 11, "w": 12, "k": 32, "r": 7, "s": 7, "stride": 2, "padding": 3},
        "1 x 7": {"n": 1, "c": 64, "h": 5, "w": 8, "k": 32, "r": 1, "s": 7, "padding_h": 0, "padding_w": 3},
        "7 x 1": {"n": 1, "c": 64, "h": 8, "w": 5, "k": 32, "r": 7, "s": 1, "padding_h": 3, "padding_w": 0},
        # The longest filter that can have precomputed steps: its rows fill their bits up to those of the columns.
        "16 x 3": {"n": 1, "c": 32, "h": 20, "w": 4, "k": 32, "r": 16, "s": 3, "padding_h": 8, "padding_w": 1},
        "3 x 2, even columns": {"n": 1, "c": 96, "h": 5, "w": 6, "k": 32, "r": 3, "s": 2, "padding": 1},
        "pixels one below a tile": {"n": 1, "c": 32, "h": 1, "w": pixels - 1, "k": 32, "r": 1, "s": 1},
        "one tile": {"n": 1, "c": c, "h": 1, "w": pixels, "k": channels, "r": 1, "s": 1},
        "2 x 2 tiles": {"n": 1, "c": 32, "h": 2, "w": pixels, "k": 2 * channels, "r": 1, "s": 1},
        "pixels one above a tile": {"n": pixels + 1, "c": 32, "h": 1, "w": 1, "k": 32, "r": 1, "s": 1},
        "channels one block above a tile": {"n": 1, "c": 32, "h": 3, "w": 3, "k": channels + 32, "r": 3, "s": 3, "padding": 1},
        "a prime number of pixels": {"n": 3, "c": 32, "h": 1, "w": 43, "k": 32, "r": 1, "s": 3, "padding_h": 0, "padding_w": 1},
        "fewer steps than stages": {"n": 1, "c": 32, "h": 4, "w": 4, "k": 32, "r": 1, "s": 1},
        "many steps": {"n": 1, "c": c * (2 * plan.stages + 1) + 32, "h": 2, "w": 3, "k": 32, "r": 1, "s": 1},
        "images of one pixel": {"n": 40, "c": 32, "h": 1, "w": 1, "k": 96, "r": 3, "s": 3, "padding": 1},
    }
    if plan.persistent:
        tiles = -(-((plan.spec.persistent_blocks or 0) + 3) // 8)
        shapes["more tiles than blocks"] = {"n": 1, "c": c, "h": 1, "w": tiles * pixels - 5, "k": 8 * channels, "r": 1, "s": 1}
        shapes["many more tiles than blocks"] = {"n": 3 * tiles, "c": 32, "h": 1, "w": pixels, "k": 8 * channels, "r": 1, "s": 1}
    if plan.grouped:
        shapes["2 groups"] = {"n": 1, "c": 64, "h": 5, "w": 5, "k": 128, "r": 3, "s": 3, "padding": 1, "groups": 2}
        shapes["3 groups"] = {"n": 1, "c": 192, "h": 4, "w": 4, "k": 96, "r": 1, "s": 1, "groups": 3}
    for index, (layer_c, _, layer_k, r, stride) in enumerate(RESNET50):
        name = f"layer {index + 1} of ResNet-50, image reduced"
        shapes[name] = {"n": 1, "c": layer_c, "h": 6, "w": 6, "k": layer_k, "r": r, "s": r, "stride": stride, "padding": r // 2}
    return shapes


def _pixel_shapes(plan: WarpgroupPlan) -> dict[str, dict[str, int]]:
    """Cases for kernels that use im2col copies: tiles of pixels and channels, partial rows, and all edges that a copy may meet. Sizes that
    an instance cannot have are raised to the next that it can."""
    loop = plan.loop
    pixels, channels, c = loop.tile_pixels, loop.tile_m, loop.tile_k
    few, odd = channel_units(plan.spec)[0], 3 * channel_units(plan.spec)[0]
    fitting = max(1, loop.persistent_blocks // loop.cluster_blocks)
    shapes = _image_shapes(pixels, channels, c, few, odd, c * (2 * loop.stages + 1) + few)
    if plan.pixel_maps > 1:
        shapes["channels of several maps"] = {"n": 2, "c": 32 * 35, "h": 3, "w": 5, "k": 32, "r": 1, "s": 2, "padding_h": 0, "padding_w": 1}
    if loop.persistent_blocks:
        # Few channels: most of the emulator's time goes into results.
        tiles = (fitting + 2) * loop.cluster_n
        shapes["more tiles than blocks"] = {"n": 1, "c": few, "h": 1, "w": tiles * pixels - 5, "k": 16, "r": 1, "s": 1}
        if plan.windows:
            row = {"n": 1, "h": 1, "w": tiles * pixels - 5, "r": 1, "s": 3, "padding_h": 0, "padding_w": 1}
            shapes["more tiles than blocks"] = row | {"c": few, "k": 16}
        if fitting <= FEW_BLOCKS:
            # Every stage comes back in a later tile, also the one that a tile ended with.
            most = max(3 * fitting * loop.cluster_n * pixels - 5, 1)
            shapes["tiles of many steps"] = shapes["more tiles than blocks"] | {"w": most, "c": c * loop.stages + few}
    return shapes


FEW_BLOCKS = 4
"""Clusters that share out tiles among them, up to which a case in which each has several tiles of many steps is small."""


def _direct_shapes(plan: DirectPlan) -> dict[str, dict[str, int]]:
    """Cases for kernels without tiles, which take any number of channels and groups, and any stride and dilation."""
    if is_depthwise(plan.spec):
        return _depthwise_shapes(plan)
    shapes = _image_shapes(plan.pixels, plan.threads, 8, 1, 3, 40)
    if plan.spec.convolution.groups == "argument":
        square = {"r": 3, "s": 3, "padding": 1}
        shapes |= {
            "2 groups": {"n": 1, "c": 10, "h": 5, "w": 5, "k": 6, **square, "groups": 2},
            "channels one by one": {"n": 2, "c": 37, "h": 6, "w": 5, "k": 37, **square, "groups": 37},
            "three results of each channel": {"n": 1, "c": 5, "h": 7, "w": 4, "k": 15, **square, "stride": 2, "groups": 5},
        }
        if channel_units(plan.spec) != (1, 1):
            shapes |= {
                "32 channels one by one": {"n": 2, "c": 32, "h": 4, "w": 5, "k": 32, **square, "groups": 32},
                "groups within a block of channels": {"n": 2, "c": 64, "h": 4, "w": 3, "k": 96, **square, "groups": 8},
            }
    return shapes | {
        "stride 11": {"n": 1, "c": 3, "h": 25, "w": 14, "k": 5, "r": 3, "s": 2, "stride": 11, "padding": 1},
        "padding 140": {"n": 1, "c": 2, "h": 2, "w": 3, "k": 3, "r": 1, "s": 1, "stride": 40, "padding": 140},
        "dilation 150": {"n": 1, "c": 2, "h": 303, "w": 2, "k": 3, "r": 3, "s": 1, "dilation_h": 150, "dilation_w": 1},
    }


def _depthwise_shapes(plan: DirectPlan) -> dict[str, dict[str, int]]:
    """Cases for threads with several channels: edges of a thread's strip, of a block's channels and pixels, and of the image."""
    vector, tile, strips = plan.channels, plan.channels * plan.lanes, plan.threads // plan.lanes
    wide = {"h": plan.rows, "w": plan.pixels}
    shapes = {
        "one pixel": {"n": 1, "c": vector, "h": 1, "w": 1, "padding": 1},
        "one strip": {"n": 1, "c": tile, **wide, "padding": 1},
        "columns one below a strip": {"n": 2, "c": vector, "h": 5, "w": 2 * plan.pixels - 1, "padding": 1},
        "columns and rows one above": {"n": 2, "c": tile + vector, "h": 2 * plan.rows + 1, "w": plan.pixels + 1, "padding": 1},
        "no padding": {"n": 3, "c": 3 * vector, "h": 9, "w": 11},
        "padding 3": {"n": 1, "c": tile, "h": 3, "w": 4, "padding": 3},
        "padding larger than the image": {"n": 2, "c": vector, "h": 2, "w": 3, "padding": 5},
        "uneven padding": {"n": 1, "c": vector, "h": 6, "w": 9, "padding_h": 0, "padding_w": 2},
        "several blocks": {"n": 5, "c": 2 * tile, "h": 7, "w": strips // 4 + 3, "padding": 1},
        "images of one pixel": {"n": strips + 1, "c": vector, "h": 1, "w": 1, "padding": 1},
    }
    return {name: {"k": shape["c"], "r": 3, "s": 3, **shape} for name, shape in shapes.items()}


def _grouped_shapes(plan: GroupedPlan | FewChannelsPlan) -> dict[str, dict[str, int]]:
    """Cases for kernels that know all of the layer but the padding: edges of the tile and of the image.
    The channels are the spec's."""
    tile = plan.tile
    shapes = {
        "one pixel": {"n": 1, "h": 1, "w": 1, "padding": 1},
        "one tile": {"n": 1, "h": tile.rows, "w": tile.columns, "padding": 1},
        "one below a tile": {"n": 2, "h": max(1, tile.rows - 1), "w": max(1, tile.columns - 1), "padding": 1},
        "one above a tile": {"n": 2, "h": tile.rows + 1, "w": tile.columns + 1, "padding": 1},
        "no padding": {"n": 3, "h": 9, "w": 11},
        "padding 3": {"n": 1, "h": 3, "w": 4, "padding": 3},
        "padding larger than the image": {"n": 2, "h": 2, "w": 3, "padding": 5},
        "uneven padding": {"n": 1, "h": 6, "w": 9, "padding_h": 0, "padding_w": 2},
        "a long row": {"n": 1, "h": 2, "w": 3 * tile.columns + 2, "padding": 1},
        "images of one pixel": {"n": 7, "h": 1, "w": 1, "padding": 1},
    }
    return {name: {"c": 64, "k": 64, "r": 3, "s": 3, **shape} for name, shape in shapes.items()}


def _image_shapes(pixels: int, channels: int, c: int, few: int, odd: int, many: int) -> dict[str, dict[str, int]]:
    """Filters and images of all kinds. ``pixels`` and ``channels``: those of a tile; ``c``: input channels of a step; ``few``, ``odd``,
    ``many``: other numbers of them."""
    return {
        "one pixel": {"n": 1, "c": c, "h": 1, "w": 1, "k": 32, "r": 1, "s": 1},
        "1 x 1": {"n": 1, "c": 2 * c, "h": 7, "w": 7, "k": 64, "r": 1, "s": 1},
        "1 x 1, stride 2": {"n": 2, "c": c, "h": 9, "w": 7, "k": 64, "r": 1, "s": 1, "stride": 2},
        "1 x 1, padding 1": {"n": 1, "c": c, "h": 4, "w": 5, "k": 32, "r": 1, "s": 1, "padding": 1},
        "3 x 3, padding 1": {"n": 2, "c": c, "h": 7, "w": 7, "k": 64, "r": 3, "s": 3, "padding": 1},
        "3 x 3, no padding": {"n": 2, "c": few, "h": 6, "w": 5, "k": 32, "r": 3, "s": 3},
        "3 x 3, padding 3": {"n": 1, "c": few, "h": 3, "w": 4, "k": 32, "r": 3, "s": 3, "padding": 3},
        "padding larger than the image": {"n": 2, "c": few, "h": 2, "w": 3, "k": 16, "r": 2, "s": 2, "padding": 5},
        "stride beyond the filter": {"n": 1, "c": few, "h": 13, "w": 11, "k": 16, "r": 2, "s": 1, "stride": 4},
        "3 x 3, stride 2": {"n": 1, "c": c + few, "h": 9, "w": 8, "k": 32, "r": 3, "s": 3, "stride": 2, "padding": 1},
        "3 x 3, dilation 2": {"n": 1, "c": odd, "h": 8, "w": 9, "k": 48, "r": 3, "s": 3, "padding": 2, "dilation": 2},
        "3 x 3, uneven": {"n": 1, "c": odd, "h": 11, "w": 9, "k": 16, **UNEVEN_WINDOW},
        "5 x 5, stride 3": {"n": 1, "c": c, "h": 13, "w": 11, "k": 32, "r": 5, "s": 5, "stride": 3, "padding": 2},
        "7 x 7, stride 2": {"n": 1, "c": few, "h": 11, "w": 12, "k": 64, "r": 7, "s": 7, "stride": 2, "padding": 3},
        "1 x 7": {"n": 1, "c": odd, "h": 5, "w": 8, "k": 32, "r": 1, "s": 7, "padding_h": 0, "padding_w": 3},
        "7 x 1": {"n": 1, "c": odd, "h": 8, "w": 5, "k": 32, "r": 7, "s": 1, "padding_h": 3, "padding_w": 0},
        "stride 8, dilation 9": {"n": 1, "c": few, "h": 24, "w": 19, "k": 16, "r": 3, "s": 3, "stride": 8, "padding": 4, "dilation": 9},
        "pixels one below a tile": {"n": 1, "c": few, "h": 1, "w": pixels - 1, "k": 32, "r": 1, "s": 1},
        "one tile": {"n": 1, "c": c, "h": 1, "w": pixels, "k": channels, "r": 1, "s": 1},
        "2 x 2 tiles": {"n": 1, "c": few, "h": 2, "w": pixels, "k": 2 * channels, "r": 1, "s": 1},
        "pixels one above a tile": {"n": pixels + 1, "c": few, "h": 1, "w": 1, "k": 32, "r": 1, "s": 1},
        "channels above a tile": {"n": 1, "c": few, "h": 3, "w": 3, "k": channels + 16, "r": 3, "s": 3, "padding": 1},
        "output channels one by one": {"n": 1, "c": few, "h": 3, "w": 3, "k": 7, "r": 1, "s": 1},
        "a prime number of pixels": {"n": 3, "c": few, "h": 1, "w": 43, "k": 32, "r": 1, "s": 3, "padding_h": 0, "padding_w": 1},
        "many steps": {"n": 1, "c": many, "h": 2, "w": 3, "k": 32, "r": 1, "s": 1},
        "images of one pixel": {"n": 40, "c": few, "h": 1, "w": 1, "k": 96, "r": 3, "s": 3, "padding": 1},
    }


RESNET50: tuple[tuple[int, int, int, int, int], ...] = (
    (64, 56, 64, 1, 1),
    (64, 56, 64, 3, 1),
    (64, 56, 256, 1, 1),
    (256, 56, 64, 1, 1),
    (256, 56, 128, 1, 1),
    (128, 56, 128, 3, 2),
    (128, 28, 512, 1, 1),
    (256, 56, 512, 1, 2),
    (512, 28, 128, 1, 1),
    (128, 28, 128, 3, 1),
    (512, 28, 256, 1, 1),
    (256, 28, 256, 3, 2),
    (256, 14, 1024, 1, 1),
    (512, 28, 1024, 1, 2),
    (1024, 14, 256, 1, 1),
    (256, 14, 256, 3, 1),
    (1024, 14, 512, 1, 1),
    (512, 14, 512, 3, 2),
    (512, 7, 2048, 1, 1),
    (1024, 14, 2048, 1, 2),
    (2048, 7, 512, 1, 1),
    (512, 7, 512, 3, 1),
)
"""The convolutions of ResNet-50 behind its first: c, h = w, k, r = s, stride; the padding is r // 2."""


def layer_problem(plan: FinishingPlan, layer: tuple[int, int, int, int, int], n: int) -> dict[str, int]:
    """One of ``RESNET50`` with ``n`` images, for an instance that fits it."""
    c, h, k, r, stride = layer
    return complete(plan.spec, _expanded({"n": n, "c": c, "h": h, "w": h, "k": k, "r": r, "s": r, "stride": stride, "padding": r // 2}))


def _expanded(wanted: Mapping[str, int]) -> dict[str, int]:
    """``stride``, ``padding`` and ``dilation`` written for each direction."""
    problem = dict(wanted)
    for name in ("stride", "padding", "dilation"):
        if name in problem:
            value = problem.pop(name)
            problem |= {f"{name}_h": value, f"{name}_w": value}
    return problem


def _fitted(plan: FinishingPlan, wanted: Mapping[str, int], fixed: Mapping[str, int]) -> dict[str, int] | None:
    """The problem with the spec's fixed values; None if the instance cannot run it."""
    problem = {**_expanded(wanted), **fixed}
    if is_depthwise(plan.spec):
        problem["c"] = problem["k"] = problem["groups"] = fixed.get("c", round_up(problem["c"], channel_units(plan.spec)[0]))
    groups = problem.get("groups", 1)
    for name, multiple in zip(("c", "k"), channel_multiples(plan.spec, groups), strict=True):
        if name not in fixed:
            problem[name] = round_up(problem[name], multiple)
    depth_unit = problem["r"] * problem["s"] * CHANNELS
    most = plan.spec.maximum_depth // depth_unit * CHANNELS * groups
    if "c" not in fixed and most:
        problem["c"] = min(problem["c"], most)
    if isinstance(plan, Conv2dPlan) and plan.walk == "table" and max(problem["r"], problem["s"]) > MAX_LAUNCH_EXTENT:
        return None
    try:
        complete_problem = complete(plan.spec, problem)
    except LaunchError:
        return None
    if not all(constraint.condition.evaluate(complete_problem) for constraint in plan.sequence.constraints):
        return None
    return plan.sequence.completed(complete_problem)


def _scalars(plan: FinishingPlan, problem: Mapping[str, int], name: str) -> dict[str, float]:
    """alpha spreads the sums over the range of int8 and beyond at both ends; for ties it is one half."""
    floats = plan.spec.input.type not in ("s8", "u8")
    values = {
        "alpha": 1.25 if floats else _alpha(problem, name),
        "beta": 0.5 if name == TIES else 0.37,
        "gamma": 1.0 if name == TIES else 0.61,
    }
    values["zero_point"] = 5.0 if plan.spec.input.type == "s8" else 131.0
    return {scalar.name: values.get(scalar.name, 0.75 if scalar.type == "f32" else 12345) for scalar in plan.sequence.scalars}


def _alpha(problem: Mapping[str, int], name: str) -> float:
    depth = problem["c"] // problem["groups"] * problem["r"] * problem["s"]
    return 0.5 if name == TIES else 150.0 / (depth**0.5 * 74.0**2)


def _offsets(plan: FinishingPlan) -> dict[str, int]:
    return {array.name: VECTOR_ALIGNMENT // ELEMENTS[array.type].bytes for array in plan.sequence.arrays if array.role != "workspace"}


def fill(plan: FinishingPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Values of an input: small integers, or the whole range of int8 with its ends more often than by chance."""
    import numpy as np

    argument = next(array for array in plan.sequence.arrays if array.name == name)
    if name == "tap_sums":
        sums = rng.integers(-400, 401, shape)
        sums[0], sums[:, 0] = 0, 0
        return sums
    if name == "filter" and plan.filter_order in WITH_ZEROS:
        c, groups = case.dimensions["c"], case.dimensions["groups"]
        taps = (case.dimensions["k"], c // groups, case.dimensions["r"], case.dimensions["s"])
        whole = case.data in ("integers", "nonfinite")
        values = rng.integers(*SMALL, taps) if whole else rng.choice([-1.0, 1.0], taps) * 10.0 ** rng.uniform(-2.0, 0.3, taps)
        ordered: npt.NDArray[Any] = reorder_filter(values, plan.filter_order)
        return ordered
    if case.data == "nonfinite" and name == "x":
        special = rng.choice([np.inf, -np.inf, np.nan], shape)
        return np.where(rng.random(shape) < RARE, special, rng.integers(*SMALL, shape))
    if case.data in ("integers", "nonfinite"):
        return rng.integers(*((0, SMALL[1]) if argument.type == "u8" else SMALL), shape)
    if case.data == "reals" and argument.type in ("f16", "bf16"):
        return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-2.0, 0.3, shape)
    if name == "alpha" and case.data == "extremes":
        return _alpha(case.dimensions, case.name) * rng.uniform(0.3, 2.0, shape).astype(np.float32)
    if argument.type in ("s8", "u8"):
        low, high = (int(limit) for limit in ELEMENTS[argument.type].limits)
        values = rng.integers(low, high + 1, shape)
        return np.where(rng.random(shape) < 0.1, rng.choice([low, high], shape), values)
    if argument.type == "s32":
        reach = 400 if plan.output.type != "s32" else 2**31 - 1
        return rng.integers(-reach, reach + 1, shape)
    return rng.normal(0, 50, shape).astype(np.float32)


def reference(plan: FinishingPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """Expected output."""
    error = 0.0
    if isinstance(plan, WarpgroupPlan) and case.data == "reals":
        taps, inputs = case.dimensions["r"] * case.dimensions["s"], case.dimensions["c"]
        depth = round_up(taps * inputs, plan.loop.tile_k) if plan.loop.vectors else taps * round_up(inputs, plan.loop.tile_k)
        error = sum_error(plan.loop, plan.loop.cluster_k, depth)
    if isinstance(plan, FewChannelsPlan) and case.data == "reals":
        error = sum_error(plan.sums, 1, plan.depth)
    if isinstance(plan, GroupedPlan) and case.data == "reals":
        error = sum_error(plan.sums, 1, case.dimensions["r"] * case.dimensions["s"] * plan.tile.block)
    if isinstance(plan, DirectPlan) and case.data == "reals":
        error = accumulated(case.dimensions["r"] * case.dimensions["s"] * case.dimensions["c"] // case.dimensions["groups"])
    return convolved(plan.spec, plan.filter_order, case.dimensions, case.scalars, arrays, error)


def counted_case(plan: FinishingPlan) -> Case:
    """The case with most operations: its traffic and instructions stand for the instance."""
    return max(cases(plan), key=lambda case: cost(plan, case.dimensions).weight)
