"""Reasons against a convolution spec, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.conv2d.problem import HELPER, fixed_parameters
from gemmgen.kernels.conv2d.spec import MAX_DEPTH, MAX_LAUNCH_EXTENT, Conv2dSpec
from gemmgen.kernels.conv2d.tiles import CHANNELS, OperandTile
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.launch import GRID_LIMITS
from gemmgen.kernels.tiles.resources import ResidentBlocks

TAP_BYTES = 8
EXACT_FLOAT_DEPTH = 256
"""Number of products whose sum stays within 2^22, so that 1.5 * 2^23 plus the sum is an exact float32."""
OTHER_PARAMETER_BYTES = 256
"""Most bytes of a kernel's parameters beside the table."""
_ONLY_MMA = (
    "gemm_m",
    "copy_through",
    "input_cache",
    "stages",
    "increments",
    "maximum_taps",
    "float_conversion",
    "split_k",
    "rasterization",
    "persistent_blocks",
    "min_blocks_per_sm",
    "unroll",
)
"""Fields that say something about products by ``mma`` alone."""


def shape_reasons(spec: Conv2dSpec, architecture: Architecture) -> list[Reason]:
    """Contradictions in the layer, the sums, the output and the table."""
    reasons = _channel_reasons(spec) + _output_reasons(spec)
    fixed = fixed_parameters(spec)
    if fixed.get("groups", 1) > GRID_LIMITS[1]:
        need = f"at most {GRID_LIMITS[1]}, the blocks that a grid can have in that direction"
        reasons.append(Reason("groups", "convolution.groups", str(fixed["groups"]), need))
    depth = _fewest_channels(fixed) * fixed.get("r", 1) * fixed.get("s", 1)
    if depth > spec.maximum_depth:
        need = f"at most {spec.maximum_depth} products in a sum"
        hint = "more could overflow int32" if spec.maximum_depth == MAX_DEPTH else "raise maximum_depth"
        reasons.append(Reason("depth", "convolution", f"at least {depth} = c / groups * r * s", need, hint))
    if spec.float_conversion == "addition":
        limit = depth_limit(spec)
        if limit > EXACT_FLOAT_DEPTH:
            hint = f"set maximum_depth: {EXACT_FLOAT_DEPTH}"
            reasons.append(Reason("float_conversion", "float_conversion", f"up to {limit} products", f"at most {EXACT_FLOAT_DEPTH}", hint))
        if spec.output.type == "s32" or spec.split_k > 1:
            need = "instruction, because sums stay integers" if spec.output.type == "s32" else "instruction, with split_k"
            reasons.append(Reason("float_conversion", "float_conversion", "addition", need))
    if spec.increments == "precomputed":
        for name in ("r", "s"):
            if fixed.get(name, 1) > MAX_LAUNCH_EXTENT:
                need = f"at most {MAX_LAUNCH_EXTENT} with increments: precomputed"
                reasons.append(Reason("table", f"convolution.{name}", str(fixed[name]), need, "use increments: computed"))
        most = architecture.portable_parameter_bytes - OTHER_PARAMETER_BYTES
        taps = fixed["r"] * fixed["s"] if "r" in fixed and "s" in fixed else spec.maximum_taps
        if taps * TAP_BYTES > most:
            got = f"{taps} taps of {TAP_BYTES} bytes"
            reasons.append(Reason("table", "maximum_taps", got, f"at most {most} bytes of kernel parameters", "use increments: computed"))
    return reasons


