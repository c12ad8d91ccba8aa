"""Architectures and devices as data: limits of kernels, rates of chips, and the number of blocks that fit on an SM.

Limits come from the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide, features
from the target notes of each instruction in the PTX ISA manual. Sizes are bytes, rates are per second, K is 1024.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from gemmgen.core.errors import SpecError
from gemmgen.core.text import did_you_mean, printable

KIB = 1024
WARP_THREADS = 32
SECTOR_BYTES = 32
MAX_CLUSTER = 8
"""Blocks of a cluster, on every architecture that has clusters."""
MAX_NONPORTABLE_CLUSTER = 16
"""Blocks of a cluster, where the kernel allows sizes that not every GPU has (CUDA programming guide)."""

Feature = Literal[
    "ldmatrix",
    "cp_async",
    "bf16",
    "tf32_mma",
    "fp8_mma",
    "mbarrier",
    "stmatrix",
    "clusters",
    "tma",
    "wgmma",
    "setmaxnreg",
    "programmatic_launch",
    "packed_fp32_fma",
    "block_scaled_mma",
    "tcgen05",
    "tcgen05_int8",
    "tcgen05_k96",
]
MmaShape = tuple[int, int, int]

TURING: frozenset[Feature] = frozenset({"ldmatrix"})
AMPERE: frozenset[Feature] = TURING | {"cp_async", "bf16", "tf32_mma", "mbarrier"}
ADA: frozenset[Feature] = AMPERE | {"fp8_mma"}
HOPPER: frozenset[Feature] = ADA | {"stmatrix", "clusters", "tma", "programmatic_launch"}
HOPPER_SPECIFIC: frozenset[Feature] = HOPPER | {"wgmma", "setmaxnreg"}
BLACKWELL: frozenset[Feature] = HOPPER | {"packed_fp32_fma"}
BLACKWELL_WARPS: frozenset[Feature] = BLACKWELL | {"setmaxnreg", "block_scaled_mma"}
"""sm_120a: no wgmma and no tensor memory, but `mma.sync` with block scales."""
BLACKWELL_ULTRA: frozenset[Feature] = BLACKWELL | {"setmaxnreg", "tcgen05"}
"""sm_103a: tensor memory and `tcgen05`, but for integers."""
BLACKWELL_TENSOR_MEMORY: frozenset[Feature] = BLACKWELL_ULTRA | {"tcgen05_int8"}
"""sm_100a and sm_110a: tensor memory and `tcgen05`."""

INT8_MMA_TURING: tuple[MmaShape, ...] = ((8, 8, 16),)
INT8_MMA_AMPERE: tuple[MmaShape, ...] = ((8, 8, 16), (16, 8, 16), (16, 8, 32))


FP64_LANES = {(8, 0): 32, (9, 0): 64, (10, 0): 64}
"""By compute capability; other chips have two for each SM."""
FP64_TENSOR_LANES = {(8, 0): 64, (9, 0): 128, (10, 0): 64}
"""Multiply-adds of doubles by tensor cores in a clock cycle of an SM, by compute capability (NVIDIA A100 and H100 Tensor Core GPU
Architecture whitepapers: 19.5 and 67 TFLOP/s; HGX B200 datasheet: 40); other chips multiply on their lanes."""
L2_BYTES_PER_CLOCK = 64
"""Two sectors in a clock cycle: more does not come to an SM from the L2."""
L2_SLICES_BYTES_PER_CLOCK = {"A100": 5120}
"""Read by all SMs together, where the vendor tells (NVIDIA A100 Tensor Core GPU Architecture whitepaper)."""
SPECIAL_LANES_PER_SM = 16
"""Results of special functions in a clock cycle: reciprocals, square roots, 2^x, log2, sine (same table)."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Limits of the compiler and one SM of this architecture. `features` are those usable under exactly this name."""

    name: str
    compute_capability: tuple[int, int]
    warps_per_sm: int
    blocks_per_sm: int
    shared_bytes_per_sm: int
    fp32_lanes_per_sm: int
    features: frozenset[Feature]
    int8_mma_shapes: tuple[MmaShape, ...] = INT8_MMA_AMPERE
    reserved_shared_bytes_per_block: int = KIB
    shared_allocation_bytes: int = 128
    threads_per_block: int = 1024
    registers_per_sm: int = 64 * KIB
    registers_per_thread: int = 255
    register_allocation_unit: int = 256
    warp_allocation_granularity: int = 4
    static_shared_bytes_per_block: int = 48 * KIB
    portable_parameter_bytes: int = 4096

    @property
    def fp64_lanes_per_sm(self) -> int:
        """Multiply-adds of doubles in a clock cycle (CUDA C++ Programming Guide, throughput of native arithmetic instructions)."""
        return FP64_LANES.get(self.compute_capability, 2)

    @property
    def shared_bytes_per_block(self) -> int:
        """The most shared memory one block can have, static and dynamic together, after opting in above 48 KB."""
        return self.shared_bytes_per_sm - self.reserved_shared_bytes_per_block

    @property
    def threads_per_sm(self) -> int:
        return self.warps_per_sm * WARP_THREADS

    def supports(self, feature: Feature) -> bool:
        return feature in self.features

    def runs_cubins_of(self, other: Architecture) -> bool:
        """True if a chip of this architecture loads a cubin made for `other`.

        A cubin runs on its own major version at the same or a later minor version; one for an architecture-specific
        name (the suffix a) runs on exactly that compute capability.
        """
        major, minor = other.compute_capability
        if other.name.endswith("a"):
            return self.compute_capability == other.compute_capability
        return self.compute_capability[0] == major and self.compute_capability[1] >= minor


