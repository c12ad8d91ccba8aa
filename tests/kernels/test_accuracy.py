"""Bounds of rounding, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.kernels.accuracy import rounded, stored


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_bound_of_storing_covers_every_rounding_and_little_more(element: str) -> None:
    rng = np.random.default_rng(0)
    exact = rng.choice([-1.0, 1.0], 100_000) * 2.0 ** rng.uniform(-40, 15.9, 100_000)
    computed = exact * (1 + 1e-7)
    value, bound = stored(element, exact, np.abs(exact) * 2e-7)
    kept = to_numbers(element, to_elements(element, computed.astype(np.float32))).astype(np.float64)
    ratio = np.abs(kept - value) / bound
    assert 0.9 < ratio.max() <= 1


@pytest.mark.parametrize(("element", "last", "overflow"), [("f16", 65504.0, 65520.0), ("bf16", 2.0**128 - 2.0**120, 2.0**128 - 2.0**119)])
def test_what_is_known_before_it_is_stored_is_known_after(element: str, last: float, overflow: float) -> None:
    values = np.array([1.0, 1 / 3, last, overflow * (1 - 2.0**-20), overflow, -np.inf, np.nan])
    value, bound = stored(element, values, np.zeros(values.shape))
    assert not bound.any()
    assert value[0] == 1 and value[1] != 1 / 3 and value[3] == value[2] == last
    assert value[4] == np.inf and value[5] == -np.inf and np.isnan(value[6])


def test_an_exact_rounding_leaves_no_bound() -> None:
    _, bound = rounded(np.array([3.0, 1 / 3]), np.zeros(2))
    assert bound[0] == 0 < bound[1] <= 2.0**-25 / 1.4


def test_nan_is_stored_as_zero_among_integers() -> None:
    value, bound = stored("s8", np.array([np.nan, 200.0, -3.5]), np.zeros(3))
    assert value.tolist() == [0.0, 127.0, -4.0]
    assert not bound.any()
