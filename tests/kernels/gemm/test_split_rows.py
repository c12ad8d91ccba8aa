"""float32 products whose large factor is split in the mainloop: marked rows, the loss of the sums, and refused specs."""

from __future__ import annotations

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.accuracy import UNIT_ROUNDOFF
from gemmgen.kernels.gemm import oracle
from gemmgen.kernels.gemm.split_precision.planes import SCHEMES

SPEC = "gemm/split_precision/bf16x6_decode/16"
TURNS = ["mainloop.schedule=alternating", "mainloop.consumers=2", "mainloop.promote_every=16", "mainloop.min_blocks_per_sm=1"]
SHALLOW = "mainloop.stages=2"
ALONE = "decomposition={scheme: data_parallel}"


def product(w: np.ndarray, x: np.ndarray, *overrides: str, c: np.ndarray | None = None, **scalars: float) -> np.ndarray:
    """x @ w.T by an instance, of matrices whose rows are multiples of four long; added to ``c``."""
    multiply = gemmgen.compile(gemmgen.plan(SPEC, "sm_90a", ["early_launch=false", *overrides]))
    y = np.full((len(x), len(w)), np.nan, np.float32) if c is None else c.copy()
    multiply(A=w, B=x.T, C=y.T, **scalars)
    return y


def factors(rows: int, columns: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(k + rows)
    return rng.standard_normal((rows, k), np.float32), rng.standard_normal((columns, k), np.float32)


@pytest.mark.parametrize("name", ["bf16x6", "bf16x9"])
@pytest.mark.parametrize("compensated", [False, True])
def test_joined_sums_keep_to_the_bound_of_multiply_adds(name, compensated):
    scheme = SCHEMES[name]
    for parts in (1, 8):
        least = scheme.least_depth(32, compensated, parts, joined=True)
        assert least <= 128
        assert all(scheme.error_factor(k, 32, compensated, True) + parts - 1 <= k for k in range(least, 20000))


@pytest.mark.parametrize("overrides", [[ALONE], ["decomposition.slices=4"], TURNS])
@pytest.mark.parametrize(("row", "at"), [(0, 0), (17, 299), (69, 150)])
def test_a_row_is_marked_wherever_it_is_odd(overrides, row, at):
    w, x = factors(70, 19, 300)
    for value in (np.inf, np.nan, np.float32(1e-40), np.float32(2.0**127)):
        w[row, at] = value
        with np.errstate(invalid="ignore", over="ignore"):
            want = (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)
        got = product(w, x, *overrides)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4, equal_nan=True)


def test_marked_rows_are_scaled_once():
    rng = np.random.default_rng(3)
    w, x, c = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((70, 128), (19, 128), (19, 70)))
    w[5, 100], w[64, 3] = 2.0**-110, 2.0**-120
    x[7, 7] = -(2.0**-105)
    got = product(w, x, "alpha=argument", "beta=argument", c=c, alpha=2.0, beta=3.0)
    np.testing.assert_array_equal(got, 2 * (x @ w.T) + 3 * c)


def test_sums_that_overflow_stay_infinite():
    w, x = np.zeros((64, 512), np.float32), np.zeros((8, 512), np.float32)
    w[:, ::4], x[:, ::4] = 2.0**100, 2.0**24
    w[1, 0] = -(2.0**100)
    for overrides in ([ALONE], ["decomposition.slices=2"], TURNS):
        assert (product(w, x, *overrides) == np.inf).all()


def test_errors_do_not_grow_with_k():
    rng = np.random.default_rng(8)
    for k, limit in ((256, 8), (4096, 8)):
        w, x = rng.random((64, k), np.float32), rng.random((8, k), np.float32)
        exact = x.astype(np.float64) @ w.T.astype(np.float64)
        assert (np.abs(product(w, x, ALONE) - exact) <= limit * UNIT_ROUNDOFF * exact).all()


def test_shallow_products_are_rounded_once():
    w, x = factors(66, 9, 40)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_array_equal(product(w, x), exact.astype(np.float32))


@pytest.mark.parametrize(
    "overrides",
    [
        [ALONE, "mainloop.arithmetic.f32_by=bf16x9"],
        ["mainloop.arithmetic.sums=plain"],
        [ALONE, "order=row_major", "transpose=nt", "alignment.c=2", "alpha=argument", "beta=argument"],
        ["transpose=tt", "mainloop.tile.n=64", "mainloop.stages=2", "mainloop.min_blocks_per_sm=1", "epilogue=[{op: bias, per: row}]"],
        [ALONE, "mainloop.tile={m: 128, n: 24, k: 128}", "mainloop.stages=2", "mainloop.min_blocks_per_sm=1"],
        [ALONE, "transpose=nn"],
        [ALONE, "alignment.b=1"],
        [*TURNS, ALONE],
        [*TURNS, "transpose=nn", "mainloop.tile.n=48", SHALLOW],
        [
            "transpose=nt",
            "mainloop.tile={m: 128, n: 64, k: 64}",
            "mainloop.consumers=2",
            "mainloop.min_blocks_per_sm=1",
            "mainloop.stages=2",
        ],
        [ALONE, "mainloop.promote_every=16", "mainloop.persistent_blocks=2", "mainloop.a_from=registers"],
    ],
    ids=lambda overrides: overrides[-1].split("=")[0],
)
def test_every_form_verifies(overrides):
    plan = gemmgen.plan(SPEC, "sm_90a", overrides)
    names = ("primes", "k of 0", "not-a-numbers and infinities")
    assert gemmgen.verify(plan, "emulator", cases=[case for case in oracle.cases(plan) if case.name in names]).passed


@pytest.mark.parametrize(("problem", "splits"), [("96,4096,4096,nt", True), ("64,4096,4096,nn", True), ("2048,2048,2048,nt", False)])
def test_products_of_few_rows_are_split_in_the_mainloop(problem, splits):
    chosen = choose(parse_problem(f"gemm:{problem}"), device("H100")).chosen
    assert ("decode" in chosen.candidate.label) == splits


def test_few_rows_are_held_by_one_tile():
    chosen = choose(parse_problem("gemm:43,11008,4096,nt"), device("H200")).chosen
    assert chosen.plan.loop.tile_n >= 43


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("mainloop.arithmetic.f32_by=f16x3", "mainloop.arithmetic.split"),
        ("mainloop.arithmetic.f32_by=tf32x3", "mainloop.arithmetic.split"),
        ("mainloop.arithmetic.f32_by=null", "mainloop.arithmetic.split"),
        ("alignment.a=1", "mainloop.arithmetic.split"),
        ("batch=strided", "mainloop.arithmetic.split"),
        ("mainloop.arithmetic.kept=b", "mainloop.arithmetic.split"),
        ("mainloop.promote_every=64", "mainloop.tile.k"),
        ("mainloop.schedule=alternating", "mainloop.consumers"),
    ],
)
def test_what_the_mainloop_cannot_split_is_refused(override, field):
    with pytest.raises(PlanError) as refused:
        gemmgen.plan(SPEC, "sm_90a", [override])
    assert field in {reason.field for reason in refused.value.reasons}