# name, compute capability, warps/SM, blocks/SM, shared/SM, FP32 lanes/SM, features
ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture("sm_75", (7, 5), 32, 16, 64 * KIB, 64, TURING, INT8_MMA_TURING, 0, 256),
        Architecture("sm_80", (8, 0), 64, 32, 164 * KIB, 64, AMPERE),
        Architecture("sm_86", (8, 6), 48, 16, 100 * KIB, 128, AMPERE),
        Architecture("sm_87", (8, 7), 48, 16, 164 * KIB, 128, AMPERE),
        Architecture("sm_89", (8, 9), 48, 24, 100 * KIB, 128, ADA),
        Architecture("sm_90", (9, 0), 64, 32, 228 * KIB, 128, HOPPER),
        Architecture("sm_90a", (9, 0), 64, 32, 228 * KIB, 128, HOPPER_SPECIFIC),
        Architecture("sm_100", (10, 0), 64, 32, 228 * KIB, 128, BLACKWELL),
        Architecture("sm_100a", (10, 0), 64, 32, 228 * KIB, 128, BLACKWELL_TENSOR_MEMORY),
        Architecture("sm_103a", (10, 3), 64, 32, 228 * KIB, 128, BLACKWELL_ULTRA | {"tcgen05_k96"}),
        Architecture("sm_110a", (11, 0), 48, 24, 228 * KIB, 128, BLACKWELL_TENSOR_MEMORY),
        Architecture("sm_120", (12, 0), 48, 24, 100 * KIB, 128, BLACKWELL),
        Architecture("sm_120a", (12, 0), 48, 24, 100 * KIB, 128, BLACKWELL_WARPS),
        Architecture("sm_121a", (12, 1), 48, 24, 100 * KIB, 128, BLACKWELL_WARPS),
    )
}

SAME_INSTRUCTIONS = {"sm_100a": ("sm_103a", "sm_110a"), "sm_120a": ("sm_121a",)}
"""Architectures of other chips that have most instructions of one: kernels that are written for it are made for these as well."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Rates of one chip that share an origin, a datasheet or a measurement; None where that origin is silent."""

    fp32_flops: float | None = None
    int8_mma_ops: float | None = None
    int8_wgmma_ops: float | None = None
    f16_wgmma_flops: float | None = None
    tf32_wgmma_flops: float | None = None
    fp8_wgmma_flops: float | None = None
    fp8_tcgen05_flops: float | None = None
    """None: as many as integers of a byte."""
    fp4_tcgen05_flops: float | None = None
    """None: twice as many as those of a byte."""
    read_bytes_per_second: float | None = None


