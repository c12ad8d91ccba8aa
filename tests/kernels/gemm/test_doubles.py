"""Products of float64 by mma.sync: the reference, layouts, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.kernels.gemm.matcher import fit
from gemmgen.kernels.gemm.mma_sync.doubles import double_product
from gemmgen.kernels.gemm.spec import GemmSpec
from tests.kernels.verifying import passes

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "storage": {"a": "f64", "b": "f64", "c": "f64"},
    "alignment": {"a": 2, "b": 2, "c": 2},
    "mainloop": {
        "strategy": "mma_sync",
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 16}, "warp": {"m": 16, "n": 32}},
        "stages": 2,
    },
}
NAMES = ("primes", "not-a-numbers and infinities", "padded leading dimensions", "k of 0", "alpha of 0", "beta of 0")


def changed(loop: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {**SPEC, **others, "mainloop": {**SPEC["mainloop"], **loop}}


@pytest.mark.parametrize(
    ("spec", "architecture"),
    [
        (SPEC, "sm_80"),
        (SPEC, "sm_90"),
        (
            changed(
                {"tile": {"threadblock": {"m": 32, "n": 16, "k": 32}, "warp": {"m": 32, "n": 16}}, "fragment_buffers": 2},
                order="column_major",
                transpose="nt",
                alignment={"a": 1, "b": 2, "c": 1},
            ),
            "sm_90",
        ),
        (changed({"persistent_blocks": 3}, transpose="tt", batch="strided", alignment={"a": 2, "b": 1, "c": 2}), "sm_80"),
    ],
    ids=["sm_80", "sm_90", "columns", "batch"],
)
def test_products_are_those_of_the_reference(spec: dict[str, Any], architecture: str) -> None:
    assert passes(spec, NAMES, architecture=architecture)


@pytest.mark.parametrize(
    "planted",
    [
        ("step % 2 + step / 2 % 2 * 4", "step % 2 + step / 2 % 2 * 2"),
        (" + half * kMatrix, k)", ", k)"),
        ("const double previous", "const float previous"),
        ("fma(alpha", "fmaf(alpha"),
    ],
)
def test_mistakes_show(planted: tuple[str, str]) -> None:
    spec = changed({}, alignment={"a": 2, "b": 2, "c": 1})
    assert not passes(spec, ("2 x 3 tiles",), planted, "sm_90")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (changed({}, storage={"a": "f64", "b": "f32", "c": "f64"}), "storage"),
        (changed({}, storage={"a": "f64", "b": "f64", "c": "f32"}), "storage"),
        (changed({"tile": {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 16, "n": 32}}}), "mainloop.tile.threadblock.k"),
        (changed({}, alignment={"a": 4, "b": 2, "c": 2}), "alignment.a"),
        (changed({"copies": "registers"}), "copies: cp_async"),
        (changed({}, decomposition={"scheme": "split_k_parallel", "slices": 2}), "decomposition"),
        (changed({}, amax="stored"), "amax"),
        (changed({}, store="through_shared"), "store"),
        ({**SPEC, "mainloop": {"strategy": "naive", "threadblock": {"m": 8, "n": 32}}}, "storage"),
    ],
)
def test_specs_that_cannot_work_are_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(GemmgenError) as caught:
        gemmgen.plan(spec)
    assert field in str(caught.value)


def test_the_bound_covers_any_order_and_little_more() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((8, 300)), rng.standard_normal((300, 8))
    value, bound = double_product(a, b, exact=False)
    orders = [a[:, order] @ b[order] for order in (np.arange(300), rng.permutation(300))]
    assert all((np.abs(result - value) <= bound).all() for result in orders)
    assert (bound <= 300 * 2.0**-53 * 1.01 * (np.abs(a) @ np.abs(b))).all()


def test_kernels_of_doubles_serve_doubles_alone() -> None:
    spec = GemmSpec.model_validate(SPEC)
    assert not isinstance(fit(spec, parse_problem("gemm:64,64,64,nt,f64")), str)
    assert fit(spec, parse_problem("gemm:64,64,64,nt,bf16")) == "its tiles are for doubles"
    halves = GemmSpec.model_validate({**SPEC, "storage": {"a": "f16", "b": "f16", "c": "f16"}})
    assert fit(halves, parse_problem("gemm:64,64,64,f64")) == "its tiles are for smaller types than doubles"
