"""Spec of a GEMM kernel."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gemmgen.kernels.epilogue.operations import Operations
from gemmgen.kernels.family import LATER, KernelSpec, SpecModel
from gemmgen.kernels.gemm.grouping import Grouping
from gemmgen.kernels.gemm.scaling import Scales
from gemmgen.kernels.gemm.triangles import Triangles
from gemmgen.kernels.math.fma_order import OrderName
from gemmgen.kernels.tiles.extents import Extents2, Extents3

AccessWidth = Literal[1, 2, 4, 8, 16]
Factor = Literal["f32", "f64", "f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2"]
"""Types of A and B; tf32 is float32 in memory, of which tensor cores read the upper 19 bits."""
Element = Literal["f32", "f64", "f16", "bf16", "s32", "s8", "u8", "e4m3", "e5m2"]
"""Types of C."""


class Tile(SpecModel):
    """The tile hierarchy: a threadblock's tile of C is divided among warps, a warp's among its 32 lanes."""

    threadblock: Extents3
    """Tile of C that one block computes, and the depth in k of the tiles that it keeps in shared memory."""
    warp: Extents2
    """Tile of C that one warp computes; it divides the threadblock tile."""
    thread: Extents2
    """Elements of C that one thread computes; 32 of these make up the warp tile."""


Fragment = Literal["contiguous", "quads_in_warp", "quads_in_threadblock", "interleaved"]
"""Arrangement of the rows (or columns) of a thread: side by side; in groups of four spread evenly over the warp tile or over the
threadblock tile, so that neighbouring lanes read neighbouring vectors; or one by one, with those of the other lanes between."""


class SharedOperand(SpecModel):
    """Layout of a tile of A or B in shared memory, and the reads of fragments from it."""

    order: Literal["mn_major", "k_major"] = "mn_major"
    """``mn_major``: consecutive elements run along m (for A) or n (for B), so that a thread reads its fragment in wide
    vectors; ``k_major``: they run along k."""
    padding: Literal["auto"] | Annotated[int, Field(ge=0, le=64, strict=True)] = "auto"
    """Unused elements after each row of the tile, against bank conflicts; ``auto`` takes the smallest with the fewest
    wavefronts."""
    swizzle: Literal["none", "xor"] = "none"
    """Another way to avoid bank conflicts, without padding: the 16-byte chunks of a row are permuted by an exclusive or of their
    index with bits of the row's. Of all choices of bits, ``xor`` takes the simplest with the fewest wavefronts."""
    fragment: Fragment | None = None
    """Overrides the mainloop's ``fragment`` for this operand."""
    k_vector: Literal[1, 2, 4] = 1
    """Values of k that one read of a ``k_major`` tile takes at once."""


FORMER_STRATEGIES = {"tensor_core": "wgmma", "vector": "gemv"}
"""Former names of strategies, which specs may still use. Digests keep them, so that kernels keep their names."""


class NaiveMainloop(SpecModel):
    """One thread computes one element of C, straight from global memory."""

    strategy: Literal["naive"]
    threadblock: Extents2
    """Threads of a block: each computes one element."""
    unroll: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "auto"
    """Unrolling of the loop over k; ``auto`` leaves it to the compiler."""


