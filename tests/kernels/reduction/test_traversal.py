"""The rule for tensors: axes that are joined, strategies, and the blocks that share a result."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gemmgen.core.formulas import ceil_div
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import DEVICES
from gemmgen.kernels.reduction.matcher import arithmetic
from gemmgen.kernels.reduction.spec import FlatTiles, TensorColumns
from gemmgen.kernels.reduction.traversal import Axis, Traversal, shares, tensor_of, traversal
from gemmgen.kernels.requests import Layout
from gemmgen.ops.operators import operator_called

H200 = DEVICES["H200"]


def rule(
    kept: list[tuple[int, int]], reduced: list[tuple[int, int]], operation: str = "sum", kind: str = "f32", alignment: int = 16
) -> Traversal:
    axes = [Axis(extent, stride, 1) for extent, stride in kept], [Axis(extent, stride) for extent, stride in reduced]
    return traversal(tensor_of(*axes, False), arithmetic("sum", kind), 16, 132)


def test_axes_that_one_stride_walks_through_are_one() -> None:
    tensor = tensor_of([Axis(4, 60, 5), Axis(5, 12, 1)], [Axis(3, 4), Axis(1, 9), Axis(4, 1)], False)
    assert tensor.kept == (Axis(20, 12, 1),) and tensor.reduced == (Axis(12, 1),)


def test_axes_whose_results_lie_otherwise_stay_apart() -> None:
    assert len(tensor_of([Axis(4, 60, 1), Axis(5, 12, 4)], [Axis(12, 1)], False).kept) == 2


def test_axes_keep_their_order_where_places_are_numbered() -> None:
    axes = [Axis(3, 1), Axis(4, 3)]
    assert tensor_of([], axes, True).reduced == tuple(axes)
    assert tensor_of([], axes, False).reduced == (Axis(12, 1),)


@pytest.mark.parametrize(
    ("kept", "reduced", "name"),
    [
        ([(6, 1 << 24)], [(1 << 24, 1)], "tensor_rows"),
        ([(1 << 24, 1)], [(6, 1 << 24)], "tensor_columns"),
        ([(7, 1)], [(1 << 20, 7)], "flat_columns"),
        ([(1 << 20, 7)], [(7, 1)], "tensor_columns"),
        ([(1 << 20, 11)], [(11, 1)], "flat_rows"),
        ([(10**7, 1)], [], "tensor_columns"),
        ([(29, 1232 * 371), (371, 1)], [(1232, 371)], "flat_tiles"),
        ([(29, 1232 * 372), (372, 1)], [(1232, 372)], "tensor_columns"),
        ([(29, 64 * 371), (371, 1)], [(64, 371)], "tensor_columns"),
        ([(29, 1232 * 400), (371, 1)], [(1232, 400)], "tensor_columns"),
        ([(3, 224 * 224)], [(64, 3 * 224 * 224), (224 * 224, 1)], "tensor_rows"),
    ],
)
def test_every_kind_of_tensor_has_its_strategy(kept: Any, reduced: Any, name: str) -> None:
    assert rule(kept, reduced).strategy.name == name


@pytest.mark.parametrize(("rows", "length", "columns"), [(1442559, 5, 2), (700001, 4, 2), (1200001, 9, 2), (5000, 6, 1)])
def test_a_thread_reads_several_of_the_shortest_rows(rows: int, length: int, columns: int) -> None:
    strategy = rule([(rows, length)], [(length, 1)], alignment=4).strategy
    assert isinstance(strategy, TensorColumns)
    assert (strategy.unroll, strategy.columns, strategy.vector) == (length, columns, 1)


@pytest.mark.parametrize(("kept", "reduced"), [([(9228031, 1)], []), ([(1513, 1)], [(2648, 1516)])])
def test_the_last_vector_of_aligned_rows_may_be_a_part_of_one(kept: Any, reduced: Any) -> None:
    strategy = rule(kept, reduced).strategy
    assert isinstance(strategy, TensorColumns) and strategy.ragged and strategy.vector == 4


def odd_middle(outer: int, rows: int, columns: int, stored: str) -> Traversal:
    tensor = tensor_of([Axis(outer, rows * columns, columns), Axis(columns, 1, 1)], [Axis(rows, columns)], False)
    return traversal(tensor, arithmetic("sum", stored), 16, 132)


@pytest.mark.parametrize("shape", [(26, 765, 519, "f16"), (31, 742, 371, "f32"), (64, 300, 777, "bf16"), (16, 1000, 259, "f32")])
def test_odd_rows_between_axes_fill_the_device_unshared(shape: tuple[int, int, int, str]) -> None:
    found = odd_middle(*shape)
    strategy = found.strategy
    assert isinstance(strategy, FlatTiles) and strategy.lanes and strategy.vector and strategy.threads
    blocks = shape[0] * ceil_div(shape[2], (strategy.lanes - 1) * strategy.vector)
    assert found.parts == 1
    assert 300 * 132 < blocks * strategy.threads < 2048 * 132  # blocks have 256 threads: larger ones leave more of an SM idle


@pytest.mark.parametrize(("shape", "threads"), [((24, 16, 80, 336), 512), ((37, 13, 87, 298), 512), ((27, 12, 57, 199), 256)])
def test_narrow_tiles_of_tall_blocks_are_not_shared(shape: tuple[int, int, int, int], threads: int) -> None:
    a, b, c, d = shape
    found = rule([(b, c * d), (d, 1)], [(a, b * c * d), (c, d)])
    assert isinstance(found.strategy, TensorColumns) and (found.strategy.threads, found.strategy.lanes, found.parts) == (threads, 8, 1)


def test_few_long_odd_tiles_are_shared() -> None:
    assert odd_middle(3, 20000, 333, "f32").parts > 4


def test_positions_in_few_columns_are_not_tiled() -> None:
    found = traversal(tensor_of([Axis(7, 1, 1)], [Axis(1 << 20, 7)], False), arithmetic("argmax", "f32"), 16, 132)
    assert found.strategy.name == "tensor_columns"


def test_few_long_rows_are_shared_by_all_multiprocessors() -> None:
    found = rule([(3, 1 << 26)], [(1 << 26, 1)])
    assert 3 * found.parts >= 3.8 * 132


@pytest.mark.parametrize("groups", [1, 3, 26, 100, 131, 133, 500, 5000])
def test_blocks_fill_whole_waves(groups: int) -> None:
    parts = shares(groups, 1 << 12, 528)
    blocks = groups * parts
    assert blocks / (-(-blocks // 528) * 528) > 0.85


def test_extents_beyond_31_bits_have_wide_indices() -> None:
    assert rule([], [(3 << 30, 1)], kind="s8").strategy.wide
    assert not rule([], [(1 << 20, 1)], kind="s8").strategy.wide


def test_broadcast_results_are_made_once() -> None:
    found = rule([(5, 0), (100, 1000)], [(1000, 1)])
    assert found.strategy.repeated and found.strategy.kept == 2


def test_grids_follow_the_device() -> None:
    half = dataclasses.replace(H200, sm_count=66)
    request = operator_called("reduce").interpret({"x": Layout.packed((3, 1 << 24), "f32")}, {"op": "sum", "axis": 1}).request
    blocks = [choose(request, device).chosen.dimensions["parts"] for device in (H200, half)]
    assert abs(blocks[0] - 2 * blocks[1]) <= 2
