"""Exported headers launch as gemmgen does: same work for every problem, same problems refused."""

from __future__ import annotations

import ctypes
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import SPECS
from sampling import ALL

from export.c_host import WARNINGS, NotingHost, build, compiler, cuda_include, dummy_bundle, expected
from export.plans import DRAWS, draw_call, sampled_plans
from gemmgen import api
from gemmgen.core.formulas import Formula
from gemmgen.export.header import render_header
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import ArrayArgument, Dimension, KernelLaunch, LaunchSequence, ScalarArgument

NO_BINARY_FOR_GPU = 209
"""CUDA_ERROR_NO_BINARY_FOR_GPU"""


@pytest.fixture(scope="module", params=["c", "c++"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NotingHost:
    plans = sampled_plans()
    return NotingHost(plans if request.param == "c" or ALL else plans[::3], tmp_path_factory.mktemp("host"), request.param)


def test_every_launch_is_the_one_that_gemmgen_makes(host: NotingHost) -> None:
    for prefix, plan in host.plans.items():
        rng = random.Random(plan.name)
        accepted = 0
        for _ in range(DRAWS):
            problem, pointers, scalars, workspace = draw_call(plan, rng)
            again = plan.sequence.workspace_zero_bytes.text != "0" and rng.random() < 0.3
            wanted = expected(plan.sequence, problem, pointers, scalars, workspace, again)
            got, reason = host.launch(prefix, problem, pointers, scalars, workspace, again)
            assert got == wanted, f"{plan.name}: {problem}: {reason}"
            accepted += not wanted.refused
        assert accepted >= DRAWS // 10, f"{plan.name}: too few problems that work were tried"


SIMPLE = {"kind": "gemm", "mainloop": {"strategy": "naive", "threadblock": {"m": 8, "n": 32}}}
WARPGROUPS = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"n": 8},
    "store": "tma",
    "mainloop": {"strategy": "wgmma", "tile": {"m": 64, "n": 32, "k": 64}, "consumers": 1, "stages": 2},
}
NAMES = ("stream", "CUstream", "driver", "views", "plan", "kernel", "result", "restrict", "new")
FORMULAS: tuple[dict[str, Any], ...] = (
    SIMPLE
    | {
        "epilogue": {
            "inputs": {"keep": {"per": "element", "type": "bool"}, "seed": {"scalar": "s64"}, "before": {"pointer": "s64"}},
            "let": {"drawn": "rand(seed, before, int64(row) * 64 + int64(column), 0) < 0.5"},
            "outputs": {"C": "acc if keep and drawn else 0", "mask": {"value": "drawn", "type": "bool"}},
        }
    },
    SIMPLE | {"epilogue": {"inputs": {name: {"per": "column"} for name in NAMES}, "value": " + ".join(["acc", *NAMES])}},
    SIMPLE | {"epilogue": {"inputs": {name: {"scalar": "f32"} for name in NAMES}, "value": " + ".join(["acc", *NAMES])}},
    SIMPLE
    | {
        "batch": "strided",
        "epilogue": {"outputs": {"C": "acc", "sums": {"reduce": "sum", "per": "row", "of": "acc"}, "most": {"reduce": "max", "of": "acc"}}},
    },
    WARPGROUPS
    | {
        "epilogue": {
            "inputs": {"gate": {"per": "element", "type": "bf16"}, "rest": {"per": "element", "type": "f32"}},
            "let": {"z": "acc + rest"},
            "outputs": {"C": "silu(z) * gate", "before": {"value": "z", "type": "f32"}, "half": {"value": "z", "type": "bf16"}},
        }
    },
    WARPGROUPS | {"dual": True, "alpha": "one", "beta": "zero", "epilogue": {"value": "silu(acc) * acc2"}},
    {
        "kind": "reduction",
        "operation": "sum",
        "shape": "middle",
        "prologue": {"inputs": {"gate": {"per": "element", "type": "f16"}}, "outputs": {"value": "value * gate", "kept": "value"}},
        "epilogue": {"inputs": {"factor": {"per": "element"}}, "value": "value * factor"},
    },
    WARPGROUPS
    | {
        "beta": "zero",
        "mainloop": WARPGROUPS["mainloop"] | {"tile": {"m": 64, "n": 128, "k": 64}, "consumers": 2, "schedule": "ping_pong"},
        "epilogue": {"outputs": {"C": "gelu(acc)", "before": {"value": "acc", "type": "bf16"}}},  # in boxes beside C
    },
    {
        "kind": "elementwise",
        "rank": 2,
        "alignment": 1,
        "operations": {"inputs": {"keep": {"per": "row", "type": "bool"}}, "value": "value if keep else 0"},
    },
)


