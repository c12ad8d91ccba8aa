"""Layouts of the shared tiles: the swizzle as a permutation, the cost of accesses under it, and that the defaults cost least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.hardware.shared_memory import WARP, shared_access_cost
from gemmgen.kernels.family import Case
from gemmgen.kernels.gemm.plan import GemmPlan, packed
from gemmgen.kernels.gemm.simt.explain_shared import fewest_wavefronts
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.kernels.gemm.simt.operand import Operand, shared_accesses
from gemmgen.kernels.tiles.indexing import xor_swizzles
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.counters import count_case

CHUNK = 4
K_VECTOR = {"order": "k_major", "k_vector": 4, "fragment": "interleaved"}


def spec(m: int = 128, n: int = 128, k: int = 8, warp: tuple[int, int] = (64, 32), **changes: Any) -> dict[str, Any]:
    tile = {"threadblock": {"m": m, "n": n, "k": k}, "warp": {"m": warp[0], "n": warp[1]}, "thread": {"m": 8, "n": 8}}
    mainloop = {"strategy": "tiled", "tile": tile, **changes.pop("mainloop", {})}
    fields = {"kind": "gemm", "architecture": "sm_80", "alignment": {"a": 4, "b": 4, "c": 4}, "beta": "zero", "alpha": "one"}
    return {**fields, "mainloop": mainloop, **changes}


def loop_of(fields: dict[str, Any]) -> TiledLoop:
    plan = gemmgen.plan(fields)
    assert isinstance(plan, GemmPlan) and isinstance(plan.loop, TiledLoop)
    return plan.loop


def wavefronts(operand: Operand) -> int:
    return sum(access.wavefronts for access in shared_accesses(operand))


@given(st.integers(2, 128), st.integers(1, 40), st.sampled_from([4, 8]), st.data())
def test_a_swizzle_permutes_the_chunks_of_each_row(rows: int, chunks: int, chunk: int, data: st.DataObject) -> None:
    assume(chunks % 2 == 0)
    swizzle = data.draw(st.sampled_from(xor_swizzles(rows, chunks * chunk, chunk)))
    row = data.draw(st.integers(0, rows - 1))
    places = [swizzle.column(row, column) for column in range(chunks * chunk)]
    assert sorted(places) == list(range(chunks * chunk))
    assert all(place % chunk == column % chunk for column, place in enumerate(places))
    assert all(swizzle.column(row, place) == column for column, place in enumerate(places))
    assert any(swizzle.column(each, column) != column for each in range(rows) for column in range(chunks * chunk))


@given(st.integers(1, 128), st.integers(1, 200), st.data())
def test_rows_a_period_apart_and_columns_a_span_apart_move_alike(row: int, column: int, data: st.DataObject) -> None:
    swizzle = data.draw(st.sampled_from(xor_swizzles(128, 256, CHUNK)))
    assert swizzle.column(row + swizzle.row_period, column) == swizzle.column(row, column)
    assert swizzle.column(row, column + swizzle.span) == swizzle.column(row, column) + swizzle.span


@pytest.mark.parametrize("k", [8, 16, 32, 64])
def test_k_major_tile_is_copied_asynchronously(k: int) -> None:
    a = loop_of(spec(k=k, mainloop={"copies": "cp_async", "shared_a": {**K_VECTOR, "swizzle": "xor"}})).a
    assert [access.conflicts for access in shared_accesses(a)] == [0, 0]
    assert (a.padding, a.store_width, a.load_width) == (0, 4, 4)


@pytest.mark.parametrize("k", [8, 16, 32])
@pytest.mark.parametrize("fragment", ["quads_in_warp", "quads_in_threadblock", "contiguous"])
def test_tile_is_transposed_without_conflict(k: int, fragment: str) -> None:
    a = loop_of(spec(k=k, mainloop={"fragment": fragment, "shared_a": {"swizzle": "xor"}})).a
    stores, loads = shared_accesses(a)
    assert stores.conflicts == 0 and a.transposes and (stores.width_bytes, loads.width_bytes) == (4, 16)
    assert loads == shared_accesses(replace(a, swizzle=None))[1]


def test_rows_of_an_odd_number_of_chunks_cannot_be_swizzled() -> None:
    for fields in (
        spec(k=4, mainloop={"shared_a": {**K_VECTOR, "swizzle": "xor"}}),
        spec(k=12, mainloop={"shared_a": {"order": "k_major", "swizzle": "xor"}}),
        spec(mainloop={"shared_a": {"swizzle": "xor", "padding": 4}}),
    ):
        with pytest.raises(PlanError, match=r"swizzle|tile_copy"):
            gemmgen.plan(fields)


def test_a_tile_of_halves_is_swizzled_by_eights() -> None:
    halves = {"storage": {"a": "f16", "b": "f16", "c": "f32"}, "alignment": {"a": 8, "b": 8, "c": 4}}
    a = loop_of(spec(k=32, **halves, mainloop={"copies": "cp_async", "shared_a": {**K_VECTOR, "swizzle": "xor"}})).a
    assert a.swizzle is not None and a.swizzle.chunk == 8 and shared_accesses(a)[0].conflicts == 0


def test_rows_with_single_lane_lie_side_by_side() -> None:
    loop = loop_of(spec(8, 512, 16, (8, 256), mainloop={"fragment": "interleaved"}))
    assert (loop.a.load_width, loop.b.load_width) == (4, 1)


def by_definition(operand: Operand) -> list[tuple[int, int]]:
    """Wavefronts and conflicts of all stores, then of all loads, of the costliest warp: access by access, from the maps."""

    def offset(along_axis: int, along_k: int) -> int:
        row, column = (along_k, along_axis) if operand.mn_major else (along_axis, along_k)
        if operand.swizzle is not None:
            column = operand.swizzle.column(row, column)
        return (row * operand.pitch + column) * operand.shared_bytes

    def cost(accesses: list[list[int]], width: int, store: bool) -> tuple[int, int]:
        costs = [shared_access_cost(offsets, width * operand.shared_bytes, store=store) for offsets in accesses]
        return sum(each.wavefronts for each in costs), sum(each.conflicts for each in costs)

    stores, loads = [], []
    copy, fragment = operand.copy, operand.fragment
    for warp in range(copy.threads // WARP):
        accesses = []
        for a_pass in range(copy.passes):
            for element in range(0, copy.vector, operand.store_width):
                places = [copy.position(warp * WARP + lane, a_pass) for lane in range(WARP)]
                lanes = [(row, column + element) for row, column in places]
                accesses.append([offset(*lane) if operand.contiguous_along_k else offset(*lane[::-1]) for lane in lanes])
        stores.append(cost(accesses, operand.store_width, store=True))
    step = operand.load_width if operand.mn_major else 1
    for warp in range(fragment.warps):
        accesses = [
            [offset(fragment.position(warp, position, element), k) for position in operand.lane_positions]
            for element in range(0, fragment.extent, step)
            for k in range(0, operand.tile_k, operand.k_vector)
        ]
        loads.append(cost(accesses, operand.load_width, store=False))
    return [max(stores), max(loads)]


SHARED = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["mn_major", "k_major"]),
        "swizzle": st.sampled_from(["none", "xor", "xor"]),
        "fragment": st.sampled_from(["interleaved", "contiguous", "quads_in_warp", "quads_in_threadblock"]),
        "k_vector": st.sampled_from([1, 2, 4]),
    }
)
SPECS = st.builds(
    lambda m, k, warp, width, shared, transpose, **loop: spec(
        m, 64, k, warp, transpose=transpose, alignment={"a": width, "b": 1, "c": 1}, mainloop={**loop, "shared_a": shared}
    ),
    m=st.sampled_from([64, 128, 192]),
    k=st.sampled_from([4, 8, 12, 16, 24, 32]),
    warp=st.sampled_from([(64, 32), (32, 64)]),
    width=st.sampled_from([1, 2, 4]),
    shared=SHARED,
    transpose=st.sampled_from(["nn", "tn"]),
    lanes=st.sampled_from(["row_major", "z_order"]),
    copies=st.sampled_from(["registers", "cp_async"]),
)


def planned(fields: dict[str, Any]) -> Operand:
    if fields["mainloop"]["shared_a"]["order"] == "mn_major":
        fields["mainloop"]["shared_a"]["k_vector"] = 1
    try:
        return loop_of(fields).a
    except PlanError:
        assume(False)
        raise


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_every_access_of_every_warp_counts(fields: dict[str, Any]) -> None:
    a = planned(fields)
    stores, loads = shared_accesses(a)
    assert [(access.wavefronts, access.conflicts) for access in (stores, loads)] == by_definition(a)
    assert fewest_wavefronts(stores, WARP) <= stores.least_wavefronts
    assert fewest_wavefronts(loads, a.fragment.lanes) <= loads.least_wavefronts


def test_a_warp_that_begins_within_a_row_may_cost_more() -> None:
    a = loop_of(spec(64, 192, 48, alignment={"a": 1, "b": 1, "c": 1}, mainloop={"shared_a": {"order": "k_major", "padding": 1}})).a
    assert shared_accesses(a)[0].wavefronts == by_definition(a)[0][0] == 2 * a.copy.passes


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_no_other_padding_or_swizzle_takes_fewer_wavefronts(fields: dict[str, Any]) -> None:
    a = planned(fields)
    if a.swizzle is not None:
        others = [replace(a, swizzle=swizzle) for swizzle in xor_swizzles(*a.shared_shape, a.swizzle.chunk)]
    else:
        vector = a.load_width if not a.is_async or a.transposes else max(a.load_width, a.copy.vector)
        others = [replace(a, padding=padding) for padding in range(65) if (a.pitch - a.padding + padding) % vector == 0]
    assert wavefronts(a) == min(wavefronts(other) for other in others)
    assert a == next(other for other in others if wavefronts(other) == wavefronts(a)) or a.swizzle is not None


@pytest.mark.parametrize(
    "fields",
    [
        spec(64, 64, 16, mainloop={"copies": "cp_async", "shared_a": {**K_VECTOR, "swizzle": "xor"}}),
        spec(64, 64, 8, mainloop={"shared_a": {"swizzle": "xor"}}),
        spec(64, 64, 16, (32, 64), mainloop={"shared_a": {"swizzle": "xor", "fragment": "contiguous"}}),
        spec(64, 64, 16, mainloop={"fragment": "interleaved", "shared_b": {"order": "k_major", "swizzle": "xor"}}),
        spec(64, 64, 8, mainloop={"shared_a": {"order": "k_major", "fragment": "interleaved"}, "shared_b": {"padding": 4}}),
        spec(64, 64, 8, transpose="tn", mainloop={"loaders": "halves", "lanes": "z_order", "fragment_buffers": 2}),
    ],
)
def test_the_kernel_takes_as_many_wavefronts_as_the_plan_says(fields: dict[str, Any]) -> None:
    plan = gemmgen.plan(fields)
    assert isinstance(plan, GemmPlan) and isinstance(plan.loop, TiledLoop)
    steps = 3
    dimensions = packed(plan, (plan.tile_m, plan.tile_n, steps * plan.loop.tile_k))
    counted = count_case(plan, compile_plan(plan), Case("whole tiles", dimensions, {}, "integers"))
    # Copies past the registers also cost the lines of their sources, which the plan does not know.
    accesses = plan.loop.accesses[1::2] if plan.loop.copies == "cp_async" else plan.loop.accesses
    stores, loads = plan.loop.accesses[::2], plan.loop.accesses[1::2]
    per_step = sum(access.wavefronts for access in loads)
    if accesses is plan.loop.accesses:
        per_step += sum(access.wavefronts for access in stores) * len(plan.loop.copied) / 2
    counts = counted.counters.total.shared_memory
    assert sum(counts[kind].wavefronts for kind in counts if kind != "cp.async") == per_step * (plan.threads // WARP) * steps
