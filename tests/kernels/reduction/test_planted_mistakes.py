"""Verification must catch reductions that are wrong: each test plants one mistake in a rendered source."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.runner import VerificationReport, verify_binary

STREAMING = {"strategy": {"name": "streaming", "threads": 64, "unroll": 2, "multiprocessors": 3}, "alignment": 4}
LAST_BLOCK = {"strategy": {**STREAMING["strategy"], "finish": "last_block"}, "alignment": 4}  # type: ignore[dict-item]
LAST_WARP = {"strategy": {"name": "unroll_last_warp", "threads": 64}}
SEQUENTIAL = {"strategy": {"name": "sequential", "threads": 64}}
LANES = {"shape": "rows", "alignment": 4, "strategy": {"name": "row_lanes", "threads": 64, "lanes": 8, "rows": 2, "unroll": 2}}
COLUMNS = {
    "shape": "columns",
    "alignment": 4,
    "strategy": {"name": "column_tiles", "threads": 64, "lanes": 8, "splits": 3, "finish": "last_block"},
}
WALK = {"threads": 64, "unroll": 2}
TENSOR_ROWS = {"shape": "tensor", "strategy": {"name": "tensor_rows", "kept": 2, "reduced": 2, **WALK}}
TENSOR_COLUMNS = {"shape": "tensor", "strategy": {"name": "tensor_columns", "lanes": 16, "vector": 1, "columns": 2, "kept": 2, **WALK}}
BYTES = {
    "operation": "max",
    "input": "int8",
    "shape": "tensor",
    "strategy": {"name": "tensor_rows", "kept": 1, "reduced": 1, "vector": 16, "lanes": 4, **WALK},
}
FLAT_COLUMNS = {"shape": "tensor", "strategy": {"name": "flat_columns", **WALK}}
FLAT_TILES = {"shape": "tensor", "strategy": {"name": "flat_tiles", "lanes": 8, "kept": 2, **WALK}}
FLAT_ROWS = {"shape": "tensor", "strategy": {"name": "flat_rows", **WALK}}
REPEATED = {"shape": "tensor", "strategy": {"name": "tensor_rows", "kept": 2, "repeated": True, **WALK}}


def verify_with(old: str, new: str, **fields: Any) -> VerificationReport:
    plan = gemmgen.plan({"kind": "reduction", "operation": "sum"} | fields)
    text = gemmgen.render(plan).text
    assert text.count(old) >= 1, f"{old!r} is not in the source any more"
    binary = compile_source(text.replace(old, new), architecture="sm_75", options=COMPILE_OPTIONS)
    return verify_binary(plan, binary, EmulatorBackend())


@pytest.mark.parametrize("fields", [STREAMING, LAST_BLOCK, LAST_WARP, SEQUENTIAL, LANES, COLUMNS, FLAT_TILES, FLAT_ROWS, REPEATED, BYTES])
def test_an_unchanged_kernel_passes(fields: dict[str, Any]) -> None:
    assert verify_with("kThreads", "kThreads", **fields).passed


@pytest.mark.parametrize(
    ("fields", "old", "new"),
    [
        (BYTES, "(24 - i % 4 * 8)", "(24 - i % 3 * 8)"),
        (BYTES, "totals[i] >>= 24;", "totals[i] = (unsigned)totals[i] >> 24;"),
        (STREAMING, "tile += gridDim.x", "tile += gridDim.x + 1"),
        (STREAMING, "blockIdx.x == tiles % gridDim.x", "blockIdx.x <= tiles % gridDim.x"),
        (STREAMING, "< vectors)", "<= vectors)"),
        (STREAMING, "if (last < reduced)", "if (last + 1 < reduced)"),
        (STREAMING, "i < half; ++i", "i < half - 1; ++i"),
        (STREAMING, "offset > 0; offset /= 2", "offset > 1; offset /= 2"),
        (STREAMING, "__syncthreads();", ""),
        (STREAMING, "        __syncthreads();  // Shared memory is used again.\n", ""),
        (STREAMING, "0ull, __NV", "1ull, __NV"),
        (STREAMING, "if (threadIdx.x != 0)\n            total = 0.0f;", ""),
        (STREAMING, "other < gridDim.x", "other < gridDim.x - 1"),
        (LAST_BLOCK, "*ticket = 0;", "*ticket = 1;"),
        (LAST_BLOCK, "__NV_ATOMIC_ACQ_REL", "__NV_ATOMIC_RELAXED"),
        (LAST_BLOCK, "== blocks - 1", "== 0"),
        (LAST_BLOCK, "total = 0.0f;\n    for (unsigned int other", "for (unsigned int other"),
        (LAST_WARP, "            __syncwarp();\n            states[thread]", "            states[thread]"),
        (LAST_WARP, "states[thread] = joined;\n            __syncwarp();", "states[thread] = joined;"),
        (LAST_WARP, "states[thread + distance]", "states[thread + distance - 1]"),
        (SEQUENTIAL, "distance > 0; distance /= 2", "distance > 1; distance /= 2"),
        (SEQUENTIAL, "blockIdx.x * kThreads", "blockIdx.x * (kThreads + 1)"),
        (SEQUENTIAL, "if (at < reduced)", "if (at <= reduced)"),
        (LANES, "min(first_row + r * kGroups, outer - 1)", "first_row + r * kGroups"),
        (LANES, "* stride_outer", "* reduced"),
        (LANES, "at < reduced; at += kLanes", "at < reduced - 1; at += kLanes"),
        (LANES, "vectors - (kUnroll - 1) * kLanes", "vectors"),
        (LANES, " && row < outer", ""),
        (COLUMNS, "row < reduced; row += kRowStep", "row < reduced - 1; row += kRowStep"),
        (COLUMNS, "* stride_reduced", "* inner"),
        (COLUMNS, "        __syncthreads();\n        if (row_thread < half)", "        if (row_thread < half)"),
        (COLUMNS, "if (column < inner) {\n        const", "{\n        const"),
        (COLUMNS, "partials[split * results", "partials[0 * results"),
        (TENSOR_ROWS, "first + i >= 0 && ", ""),
        (TENSOR_ROWS, "first <= extent - kVector", "first <= extent"),
        (TENSOR_ROWS, "* k1_y", "* k0_y"),
        (TENSOR_ROWS, "* r0_stride", "* r1"),
        (TENSOR_ROWS, "2 * kVector - 2", "kVector - 1"),
        (TENSOR_ROWS, "divide(unit, divisors.units)", "divide(unit, divisors.k1)"),
        (TENSOR_ROWS, "number) * parts + other", "number) * parts"),
        (TENSOR_COLUMNS, "min(first_column + column_of(c * kVector), last_column)", "first_column + column_of(c * kVector)"),
        (TENSOR_COLUMNS, "first + (kUnroll - 1) * step < places", "first < places"),
        (TENSOR_COLUMNS, "column_of(i)] = totals[i];\n        }\n        __syncthreads();", "column_of(i)] = totals[i];\n        }"),
        (FLAT_COLUMNS, "kThreads / period * period", "kThreads"),
        (FLAT_COLUMNS, "skew % columns", "0"),
        (FLAT_COLUMNS, "first + i >= 0 && ", ""),
        (FLAT_TILES, "for (; at < 0; at += stride)", "for (; at < -4; at += stride)"),
        (FLAT_TILES, "kLanes * kVector - skew_of(group, start, ragged)", "kLanes * kVector"),
        (FLAT_TILES, "result + skew_of(group, start, ragged)", "result"),
        (FLAT_TILES, "static_cast<long long>(r0) * k1 - kVector", "static_cast<long long>(r0) * k1 - 1"),
        (FLAT_TILES, "last_vector ? next : totals[i]", "last_vector + stride ? next : totals[i]"),
        (FLAT_TILES, "last_vector ? at + u * stride : at", "last_vector + stride ? at + u * stride : at"),
        (FLAT_TILES, "holds && part == 0", "holds"),
        (FLAT_TILES, "(kVector - start) % kVector", "kVector - start"),
        (FLAT_TILES, "elements - static_cast<int>((start + elements) % kVector)", "elements"),
        (FLAT_TILES, "= max(first, elements -", "= (elements -"),
        (FLAT_TILES, "    __syncthreads();\n\n    if (holds)", "    if (holds)"),
        (FLAT_TILES, "result < kTile && ", ""),
        (FLAT_ROWS, "min(k0 - first_row, block_rows)", "block_rows"),
        (FLAT_ROWS, "    __syncthreads();\n", ""),
        (FLAT_ROWS, "staged + skew", "staged"),
        (REPEATED, "at += k0_y", "at += k1_y"),
    ],
)
def test_a_planted_mistake_is_caught(fields: dict[str, Any], old: str, new: str) -> None:
    assert not verify_with(old, new, **fields).passed


@pytest.mark.parametrize("qualifier", ["", "volatile "])
def test_the_last_warp_in_lockstep_is_caught(qualifier: str) -> None:
    """Step 4 as it was written when the lanes of a warp ran in lockstep, with volatile to keep the compiler in line."""
    text = gemmgen.render(gemmgen.plan({"kind": "reduction", "operation": "sum", **LAST_WARP})).text
    start = text.index("if (thread < 32) {")
    correct = text[start : text.index("return states[thread];")]
    steps = " ".join(f"shared[thread] += shared[thread + {distance}];" for distance in (32, 16, 8, 4, 2, 1))
    lockstep = f"if (thread < 32) {{ {qualifier}float* shared = states; {steps} }}\n    "
    report = verify_with(correct, lockstep, **LAST_WARP)
    assert not report.passed
    assert any("shared memory race" in result.failure for result in report.failures)
