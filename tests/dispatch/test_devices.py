"""GPUs of a machine as entries of the list of devices."""

from __future__ import annotations

import pytest

from gemmgen.dispatch.devices import as_device
from gemmgen.hardware.target import DEVICES
from gemmgen.runtime.cuda.driver import GpuDevice

UNITS = ("int8", "fp8", "fp4", "f16", "tf32")


def gpu(name: str, capability: tuple[int, int], multiprocessors: int) -> GpuDevice:
    return GpuDevice(0, name, capability, multiprocessors, 80 << 30, 50 << 20, 232448, (13, 0), "0000:00:00.0")


@pytest.mark.parametrize(
    ("name", "capability", "multiprocessors", "kin"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", (9, 0), 60, "H100"),  # not the H20, whose tensor cores are slow
        ("NVIDIA H200 MIG 1g.18gb", (9, 0), 16, "H200"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0), 14, "A100"),
        ("NVIDIA A10", (8, 6), 72, "RTX 3090"),  # not the L40S, of another architecture
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76, "RTX 4090"),
    ],
)
def test_a_slice_is_judged_by_its_whole_gpu(name: str, capability: tuple[int, int], multiprocessors: int, kin: str) -> None:
    found, entry = as_device(gpu(name, capability, multiprocessors)), DEVICES[kin]
    assert (found.sm_count, found.architecture) == (multiprocessors, entry.architecture)
    assert found.clock_hz == entry.clock_hz
    share = multiprocessors / entry.sm_count
    assert found.fp32_roof.value == pytest.approx(entry.datasheet.fp32_flops * share, rel=0.01)
    for unit in ("f16_wgmma", "int8_wgmma"):
        whole, part = entry.roof(unit), found.roof(unit)
        assert (whole is None) == (part is None)
    tensor = found.datasheet.f16_wgmma_flops
    assert tensor == (None if entry.datasheet.f16_wgmma_flops is None else pytest.approx(entry.datasheet.f16_wgmma_flops * share))


def test_rates_of_floats_do_not_follow_slow_integers() -> None:
    rates = {
        name: [None if roof is None else roof.value / 1e12 for roof in (DEVICES[name].roof(f"{unit}_tcgen05") for unit in UNITS)]
        for name in ("B200", "B300", "H200")
    }
    assert rates == {
        "B200": [4500, 4500, 9000, 2250, 1125],
        "B300": [None, 4500, 13125, 2250, 1125],
        "H200": [None] * 5,
    }
    assert DEVICES["B300"].roof("f16_mma") == DEVICES["B200"].roof("f16_mma")


def test_a_known_gpu_is_its_entry() -> None:
    assert as_device(gpu("NVIDIA H20", (9, 0), 78)) is DEVICES["H20"]
    assert as_device(gpu("NVIDIA H100 PCIe", (9, 0), 114)) is DEVICES["H100 PCIe"]
