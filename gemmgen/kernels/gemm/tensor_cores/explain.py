"""A plan of a GEMM on tensor cores in words."""

from __future__ import annotations

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.mma_sync.loop import FragmentVectors, WarpLoop, WarpOperand
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.spec import StreamK
from gemmgen.kernels.gemm.split_precision.planes import PlanesPlan
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, SPAN_BYTES, WarpgroupLoop, WarpgroupOperand
from gemmgen.kernels.tiles.unrolling import unrolling_text

Lines = tuple[tuple[str, str], ...]


def tensor_core_sections(plan: GemmPlan, loop: WarpgroupLoop) -> list[Section]:
    """Roles of the warps, tiles, copies, the mainloop, shared memory and stores."""
    return [
        Section("Roles", _roles(loop)),
        Section("Work", _work(plan, loop)),
        Section("Copies of one stage", _copies(loop)),
        Section("Mainloop", _mainloop(plan, loop)),
        Section("Shared memory", _shared(plan, loop)),
        *([Section("float32 by planes", _planes(plan.planes, loop.staggered))] if plan.planes is not None else []),
        Section("Results", _results(plan, loop)),
    ]


def warp_mma_sections(plan: GemmPlan, loop: WarpLoop) -> list[Section]:
    """Tiles, copies, the mainloop, shared memory and stores of a GEMM whose warps multiply fragments."""
    if loop.direct:
        return _direct_sections(plan, loop)
    warps = loop.threads // 32
    hierarchy = (
        ("threadblock", f"{loop.tile_m} x {loop.tile_n} of C by {warps} warp{'s' if warps > 1 else ''}, {loop.tile_k} of k at a time"),
        ("warp", f"{loop.warp_m} x {loop.warp_n} of C; {loop.sums} of a thread's registers hold sums"),
    )
    steps = loop.tile_k // loop.instruction_k
    products = 1 if plan.planes is None else plan.planes.scheme.products
    count = steps * loop.a.fragments * loop.b.fragments * products
    reads = steps * (loop.a.planes * loop.a.fragments + loop.b.planes * loop.b.fragments // 2)
    mainloop = (
        ("instruction", f"{loop.instruction}: 16 x 8 of C, {loop.instruction_k} of k"),
        (
            "one stage",
            f"{count} instructions of each warp, {reads} reads of four matrices (ldmatrix)",
        ),
        ("stages", f"{loop.stages}: all but one are filled while one is multiplied, with one barrier a stage"),
        ("unrolling", f"the loop over a stage's instructions along k, {unrolling_text(plan.spec.mainloop.unroll)}"),
        *([("fragments", "those of the next instructions are read while these multiply")] if loop.fragment_buffers == 2 else []),
    )
    return [
        Section("Tile hierarchy", hierarchy),
        Section("Work", _work(plan, loop)),
        Section("Copies of one stage", tuple((o.name, _copied(o)) for o in (loop.a, loop.b))),
        Section("Mainloop", mainloop),
        Section(
            "Shared memory", (*_regions(plan), ("layout", "16-byte pieces of a row are permuted by an exclusive or: no bank conflicts"))
        ),
        *([Section("float32 by planes", _planes(plan.planes, staggered=False))] if plan.planes is not None else []),
        Section("Results", _results(plan, loop)),
    ]


def _direct_sections(plan: GemmPlan, loop: WarpLoop) -> list[Section]:
    """Tiles, reads, the mainloop and stores of a GEMM whose warps read fragments from global memory."""
    several = "s of as many tiles, of any products" if loop.own_tiles > 1 else ""
    hierarchy = (
        ("threadblock", f"{loop.own_tiles} warp{several}"),
        ("warp", f"{loop.tile_m} x {loop.tile_n} of C, {loop.tile_k} of k at a time; {loop.sums} of a thread's registers hold sums"),
    )
    pairs = {True: "two neighbours along k at once", False: "two neighbours along k one by one"}
    reads: Lines = tuple((o.name, f"straight from global memory, through the L1: {pairs[o.reads_words]}") for o in (loop.a, loop.b))
    count = loop.parts * loop.a.fragments * loop.b.fragments
    instruction = f"{loop.instruction}: 16 x 8 of C, {loop.instruction_k} of k"
    if loop.vectors is not None:
        hierarchy = (hierarchy[0], ("warp", f"{loop.tile_m} x {loop.tile_n} of C at a time, over all of k, which is at most {loop.tile_k}"))
        a, b = (f"straight from global memory: {_fragment_vector(loop.vectors, o)}" for o in (loop.a, loop.b))
        reads = (("A", a), ("B", f"{b}; again where a warp's next tile has other columns"))
        columns = loop.vectors.columns * 4
        work = f"{count} instructions of each warp; every {columns} columns are stored before the next are multiplied"
        mainloop: Lines = (("instruction", instruction), ("one tile", work))
    else:
        mainloop = (("instruction", instruction), ("one step", f"{count} instructions of each warp, after all reads for them"))
    return [
        Section("Tile hierarchy", hierarchy),
        Section("Work", _work(plan, loop)),
        Section("Reads of one step" if loop.vectors is None else "Reads of one tile", reads),
        Section("Mainloop", mainloop),
        Section("Results", _results(plan, loop)),
    ]


def _fragment_vector(vectors: FragmentVectors, operand: WarpOperand) -> str:
    """The vectors that lanes read of an operand."""
    if operand.k_major:
        return f"{vectors.along_k} neighbours along k at once"
    count = vectors.rows if operand.name == "A" else vectors.columns
    return f"{count} neighbours along {operand.axis} at once, of two lines, whose halves come together by a permutation of bytes"


def _copied(operand: WarpOperand) -> str:
    along = "k" if operand.k_major else operand.axis
    if operand.boxed:
        boxes = f"{operand.spans} boxes" if operand.spans > 1 else "a box"
        size = f"{operand.box[1]} rows of {operand.box[0]} elements along {along}"
        return f"{boxes} of {size} by the copy engine: {operand.tile_bytes} bytes a stage"
    count = f"{operand.planes * operand.passes} of {operand.vector_bytes} bytes a thread"
    if operand.is_async:
        return f"{count} along {along}, asynchronous: {operand.tile_bytes} bytes a stage"
    turned = ", transposed so that rows run along k" if operand.turned else ""
    return f"{count} along {along}, through registers{turned}: {operand.tile_bytes} bytes a stage"


def _roles(loop: WarpgroupLoop) -> Lines:
    rows = loop.blocks_m * BLOCK_ROWS
    consumers = f"{loop.consumers} group{'s' if loop.consumers > 1 else ''} of four warps, {rows} x {loop.tile_n} of C each"
    if loop.ping_pong:
        consumers += ", on different tiles: one multiplies while the other stores"
    if loop.k_groups > 1:
        consumers += ", the same: they take parts of k in turns"
    lines = [
        ("producer", "a group of four warps, of which one thread keeps the stages full by the copy engine (TMA)"),
        ("consumers", consumers),
    ]
    if loop.registers:
        lines.append(("registers", f"redistributed: {loop.registers[0]} a thread for the producer, {loop.registers[1]} for consumers"))
    lines.append(("sums", f"{loop.sums} of a thread's registers hold sums"))
    return tuple(lines)


def _work(plan: GemmPlan, loop: WarpgroupLoop | WarpLoop) -> Lines:
    lines = [("tile", f"{loop.tile_m} x {loop.tile_n} of C, {loop.tile_k} of k at a time")]
    division = plan.spec.decomposition
    if isinstance(division, StreamK):
        lines.append(("grid", f"{division.blocks} blocks"))
    elif loop.persistent_blocks:
        how = "ask a counter for the next tile" if loop.dynamic else "take tiles in turn"
        lines.append(("grid", f"at most {loop.persistent_blocks} blocks, which {how}"))
    else:
        lines.append(("grid", "one block for each tile"))
    raster = plan.spec.rasterization
    along, across = (plan.minor, plan.major) if raster.along == "minor" else (plan.major, plan.minor)
    order = f"along {along}"
    if raster.group > 1:
        order = f"bands of {raster.group} tiles along {across}, walked along {along}: what runs together shares rows and columns in the L2"
    lines.append(("order of tiles", order))
    if loop.cluster_k > 1:
        lines.append(("division of k", f"{loop.cluster_k} blocks of a cluster have a part each; the first collects the sums, in order"))
    elif isinstance(division, StreamK):
        text = "the steps of tiles that fill no whole round of blocks, and of one round more, are distributed evenly; the block with a"
        lines += [
            ("division of k", text),
            ("", "tile's last step adds what others left of it in the workspace, in the order of the blocks"),
        ]
    elif plan.slices > 1 or plan.cut_at_launch:
        slices = "as many slices as the dimension slices says" if plan.cut_at_launch else f"{plan.slices} slices"
        adds = "a second kernel adds up in a fixed order"
        if plan.planes is not None:
            adds = "a kernel behind the product adds up in a fixed order, what additions round off included"
        lines.append(("division of k", f"{slices}, whose sums {adds}"))
    if loop.sharers > 1:
        axis, shared = ("m", "B") if loop.cluster_m > 1 else ("n", "A")
        lines.append(("cluster", f"{loop.sharers} blocks side by side along {axis} copy parts of one tile of {shared} to all of them"))
    if plan.copied is not None:
        names = " and ".join(factor.matrix.name for factor in plan.copied.factors)
        lines.append(("copied first", f"{names}, by a kernel of its own, to rows along k in the workspace that the copy engine can read"))
    if plan.grouped:
        lines.append(("groups", "blocks read where the rows of each group end, and count its tiles, from the first group on"))
        if loop.skips_rows:
            lines.append(("", "groups of warps whose rows of a tile do not exist let it pass, and the tile takes less time"))
    who = "by the copy engine, " if isinstance(loop, WarpgroupLoop) else ""
    lines.append(("edges", f"what lies outside of a matrix is filled with 0 {who}and not stored"))
    if plan.spec.early_launch:
        lines.append(("launch", "early: blocks come to the SMs while the work before them in the stream still runs, and wait for it there"))
    return tuple(lines)


def _copies(loop: WarpgroupLoop) -> Lines:
    def said(operand: WarpgroupOperand) -> str:
        along = "k" if operand.k_major else operand.axis
        boxes = operand.spans if operand.k_major else operand.parts
        count = f"{boxes} boxes" if boxes > 1 else "a box"
        return f"{count} of {operand.box[1]} rows of {operand.box[0]} elements along {along}: {operand.tile_bytes} bytes a stage"

    return tuple((operand.name, said(operand)) for operand in (loop.a, loop.b))


def _mainloop(plan: GemmPlan, loop: WarpgroupLoop) -> Lines:
    steps = loop.tile_k // loop.instruction_k
    count = steps * loop.blocks_m * loop.blocks_n
    lines = [
        ("instruction", f"{loop.instruction}: {BLOCK_ROWS} x {loop.instruction_n} of C, {loop.instruction_k} of k"),
        ("one stage", f"{count} instruction{'s' if count > 1 else ''} of each group, issued before those of the stage before are done"),
        ("stages", f"{loop.stages}: filled while others are multiplied; two barriers each, full and empty"),
        ("unrolling", f"the loop over a stage's instructions along k, {unrolling_text(plan.spec.mainloop.unroll)}"),
    ]
    if loop.a_in_registers:
        came = "come to registers" if plan.planes is None else "are split in registers"
        products = 1 if plan.planes is None else plan.planes.scheme.products
        lines[1] = ("one stage", f"{count * products // loop.k_groups} instructions of each group; their rows of A {came} first")
    if loop.promote_steps:
        parts = f", {loop.instruction_n} columns at a time" if loop.blocks_n > 1 else ""
        text = f"every {loop.promote_steps * loop.tile_k} of k, sums go from the tensor core, which keeps 14 bits, to float32{parts}"
        lines[1] = ("one stage", f"{count} instructions of each group")
        lines.append(("promotion", text))
    return tuple(lines)


def _regions(plan: GemmPlan) -> Lines:
    lines = []
    for region in plan.shared_memory:
        extents = "".join(f"[{extent}]" for extent in region.shape)
        last = region.offset + region.bytes - 1
        lines.append((region.name, f"bytes {region.offset} to {last}: {region.type}{extents}, {region.meaning}"))
    return tuple(lines)


def _shared(plan: GemmPlan, loop: WarpgroupLoop) -> Lines:
    lines = list(_regions(plan))
    lines.append(
        ("layout", f"rows of {SPAN_BYTES} bytes, whose 16-byte pieces are permuted by an exclusive or with the row's last 3 bits,")
    )
    lines.append(("", "as the copy engine writes them and matrix instructions read them: no bank conflicts"))
    blocks = loop.min_blocks_per_sm
    lines.append(("occupancy", f"{blocks} block{'s' if blocks > 1 else ''} of {loop.threads} threads on an SM"))
    return tuple(lines)


def _planes(planes: PlanesPlan, staggered: bool) -> Lines:
    scheme = planes.scheme
    promoted = planes.promoted_steps * scheme.instruction_k
    bounds = ", ".join(f"{planes.error_factor(k):.0f} u at k = {k}" for k in (16, 64, 1024, 16384))
    kind = "tf32" if scheme.type == "f32" else scheme.type
    scaled = ", rows of A and columns of B scaled by powers of two" if scheme.scaled else ""
    held = "numbers within 2^-28 of the largest of their row or column" if scheme.scaled else "numbers from 2^-100 to 2^63, and 0"
    made = "written to the workspace by a kernel before the product"
    if planes.kept_operand is not None:
        made = f"those of {planes.kept_operand.name} are an argument, the others are {made}"
    if planes.in_mainloop:
        made = "A's are made by the warps that multiply it, B's by a kernel before the product"
    turns = "; two groups of warps take turns to multiply and to add up" if staggered else ""
    leaves = f"the leading ones leave the tensor core every {promoted} of k"
    rounded_off = f"in float32; what an addition rounds off is kept with the smaller products{turns}"
    if planes.in_mainloop:
        leaves = f"the smaller ones first; their sum leaves the tensor core every {promoted} of k"
        rounded_off = "in float32; what an addition rounds off begins the next sum"
    elif planes.together:
        leaves = f"the smaller ones first; their sum leaves the tensor core every {promoted} of k"
        rounded_off = f"in float32; what an addition rounds off is kept beside them{turns}"
    return (
        ("planes", f"{scheme.planes} of {kind} for each operand{scaled}; {made}"),
        ("products", f"{scheme.products} for one of float32; {leaves}"),
        ("sums", rounded_off if planes.compensated else "in float32"),
        ("error", f"at most c u |A||B|, u = 2^-24; c is {bounds}, that of multiply-adds k"),
        ("holds", f"{held}; rows and columns with others a last kernel multiplies in float32, and all of them below"),
        ("", f"k = {planes.least_depth} in double precision"),
    )


def _neighbours_stored(loop: WarpgroupLoop | WarpLoop) -> int:
    """Neighbouring results that a lane stores at once."""
    return loop.vectors.columns if isinstance(loop, WarpLoop) and loop.vectors is not None else 2


def _writer(plan: GemmPlan) -> str:
    """The kernel that adds up slices."""
    if plan.planes is None:
        return "the second kernel"
    return "the kernel that adds them up" + (", and undoes the scales," if plan.planes.scheme.scaled else "")


def _results(plan: GemmPlan, loop: WarpgroupLoop | WarpLoop) -> Lines:
    how = {
        "boxes": "through shared memory, from where the copy engine takes boxes of 64 rows of 128 bytes",
        "pairs": "two neighbours at a time, straight from registers",
        "elements": "one by one, straight from registers",
        "vectors": f"{_neighbours_stored(loop)} neighbours at a time, straight from registers",
        "rows": "side by side, by way of shared memory, where a warp turns 16 rows around at a time",
        "turned": "side by side, by way of shared memory, where a warp turns 16 rows of 32 columns around at a time",
        "scaled": "two neighbours at a time, straight from registers, without the scales of their row and column",
        "partial": f"partial sums, straight from registers into the workspace; {_writer(plan)} writes C",
    }[plan.fragment_store]
    if loop.staging is not None and loop.staging.columns * plan.matrix_c.element_bytes != SPAN_BYTES:
        how = how.replace("128 bytes", f"{loop.staging.columns * plan.matrix_c.element_bytes} bytes")
    lines = [("stored", how)]
    if plan.grouped and loop.staging is not None:
        lines.append(("", "64 rows that reach into the next group leave row by row, in units of 16 bytes"))
    read = ["C"] if plan.spec.beta == "argument" else []
    read += [matrix.name for matrix in plan.residuals]
    if read and plan.fragment_store != "partial":
        lines.append(("read before", f"{' and '.join(read)}, two neighbours at a time{'; C only if beta is not 0' if 'C' in read else ''}"))
    return tuple(lines)
