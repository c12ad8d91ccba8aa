"""The orders of multiply-adds: all products once, and as many operands reused as their sources say."""

from __future__ import annotations

import pytest

from gemmgen.kernels.math.fma_order import fma_order, product_pairs, reused_operands, swirl

ORDERS = ("rows", "columns", "serpentine_rows", "serpentine_columns", "swirl")


@pytest.mark.parametrize("name", ORDERS)
def test_every_product_is_listed_once(name):
    pairs = product_pairs(fma_order(name), 8, 8)
    assert sorted(pairs) == [(i, j) for i in range(8) for j in range(8)]


def test_the_swirl_goes_round_in_circles_of_two_by_two():
    assert swirl()[:8] == ((2, 0), (2, 1), (0, 1), (0, 0), (3, 0), (3, 1), (1, 1), (1, 0))


@pytest.mark.parametrize(("name", "reused"), [("rows", 56), ("serpentine_rows", 70), ("serpentine_columns", 70), ("swirl", 94)])
def test_operands_that_two_kept_registers_save(name, reused):
    assert reused_operands(product_pairs(fma_order(name), 8, 8)) == reused


def test_products_of_unequal_fragments():
    assert product_pairs(fma_order("serpentine_columns"), 2, 3) == ((0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2))
