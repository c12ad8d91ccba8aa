"""A CUDA driver without a GPU: host memory for device memory, Python functions for kernels, a counter for time.

It stands in for the functions of ``cuda.bindings.driver`` that gemmgen calls; types and enumerations are the real ones.
"""

import ctypes
import itertools
import types

import pytest
from cuda.bindings import driver as real

from gemmgen.core.elements import ELEMENTS
from gemmgen.runtime.cuda import abi, launcher, workspaces
from gemmgen.runtime.cuda import driver as checked

OK = real.CUresult.CUDA_SUCCESS
LAUNCH_SECONDS = 1e-5
C_TYPES = {"pointer": ctypes.c_void_p} | {name: getattr(ctypes, element.ctypes_name) for name, element in ELEMENTS.items()}


class FakeDriver:
    """``kernels`` maps an entry to ``kernel(launch, values)``; a kernel may return a CUresult that breaks the context."""

    def __init__(self, kernels):
        self.kernels = kernels
        self.memory = {}
        self.launches = []
        self.calls = []
        self.graphs, self.captures = {}, {}
        self.capturing = {}
        self.broken = OK
        self.seconds = 0.0
        self.handles = itertools.count(1000)
        self.events = {}
        self.functions = {}
        self.parameters = {}
        self.struct_bytes = {}
        self.encoded = []
        self.encode_code = 0

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

    def launch_raw(self, config, function, parameters, extra):
        """cuLaunchKernelEx as the driver has it: everything is an address."""
        assert extra is None
        config = abi.LaunchConfig.from_address(config)
        attributes = (abi.LaunchAttribute * config.numAttrs).from_address(config.attrs) if config.numAttrs else ()
        for attribute in attributes:
            if attribute.id == real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
                cluster = attribute.value.clusterDim
                self.calls.append(("cluster", cluster.x, cluster.y, cluster.z))
            else:
                value = attribute.value.programmaticStreamSerializationAllowed
                self.calls.append((real.CUlaunchAttributeID(attribute.id).name, value))
        name = self.functions[function]
        places = (ctypes.c_uint64 * len(self.parameters[name])).from_address(parameters)
        values = [self._read(place, parameter, kind) for place, (parameter, kind) in zip(places, self.parameters[name], strict=True)]
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        self._enqueue(config.hStream, (name, grid, block, config.sharedMemBytes, config.hStream), values)
        return 0

    def _read(self, place, parameter, kind):
        if kind in ("struct", "tensor_map"):
            return ctypes.string_at(place, self.struct_bytes.get(parameter, 128))
        value = C_TYPES[kind].from_address(place).value
        return 0 if value is None else value

    def encode_tiled(self, target, element, rank, address, *rest):
        """cuTensorMapEncodeTiled: the map holds the address alone; its arguments are noted."""
        return self._encode(target, address, (element, rank, *[list(part) for part in rest[:4]], *rest[4:]))

    def encode_im2col(self, target, element, rank, address, *rest):
        """cuTensorMapEncodeIm2col."""
        return self._encode(target, address, (element, rank, *[list(part) for part in rest[:4]], *rest[4:6], list(rest[6]), *rest[7:]))

    def _encode(self, target, address, described):
        self.encoded.append((address, *described))
        ctypes.memmove(target, address.to_bytes(128, "little"), 128)
        return self.encode_code

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

    def cuStreamSynchronize(self, stream):
        return (OK,)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.calls.append(("cuThreadExchangeStreamCaptureMode", mode))
        return OK, real.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

    def cuStreamDestroy(self, stream):
        return (OK,)

    def cuStreamWaitEvent(self, stream, event, flags):
        self.calls.append(("wait", int(stream), self.events[event][1]))
        return (OK,)

    def cuStreamBeginCapture(self, stream, mode):
        self.capturing[int(stream)] = []
        self.captures[int(stream)] = next(self.handles)
        return (OK,)

    def cuStreamGetCaptureInfo(self, stream):
        status = real.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        return OK, status, self.captures[int(stream)], None, [], 0

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
    install(fake, monkeypatch.setattr)
    workspaces._kept.clear()
    yield fake
    workspaces._kept.clear()
    checked._probe.cache_clear()
    checked.primary_context.cache_clear()
    assert not fake.memory
    assert not fake.events


def install(fake, set_attribute=setattr):
    """Makes a fake driver the one that gemmgen calls."""
    from gemmgen.perf import contestants, timing
    from gemmgen.runtime.cuda import worker

    for module in (checked, timing, worker, contestants, launcher, workspaces):
        set_attribute(module, "bindings", lambda: fake)
    raw = types.SimpleNamespace(
        launch=fake.launch_raw,
        current_context=fake.current_context,
        is_capturing=fake.is_capturing,
        stream_id=fake.stream_id,
        encode_tiled=fake.encode_tiled,
        encode_im2col=fake.encode_im2col,
    )
    for module in (workspaces, launcher):
        set_attribute(module, "raw_functions", lambda: raw)
    set_attribute(checked.LoadedBinary, "function", fake.recording(checked.LoadedBinary.function))


def array_at(pointer, shape, type=ctypes.c_float):
    """The host array at an address that the fake driver gave out."""
    import numpy as np

    count = int(np.prod(shape))
    return np.frombuffer(memoryview((type * count).from_address(pointer)), type).reshape(shape)
