"""Reads the description out of a DLPack capsule, legacy or versioned, as dlpack.h 1.0 lays it out."""

from __future__ import annotations

import ctypes
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.runtime.arrays.views import ArrayView, Device, packed_strides

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1
_TYPES = {element.dlpack: element.name for element in reversed(ELEMENTS.values())}


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("ordinal", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("type", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _VersionedTensor(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype = ctypes.c_int
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def describe_dlpack(array: Any, name: str, stream: int) -> ArrayView:
    """A view of an array that exports itself through DLPack; on a GPU, ``stream`` waits for the array's producer.

    Raises ``LaunchError`` if the library refuses to export it, or if it lies on another kind of device.
    """
    device_type, ordinal = (int(part) for part in array.__dlpack_device__())
    device: Device
    if device_type in (_CPU, _CUDA_HOST):
        device = "cpu"
    elif device_type in (_CUDA, _CUDA_MANAGED):
        device = ("cuda", ordinal)
    else:
        raise LaunchError(f"{name} is on DLPack device type {device_type}; kernels take arrays on the CPU or on a CUDA device")
    try:
        capsule = _export(array, {} if device == "cpu" else {"stream": stream})
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise LaunchError(f"{name} cannot be read through DLPack: {error}") from None
    read_only = False
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        versioned = _VersionedTensor.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        read_only = bool(versioned.flags & _READ_ONLY)
        tensor = versioned.tensor
    else:
        tensor = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.rank)) if tensor.strides else packed_strides(shape)
    kind = tensor.type
    type_name = _TYPES.get((kind.code, kind.bits)) if kind.lanes == 1 else None
    return ArrayView(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        type_name or f"of DLPack type {kind.code} with {kind.bits} bits",
        device,
        read_only,
        None if device == "cpu" else stream,
        # A capsule that nobody consumes releases the memory when it is collected, so it is what has to be kept.
        owner=(array, capsule),
    )


def _export(array: Any, arguments: dict[str, Any]) -> Any:
    try:
        return array.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # an exporter older than DLPack 1.0
        return array.__dlpack__(**arguments)
