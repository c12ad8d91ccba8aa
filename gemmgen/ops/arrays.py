"""The caller's arrays as layouts, and new arrays of the caller's library."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, lru_cache
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.requests import MAX_ALIGNMENT, Copy, Layout
from gemmgen.ops.jax_arrays import is_jax, new_result
from gemmgen.runtime.arrays.views import LEGACY_STREAM, PER_THREAD_STREAM, ArrayView, describe

NO_MEMORY = "matmul: no memory for packed operands"
_SEEN_AS = {"u16": "bf16", "bool": "u8"}
"""NumPy and CuPy hold the bits of bfloat16 as uint16; truth values are bytes, 0 or 1."""


def view_of(array: object, name: str, stream: int | None, written: bool = False) -> ArrayView:
    """The array as kernels see it. Raises ``LaunchError``."""
    view = describe(array, name, stream)
    kind = _SEEN_AS.get(view.type, view.type)
    if kind == "u8" and not written and view.type == "bool":
        kind = "s8"
    if written and view.read_only and not is_jax(array):  # arrays of JAX that are written are new results
        raise LaunchError(f"{name} is written, but the array is read-only")
    if kind == view.type:
        return view
    return ArrayView(view.pointer, view.shape, view.strides, kind, view.device, view.read_only, view.producer_stream, view.owner)


def readable(array: object) -> Any:
    """The array, or a copy that kernels can read: of a NumPy scalar, and of elements in foreign byte order or at odd addresses, as in a
    field of packed records."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.generic | numpy.ndarray):
        return array
    element = array.dtype
    if element.kind not in "biufc" or not isinstance(array, numpy.ndarray):
        return numpy.asarray(array)
    if element.isnative and array.flags.aligned:
        return array
    return array.astype(element.newbyteorder("="))


def given(operation: str, name: str, array: object) -> Any:
    """An argument that has to be an array, readable. Raises ``LaunchError`` for anything else."""
    if not isinstance(getattr(array, "shape", None), tuple):
        raise LaunchError(f"{operation}: {name} is {array.__class__.__name__}, need an array")
    return readable(array)


def layout_of(view: ArrayView) -> Layout:
    """The view without its address."""
    return Layout(view.shape, view.strides, view.type, alignment_of(view.pointer))


def alignment_of(pointer: int) -> int:
    """Bytes, a power of two up to 16, that an address is a multiple of."""
    low = pointer & (MAX_ALIGNMENT - 1)
    return low & -low if low else MAX_ALIGNMENT


def is_torch(array: object) -> bool:
    """True if it is a torch tensor; torch is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def library_of(array: object) -> str:
    """Name of the array's library; arrays of classes derived from NumPy's are NumPy's."""
    numpy = sys.modules.get("numpy")
    return "numpy" if numpy is not None and isinstance(array, numpy.ndarray) else type(array).__module__.split(".")[0]


def new_array(like: Any, shape: tuple[int, ...], kind: str, truth: bool = False) -> Any:
    """An uninitialised array of the library of ``like`` and on its device. Raises ``LaunchError`` for libraries without one."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch.bool if truth else getattr(torch, ELEMENTS[kind].word), device=like.device)
    library = library_of(like)
    if library == "cupy":
        with like.device:
            return sys.modules["cupy"].empty(shape, array_type(like, kind, truth))
    if library == "numpy":
        import numpy as np

        return np.empty(shape, array_type(like, kind, truth))
    if is_jax(like):
        return new_result(like, shape, kind, truth)
    raise LaunchError(f"arrays of {library} cannot be allocated for the result; pass out=, an array that can be written to")


def copied(array: Any, copy: Copy, stream: int | None = None) -> Any:
    """A copy of an operand. ``stream``: handle of the GPU's stream that reads it, on which it is made. Raises ``LaunchError`` for
    arrays of libraries that cannot copy."""
    if is_torch(array):
        with _torch_stream(array, stream):
            # Not contiguous(), which gives an array without gaps back as it is, wherever it begins.
            wide, plain = array.expand(copy.shape), sys.modules["torch"].contiguous_format
            return wide.mT.clone(memory_format=plain).mT if copy.by_columns else wide.clone(memory_format=plain)
    library = library_of(array)
    if library not in ("numpy", "cupy"):
        raise LaunchError(
            f"{copy.operand}: rows or columns must be contiguous and must not overlap, and batch axes count as one; arrays of {library} "
            "are not copied here: pass a contiguous copy"
        )
    with on_stream(array, stream):
        wide = sys.modules[library].broadcast_to(array, copy.shape)
        if copy.by_columns:
            return wide.swapaxes(-1, -2).copy(order="C").swapaxes(-1, -2)
        return wide.copy(order="C")


def _torch_stream(array: Any, stream: int | None) -> Any:
    """The context in which torch works on the stream of this handle, where that is not the current one already. Raises
    ``LaunchError`` for the one that torch does not have."""
    torch = sys.modules["torch"]
    if not array.is_cuda or (stream or LEGACY_STREAM) == (torch.cuda.current_stream(array.device).cuda_stream or LEGACY_STREAM):
        return nullcontext()
    if (stream or LEGACY_STREAM) == LEGACY_STREAM:
        return torch.cuda.stream(torch.cuda.default_stream(array.device))
    if stream == PER_THREAD_STREAM:
        raise LaunchError("torch cannot copy operands on the per-thread default stream: pass contiguous ones, or a stream of torch's")
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, array.device))


def on_stream(array: object, stream: int | None) -> Any:
    """The context in which the array's library works on the stream of this handle; without one, on that which is current."""
    if is_torch(array):
        return nullcontext() if stream is None else _torch_stream(array, stream)
    return sys.modules["cupy"].cuda.ExternalStream(stream) if stream and library_of(array) == "cupy" else nullcontext()


