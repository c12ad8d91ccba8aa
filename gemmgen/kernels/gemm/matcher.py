"""Instances for requests: problems as text, fits, numbers that a launch chooses, and problems to tune on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import Architecture, Device, occupancy
from gemmgen.kernels.epilogue.activations import operation
from gemmgen.kernels.epilogue.operations import PRODUCT, SECOND, Factor, Operation
from gemmgen.kernels.gemm import scaling
from gemmgen.kernels.gemm.fitting import VARIES, divides_by_size
from gemmgen.kernels.gemm.grouping import Grouping
from gemmgen.kernels.gemm.numeric_class import numeric_class
from gemmgen.kernels.gemm.packed_weights import BYTES, HALF_TYPES, Weights
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.reasons import DOUBLE_STRATEGIES, DUAL_STRATEGIES, triangle_reasons
from gemmgen.kernels.gemm.request import (
    CONSTANT,
    DOUBLE,
    FACTOR_TYPES,
    PRECISIONS,
    RESULT_TYPES,
    GemmRequest,
    Precision,
    ScaledBy,
    is_stored,
    result_type,
    transposed,
)
from gemmgen.kernels.gemm.sequence import MAX_SLICES
from gemmgen.kernels.gemm.spec import Cluster, GemmSpec, MmaSyncMainloop, Rasterization, WgmmaMainloop
from gemmgen.kernels.gemm.strategies import part_for
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_FLOATS
from gemmgen.kernels.gemm.triangles import WORDS, Triangles
from gemmgen.kernels.problem_words import unknown_word
from gemmgen.kernels.requests import Fit, Layout, NoClass, changed_fields, replaced, say_once

ACTIVATIONS = {
    "relu": {"op": "relu"},
    "leaky_relu": {"op": "leaky_relu"},
    "gelu": {"op": "gelu"},
    "gelu_tanh": {"op": "gelu", "form": "tanh"},
    "silu": {"op": "silu"},
    "sigmoid": {"op": "sigmoid"},
    "tanh": {"op": "tanh"},
}
"""Activations by name."""
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu", "glu": "sigmoid"}
"""Words for two products, the second multiplied by a function of the first."""
SCALES = {"scale_row": "row", "scale_column": "column", "scale": "memory"}
"""Scales as a problem's words name them: one for each row or column, or one for all that lies in memory."""
ROWS_OF_GROUPS: dict[str, dict[str, Any]] = {"masked": {"rows": "masked"}, "gathered": {"gathered": True}, "scattered": {"scattered": True}}
"""Words for rows of groups, and their fields in a spec's ``grouping``."""
SUMMED = "k"
"""The dimension along which an element of the result is summed up."""
DEPTHS_BY = {"depths": "offsets", "depth_steps": "steps"}
"""Words for values of k that differ from product to product, and the field ``depth`` of a spec's ``grouping``."""
SCALED_DEPTH = 128
"""Values of k of a step where those of each product end with a step: those of a block of scales of 8-bit floats."""
FACTORS = ("alpha", "beta")
"""Numbers that a problem's words leave to the call; the product is not scaled, and C is not read, without them."""


