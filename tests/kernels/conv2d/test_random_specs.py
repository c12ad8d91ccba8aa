"""Any spec is either rejected with reasons, or its kernel compiles and computes the right result."""

from __future__ import annotations

import pytest
from sampling import ALL

from kernels.conv2d.random_specs import SPECS
from kernels.random_batches import try_random_specs

BATCHES, EVERY = (4, 8) if ALL else (1, 24)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_random_spec_is_rejected_with_reasons_or_verifies(batch: int) -> None:
    outcomes = try_random_specs(SPECS, batch, examples=30, every=EVERY)
    assert outcomes["verified"] >= 4 and outcomes["rejected"] >= 1