class TiledMainloop(SpecModel):
    """Tiles in shared memory and in registers."""

    strategy: Literal["tiled"]
    tile: Tile
    fragment: Fragment = "quads_in_warp"
    """Rows and columns of the warp tile that belong to one thread."""
    lanes: Literal["row_major", "z_order"] = "row_major"
    """Order of a warp's lanes over its tile: along the contiguous dimension of C first, or in a zig-zag that lets
    two groups of eight lanes share each wide read of shared memory, for both operands."""
    copies: Literal["registers", "cp_async"] = "registers"
    """Copy of tiles from global to shared memory. ``cp_async`` (sm_80 and later) keeps the tiles of all stages but one in
    flight, without registers; through registers there is one."""
    stages: Annotated[int, Field(ge=1, le=5, strict=True)] = 2
    """Tiles of A and B in shared memory at a time. From 2 on, tiles are loaded while another is used, with one barrier a step."""
    fragment_buffers: Literal[1, 2] = 1
    """2 reads the fragments for the next k while those of this k are multiplied, across tiles too; 1 leaves it to the compiler."""
    order: OrderName = "rows"
    """Order in which the products of two fragments are listed: it decides which registers the assembler can reuse."""
    unroll: Literal["full"] | Annotated[int, Field(ge=1, le=64, strict=True)] = "full"
    """Unrolling of the loop over the k of one tile."""
    k_groups: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    """Groups of warps that split the block's k (sliced-K): each has its own tiles in shared memory and its own barrier, and they
    add up their sums in shared memory at the end. Blocks are larger for it and fewer, and so are the partial products of a split of k."""
    edges: Annotated[Literal["each_vector", "each_tile"], LATER] = "each_vector"
    """Checks of where the matrices end: of each vector as it is copied, or once for a whole tile, so that the copies of tiles that lie
    inside check nothing."""
    loaders: Literal["all", "halves"] = "all"
    """Threads that copy tiles: all of them both, or one half that of A and the other that of B, so that each tracks one pointer."""
    shared_a: SharedOperand = SharedOperand()
    shared_b: SharedOperand = SharedOperand()
    min_blocks_per_sm: Annotated[int, Field(ge=1, le=32, strict=True)] = 1
    """Blocks that must fit on a multiprocessor at once: bounds the registers that the compiler may use."""


class GemvMainloop(SpecModel):
    """Products with few columns: A streams past a few columns of B, from global memory straight into registers, and each of its
    elements is read once. The threads of a block form teams, whose lanes read side by side."""

    strategy: Literal["gemv"]
    threads: Annotated[int, Field(ge=32, le=1024, multiple_of=32, strict=True)] = 256
    """Threads of a block."""
    along: Literal["k", "m"] = "k"
    """``k``: the lanes of a team split the k of its rows, and add up their sums; ``m``: each lane has separate rows, and the teams
    split k; A must then be contiguous along m."""
    lanes: Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] = 32
    """Threads of a team."""
    rows: Literal[1, 2, 4, 8, 16] = 4
    """Rows of A that a team works on at a time; along m, it has as many for each lane as one vector of A holds."""
    vectors: Annotated[Literal["aligned", "shifted"], LATER] = "aligned"
    """Along m: ``aligned``, as wide as A's alignment promises; ``shifted``, of 16 bytes wherever columns of A begin: each team moves its
    rows back to the last address that such a vector may have. The columns of a team all begin alike, since teams are as many as a vector
    has elements, or a multiple."""
    columns: Annotated[int, Field(ge=1, le=32, strict=True)] = 1
    """Columns of C that a block computes; A is read again for every further so many."""
    unroll: Literal[1, 2, 4, 8, 16] = 2
    """Vectors of 16 bytes of each row that a thread reads ahead; of narrower ones, where A is not aligned, as many more, within bounds."""
    min_blocks_per_sm: Annotated[int, Field(ge=1, le=16, strict=True)] = 1
    """Blocks that must fit on a multiprocessor at once: bounds the registers that the compiler may use."""


TileRows = Annotated[int, Field(ge=64, le=512, multiple_of=64, strict=True)]
TileColumns = Annotated[int, Field(ge=8, le=256, multiple_of=8, strict=True)]
TileDepth = Annotated[int, Field(ge=32, le=512, multiple_of=32, strict=True)]


class WgmmaTile(SpecModel):
    """A tile of C, and the part of k that one stage holds."""

    m: TileRows
    """In ping-pong, of each group of consumers; else they share these rows."""
    n: TileColumns
    """Columns of C that a block computes at a time."""
    k: TileDepth
    """Depth of a stage in bytes: 128, or a multiple of it."""


