"""One description of an array, whichever library it comes from; nothing is copied and no library is imported for it.

NumPy arrays and torch tensors are read through their own public attributes, others through
``__cuda_array_interface__``, else through DLPack. ``cuda.core.StridedMemoryView`` is not used: it loads the CUDA
libraries for host arrays too, and knows bfloat16 only where ml_dtypes is installed. Torch's attributes rather than its
DLPack export, because they cost a tenth of a capsule and work while a stream is being captured.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import BY_WORD, ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.core.text import printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Device = str | tuple[str, int]
"""``"cpu"`` or ``("cuda", ordinal)``."""

LEGACY_STREAM = 1
"""The handle of CUDA's legacy default stream, in the driver API, DLPack and ``__cuda_array_interface__`` alike."""
PER_THREAD_STREAM = 2
"""The handle of the default stream of a host thread, likewise."""

_BY_TYPESTR = {e.typestr: e.name for e in reversed(ELEMENTS.values()) if e.holder == e.word}
"""Types that libraries without float8 and bfloat16 know by name: their uint8 are integers, as NumPy's are."""

_COPY_ALIGNMENT = 16
"""Bytes, of which the address of a copy is as many past a multiple as that of its original."""
_WIDE_GAP = 1 << 20
"""Bytes between elements from which on the emulator's memory leaves them out."""
_MAX_PARTS = 4096
_MAX_QUOTE_LENGTH = 500
"""Longest quotation of a library's error message, in characters."""
_OVERLAP_WORK = 100_000
"""Steps that the search for a common address may take before two interleaved arrays are taken to overlap."""


