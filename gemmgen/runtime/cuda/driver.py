"""The CUDA driver in this process, with every return code checked: devices, memory, loaded kernels, launches.

Nothing of CUDA is imported before the first call. Everything happens in the devices' primary contexts, which torch and
CuPy use as well. The driver API of ``cuda.bindings`` rather than ``cuda.core``: its names are the same in all versions
from 12 on, and a launch through it costs less.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.hardware.target import ARCHITECTURES, Architecture, architecture_for
from gemmgen.kernels.launch import ResolvedLaunch

_C_TYPES: dict[str, Any] = {
    "pointer": ctypes.c_void_p,
    **{name: getattr(ctypes, element.ctypes_name) for name, element in ELEMENTS.items()},
}
_DRIVER_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_HOW_TO_GET_A_GPU = "run on a machine with an NVIDIA GPU and its driver, or use the emulator (--backend emulator)"


class CudaError(LaunchError):
    """A call of the driver failed. ``code`` is the driver's name for the error, ``CUDA_ERROR_ILLEGAL_ADDRESS`` say."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)

    def __reduce__(self) -> tuple[type[CudaError], tuple[str, str]]:
        """Pickles with its code."""
        return type(self), (self.code, str(self))


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One CUDA device of this machine. Sizes in bytes."""

    ordinal: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_block: int
    """The most that one block can have, after opting in."""
    cuda_version: tuple[int, int]
    """The newest CUDA that the driver supports."""
    pci_bus_id: str

    @property
    def architecture(self) -> Architecture | None:
        """The richest architecture whose cubins the device runs; None if it is not known."""
        return architecture_for(*self.compute_capability)

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"{self.name} (sm_{major}{minor}), driver for CUDA {self.cuda_version[0]}.{self.cuda_version[1]}"


@cache
def bindings() -> Any:
    """The module ``cuda.bindings.driver``, initialised. Raises ``EnvironmentMissing`` without it or a driver."""
    if not any(_can_load(library) for library in _DRIVER_LIBRARIES):
        raise EnvironmentMissing(f"this machine has no NVIDIA driver; {_HOW_TO_GET_A_GPU}")
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise EnvironmentMissing(f"cuda-python cannot be imported ({error}); install cuda-python 13") from None
    try:
        check(driver, driver.cuInit(0))
    except (CudaError, RuntimeError) as error:
        raise EnvironmentMissing(f"the NVIDIA driver does not start ({error}); {_HOW_TO_GET_A_GPU}") from None
    return driver


class RawFunctions:
    """Functions of the driver that a launch calls, without the types around them: arguments are addresses and handles as
    integers, the result is the error code. They let other Python threads run meanwhile, as a full launch queue blocks."""

    __slots__ = ("current_context", "is_capturing", "launch", "stream_id")

    def __init__(self, library: Any) -> None:
        def function(name: str, arguments: int) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = ctypes.c_int, (ctypes.c_void_p,) * arguments
            return found

        self.launch = function("cuLaunchKernelEx", 4)
        self.current_context = function("cuCtxGetCurrent", 1)
        self.is_capturing = function("cuStreamIsCapturing", 2)
        self.stream_id = function("cuStreamGetId", 2) if hasattr(library, "cuStreamGetId") else None


@cache
def raw_functions() -> RawFunctions:
    """The driver's own entry points. Raises ``EnvironmentMissing`` without a driver."""
    bindings()
    library = next(library for library in _DRIVER_LIBRARIES if _can_load(library))
    return RawFunctions(ctypes.CDLL(library))


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check(driver: Any, result: tuple[Any, ...]) -> Any:
    """The value that a call of the driver returned; ``CudaError`` if it returned an error."""
    code = result[0]
    if code.value:
        text = driver.cuGetErrorString(code)[1]
        description = text.decode() if isinstance(text, bytes) else "unknown error"
        raise CudaError(str(code.name), f"{code.name}: {description}")
    return result[1] if len(result) > 1 else None


def call(name: str, *arguments: Any) -> Any:
    """Calls one function of the driver by name and checks it."""
    driver = bindings()
    return check(driver, getattr(driver, name)(*arguments))