class Arithmetic(SpecModel):
    """The types in which tensor cores multiply."""

    f32_by: Literal["f16x3", "bf16x6", "bf16x9", "tf32x3"] | None = None
    """Computes float32 products, of operands stored as float32, by so many of a smaller type, into whose planes a first kernel splits
    the operands; as accurate as float32 multiply-adds, or more. ``f16x3``, the fastest, scales rows of A and columns of B to the range
    of float16; the others keep the range of float32. A last kernel computes numbers that no planes can hold, such as infinities, in
    float32. None: products of the types as stored."""
    f64_by: Annotated[Literal["int8x14", "int8x15"] | None, LATER] = None
    """Computes float64 products by so many of 8-bit integers: the remainders of scaled rows and columns modulo small numbers, of which a
    kernel makes the result. The error bound is that of multiply-adds; tiles for which it could be larger, or whose rows or columns hold
    infinities, NaN or magnitudes beyond 2^400 or below 2^-400, are computed by multiply-adds."""
    sums: Annotated[Literal["auto", "plain", "compensated"], LATER] = "auto"
    """Addition of the tensor core's partial sums to the float32 sums: ``compensated`` keeps the rounding error of each addition, so that
    errors do not grow with k, at the cost of three more operations. ``auto``: compensated."""
    kept: Annotated[Literal["none", "a", "b"], LATER] = "none"
    """Operand whose planes are passed as an argument, computed beforehand by a separate kernel: for example weights that serve many
    products. It is also passed as float32, for numbers that planes cannot hold."""
    split: Annotated[Literal["kernel", "mainloop"], LATER] = "kernel"
    """Where A becomes planes; B does so in a first kernel. ``kernel``: A as well. ``mainloop``: warps split their part of a tile of A
    and multiply it from registers, so that A is read once, as float32: for products with a large A, and few columns of B. For
    ``bf16x6`` and ``bf16x9``, which need no scales, and not with ``split_k_parallel``."""


ClusterExtent = Literal[1, 2, 4, 8]


class Cluster(SpecModel):
    """Blocks that run together, side by side: each copies a part of their shared operands to all of them."""

    m: ClusterExtent = 1
    """Blocks along m, which share tiles of B."""
    n: ClusterExtent = 1
    """Blocks along n, which share tiles of A."""


