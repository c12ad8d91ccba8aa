from __future__ import annotations

import pytest

from gemmgen.api import plan
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.target import ARCHITECTURES, Device, Peaks, device
from gemmgen.kernels.family import Cost
from gemmgen.perf.analysis.residency import residencies
from gemmgen.perf.analysis.roofline import roofline
from gemmgen.toolchain.compilation import compile_plan


def test_a_large_product_is_bound_by_arithmetic() -> None:
    # 2 * 4096^3 operations at the measured 65.5 TFLOP/s, 4 * 3 * 4096^2 bytes at 4.55 TB/s.
    roofs = roofline(Cost(2 * 4096.0**3, 12 * 4096.0**2, "fp32"), device("H200"))
    assert roofs.binding == "compute"
    assert roofs.least_seconds == pytest.approx(2.0983e-3, rel=1e-4)
    assert roofs.memory_seconds == pytest.approx(44.25e-6, rel=1e-3)
    assert roofs.ridge == pytest.approx(65.5 / 4.55)


def test_a_thin_product_is_bound_by_memory() -> None:
    # 16 x 4096 x 4096 must move 67 MB, which takes an H200 about 15 microseconds.
    roofs = roofline(Cost(2 * 16 * 4096.0**2, 4 * (4096.0**2 + 2 * 16 * 4096), "fp32"), device("H200"))
    assert roofs.binding == "memory"
    assert roofs.least_seconds == pytest.approx(14.9e-6, rel=1e-2)


def test_utilisation_is_of_the_roofs() -> None:
    roofs = roofline(Cost(65.5e9, 4.55e9, "fp32"), device("H200"))
    assert roofs.compute_utilisation(2e-3) == pytest.approx(0.5)
    assert roofs.memory_utilisation(2e-3) == pytest.approx(0.5)
    assert roofs.fraction(2e-3) == pytest.approx(0.5)


def test_int8_operations_have_a_roof_of_their_own() -> None:
    assert roofline(Cost(1287e12, 1.0, "int8"), device("H200")).least_seconds == pytest.approx(1.0)


def test_a_device_of_unknown_bandwidth_has_a_known_bound() -> None:
    unknown = Device("unknown", ARCHITECTURES["sm_80"], 1, 1e9, 1, Peaks())
    roofs = roofline(Cost(1e9, 1e9, "fp32"), unknown)
    assert (roofs.binding, roofs.ridge, roofs.memory_seconds) == ("compute", None, 0.0)


def test_residency_counts_what_the_cubin_says() -> None:
    planned = plan(resource_directory("specs") / "gemm/v3_double_buffer.yaml", "sm_80")
    (kernel,) = residencies(planned, compile_plan(planned))
    assert kernel.entry == planned.name
    assert kernel.threads == 256
    assert kernel.shared_bytes == planned.shared_bytes
    assert kernel.resources.registers <= 128
    assert kernel.occupancy.blocks_per_sm == 2