HOPPER_MMA_SHARE = 0.65
"""Part of the rate of `wgmma` that `mma.sync` reaches on Hopper: 1287 of 1979 TOP/s on an H200."""
BLACKWELL_MMA_SHARE = 0.32
"""Part of the rate of `tcgen05` that `mma.sync` is assumed to reach on sm_100a: Hopper's rate for each SM and clock. Not measured."""


FLOAT_PRODUCTS = {
    f"f32_by_{name}_{instruction}": (f"{type}_{instruction}", products)
    for name, type, products in (("f16x3", "f16", 3), ("bf16x6", "f16", 6), ("bf16x9", "f16", 9), ("tf32x3", "tf32", 3))
    for instruction in ("wgmma", "tcgen05", "mma")
}
"""Units of float32 products by planes: the unit of the smaller type, and its products for each float32 product."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One rate and where it comes from."""

    value: float
    origin: Literal["measured", "datasheet", "theory"]


@dataclass(frozen=True, slots=True)
class Device:
    """One product. `measured` was seen on the chip with `mma.sync`, register-only FFMA and long streams; `datasheet`
    is the vendor's, dense and at boost clock."""

    name: str
    architecture: Architecture
    sm_count: int
    clock_hz: float
    l2_bytes: int
    datasheet: Peaks
    measured: Peaks = Peaks()
    float_sums: float = 1.0
    """Part of the rate of tensor cores that sums in float32 leave of that with sums in float16: half on GeForce (NVIDIA Ada GPU
    Architecture whitepaper, appendix A)."""

    @property
    def fp32_theoretical_flops(self) -> float:
        """Two operations (multiply and add) per FP32 lane and boost clock cycle."""
        return 2.0 * self.sm_count * self.architecture.fp32_lanes_per_sm * self.clock_hz

    @property
    def fp32_roof(self) -> Figure:
        """The FFMA rate to hold a kernel against: measured where it was, else theory."""
        if self.measured.fp32_flops is not None:
            return Figure(self.measured.fp32_flops, "measured")
        return Figure(self.fp32_theoretical_flops, "theory")

    @property
    def special_roof(self) -> Figure:
        """Special functions per second."""
        return Figure(float(self.sm_count * SPECIAL_LANES_PER_SM) * self.clock_hz, "theory")

    @property
    def l2_roof(self) -> Figure:
        """Bytes per second that the L2 gives all SMs together: the vendor's figure where there is one, else the rate that the SMs can take.

        The latter is an upper bound, since the throughput of the slices is neither documented nor measured by itself: kernels on an H200
        reached 25 to 47 of the 64 bytes a clock cycle.
        """
        known = L2_SLICES_BYTES_PER_CLOCK.get(self.name)
        if known is not None:
            return Figure(known * self.clock_hz, "datasheet")
        return Figure(self.sm_count * L2_BYTES_PER_CLOCK * self.clock_hz, "theory")

    @property
    def int8_roof(self) -> Figure | None:
        """The int8 tensor core rate of `mma.sync`: measured where it was, else the datasheet's."""
        return _first_known(self.measured.int8_mma_ops, self.datasheet.int8_mma_ops)

    @property
    def int8_mma_roof(self) -> Figure | None:
        """The int8 rate of `mma.sync`, with Hopper's share of it where only the datasheet is known, whose rate is that of `wgmma`."""
        roof = self.int8_roof
        if roof is not None and self.architecture.supports("tcgen05"):
            return Figure(roof.value * BLACKWELL_MMA_SHARE, roof.origin)
        if roof is None or roof.origin == "measured" or not self.architecture.supports("wgmma"):
            return roof
        return Figure(roof.value * HOPPER_MMA_SHARE, roof.origin)

    @property
    def byte_mma_roof(self) -> Figure | None:
        """The rate of `mma.sync` that those for floats are derived from: that for int8, unless the chip has slow integers."""
        if self.datasheet.fp8_tcgen05_flops is not None:
            return Figure(self.datasheet.fp8_tcgen05_flops * BLACKWELL_MMA_SHARE, "datasheet")
        return self.int8_mma_roof

    @property
    def fp8_tcgen05_roof(self) -> Figure | None:
        """The rate of `tcgen05` for 8-bit floats: that for integers, unless the datasheet says otherwise."""
        if self.datasheet.fp8_tcgen05_flops is not None:
            return Figure(self.datasheet.fp8_tcgen05_flops, "datasheet")
        return self.int8_roof if self.architecture.supports("tcgen05") else None

    def roof(self, unit: str) -> Figure | None:
        """The rate of a unit: ``fp32``, ``fp64``, a type with its instruction, such as ``f16_wgmma``, or float32 by products of a type."""
        if unit in FLOAT_PRODUCTS:
            base, products = FLOAT_PRODUCTS[unit]
            return _divided(self.roof(base), products)
        if unit in _STATED:
            stated = _STATED[unit]
            return _first_known(stated(self.measured), stated(self.datasheet))
        return _DERIVED[unit](self)

    @property
    def memory_roof(self) -> Figure | None:
        """The read bandwidth of device memory: measured where it was, else the datasheet's."""
        return _first_known(self.measured.read_bytes_per_second, self.datasheet.read_bytes_per_second)


