"""Tensor maps as arguments: described over the problem, resolved for one, and given to every backend."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gemmgen.codegen.rendering import parameter
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.hardware.tensor_map import Im2col, TensorMap
from gemmgen.kernels.launch import ArrayArgument, Dimension, Im2colWalk, KernelLaunch, LaunchSequence, TensorMapArgument
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.emulation import EmulatorBackend

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
        "x_map", "x", "bf16", tuple(map(Formula, ("64", "w", "w", "4"))), tuple(map(Formula, ("128", "128 * w", "128 * w * w"))),
        "pixels", im2col=walk,
    )  # fmt: skip
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
