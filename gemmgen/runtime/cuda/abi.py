"""The driver's structures as C lays them out, for calls of its entry points without the bindings' types (cuda.h 13.0)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import get_args

from gemmgen.hardware import tensor_map as tma

CLUSTER_DIMENSION = 4
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION."""
PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


class ClusterDimension(ctypes.Structure):
    """The value of CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class LaunchAttributeValue(ctypes.Union):
    """CUlaunchAttributeValue: the members that are used, and room for the others."""

    _fields_ = (("clusterDim", ClusterDimension), ("programmaticStreamSerializationAllowed", ctypes.c_int), ("pad", ctypes.c_char * 64))


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute. The data after the number is aligned to 8 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", LaunchAttributeValue))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig, with its pointers as integers."""

    _fields_ = (
        ("gridDimX", ctypes.c_uint),
        ("gridDimY", ctypes.c_uint),
        ("gridDimZ", ctypes.c_uint),
        ("blockDimX", ctypes.c_uint),
        ("blockDimY", ctypes.c_uint),
        ("blockDimZ", ctypes.c_uint),
        ("sharedMemBytes", ctypes.c_uint),
        ("hStream", ctypes.c_uint64),
        ("attrs", ctypes.c_uint64),
        ("numAttrs", ctypes.c_uint),
    )


def _numbers(names: Sequence[str]) -> Mapping[str, int]:
    return {name: number for number, name in enumerate(names)}


ELEMENT_NUMBERS = _numbers(tuple(tma.ELEMENT_BYTES))
"""CUtensorMapDataType."""
INTERLEAVE_NUMBERS = _numbers(get_args(tma.Interleave))
"""CUtensorMapInterleave."""
SWIZZLE_NUMBERS = _numbers(get_args(tma.Swizzle))
"""CUtensorMapSwizzle."""
L2_PROMOTION_NUMBERS = _numbers(get_args(tma.L2Promotion))
"""CUtensorMapL2promotion."""
FILL_NUMBERS = _numbers(get_args(tma.Fill))
"""CUtensorMapFloatOOBfill."""

_POINTER = ctypes.c_void_p
ENCODE_TILED = (
    _POINTER,
    ctypes.c_int,
    ctypes.c_uint,
    _POINTER,
    _POINTER,
    _POINTER,
    _POINTER,
    _POINTER,
    *(ctypes.c_int,) * 4,
)
"""Parameters of cuTensorMapEncodeTiled: map, type, rank, address, extents, strides, box, element strides, four enumerations."""
ENCODE_IM2COL = (
    _POINTER,
    ctypes.c_int,
    ctypes.c_uint,
    _POINTER,
    _POINTER,
    _POINTER,
    _POINTER,
    _POINTER,
    ctypes.c_uint,
    ctypes.c_uint,
    _POINTER,
    *(ctypes.c_int,) * 4,
)
"""Parameters of cuTensorMapEncodeIm2col: as above with corners, channels and pixels for the box."""
