"""Any spec is either rejected with reasons, or its kernels compile and compute the right results."""

from __future__ import annotations

import pytest

from kernels.random_batches import try_random_specs
from kernels.reduction.random_specs import reductions

BATCHES = 4


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_random_spec_is_rejected_with_reasons_or_verifies(batch: int) -> None:
    outcomes = try_random_specs(reductions(), batch, examples=50, every=3)
    assert outcomes["verified"] >= 5 and outcomes["rejected"] >= 1
