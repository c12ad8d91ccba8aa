from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import spec_id
from sampling import ALL

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.hardware.target import architecture
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.simt.exchange import exchange_accesses
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.runtime.cuda import gpu_available
from gemmgen.verification.oracle import oracle_of

TILE = {"threadblock": {"m": 128, "n": 128, "k": 8}, "warp": {"m": 32, "n": 64}, "thread": {"m": 8, "n": 8}}


def fields(**changes: Any) -> dict[str, Any]:
    mainloop = {"strategy": "tiled", "tile": TILE, **changes.pop("mainloop", {})}
    return {"kind": "gemm", "alignment": {"a": 4, "b": 4, "c": 4}, "mainloop": mainloop, **changes}


def tile(**changes: Any) -> dict[str, Any]:
    return {"tile": {part: {**extents, **changes.get(part, {})} for part, extents in TILE.items()}}


def planned(**changes: Any) -> GemmPlan:
    plan = gemmgen.plan(fields(**changes))
    assert isinstance(plan, GemmPlan)
    return plan


def codes(**changes: Any) -> set[str]:
    with pytest.raises(PlanError) as caught:
        planned(**changes)
    assert all(reason.field and reason.need for reason in caught.value.reasons)
    return {reason.code for reason in caught.value.reasons}


def test_the_classic_tile_has_the_numbers_of_the_textbook() -> None:
    plan = planned()
    loop = plan.loop
    assert isinstance(loop, TiledLoop)
    assert plan.threads == 256
    assert (loop.a.copy.vector, loop.a.copy.vectors_per_row, loop.a.copy.passes) == (4, 2, 1)
    assert (loop.b.copy.vector, loop.b.copy.vectors_per_row, loop.b.copy.passes) == (4, 32, 1)
    assert (loop.a.padding, loop.b.padding) == (4, 0)
    assert plan.shared_bytes == 2 * 8 * (132 + 128) * 4
    launch = plan.sequence.launches[0]
    assert launch.grid_of({"m": 129, "n": 128}) == (2, 1, 1)


def test_padding_leaves_no_conflict_in_stores() -> None:
    loop = planned().loop
    assert isinstance(loop, TiledLoop) and [access.conflicts for access in loop.accesses] == [0, 0, 0, 0]
    unpadded = planned(mainloop={"shared_a": {"padding": 0}}).loop
    assert isinstance(unpadded, TiledLoop) and unpadded.accesses[0].conflicts > 0


@pytest.mark.parametrize(
    ("mainloop", "code"),
    [
        (tile(warp={"m": 48}), "warp_tile"),
        (tile(thread={"m": 5}), "thread_tile"),
        (tile(thread={"m": 4}), "lanes"),
        ({**tile(thread={"m": 2}, warp={"m": 8}), "fragment": "quads_in_warp"}, "quads"),
        (tile(threadblock={"m": 1024, "n": 1024}), "threads_per_block"),
        (tile(threadblock={"k": 7}), "tile_copy"),
        (tile(threadblock={"k": 512}), "shared_memory"),
        ({"min_blocks_per_sm": 16}, "blocks_per_sm"),
        (tile(thread={"m": 16, "n": 16}, warp={"m": 64, "n": 128}), "registers"),
        ({"shared_a": {"padding": 3}}, "padding"),
    ],
)
def test_an_impossible_tile_is_rejected_with_its_reason(mainloop: dict[str, Any], code: str) -> None:
    assert code in codes(mainloop=mainloop)


def test_a_tile_that_cannot_be_shared_out_names_depths() -> None:
    with pytest.raises(PlanError, match=r"64 x 12 elements for 512 threads.*; 8, 16, 32, 64 along k would do"):
        planned(mainloop=tile(threadblock={"m": 512, "n": 64, "k": 12}), multiple_of={"m": 512}, transpose="tt")


def test_all_reasons_are_given_at_once() -> None:
    found = codes(mainloop=tile(warp={"m": 48}, thread={"m": 5, "n": 7}), architecture="sm_90")
    assert {"warp_tile", "thread_tile"} <= found


def test_an_architecture_older_than_the_spec_is_rejected() -> None:
    with pytest.raises(PlanError, match="sm_80 or newer"):
        gemmgen.plan(fields(architecture="sm_80"), "sm_75")
    with pytest.raises(PlanError, match="need sm_90a; its instructions exist on no other architecture"):
        gemmgen.plan(fields(architecture="sm_90a"), "sm_90")


