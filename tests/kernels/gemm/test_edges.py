"""Tiles inside of the matrices, whose copies need no checks, and the registers that this frees: fragments read ahead in 128 registers."""

from __future__ import annotations

import re
from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.toolchain.compilation import compile_plan

TILE = {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 16, "n": 32}, "thread": {"m": 4, "n": 4}}


def spec(**mainloop: Any) -> dict[str, Any]:
    fields = {"kind": "gemm", "architecture": "sm_80", "mainloop": {"strategy": "tiled", "tile": TILE, "edges": "each_tile", **mainloop}}
    return fields | {"alpha": "one", "beta": "zero"}


@pytest.mark.parametrize("transpose", ["nn", "tn", "tt"])
@pytest.mark.parametrize(
    "mainloop",
    [
        {"stages": 1},
        {"stages": 2},
        {"stages": 2, "fragment_buffers": 2},
        {"copies": "cp_async", "stages": 1},
        {"copies": "cp_async", "stages": 3},
        {"copies": "cp_async", "stages": 3, "fragment_buffers": 2},
    ],
)
def test_tiles_inside_and_at_edges_are_both_right(mainloop: dict[str, Any], transpose: str) -> None:
    report = gemmgen.verify({**spec(**mainloop), "transpose": transpose, "alignment": {"a": 4, "b": 4, "c": 4}}, backend="emulator")
    assert report.passed and len(report.results) > 20


def test_the_loop_over_tiles_inside_checks_nothing() -> None:
    text = gemmgen.render("gemm/v3_double_buffer").text
    loop = text[text.index("for (; k_begin + kTileK < k_inside") :]
    inside, edges = loop[: loop.index("for (; k_begin < k;")], loop[loop.index("for (; k_begin < k;") :]
    assert "load_global_tile_a(" in inside and "left" not in inside and " - k" not in inside and "more" not in inside
    assert "load_global_edge_tile_a(" in edges and "k - (k_begin + kTileK)" in edges


def test_a_promise_leaves_only_the_other_edges() -> None:
    whole = gemmgen.plan(spec() | {"multiple_of": {"m": 32, "n": 32, "k": 8}}).loop
    assert isinstance(whole, TiledLoop) and not whole.checks_tiles
    text = gemmgen.render(spec() | {"multiple_of": {"k": 8, "n": 32}}).text
    assert "const bool inside = block_m + kTileM <= m;" in text and "inside ? k : 0" in text
    assert "const int k_inside = k / kTileK * kTileK;" in gemmgen.render(spec() | {"multiple_of": {"m": 32, "n": 32}}).text


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["v3_double_buffer", "simt/blocked/128x128x8", "simt/maxas/64", "simt/maxas/256"])
def test_fragments_read_ahead_fit_into_128_registers(name: str, architecture: str) -> None:
    plan = gemmgen.plan(f"gemm/{name}", architecture)
    assert plan.loop.fragment_buffers == 2
    used = compile_plan(plan).resources[plan.name]
    assert used.registers <= 128 and used.spill_stores == used.spill_loads == used.local_bytes == 0


@pytest.mark.parametrize("policy", ["evict_first", "evict_last"])
def test_asynchronous_copies_take_a_policy_of_the_l2(policy: str) -> None:
    fields = spec(copies="cp_async", stages=3) | {"cache": {"l2_policy_a": policy}}
    text = compile_plan(gemmgen.plan(fields)).ptx
    assert f"createpolicy.fractional.L2::{policy}.b64" in text
    assert re.search(r"cp\.async\.ca\.shared\.global\.L2::cache_hint \[%r\d+\], \[%rd\d+\], 4, %r\d+, %rd\d+;", text)
    assert gemmgen.verify(fields, backend="emulator").passed


def test_copies_through_registers_have_no_policy() -> None:
    with pytest.raises(PlanError, match=r"cache.l2_policy_b: got evict_last, need copies: cp_async"):
        gemmgen.plan(spec() | {"cache": {"l2_policy_b": "evict_last"}})
    with pytest.raises(PlanError, match=r"need normal beside l2_prefetch_a or l1_a: keep"):
        gemmgen.plan(spec(copies="cp_async") | {"cache": {"l2_policy_a": "evict_last", "l2_prefetch_a": 64}})