def release(name: str, *arguments: Any) -> None:
    """Calls a function of the driver that frees something, without a check: after a fault every call fails, and it is
    the fault that has to be reported."""
    getattr(bindings(), name)(*arguments)


def list_gpus() -> tuple[GpuDevice, ...]:
    """The CUDA devices of this machine; empty, never an error, where there are none or no driver."""
    return _probe()[0]


def gpu_available() -> bool:
    """Whether this machine has a CUDA device."""
    return bool(list_gpus())


def why_no_gpu() -> str:
    """The reason for which ``list_gpus`` is empty, in words; empty if it is not."""
    return _probe()[1]


def gpu(ordinal: int = 0) -> GpuDevice:
    """The device with that ordinal. Raises ``EnvironmentMissing`` if there is none."""
    devices = list_gpus()
    if not devices:
        raise EnvironmentMissing(why_no_gpu())
    if not 0 <= ordinal < len(devices):
        raise EnvironmentMissing(f"there is no CUDA device {ordinal}; this machine has {len(devices)}, counted from 0")
    return devices[ordinal]


@cache
def _probe() -> tuple[tuple[GpuDevice, ...], str]:
    try:
        devices = tuple(_read_device(ordinal) for ordinal in range(call("cuDeviceGetCount")))
    except EnvironmentMissing as error:
        return (), str(error)
    except Exception as error:  # whatever is broken in a driver, asking for devices must not fail
        return (), f"the CUDA devices cannot be listed ({error}); {_HOW_TO_GET_A_GPU}"
    return devices, "" if devices else f"the NVIDIA driver sees no device; {_HOW_TO_GET_A_GPU}"


def _read_device(ordinal: int) -> GpuDevice:
    device = call("cuDeviceGet", ordinal)
    attributes = bindings().CUdevice_attribute

    def attribute(name: str) -> int:
        return int(call("cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    version = int(call("cuDriverGetVersion"))
    return GpuDevice(
        ordinal=ordinal,
        name=_text(call("cuDeviceGetName", 256, device)),
        compute_capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(call("cuDeviceTotalMem", device)),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        cuda_version=(version // 1000, version % 1000 // 10),
        pci_bus_id=_text(call("cuDeviceGetPCIBusId", 64, device)),
    )


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace").strip()


@cache
def primary_context(ordinal: int) -> Any:
    """The device's primary context, kept for the life of the process."""
    gpu(ordinal)
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))


@contextmanager
def current_device(ordinal: int) -> Iterator[None]:
    """Makes the device's primary context the current one of this thread, and afterwards the one before it."""
    call("cuCtxPushCurrent", primary_context(ordinal))
    try:
        yield
    finally:
        release("cuCtxPopCurrent")


def pointer_ordinal(pointer: int) -> int:
    """The device that the memory at ``pointer`` belongs to. ``LaunchError`` if it is no device memory."""
    attribute = bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(call("cuPointerGetAttribute", attribute, pointer))


class LoadedBinary:
    """A cubin loaded on one device, in its primary context."""

    def __init__(self, cubin: bytes, architecture: str, ordinal: int) -> None:
        """Raises ``LaunchError`` if the device does not run cubins of ``architecture``."""
        self.device = gpu(ordinal)
        made_for, runs = ARCHITECTURES.get(architecture), self.device.architecture
        if made_for is not None and runs is not None and not runs.runs_cubins_of(made_for):
            raise LaunchError(
                f"the kernel was compiled for {architecture}, which {self.device.name} does not run; compile it for {runs.name}"
            )
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}
        with current_device(ordinal):
            self._module = call("cuModuleLoadData", cubin)

    def function(self, launch: ResolvedLaunch) -> Any:
        """The kernel of ``launch``, allowed as much dynamic shared memory as it asks for."""
        function = self._functions.get(launch.entry)
        if function is None:
            with current_device(self.device.ordinal):
                try:
                    function = call("cuModuleGetFunction", self._module, launch.entry.encode())
                except CudaError as error:
                    raise LaunchError(f"the cubin has no kernel {launch.entry} ({error})") from None
            self._functions[launch.entry] = function
        if launch.shared_bytes > self._shared.get(launch.entry, 0):
            attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with current_device(self.device.ordinal):
                try:
                    call("cuFuncSetAttribute", function, attribute, launch.shared_bytes)
                except CudaError as error:
                    raise LaunchError(
                        f"{launch.entry} asks for {launch.shared_bytes} bytes of dynamic shared memory; a block on "
                        f"{self.device.name} can have {self.device.shared_bytes_per_block} in all ({error.code})"
                    ) from None
            self._shared[launch.entry] = launch.shared_bytes
        return function

    def unload(self) -> None:
        """Frees the module; its kernels must not run any more."""
        with current_device(self.device.ordinal):
            release("cuModuleUnload", self._module)