def _divided(roof: Figure | None, parts: float) -> Figure | None:
    return None if roof is None else Figure(roof.value / parts, roof.origin)


def _first_known(measured: float | None, datasheet: float | None) -> Figure | None:
    if measured is not None:
        return Figure(measured, "measured")
    return None if datasheet is None else Figure(datasheet, "datasheet")


_STATED: dict[str, Callable[[Peaks], float | None]] = {
    "int8_wgmma": lambda peaks: peaks.int8_wgmma_ops,
    "f16_wgmma": lambda peaks: peaks.f16_wgmma_flops,
    "tf32_wgmma": lambda peaks: peaks.tf32_wgmma_flops,
    "fp8_wgmma": lambda peaks: peaks.fp8_wgmma_flops,
}
"""Units whose rates are measured or stated themselves."""
_DERIVED: dict[str, Callable[[Device], Figure | None]] = {
    "fp32": lambda device: device.fp32_roof,
    # Beside tensor cores, two operations per lane and boost clock cycle.
    "fp64": lambda device: Figure(2.0 * device.sm_count * device.architecture.fp64_lanes_per_sm * device.clock_hz, "theory"),
    "f64_mma": lambda device: Figure(
        2.0
        * device.sm_count
        * FP64_TENSOR_LANES.get(device.architecture.compute_capability, device.architecture.fp64_lanes_per_sm)
        * device.clock_hz,
        "theory",
    ),
    "special": lambda device: device.special_roof,
    "int8": lambda device: device.int8_roof,
    "int8_mma": lambda device: device.int8_mma_roof,
    # float16 and bfloat16, summed up in float32: half the rate for bytes, or less.
    "f16_mma": lambda device: _divided(device.byte_mma_roof, 2 / device.float_sums),
    "f16_sums_mma": lambda device: _divided(device.byte_mma_roof, 2),
    # Hopper multiplies 8-bit floats as float16.
    "fp8_mma": lambda device: _divided(device.byte_mma_roof, (2 if device.architecture.supports("wgmma") else 1) / device.float_sums),
    # Twice the rate for bytes, for either type of sums (NVIDIA RTX Blackwell GPU Architecture whitepaper: the RTX 5090 has 1676 dense FP4
    # TFLOP/s and 838 int8 TOP/s).
    "fp4_mma": lambda device: _divided(device.int8_mma_roof, 0.5) if device.architecture.compute_capability[0] == 12 else None,
    "tf32_mma": lambda device: _divided(device.byte_mma_roof, 4 / device.float_sums),
    "int8_tcgen05": lambda device: device.int8_roof if device.architecture.supports("tcgen05_int8") else None,
    "fp8_tcgen05": lambda device: device.fp8_tcgen05_roof,
    # The datasheet's rate, or twice that for bytes (NVIDIA Blackwell architecture brief: 9 dense FP4 PFLOP/s of a B200).
    "fp4_tcgen05": lambda device: _first_known(None, device.datasheet.fp4_tcgen05_flops) or _divided(device.fp8_tcgen05_roof, 0.5),
    "f16_tcgen05": lambda device: _divided(device.fp8_tcgen05_roof, 2),
    "tf32_tcgen05": lambda device: _divided(device.fp8_tcgen05_roof, 4),
}
"""Rates of the other units; none where a device lacks the instruction."""


