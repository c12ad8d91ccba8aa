"""Any spec is either rejected with reasons, or its kernel compiles and computes the right result."""

from __future__ import annotations

import pytest
from sampling import ALL

from kernels.gemm.random_specs import SPECS
from kernels.random_batches import try_random_specs

BATCHES, EVERY = (8, 3) if ALL else (3, 16)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_random_spec_is_rejected_with_reasons_or_verifies(batch: int) -> None:
    outcomes = try_random_specs(SPECS, batch, examples=25, every=EVERY)
    assert outcomes["verified"] >= 3 and outcomes["rejected"] >= 1
