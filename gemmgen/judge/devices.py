"""Devices that the runtime reports to host code: real ones, the task's architecture first, and some with names from the program's texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gemmgen.hardware.target import DEVICES
from gemmgen.sanitizer.programs.session import DeviceAnswers

ASKING = re.compile(
    rb"cu(da)?(Device)?(GetDeviceProperties|GetAttribute|GetName|GetUuid|TotalMem|GetPCIBusId|MemGetInfo|OccupancyMax\w+)(_v\d+)?"
    rb"|cu(da)?(GetProcAddress|GetDriverEntryPoint\w*|DeviceGet\w+)(_v\d+)?"
)
"""Functions that tell of the device."""
TIMING = re.compile(rb"cu(da)?EventElapsedTime(_v\d+)?|clock_gettime|gettimeofday|time|clock|timespec_get|_ZNSt6chrono.*3nowEv")
"""Functions that tell the time."""
FAST, SLOW = 1e-4, 1e3
"""Paces of time: of a GPU, roughly, and of a slow emulator."""
_GIB, _MIB = 1 << 30, 1 << 20


def _answers(name: str, gib: float, memory_mhz: int, bus_bits: int, sms: int, mhz: float, l2_mib: float) -> DeviceAnswers:
    return DeviceAnswers(name, int(gib * _GIB), sms, round(mhz * 1000), memory_mhz * 1000, bus_bits, int(l2_mib * _MIB), FAST)


def _of(chip: str, name: str, gib: float, memory_mhz: int, bus_bits: int) -> DeviceAnswers:
    """A product with a chip that the table of devices has, and its memory."""
    known = DEVICES[chip]
    return _answers(name, gib, memory_mhz, bus_bits, known.sm_count, known.clock_hz / 1e6, known.l2_bytes / _MIB)


_REAL = {
    70: (
        _answers("Tesla V100-SXM2-16GB", 15.77, 877, 4096, 80, 1530, 6),
        _answers("Tesla V100-PCIE-32GB", 31.74, 877, 4096, 80, 1380, 6),
    ),
    75: (_of("T4", "Tesla T4", 14.57, 5001, 256), _answers("NVIDIA GeForce RTX 2080 Ti", 10.75, 7000, 352, 68, 1545, 5.5)),
    80: (
        _of("A100", "NVIDIA A100-SXM4-80GB", 79.15, 1593, 5120),
        _of("A100", "NVIDIA A100-PCIE-40GB", 39.39, 1215, 5120),
        _answers("NVIDIA A30", 23.5, 1215, 3072, 56, 1440, 24),
    ),
    86: (_of("RTX 3090", "NVIDIA GeForce RTX 3090", 23.69, 9751, 384), _answers("NVIDIA A10G", 21.99, 6251, 384, 80, 1710, 6)),
    89: (_of("RTX 4090", "NVIDIA GeForce RTX 4090", 23.64, 10501, 384), _of("L4", "NVIDIA L4", 21.96, 6251, 192)),
    90: (
        _of("H100", "NVIDIA H100 80GB HBM3", 79.11, 2619, 5120),
        _of("H200", "NVIDIA H200", 139.81, 3201, 6144),
        _of("H100 PCIe", "NVIDIA H100 PCIe", 79.11, 1593, 5120),
        _answers("NVIDIA GH200 480GB", 95.0, 2619, 6144, 132, 1980, 60),
    ),
    100: (_of("B200", "NVIDIA B200", 178.35, 3996, 8192), _answers("NVIDIA GB200", 184.0, 3996, 8192, 152, 2062, 126)),
    120: (
        _of("RTX 5090", "NVIDIA GeForce RTX 5090", 31.36, 14001, 512),
        _of("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 94.97, 14001, 512),
    ),
}
"""Devices by compute capability."""
_SMALL, _LARGE = _answers("", 1.5, 400, 64, 4, 300, 0.5), _answers("", 500, 20000, 16384, 300, 4000, 512)
_WORD = re.compile(
    rb"(?i)nvidia|tesla|geforce|quadro|titan|emulator|gemmgen|rtx|gtx|grace|hopper|ampere|blackwell|\b[abhltv]\d{1,3}[a-z]?\b|\bg[bh]\d00\b"
)
"""Words of devices' names."""
_TEXT = re.compile(rb"[\x20-\x7e]{2,96}")
_EVERY_NAME = "NVIDIA GeForce RTX 4090 Tesla T4 V100 A100 A10 A30 A40 L4 L40S H100 H200 H20 H800 GH200 B100 B200 GB200 SXM PCIe HBM3 Quadro"
_MAX_NAMES = 6


def names_in(image: bytes) -> list[str]:
    """Texts of a program that may be names of devices."""
    texts = dict.fromkeys(text for text in _TEXT.findall(image) if len(text) < 64 and _WORD.search(text))
    return [text.decode() for text in texts if b"%" not in text and b"_" not in text and b"/" not in text][:_MAX_NAMES]


def devices_for(architecture: int, image: bytes, linked: Sequence[bytes]) -> list[DeviceAnswers]:
    """The devices that runs report to a program, whose results must not depend on them: none if it does not ask; the usual one, at two
    paces of time, if it asks for times alone."""
    usual = _REAL[max((known for known in _REAL if known <= architecture), default=min(_REAL))]
    others = [device for devices in _REAL.values() for device in devices if device not in usual]
    asks, measures = (any(pattern.fullmatch(name) for name in linked) for pattern in (ASKING, TIMING))
    slow = [replace(usual[0], pace=SLOW)] if measures else []
    if not asks:
        return [usual[0], *slow] if measures else []
    named = [replace(usual[0], name=name) for name in names_in(image)]
    extremes = [replace(_SMALL, name=_EVERY_NAME), replace(_LARGE, name=_EVERY_NAME)]
    return [*usual, *extremes, *named, *others, *slow]
