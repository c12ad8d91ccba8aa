"""Spec of a convolution kernel."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gemmgen.kernels.epilogue.operations import OPERATIONS, Operation, Operations
from gemmgen.kernels.family import LATER, KernelSpec, SpecModel
from gemmgen.kernels.tiles.extents import Extent, Extents2, Extents3

"""A tile's extent in elements."""
MAX_STEP = 2**20
"""Largest stride, padding, dilation, filter extent and number of channels that a spec fixes."""
Positive = Literal["argument"] | Annotated[int, Field(ge=1, le=MAX_STEP, strict=True)]
Padding = Literal["argument"] | Annotated[int, Field(ge=0, le=MAX_STEP, strict=True)]
Factor = Literal["argument", "one"]
Element = Literal["s8", "u8", "s32", "f32", "f16", "bf16"]
"""Types of results."""

MAX_DEPTH = 131071
"""Products of two int8 numbers reach 2^14 in magnitude, so that sums of up to 2^17 - 1 of them fit into int32."""


MAX_LAUNCH_EXTENT = 16
"""Rows and columns of a filter whose steps are precomputed: for each, 16 bits say which lie within the image."""


class Tile(SpecModel):
    """The tile hierarchy: a threadblock's tile is divided among warps, a warp's among tensor-core instructions."""

    threadblock: Extents3
    """Tile that one block computes, and the depth (a multiple of 32: one or more filter taps or blocks of 32 channels) that it
    keeps in shared memory for one step."""
    warp: Extents2
    """Tile that one warp computes; it divides the threadblock tile."""
    instruction: Literal["m8n8k16", "m16n8k32"]
    """Shape of the ``mma`` instruction; ``m16n8k32`` needs sm_80."""


class PixelTile(SpecModel):
    """The tile of y that a threadblock computes at a time, and the depth of a step."""

    channels: Extent
    """Output channels, a multiple of 64: the rows of the implicit GEMM."""
    pixels: Extent
    """Pixels of all images: its columns."""
    k: Extent
    """Input channels of one filter tap that a step multiplies: 32, 64 or 128 bytes."""


class Cluster(SpecModel):
    """Blocks that copy tiles for one another, or divide the sums of a tile among them."""

    blocks: Literal[2, 4, 8]
    """Blocks of a cluster."""
    share: Literal["pixels", "filter", "tile"]
    """``pixels``: the blocks have the same pixels and different output channels; ``filter``: the other way round. ``tile``: they have
    the same tile of y, each a part of the filter taps and input channels (split-K); the first adds up the sums of all, in order."""


