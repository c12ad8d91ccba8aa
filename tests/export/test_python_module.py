"""Exported Python modules launch like gemmgen itself, and report wrong calls."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_driver import OK, FakeDriver, real

from export.c_host import Memset, dummy_bundle, expected, note_map
from export.plans import DRAWS, draw_call, import_module, sampled_plans
from gemmgen import api
from gemmgen.export.python_module import render_module
from gemmgen.kernels.family import KernelPlan


class NotingDriver(FakeDriver):
    """Takes notes of kernels with the bytes of their arguments, and of memory that is set to zero."""

    def __init__(self, plan: KernelPlan) -> None:
        super().__init__({launch.entry: None for launch in plan.sequence.launches})
        self.work: list[Any] = []
        self.multiprocessors = 132
        self.contexts = 0
        self.attributes: dict[str, Any] = {}

    def cuInit(self, flags):
        return (OK,)

    def cuPointerGetAttribute(self, attribute, pointer):
        return OK, 0

    def cuDeviceGetAttribute(self, attribute, device):
        counted = attribute.name.endswith("MULTIPROCESSOR_COUNT")
        return (OK, self.multiprocessors) if counted else super().cuDeviceGetAttribute(attribute, device)

    def cuDevicePrimaryCtxRelease(self, device):
        self.contexts -= 1
        return (OK,)

    def cuDevicePrimaryCtxRetain(self, device):
        self.contexts += 1
        return super().cuDevicePrimaryCtxRetain(device)

    def cuMemAllocAsync(self, size, stream):
        self.calls.append(("cuMemAllocAsync", size, stream))
        return OK, real.CUdeviceptr(WORKSPACE)

    def cuMemFreeAsync(self, pointer, stream):
        self.calls.append(("cuMemFreeAsync", int(pointer), stream))
        return (OK,)

    def cuMemsetD8Async(self, pointer, value, count, stream):
        self.work.append(Memset(int(pointer), count))
        return (OK,)

    def cuTensorMapEncodeTiled(self, element, rank, address, extents, strides, box, steps, *modes):
        return OK, noted_map(address, (element, rank, *modes), extents, strides, box, steps)

    def cuTensorMapEncodeIm2col(self, element, rank, address, extents, strides, lower, upper, channels, pixels, steps, *modes):
        return OK, noted_map(address, (element, rank, *modes), extents, strides, [*lower, *upper, channels, pixels], steps)

    def CUtensorMap(self):
        return (ctypes.c_ubyte * 128)()

    def cuFuncSetAttribute(self, function, attribute, value):
        return (OK,)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra):
        self.work.append((function, (gx, gy, gz), (bx, by, bz), (1, 1, 1), shared, False, pack(arguments)))
        return (OK,)

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        programmatic, cluster = False, (1, 1, 1)
        for attribute in config.attrs[: config.numAttrs]:
            if attribute.id == real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
                chosen = attribute.value.clusterDim
                cluster = chosen.x, chosen.y, chosen.z
            else:
                programmatic = bool(attribute.value.programmaticStreamSerializationAllowed)
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        self.work.append((function, grid, block, cluster, config.sharedMemBytes, programmatic, pack(arguments)))
        return (OK,)


def noted_map(address, modes, extents, strides, walk, steps):
    """A tensor map that holds its arguments."""
    lists = ([int(number) for number in numbers] for numbers in (extents, strides, walk, steps))
    return (ctypes.c_ubyte * 128).from_buffer_copy(note_map(address, [int(mode) for mode in modes], *lists))


WORKSPACE = 0x7F00_0000_0000


def pack(arguments: Any) -> bytes:
    return b"".join(bytes(value if kind is None else kind(value)) for value, kind in zip(*arguments, strict=True))


def load(plan: KernelPlan, folder: Path) -> ModuleType:
    """The exported module of an instance, on a driver that takes notes."""
    module = import_module(dummy_bundle(plan), folder)
    module.driver = NotingDriver(plan)  # type: ignore[attr-defined]
    return module


def test_every_launch_is_the_one_that_gemmgen_makes(tmp_path: Path) -> None:
    for plan in sampled_plans():
        module = load(plan, tmp_path)
        sequence = plan.sequence
        rng = random.Random(plan.name)
        for _ in range(DRAWS):
            problem, pointers, scalars, _ = draw_call(plan, rng)
            wanted = expected(sequence, problem, pointers, scalars, WORKSPACE)
            if not wanted.workspace_bytes:  # where none is needed, none is allocated
                wanted = expected(sequence, problem, pointers, scalars, 0)
            module.driver.work.clear()
            module.driver.calls.clear()
            named = zip(sequence.scalars, scalars, strict=True)
            numbers = {s.name: value if s.type in ("f32", "f64") else int(value) for s, value in named}
            try:
                module.launch(*pointers, **problem, **numbers, stream=0x5EA)
                refused = False
            except module.LaunchError:
                refused = True
            assert refused == wanted.refused, f"{plan.name}: {problem}"
            if not refused:
                noted = [
                    item
                    if isinstance(item, Memset)
                    else (item.entry, item.grid, item.block, item.cluster, item.shared_bytes, item.programmatic, item.arguments)
                    for item in wanted.work
                ]
                assert module.driver.work == noted, f"{plan.name}: {problem}"
                allocated = [call for call in module.driver.calls if call[0] == "cuMemAllocAsync"]
                assert allocated == ([("cuMemAllocAsync", wanted.workspace_bytes, 0x5EA)] if wanted.workspace_bytes else [])
                assert len([call for call in module.driver.calls if call[0] == "cuMemFreeAsync"]) == len(allocated)
        assert module.driver.contexts <= 1, "contexts are given back, but for the one that the module was loaded into"


class DeviceArray:
    """Stand-in for an array of a GPU array library."""

    def __init__(self, array: Any, pointer: int, stream: int | None = None, read_only: bool = False) -> None:
        packed = array.flags.c_contiguous
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (pointer, read_only),
            "version": 3,
            "strides": None if packed else array.strides,
            "stream": stream,
        }


@pytest.fixture
def linear(tmp_path: Path) -> ModuleType:
    return load(api.plan("gemm/simt/linear/bias_relu"), tmp_path)


def shown(**changes: Any) -> dict[str, Any]:
    """Arrays of a small layer: x is 10 by 20, the weights are 12 by 20, transposed."""
    arrays = {
        "A": DeviceArray(np.zeros((10, 20), np.float32), 0x1000),
        "B": DeviceArray(np.zeros((12, 20), np.float32).T, 0x2000),
        "C": DeviceArray(np.zeros((10, 12), np.float32), 0x3000),
        "bias": DeviceArray(np.zeros(12, np.float32), 0x4000),
    }
    return {**arrays, **changes}


def test_dimensions_and_strides_are_read_from_arrays(linear: ModuleType) -> None:
    wide = np.zeros((10, 64), np.float32)[:, :20]
    linear.launch(**shown(A=DeviceArray(wide, 0x1000)))
    ((_, grid, _, _, _, _, arguments),) = linear.driver.work
    assert grid == (1, 1, 1)
    assert np.frombuffer(arguments[:12], np.int32).tolist() == [10, 12, 20]
    assert np.frombuffer(arguments[20:24], np.int32).tolist() == [64]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": DeviceArray(np.zeros((10, 21), np.float32), 0x1000)}, "k is 21 elsewhere and 20 by B"),
        ({"A": DeviceArray(np.zeros((10, 20), np.float64), 0x1000)}, "A has elements <f8, need <f4"),
        ({"A": DeviceArray(np.zeros(20, np.float32), 0x1000)}, "A has 1 dimensions, need 2"),
        ({"A": DeviceArray(np.zeros((10, 20), np.float32), 0x1004)}, "A must start at a multiple of 16 bytes"),
        ({"A": DeviceArray(np.zeros((10, 40), np.float32)[:, ::2], 0x1000)}, "A has a stride of 2 elements, need 1"),
        ({"A": [1, 2]}, "A must have __cuda_array_interface__ or be an address, got list"),
        ({"A": 0x1000, "B": 0x2000}, r"k \(columns of A and rows of B\) follows from no array; pass k=..."),
        ({"C": DeviceArray(np.zeros((10, 12), np.float32), 0x3000, read_only=True)}, "C is written, but the array is read-only"),
        ({"lda": 19}, "lda is 19 elsewhere and 20 by A"),
        ({"m": 10.5}, "m is 10.5 elsewhere and 10 by A"),
        ({"stream": "no stream"}, "stream must be a stream or its handle, got str"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_words(linear: ModuleType, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(linear.LaunchError, match=message):
        linear.launch(**shown(**changes))
    assert not linear.driver.work


def test_it_is_launched_on_stream_that_array_names_after_others(linear: ModuleType) -> None:
    arrays = shown(
        A=DeviceArray(np.zeros((10, 20), np.float32), 0x1000, stream=7), C=DeviceArray(np.zeros((10, 12), np.float32), 0x3000, stream=9)
    )
    linear.launch(**arrays)
    assert [call for call in linear.driver.calls if call[0] == "wait"] == [("wait", 7, 9)]
    assert not linear.driver.events


@pytest.mark.parametrize(("stream", "handle"), [(SimpleNamespace(cuda_stream=42), 42), (SimpleNamespace(ptr=43), 43), (None, 1), (0, 1)])
def test_streams_of_any_library(linear: ModuleType, stream: Any, handle: int) -> None:
    assert linear._stream_handle(stream, {}) == handle


def test_a_device_that_no_binary_runs_on_is_named(linear: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear.driver, "cuDeviceGetAttribute", lambda attribute, device: (OK, 5), raising=False)
    with pytest.raises(linear.LaunchError, match=r"none of which runs on compute capability 5\.5"):
        linear.launch(**shown())


def test_the_first_binary_that_runs_on_the_device_is_loaded(linear: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for capability in ((8, 0), (8, 9), (9, 0), (12, 1)):
        values = {"MAJOR": capability[0], "MINOR": capability[1]}
        monkeypatch.setattr(
            linear.driver, "cuDeviceGetAttribute", lambda attribute, device, values=values: (OK, values[attribute.name[-5:]]), raising=False
        )
        found[capability] = linear._image_for(0).rstrip(b"\0").decode().strip()
    assert found == {(8, 0): "cubin sm_80", (8, 9): "cubin sm_80", (9, 0): "cubin sm_90", (12, 1): "ptx sm_90"}


@pytest.mark.parametrize("name", ["gemm/v3_double_buffer", "gemm/simt/batched/small_nn"])
def test_a_module_passes_strict_type_checks(name: str, tmp_path: Path) -> None:
    from mypy import api as mypy

    path = tmp_path / "kernel.py"
    path.write_text(render_module(dummy_bundle(api.plan(name))))
    options = ["--strict", "--no-incremental", "--config-file=", "--follow-imports=skip", "--python-version=3.11"]
    told, _, code = mypy.run([*options, str(path)])
    assert code == 0, told