def test_shared_memory_beyond_48_kb_is_dynamic() -> None:
    big = tile(threadblock={"k": 32})
    plan = gemmgen.plan(fields(mainloop=big), "sm_80")
    assert plan.dynamic_shared_bytes == plan.shared_bytes > 48 * 1024
    assert str(plan.sequence.launches[0].dynamic_shared_bytes) == str(plan.shared_bytes)
    with pytest.raises(PlanError, match="shared memory"):
        gemmgen.plan(fields(mainloop=tile(threadblock={"k": 128})), "sm_75")


def test_the_name_depends_on_every_field_but_the_description() -> None:
    base = planned().name
    assert planned(description="words").name == base
    changes: list[dict[str, Any]] = [
        {"transpose": "tn"},
        {"order": "column_major"},
        {"alpha": "one"},
        {"beta": "zero"},
        {"alignment": {"a": 2}},
        {"epilogue": [{"op": "relu"}]},
        {"mainloop": {"stages": 1}},
        {"mainloop": {"fragment": "contiguous"}},
        {"mainloop": {"shared_b": {"padding": 8}}},
        {"mainloop": {"min_blocks_per_sm": 2}},
        {"architecture": "sm_80"},
    ]
    names = [planned(**change).name for change in changes]
    assert len({base, *names}) == len(names) + 1


def test_the_plan_is_the_same_for_every_architecture_it_fits() -> None:
    names = {gemmgen.plan(fields(), architecture(name)).name for name in ("sm_75", "sm_86", "sm_90a", "sm_120")}
    assert len(names) == 1


def test_groups_that_share_out_k_have_tiles_of_their_own() -> None:
    plan = planned(mainloop=tile(threadblock={"m": 64, "n": 64}) | {"k_groups": 3, "min_blocks_per_sm": 1})
    assert isinstance(plan.loop, TiledLoop)
    assert plan.threads == 3 * plan.group_threads == plan.sequence.launches[0].threads
    tiles, sums = plan.shared_memory[:2], plan.shared_memory[2]
    assert all(region.shape[0] == 3 for region in tiles)
    assert sums.offset == 0 and sums.bytes == 2 * 64 * 64 * 4


SMALL = {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 16, "n": 32}, "thread": {"m": 4, "n": 4}}
SCHEMES: dict[str, dict[str, Any]] = {
    "data_parallel": {"scheme": "data_parallel"},
    "split_k_serial": {"scheme": "split_k_serial", "slices": 3},
    "split_k_parallel": {"scheme": "split_k_parallel", "slices": 3},
    "split_k_parallel_in_groups": {"scheme": "split_k_parallel", "slices": 20},
    "stream_k": {"scheme": "stream_k", "blocks": 5},
}


ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not gpu_available(), reason="this machine has no GPU")]


@pytest.mark.parametrize("backend", ["emulator", pytest.param("gpu", marks=ON_GPU)])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("batch", ["none", "strided"])
@pytest.mark.parametrize("store", ["direct", "through_shared"])
@pytest.mark.parametrize("loop", [{}, {"k_groups": 2}, {"k_groups": 3, "loaders": "halves"}], ids=["plain", "groups", "halves"])
def test_every_division_of_k_goes_with_every_other_axis(backend: Any, scheme: str, batch: str, store: str, loop: dict[str, Any]) -> None:
    changes = {"decomposition": SCHEMES[scheme], "batch": batch, "store": store, "transpose": "tn", "epilogue": [{"op": "residual"}]}
    plan = planned(**changes, mainloop={"tile": SMALL, **loop})
    cases = [case for case in oracle_of(plan.spec.kind).cases(plan) if case.data != "reals"]
    every = 1 if ALL else 12  # from another start for each combination
    report = gemmgen.verify(plan.spec, backend, cases=cases[int(plan.spec_digest, 16) % every :: every])
    assert report.passed, [(result.case.name, result.failure) for result in report.failures]


@pytest.mark.parametrize(
    ("transpose", "shared", "changes"),
    [
        ("nt", {"padding": 4}, {}),
        ("nt", {"order": "k_major", "padding": 4, "k_vector": 2}, {"copies": "cp_async", "stages": 3}),
        ("tn", {"swizzle": "xor"}, {}),
        ("tn", {}, {"copies": "cp_async", "stages": 1}),
    ],
    ids=["contiguous along k", "k_major and asynchronous", "swizzled", "one asynchronous stage"],
)
def test_half_of_threads_can_copy_each_operand(transpose: str, shared: dict[str, Any], changes: dict[str, Any]) -> None:
    loop = {"tile": SMALL, "loaders": "halves", "shared_a": shared, "shared_b": shared, **changes}
    plan = planned(transpose=transpose, architecture="sm_80", mainloop=loop)
    assert isinstance(plan.loop, TiledLoop) and len(plan.loop.copied) == 1
    report = gemmgen.verify(plan, "emulator", cases=oracle_of(plan.spec.kind).cases(plan)[::2])
    assert report.passed, [(result.case.name, result.failure) for result in report.failures]


