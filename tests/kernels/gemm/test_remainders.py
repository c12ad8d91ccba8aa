"""Products of float64 by remainders: the moduli, verification, planted mistakes, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.gemm.explain import explain
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.remainders.scheme import MAX_K, SCHEMES, stride_bits
from tests.kernels.verifying import passes

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "f64", "b": "f64", "c": "f64"},
    "alignment": {"a": 2, "b": 2, "c": 2},
    "mainloop": {
        "strategy": "wgmma",
        "arithmetic": {"f64_by": "int8x14"},
        "tile": {"m": 64, "n": 16, "k": 128},
        "stages": 2,
        "consumers": 1,
        "persistent_blocks": 3,
    },
}


@pytest.mark.parametrize(
    ("transpose", "alignment", "names"),
    [
        ("nn", 2, ("not-a-numbers and infinities", "k of 0")),
        ("tt", 1, ("least aligned pointers", "a column")),
        ("nt", 1, ("padded leading dimensions",)),
        ("tn", 2, ("one element", "primes")),
    ],
)
def test_verified(transpose: str, alignment: int, names: tuple[str, ...]) -> None:
    spec = SPEC | {"transpose": transpose, "alignment": {"a": alignment, "b": alignment, "c": alignment}}
    assert passes(spec, names)


@pytest.mark.parametrize(
    "planted",
    [
        ("remainder_byte<255>(rest", "remainder_byte<253>(rest"),
        ("double_power(-line.exponent) *", "double_power(1 - line.exponent) *"),
        ("return {double_power(-(exponent + top)), exponent, top};", "return {double_power(-(exponent + top)), exponent + 2, top};"),
    ],
)
def test_planted_mistakes_are_found(planted: tuple[str, str]) -> None:
    assert not passes(SPEC, ("k one above a tile",), planted)


@pytest.mark.parametrize("name", list(SCHEMES))
def test_moduli(name: str) -> None:
    scheme = SCHEMES[name]
    assert all(math.gcd(a, b) == 1 for i, a in enumerate(scheme.numbers) for b in scheme.numbers[:i])
    assert scheme.numbers[0] == 256
    assert int(scheme.norm) ** 2 <= (scheme.product - 1) // 2
    for modulus in scheme.moduli:
        weight = sum(map(int, modulus.weights))
        assert [weight % number for number in scheme.numbers] == [int(number == modulus.number) for number in scheme.numbers]
        assert modulus.factor < 1 << 32
        assert modulus.bias >= MAX_K << 14 or modulus.bias > (1 << 30) - 256 >= MAX_K << 14
    for parts in zip(scheme.product_parts, *(modulus.weights for modulus in scheme.moduli), strict=True):
        unit = math.gcd(*map(int, parts))
        assert sum(map(int, parts)) // unit * 255 < 1 << 53 or max(map(int, parts)) // unit < 1 << 41
    assert sum(map(int, scheme.product_parts)) == scheme.product


@pytest.mark.parametrize("name", list(SCHEMES))
def test_quotients_are_exact(name: str) -> None:
    """Quotients of sums, at the ends of every step, and remainders of all numbers below 2^23 in float32."""
    scheme = SCHEMES[name]
    values = np.arange(-(2**23), 2**23 + 1, dtype=np.float32)
    for modulus in scheme.moduli:
        steps = np.arange(0, 2**31 // modulus.number, 97, dtype=np.uint64) * np.uint64(modulus.number)
        for at in (steps, steps + np.uint64(modulus.number - 1)):
            quotients = at * np.uint64(modulus.factor) >> np.uint64(32 + modulus.shift)
            assert np.array_equal(quotients, at // np.uint64(modulus.number))
        if modulus.number == 256:
            continue
        rounding = np.float32(1.5 * 2**23)
        products = values.astype(np.float64) * np.float64(np.float32(modulus.inverse))
        quotients = (products + np.float64(rounding)).astype(np.float32) - rounding
        rests = values.astype(np.float64) - quotients.astype(np.float64) * modulus.number
        assert np.abs(rests).max() <= (modulus.number - 1) // 2


def test_samples_of_the_lower_bound() -> None:
    assert [stride_bits(k) for k in (1, 512, 1023, 1024, 2048, 4096, 65535)] == [0, 0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"storage": {"a": "f32", "b": "f32", "c": "f32"}}, "f64 for A, B and C where arithmetic.f64_by is given"),
        ({"alpha": "argument"}, "alpha: got argument, need one"),
        ({"batch": "strided"}, "batch: got strided, need none"),
        ({"store": "tma"}, "store: got tma, need direct"),
        ({"epilogue": [{"op": "relu"}]}, "epilogue: got 1, need 0"),
        ({"mainloop": SPEC["mainloop"] | {"arithmetic": {"f64_by": "int8x14", "f32_by": "f16x3"}}}, "none beside f64_by"),
        ({"mainloop": SPEC["mainloop"] | {"tile": {"m": 64, "n": 16, "k": 64}}}, "mainloop.tile.k: got 64"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GemmgenError, match=message):
        gemmgen.plan(SPEC | changes)


def test_the_strategy_is_that_of_warpgroups() -> None:
    loop = {
        "strategy": "mma_sync",
        "arithmetic": {"f64_by": "int8x14"},
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 16}, "warp": {"m": 16, "n": 32}},
    }
    with pytest.raises(GemmgenError, match=r"mainloop.strategy: got mma_sync, need wgmma"):
        gemmgen.plan(SPEC | {"mainloop": loop})


def test_explanation_names_the_moduli() -> None:
    plan = gemmgen.plan(SPEC)
    assert isinstance(plan, GemmPlan)
    text = " ".join(words for section in explain(plan) for line in section.lines for words in line)
    assert "256, 255, 253, 251" in text
    assert "64 rows of 16 bytes" in text