def _device(
    name: str,
    architecture: str,
    sms: int,
    mhz: float,
    l2_mib: int,
    tflops: float,
    int8_tops: float,
    gb_per_s: float,
    measured: Peaks = Peaks(),
    float_sums: float = 1.0,
    floats: Peaks | None = None,
) -> Device:
    """``floats``: rates of floats that do not follow from those of integers."""
    datasheet = replace(floats or Peaks(), fp32_flops=tflops * 1e12, int8_mma_ops=int8_tops * 1e12, read_bytes_per_second=gb_per_s * 1e9)
    if ARCHITECTURES[architecture].supports("wgmma"):
        # The rate falls in proportion to the bytes of an element (NVIDIA H100 datasheet: 1979, 1979, 989.5 and 495).
        byte_ops = int8_tops * 1e12
        datasheet = replace(
            datasheet, int8_wgmma_ops=byte_ops, fp8_wgmma_flops=byte_ops, f16_wgmma_flops=byte_ops / 2, tf32_wgmma_flops=byte_ops / 4
        )
    return Device(name, ARCHITECTURES[architecture], sms, mhz * 1e6, l2_mib * KIB * KIB, datasheet, measured, float_sums)


_H200_MEASURED = Peaks(
    fp32_flops=65.5e12,
    int8_mma_ops=1287e12,
    int8_wgmma_ops=1933e12,
    f16_wgmma_flops=946e12,
    tf32_wgmma_flops=460e12,
    fp8_wgmma_flops=1760e12,
    read_bytes_per_second=4.55e12,
)

_B300_FLOATS = Peaks(fp8_tcgen05_flops=4500e12, fp4_tcgen05_flops=13125e12)

# name, architecture, SMs, boost MHz, L2 MiB; then the datasheet's FP32 TFLOP/s, dense int8 TOP/s, memory GB/s. NVIDIA publishes no
# datasheet of the H20: its entry has the figures that the press reported (78 SMs, 148 TFLOP/s in 16 bits,
# 4 TB/s) and the float32 rate of its lanes. RTX 5090 and RTX PRO 6000 (Blackwell Workstation Edition): NVIDIA RTX Blackwell and RTX PRO
# Blackwell GPU architecture whitepapers; nobody here has run either. B200:
# NVIDIA HGX B200 datasheet (dense rates are half of the sparse ones, an eighth of the system's: 2250 bf16 TFLOP/s; 8 TB/s); SMs, clock and
# L2 as the driver reports them. Nobody here has run it; ThunderKittens publishes 1532 to 1652 bf16 TFLOP/s.
# B300: NVIDIA HGX B300 datasheet, as resellers quote it (2 sparse int8 POP/s, 72 sparse FP8 and 105 dense FP4 PFLOP/s and 600 FP32 TFLOP/s
# of eight; 8 TB/s); the clock that users read (sgl-project/sglang, pull request 28460), SMs and L2 of the B200. Nobody here has run it.
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("B200", "sm_100a", 148, 1965, 126, 75.0, 4500, 8000),
        _device("B300", "sm_103a", 148, 2032, 126, 75.0, 125, 8000, floats=_B300_FLOATS),
        _device("H200", "sm_90a", 132, 1980, 60, 67.0, 1979, 4800, _H200_MEASURED),
        _device("H100", "sm_90a", 132, 1980, 50, 67.0, 1979, 3350),
        _device("H100 NVL", "sm_90a", 132, 1785, 50, 60.0, 1671, 3938),
        _device("H100 PCIe", "sm_90a", 114, 1755, 50, 51.0, 1513, 2000),
        _device("H20", "sm_90a", 78, 1980, 60, 39.5, 296, 4000),
        _device("A100", "sm_80", 108, 1410, 40, 19.5, 624, 2039),
        _device("L40S", "sm_89", 142, 2520, 96, 91.6, 733, 864),
        _device("L4", "sm_89", 58, 2040, 48, 30.3, 242, 300),
        _device("RTX 5090", "sm_120a", 170, 2407, 96, 104.8, 838, 1792, float_sums=0.5),
        _device("RTX PRO 6000", "sm_120a", 188, 2617, 128, 126.0, 1008, 1792),
        _device("RTX 4090", "sm_89", 128, 2520, 72, 82.6, 660.6, 1008, float_sums=0.5),
        _device("RTX 3090", "sm_86", 82, 1695, 6, 35.6, 284, 936, float_sums=0.5),
        _device("T4", "sm_75", 40, 1590, 4, 8.1, 130, 320),
    )
}