def _fewest_channels(fixed: Mapping[str, int]) -> int:
    """The fewest input channels that a group can have; as many groups as divide the blocks on both sides, if they are open."""
    if "c" not in fixed:
        return CHANNELS
    blocks = fixed["c"] // CHANNELS
    most_groups = gcd(blocks, fixed["k"] // CHANNELS) if "k" in fixed else blocks
    return fixed["c"] // fixed.get("groups", max(1, most_groups))


def depth_limit(spec: Conv2dSpec) -> int:
    """The most products that a sum can have."""
    fixed = fixed_parameters(spec)
    if all(name in fixed for name in ("c", "groups", "r", "s")):
        return min(spec.maximum_depth, fixed["c"] // fixed["groups"] * fixed["r"] * fixed["s"])
    return spec.maximum_depth


def _channel_reasons(spec: Conv2dSpec) -> list[Reason]:
    reasons = []
    fixed = fixed_parameters(spec)
    groups = fixed.get("groups", 1)
    for name in ("c", "k"):
        if name in fixed and fixed[name] % (CHANNELS * groups):
            need = "a multiple of 32" + (f" in each of {groups} groups" if groups > 1 else "")
            reasons.append(Reason("channels", f"convolution.{name}", str(fixed[name]), need, HELPER))
    return reasons


def _output_reasons(spec: Conv2dSpec) -> list[Reason]:
    reasons = []
    for field, got, allowed in (
        ("output.type", spec.output.type, ("s8", "s32", "f32")),
        ("input.type", spec.input.type, ("s8",)),
        ("input.layout", spec.input.layout, ("nchw32",)),
        ("alpha", spec.alpha, ("argument", "one")),
        ("store", spec.store, ("shared", "direct")),
        ("zero_point", spec.zero_point, ("none",)),
    ):
        if got not in allowed:
            reasons.append(Reason("mainloop", field, got, f"{' or '.join(allowed)} without a mainloop of strategy warpgroup"))
    return [*reasons, *exact_reasons(spec)]


def exact_reasons(spec: Conv2dSpec) -> Iterator[Reason]:
    """Fields that do not go with results that are the sums themselves."""
    if spec.output.type != "s32":
        return
    for name, matters in (("alpha", True), ("beta", spec.bias != "none"), ("gamma", spec.residual)):
        if matters and getattr(spec, name) != "one":
            yield Reason("exact_output", name, getattr(spec, name), "one, because s32 results are exact integers")
    if spec.bias == "f32":
        yield Reason("exact_output", "bias", "f32", "s32 or none, because s32 results are exact integers")
    if spec.epilogue:
        yield Reason("exact_output", "epilogue", "operations", "none, because s32 results are exact integers")
    if spec.activation.op not in ("none", "relu"):
        yield Reason("exact_output", "activation", spec.activation.op, "none or relu, because s32 results are exact integers")


def mainloop_reasons(spec: Conv2dSpec) -> Iterator[Reason]:
    """Fields that say something about products by ``mma`` alone, and other types of results than floating-point sums have."""
    for name in _ONLY_MMA:
        default = type(spec).model_fields[name].default
        if getattr(spec, name) != default:
            need = f"{default}, the default: it says something about products by mma alone"
            hint = f"mainloop.{name}" if hasattr(spec.mainloop, name) else ""
            yield Reason("mainloop", name, str(getattr(spec, name)), need, hint)
    if spec.output.type == "s32" and ELEMENTS[spec.input.type].is_float:
        yield Reason("output", "output.type", spec.output.type, f"a floating-point type, s8 or u8 for {spec.input.type}")


def tile_reasons(spec: Conv2dSpec, architecture: Architecture) -> list[Reason]:
    """Mistakes in the tile hierarchy and the copies, before numbers can be derived from it."""
    reasons: list[Reason] = []
    tile = spec.warp_tiles
    for axis in ("m", "n"):
        block, warp = getattr(tile.threadblock, axis), getattr(tile.warp, axis)
        channels = (axis == "m") == (spec.gemm_m == "output_channels")
        unit, why = (32, "the channels of a vector of y") if channels else (16, "the rows that one ldmatrix reads")
        if warp % unit:
            need = f"a multiple of {unit}, {why}"
            reasons.append(Reason("warp_tile", f"tile.warp.{axis}", str(warp), need))
        if block % warp:
            got = f"{warp} for a threadblock tile of {block}"
            reasons.append(Reason("warp_tile", f"tile.warp.{axis}", got, f"a divisor of {block}"))
    if tile.threadblock.k % CHANNELS:
        need = "a multiple of 32, the channels that lie side by side"
        reasons.append(Reason("tile_k", "tile.threadblock.k", str(tile.threadblock.k), need))
    shape = (8, 8, 16) if tile.instruction == "m8n8k16" else (16, 8, 32)
    if shape not in architecture.int8_mma_shapes:
        hint = "use m8n8k16"
        reasons.append(Reason("instruction", "tile.instruction", tile.instruction, f"an instruction of {architecture.name}", hint))
    reasons += _copy_reasons(spec, architecture)
    planes = tile.threadblock.k // CHANNELS
    if spec.unroll != "full" and spec.stages > 1 and planes % 2 == 0 and spec.persistent_blocks is None:
        need, hint = "full where fragments are read ahead", "the unrolled index selects one of their two sets; one stage has one set"
        reasons.append(Reason("unroll", "unroll", str(spec.unroll), need, hint))
    if not reasons:
        threads = WARP_THREADS * (tile.threadblock.m // tile.warp.m) * (tile.threadblock.n // tile.warp.n)
        if threads > architecture.threads_per_block:
            need = f"at most {architecture.threads_per_block} threads in a block"
            reasons.append(Reason("threads_per_block", "tile.threadblock", f"{threads} threads", need, "use larger warp tiles"))
        for axis in ("m", "n"):
            operand = OperandTile(getattr(tile.threadblock, axis), tile.threadblock.k // CHANNELS, threads)
            if not operand.is_even:
                vectors = 2 * operand.rows * operand.planes
                got = f"{vectors} vectors of 16 bytes for {threads} threads"
                need = "a whole number for each thread, in rows a multiple of 8 apart"
                reasons.append(Reason("copy", f"tile.threadblock.{axis}", got, need, "use fewer warps or a deeper tile"))
    return reasons


def _copy_reasons(spec: Conv2dSpec, architecture: Architecture) -> list[Reason]:
    reasons = []
    if spec.persistent_blocks is not None:
        if spec.copy_through != "cp_async":
            reasons.append(Reason("persistent", "persistent_blocks", "copies through registers", "copy_through: cp_async"))
        if spec.split_k > 1:
            reasons.append(Reason("persistent", "persistent_blocks", f"split_k: {spec.split_k}", "the sum in one part"))
    if spec.copy_through == "cp_async":
        if not architecture.supports("cp_async"):
            got = f"cp_async on {architecture.name}"
            reasons.append(Reason("copy_through", "copy_through", got, "sm_80 or newer", "use registers, or architecture: sm_80"))
        if spec.stages < 2:
            reasons.append(Reason("stages", "stages", str(spec.stages), "at least 2 with cp_async"))
    elif spec.stages > 2:
        reasons.append(Reason("stages", "stages", str(spec.stages), "1 or 2 through registers", "use cp_async for more"))
    return reasons


def resource_reasons(
    spec: Conv2dSpec, regions: Sequence[SharedRegion], threads: int, sums: int, architecture: Architecture
) -> list[Reason]:
    """Resources that exceed those of a multiprocessor."""
    resident = ResidentBlocks(architecture, spec.min_blocks_per_sm, threads)
    reasons = list(resident.too_many(sum(region.bytes for region in regions)))
    hint = "use smaller warp tiles, fewer threads or fewer blocks"
    reasons += resident.too_many_sums(sums, resident.registers, "tile.warp", hint)
    return reasons
