"""Architectures, devices and occupancy."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gemmgen
from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import (
    ARCHITECTURES,
    DEVICES,
    Architecture,
    Device,
    Occupancy,
    Peaks,
    architecture,
    architecture_for,
    device,
    match_device,
    occupancy,
)

KIB = 1024


@pytest.mark.parametrize("lookup", [architecture, device])
def test_unknown_name_lists_the_known_ones(lookup):
    with pytest.raises(SpecError, match=r"unknown .* 'sm_1'; known: .*,"):
        lookup("sm_1")


def test_device_names_ignore_case():
    assert device("rtx 4090") is DEVICES["RTX 4090"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_limits_agree_with_each_other(name):
    entry = architecture(name)
    assert entry.shared_bytes_per_block <= entry.shared_bytes_per_sm
    assert entry.threads_per_block <= entry.threads_per_sm
    major, minor = entry.compute_capability
    assert entry.name.rstrip("a") == f"sm_{major}{minor}"


def test_every_number_is_read_somewhere():
    read = {
        node.attr
        for path in Path(gemmgen.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert {field.name for entry in (Architecture, Device, Peaks) for field in fields(entry)} <= read


def test_opt_in_shared_memory_is_what_the_guide_lists():
    listed = {"sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99}
    assert {name: architecture(name).shared_bytes_per_block // KIB for name in listed} == listed


def test_features_belong_to_the_exact_name():
    assert architecture("sm_90a").supports("wgmma")
    assert not architecture("sm_90").supports("wgmma")
    assert not architecture("sm_100").supports("wgmma")
    assert not architecture("sm_75").supports("cp_async")
    assert (16, 8, 32) not in architecture("sm_75").int8_mma_shapes
    assert (16, 8, 32) in architecture("sm_80").int8_mma_shapes


def test_cubins_run_within_major_version():
    assert architecture("sm_89").runs_cubins_of(architecture("sm_80"))
    assert not architecture("sm_80").runs_cubins_of(architecture("sm_86"))
    assert not architecture("sm_90").runs_cubins_of(architecture("sm_89"))
    assert not architecture("sm_100").runs_cubins_of(architecture("sm_90a"))
    assert architecture("sm_90").runs_cubins_of(architecture("sm_90a"))


@pytest.mark.parametrize("name", DEVICES)
def test_theoretical_fp32_rate_is_the_datasheets(name):
    """Within 2 percent; 3 for the B300, whose clock its users read while its rate is quoted for eight, rounded."""
    entry = device(name)
    assert entry.fp32_theoretical_flops == pytest.approx(entry.datasheet.fp32_flops, rel=0.03 if name == "B300" else 0.02)


def test_roofs_prefer_measurements_and_say_where_they_come_from():
    assert (device("H200").fp32_roof.value, device("H200").fp32_roof.origin) == (65.5e12, "measured")
    assert device("H200").int8_roof.value == 1287e12
    assert device("H200").memory_roof.value == 4.55e12
    assert device("L4").fp32_roof.origin == "theory"
    assert device("L4").memory_roof.origin == "datasheet"


def test_match_device_by_the_drivers_name():
    assert match_device("NVIDIA H200", 132) is DEVICES["H200"]
    assert match_device("NVIDIA A100-SXM4-80GB", 108) is DEVICES["A100"]
    assert match_device("NVIDIA L40S", 142) is DEVICES["L40S"]
    assert match_device("NVIDIA H100 PCIe", 114) is DEVICES["H100 PCIe"]
    assert match_device("NVIDIA H100 NVL", 132) is DEVICES["H100 NVL"]
    assert match_device("NVIDIA H100 80GB HBM3", 132) is DEVICES["H100"]
    assert match_device("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60) is None
    assert match_device("NVIDIA GeForce RTX 4090 Laptop GPU", 76) is None


def test_architecture_for_takes_the_richest_that_runs():
    def chosen(major: int, minor: int) -> str | None:
        entry = architecture_for(major, minor)
        return entry.name if entry else None

    assert chosen(9, 0) == "sm_90a"
    assert chosen(8, 6) == "sm_86"
    assert chosen(10, 3) == "sm_103a"
    assert chosen(10, 1) == "sm_100"
    assert chosen(7, 0) is None


# Worked by hand from the rules of the occupancy calculator.
@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared_bytes", "expected"),
    [
        ("sm_90", 256, 32, 0, Occupancy(8, 64, 1.0, ("warps", "registers"))),
        ("sm_90", 256, 33, 0, Occupancy(6, 48, 0.75, ("registers",))),  # 40 registers a thread, 12 warps a partition
        ("sm_90", 256, 128, 32 * KIB, Occupancy(2, 16, 0.25, ("registers",))),
        ("sm_90", 256, 254, 67584, Occupancy(1, 8, 0.125, ("registers",))),
        ("sm_90", 32, 16, 0, Occupancy(32, 32, 0.5, ("blocks",))),
        ("sm_90", 128, 32, 56 * KIB, Occupancy(4, 16, 0.25, ("shared",))),  # 57 KiB with the reserved: exactly four
        ("sm_90", 128, 32, 56 * KIB + 1, Occupancy(3, 12, 0.1875, ("shared",))),
        ("sm_90", 128, 32, 227 * KIB, Occupancy(1, 4, 4 / 64, ("shared",))),
        ("sm_90", 128, 32, 227 * KIB + 1, Occupancy(0, 0, 0.0, ("shared",))),
        ("sm_75", 128, 32, 32 * KIB, Occupancy(2, 8, 0.25, ("shared",))),  # nothing is reserved on Turing
        ("sm_75", 1024, 64, 0, Occupancy(1, 32, 1.0, ("warps", "registers"))),
        ("sm_86", 1024, 32, 0, Occupancy(1, 32, 32 / 48, ("warps",))),
        ("sm_80", 96, 0, 0, Occupancy(21, 63, 63 / 64, ("warps",))),
        ("sm_90", 1024, 65, 0, Occupancy(0, 0, 0.0, ("registers",))),
        ("sm_90", 32, 256, 0, Occupancy(0, 0, 0.0, ("registers",))),
        ("sm_90", 1025, 16, 0, Occupancy(0, 0, 0.0, ("threads",))),
        ("sm_90", 1056, 16, 228 * KIB, Occupancy(0, 0, 0.0, ("threads", "shared"))),
        ("sm_90", 96, 33, 0, Occupancy(16, 48, 0.75, ("registers",))),  # 17 blocks would need 13 warps in a partition
        # 80 registers leave 6 warps a partition, 24 in all, though 25 would fit in the file as a whole.
        ("sm_90", 800, 80, 0, Occupancy(0, 0, 0.0, ("registers",))),
    ],
)
def test_occupancy(name, threads, registers, shared_bytes, expected):
    assert occupancy(architecture(name), threads, registers, shared_bytes) == expected


@given(
    st.sampled_from(list(ARCHITECTURES.values())),
    st.integers(1, 1024),
    st.integers(0, 255),
    st.integers(0, 228 * KIB),
)
def test_occupancy_stays_within_every_limit(entry, threads, registers, shared_bytes):
    got = occupancy(entry, threads, registers, shared_bytes)
    warps_per_block = -(-threads // 32)
    assert got.warps == got.blocks_per_sm * warps_per_block <= entry.warps_per_sm
    assert got.blocks_per_sm * registers * threads <= entry.registers_per_sm
    assert got.blocks_per_sm * (shared_bytes + entry.reserved_shared_bytes_per_block) <= entry.shared_bytes_per_sm
    assert got.limited_by
    fewer = occupancy(entry, threads, max(registers - 1, 0), max(shared_bytes - 1, 0))
    assert fewer.blocks_per_sm >= got.blocks_per_sm


def test_occupancy_rejects_nonsense():
    with pytest.raises(ValueError, match="threads >= 1"):
        occupancy(architecture("sm_90"), 0, 32, 0)


@pytest.mark.parametrize(("name", "share"), [("H200", 0.5), ("H100", 0.5), ("L40S", 1), ("RTX 4090", 0.5), ("RTX 5090", 0.5)])
def test_8_bit_floats_by_mma_sync_run_at_float16_rate_on_hopper(name, share):
    known = device(name)
    assert known.roof("fp8_mma").value == pytest.approx(share * known.roof("int8_mma").value)
    assert (known.roof("fp8_mma") == known.roof("f16_mma")) == known.architecture.supports("wgmma")