def architecture(name: str) -> Architecture:
    """The architecture of that name. Raises SpecError with the known names."""
    named = ARCHITECTURES.get(name)
    if named is None:
        for known, entry in DEVICES.items():
            if known.lower() == name.lower():
                raise SpecError(f"{name!r} is a device; its architecture is {entry.architecture.name}")
        raise SpecError(f"unknown architecture {name!r}; known: {', '.join(ARCHITECTURES)}")
    return named


def device(name: str) -> Device:
    """The device of that name, in any case, or the one that ``name`` describes, as ``described_device`` reads it. Raises SpecError with
    the known names."""
    for known, entry in DEVICES.items():
        if known.lower() == name.lower():
            return entry
    if "=" in name:
        return described_device(name)
    raise SpecError(
        f"unknown device {printable(name, 60)!r}{did_you_mean(name.upper(), DEVICES)}; known: {', '.join(DEVICES)}. "
        f"Describe another by its data sheet: {DESCRIPTION_EXAMPLE}"
    )


DESCRIPTION_EXAMPLE = "name=A10,arch=sm_86,sms=72,mhz=1695,l2=6,fp32=31.2,int8=250,memory=600"
_DESCRIPTION_UNITS = {
    "sms": "multiprocessors",
    "mhz": "boost clock in MHz",
    "l2": "L2 in MiB",
    "fp32": "FP32 TFLOP/s",
    "int8": "dense int8 TOP/s",
    "memory": "GB/s of memory",
}


@lru_cache(maxsize=64)
def described_device(text: str) -> Device:
    """A device by its data sheet, such as ``DESCRIPTION_EXAMPLE``. Raises ``SpecError`` that names the missing parts."""
    fields = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(","))
    shown = printable(text, 120)
    wanted = ("name", "arch", *_DESCRIPTION_UNITS)
    if wrong := [name for name in (*fields, *wanted) if (name in fields) != (name in wanted)]:
        what = "has no field" if wrong[0] in fields else "lacks the field"
        units = ", ".join(f"{name} ({unit})" for name, unit in _DESCRIPTION_UNITS.items())
        raise SpecError(f"the description of a device {shown!r} {what} {printable(wrong[0], 40)!r}: need name, arch, {units}, all of them")
    numbers: dict[str, float] = {}
    for name, unit in _DESCRIPTION_UNITS.items():
        try:
            numbers[name] = float(fields[name])
        except ValueError:
            numbers[name] = math.nan
        if not 0 < numbers[name] < 1e6:
            raise SpecError(f"the description of a device {shown!r}: {name} is {printable(fields[name], 40)!r}, need {unit}, above 0")
    if not re.fullmatch(r"[A-Za-z0-9_.+-]{1,40}", fields["name"]):
        raise SpecError(f"the description of a device {shown!r}: name is {printable(fields['name'], 40)!r}, need letters and digits")
    chip = architecture(fields["arch"])
    sms, mhz, l2_mib, tflops, int8_tops, gb_per_s = (numbers[name] for name in _DESCRIPTION_UNITS)
    return _device(fields["name"], chip.name, int(sms), mhz, int(l2_mib), tflops, int8_tops, gb_per_s)


