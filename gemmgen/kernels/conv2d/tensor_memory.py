"""Planning of convolutions on tensor memory of sm_100a (``tcgen05``): a tile has 128 output channels, and a column for each pixel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.conv2d.checks import mainloop_reasons
from gemmgen.kernels.conv2d.epilogue import plan_operations, saturation_of
from gemmgen.kernels.conv2d.problem import fixed_parameters
from gemmgen.kernels.conv2d.spec import Conv2dSpec, TensorMemoryMainloop, WarpgroupMainloop
from gemmgen.kernels.conv2d.tiles import CHANNELS
from gemmgen.kernels.conv2d.warpgroup import ROW_CHANNELS, PixelLoop, StagedOutput, WarpgroupPlan
from gemmgen.kernels.conv2d.warpgroup_plan import layer_reasons, output_reasons, pixel_loop, planned, tile_reasons, tile_regions
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.math.tensor_memory import (
    BUFFERS,
    COLUMNS,
    KINDS,
    ROWS,
    TENSOR_COLUMNS,
    UNITS,
    WARPS,
    allocated_columns,
    instruction_form,
)
from gemmgen.kernels.math.warpgroup import BARRIER_BYTES, OTHER_REGISTERS
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons
from gemmgen.kernels.tiles.resources import ResidentBlocks

TEMPLATE = "conv2d/tcgen05.cu.j2"


@dataclass(frozen=True)
class TensorPixelLoop(PixelLoop):
    """A mainloop whose sums lie in tensor memory: a lane for each output channel, a column for each pixel."""

    @property
    def threads(self) -> int:
        """Threads of a block: four warps that finish results, one that copies, one that multiplies."""
        return WARP_THREADS * WARPS

    @property
    def sums(self) -> int:
        """Registers of a thread that hold sums: those of 32 lanes and ``COLUMNS`` columns in a warp."""
        return COLUMNS

    @property
    def estimated_registers(self) -> int:
        """Registers of a thread that finishes results."""
        return self.sums + OTHER_REGISTERS

    @property
    def kind(self) -> str:
        """The kind of instruction."""
        return KINDS[self.type_a]

    @property
    def unit(self) -> str:
        """Peak of a device that the products run at."""
        return f"{UNITS[self.kind]}_tcgen05"

    @property
    def form_text(self) -> str:
        """The instruction descriptor as CUDA writes it."""
        return f"0x{instruction_form(self.type_a, self.type_b, ROWS * self.cluster_m, self.tile_n):08x}u"

    @property
    def load_function(self) -> str:
        """The device function that loads sums from tensor memory."""
        return "load_tensor_integers" if self.accumulator == "int" else "load_tensor_columns"

    @property
    def tensor_columns(self) -> int:
        """Columns of tensor memory that a block allocates."""
        return allocated_columns(BUFFERS * self.tile_n)

    @property
    def barriers(self) -> int:
        """Two for each stage and two for each set of sums."""
        return 2 * self.stages + 2 * BUFFERS

    @property
    def finished_pixels(self) -> str:
        """The constant that says how many pixels' results are finished at a time."""
        return "kColumns"

    @property
    def channel_block(self) -> str:
        """The expression of a result's block of 64 channels."""
        return "warp / 2"

    @property
    def channels_of_block(self) -> str:
        """The constant that says how many channels such a block has."""
        return "kBlockChannels"

    @property
    def sixteen_channels(self) -> str:
        """The expression of a result's 16 channels in such a block."""
        return "(warp % 2 * kBlocksM + block)"


def _one_group(spec: Conv2dSpec) -> Iterator[Reason]:
    """Why a layer with several groups has no kernel here."""
    if fixed_parameters(spec).get("groups") != 1:
        yield Reason("groups", "convolution.groups", str(spec.convolution.groups), "1 for mainloop.strategy: tensor_memory")