class PreparedLaunch:
    """A launch of a loaded kernel that only lacks the values of its arguments and a stream."""

    __slots__ = ("_config", "_driver", "_entry", "_function", "_geometry", "_names", "_structs", "_types")

    def __init__(self, loaded: LoadedBinary, launch: ResolvedLaunch) -> None:
        for name, kind in launch.parameters:
            if kind not in _C_TYPES and kind != "struct":
                raise LaunchError(f"{launch.entry}: the argument {name} has type {kind}, which cannot be passed by value")
        self._driver = bindings()
        self._entry = launch.entry
        self._function = loaded.function(launch)
        self._names = tuple(name for name, _ in launch.parameters)
        self._types = tuple(_C_TYPES.get(kind) for _, kind in launch.parameters)  # None: a ctypes structure
        self._structs = {name: _structure(value) for name, value in launch.structs}
        self._geometry = (*launch.grid, *launch.block, launch.shared_bytes)
        self._config = launch if launch.programmatic or launch.cluster != (1, 1, 1) else None

    def enqueue(self, stream: int, values: Mapping[str, Any]) -> None:
        """Enqueues the kernel on a stream of the current context; pointers are integers, 0 for null.

        Raises ``CudaError``. Errors inside the kernel show in a later call.
        """
        driver = self._driver
        if self._structs:
            values = {**values, **self._structs}
        arguments = (tuple([values[name] for name in self._names]), self._types)
        if self._config is None:
            result = driver.cuLaunchKernel(self._function, *self._geometry, stream, arguments, 0)
        else:
            result = driver.cuLaunchKernelEx(self._launch_config(self._config, stream), self._function, arguments, 0)
        if result[0].value:
            try:
                check(driver, result)
            except CudaError as error:
                raise CudaError(error.code, f"{self._entry} cannot be launched: {error}") from None

    def _launch_config(self, launch: ResolvedLaunch, stream: int) -> Any:
        driver = self._driver
        identifiers = driver.CUlaunchAttributeID
        attributes = []
        if launch.cluster != (1, 1, 1):
            attribute = driver.CUlaunchAttribute()
            attribute.id = identifiers.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster = attribute.value.clusterDim
            cluster.x, cluster.y, cluster.z = launch.cluster
            attributes.append(attribute)
        if launch.programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = identifiers.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.shared_bytes
        config.hStream = driver.CUstream(stream)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        return config


def _structure(value: bytes) -> ctypes.Structure:
    """A struct of these bytes, which the driver copies when the kernel is launched."""
    kind: Any = type("HostStruct", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_byte * len(value))]})
    structure: ctypes.Structure = kind.from_buffer_copy(value)
    return structure


def argument_values(
    parameters: Mapping[str, str],
    dimensions: Mapping[str, int],
    scalars: Mapping[str, float],
    pointers: Mapping[str, int],
) -> dict[str, Any]:
    """A value for every parameter (name to type) but the structs; an array that is not in ``pointers`` is a null pointer."""
    values: dict[str, Any] = {}
    for name, kind in parameters.items():
        if kind == "struct":
            continue  # part of the launch
        if kind == "pointer":
            values[name] = int(pointers.get(name, 0))
        elif name in dimensions:
            values[name] = int(dimensions[name])
        elif name not in scalars:
            raise LaunchError(f"the scalar argument {name} has no value")
        else:
            values[name] = float(scalars[name]) if ELEMENTS[kind].is_float else int(scalars[name])
    return values
