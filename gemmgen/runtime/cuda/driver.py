"""The CUDA driver in this process, with every return code checked: devices, memory, loaded kernels, launches.

Nothing of CUDA is imported before the first call. Everything happens in the devices' primary contexts, which torch and
CuPy use as well. The driver API of ``cuda.bindings`` rather than ``cuda.core``: its names are the same in all versions
from 12 on, and a launch through it costs less.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.hardware.target import ARCHITECTURES, Architecture, architecture_for
from gemmgen.kernels.launch import PORTABLE_CLUSTER, ResolvedLaunch
from gemmgen.runtime.cuda import abi

_DRIVER_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_HOW_TO_GET_A_GPU = "run on a machine with an NVIDIA GPU and its driver, or verify with --backend emulator"


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

    __slots__ = ("current_context", "encode_im2col", "encode_tiled", "is_capturing", "launch", "stream_id")

    def __init__(self, library: object) -> None:
        def function(name: str, arguments: tuple[object, ...]) -> Callable[..., int]:
            symbol = getattr(library, name)
            symbol.restype, symbol.argtypes = ctypes.c_int, arguments
            return cast("Callable[..., int]", symbol)

        def newer(name: str, arguments: tuple[object, ...]) -> Callable[..., int] | None:
            return function(name, arguments) if hasattr(library, name) else None

        address = ctypes.c_void_p
        self.launch = function("cuLaunchKernelEx", (address,) * 4)
        self.current_context = function("cuCtxGetCurrent", (address,))
        self.is_capturing = function("cuStreamIsCapturing", (address,) * 2)
        self.stream_id = newer("cuStreamGetId", (address,) * 2)
        self.encode_tiled = newer("cuTensorMapEncodeTiled", abi.ENCODE_TILED)
        self.encode_im2col = newer("cuTensorMapEncodeIm2col", abi.ENCODE_IM2COL)


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


def call(name: str, *arguments: object) -> Any:
    """Calls one function of the driver by name and checks it."""
    driver = bindings()
    return check(driver, getattr(driver, name)(*arguments))


NON_BLOCKING = 1
"""Flag of a stream that does not wait for the default stream, nor the other way round."""


@contextmanager
def while_captured() -> Iterator[None]:
    """Lets this thread allocate while streams are captured, by this thread or others."""
    before = call("cuThreadExchangeStreamCaptureMode", bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


def release(name: str, *arguments: object) -> None:
    """Calls a function of the driver that frees something, without a check: after a fault every call fails, and it is
    the fault that has to be reported."""
    getattr(bindings(), name)(*arguments)


def list_gpus() -> tuple[GpuDevice, ...]:
    """The CUDA devices of this machine; empty, never an error, where there are none or no driver."""
    return _probe()[0]


def gpu_available() -> bool:
    """True if this machine has a CUDA device."""
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
        self._large_clusters: set[str] = set()
        with current_device(ordinal):
            self.module = call("cuModuleLoadData", cubin)

    def function(self, launch: ResolvedLaunch) -> Any:
        """The kernel of ``launch``, allowed as much dynamic shared memory and as large clusters as it asks for."""
        function = self._functions.get(launch.entry)
        if function is None:
            with current_device(self.device.ordinal):
                try:
                    function = call("cuModuleGetFunction", self.module, launch.entry.encode())
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
        if launch.cluster_blocks > PORTABLE_CLUSTER and launch.entry not in self._large_clusters:
            attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            with current_device(self.device.ordinal):
                call("cuFuncSetAttribute", function, attribute, 1)
            self._large_clusters.add(launch.entry)
        return function

    def unload(self) -> None:
        """Frees the module; its kernels must not run any more."""
        with current_device(self.device.ordinal):
            release("cuModuleUnload", self.module)