@pytest.mark.parametrize("language", ["c", "c++"])
def test_kernels_with_formulas_are_launched_by_headers(language: str, tmp_path: Path) -> None:
    host = NotingHost([api.plan(fields) for fields in FORMULAS], tmp_path, language)
    for prefix, plan in host.plans.items():
        rng = random.Random(plan.name)
        accepted = 0
        for _ in range(60):
            problem, pointers, scalars, workspace = draw_call(plan, rng)
            wanted = expected(plan.sequence, problem, pointers, scalars, workspace)
            got, reason = host.launch(prefix, problem, pointers, scalars, workspace)
            assert got == wanted, f"{plan.name}: {problem}: {reason}"
            accepted += not wanted.refused
        assert accepted > 3, plan.name


def unusual_plan() -> KernelPlan:
    """An instance with features that no shipped spec has: clusters, dynamic shared memory that depends on the problem, names that mean
    something in C, a workspace whose size may not fit into 64 bits, and numbers of every type."""
    plan = api.plan(SPECS / "gemm/v0_naive.yaml")
    dimensions = tuple(Dimension(name, f"extent of {name}", 0) for name in ("m", "overflow", "register"))
    scalars = tuple(ScalarArgument(f"of_{kind}", kind, "a number") for kind in ("f32", "f64", "s8", "u8", "s32", "s64"))  # type: ignore[arg-type]
    shape = (Formula("m"), Formula("overflow"))
    array = ArrayArgument("out", "bf16", "output", shape, (Formula("register"), Formula("1")), 8, "where results go")
    workspace = ArrayArgument("scratch", "u8", "workspace", (Formula("1"),), (Formula("1"),), 64, "room")
    arguments = (*(ScalarArgument(d.name, "s32", d.meaning) for d in dimensions), *scalars, array, workspace)
    names = tuple(argument.name for argument in arguments)
    launches = (
        KernelLaunch("first", (Formula("m"), Formula("2"), Formula("overflow")), (32, 2, 1), names, Formula("4 * m"), (2, 1, 1), True),
        KernelLaunch("second", (Formula("ceil_div(register, 7)"), Formula("1"), Formula("1")), (64, 1, 1), names[::-1]),
    )
    size = Formula("m * overflow * register * 8")
    zero = Formula(f"min(m, {size})")
    return replace(plan, name="unusual", sequence=LaunchSequence("unusual", dimensions, arguments, launches, (), size, zero))


def test_what_no_shipped_spec_has_is_launched_too(tmp_path: Path) -> None:
    plan = unusual_plan()
    host = NotingHost([plan], tmp_path)
    rng = random.Random(1)
    accepted = too_large = 0
    for _ in range(400):
        problem = {d.name: rng.choice([0, 1, 2, 50, 65535, 65536, 2**31 - 1]) for d in plan.sequence.dimensions}
        scalars = [1.5, -2.25, -128.0, 255.0, -5.0, 2.0**40]
        wanted = expected(plan.sequence, problem, [0x1000], scalars, 0x4000)
        got, reason = host.launch("k0", problem, [0x1000], scalars, 0x4000)
        if reason is not None and "do not fit into 64 bits" in reason:
            assert wanted.workspace_bytes >= 2**63
            too_large += 1
            continue
        if reason is not None and "more shared memory" in reason:
            assert 4 * problem["m"] >= 2**31
            continue
        assert got == wanted, f"{problem}: {reason}"
        accepted += not wanted.refused
    assert accepted > 20
    assert too_large > 0


