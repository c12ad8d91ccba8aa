"""Exports encode the tensor maps that gemmgen's own launches do, and ask for the same clusters."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import SPECS

from export.c_host import NotingHost, expected
from export.test_python_module import WORKSPACE, load
from gemmgen import api
from gemmgen.core.formulas import Formula
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import ArrayArgument, Dimension, Im2colWalk, KernelLaunch, LaunchSequence, TensorMapArgument


def formulas(*texts: str) -> tuple[Formula, ...]:
    return tuple(map(Formula, texts))


def mapped_plan() -> KernelPlan:
    """An instance with a map of an array, a walk over pixels and a map of a part of its workspace, in clusters of 16 blocks."""
    dimensions = tuple(Dimension(name, f"extent of {name}", 0) for name in ("m", "k", "lda", "pad"))
    arguments = (
        ArrayArgument("A", "bf16", "input", formulas("m", "k"), formulas("lda", "1"), 16, "tiles"),
        ArrayArgument("x", "bf16", "input", formulas("m"), formulas("1"), 16, "pixels"),
        ArrayArgument("planes", "f32", "workspace", formulas("1"), formulas("1"), 128, "planes"),
        TensorMapArgument("a_map", "A", "bf16", formulas("k", "m"), formulas("2 * lda"), "tiles", box=(64, 128), swizzle="128B"),
        TensorMapArgument(
            "register",
            "x",
            "u8",
            formulas("64", "m", "m", "4"),
            formulas("64", "64 * m", "64 * m * m"),
            "a walk over pixels",
            element_strides=formulas("1", "pad + 1", "2", "1"),
            fill="zeros",
            l2_promotion="256B",
            im2col=Im2colWalk(formulas("0 - pad", "0 - pad"), formulas("pad", "0"), 64, 128),
        ),
        TensorMapArgument(
            "plane_map",
            "planes",
            "f32",
            formulas("m"),
            (),
            "second plane",
            box=(32,),
            offset_bytes=Formula("256 * m"),
            fill="nan",
        ),
    )
    launch = KernelLaunch(
        "mapped", formulas("16 * ceil_div(m, 64)", "1", "pad + 1"), (32, 1, 1), ("a_map", "A", "register", "plane_map"), cluster=(16, 1, 1)
    )
    sequence = LaunchSequence("mapped", dimensions, arguments, (launch,), workspace_bytes=Formula("512 * m"))
    return replace(api.plan(SPECS / "gemm/v0_naive.yaml"), name="mapped", sequence=sequence)


def drawn_problem(rng: random.Random) -> dict[str, int]:
    m, k = rng.choice([0, 1, 8, 100, 2**20]), rng.choice([0, 1, 64, 1000])
    return {"m": m, "k": k, "lda": rng.choice([k, 8 * k, 8 * k + 8, 2**31 - 8]), "pad": rng.choice([0, 1, 3, 127, 128, 500])}


def drawn_pointers(rng: random.Random) -> list[int]:
    return [16 * rng.randrange(1, 2**40), 16 * rng.randrange(1, 2**40)]


@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_header_encodes_the_maps_of_gemmgen(tmp_path: Path, language: str) -> None:
    plan = mapped_plan()
    host = NotingHost([plan], tmp_path, language)
    rng = random.Random(1)
    outcomes = set()
    for _ in range(300):
        problem, pointers = drawn_problem(rng), drawn_pointers(rng)
        wanted = expected(plan.sequence, problem, pointers, [], WORKSPACE)
        got, reason = host.launch("k0", problem, pointers, [], WORKSPACE)
        assert got == wanted, f"{problem}: {reason}"
        outcomes.add((wanted.refused, bool(wanted.work)))
    assert outcomes == {(True, False), (False, False), (False, True)}


def test_a_header_says_which_map_is_impossible(tmp_path: Path) -> None:
    host = NotingHost([mapped_plan()], tmp_path)
    _, reason = host.launch("k0", {"m": 8, "k": 8, "lda": 9, "pad": 0}, [0x1000, 0x2000], [], WORKSPACE)
    assert reason == "a_map (tiles) needs strides of whole multiples of 16 bytes, below 2^40"


def test_a_header_asks_for_large_clusters(tmp_path: Path) -> None:
    host = NotingHost([mapped_plan()], tmp_path)
    host.event_count.value = 0
    host.call("k0", {"m": 8, "k": 8, "lda": 8, "pad": 0}, [0x1000, 0x2000], [], WORKSPACE, 0)
    assert [event.entry for event in host.events[: host.event_count.value] if event.kind == b"allow"] == [b"mapped"]


def test_a_module_encodes_the_maps_of_gemmgen(tmp_path: Path) -> None:
    plan = mapped_plan()
    module = load(plan, tmp_path)
    rng = random.Random(2)
    outcomes = set()
    for _ in range(300):
        problem, pointers = drawn_problem(rng), drawn_pointers(rng)
        wanted = expected(plan.sequence, problem, pointers, [], WORKSPACE)
        module.driver.work.clear()
        try:
            module.launch(*pointers, **problem, stream=5)
            refused = False
        except module.LaunchError:
            refused = True
        assert refused == wanted.refused, problem
        launched = [] if refused else [(w.entry, w.grid, w.cluster, w.arguments) for w in wanted.work]
        assert [(entry, grid, cluster, arguments) for entry, grid, _, cluster, _, _, arguments in module.driver.work] == launched
        outcomes.add((refused, bool(launched)))
    assert outcomes == {(True, False), (False, False), (False, True)}


def test_a_module_says_that_a_grid_is_not_of_whole_clusters(tmp_path: Path) -> None:
    plan = mapped_plan()
    (launch,) = plan.sequence.launches
    uneven = replace(launch, grid=formulas("m", "1", "1"))
    module = load(replace(plan, sequence=replace(plan.sequence, launches=(uneven,))), tmp_path)
    with pytest.raises(module.LaunchError, match=r"clusters of \(16, 1, 1\)"):
        module.launch(0x1000, 0x2000, m=8, k=8, lda=8, pad=0)