def match_device(driver_name: str, sm_count: int) -> Device | None:
    """The entry for a chip as the driver calls it, "NVIDIA A100-SXM4-80GB" say; None if it is not in the list.

    The number of SMs must agree, because slices of a chip keep its name; of several entries the longest name fits best ("H100 NVL").
    """
    fitting = [entry for entry in DEVICES.values() if named_words(entry, driver_name) and entry.sm_count == sm_count]
    return max(fitting, key=lambda entry: len(entry.name.split()), default=None)


def named_words(entry: Device, driver_name: str) -> int:
    """Words of an entry's name if the driver's name of a chip has all of them, else 0."""
    words = set(entry.name.upper().split())
    return len(words) if words <= set(re.split(r"[^A-Za-z0-9]+", driver_name.upper())) else 0


def architecture_for(major: int, minor: int) -> Architecture | None:
    """The richest architecture whose cubins run on a chip of that compute capability; None if there is none."""
    candidates = [
        entry
        for entry in ARCHITECTURES.values()
        if entry.compute_capability[0] == major
        and (entry.compute_capability == (major, minor) or (entry.compute_capability[1] < minor and entry.name[-1] != "a"))
    ]
    return max(candidates, key=lambda entry: (entry.compute_capability, len(entry.features)), default=None)


Limiter = Literal["threads", "warps", "blocks", "registers", "shared"]
_UNLIMITED = 2**31


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Numbers of blocks and warps of a kernel that are resident on one SM, and the limits that bind (several where they tie).

    Zero blocks mean that the kernel cannot be launched; `limited_by` then names every limit it exceeds.
    """

    blocks_per_sm: int
    warps: int
    fraction: float
    limited_by: tuple[Limiter, ...]


def occupancy(architecture: Architecture, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Resident blocks per SM for `threads` per block, `registers` per thread, `shared_bytes` per block.

    The rules of the CUDA occupancy calculator: registers are given to warps in units of 256 from four equal
    partitions, shared memory to blocks in units of 128 bytes with the system's reserved bytes on top, and the SM is
    set to its largest shared memory capacity. `shared_bytes` counts static and dynamic bytes, without the reserved.
    """
    if threads < 1 or registers < 0 or shared_bytes < 0:
        raise ValueError(f"need threads >= 1, registers >= 0, shared_bytes >= 0; got {threads, registers, shared_bytes}")
    warps_per_block = -(-threads // WARP_THREADS)
    limits: dict[Limiter, int] = {
        "threads": _UNLIMITED if threads <= architecture.threads_per_block else 0,
        "warps": architecture.warps_per_sm // warps_per_block,
        "blocks": architecture.blocks_per_sm,
        "registers": _blocks_by_registers(architecture, warps_per_block, registers),
        "shared": _blocks_by_shared(architecture, shared_bytes),
    }
    blocks = min(limits.values())
    warps = blocks * warps_per_block
    binding = tuple(name for name, limit in limits.items() if limit == blocks)
    return Occupancy(blocks, warps, warps / architecture.warps_per_sm, binding)


def _blocks_by_registers(architecture: Architecture, warps_per_block: int, registers: int) -> int:
    if registers > architecture.registers_per_thread:
        return 0
    if registers == 0:
        return _UNLIMITED
    partitions = architecture.warp_allocation_granularity
    registers_per_warp = _round_up(registers * WARP_THREADS, architecture.register_allocation_unit)
    warps = architecture.registers_per_sm // partitions // registers_per_warp * partitions
    return warps // warps_per_block


def _blocks_by_shared(architecture: Architecture, shared_bytes: int) -> int:
    if shared_bytes > architecture.shared_bytes_per_block:
        return 0
    allocated = _round_up(shared_bytes + architecture.reserved_shared_bytes_per_block, architecture.shared_allocation_bytes)
    return architecture.shared_bytes_per_sm // allocated if allocated else _UNLIMITED


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