def test_operands_that_one_code_cannot_copy_are_rejected() -> None:
    with pytest.raises(PlanError, match=r"A: 128 x 8 of f32 contiguous along k.*B: 128 x 8 of f32 contiguous along n"):
        planned(mainloop={"loaders": "halves"})
    assert codes(transpose="tn", mainloop={"loaders": "halves", "shared_b": {"padding": 4}}) == {"loaders"}


def test_a_column_major_c_swaps_the_roles_of_the_operands() -> None:
    row, column = planned(), planned(order="column_major")
    assert (row.major, row.minor, column.major, column.minor) == ("m", "n", "n", "m")
    assert isinstance(row.loop, TiledLoop) and isinstance(column.loop, TiledLoop)
    assert row.loop.minor.name == "B" and column.loop.minor.name == "A"


@pytest.mark.parametrize("path", [path for name, path in shipped_specs().items() if name.startswith("gemm/")], ids=spec_id)
def test_every_shipped_spec_has_a_plan(path: Any) -> None:
    plan = gemmgen.plan(path)
    assert plan.sequence.launches and plan.name.isidentifier()


HALVES = {"storage": {"a": "f16", "b": "bf16", "c": "f16"}, "alignment": {"a": 8, "b": 8, "c": 4}}


def test_halves_through_registers_are_floats_in_shared_memory() -> None:
    deep = tile(threadblock={"k": 16})
    loop = planned(**HALVES, mainloop=deep).loop
    assert isinstance(loop, TiledLoop)
    assert (loop.b.copy.vector, loop.b.store_width, loop.b.shared_bytes) == (8, 4, 4)
    kept = planned(**HALVES, transpose="tn", architecture="sm_80", mainloop={**deep, "copies": "cp_async"})
    assert isinstance(kept.loop, TiledLoop)
    assert (kept.loop.b.copy.vector, kept.loop.b.store_width, kept.loop.b.shared_bytes) == (8, 8, 2)
    assert kept.shared_bytes == 2 * 16 * (128 + 128) * 2
    assert all(access.conflicts == 0 for access in kept.loop.accesses)


def test_arrays_of_halves_have_their_type() -> None:
    arrays = {array.name: array for array in planned(**HALVES, epilogue=[{"op": "residual"}]).sequence.arrays}
    assert {name: array.type for name, array in arrays.items()} == {"A": "f16", "B": "bf16", "C": "f16", "Z": "f16"}
    assert (arrays["A"].alignment, arrays["Z"].alignment) == (16, 8)


def test_asynchronous_copies_of_single_halves_are_rejected() -> None:
    assert codes(**HALVES, architecture="sm_80", mainloop={"copies": "cp_async"}) == {"cp_async_width"}


def test_no_access_is_wider_than_16_bytes() -> None:
    assert codes(alignment={"a": 8}) == {"alignment"}


def test_bfloat16_is_rounded_by_integers_only() -> None:
    fields: dict[str, Any] = {"storage": {"c": "bf16"}}
    assert "cvt.rn.bf16" not in gemmgen.render(planned(**fields)).text
    assert "cvt.rn.bf16" in gemmgen.render(planned(**fields, architecture="sm_80")).text


def test_copies_of_16_bytes_pass_by_l1_or_are_kept_in_it() -> None:
    changes: dict[str, Any] = {"architecture": "sm_80", "transpose": "tn", "mainloop": {"copies": "cp_async"}}
    assert "copy_async_cached" not in gemmgen.render(planned(**changes)).text
    plan = planned(**changes, cache={"l1_b": "keep"})
    text = gemmgen.render(plan).text
    assert text.count("        copy_async<kCopyBytes>(") == text.count("        copy_async_cached(") == 1
    assert plan.name != planned(**changes, cache={"l1_a": "keep"}).name
    assert gemmgen.verify(plan, "emulator", cases=oracle_of(plan.spec.kind).cases(plan)[:4]).passed
    assert codes(cache={"l1_a": "keep"}) == {"l1"}