def plan_tensor_memory(spec: Conv2dSpec, mainloop: TensorMemoryMainloop, architecture: Architecture) -> WarpgroupPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    message = f"no kernel for this spec on {architecture.name}:"
    copied = _like_warpgroups(spec, mainloop)
    reasons = architecture_reasons(spec, architecture) + launch_reasons(spec.early_launch, spec)
    reasons += [
        *_reasons(spec, mainloop, architecture),
        *tile_reasons(spec, copied),
        *output_reasons(spec, copied),
        *layer_reasons(spec, copied),
        *_one_group(spec),
    ]
    if reasons:
        raise PlanError(message, reasons)
    loop = pixel_loop(spec, copied, TensorPixelLoop)
    assert isinstance(loop, TensorPixelLoop)
    if mainloop.pair:
        loop = replace(loop, pair=True, cluster_m=2, b=replace(loop.b, extent=mainloop.tile.pixels // 2))
    staged = _staged(spec, copied)
    regions = (*tile_regions(loop, staged), *_barriers(loop, tile_regions(loop, staged)))
    reasons += ResidentBlocks(architecture, 1, loop.threads).too_much_per_block(sum(region.bytes for region in regions))
    computed = spec.output.type != "s32" and saturation_of(spec) is None
    steps = plan_operations(spec, reasons) if computed else ()
    if reasons:
        raise PlanError(message, reasons)
    return planned(spec, copied, architecture, TEMPLATE, _name(spec, mainloop), loop, staged, regions, steps)


def _like_warpgroups(spec: Conv2dSpec, mainloop: TensorMemoryMainloop) -> WarpgroupMainloop:
    """The mainloop of warpgroups that has the same tiles, copies and stores."""
    return WarpgroupMainloop(
        strategy="warpgroup",
        tile=mainloop.tile,
        stages=mainloop.stages,
        consumers=1,
        activations=mainloop.activations,
        persistent_blocks=mainloop.persistent_blocks,
        store_buffers=2 if spec.store == "tma" else 1,
    )


def _reasons(spec: Conv2dSpec, mainloop: TensorMemoryMainloop, architecture: Architecture) -> Iterator[Reason]:
    if not architecture.supports("tcgen05"):
        need = "sm_100a, sm_103a or sm_110a"
        yield Reason("tcgen05", "mainloop.strategy", f"tcgen05 on {architecture.name}", need, "architecture: sm_100a")
    elif not ELEMENTS[spec.input.type].is_float and not architecture.supports("tcgen05_int8"):
        got = f"{spec.input.type} on {architecture.name}"
        need = "a type other than 8-bit integers, which its tcgen05 does not multiply"
        yield Reason("tcgen05", "input.type", got, need, "architecture: sm_100a")
    if mainloop.tile.channels != ROWS:
        yield Reason("tile_channels", "mainloop.tile.channels", str(mainloop.tile.channels), f"{ROWS}, the lanes of tensor memory")
    if allocated_columns(BUFFERS * mainloop.tile.pixels) > TENSOR_COLUMNS:
        yield Reason("tile_pixels", "mainloop.tile.pixels", str(mainloop.tile.pixels), f"at most {TENSOR_COLUMNS // BUFFERS}")
    if mainloop.pair and mainloop.persistent_blocks % 2:
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), "even with pair: true")
    if mainloop.pair and mainloop.tile.pixels % 32:
        need = "a multiple of 32 with pair: true, of which each block copies half"
        yield Reason("tile_pixels", "mainloop.tile.pixels", str(mainloop.tile.pixels), need)
    if mainloop.pair and spec.input.layout == "nchw32":
        yield Reason("layout", "input.layout", "nchw32 with pair: true", "nhwc", "pair: false")
    yield from mainloop_reasons(spec)


def _staged(spec: Conv2dSpec, mainloop: WarpgroupMainloop) -> StagedOutput | None:
    if spec.store == "direct":
        return None
    row = CHANNELS if spec.output.layout == "nchw32" else ROW_CHANNELS
    return StagedOutput(COLUMNS, ROWS // ROW_CHANNELS, ELEMENTS[spec.output.type].bytes, row, mainloop.store_buffers)


def _barriers(loop: TensorPixelLoop, before: tuple[SharedRegion, ...]) -> tuple[SharedRegion, ...]:
    """Barriers behind the tiles, and the address of the sums."""
    first, size = before[-1].offset + before[-1].bytes, BARRIER_BYTES * loop.barriers
    meaning = "for each stage: it is full, it is empty; for each set of sums: it is complete, it has been read"
    barriers = SharedRegion("barriers", "unsigned long long", (loop.barriers,), first, size, meaning)
    address = SharedRegion("address", "unsigned", (2,), first + size, BARRIER_BYTES, "the address of the sums in tensor memory")
    return barriers, address


def _name(spec: Conv2dSpec, mainloop: TensorMemoryMainloop) -> str:
    tile = mainloop.tile
    channels = tile.channels * (2 if mainloop.pair else 1)
    parts = ["tcgen05", spec.input.type, f"{channels}x{tile.pixels}x{tile.k}", f"s{mainloop.stages}"]
    parts += ["1x1"] if mainloop.activations == "rows" else []
    parts += ["of_nchw32"] if spec.input.layout == "nchw32" else []
    return instance_name("conv2d", [*parts, f"{spec.output.type}_{spec.output.layout}"], spec)
