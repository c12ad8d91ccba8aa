"""Kernels on the emulator: every ready-made spec computes the right result, without bank conflicts and without divisions inside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmgen import api
from gemmgen.codegen.rendering import render
from gemmgen.emulator.counters import CounterObserver
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

SPECS = [spec for name, spec in shipped_specs().items() if name.startswith("conv2d/mma_sync/")]
STRIDE = 18
"""One case in as many runs, beginning at a different one for each spec."""


def planned(file: Path) -> Conv2dPlan:
    plan = api.plan(file)
    assert isinstance(plan, Conv2dPlan)
    return plan


@pytest.mark.parametrize("index", range(len(SPECS)), ids=lambda index: SPECS[index].name)
def test_a_spec_verifies_without_bank_conflicts(index: int) -> None:
    plan = planned(SPECS[index])
    binary = compile_plan(plan)
    observer = CounterObserver()
    backend = EmulatorBackend(observers=[observer])
    for case in oracle_of(plan.spec.kind).cases(plan)[index % STRIDE :: STRIDE]:
        result = verify_case(plan, binary, backend, case)
        assert result.passed, (case.name, result.failure)
    traffic = observer.counters().total.shared_memory
    assert traffic["ldmatrix"].requests > 0
    traffic.pop("cp.async", None)  # conflicts there are of pixels in global memory, whose addresses the problem decides
    assert {kind: counts.conflicts for kind, counts in traffic.items()} == dict.fromkeys(traffic, 0)


@pytest.mark.parametrize("file", SPECS, ids=lambda file: file.name)
def test_nothing_spills_and_nothing_is_divided_in_the_mainloop(file: Path) -> None:
    binary = compile_plan(planned(file))
    assert all(used.spill_loads == used.spill_stores == used.local_bytes == 0 for used in binary.resources.values())
    lines = binary.ptx.splitlines()
    products = [number for number, line in enumerate(lines) if "mma.sync" in line]
    divisions = [line for line in lines[products[0] : products[-1]] if re.search(r"\b(div|rem)\.", line)]
    assert not divisions


@pytest.mark.parametrize("file", SPECS, ids=lambda file: file.name)
def test_sources_are_self_contained_and_tidy(file: Path) -> None:
    text = render(planned(file)).text
    assert "#include" not in text and "\n\n\n" not in text and not re.search(r"[ \t]$", text, re.MULTILINE)
    defined = re.findall(r"^constexpr int (k\w+) =|__forceinline__ \w[\w ]* (\w+)\(", text, re.MULTILINE)
    unused = [name for pair in defined for name in pair if name and len(re.findall(rf"\b{name}\b", text)) < 2]
    assert not unused


MUTANTS = {
    "halves in each other's place": ("(half ^ (row >> 2 & 1)) * kVectorBytes", "(half ^ (row >> 2 & 1) ^ (row >> 5 & 1)) * kVectorBytes"),
    "a stage read too early": ("copy_async_wait<kStages - 2>", "copy_async_wait<kStages - 1>"),
    "a stage never waited for": ("                copy_async_wait<kStages - 2>();\n", ""),
    "image bounds half checked": ("== needed", "!= 0"),
    "a filter column's bit in the next one's place": ("<< (kColumnBit + j)", "<< (kColumnBit - 1 + j)"),
    "a step of the first tap for all": ("taps.increment[pixels.tap]", "taps.increment[0]"),
    "a tail multiplied with the next entries": ("pixels.entries_left > 0", "true"),
    "channels beyond the last": ("pixel < total_pixels && first_channel + kLayoutChannels * block < k", "pixel < total_pixels"),
    "pixels beyond the last": ("pixel < total_pixels && first_channel", "first_channel"),
    "images of one size too few": ("images * next_image", "next_image"),
    "filters beyond the last": ("filters.inside[pass] && ", ""),
    "the last step skipped": ("(entries - 1) / kPlanes + 1", "entries / kPlanes"),
    "saturation at 128": (" - (packed >> 7 & 0x01010101u)", ""),
    "a lower end of saturation that is no ReLU": ("__saturatef(fmaf(alpha, value, shift))", "fminf(fmaf(alpha, value, shift), 1.0f)"),
    "bytes of a word swapped": ("0x5410", "0x5140"),
    "an image's pixels miscounted": ("position += kBlock", "position += kBlock - 1"),
    "a barrier left out": (
        "                copy_async_wait<kStages - 2>();\n                __syncthreads();\n",
        "                copy_async_wait<kStages - 2>();\n",
    ),
    "stages that wrap too early": ("write_stage == (kStages - 1) * kStageBytes ? 0", "write_stage == (kStages - 2) * kStageBytes ? 0"),
    "one half copied twice": ("half * kVectorBytes)", "0)"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_kernel_is_found_out(mutant: str) -> None:
    plan = planned(next(file for file in SPECS if file.name == "pixels_128x128x64"))
    source = render(plan).text
    before, after = MUTANTS[mutant]
    assert before in source
    binary = compile_source(source.replace(before, after), architecture="sm_80", options=COMPILE_OPTIONS)
    backend = EmulatorBackend()
    wanted = ("3 x 3, padding 3", "1 x 1", "channels one block above a tile", "many steps", "3 x 3, stride 2", "images of one pixel")
    cases = sorted(oracle_of(plan.spec.kind).cases(plan), key=lambda case: case.name not in wanted)
    assert any(not verify_case(plan, binary, backend, case).passed for case in cases)