def test_hint_that_came_later_leaves_names_of_specs() -> None:
    assert "l1_a" not in planned().spec.identity()["cache"]
    assert planned(cache={"l1_a": "bypass"}).name == planned().name


def test_batch_runs_along_y_and_its_arrays_have_first_dimension() -> None:
    plan = planned(batch="strided", epilogue=[{"op": "residual"}])
    launch = plan.sequence.launches[0]
    assert launch.grid_of({"m": 129, "n": 128, "batch": 7}) == (2, 7, 1)
    shapes = {array.name: [str(extent) for extent in array.shape] for array in plan.sequence.arrays}
    assert shapes == {"A": ["batch", "m", "k"], "B": ["batch", "k", "n"], "C": ["batch", "m", "n"], "Z": ["batch", "m", "n"]}
    divided = planned(batch="strided", decomposition={"scheme": "split_k_serial", "slices": 2})
    assert divided.sequence.launches[0].grid_of({"m": 129, "n": 128, "batch": 7}) == (2, 7, 2)
    assert divided.sequence.workspace_bytes.evaluate({"m": 129, "n": 128, "batch": 7}) == 256 + 14 * 128 * 128 * 4
    batch = next(dimension for dimension in plan.sequence.dimensions if dimension.name == "batch")
    assert batch.maximum == 65535


def test_a_batch_is_called_on_arrays_that_share_an_operand() -> None:
    kernel = gemmgen.compile(fields(batch="strided", alignment={}))
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (3, 5, 9)).astype(np.float32), rng.integers(-4, 5, (9, 7)).astype(np.float32)
    c = np.full((3, 5, 7), np.nan, np.float32)
    kernel(A=a, B=np.broadcast_to(b, (3, 9, 7)), C=c)
    assert (c == a @ b).all()
    kernel(A=a[:1], B=b[None], C=c[:1], alpha=2.0)
    assert (c[0] == 2 * (a @ b)[0]).all()
    kernel(A=a[:0], B=np.broadcast_to(b, (0, 9, 7)), C=c[:0])


def test_staged_epilogue_lies_over_tiles_and_has_no_conflicts() -> None:
    for fragment in ("contiguous", "quads_in_warp", "quads_in_threadblock", "interleaved"):
        plan = planned(store="through_shared", mainloop={"fragment": fragment, **tile(warp={"m": 64, "n": 32})})
        exchange, loop = plan.exchange, plan.loop
        assert exchange is not None and isinstance(loop, TiledLoop)
        region = plan.shared_memory[-1]
        assert (region.name, region.offset, region.bytes) == ("exchange", 0, 8 * 8 * exchange.pitch * 4)
        assert plan.shared_bytes == planned(mainloop={"fragment": fragment, **tile(warp={"m": 64, "n": 32})}).shared_bytes
        assert plan.vector_c == 4
        positions = tuple(zip(loop.major.lane_positions, loop.minor.lane_positions, strict=True))
        assert [access.conflicts for access in exchange_accesses(exchange, positions)] == [0, 0]


@pytest.mark.parametrize("fragment", ["contiguous", "quads_in_warp", "quads_in_threadblock", "interleaved"])
def test_slab_holds_every_column_of_warp_tile_once(fragment: str) -> None:
    plan = planned(store="through_shared", mainloop={"fragment": fragment})
    exchange = plan.exchange
    assert exchange is not None
    owned = exchange.fragment
    in_c = {}
    for lane in range(owned.lanes):
        for element in range(owned.extent):
            piece, within = divmod(element, owned.vector)
            in_c[lane * owned.lane_stride + piece * exchange.piece_stride + within] = owned.position(0, lane, element)
    assert sorted(in_c) == list(range(exchange.copy.columns))
    for column, position in in_c.items():
        assert position == column // exchange.run * (owned.piece_stride if not exchange.is_closed else exchange.run) + column % exchange.run


def test_a_staged_epilogue_with_nothing_to_stage_is_rejected() -> None:
    with pytest.raises(PlanError, match="direct for the naive strategy"):
        gemmgen.plan({"kind": "gemm", "store": "through_shared", "mainloop": {"strategy": "naive", "threadblock": {"m": 8, "n": 32}}})
    odd = {"fragment": "contiguous", **tile(threadblock={"m": 96, "n": 96}, warp={"m": 32, "n": 96}, thread={"n": 12})}
    assert codes(store="through_shared", mainloop=odd) == {"store"}
