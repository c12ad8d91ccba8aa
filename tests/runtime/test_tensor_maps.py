"""Tensor maps as arguments: described over the problem, resolved for one, and given to every backend."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_driver import fake_driver

from gemmgen.codegen.text import parameter
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.hardware.tensor_map import Im2col, TensorMap
from gemmgen.kernels.launch import (
    ArrayArgument,
    Dimension,
    Im2colWalk,
    KernelLaunch,
    LaunchSequence,
    ResolvedLaunch,
    ResolvedMap,
    TensorMapArgument,
)
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.runtime.emulation import EmulatorBackend

__all__ = ["fake_driver"]

A_MAP = TensorMapArgument(
    "a_map",
    "A",
    "bf16",
    extents=(Formula("k"), Formula("m")),
    strides=(Formula("2 * lda"),),
    box=(64, 128),
    swizzle="128B",
    meaning="tiles of A",
)
PLANE_MAP = TensorMapArgument(
    "plane_map",
    "planes",
    "f32",
    extents=(Formula("k"), Formula("m")),
    strides=(Formula("4 * k"),),
    box=(32, 8),
    offset_bytes=Formula("4 * m * k"),
    meaning="second plane",
)
SEQUENCE = LaunchSequence(
    name="copy_tiles",
    dimensions=(Dimension("m", "rows"), Dimension("k", "columns"), Dimension("lda", "distance of rows")),
    arguments=(
        A_MAP,
        PLANE_MAP,
        ArrayArgument("A", "bf16", "input", (Formula("m"), Formula("k")), (Formula("lda"), Formula("1")), 16, "left"),
        ArrayArgument("planes", "f32", "workspace", (Formula("2 * m * k"),), (Formula("1"),), 128, "planes"),
    ),
    launches=(
        KernelLaunch(
            "copy_tiles",
            (Formula("ceil_div(m, 128)"), Formula("1"), Formula("1")),
            (128, 1, 1),
            ("a_map", "plane_map", "A"),
            cluster=(2, 1, 1),
        ),
    ),
    workspace_bytes=Formula("8 * m * k"),
)
PROBLEM = {"m": 256, "k": 64, "lda": 72}


def test_a_map_resolves_to_numbers():
    (launch,) = SEQUENCE.resolve(PROBLEM)
    a, plane = launch.tensor_maps
    assert a.tensor_map == TensorMap("bf16", (64, 256), (144,), (64, 128), swizzle="128B")
    assert (a.array, a.offset_bytes, plane.array, plane.offset_bytes) == ("A", 0, "planes", 4 * 256 * 64)


def test_its_parameter_is_a_tensor_map():
    (launch,) = SEQUENCE.resolve(PROBLEM)
    assert launch.parameters == (("a_map", "tensor_map"), ("plane_map", "tensor_map"), ("A", "pointer"))
    assert parameter(A_MAP) == "const __grid_constant__ TensorMap a_map"


def test_what_the_driver_would_refuse_is_an_error():
    with pytest.raises(LaunchError, match=r"a_map \(tiles of A\) cannot be a tensor map of A: strides of axis 1: 130 bytes"):
        SEQUENCE.resolve({**PROBLEM, "lda": 65})


def test_an_array_that_is_not_aligned_enough_is_an_error():
    arguments = tuple(replace(a, alignment=4) if isinstance(a, ArrayArgument) else a for a in SEQUENCE.arguments)
    with pytest.raises(LaunchError, match="base: address"):
        replace(SEQUENCE, arguments=arguments).resolve(PROBLEM)


def test_there_is_no_map_of_an_array_without_elements():
    (launch,) = SEQUENCE.resolve({**PROBLEM, "k": 0})
    assert [each.tensor_map for each in launch.tensor_maps] == [None, None]


def test_im2col_corners_are_formulas():
    walk = Im2colWalk((Formula("0 - pad"),) * 2, (Formula("pad"),) * 2, 64, 128)
    argument = TensorMapArgument(
        "x_map",
        "x",
        "bf16",
        tuple(map(Formula, ("64", "w", "w", "4"))),
        tuple(map(Formula, ("128", "128 * w", "128 * w * w"))),
        "pixels",
        im2col=walk,
    )
    resolved = argument.resolve({"w": 9, "pad": 1}, alignment=16)
    assert resolved.tensor_map is not None and resolved.tensor_map.im2col == Im2col((-1, -1), (1, 1), 64, 128)


def test_the_description_is_plain_data():
    described = {argument["name"]: argument for argument in SEQUENCE.to_json()["arguments"]}["plane_map"]
    assert described["kind"] == "tensor_map"
    assert described["array"] == "planes"
    assert (described["extents"], described["box"], described["offset_bytes"]) == (["k", "m"], [32, 8], "4 * m * k")


def test_a_grid_that_is_not_of_whole_clusters_is_an_error():
    with pytest.raises(LaunchError, match=r"clusters of \(2, 1, 1\)"):
        SEQUENCE.resolve({**PROBLEM, "m": 128})


def test_the_emulator_is_given_maps_over_the_buffers(monkeypatch):
    seen = _launches(monkeypatch)
    a = HostBuffer(np.zeros(256 * 72, np.uint16))
    EmulatorBackend().run(SimpleNamespace(architecture="sm_90a", ptx=""), SEQUENCE, PROBLEM, {}, {"A": a})
    a_map, plane_map, pointer = seen[0]["args"]
    assert a_map.base is pointer and pointer.array is a.storage
    assert plane_map.base.array.nbytes == 4 * 256 * 64


def test_the_emulator_is_told_of_clusters(monkeypatch):
    seen = _launches(monkeypatch)
    a = HostBuffer(np.zeros(256 * 72, np.uint16))
    EmulatorBackend().run(SimpleNamespace(architecture="sm_90a", ptx=""), SEQUENCE, PROBLEM, {}, {"A": a})
    assert seen[0]["cluster"] == (2, 1, 1)


def test_a_missing_array_leaves_zeros_for_its_map(monkeypatch):
    seen = _launches(monkeypatch)
    EmulatorBackend().run(SimpleNamespace(architecture="sm_90a", ptx=""), SEQUENCE, PROBLEM, {}, {})
    assert seen[0]["args"][0] == bytes(128)


def _launches(monkeypatch):
    """The keyword arguments of every launch on the emulator, none of which takes place."""
    seen = []
    monkeypatch.setattr("gemmgen.emulator.launch_interleaved", lambda ptx, entry, **given: seen.append(given))
    return seen


# -- with the driver -------------------------------------------------------------------------------------------

A, ELSEWHERE, PLANES = 1 << 20, 1 << 21, 1 << 22


@pytest.fixture
def launcher(fake_driver):
    fake_driver.seen = []
    fake_driver.kernels["copy_tiles"] = lambda launch, values: fake_driver.seen.append(values)
    return Launcher(LoadedBinary(b"", "sm_80", 0), SEQUENCE.resolve(PROBLEM), PROBLEM)


def test_the_driver_encodes_maps_of_the_pointers(fake_driver, launcher):
    launcher.launch(0, *launcher.values({"A": A, "planes": PLANES}, {}))
    no_interleave, swizzle_128b, no_promotion, zeros = 0, 3, 0, 0
    assert fake_driver.encoded[0] == (
        A,
        9,
        2,
        [64, 256],
        [144],
        [64, 128],
        [1, 1],
        no_interleave,
        swizzle_128b,
        no_promotion,
        zeros,
    )
    assert fake_driver.encoded[1][:2] == (PLANES + 4 * 256 * 64, 7)


def test_the_kernel_is_passed_what_was_encoded(fake_driver, launcher):
    launcher.launch(0, *launcher.values({"A": A, "planes": PLANES}, {}))
    assert fake_driver.seen == [[A.to_bytes(128, "little"), (PLANES + 4 * 256 * 64).to_bytes(128, "little"), A]]


def test_a_map_is_encoded_anew_only_for_another_pointer(fake_driver, launcher):
    for pointer in (A, A, ELSEWHERE):
        launcher.launch(0, *launcher.values({"A": pointer, "planes": PLANES}, {}))
    assert [address for address, *_ in fake_driver.encoded] == [A, PLANES + 4 * 256 * 64, ELSEWHERE]


def test_a_null_pointer_leaves_zeros_for_its_map(fake_driver, launcher):
    for pointer in (A, 0):
        launcher.launch(0, *launcher.values({"A": pointer, "planes": PLANES}, {}))
    assert fake_driver.seen[1][0] == bytes(128)


def test_a_map_that_the_driver_refuses_is_named(fake_driver, launcher):
    fake_driver.encode_code = 1
    with pytest.raises(LaunchError, match="a_map cannot be encoded as a tensor map of A at 0x100000"):
        launcher.launch(0, *launcher.values({"A": A, "planes": PLANES}, {}))


def test_a_walk_is_encoded_with_its_corners(fake_driver):
    fake_driver.kernels["walk"] = lambda launch, values: None
    walk = TensorMap("bf16", (64, 9, 9, 4), (128, 1152, 10368), im2col=Im2col((-1, -2), (1, 2), 64, 128))
    launch = ResolvedLaunch(
        "walk", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (("x_map", "tensor_map"),), tensor_maps=(ResolvedMap("x_map", "x", 0, walk),)
    )
    Launcher(LoadedBinary(b"", "sm_80", 0), [launch], {}).launch(0, A)
    assert fake_driver.encoded == [
        (A, 9, 4, [64, 9, 9, 4], [128, 1152, 10368], [-1, -2], [1, 2], 64, 128, [1, 1, 1, 1], 0, 0, 0, 0),
    ]


def test_a_kernel_maps_its_own_workspace(fake_driver):
    seen = []
    fake_driver.kernels["copy_tiles"] = lambda launch, values: seen.append(values)
    launcher = Launcher.of_sequence(LoadedBinary(b"", "sm_80", 0), SEQUENCE, PROBLEM, [("A", "pointer")])
    launcher.launch(7, A)
    (workspace,) = set(fake_driver.memory)
    assert int.from_bytes(seen[0][1], "little") == workspace + 4 * 256 * 64
