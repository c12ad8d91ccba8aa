from __future__ import annotations

from typing import Any

import numpy as np
from fake_driver import array_at, fake_driver

import gemmgen
from gemmgen.library.listing import Listing
from gemmgen.library.single_run import SAMPLE_EVERY, chosen_cases, launch_case
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.verification.case_arrays import prepare_case
from gemmgen.verification.oracle import oracle_of

__all__ = ["fake_driver"]


def test_a_case_is_launched_once_on_its_own_data(fake_driver: Any, listing: Listing) -> None:
    instance = next(found for found in listing.instances if found.label == "reduction/rows")
    (case,) = chosen_cases(instance.plan, "counted")
    rows, columns = case.dimensions["outer"], case.dimensions["reduced"]
    seen: list[float] = []

    def kernel(launch: Any, values: list[Any]) -> None:
        pointer = values[[argument.name for argument in instance.plan.sequence.parameters_of(0)].index("X")]
        seen.append(float(np.abs(array_at(pointer, (rows, columns))).max()))

    fake_driver.kernels[instance.name] = kernel
    launch_case(instance.plan, LoadedBinary(b"cubin", "sm_80", 0), case)
    assert len(seen) == 1 and 0 < seen[0] < 1e9


def test_a_negative_stride_begins_at_its_first_element(fake_driver: Any) -> None:
    plan = gemmgen.plan("reduction/open/columns")
    case = next(case for case in oracle_of(plan.spec.kind).cases(plan) if case.name == "negative strides")
    seen: list[float] = []

    def kernel(launch: Any, values: list[Any]) -> None:
        pointer = values[[argument.name for argument in plan.sequence.parameters_of(0)].index("X")]
        seen.append(float(array_at(pointer, (1,))[0]))

    fake_driver.kernels[plan.name] = kernel
    launch_case(plan, LoadedBinary(b"cubin", "sm_80", 0), case)
    assert seen == [prepare_case(plan, case)["X"].view.flat[0]]


def test_the_sample_has_every_fourth_case(listing: Listing) -> None:
    plan = listing.instances[0].plan
    assert len(chosen_cases(plan, "sampled")) == -(-len(oracle_of(plan.spec.kind).cases(plan)) // SAMPLE_EVERY)
