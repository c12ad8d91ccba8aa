"""A CUDA driver without a GPU: host memory for device memory, Python functions for kernels, a counter for time.

It stands in for the functions of ``cuda.bindings.driver`` that gemmgen calls; types and enumerations are the real ones.
"""

import ctypes
import itertools
import struct
import types

import pytest
from cuda.bindings import driver as real

from gemmgen.runtime.cuda import driver as checked
from gemmgen.runtime.cuda import quick, workspaces

OK = real.CUresult.CUDA_SUCCESS
LAUNCH_SECONDS = 1e-5


class FakeDriver:
    """``kernels`` maps an entry to ``kernel(launch, values)``; a kernel may return a CUresult that breaks the context."""

    def __init__(self, kernels):
        self.kernels = kernels
        self.memory = {}
        self.launches = []
        self.calls = []
        self.graphs = {}
        self.capturing = {}
        self.broken = OK
        self.seconds = 0.0
        self.handles = itertools.count(1000)
        self.events = {}
        self.functions = {}
        self.parameters = {}
        self.struct_bytes = {}

    def __getattr__(self, name):
        return getattr(real, name)

    def cuGetErrorString(self, code):
        return OK, code.name.lower().encode()

    # -- devices -----------------------------------------------------------------------------------------------

    def cuDeviceGetCount(self):
        return OK, 1

    def cuDeviceGet(self, ordinal):
        return OK, ordinal

    def cuDeviceGetName(self, length, device):
        return OK, b"Fake GPU\0" + bytes(length)

    def cuDeviceGetPCIBusId(self, length, device):
        return OK, b"0000:00:00.0\0"

    def cuDeviceTotalMem(self, device):
        return OK, 1 << 30

    def cuDriverGetVersion(self):
        return OK, 13000

    def cuDeviceGetAttribute(self, attribute, device):
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return OK, {"COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0, "L2_CACHE_SIZE": 4096}.get(name, 100_000)

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, real.CUcontext(77)

    def cuCtxSetCurrent(self, context):
        return (OK,)

    def cuCtxGetCurrent(self):
        return OK, real.CUcontext(0)

    def cuCtxPushCurrent(self, context):
        return (OK,)

    def cuCtxPopCurrent(self):
        return OK, real.CUcontext(77)

    def cuCtxSynchronize(self):
        return (self.broken,)

    # -- memory ------------------------------------------------------------------------------------------------

    def cuMemAlloc(self, size):
        memory = ctypes.create_string_buffer(size + 512)
        pointer = -(-ctypes.addressof(memory) // 256) * 256
        self.memory[pointer] = memory
        return OK, real.CUdeviceptr(pointer)

    def cuMemAllocAsync(self, size, stream):
        self.calls.append(("cuMemAllocAsync", size, stream))
        return self.cuMemAlloc(size)

    def cuMemFree(self, pointer):
        del self.memory[int(pointer)]
        return (OK,)

    def cuMemFreeAsync(self, pointer, stream):
        return self.cuMemFree(pointer)

    def cuMemsetD8(self, pointer, value, count):
        ctypes.memset(int(pointer), value, count)
        return (OK,)

    def cuMemsetD8Async(self, pointer, value, count, stream):
        self.calls.append(("cuMemsetD8Async", count, stream))
        return self.cuMemsetD8(pointer, value, count)

    def cuMemsetD16(self, pointer, value, count):
        ctypes.memmove(int(pointer), value.to_bytes(2, "little") * count, 2 * count)
        return (OK,)

    def cuMemcpyHtoD(self, target, source, size):
        ctypes.memmove(int(target), source, size)
        return (self.broken,)

    def cuMemcpyDtoH(self, target, source, size):
        ctypes.memmove(target, int(source), size)
        return (self.broken,)

    # -- kernels -----------------------------------------------------------------------------------------------

    def cuModuleLoadData(self, image):
        assert isinstance(image, bytes)
        return OK, real.CUmodule(next(self.handles))

    def cuModuleUnload(self, module):
        return (OK,)

    def cuModuleGetFunction(self, module, name):
        if name.decode() not in self.kernels:
            return real.CUresult.CUDA_ERROR_NOT_FOUND, None
        function = FakeFunction(name.decode())
        function.handle = next(self.handles)
        self.functions[function.handle] = function
        return OK, function

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append((attribute.name, function, value))
        return (OK,) if value <= 100_000 else (real.CUresult.CUDA_ERROR_INVALID_VALUE,)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra):
        values = [value if kind is None else kind(value).value for value, kind in zip(*arguments, strict=True)]
        launch = (function, (gx, gy, gz), (bx, by, bz), shared, int(stream))
        return self._enqueue(int(stream), launch, values)

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        values = [value if kind is None else kind(value).value for value, kind in zip(*arguments, strict=True)]
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        for attribute in config.attrs[: config.numAttrs]:
            value = attribute.value
            if attribute.id == real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
                self.calls.append(("cluster", value.clusterDim.x, value.clusterDim.y, value.clusterDim.z))
            else:
                self.calls.append((attribute.id.name, value.programmaticStreamSerializationAllowed))
        return self._enqueue(int(config.hStream), (function, grid, block, config.sharedMemBytes, int(config.hStream)), values)

    def launch_raw(self, config, function, parameters, extra):
        """cuLaunchKernelEx as the driver has it: everything is an address."""
        assert extra is None
        *grid_and_block, shared, stream, attributes, count = struct.unpack("<7I4xQQI4x", ctypes.string_at(config, 56))
        for index in range(count):
            kind, *value = struct.unpack("<I4x3I", ctypes.string_at(attributes + 72 * index, 20))
            name = real.CUlaunchAttributeID(kind).name
            self.calls.append(("cluster", *value) if name == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION" else (name, value[0]))
        name = self.functions[function]
        places = struct.unpack(f"<{len(self.parameters[name])}Q", ctypes.string_at(parameters, 8 * len(self.parameters[name])))
        values = [self._read(place, parameter, kind) for place, (parameter, kind) in zip(places, self.parameters[name], strict=True)]
        grid, block = tuple(grid_and_block[:3]), tuple(grid_and_block[3:])
        self._enqueue(stream, (name, grid, block, shared, stream), values)
        return 0

    def _read(self, place, parameter, kind):
        if kind == "struct":
            return types.SimpleNamespace(bytes=ctypes.string_at(place, self.struct_bytes[parameter]))
        value = checked._C_TYPES[kind].from_address(place).value
        return 0 if value is None else value

    def current_context(self, address):
        ctypes.c_uint64.from_address(address).value = 0
        return 0

    def is_capturing(self, stream, address):
        ctypes.c_int.from_address(address).value = int(stream in self.capturing)
        return 0

    def stream_id(self, stream, address):
        ctypes.c_uint64.from_address(address).value = 10_000 + stream
        return 0

    def recording(self, function):
        """``LoadedBinary.function``, noting the types of each kernel's parameters."""

        def recorded(loaded, launch):
            self.parameters[launch.entry] = launch.parameters
            self.struct_bytes |= {name: len(value) for name, value in launch.structs}
            return function(loaded, launch)

        return recorded

    def _enqueue(self, stream, launch, values):
        if stream in self.capturing:
            self.capturing[stream].append((launch, values))
        else:
            self._execute(launch, values)
        return (OK,)

    def _execute(self, launch, values):
        self.launches.append(launch)
        self.seconds += LAUNCH_SECONDS
        self.broken = self.kernels[launch[0]](launch, values) or self.broken

    # -- streams, events, graphs -------------------------------------------------------------------------------

    def cuStreamCreate(self, flags):
        return OK, real.CUstream(next(self.handles))

    def cuStreamDestroy(self, stream):
        return (OK,)

    def cuStreamWaitEvent(self, stream, event, flags):
        self.calls.append(("wait", int(stream), self.events[event][1]))
        return (OK,)

    def cuStreamBeginCapture(self, stream, mode):
        self.capturing[int(stream)] = []
        return (OK,)

    def cuStreamEndCapture(self, stream):
        graph = next(self.handles)
        self.graphs[graph] = self.capturing.pop(int(stream))
        return OK, graph

    def cuGraphInstantiate(self, graph, flags):
        executable = next(self.handles)
        self.graphs[executable] = self.graphs[graph]
        return OK, executable

    def cuGraphLaunch(self, executable, stream):
        for launch, values in self.graphs[executable]:
            self._execute(launch, values)
        return (OK,)

    def cuGraphDestroy(self, graph):
        del self.graphs[graph]
        return (OK,)

    cuGraphExecDestroy = cuGraphDestroy

    def cuEventCreate(self, flags):
        return OK, next(self.handles)

    def cuEventRecord(self, event, stream):
        self.events[event] = (self.seconds, int(stream))
        return (OK,)

    def cuEventQuery(self, event):
        return (OK,)

    def cuEventSynchronize(self, event):
        return (OK,)

    def cuEventElapsedTime(self, start, end):
        return OK, (self.events[end][0] - self.events[start][0]) * 1e3

    def cuEventDestroy(self, event):
        del self.events[event]
        return (OK,)


class FakeFunction(str):
    """A kernel's handle: its name, and a number for the driver's own entry points."""

    def __int__(self):
        return self.handle


@pytest.fixture
def fake_driver(monkeypatch):
    """Installs a fake driver; the test fills in its ``kernels``. All device memory must be free afterwards."""
    fake = FakeDriver({})
    checked._probe.cache_clear()
    checked.primary_context.cache_clear()
    for module in _modules_with_bindings():
        monkeypatch.setattr(module, "bindings", lambda: fake)
    raw = types.SimpleNamespace(
        launch=fake.launch_raw, current_context=fake.current_context, is_capturing=fake.is_capturing, stream_id=fake.stream_id
    )
    for module in (workspaces, quick):
        monkeypatch.setattr(module, "raw_functions", lambda: raw)
    monkeypatch.setattr(checked.LoadedBinary, "function", fake.recording(checked.LoadedBinary.function))
    workspaces._kept.clear()
    yield fake
    workspaces._kept.clear()
    checked._probe.cache_clear()
    checked.primary_context.cache_clear()
    assert not fake.memory
    assert not fake.events


def _modules_with_bindings():
    from gemmgen.perf import contest, timing
    from gemmgen.runtime.cuda import launching, worker

    return checked, launching, timing, worker, contest, quick


def array_at(pointer, shape, type=ctypes.c_float):
    """The host array at an address that the fake driver gave out."""
    import numpy as np

    count = int(np.prod(shape))
    return np.frombuffer(memoryview((type * count).from_address(pointer)), type).reshape(shape)