@pytest.mark.parametrize("multiprocessors", [132, 114, 78, 16], ids=["H200", "H100 PCIe", "H20", "a part of a GPU"])
@pytest.mark.parametrize(("spec", "most"), [("64x64", "2 * {}"), ("128x128_ping_pong", "{}"), ("192x192_pair", "{} // 2 * 2")])
def test_a_persistent_grid_follows_the_device(spec: str, most: str, multiprocessors: int, tmp_path: Path) -> None:
    plan = api.plan(SPECS / f"gemm/wgmma/bf16.yaml/{spec}")
    assert isinstance(plan, KernelPlan)
    host = NotingHost([plan], tmp_path)
    ctypes.c_int.in_dll(host.driver, "fake_multiprocessors").value = multiprocessors
    problem = {"m": 4096, "n": 4096, "k": 64, "lda": 64, "ldb": 64, "ldc": 4096}
    got, reason = host.launch("k0", problem, [1 << 20] * 3, [], 0)
    assert reason is None
    (launch,) = got.work
    assert launch.grid == (eval(most.format(multiprocessors)), 1, 1)
    few, _ = host.launch("k0", {**problem, "m": 1, "n": 8, "ldc": 8}, [1 << 20] * 3, [], 0)
    assert few.work[0].grid == (plan.sequence.launches[0].cluster[0], 1, 1)


def test_a_kernel_may_have_the_shared_memory_that_its_device_has(tmp_path: Path) -> None:
    host = NotingHost([unusual_plan()], tmp_path)
    host.event_count.value = 0
    host.call("k0", {"m": 1, "overflow": 1, "register": 1}, [0x1000], [0.0] * 6, 0x4000, 0)
    allowed = {event.entry: event.shared_bytes for event in host.events[: host.event_count.value] if event.kind == b"allow"}
    assert allowed == {b"first": 232448 - 1024}


@pytest.mark.parametrize(
    ("major", "minor", "wanted"),
    [(8, 0, b"cubin sm_80"), (8, 6, b"cubin sm_80"), (9, 0, b"cubin sm_90"), (12, 0, b"ptx sm_90"), (7, 5, None)],
)
def test_the_first_binary_that_runs_on_the_device_is_loaded(tmp_path: Path, major: int, minor: int, wanted: bytes | None) -> None:
    host = NotingHost([api.plan(SPECS / "gemm/v0_naive.yaml")], tmp_path)
    for name, value in (("fake_major", major), ("fake_minor", minor)):
        ctypes.c_int.in_dll(host.driver, name).value = value
    host.event_count.value = 0
    code, _, _, _ = host.call("k0", {"m": 0, "n": 0, "k": 0}, [0, 0, 0], [], 0, 0)
    loaded = [bytes(event.arguments[:16]).strip() for event in host.events[: host.event_count.value] if event.kind == b"load"]
    assert code == (0 if wanted else NO_BINARY_FOR_GPU)
    assert loaded == ([wanted] if wanted else [])


def test_headers_go_together_unless_they_have_one_prefix(tmp_path: Path) -> None:
    names = ("gemm/simt/split_k_parallel", "reduction/argmax_vocabulary_bf16")
    plans = [api.plan(name) for name in names]
    for index, plan in enumerate(plans):
        (tmp_path / f"own{index}.h").write_text(render_header(dummy_bundle(plan)))
        (tmp_path / f"same{index}.h").write_text(render_header(dummy_bundle(plan), "same"))
    for compile_one, standard in (("gcc", "c11"), ("g++", "c++17")):
        command = [compiler(compile_one), f"-std={standard}", *WARNINGS, "-isystem", str(cuda_include()), "-fsyntax-only"]
        source = tmp_path / ("both.c" if compile_one == "gcc" else "both.cpp")
        source.write_text('#include "own0.h"\n#include "own1.h"\n#include "own0.h"\n')
        build([*command, source])
        source.write_text('#include "same0.h"\n#include "same0.h"\n')
        build([*command, source])
        source.write_text('#include "same0.h"\n#include "same1.h"\n')
        with pytest.raises(AssertionError, match="two instances of gemmgen have functions that begin with same"):
            build([*command, source])
