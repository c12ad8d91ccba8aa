"""Planning of convolutions on tensor cores of sm_90a: the numbers derived from a spec, and reasons why some cannot work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.conv2d.checks import exact_reasons, mainloop_reasons
from gemmgen.kernels.conv2d.epilogue import INT8_HIGH, plan_operations, saturation_of
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.problem import channel_units, fixed_parameters
from gemmgen.kernels.conv2d.results import CONSTANT_NAMES, LayerConstant
from gemmgen.kernels.conv2d.spec import Cluster, Conv2dSpec, WarpgroupMainloop
from gemmgen.kernels.conv2d.tiles import CHANNELS
from gemmgen.kernels.conv2d.warpgroup import ROW_CHANNELS, SUM_BYTES, PixelLoop, StagedOutput, StagedRows, WarpgroupPlan
from gemmgen.kernels.conv2d.warpgroup_sequence import pixel_maps, warpgroup_sequence
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.epilogue.sums import stores_of
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.math.warpgroup import BARRIER_BYTES, INTEGER_COLUMNS, WARPGROUP, WarpgroupOperand
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_argument

ROW_LENGTHS = (32, 64, 128)
"""Bytes of a row in shared memory, which are the spans of swizzles."""
MARGIN = 8
"""Pixels behind those of a tile that are copied too, where filter taps share them: a group of rows of a swizzle."""
MAX_WALK, MAX_BOX = 1024, 256
"""Pixels that one copy walks along at most, and rows of a box."""


def plan_warpgroup(spec: Conv2dSpec, mainloop: WarpgroupMainloop, architecture: Architecture) -> WarpgroupPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    message = f"no kernel for this spec on {architecture.name}:"
    reasons = architecture_reasons(spec, architecture) + launch_reasons(spec.early_launch, spec)
    reasons += [
        *_field_reasons(spec, architecture),
        *tile_reasons(spec, mainloop),
        *output_reasons(spec, mainloop),
        *layer_reasons(spec, mainloop),
    ]
    if reasons:
        raise PlanError(message, reasons)
    loop = pixel_loop(spec, mainloop)
    staged = _staged(spec, mainloop, loop)
    regions = _regions(loop, staged)
    reasons += _resource_reasons(loop, regions, architecture)
    computed = spec.output.type != "s32" and saturation_of(spec) is None
    steps = plan_operations(spec, reasons) if computed else ()
    if reasons:
        raise PlanError(message, reasons)

    return planned(spec, mainloop, architecture, "conv2d/warpgroup.cu.j2", _name(spec, mainloop), loop, staged, regions, steps)


def planned(
    spec: Conv2dSpec,
    mainloop: WarpgroupMainloop,
    architecture: Architecture,
    template: str,
    name: str,
    loop: PixelLoop,
    staged: StagedOutput | StagedRows | None,
    regions: tuple[SharedRegion, ...],
    steps: tuple[Step, ...],
) -> WarpgroupPlan:
    """The plan of a spec that works: its launch, and the numbers that its template writes."""
    saturation = saturation_of(spec)
    walks = mainloop.activations != "rows"
    fixed = fixed_parameters(spec)
    taps = _taps(spec, mainloop)
    used = ["c", "k"]
    used += ["r", "s", "stride_h", "stride_w", "padding_h", "padding_w", "dilation_h", "dilation_w"] if walks else []
    used = [name for name in used if taps == 1 or name not in ("s", "stride_w", "dilation_w")]
    bordered = spec.zero_point != "none" and walks and (fixed.get("padding_h") != 0 or fixed.get("padding_w") != 0)
    constants = tuple(LayerConstant(CONSTANT_NAMES[name], fixed[name]) for name in used if name in fixed)
    written = {name: CONSTANT_NAMES[name] if name in fixed else name for name in used}
    divisors = {"tiles": f"ceil_div(k, {loop.tile_m * loop.cluster_m})"}
    divisors |= {"image_pixels": "(p * q)"} if walks or spec.output.layout != "nhwc" else {}
    divisors |= {"q": "q"} if walks else {}
    if taps > 1:
        divisors |= {"image_positions": f"(p * (q + {taps - 1}))", "row_positions": f"(q + {taps - 1})"}
        del divisors["image_pixels"], divisors["q"]
    if stores_of(steps):  # sums are written of a layer without pixels, too
        divisors = {name: f"max({count}, 1)" for name, count in divisors.items()}
    order: FilterOrder = "neighbours" if staged is not None and staged.element_bytes == 1 else "rows"
    if loop.vectors:
        order = "filled_neighbours" if order == "neighbours" else "filled_rows"
        divisors |= {name: of for name, of in (("inputs", "c"), ("columns", "s")) if of not in fixed}
    maps = pixel_maps(fixed.get("c")) if spec.input.layout == "nchw32" else 1
    passed = [name for name in used if name not in fixed] + (["h", "w"] if bordered or loop.vectors else [])
    shared_bytes = sum(region.bytes for region in regions)
    sequence = warpgroup_sequence(spec, name, loop, staged, order, passed, divisors, steps, taps, maps, walks, shared_bytes)
    return WarpgroupPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=sequence,
        template=template,
        shared_memory=regions,
        dynamic_shared_bytes=shared_bytes,
        spec=spec,
        filter_order=order,
        v=written,
        constants=constants,
        divisors=tuple(divisors),
        saturation=saturation,
        unit=saturation == (0.0, INT8_HIGH),
        biased=False,
        steps=steps,
        kernel_arguments=sequence.parameters_of(0),
        loop=loop,
        staged=staged,
        walks=walks,
        taps=taps,
        pixel_maps=maps,
        bordered=bordered,
    )


def pixel_loop(spec: Conv2dSpec, mainloop: WarpgroupMainloop, kind: type[PixelLoop] = PixelLoop) -> PixelLoop:
    """The mainloop in numbers."""
    tile, cluster = mainloop.tile, mainloop.cluster
    size = ELEMENTS[spec.input.type].bytes
    blocks = {cluster.share: cluster.blocks} if cluster is not None else {}
    cluster_m, cluster_n, cluster_k = (blocks.get(share, 1) for share in ("pixels", "filter", "tile"))
    filter_type = "s8" if spec.input.type == "u8" else spec.input.type
    taps = _taps(spec, mainloop)
    pixels = tile.pixels + (MARGIN if taps > 1 else 0)
    pixel_rows = mainloop.rows == "pixels"
    columns = tile.channels if pixel_rows else _instruction_pixels(mainloop)
    return kind(
        a=WarpgroupOperand("A", "m", True, tile.channels, tile.k, size, cluster_n, taps, tile.k * size),
        b=WarpgroupOperand("B", "n", True, pixels, tile.k, size, cluster_m, row_bytes=_pixel_bytes(spec, tile.k * size)),
        tile_m=tile.channels,
        tile_n=columns,
        tile_k=tile.k,
        instruction_n=columns,
        stages=mainloop.stages,
        consumers=mainloop.consumers,
        ping_pong=False,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        cluster_k=cluster_k,
        type_a=filter_type,
        type_b=spec.input.type,
        staging=None,
        promote_steps=0,
        registers=None,
        persistent_blocks=mainloop.persistent_blocks,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        division=mainloop.division,
        vectors=mainloop.activations == "vectors",
        pixel_rows=tile.pixels if pixel_rows else 0,
        unroll=unroll_argument(mainloop.unroll),
    )


def _taps(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> int:
    """Filter taps that share the pixels of a step."""
    return fixed_parameters(spec).get("s", 1) if mainloop.activations == "windows" else 1


def _pixel_bytes(spec: Conv2dSpec, step_bytes: int) -> int:
    """Channels of a pixel that lie side by side in memory, at most those of a step, in bytes: a row in shared memory."""
    return CHANNELS if spec.input.layout == "nchw32" else step_bytes


def _instruction_pixels(mainloop: WarpgroupMainloop) -> int:
    return mainloop.tile.pixels // (mainloop.consumers if mainloop.division == "pixels" else 1)


def _staged(spec: Conv2dSpec, mainloop: WarpgroupMainloop, loop: PixelLoop) -> StagedOutput | StagedRows | None:
    if spec.store == "direct":
        return None
    if loop.pixel_rows:
        return StagedRows(loop.tile_n, ELEMENTS[spec.output.type].bytes)
    row = CHANNELS if spec.output.layout == "nchw32" else ROW_CHANNELS
    return StagedOutput(loop.tile_n, loop.blocks_m, ELEMENTS[spec.output.type].bytes, row, mainloop.store_buffers)


def _field_reasons(spec: Conv2dSpec, architecture: Architecture) -> Iterator[Reason]:
    if not architecture.supports("wgmma"):
        yield Reason("wgmma", "mainloop.strategy", f"warpgroup on {architecture.name}", "sm_90a", "architecture: sm_90a")
    yield from mainloop_reasons(spec)


def tile_reasons(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> Iterator[Reason]:
    """Extents of a tile that instructions, copies or clusters do not take."""
    tile, size = mainloop.tile, ELEMENTS[spec.input.type].bytes
    if mainloop.rows == "pixels":
        yield from _pixel_row_reasons(spec, mainloop)
        return
    channels = ROW_CHANNELS * (mainloop.consumers if mainloop.division == "channels" else 1)
    if tile.channels % channels:
        need = f"a multiple of {channels}: {ROW_CHANNELS} for each group of consumers with separate channels"
        yield Reason("tile_channels", "mainloop.tile.channels", str(tile.channels), need)
    if tile.k * size not in ROW_LENGTHS:
        lengths = ", ".join(str(length // size) for length in ROW_LENGTHS)
        yield Reason("tile_k", "mainloop.tile.k", str(tile.k), f"one of {lengths}: rows of 32, 64 or 128 bytes")
    pixels = _instruction_pixels(mainloop)
    if pixels * (mainloop.consumers if mainloop.division == "pixels" else 1) != tile.pixels or pixels not in INTEGER_COLUMNS or pixels % 32:
        need = "a multiple of 32 up to 256" + (f", {mainloop.consumers} times" if mainloop.division == "pixels" else "")
        yield Reason("tile_pixels", "mainloop.tile.pixels", str(tile.pixels), need)
    cluster = mainloop.cluster
    parts = cluster.blocks if cluster is not None else 1
    share = cluster.share if cluster is not None else ""
    for name, extent, shared, most in (
        ("channels", tile.channels, parts if share == "filter" else 1, MAX_BOX),
        ("pixels", tile.pixels, parts if share == "pixels" else 1, MAX_WALK if mainloop.activations != "rows" else MAX_BOX),
    ):
        if extent % (8 * shared):
            yield Reason("cluster", f"mainloop.tile.{name}", str(extent), f"a multiple of {8 * shared}: 8 for each of {shared} blocks")
        if extent // shared > most:
            yield Reason("box", f"mainloop.tile.{name}", str(extent), f"at most {most * shared}, the largest box of a copy")
    if share == "tile" and mainloop.persistent_blocks:
        yield _no_turns(mainloop)
    if mainloop.persistent_blocks % parts:
        need = f"a multiple of {parts}, the blocks of a cluster"
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), need)


def _pixel_row_reasons(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> Iterator[Reason]:
    """Extents of a tile, and fields, that kernels whose rows are pixels do not take."""
    tile, size = mainloop.tile, ELEMENTS[spec.input.type].bytes
    if tile.channels % 8 or tile.channels > MAX_BOX:
        yield Reason("tile_channels", "mainloop.tile.channels", str(tile.channels), f"a multiple of 8 up to {MAX_BOX} with rows: pixels")
    unit = ROW_CHANNELS * mainloop.consumers
    if tile.pixels % unit or tile.pixels > MAX_BOX:
        need = f"a multiple of {unit} up to {MAX_BOX}: {ROW_CHANNELS} for each group of consumers with rows: pixels"
        yield Reason("tile_pixels", "mainloop.tile.pixels", str(tile.pixels), need)
    if tile.k * size != ROW_LENGTHS[-1]:
        yield Reason("tile_k", "mainloop.tile.k", str(tile.k), f"{ROW_LENGTHS[-1] // size}: rows of {ROW_LENGTHS[-1]} bytes")
    if mainloop.consumers > 1 and mainloop.division != "pixels":
        yield Reason("rows", "mainloop.division", mainloop.division, "pixels with rows: pixels")
    if mainloop.cluster is not None:
        yield from _row_cluster_reasons(mainloop, mainloop.cluster, size)
    if mainloop.activations not in ("im2col", "vectors"):
        yield Reason("rows", "mainloop.activations", mainloop.activations, "im2col or vectors with rows: pixels")
    if not ELEMENTS[spec.input.type].is_float or spec.output.type not in ("f16", "bf16") or spec.output.layout != "nhwc":
        got = f"{spec.input.type} to {spec.output.type} in {spec.output.layout}"
        yield Reason("rows", "output", got, "f16 or bf16 to f16 or bf16 in nhwc with rows: pixels")
    if spec.store != "shared":
        yield Reason("rows", "store", spec.store, "shared with rows: pixels")


def _row_cluster_reasons(mainloop: WarpgroupMainloop, cluster: Cluster, size: int) -> Iterator[Reason]:
    """Clusters that kernels whose rows are pixels do not have: they share filters, or divide sums, which take the place of tiles."""
    tile = mainloop.tile
    if cluster.share == "filter":
        if tile.channels % (8 * cluster.blocks):
            need = f"a multiple of {8 * cluster.blocks}: 8 for each of {cluster.blocks} blocks"
            yield Reason("cluster", "mainloop.tile.channels", str(tile.channels), need)
        if mainloop.persistent_blocks % cluster.blocks:
            need = f"a multiple of {cluster.blocks}, the blocks of a cluster"
            yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), need)
        return
    if cluster.share != "tile":
        yield Reason("rows", "mainloop.cluster.share", cluster.share, "filter or tile with rows: pixels")
    if mainloop.persistent_blocks:
        yield _no_turns(mainloop)
    room = mainloop.stages * (tile.channels + tile.pixels) * tile.k * size
    taken = (cluster.blocks - 1) * tile.channels * tile.pixels * SUM_BYTES
    if taken > room:
        need = f"at most {room} bytes of other blocks' sums: those of the tiles, whose place they take with rows: pixels"
        yield Reason("rows", "mainloop.cluster.blocks", f"{cluster.blocks} ({taken} bytes)", need, "more stages")


def _no_turns(mainloop: WarpgroupMainloop) -> Reason:
    need = "0 with share: tile: a cluster computes one tile"
    return Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), need)


def output_reasons(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> Iterator[Reason]:
    """Types, layouts and stores of results that do not go together."""
    kind, layout = spec.output.type, spec.output.layout
    floating = spec.input.type in ("f16", "bf16")
    if layout == "nchw4":
        yield Reason("output", "output.layout", layout, "nhwc or nchw32 for mainloop")
    if layout == "nchw32" and ELEMENTS[kind].bytes == 2 and spec.store != "direct":
        yield Reason("store", "store", spec.store, f"direct for {kind} in NCHW32")
    if spec.input.layout == "nchw32" and floating:
        yield Reason("input", "input.layout", spec.input.layout, f"nhwc for {spec.input.type}")
    if spec.store == "tma" and layout == "nchw32":
        yield Reason("store", "store", spec.store, "shared or direct for NCHW32: tiles go over the ends of images")
    if spec.store != "tma" and mainloop.store_buffers > 1:
        need = "1 but with store: tma, where TMA reads results behind the consumers' back"
        yield Reason("store", "mainloop.store_buffers", str(mainloop.store_buffers), need, "store: tma")
    if spec.store != "direct" and ELEMENTS[kind].bytes > 2:
        yield Reason("store", "store", spec.store, f"direct for {kind}")
    if spec.zero_point != "none" and (floating or mainloop.activations in ("windows", "vectors")):
        yield Reason("zero_point", "zero_point", spec.zero_point, "none for floating-point types, and with activations: windows or vectors")
    yield from exact_reasons(spec)


def layer_reasons(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> Iterator[Reason]:
    """Layers whose pixels the copies do not find."""
    fixed = fixed_parameters(spec)
    if fixed.get("groups") != 1:
        yield from _group_reasons(spec, mainloop, fixed)
    if mainloop.activations == "rows":
        if spec.input.layout == "nchw32":
            need, hint = "im2col for NCHW32, whose pixels end with each image", "activations: im2col"
            yield Reason("rows", "mainloop.activations", mainloop.activations, need, hint)
        for name in ("r", "s", "stride_h", "stride_w", "padding_h", "padding_w"):
            wanted = 0 if name.startswith("padding") else 1
            if fixed.get(name) != wanted:
                need = f"{wanted} with activations: rows, which are pixels as they lie in memory"
                yield Reason("rows", f"convolution.{name}", str(getattr(spec.convolution, name)), need, "activations: im2col")
    if mainloop.activations == "vectors":
        yield from _vector_reasons(spec, mainloop)
    if mainloop.activations == "windows":
        yield from _window_reasons(spec, mainloop, fixed)
    unit = channel_units(spec)[0]
    if fixed.get("c", unit) % unit:
        yield Reason(
            "channels",
            "convolution.c",
            str(fixed["c"]),
            f"a multiple of {unit}: strides are multiples of 16 bytes, which TMA requires, and copies of vectors",
        )


def _group_reasons(spec: Conv2dSpec, mainloop: WarpgroupMainloop, fixed: Mapping[str, int]) -> Iterator[Reason]:
    """Why a tile would have channels of several groups."""
    if not {"groups", "c", "k"} <= fixed.keys() or not isinstance(mainloop, WarpgroupMainloop):
        yield Reason("groups", "convolution.groups", str(spec.convolution.groups), "1, or a number with numbers of channels, for mainloop")
        return
    for name, tile, of in (("c", mainloop.tile.k, "k"), ("k", mainloop.tile.channels, "channels")):
        if fixed[name] % (fixed["groups"] * tile):
            got = f"{fixed[name] / fixed['groups']:g} channels in a group"
            yield Reason("groups", f"convolution.{name}", got, f"a multiple of mainloop.tile.{of}, {tile}, with several groups")
    shares_pixels = mainloop.cluster is not None and mainloop.cluster.share == "pixels"
    if shares_pixels or mainloop.activations == "vectors" or spec.input.layout != "nhwc" or spec.zero_point != "none":
        need = "1 for clusters that share pixels, vectors, NCHW32 and zero points"
        yield Reason("groups", "convolution.groups", str(fixed["groups"]), need, "activations: im2col")


def _vector_reasons(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> Iterator[Reason]:
    """Why threads cannot copy x."""
    if spec.input.layout != "nhwc":
        yield Reason("vectors", "input.layout", spec.input.layout, "nhwc with activations: vectors", "activations: im2col")
    if mainloop.cluster is not None and mainloop.cluster.share == "pixels":
        need = "filter or tile with activations: vectors, where each block copies its own pixels"
        yield Reason("vectors", "mainloop.cluster.share", mainloop.cluster.share, need)
    if mainloop.tile.k * ELEMENTS[spec.input.type].bytes != ROW_LENGTHS[-1]:
        need = f"{ROW_LENGTHS[-1] // ELEMENTS[spec.input.type].bytes} with activations: vectors: rows of {ROW_LENGTHS[-1]} bytes"
        yield Reason("vectors", "mainloop.tile.k", str(mainloop.tile.k), need)


def _window_reasons(spec: Conv2dSpec, mainloop: WarpgroupMainloop, fixed: Mapping[str, int]) -> Iterator[Reason]:
    """Why taps of a row of the filter cannot share pixels."""
    for name in ("stride_w", "dilation_w"):
        if fixed.get(name) != 1:
            got = str(getattr(spec.convolution, name))
            yield Reason("windows", f"convolution.{name}", got, "1 with activations: windows", "activations: im2col")
    if not 2 <= fixed.get("s", 0) <= MARGIN + 1:
        need = f"2 to {MARGIN + 1} with activations: windows"
        yield Reason("windows", "convolution.s", str(spec.convolution.s), need, "activations: im2col")
    if spec.input.layout != "nhwc" or spec.output.layout != "nhwc" or spec.store != "shared":
        need = "nhwc for x and y, and store: shared, with activations: windows"
        yield Reason("windows", "output", f"{spec.input.layout} to {spec.output.layout}, {spec.store}", need)
    if mainloop.cluster is not None and mainloop.cluster.share == "pixels":
        yield Reason("windows", "mainloop.cluster.share", "pixels", "filter with activations: windows")


def tile_regions(loop: PixelLoop, staged: StagedOutput | StagedRows | None) -> tuple[SharedRegion, ...]:
    """Tiles and staged results in shared memory of a block."""
    regions: list[SharedRegion] = []

    for name, operand, element, row in (("tiles_filter", loop.a, loop.type_a, "channel"), ("tiles_x", loop.b, loop.type_b, "pixel")):
        meaning = f"tiles of {name.removeprefix('tiles_')}, [stage][{row}][k], rows of {operand.row_bytes} bytes, swizzled"
        shape: tuple[int, ...] = (loop.stages, operand.planes * operand.extent, operand.span_elements)
        _add(regions, name, ELEMENTS[element].c_type, shape, loop.stages * operand.tile_bytes, meaning)
    if isinstance(staged, StagedRows):
        shape = (loop.consumers, staged.group_bytes // staged.pitch, staged.pitch)
        size = loop.consumers * staged.group_bytes
        _add(regions, "staging", "unsigned char", shape, size, "staged results, [group][pixel][byte], of 16 pixels for each warp")
    elif staged is not None:
        shape = (loop.consumers, staged.buffers * staged.blocks * staged.rows, staged.pixels, staged.row_bytes)
        size = loop.consumers * staged.group_bytes
        _add(regions, "staging", "unsigned char", shape, size, "staged results, [group][channels][pixel][byte], swizzled")
    return tuple(regions)


def _add(regions: list[SharedRegion], name: str, type: str, shape: tuple[int, ...], size: int, meaning: str) -> None:
    offset = regions[-1].offset + regions[-1].bytes if regions else 0
    regions.append(SharedRegion(name, type, shape, offset, size, meaning))


def _regions(loop: PixelLoop, staged: StagedOutput | StagedRows | None) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: tiles, staged results, barriers."""
    regions = [*tile_regions(loop, staged)]
    if loop.cluster_k > 1 and not loop.sums_over_tiles:
        registers = loop.blocks_m * loop.tile_n // 2
        shape = (loop.cluster_k - 1, registers // 4, WARPGROUP * loop.consumers, 4)
        meaning = "sums of the cluster's other blocks, [block - 1][register / 4][thread][register % 4]"
        _add(regions, "sums", loop.accumulator, shape, loop.sums_bytes, meaning)
    meaning = "for each stage: it is full, it is empty"
    _add(regions, "barriers", "unsigned long long", (loop.barriers,), BARRIER_BYTES * loop.barriers, meaning)
    return tuple(regions)


def _resource_reasons(loop: PixelLoop, regions: tuple[SharedRegion, ...], architecture: Architecture) -> Iterator[Reason]:
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads)
    limit = min(architecture.registers_per_thread, loop.registers_at_once(architecture.registers_per_sm))
    yield from resident.too_many_sums(loop.sums, limit, "mainloop.tile", "a smaller tile or fewer blocks")
    yield from resident.too_much_per_block(sum(region.bytes for region in regions))


def _name(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> str:
    tile = mainloop.tile
    parts = ["wgmma", spec.input.type, f"{tile.channels}x{tile.pixels}x{tile.k}", f"s{mainloop.stages}"]
    parts += [f"g{mainloop.consumers}{'p' if mainloop.division == 'pixels' else ''}"]
    if mainloop.min_blocks_per_sm > 1:
        parts.append(f"b{mainloop.min_blocks_per_sm}")
    if mainloop.cluster is not None:
        parts.append(f"cl{mainloop.cluster.blocks}{mainloop.cluster.share[0]}")
    if mainloop.activations == "rows":
        parts.append("1x1")
    if mainloop.activations in ("windows", "vectors"):
        parts.append(mainloop.activations)
    if mainloop.rows == "pixels":
        parts.append("rows")
    if mainloop.store_buffers > 1:
        parts.append(f"o{mainloop.store_buffers}")
    if spec.input.layout == "nchw32":
        parts.append("of_nchw32")
    parts.append(f"{spec.output.type}_{spec.output.layout}")
    return instance_name("conv2d", parts, spec)