@dataclass(frozen=True, slots=True)
class ArrayView:
    """Place and layout of an array."""

    pointer: int
    """Address of the element with all indices 0."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    type: str
    """Type of the elements, as in ``DataType``; a type that kernels do not know keeps its library's name."""
    device: Device
    read_only: bool = False
    producer_stream: int | None = None
    """The stream that work on the array was enqueued on, where its library says so: a launch has to wait for it."""
    owner: Any = field(default=None, repr=False, compare=False)
    """Keeps the memory alive."""

    @property
    def layout(self) -> tuple[Any, ...]:
        """Everything but the address: equal layouts bind to the same problem."""
        return self.shape, self.strides, self.type, self.device, self.read_only

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def span(self) -> tuple[int, int]:
        """The bytes (first, past the last) that the elements lie in, relative to ``pointer``; (0, 0) if empty."""
        if self.is_empty:
            return 0, 0
        reaches = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)]
        item = element_bytes(self.type)
        return sum(min(r, 0) for r in reaches) * item, (sum(max(r, 0) for r in reaches) + 1) * item

    def parts(self) -> tuple[tuple[int, int], ...]:
        """The bytes (first, past the last), relative to the start of the span, that the elements lie in where wide gaps are between
        them; () where there are none, or too many."""
        item = element_bytes(self.type)
        length, outer = item, list[tuple[int, int]]()
        for stride, extent in sorted((abs(stride) * item, extent) for stride, extent in zip(self.strides, self.shape, strict=True)):
            if extent > 1 and (outer or stride - length >= _WIDE_GAP):
                outer.append((stride, extent))
            else:
                length += (extent - 1) * stride
        if not outer or self.is_empty or math.prod(extent for _, extent in outer) > _MAX_PARTS:
            return ()
        starts = [0]
        for stride, extent in outer:
            starts = [start + place * stride for place in range(extent) for start in starts]
        return tuple((start, start + length) for start in sorted(set(starts)))

    def host_copy(self) -> ArrayView:
        """A copy of the array elsewhere in host memory."""
        first, end = self.span()
        memory = ctypes.create_string_buffer(end - first + 2 * _COPY_ALIGNMENT)
        start = -(-ctypes.addressof(memory) // _COPY_ALIGNMENT) * _COPY_ALIGNMENT + (self.pointer + first) % _COPY_ALIGNMENT
        ctypes.memmove(start, self.pointer + first, end - first)
        return replace(self, pointer=start - first, owner=memory)

    def host_storage(self, element_type: npt.DTypeLike) -> npt.NDArray[Any]:
        """The host memory from the first to the last element, gaps included, as one dimension; not a copy."""
        import ctypes

        import numpy as np

        first, end = self.span()
        if end == first:
            return np.empty(0, element_type)
        memory = memoryview((ctypes.c_char * (end - first)).from_address(self.pointer + first))
        return np.frombuffer(memory, np.dtype(element_type))


def element_bytes(type_name: str) -> int:
    """Bytes of one element; 1 for types that no kernel takes."""
    return ELEMENTS[type_name].bytes if type_name in ELEMENTS else 1


def describe(array: object, name: str = "the array", stream: int | None = None) -> ArrayView:
    """A view of ``array``; ``name`` stands for it in messages.

    ``stream`` is the handle of the CUDA stream that will use the array (None: the legacy default stream). Libraries
    that only speak DLPack are asked to make it wait for their work; for the others see ``ArrayView.producer_stream``.
    Raises ``LaunchError`` for objects that are no arrays, and for arrays that no pointer describes: sparse, masked, on another
    kind of device.
    """
    if isinstance(array, ArrayView):
        return array
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return _describe_numpy(array, name)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _describe_torch(array, name, torch)
    interface = _asked(lambda: getattr(array, "__cuda_array_interface__", None), f"{name} does not give its __cuda_array_interface__")
    if interface is not None:
        given = _CudaArray.of(interface, name)
        if given.typestr in _BY_TYPESTR or not _has(array, "__dlpack__"):
            return _describe_cuda_array(array, given, name)
    if _has(array, "__dlpack__") and _has(array, "__dlpack_device__"):
        return describe_dlpack(array, name, LEGACY_STREAM if stream is None else stream)
    raise LaunchError(f"{name} must be an array (NumPy, or anything with DLPack or __cuda_array_interface__), got {type(array).__name__}")


def _asked(question: Callable[[], object], complaint: str) -> Any:
    """Answer of a library's own code; its exceptions become a ``LaunchError``, which begins with the complaint."""
    try:
        return question()
    except Exception as error:
        from traceback import format_exception_only  # which copes with an error that cannot be shown

        raise LaunchError(f"{complaint}: {printable(format_exception_only(error)[-1].strip(), _MAX_QUOTE_LENGTH)}") from None


def _has(array: object, name: str) -> bool:
    """True if an object has an attribute, one that cannot be read included."""
    try:
        return hasattr(array, name)
    except Exception:
        return True


def overlaps(first: ArrayView, second: ArrayView) -> bool:
    """True if the two arrays have a byte in common. Interleaved arrays, such as two halves of every row, do not."""
    if first.device != second.device or first.is_empty or second.is_empty:
        return False
    (a_low, a_end), (b_low, b_end) = first.span(), second.span()
    if first.pointer + a_end <= second.pointer + b_low or second.pointer + b_end <= first.pointer + a_low:
        return False
    import numpy as np

    try:
        return bool(np.shares_memory(_addresses(first), _addresses(second), max_work=_OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def is_same(first: ArrayView, second: ArrayView) -> bool:
    """True if the two arrays have the same elements at the same addresses."""
    return first.pointer == second.pointer and (first.shape, first.strides, first.type) == (second.shape, second.strides, second.type)


def overlaps_itself(view: ArrayView) -> bool:
    """True if two elements may have the same address; exact for arrays whose dimensions are nested in one another."""
    inner = 1
    axes = sorted((abs(stride), extent) for extent, stride in zip(view.shape, view.strides, strict=True) if extent > 1)
    if view.is_empty:
        return False
    for stride, extent in axes:
        if stride < inner:
            return True
        inner += (extent - 1) * stride
    return False


def _addresses(view: ArrayView) -> npt.NDArray[Any]:
    """A NumPy array over the view's addresses, which may be a GPU's: for arithmetic on them, never to be read."""
    import numpy as np

    item = element_bytes(view.type)

    interface = {
        "version": 3,
        "shape": view.shape,
        "strides": tuple(stride * item for stride in view.strides),
        "typestr": f"|V{item}",
        "data": (view.pointer, True),
    }
    return np.asarray(type("Addresses", (), {"__array_interface__": interface})())


def _strides_in_elements(strides: tuple[int, ...], item: int, name: str) -> tuple[int, ...]:
    if any(stride % item for stride in strides):
        raise LaunchError(f"{name} has strides of {strides} bytes, which are not whole elements of {item} bytes")
    return tuple(stride // item for stride in strides)


def packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array without gaps."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _describe_numpy(array: np.ndarray[Any, Any], name: str) -> ArrayView:
    import numpy

    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise LaunchError(
            f"{name} is a masked array, and a kernel would also read its masked elements; pass {name}.filled() with a value for it"
        )
    plain = array if type(array) is numpy.ndarray else numpy.asarray(array)  # a subclass may say anything of its shape
    type_name, known = _numpy_type(plain.dtype)
    strides = _strides_in_elements(plain.strides, plain.itemsize, name) if known else plain.strides
    return ArrayView(plain.ctypes.data, plain.shape, strides, type_name, "cpu", not plain.flags.writeable, None, array)


@lru_cache(maxsize=64)
def _numpy_type(dtype: np.dtype[Any]) -> tuple[str, bool]:
    """Name of a type, and whether kernels know it; others are reported by it when they are bound, and their strides do not matter."""
    if not dtype.isnative:
        return f"{dtype.name} in foreign byte order", False
    return BY_WORD.get(dtype.name, dtype.name), dtype.name in BY_WORD


def _describe_torch(tensor: Any, name: str, torch: Any) -> ArrayView:
    device = tensor.device
    if device.type not in ("cpu", "cuda"):
        raise LaunchError(f"{name} is on the device {device}; kernels take arrays on the CPU or on a CUDA device")
    if tensor.layout != torch.strided:
        raise LaunchError(f"{name} has the layout {tensor.layout}; kernels take dense (strided) tensors")
    if tensor.is_conj() or tensor.is_neg():
        raise LaunchError(f"{name} is a lazily conjugated or negated view; pass {name}.resolve_conj().resolve_neg()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise LaunchError(f"{name} requires gradients, which a kernel does not record; pass {name}.detach()")
    type_name = str(tensor.dtype).removeprefix("torch.")
    return ArrayView(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        BY_WORD.get(type_name, type_name),
        "cpu" if device.type == "cpu" else ("cuda", device.index or 0),
        owner=tensor,
    )


@dataclass(frozen=True, slots=True)
class _CudaArray:
    """Content of a ``__cuda_array_interface__``, as the CUDA Array Interface, version 3, has it; checked."""

    pointer: int
    read_only: bool
    shape: tuple[int, ...]
    byte_strides: tuple[int, ...] | None
    typestr: str
    stream: int | None

    @classmethod
    def of(cls, interface: Any, name: str) -> _CudaArray:
        """The content of an object's ``interface``; raises ``LaunchError`` for another form and for masked arrays."""
        try:
            if interface.get("mask") is not None:
                raise LaunchError(f"{name} is a masked array; kernels take plain ones")
            pointer, read_only = interface["data"]
            strides, stream = interface.get("strides"), interface.get("stream")
            fields = cls(
                index(pointer or 0),
                bool(read_only),
                tuple(index(extent) for extent in interface["shape"]),
                None if strides is None else tuple(index(stride) for stride in strides),
                str(interface["typestr"]),
                None if stream is None else index(stream),
            )
        except LaunchError:
            raise
        except Exception as error:
            raise LaunchError(f"{name} has a __cuda_array_interface__ of another form: {type(error).__name__}: {error}") from None
        if min(fields.shape, default=0) < 0 or len(fields.byte_strides or fields.shape) != len(fields.shape):
            raise LaunchError(f"{name} has the shape {fields.shape} and the strides {fields.byte_strides}, which describe no array")
        return fields


def _describe_cuda_array(array: object, given: _CudaArray, name: str) -> ArrayView:
    type_name = _BY_TYPESTR.get(given.typestr, f"of type {given.typestr!r}")
    strides = packed_strides(given.shape)
    if given.byte_strides is not None:
        strides = _strides_in_elements(given.byte_strides, element_bytes(type_name), name)
    device = ("cuda", _ordinal(array, given.pointer, name))
    return ArrayView(given.pointer, given.shape, strides, type_name, device, given.read_only, given.stream, array)


def _ordinal(array: object, pointer: int | None, name: str) -> int:
    """Ordinal of the CUDA device that the memory belongs to: as the library says, else as the driver does."""
    if hasattr(array, "__dlpack_device__"):
        return _device_of(array, name)[1]
    if not pointer:
        return 0
    from gemmgen.runtime.cuda.driver import pointer_ordinal

    return pointer_ordinal(pointer)


# -- DLPack capsules, legacy or versioned, as dlpack.h 1.0 lays them out

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1
_MAJOR = 1
_MAX_AXES = 64
"""More than any library has."""
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


def describe_dlpack(array: object, name: str, stream: int) -> ArrayView:
    """A view of an array that exports itself through DLPack; on a GPU, ``stream`` waits for the array's producer.

    Raises ``LaunchError`` if the library refuses to export it, or if it lies on another kind of device.
    """
    device_type, ordinal = _device_of(array, name)
    device: Device
    if device_type in (_CPU, _CUDA_HOST):
        device = "cpu"
    elif device_type in (_CUDA, _CUDA_MANAGED):
        device = ("cuda", ordinal)
    else:
        raise LaunchError(f"{name} is on DLPack device type {device_type}; kernels take arrays on the CPU or on a CUDA device")
    capsule = _asked(lambda: _export(array, {} if device == "cpu" else {"stream": stream}), f"{name} cannot be read through DLPack")
    read_only = False
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        versioned = _VersionedTensor.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != _MAJOR:
            raise LaunchError(f"{name} cannot be read through DLPack: version {versioned.major}, need {_MAJOR}")
        read_only = bool(versioned.flags & _READ_ONLY)
        tensor = versioned.tensor
    elif _capsule_is_valid(capsule, b"dltensor"):
        tensor = _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise LaunchError(f"{name} cannot be read through DLPack: it gave a {type(capsule).__name__}, no capsule with a tensor")
    if not 0 <= tensor.rank <= _MAX_AXES or (tensor.rank and not tensor.shape):
        raise LaunchError(f"{name} cannot be read through DLPack: {tensor.rank} axes, need 0 to {_MAX_AXES} with their extents")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    if min(shape, default=0) < 0:
        raise LaunchError(f"{name} cannot be read through DLPack: its shape is {shape}")
    if not tensor.data and 0 not in shape:
        raise LaunchError(f"{name} cannot be read through DLPack: an array of the shape {shape} at address 0")
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
        # A capsule that nobody consumes releases the memory when it is collected, so it has to be kept.
        owner=(array, capsule),
    )


def _device_of(array: Any, name: str) -> tuple[int, int]:
    """Type and ordinal of the device that an array says it lies on."""

    def read() -> tuple[int, int]:
        device_type, ordinal = (int(part) for part in array.__dlpack_device__())
        if not (0 <= device_type < 2**31 and 0 <= ordinal < 2**31):
            raise ValueError("numbers of devices are 32-bit integers from 0 on")
        return device_type, ordinal

    device: tuple[int, int] = _asked(read, f"{name} reports a device that DLPack does not define")
    return device


def _export(array: Any, arguments: dict[str, Any]) -> Any:
    try:
        return array.__dlpack__(max_version=(1, 0), **arguments)
    except TypeError:  # an exporter older than DLPack 1.0
        return array.__dlpack__(**arguments)