def fit(spec: GemmSpec, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    if request.invariant != "none":
        if divides_by_size(spec):
            return VARIES
        if getattr(spec.mainloop, "schedule", "") == "ping_pong":
            spec = replaced(spec, {"batch_invariant": True})
    if spec.scalars != "launch":
        return "it has alpha and beta of each product"
    if spec.triangles != Triangles.ALL and spec.triangles != request.triangles:
        return "it is for triangular matrices"
    if spec.scales.given and not request.block_scales:
        return "it is for factors with block scales"
    if getattr(spec.mainloop, "sparse", "none") != "none":
        return "it is for a sparse A"
    if spec.grouping not in (Grouping.SORTED, request.grouping):
        return "it is for groups of rows that lie in another way"
    if (request.weights is None) != (spec.mainloop.strategy != "narrow_weights"):
        return "weights are packed for it alone" if request.weights is None else "it reads no packed weights"
    if request.a.type == DOUBLE and spec.mainloop.strategy not in DOUBLE_STRATEGIES:
        return "it multiplies no float64"
    if request.depths is not None:
        steps = request.grouping.depth == "steps"
        if spec.mainloop.strategy != ("wgmma" if steps else "mma_sync"):
            return "all of its products have the same values of k"
        if steps and isinstance(spec.mainloop, WgmmaMainloop):
            if spec.mainloop.tile.k != SCALED_DEPTH:
                return "its steps are not as deep as blocks of scales"
            spec = replaced(spec, {"mainloop": spec.mainloop.model_copy(update={"cluster": Cluster()})})
    if request.block_scales and spec.mainloop.strategy not in scaling.STRATEGIES:
        return "it takes no block scales"
    if any(by.stored(operand) is None for operand, by in request.block_scales):
        return "block scales are adjacent neither along k nor along the lines"
    if request.second is None and spec.dual:
        return "it multiplies A by two matrices"
    if request.second is not None:
        if spec.mainloop.strategy not in DUAL_STRATEGIES:
            return "it multiplies A by one matrix"
        if spec.order != "row_major" or not is_stored(request.c, True):
            return "two products are made in rows of C alone"
        spec = spec if spec.dual else _as_dual(spec)
    if request.triangles == Triangles.ALL:
        answer: Fit | str = part_for(spec, "matching").fit(spec, spec.mainloop, request)
        return answer
    triangular = _with_triangles(spec, request)
    if isinstance(triangular, str):
        return triangular
    answer = part_for(spec, "matching").fit(triangular[0], triangular[0].mainloop, triangular[1])
    return answer if isinstance(answer, str) else replace(answer, derived=changed_fields(spec, answer.spec))


def _with_triangles(spec: GemmSpec, request: GemmRequest) -> tuple[GemmSpec, GemmRequest] | str:
    """A kernel as it takes triangular matrices, and the request with those that it can make use of: zeros of triangular factors are
    multiplied by kernels that cannot skip them."""
    changes: dict[str, object] = {"rasterization": Rasterization(), "store": "direct" if spec.store == "tma" else spec.store}
    if isinstance(spec.mainloop, WgmmaMainloop):
        changes["mainloop"] = spec.mainloop.model_copy(update={"cluster": Cluster()})
    of_result = request.triangles.model_copy(update={"a": "all", "b": "all"})
    for triangles in (request.triangles, of_result):
        changed = replaced(spec, {**(changes if triangles.c != "all" else {}), "triangles": triangles})
        if not any(triangle_reasons(changed)):
            return changed, replace(request, triangles=triangles)
    return "it computes all of C"


def _as_dual(spec: GemmSpec) -> GemmSpec:
    """A kernel for one product with tiles of C half as wide, so that two need as many registers and as much shared memory."""
    mainloop = spec.mainloop
    if isinstance(mainloop, WgmmaMainloop):
        tile = mainloop.tile.model_copy(update={"n": max(8, mainloop.tile.n // 2)})
        return replaced(spec, {"mainloop": mainloop.model_copy(update={"tile": tile})})
    if isinstance(mainloop, MmaSyncMainloop):
        block, warp = (part.model_copy(update={"n": part.n // 2}) for part in (mainloop.tile.threadblock, mainloop.tile.warp))
        parts = mainloop.tile.model_copy(update={"threadblock": block, "warp": warp})
        return replaced(spec, {"mainloop": mainloop.model_copy(update={"tile": parts, "fragment_buffers": 1})})
    return spec


def gated(activation: str) -> Operation:
    """The second product multiplied by a function of the first."""
    return operation({"op": "formula", "value": f"{activation}({PRODUCT}) * {SECOND}"})


def numeric_class_of(plan: GemmPlan, dimensions: Mapping[str, int]) -> str | NoClass:
    """Name of the class of instances whose rows have the same bits; or why the order of additions depends on the number of rows."""
    known = numeric_class(plan, dimensions[SUMMED])
    return NoClass(known) if isinstance(known, str) else known.text


LISTED_FOR = 132
"""Multiprocessors that the grids of listed instances are made for: those of an H200."""


def adapted(spec: GemmSpec, architecture: Architecture, device: Device | None) -> GemmSpec:
    """The spec with features of the architecture that change no result: kernels that leave numbers to the launch come early. Grids whose
    blocks take tiles in turn have as many blocks for each multiprocessor of the device as they have for one of an H200."""
    changes: dict[str, Any] = {}
    persistent = getattr(spec.mainloop, "persistent_blocks", 0)
    if device is not None and persistent and persistent % LISTED_FOR == 0 and device.sm_count != LISTED_FOR:
        blocks = persistent // LISTED_FOR * device.sm_count
        cluster = getattr(spec.mainloop, "cluster", None)
        sharers = 1 if cluster is None else cluster.m * cluster.n
        changes["mainloop"] = spec.mainloop.model_copy(update={"persistent_blocks": max(1, blocks // sharers) * sharers})
    if not architecture.supports("cp_async") and isinstance(spec.mainloop, MmaSyncMainloop) and spec.mainloop.copies == "cp_async":
        # Two tiles: one in shared memory is multiplied while the next one is in registers.
        changes |= {"architecture": "sm_75", "mainloop": spec.mainloop.model_copy(update={"copies": "registers", "stages": 2})}
    free = part_for(spec, "matching").may_launch_early(spec)
    if free and not spec.early_launch and architecture.supports("programmatic_launch"):
        changes |= {"early_launch": True, "architecture": "sm_90"}
    return replaced(spec, changes)


def settings(plan: GemmPlan, problem: Mapping[str, int], device: Device) -> list[dict[str, int]]:
    """Values that a launch may choose: numbers of slices of k that fill the device once, or a few times over."""
    if "slices" not in problem:
        return [{}]
    tiles = math.prod(plan.sequence.launches[plan.main_launch].grid_of({**problem, "slices": 1}))
    most = max(1, min(MAX_SLICES, problem["k"] // plan.slice_k))
    resident = occupancy(device.architecture, plan.threads, plan.registers_per_thread, plan.shared_bytes)
    fitting = max(1, resident.blocks_per_sm)
    wanted = {1}
    for blocks in {1, 2, max(1, fitting // 2), fitting, 2 * fitting}:
        exact = device.sm_count * blocks / max(1, tiles)
        wanted |= {int(exact), math.ceil(exact)}
    return [{"slices": slices} for slices in sorted({min(most, max(1, slices)) for slices in wanted})]


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> GemmRequest:
    """A request from m, n, k and words: ``nt``, ``f16``, ``unaligned``, ``batch=8`` or ``groups=8``, and of the epilogue ``bias``,
    ``residual``, scales and activations, in their order. Raises ``SpecError``."""
    m, n, k = sizes
    epilogue: list[Operation] = []
    letters, types, aligned, batch, groups = "nn", ["f32", "f32", "f32"], True, None, None
    precision: Precision = "f32"
    keeps = False
    rows_of_groups: dict[str, Any] = {}
    triangles: dict[str, str] = {}
    said: dict[str, str] = {}
    blocks: dict[str, re.Match[str]] = {}
    weights: Weights | None = None
    for option in options:
        if option in ("nn", "nt", "tn", "tt"):
            say_once(said, "transposition", option)
            letters = option
        elif _are_types(parts := option.split("_")):
            say_once(said, "word for types (those of A, B and C together are one, such as f16_f16_f32)", option)
            types = parts if len(parts) == 3 else [option, option]
        elif option in ACTIVATIONS or option in ("bias", "residual"):
            fields = {"op": "bias", "per": "column"} if option == "bias" else ACTIVATIONS.get(option, {"op": option})
            epilogue.append(operation(fields))
        elif option in GATED:
            say_once(said, "gate", option)
            if epilogue:
                raise SpecError(f"a GEMM problem's option {option} multiplies two products: it comes before other operations")
            epilogue.append(gated(GATED[option]))
        elif option in SCALES:
            epilogue.append(operation({"op": "factor", "per": SCALES[option]}))
        elif option in PRECISIONS:
            say_once(said, "precision", option)
            precision = PRECISIONS[option]
        elif (packed := _WEIGHTS.fullmatch(option)) is not None:
            say_once(said, "weights", option)
            weights = Weights(4 if packed[2] == "4" else 8, _GROUPS[packed[3] or "column"], packed[4] is not None, packed[1] is not None)
        elif (scaled := _BLOCK_SCALES.fullmatch(option)) is not None:
            say_once(said, f"scales of {scaled[1]}", option)
            blocks[scaled[1]] = scaled
        elif option in FACTORS or option in DEPTHS_BY:
            say_once(said, option, option)
        elif option in ROWS_OF_GROUPS:
            say_once(said, option, option)
            rows_of_groups |= ROWS_OF_GROUPS[option]
        elif option in WORDS:
            (matrix, part), *_ = WORDS[option].items()
            say_once(said, f"triangle of {matrix}", option)
            triangles[matrix] = part
        elif option == "planes":
            keeps = True
        elif option == CONSTANT:
            say_once(said, option, option)
        elif option in ("aligned", "unaligned"):
            say_once(said, "alignment", option)
            aligned = option == "aligned"
        elif option.startswith("batch=") and option[6:].isascii() and option[6:].isdecimal() and 0 < int(option[6:]) < 65536:
            say_once(said, "batch", option)
            batch = int(option[6:])
        elif option.startswith("groups=") and option[7:].isascii() and option[7:].isdecimal() and 0 < int(option[7:]) < 65536:
            say_once(said, "batch", option)
            groups = int(option[7:])
        elif (counted := re.fullmatch(r"(batch|groups)=(.*)", option)) is not None:
            raise SpecError(f"a GEMM problem has {counted[1]} {counted[2]!r}, need a number from 1 to 65535")
        else:
            need = f"nn, nt, tn, tt, {', '.join(FACTOR_TYPES)}, f16_f16_f32 (types of A, B and C), aligned, unaligned, batch=N, groups=N, "
            need += "w4g128z (weights of 4 or 8 bits, groups of 32, 64 or 128, zero points), "
            need += "scales_a=1x128 or scales_b=128x128 (block scales; _ue8m0, _mn), "
            need += f"{', '.join(WORDS)} (triangular matrices), {', '.join(ROWS_OF_GROUPS)} (rows of groups), "
            need += f"{' or '.join(DEPTHS_BY)} (values of k of each product of a batch), "
            words = ", ".join((*SCALES, *ACTIVATIONS, *GATED))
            need += f"planes (of B are kept), {CONSTANT} (B is), alpha, beta, bias, residual, {words}, {' or '.join(PRECISIONS)}"
            raise unknown_word("a GEMM problem", option, re.findall(r"\w+", need), need)

    def layout(rows: int, columns: int, letter: str, type: str, batch: int | None = batch) -> Layout:
        if letter == "t":
            return transposed(layout(columns, rows, "n", type, batch))
        plain = Layout.packed((rows, columns) if batch is None else (batch, rows, columns), type)
        return plain if aligned else Layout(plain.shape, plain.strides, type, plain.element_bytes)

    if len(types) == 2:
        types.append(result_type(types[0], types[1], plain=not epilogue))
    c = layout(m, n, "n", types[2])
    residual = c if any(step.op == "residual" for step in epilogue) else None
    a, b = layout(m, k, letters[0], types[0]), layout(k, n, letters[1], types[1], batch or groups)
    if weights is not None:
        _check_weights(weights, a.type, c.type)
        if len(c.shape) > 2 or groups is not None or keeps or blocks or residual:
            raise SpecError(f"a GEMM problem's option {weights.word} excludes a batch, groups, planes, residual and block scales")
    if "gate" in said and (weights is not None or keeps or blocks or {"alpha", "beta"} & said.keys()):
        raise SpecError(f"a GEMM problem's option {said['gate']} excludes packed weights, planes, block scales, alpha and beta")
    if rows_of_groups and groups is None:
        raise SpecError(f"a GEMM problem's option {', '.join(ROWS_OF_GROUPS)} is for groups: add groups=N")
    if groups is not None and "rows" in rows_of_groups and m % groups:
        raise SpecError(f"a GEMM problem's option masked has {m} rows in {groups} groups, need a multiple: every group has as many")
    depths = [option for option in DEPTHS_BY if option in said]
    if "depths" in said and (batch is None or letters != "tn"):
        raise SpecError("a GEMM problem's option depths is for a batch with A and B in rows of m and n: add batch=N and tn")
    if "depth_steps" in said and (len(depths) > 1 or batch is None or letters != "nt" or len(blocks) < 2):
        need = "for a batch with A and B in rows of k and scales of both: add batch=N, nt, scales_a=1x128 and scales_b=1x128"
        raise SpecError(f"a GEMM problem's option depth_steps is {need}")
    grouping = Grouping.model_validate(rows_of_groups | ({"depth": DEPTHS_BY[depths[0]]} if depths else {}))
    if triangles and (groups is not None or depths or "gate" in said or keeps or blocks or weights is not None):
        raise SpecError("a GEMM problem's triangles exclude groups, depths, two products, planes, block scales and packed weights")
    if "mirrored" in triangles.values() and m != n:
        raise SpecError(f"a GEMM problem's option mirrored is for a square C; this one is {m} x {n}")
    rows = Layout.packed((m,), "s32")
    if keeps and (b.type != "f32" or len(b.shape) > 2):
        raise SpecError("a GEMM problem's option planes is for float32 without a batch")
    return GemmRequest(
        a,
        b,
        c,
        scaled="alpha" in said,
        accumulates="beta" in said,
        epilogue=tuple(epilogue),
        residual=residual,
        precision=precision,
        scales=tuple(step.op for step in epilogue if isinstance(step, Factor)),
        second=b if "gate" in said else None,
        offsets=None if groups is None else Layout.packed((groups,), "s32"),
        grouping=grouping,
        triangles=Triangles.model_validate(triangles),
        depths=Layout.packed((batch,), "s32") if batch is not None and depths else None,
        gather=rows if grouping.gathered else None,
        scatter=rows if grouping.scattered else None,
        planes=_kept(b) if keeps else None,
        constant=("b",) if CONSTANT in said else (),
        weights=weights,
        scaled_a=_scaled_by("a", blocks["a"], a) if "a" in blocks else None,
        scaled_b=_scaled_by("b", blocks["b"], b) if "b" in blocks else None,
    )


def _check_weights(weights: Weights, activations: str, result: str) -> None:
    """Refuses types of activations and results that kernels for packed weights lack."""
    if weights.floats and weights.zeros:
        raise SpecError(f"a GEMM problem's option {weights.word} combines floats and zero points; floats have none: omit z")
    beside = HALF_TYPES if weights.bits == 8 else (*HALF_TYPES, *BYTE_FLOATS) if weights.floats else (*HALF_TYPES, *BYTES)
    if activations not in beside:
        raise SpecError(f"a GEMM problem's option {weights.word} is for {', '.join(beside)}; this problem's activations are {activations}")
    if result not in (*HALF_TYPES, "f32"):
        need = f"a result of f32, f16 or bf16 (such as {activations}_{activations}_bf16)"
        raise SpecError(f"a GEMM problem's option {weights.word} needs {need}; this problem's is {result}")


_WEIGHTS = re.compile(r"(e2m1(?=w4)|e4m3(?=w8))?w([48])(?:g(32|64|128))?(z)?")
"""A problem's word for packed weights: bits, values of k of a group, and ``z`` with zero points; ``e2m1`` or ``e4m3`` for floats."""
_GROUPS: dict[str, Literal[32, 64, 128, "column"]] = {"32": 32, "64": 64, "128": 128, "column": "column"}
_BLOCK_SCALES = re.compile(r"scales_([ab])=(1|128)x(16|32|64|128)(_ue8m0|_e4m3)?(_mn)?")
"""A problem's word for block scales: lines and values of k of a block, the type of scales if it is not float32, and ``mn`` where scales of
neighbouring lines are adjacent."""


def _scaled_by(operand: Literal["a", "b"], word: re.Match[str], matrix: Layout) -> ScaledBy:
    """Block scales without gaps, as a problem's word has them."""
    block = scaling.BlockScale.model_validate(
        {"lines": int(word[2]), "k": int(word[3]), "type": (word[4] or "_f32")[1:], "layout": "mn_major" if word[5] else "k_major"}
    )
    extent, k = matrix.shape[-2:] if operand == "a" else matrix.shape[:-3:-1]
    shape = (*matrix.shape[:-2], *scaling.scale_shape(operand, block, extent, k))
    by_rows = (block.layout == "k_major") == (operand == "a")
    packed = Layout.packed(shape if by_rows else (*shape[:-2], shape[-1], shape[-2]), block.type)
    return ScaledBy(block, packed if by_rows else transposed(packed), f"scale_{operand}")


def _kept(b: Layout) -> Layout:
    from gemmgen.kernels.gemm.split_precision.kept import planes_layout

    return planes_layout(b)


def _are_types(words: Sequence[str]) -> bool:
    """True of the type of both factors, or of those of A, B and C."""
    return len(words) in (1, 3) and all(word in FACTOR_TYPES for word in words[:2]) and all(word in RESULT_TYPES for word in words[2:])


SQUARES = (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SKINNY = (1, 4, 16, 32, 64, 128, 256)
"""Rows of a product whose other extents are those of a layer of a network: batches, from inference to training."""
LAYERS = ((1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (11008, 4096), (4096, 11008), (50257, 768))
"""(n, k) of such layers."""
DEEP = ((64, 64, 65536), (128, 128, 16384), (128, 128, 65536), (256, 256, 8192), (512, 512, 4096), (512, 512, 16384), (1024, 1024, 8192))
FLAT = ((4096, 4096, 16), (4096, 4096, 64), (4096, 4096, 256), (8192, 8192, 64), (2048, 2048, 128), (16384, 1024, 64))
TALL = ((8192, 128, 1024), (16384, 64, 512), (4096, 64, 4096), (65536, 64, 64), (50257, 1024, 768), (32768, 128, 128), (16384, 512, 256))
RECTANGLES = (
    (512, 2048, 1024),
    (1024, 4096, 512),
    (2048, 512, 2048),
    (768, 3072, 768),
    (3072, 768, 768),
    (1536, 384, 1536),
    (2048, 8192, 1024),
)
UNALIGNED = (
    (127, 127, 127),
    (255, 257, 129),
    (513, 511, 515),
    (1000, 1000, 1000),
    (1023, 1023, 1023),
    (2047, 2047, 2047),
    (4095, 4095, 4095),
    (17, 4095, 4095),
    (4095, 63, 4095),
    (50257, 1023, 767),
    (777, 3001, 333),
)
LAYOUTS = (
    (256, 256, 256),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (16, 4096, 4096),
    (128, 4096, 1024),
    (128, 128, 16384),
)
BATCHES = (
    (64, 64, 64, 256),
    (128, 128, 64, 96),
    (128, 64, 128, 96),
    (256, 256, 64, 64),
    (512, 512, 64, 48),
    (512, 64, 512, 48),
    (1024, 1024, 128, 16),
)
TENSOR_LAYERS = ((4096, 4096), (11008, 4096), (4096, 11008), (6144, 4096))
"""(n, k) of layers for tensor cores."""
TENSOR_ROWS = (1, 16, 64, 128, 512, 2048, 8192)
TENSOR_CUBES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
TENSOR_SHAPES = ((8192, 8192, 64), (4096, 4096, 256), (128, 128, 65536), (50257, 1024, 768))
HALVES = ((256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (16, 4096, 4096), (4096, 4096, 64))


def problem_grid(fine: bool) -> list[str]:
    """Squares, layers with few and many rows, deep, flat and tall products, edges, layouts, batches and halves."""
    texts = [_text(size, size, size) for size in SQUARES]
    texts += [_text(m, n, k) for n, k in LAYERS for m in SKINNY if fine or m in (1, 16, 64, 128)]
    texts += [_text(*size) for size in (*DEEP, *FLAT, *TALL, *RECTANGLES)]
    texts += [_text(*size, "unaligned") for size in UNALIGNED]
    texts += [_text(*size, letters) for letters in ("nt", "tn", "tt") for size in (LAYOUTS if fine else LAYOUTS[1::2])]
    texts += [_text(*size[:3], f"batch={size[3]}") for size in BATCHES]
    texts += [_text(*size, kind) for kind in ("f16", "bf16") for size in HALVES]
    cubes, rows = (TENSOR_CUBES, TENSOR_ROWS) if fine else (TENSOR_CUBES[3::4], TENSOR_ROWS[1::2])
    tensor = [(size, size, size) for size in cubes] + [(m, n, k) for n, k in TENSOR_LAYERS for m in rows] + list(TENSOR_SHAPES)
    texts += [_text(*size, "nt", kind) for kind in ("bf16", "s8", "e4m3") for size in tensor]
    if fine:
        texts += [_text(size, size, size, "nt") for size in SQUARES]
        texts += [_text(size - 1, size - 1, size - 1, "unaligned") for size in SQUARES]
        texts += [_text(m, n, k) for m in (192, 320, 640, 896, 1280) for n in (512, 1280, 2560) for k in (640, 2048)]
    return list(dict.fromkeys(texts))


def _text(*parts: int | str) -> str:
    return ",".join(map(str, parts))


def operand_orders(plan: GemmPlan) -> Mapping[str, str]:
    """None: matrices are read as they lie."""
    return {}