class WgmmaMainloop(SpecModel):
    """Tensor cores of sm_90a: one thread of a block keeps the stages full by TMA, warpgroups
    multiply their contents (``wgmma``)."""

    strategy: Literal["wgmma"]
    tile: WgmmaTile
    stages: Annotated[int, Field(ge=2, le=16, strict=True)] = 4
    """Tiles of A and B in shared memory at a time."""
    consumers: Literal[1, 2, 3] = 2
    """Groups that multiply."""
    schedule: Literal["cooperative", "ping_pong", "alternating"] = "cooperative"
    """``cooperative``: the groups divide the rows of a tile; ``ping_pong``: two groups compute separate tiles in turn, so that one
    multiplies while the other stores its results; ``alternating``: two groups have the same rows, and take every other part of k,
    so that one splits its numbers and adds up while the tensor cores work for the other (``arithmetic.split: mainloop``)."""
    arithmetic: Arithmetic = Arithmetic()
    cluster: Cluster = Cluster()
    persistent_blocks: Annotated[int, Field(ge=0, le=65536, strict=True)] = 0
    """Blocks of the grid, which take tiles in turn: best as many as the device runs at a time. 0: one block for each tile."""
    tiles: Annotated[Literal["static", "dynamic"], LATER] = "static"
    """Distribution of tiles among those blocks. ``static``: each has every n-th of n blocks; ``dynamic``: a counter in the workspace
    gives the next tile to whichever block asks first, so that tiles that take less time, such as a group's last rows, leave nobody idle."""
    a_from: Annotated[Literal["shared", "registers"], LATER] = "shared"
    """Where matrix instructions read A. ``registers``: warps read fragments of it first (``ldmatrix``), and the tensor
    cores read shared memory for B alone. For A stored along k."""
    promote_every: Literal["auto", "never"] | Annotated[int, Field(ge=8, le=4096, strict=True)] = "auto"
    """Values of k after which sums leave the tensor core, which keeps 14 bits of those of 8-bit floats, for float32 registers.
    ``auto``: 128 for 8-bit floats, never for others; with ``arithmetic.f32_by``, after two instructions."""
    instruction_n: Annotated[int, Field(ge=8, le=256, multiple_of=8, strict=True)] | None = None
    """Columns that one instruction computes where sums are promoted, so that fewer registers hold them; all of the tile's if not given."""
    sparse: Annotated[Literal["none", "a"], LATER] = "none"
    """``a``: A is 2:4 sparse, and products with its zeros are not computed (``wgmma.mma_async.sp``). Its rows hold two of every four
    neighbours along k, and ``metadata``, in the order of lanes, says which (``ops.compress_2_4``). The tile's k, 64 or 128, and the
    problem's, count all of them."""
    product_sets: Annotated[Literal[1, 2], LATER] = 1
    """Sets of products that a group holds where they have block scales. 2: the tensor cores make those of the next stage while those of
    one are scaled and added; as many more registers."""
    unroll: Annotated[Literal["full"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "full"
    """Unrolling of the loop over a stage's instructions along k."""
    min_blocks_per_sm: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    """Blocks that must fit on a multiprocessor at once."""
    copied: Annotated[Literal["none", "a", "b", "both"], LATER] = "none"
    """Factors that a first kernel copies into the workspace, in rows along k, from any storage order and alignment: TMA
    requires addresses and strides that are multiples of 16 bytes, and matrix instructions require rows along k for all but 16-bit types."""


class TensorMemoryTile(SpecModel):
    """A tile of C in tensor memory, and the part of k that one stage holds."""

    m: Literal[128] = 128
    n: Annotated[int, Field(ge=32, le=256, multiple_of=32, strict=True)]
    """Columns of C that a block computes at a time."""
    k: TileDepth
    """Depth of a stage in bytes: 128, or a multiple of it."""


class TensorMemoryMainloop(SpecModel):
    """Tensor cores of sm_100a: one warp keeps the stages full by TMA, another issues products of their contents
    (``tcgen05.mma``), whose sums lie in tensor memory, and four warps finish results. There are two sets of sums, so that one tile is
    finished while the next is multiplied."""

    strategy: Literal["tcgen05"]
    tile: TensorMemoryTile
    stages: Annotated[int, Field(ge=2, le=16, strict=True)] = 4
    """Tiles of A and B in shared memory at a time."""
    persistent_blocks: Annotated[int, Field(ge=0, le=65536, strict=True)] = 0
    """Blocks of the grid, which take tiles in turn: best as many as the device runs at a time. 0: one block for each tile."""
    pair: Annotated[bool, LATER] = False
    """True: two blocks, neighbours along m in a cluster, multiply together (``cta_group::2``). Each has 128 rows of the sums and copies
    its rows of A and half of the columns of B, which the tensor cores of both read."""
    tiles: Annotated[Literal["static", "dynamic"], LATER] = "static"
    """Order in which blocks get tiles. ``dynamic``: the grid has a block for each tile, and blocks that run take over the tiles of those
    that wait, by cluster launch control; so those that come late, or are slow, take fewer. With persistent_blocks: 0."""
    multiplied: Annotated[Literal["stored", "e2m1"], LATER] = "stored"
    """Numbers in the bytes of A and B. ``e2m1``: two floats of 4 bits a byte, the first along k in the lower half, with block scales;
    storage.a and storage.b are then u8, both along k."""
    instruction_k: Annotated[Literal["auto", 96], LATER] = "auto"
    """Values of k that one instruction multiplies. 96: for floats of 4 bits on sm_103a, with tile.k a multiple of 384 bytes; ``auto``: 32
    bytes of each row, 64 floats of 4 bits."""
    arithmetic: Annotated[Arithmetic, LATER] = Arithmetic()
    """Composition of float32 products."""
    promote_every: Annotated[Literal["auto"] | Annotated[int, Field(ge=8, le=4096, strict=True)], LATER] = "auto"
    """Values of k after which sums of ``arithmetic.f32_by`` leave tensor memory for float32 registers. ``auto``: after two instructions."""


class MmaTile(SpecModel):
    """A threadblock's tile, divided among warps."""

    threadblock: Extents3
    """Tile of C that one block computes, and the depth in k of the tiles that it keeps in shared memory."""
    warp: Extents2
    """Tile of C that one warp computes; it divides the threadblock tile."""


class MmaSyncMainloop(SpecModel):
    """Tensor cores of sm_80 and later: all warps copy tiles to shared memory, read fragments from there (``ldmatrix``) and multiply them
    (``mma.sync``). Takes every storage order and every alignment, with narrower copies where addresses allow no wide ones."""

    strategy: Literal["mma_sync"]
    tile: MmaTile
    stages: Annotated[int, Field(ge=2, le=8, strict=True)] = 3
    """Tiles of A and B in shared memory at a time."""
    arithmetic: Annotated[Arithmetic, LATER] = Arithmetic()
    """Composition of float32 products."""
    multiplied: Annotated[Literal["stored", "e2m1"], LATER] = "stored"
    """Numbers in the bytes of A and B. ``e2m1``: two floats of 4 bits a byte, the first along k in the lower half, with block scales
    (sm_120a); storage.a and storage.b are then u8, both along k."""
    copies: Literal["cp_async", "registers", "tma", "none"] = "cp_async"
    """Copy of tiles from global to shared memory. ``cp_async`` keeps those of all stages but one in flight; operands that are aligned
    to less than 4 bytes, or stored along m or n in types of other than 16 bits, pass through registers nevertheless. ``tma``: one
    thread starts copies of whole tiles by TMA (sm_90 and later); for operands aligned to 16 bytes, stored along k unless they
    are of 16 bits. ``none``: each warp reads the fragments of a separate tile from global memory, through the L1: for 16-bit products that
    are small or shallow, of which a block takes as many as it has warps."""
    fragment_reads: Annotated[Literal["pairs", "vectors"], LATER] = "pairs"
    """Reads of a lane where nothing is copied. ``pairs``: two neighbours along k, where the instruction wants them. ``vectors``: up to
    16 bytes, in every storage order: rows, columns and places along k are assigned to the instruction's in another order, so that a lane's
    reads and stores are contiguous. Warps take tiles in turn, hold all of k, which is at most the tile's, and keep B as long as they
    can."""
    fragment_buffers: Annotated[Literal[1, 2], LATER] = 1
    """2: fragments for the next instructions are read while the tensor cores work on others; as many more registers."""
    accumulators: Annotated[Literal["f32", "f16"], LATER] = "f32"
    """Type of the tensor core's sums. ``f16``, for products of float16: GeForce GPUs sum up in float16 twice as fast as in float32, with 11
    bits, and overflow beyond 65504."""
    sparse: Annotated[Literal["none", "a"], LATER] = "none"
    """``a``: A is 2:4 sparse, and products with its zeros are not computed (``mma.sp``). Its rows hold two of every four neighbours along
    k, and ``metadata`` says which (``ops.compress_2_4``). The tile's k, and the problem's, count all of them."""
    unroll: Annotated[Literal["full"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "full"
    """Unrolling of the loop over a tile's instructions along k."""
    persistent_blocks: Annotated[int, Field(ge=0, le=65536, strict=True)] = 0
    """Blocks of the grid, which take tiles in turn. 0: one block for each tile."""
    min_blocks_per_sm: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    """Blocks that must fit on a multiprocessor at once: bounds the registers that the compiler may use."""


class NarrowWeightsMainloop(SpecModel):
    """Weights of 4 or 8 bits beside activations of 16, or of 4 beside activations of 8, on tensor cores of sm_80 and later: B comes packed
    (``ops.Weight``), so that a lane reads 16 bytes of it, makes fragments of them in registers, and multiplies them by those of A
    (``mma.sync``). A weight is scale (code - zero), with codes of 0 to 2^bits - 1."""

    strategy: Literal["narrow_weights"]
    method: Annotated[Literal["tiles", "streams", "warpgroups"], LATER] = "tiles"
    """``tiles``: all warps copy tiles of A and of packed weights to shared memory. ``streams``, for up to 16 rows: a warp copies the
    weights of 32 columns by itself and waits for no other, while rows of A come in chunks of ``tile.threadblock.k``; blocks of a cluster
    may divide k. ``warpgroups``: one warp keeps stages full by TMA, up to four warpgroups make fragments of weights
    and multiply them by rows of A in shared memory (``wgmma`` of sm_90a with its left factor in registers)."""
    k_warps: Annotated[int, Field(ge=1, le=8, strict=True), LATER] = 1
    """Warps of a block that take the steps along k of 32 columns in turn, with streams."""
    chunks: Annotated[Literal[1, 2], LATER] = 2
    """Chunks of rows of A in shared memory, with streams. 2: while warps multiply by one, the next is copied a part at a time."""
    next_launch: Annotated[Literal["early", "late"], LATER] = "early"
    """With streams and ``early_launch``, when the next launch may begin: ``early``, once the work before this one has ended; ``late``, once
    this one has asked for all of its weights."""
    persistent_blocks: Annotated[int, Field(ge=0, le=65536, strict=True), LATER] = 0
    """With warpgroups: blocks of the grid, which take tiles in turn. 0: one block for each tile."""
    tile: MmaTile
    stages: Annotated[int, Field(ge=2, le=16, strict=True)] = 4
    """Tiles of A and of packed weights in shared memory at a time."""
    bits: Literal[4, 8] = 4
    """Bits of a weight."""
    group: Literal[32, 64, 128, "column"] = 128
    """Values of k of a column that share a scale; ``column``: all of them."""
    zeros: bool = False
    """True if each group of a column has a zero point; else it is 2^(bits - 1)."""
    scaled: Annotated[Literal["sums", "weights"], LATER] = "sums"
    """``sums``: the integers code - zero are multiplied, and the sums of each group scaled in float32. ``weights``, with warpgroups and
    groups: each weight is scaled, and rounded to the type of A, before it is multiplied; sums stay in the tensor cores for all of k."""
    codes: Annotated[Literal["integers", "e2m1", "e4m3"], LATER] = "integers"
    """``e2m1``, ``e4m3``: the four or eight bits of a code are a float, and a weight is scale times that; beside activations of floats. The
    codes of NaN, 0x7f and 0xff, count as 480 and -480."""
    scale_type: Annotated[Literal["f16", "bf16", "f32"] | None, LATER] = None
    """Type of scales and zero points. None: that of activations of 16 bits, f32 beside those of 8 bits."""
    min_blocks_per_sm: Annotated[int, Field(ge=1, le=8, strict=True)] = 1
    """Blocks that must fit on a multiprocessor at once: bounds the registers that the compiler may use."""


MAX_MULTIPLE = 1 << 20


class Multiples(SpecModel):
    """Promises about extents: each is a multiple of its number. Where that is a multiple of the tile, edges are not checked."""

    m: Annotated[int, Field(ge=1, le=MAX_MULTIPLE, strict=True)] = 1
    """Rows of C: a multiple of this number."""
    n: Annotated[int, Field(ge=1, le=MAX_MULTIPLE, strict=True)] = 1
    """Columns of C: a multiple of this number."""
    k: Annotated[int, Field(ge=1, le=MAX_MULTIPLE, strict=True)] = 1
    """The summed dimension k: a multiple of this number."""


L2Prefetch = Literal[0, 64, 128, 256]
L2Policy = Literal["normal", "evict_first", "evict_last"]


class CacheHints(SpecModel):
    """Cache hints of copies and stores."""

    l2_prefetch_a: L2Prefetch = 0
    """Bytes around each asynchronous copy from A that the L2 fetches along with it."""
    l2_prefetch_b: L2Prefetch = 0
    """Bytes that the L2 prefetches for copies of B."""
    l1_a: Annotated[Literal["bypass", "keep"], LATER] = "bypass"
    """True if asynchronous copies of 16 bytes from A keep their data in the L1 (``cp.async.ca``), false if not (``cg``); narrower copies
    always do."""
    l1_b: Annotated[Literal["bypass", "keep"], LATER] = "bypass"
    """Use of the L1 by copies of B."""
    l2_policy_a: Annotated[L2Policy, LATER] = "normal"
    """Eviction priority in the L2 of data that asynchronous copies read from A: evicted first, or last (``.L2::cache_hint``, with a policy
    created by ``createpolicy.fractional``)."""
    l2_policy_b: Annotated[L2Policy, LATER] = "normal"
    """Eviction policy of the L2 for B."""
    streaming_stores: bool = False
    """Stores to C are marked as not to be read again soon, so that they leave A and B in the L2."""


class DataParallel(SpecModel):
    """One block computes a tile of C, over all of k."""

    scheme: Literal["data_parallel"] = "data_parallel"


Slices = Annotated[int, Field(ge=2, le=1024, strict=True)]


class SplitKSerial(SpecModel):
    """k is cut into slices, one block for each slice of a tile; the blocks of a tile take turns to add to its sum, in the order of
    k. One kernel, and the same bits every time."""

    scheme: Literal["split_k_serial"]
    slices: Slices
    """Slices of k."""


class SplitKParallel(SpecModel):
    """k is cut into slices, one block for each slice of a tile; every block writes its partial product to a workspace, and a
    second kernel adds them up in a fixed order."""

    scheme: Literal["split_k_parallel"]
    slices: Slices | Literal["launch"]
    """``launch``: as many as the dimension ``slices`` of a problem says, so that one kernel serves every depth and every device."""


class SplitKCluster(SpecModel):
    """k is cut into slices, one block of a cluster for each; the first block collects the sums of the others from their shared
    memory, in the order of k. One kernel, no workspace. Needs tensor cores of sm_90a."""

    scheme: Literal["split_k_cluster"]
    slices: Annotated[int, Field(ge=2, le=8, strict=True)]
    """Slices of k, and blocks of the cluster."""
    finish: Annotated[Literal["first", "all"], LATER] = "first"
    """all: each block collects the sums of a part of the columns, and finishes these, in the same order of k; for wgmma with store: tma."""


class SplitKLast(SpecModel):
    """k is cut into as many slices as the dimension ``slices`` of a problem says, one block for each slice of a tile; the last block of a
    tile adds up the others' sums from a workspace, in the order of k. One kernel for every number of slices."""

    scheme: Literal["split_k_last"]


class StreamK(SpecModel):
    """The steps along k of all tiles are distributed evenly among a fixed number of blocks, wherever that cuts a tile; the block that
    finishes a tile adds the others' sums from a workspace. Source: Osama et al., Stream-K, PPoPP 2023."""

    scheme: Literal["stream_k"]
    blocks: Annotated[int, Field(ge=1, le=65536, strict=True)]
    """Blocks of the grid, for each product of a batch; at most as many as the device runs at a time is best."""


class Rasterization(SpecModel):
    """The order in which threadblocks take the tiles of C. Blocks that run together then share rows and columns in the L2."""

    along: Literal["minor", "major"] = "minor"
    """Consecutive blocks go along the contiguous dimension of C, or along the other one."""
    group: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Width, in tiles, of the band that is walked at a time, across the direction of ``along``."""


class Alignment(SpecModel):
    """Promises about addresses, in elements: base pointers, leading dimensions and batch strides are multiples of these.

    They allow accesses of that many elements, up to 16 bytes, at a time; extents need not be multiples of anything.
    """

    a: AccessWidth = 1
    """Elements: the pointer, the leading dimension and the batch stride of A are multiples of it."""
    b: AccessWidth = 1
    """Elements: the pointer, the leading dimension and the batch stride of B are multiples of it."""
    c: AccessWidth = 1
    """Elements: the pointer, the leading dimension and the batch stride of C are multiples of it."""


class Storage(SpecModel):
    """Types of the elements in memory. Halves are converted to float32 on the way in, or go to tensor cores as they are; results are
    rounded to nearest on the way out, those of 8 bits with saturation."""

    a: Factor = "f32"
    """Type of the elements of A."""
    b: Factor = "f32"
    """Type of the elements of B."""
    c: Element = "f32"
    """Type of C, and of vectors and matrices that the epilogue reads; vectors are float32 where C has integers or 8 bits."""


class GemmSpec(KernelSpec):
    """C = epilogue(alpha * op(A) * op(B) + beta * C), computed in float32, of float64 matrices in float64; products of 8-bit integers are
    summed up in int32."""

    mainloop_field: ClassVar[str] = "mainloop"

    kind: Literal["gemm"]
    order: Literal["row_major", "column_major"] = "row_major"
    """Storage order of C, and of A and B where they are not transposed."""
    transpose: Literal["nn", "nt", "tn", "tt"] = "nn"
    """One letter each for A and B: ``n`` as ``order`` says, ``t`` the other way."""
    alpha: Literal["argument", "one"] = "argument"
    """``one`` leaves the factor out of the kernel."""
    beta: Literal["argument", "zero"] = "argument"
    """``zero`` makes a kernel that never reads C."""
    scalars: Annotated[Literal["launch", "products"], LATER] = "launch"
    """``products``, of ``batch: strided``: ``alphas`` and ``betas`` hold factors for each product in the device's memory, in place of the
    numbers alpha and beta."""
    storage: Storage = Storage()
    scales: Annotated[Scales, LATER] = Scales.NONE
    """Block scales of A and B (``docs/formats.md``): each element is multiplied by the scale of its block."""
    batch: Literal["none", "strided", "grouped"] = "none"
    """``strided``: many products of one shape in one launch. A, B and C have a first dimension, ``batch``, with a separate stride,
    which may be 0 for A and B: all products then share that operand. ``grouped``: the rows of A and C belong to ``groups``, one after the
    other, each of which has a separate B: the experts of a mixture of experts. ``offsets``, in the device's memory, says where each group
    ends; rows beyond the last are left as they are. Values per column differ from group to group. Needs tensor cores."""
    grouping: Annotated[Grouping, LATER] = Grouping.SORTED
    """Rows of groups that do not follow one another, or are others of A or C (``docs/formats.md``)."""
    triangles: Annotated[Triangles, LATER] = Triangles.ALL
    """Triangular A, B and C. Need ``mma_sync`` or ``wgmma`` without clusters, and all of k in one block."""
    batch_invariant: Annotated[bool, LATER] = False
    """Promise that a row's result does not depend on how many rows there are: k is divided, and its parts are added up, in the same way
    for all of them. Refused where that depends on the sizes of a problem."""
    alignment: Alignment = Alignment()
    multiple_of: Multiples = Multiples()
    rasterization: Rasterization = Rasterization()
    cache: CacheHints = CacheHints()
    decomposition: Annotated[
        DataParallel | SplitKSerial | SplitKParallel | SplitKCluster | SplitKLast | StreamK, Field(discriminator="scheme")
    ] = DataParallel()
    """Division of the work among blocks where m and n alone give too few of them."""
    mainloop: Annotated[
        NaiveMainloop | GemvMainloop | TiledMainloop | WgmmaMainloop | TensorMemoryMainloop | MmaSyncMainloop | NarrowWeightsMainloop,
        Field(discriminator="strategy"),
    ]
    """The loop along k: its strategy, with its tiles and stages."""
    store: Literal["direct", "through_shared", "tma"] = "direct"
    """``through_shared``: every warp transposes its results in shared memory first, so that it stores (and loads C and the
    epilogue's operands) in whole vectors, side by side, for any layout of fragments; on tensor cores, an element by each lane, for rows
    that no other way stores well: those that do not begin at multiples of 16 bytes. ``tma``: groups of warps collect their results in
    shared memory, from where TMA takes them."""
    dual: Annotated[bool, LATER] = False
    """True if A is multiplied by a second matrix as well, B2, which is stored as B is. Formulas of the epilogue name the products ``acc``
    and ``acc2``, and C combines both. Needs alpha: one, beta: zero and all of k in one block."""
    epilogue: Operations = ()
    """Operations on each element before it is stored, in this order; or the fields of one formula (``docs/epilogues.md``)."""
    accuracy: Annotated[Literal["result", "full", "halves", "bfloat16", "in_turn"], LATER] = "result"
    """Accuracy of the epilogue's functions. ``result``: as much as the type of the output shows that needs them, so that outputs of 16
    bits or fewer come from approximate instructions, within a derived bound; ``full``: that of float32; ``halves``, ``bfloat16``: enough
    for such results, for results of any type; ``in_turn``: as bfloat16, with few multiply-adds beside another group that multiplies."""
    amax: Annotated[Literal["none", "stored", "unscaled"], LATER] = "none"
    """Raises ``amax``, a float32 in the device's memory, to the largest absolute value of the results before they are rounded to C's type;
    NaN counts as larger than all. ``unscaled``: before the factor that ends the epilogue. Needs tensor cores."""
    early_launch: bool = False
    """The kernels are brought to the SMs while the work before them in the stream still runs, and wait for it there (programmatic
    dependent launch). Needs sm_90."""
    constant: Annotated[tuple[Literal["a", "b"], ...], LATER] = ()
    """Operands that no work before the launch may still be writing, such as weights. With ``early_launch``, their first tiles are copied
    before the kernel waits for that work. Needs ``mainloop.strategy: wgmma``, or
    ``narrow_weights`` by streams or warpgroups."""

    @classmethod
    def with_current_names(cls, fields: dict[str, object]) -> dict[str, Any]:
        """The fields with current names of strategies, after a warning where a former one was used."""
        mainloop = fields.get("mainloop")
        former = mainloop.get("strategy") if isinstance(mainloop, dict) else None
        if not isinstance(mainloop, dict) or not isinstance(former, str) or former not in FORMER_STRATEGIES:
            return fields
        current = FORMER_STRATEGIES[former]
        warnings.warn(f"mainloop.strategy: {former} is now called {current}", FutureWarning, stacklevel=2)
        return fields | {"mainloop": mainloop | {"strategy": current}}

    def identity(self) -> dict[str, Any]:
        """The fields that determine the kernel and its name, with the former names of strategies."""
        fields = super().identity()
        names = {current: former for former, current in FORMER_STRATEGIES.items()}
        fields["mainloop"]["strategy"] = names.get(self.mainloop.strategy, self.mainloop.strategy)
        return fields