def contiguous(array: Any) -> Any:
    """The array with its last axis innermost and no gaps: itself if it is so already, as arrays of JAX are, else a copy."""
    if is_torch(array):
        return array.contiguous()
    return array if is_jax(array) or array.flags.c_contiguous else array.copy()


def array_type(like: Any, kind: str, truth: bool) -> Any:
    """Name of a result's type in the library of ``like``, NumPy or CuPy."""
    if truth:
        return "bool"
    if kind == "bf16":
        # The library of the operands' own extended types, if they have such.
        extended = sys.modules.get("ml_dtypes") if like.dtype.name.startswith(("bfloat16", "float8")) else None
        return "uint16" if extended is None else extended.bfloat16
    return ELEMENTS[kind].word


WIDER = {"uint8": "int32", "int16": "int32", "uint32": "int64"}
"""Types of elements that kernels do not read, and those that they are copied to, which hold all their values."""


def type_word(array: object) -> str:
    """Name of an array's type of elements, "" where it has none."""
    return str(getattr(array, "dtype", "")).removeprefix("torch.")


def converted(array: Any, word: str, stream: int | None = None) -> Any:
    """A copy with elements of another type; the array itself where it has that type or is None. ``stream``: handle of the GPU's stream
    on which it is made, by default that of the array's library."""
    if array is None or type_word(array) == word:
        return array
    with on_stream(array, stream):
        if is_torch(array):
            return array.to(getattr(sys.modules["torch"], word))
        return array.astype(word)


def widened(array: Any) -> Any:
    """A copy in float32; of uint16, which holds the bits of bfloat16."""
    if array is None or is_torch(array) or type_word(array) != "uint16":
        return converted(array, "float32")
    return (array.astype("uint32") << 16).view("float32")


def narrowed(array: Any, like: object) -> Any:
    """A copy of float32 in the type of ``like``, rounded; uint16 holds the bits of bfloat16."""
    if is_torch(array) or type_word(like) != "uint16":
        return converted(array, type_word(like))
    bits = array.astype("float32").view("uint32")
    number = array == array
    return (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) * number + 0x7FC0 * ~number).astype("uint16")


def assigned(operation: str, out: Any, values: Any, stream: int | None = None) -> Any:
    """``out`` with ``values`` of the same type and shape stored into it, on a GPU on the stream of this handle. Raises ``LaunchError``
    for others."""
    if type_word(out) != type_word(values) or tuple(out.shape) != tuple(values.shape):
        got, need = (f"{type_word(array)} of shape {tuple(array.shape)}" for array in (out, values))
        raise LaunchError(f"{operation}: out is {got}, need {need}")
    with on_stream(out, stream):
        if is_torch(out):
            return out.copy_(values)
        out[...] = values
    return out


@lru_cache(maxsize=64)
def _wider(dtype: object) -> str:
    return WIDER.get(getattr(dtype, "name", str(dtype)).removeprefix("torch."), "")


def wider_type(array: object) -> str:
    """Name of the type that an array's elements are converted to before kernels read them; "" for types that they read."""
    dtype = getattr(array, "dtype", None)
    return "" if dtype is None else _wider(dtype)


@lru_cache(maxsize=64)
def _is_bool(dtype: object) -> bool:
    return str(dtype) in ("bool", "torch.bool")


def is_truth(array: object) -> bool:
    """True if an array holds truth values."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and _is_bool(dtype)


def empty_like(array: object) -> Any:
    """Another array of the same library, extents and type, not initialised. Raises ``LaunchError`` for libraries without one."""
    library = sys.modules.get(library_of(array))
    if library is None or not hasattr(library, "empty_like"):
        raise LaunchError(f"arrays of {type(array).__module__} cannot be allocated beside out")
    return library.empty_like(array)


def same_place(one: Any, other: Any) -> bool:
    """True if two arrays are one: the same address, extents, strides and type."""
    if one is other:
        return True
    if is_torch(one) and is_torch(other) and one.data_ptr() != other.data_ptr():
        return False
    first, second = view_of(one, "", None), view_of(other, "", None)
    return first.pointer == second.pointer and first.layout == second.layout


@cache
def address_reader() -> Callable[[Any], int]:
    """A function that tells where the data of one of NumPy's own arrays lie.

    ``array.ctypes`` builds several objects, which takes longer than a small product. NumPy's binary interface has had the address
    directly behind the head of the object since its first version; where that is not so, ``array.ctypes`` is asked.
    """
    import numpy as np

    if sys.implementation.name != "cpython":
        return _told_address
    head, read = object.__basicsize__, ctypes.c_void_p.from_address
    # An array with an offset, so that no other pointer of the structure could be the same by chance.
    known = np.arange(8, dtype=np.float32)[3:]
    if read(id(known) + head).value != known.ctypes.data:
        return _told_address
    return lambda array: read(id(array) + head).value or 0


def _told_address(array: Any) -> int:
    address: int = array.ctypes.data
    return address


def stored(product: Any, alpha: complex, beta: complex, out: Any) -> Any:
    """The array alpha product + beta out, in ``out`` if there is one, else in ``product``. A beta other than 0 needs an ``out``; with an
    alpha of 0, what the product holds does not count."""
    if alpha == 0:
        product[...] = 0
    elif alpha != 1:
        product *= alpha
    if out is None:
        return product
    if beta != 0:
        product += beta * out
    if product is not out:
        out[...] = product
    return out
