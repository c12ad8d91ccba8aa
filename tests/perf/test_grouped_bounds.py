"""The account of grouped products: tiles by hand, and the committed page as the program makes it."""

from __future__ import annotations

import json

import pytest

from gemmgen.kernels.gemm.launch_costs import UNFILLED
from measurements.grouped_bounds import HERE, Tiling, account, last_end, table, uneven_ends

TILES = Tiling("two groups of warps", 128, 256, 2, 4)


@pytest.mark.parametrize(
    ("sizes", "padded", "copied", "ended"),
    [
        ([], 0, 0, 0),
        ([0, 0], 0, 0, 0),
        ([128], 2 / 4, 2 / 4, 1),
        ([1], 2 * 0.5 / 4, 2 * (0.5 + UNFILLED / 2) / 4, 0.5 + UNFILLED / 2),
        ([65], 2 / 4, 2 / 4, 1),
        ([128, 0, 192], 5 / 4, (6 - 2 * 0.5 * (1 - UNFILLED)) / 4, 1.5 + UNFILLED / 2),
    ],
)
def test_account_of_a_few_tiles(sizes: list[int], padded: float, copied: float, ended: float) -> None:
    found = account(sizes, 512, TILES)
    assert found.exact == pytest.approx(sum(sizes) / 128 * 2 / 4)
    assert (found.padded, found.copied, found.ended) == pytest.approx((padded, copied, ended))


def test_columns_beyond_n_are_padding() -> None:
    found = account([128], 257, TILES)
    assert found.padded == pytest.approx(2 / 4)
    assert found.exact == pytest.approx(257 / 256 / 4)


def test_tiles_go_to_the_block_that_is_free_first() -> None:
    assert last_end([3, 1, 1, 1, 2], 2) == 5
    assert last_end([], 2) == 0


@pytest.mark.parametrize("groups", [2, 8, 128])
def test_groups_fill_all_rows_and_one_is_empty(groups: int) -> None:
    ends = uneven_ends(groups, 4096)
    sizes = [int(after - before) for before, after in zip([0, *ends[:-1]], ends, strict=True)]
    assert sum(sizes) == 4096
    assert min(sizes) == 0 == sizes[len(sizes) // 2]


def test_the_page_is_what_the_program_makes() -> None:
    rows = json.loads((HERE / "grouped.json").read_text())["rows"]
    assert (HERE / "grouped_bounds.md").read_text() == table(rows)