class WarpgroupMainloop(SpecModel):
    """Products of tiles in shared memory by ``wgmma`` (sm_90a): one warpgroup has TMA fill them, the
    others multiply."""

    strategy: Literal["warpgroup"]
    tile: PixelTile
    stages: Annotated[int, Field(ge=2, le=16, strict=True)]
    """Steps whose tiles are in shared memory at a time."""
    consumers: Annotated[int, Field(ge=1, le=4, strict=True)] = 2
    """Warpgroups that multiply."""
    division: Literal["channels", "pixels"] = "channels"
    """Extent of the tile that is divided among the consumers."""
    activations: Literal["im2col", "rows", "windows", "vectors"] = "im2col"
    """Copies of x. ``im2col``: columns of pixels under one filter tap each, which TMA walks through images along, for filters
    of all kinds. ``rows``: rows of a matrix of pixels and channels, for filters of one tap, stride 1 and no padding. ``windows``: columns
    with a margin, in which all taps of a filter's row find their pixels, each one further than the last, for filters of ``s`` columns
    without dilation and with stride 1 along them; in exchange, results are computed at the ends of rows that are none. ``vectors``: the
    threads of one more group copy vectors of 16 bytes, for filters of all kinds; steps divide the channels of all taps behind one
    another, so that only the last has a rest. TMA is slow where a pixel's channels are no multiple of 32 bytes."""
    rows: Annotated[Literal["channels", "pixels"], LATER] = "channels"
    """Rows of the matrix instructions, 64 at a time: output channels, or pixels. Columns are the other: with ``pixels``, of 16-bit floats,
    a tile may have any multiple of 8 output channels, and no work is lost on others."""
    cluster: Cluster | None = None
    persistent_blocks: Annotated[int, Field(ge=0, le=65535, strict=True)] = 132
    """Blocks that take tile after tile, a multiple of the multiprocessors; 0: a block for each tile."""
    min_blocks_per_sm: Annotated[int, Field(ge=1, le=4, strict=True)] = 1
    """Blocks that share a multiprocessor, and its registers."""
    store_buffers: Annotated[Literal[1, 2], LATER] = 1
    """Tiles of results that a group of consumers has in shared memory with ``store: tma``: with 2, it collects one while TMA
    still reads the one before."""
    unroll: Annotated[Literal["full"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "full"
    """Unrolling of the loop over a step's instructions along k."""


class TensorMemoryMainloop(SpecModel):
    """Products of tiles in shared memory by ``tcgen05`` (sm_100a): a warp has TMA fill them, one multiplies them, and
    four finish results. Tensor memory holds two sets of sums, so that one tile is finished while the next is multiplied."""

    strategy: Literal["tcgen05"]
    tile: PixelTile
    """128 output channels, which are the lanes of tensor memory, and up to 256 pixels."""
    stages: Annotated[int, Field(ge=2, le=16, strict=True)]
    """Steps whose tiles are in shared memory at a time."""
    activations: Literal["im2col", "rows"] = "im2col"
    """Copies of x. ``im2col``: columns of pixels under one filter tap each, which TMA walks through images along, for filters
    of all kinds. ``rows``: rows of a matrix of pixels and channels, for filters of one tap, stride 1 and no padding."""
    persistent_blocks: Annotated[int, Field(ge=0, le=65535, strict=True)] = 148
    """Blocks that take tile after tile, a multiple of the multiprocessors; 0: a block for each tile."""
    pair: Annotated[bool, LATER] = False
    """True: two blocks of a cluster multiply together (``cta_group::2``). Each has 128 of 256 output channels, and copies their filters and
    half of the pixels, which the tensor cores of both read. For x in NHWC."""


class DirectMainloop(SpecModel):
    """Sums that each thread computes by itself: for groups of few channels, down to one, and for layouts that TMA does not
    support, channels that fill no 16 bytes, long strides, wide paddings and dilations."""

    strategy: Literal["direct"]
    threads: Annotated[int, Field(ge=32, le=1024, multiple_of=32, strict=True)] = 256
    """Threads of a block."""
    pixels: Literal[1, 2, 4, 8] = 4
    """Consecutive pixels of one output channel that a thread computes; with ``channels``, of one row."""
    channels: Annotated[Literal[1, 2, 4, 8], LATER] = 1
    """Neighbouring channels that a thread computes, where each is convolved separately with one filter (depthwise): more than 1 is for
    ``groups`` equal to c and k, in NHWC, with r, s, strides and dilations known. A tap's channels are one vector of x."""
    rows: Annotated[int, Field(ge=1, le=16, strict=True), LATER] = 1
    """Rows of pixels that a thread computes, with ``channels``: filter taps above each other share the pixels that were read."""
    unroll: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "auto"
    """Unrolling of the loop over the input channels of a filter tap; ``auto`` leaves it to the compiler."""


class GroupedMainloop(SpecModel):
    """Products of 16 channels by ``mma.sync``, for groups of float16 or bfloat16 in NHWC. Those with few channels, as many output as input
    channels, fill an instruction together; others have a multiple of 16 output channels. A block copies the pixels of x that its tile of
    y needs to shared memory, all taps read them there. All of the layer but the padding is known."""

    strategy: Literal["grouped"]
    rows: Annotated[int, Field(ge=1, le=64, strict=True)]
    """Rows of pixels of y of a block's tile."""
    columns: Annotated[int, Field(ge=1, le=64, strict=True)]
    """Pixels of y of a block's tile."""
    parts: Annotated[int, Field(ge=1, le=8, strict=True)] = 2
    """Warps that share the pixels of 16 channels."""
    unroll: Annotated[Literal["full"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "full"
    """Unrolling of the loop over the filter's taps."""


class FewChannelsMainloop(SpecModel):
    """Products of 16 channels by ``mma.sync``, for float16 or bfloat16 in NHWC with few input channels, or a number that fills no 16 bytes,
    as in first layers: the channels of the pixels under a row of the filter are one sum. All of the layer but the padding is known."""

    strategy: Literal["few_channels"]
    rows: Annotated[int, Field(ge=1, le=256, strict=True)]
    """Rows of pixels of y of a block's tile."""
    columns: Annotated[int, Field(ge=1, le=256, strict=True)]
    """Pixels of y of a block's tile."""
    slices: Annotated[int, Field(ge=1, le=8, strict=True)] = 2
    """Sixteens of output channels of a warp."""
    warps_k: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    """Warps side by side along the output channels."""
    parts: Annotated[int, Field(ge=1, le=16, strict=True)] = 4
    """Warps that share the pixels of the same channels."""
    unroll: Annotated[Literal["full"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "full"
    """Unrolling of the loop over the instructions of a row of the filter."""


class Input(SpecModel):
    """The type and the layout of x; the filter has the same type, but for uint8, which int8 filters go with."""

    type: Literal["s8", "u8", "f16", "bf16"] = "s8"
    """Type of the elements of x."""
    layout: Literal["nchw32", "nhwc"] = "nchw32"
    """Layout of x: blocks of 32 channels, or channels last."""


class Convolution(SpecModel):
    """The layer's parameters: numbers that the kernel is specialised for, or ``argument`` for those passed at each launch."""

    c: Positive = "argument"
    """Input channels: for products by ``mma`` a multiple of 32 times the groups, by ``wgmma`` whole vectors of 16 bytes."""
    k: Positive = "argument"
    """Output channels: for products by ``mma`` a multiple of 32 times the groups; else blocks of y's layout."""
    r: Positive = "argument"
    """Filter rows."""
    s: Positive = "argument"
    """Filter columns."""
    stride_h: Positive = "argument"
    """Rows from one application of the filter to the next."""
    stride_w: Positive = "argument"
    """Columns from one application of the filter to the next."""
    padding_h: Padding = "argument"
    """Rows of zeros above and below the image."""
    padding_w: Padding = "argument"
    """Columns of zeros left and right of the image."""
    dilation_h: Positive = "argument"
    """Rows from one tap of the filter to the next."""
    dilation_w: Positive = "argument"
    """Columns from one tap of the filter to the next."""
    groups: Positive = 1
    """Groups of channels that are convolved separately."""


class Output(SpecModel):
    """The type and the layout of y, and of the residual z."""

    type: Element = "s8"
    """``s8`` and ``u8``: rounded to nearest, ties to even, and saturated; ``s32``: the exact integer sum, saturated; ``f32``: not
    rounded again; ``f16`` and ``bf16``: rounded to nearest."""
    layout: Literal["nchw32", "nhwc", "nchw4"] = "nchw32"
    """Layout of y: blocks of 32 or 4 channels, or channels last."""


class NoActivation(SpecModel):
    """Leaves the results as they are."""

    op: Literal["none"] = "none"

    def describe(self) -> str:
        return ""


if TYPE_CHECKING:
    AnyActivation = Operation | NoActivation
else:
    AnyActivation: Any = Annotated[reduce(or_, (*OPERATIONS, NoActivation)), Field(discriminator="op")]


class Conv2dSpec(KernelSpec):
    """y = activation(alpha * convolution(x, filter) + beta * bias + gamma * z) of int8 tensors on tensor cores."""

    mainloop_field: ClassVar[str] = "mainloop"

    kind: Literal["conv2d"]
    mainloop: Annotated[
        Annotated[
            WarpgroupMainloop | TensorMemoryMainloop | DirectMainloop | GroupedMainloop | FewChannelsMainloop,
            Field(discriminator="strategy"),
        ]
        | None,
        LATER,
    ] = None
    """Products by ``wgmma`` or ``tcgen05``, in groups, or one by one; without it, by ``mma`` on the tile hierarchy of ``tile``."""
    gemm_m: Literal["output_channels", "pixels"] = "output_channels"
    """Rows of the implicit GEMM; the columns are the other."""
    tile: Tile | None = None
    """The tile hierarchy of products by ``mma``."""
    copy_through: Literal["cp_async", "registers"] = "cp_async"
    """Copy of tiles from global to shared memory; ``cp_async`` needs sm_80."""
    input_cache: Literal["l1", "l2"] = "l2"
    """Cache that cp_async reads x through. ``l1``: filter taps find pixels that they share with the ones before in the
    multiprocessor, which spares the L2; copies through registers always do."""
    stages: Annotated[int, Field(ge=1, le=8, strict=True)] = 2
    """Tiles in shared memory at a time: 1 or 2 through registers, 2 or more with cp_async."""
    unroll: Annotated[Literal["full"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "full"
    """Unrolling of the loop over the planes of 32 channels of a step, for products by ``mma``; others have ``mainloop.unroll``."""
    increments: Literal["precomputed", "computed"] = "precomputed"
    """Source of the address steps from one filter tap to the next: a table with period r x s that the host computes and
    passes in the kernel's parameters, or counters in the kernel, for filters that the table has no room for."""
    maximum_taps: Annotated[int, Field(ge=1, le=MAX_LAUNCH_EXTENT**2, strict=True)] = 64
    """Largest r x s that the table has room for, where r or s is an argument."""
    input: Input = Input()
    convolution: Convolution = Convolution()
    maximum_depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, strict=True)] = MAX_DEPTH
    """Largest c / groups * r * s."""
    float_conversion: Literal["instruction", "addition"] = "instruction"
    """Conversion of sums to float32: by a conversion, or, if they have at most 256 products, by starting at a large float and
    subtracting it."""
    zero_point: Annotated[Literal["none", "argument"], LATER] = "none"
    """Number that stands for zero in x, which the padding has too: sums are those of x minus it, by an array of sums over the filter."""
    bias: Literal["none", "s32", "f32"] = "s32"
    """Type of the bias, one value for each output channel."""
    residual: bool = False
    """Adds gamma * z, of y's type and shape."""
    alpha: Factor | Literal["channel"] = "argument"
    """Factor of the sum; ``channel``: an array with one for each output channel."""
    beta: Factor = "one"
    """Factor of the bias."""
    gamma: Factor = "argument"
    """Factor of the residual z."""
    activation: AnyActivation = NoActivation()
    """The first operation on the results."""
    epilogue: Annotated[Operations, LATER] = ()
    """Operations on the results after the activation, in this order."""
    output: Output = Output()
    store: Literal["shared", "direct", "tma"] = "shared"
    """Store of results: exchanged through shared memory so that each lane holds consecutive channels; by TMA from there, on
    ``wgmma``; or directly from the accumulators, for which the filters' output channels may be permuted when they are reordered."""
    split_k: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Number of parts of the sum, each computed by separate blocks; a second kernel adds them up."""
    rasterization: Literal["channels_first", "pixels_first"] = "channels_first"
    """Order of tiles over consecutive blocks: those of all output channels for the same pixels, or the other way round."""
    persistent_blocks: Annotated[int, Field(ge=1, le=65535, strict=True)] | None = None
    """Blocks that take tile after tile and copy for the next while they finish one, with cp_async: a multiple of the
    multiprocessors. Without it, there is a block for each tile."""
    min_blocks_per_sm: Annotated[int, Field(ge=1, le=32, strict=True)] = 1
    """Blocks that must fit on a multiprocessor at once: bounds the registers that the compiler may use."""
    early_launch: Annotated[bool, LATER] = False
    """The kernels are brought to the SMs while the work before them in the stream still runs, and wait for it there (programmatic
    dependent launch). Needs sm_90."""

    def identity(self) -> dict[str, Any]:
        """Fields that identify the spec; products by ``mma`` leave out the default input, which is older than other inputs."""
        fields = super().identity()
        if self.mainloop is None and self.input == Input():
            del fields["input"]
        return fields

    @property
    def warp_tiles(self) -> Tile:
        """The tile hierarchy of a spec whose products are by ``mma``."""
        assert self.tile is not None
        return self.tile

    @model_validator(mode="after")
    def _one_mainloop(self) -> Self:
        if (self.tile is None) == (self.mainloop is None):
            raise ValueError("a tile, for products by mma, or a mainloop of another strategy: one of the two")
        return self
