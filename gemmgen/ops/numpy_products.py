"""Products of NumPy's float32 matrices by a function in C (``templates/cpu_gemm/numpy_products.c``), which takes less time than a line of
Python."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from gemmgen.core.cache import Cache
from gemmgen.core.errors import CompileError, EnvironmentMissing, LaunchError
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.cpu import best_architecture
from gemmgen.runtime.native import loaded_library
from gemmgen.toolchain.host import compile_c

NAME = "numpy_products"
OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
HEAD_BYTES = 2 * ctypes.sizeof(ctypes.c_void_p)
"""Bytes of the head of an object: a count of references and a type. Debug builds and builds without a global lock have other heads."""
FASTCALL = 0x80
"""METH_FASTCALL: the C function takes an array of arguments and their number."""
MAX_REMEMBERED = 1 << 16
"""Layouts that are ever remembered: objects are kept for each."""
ARGUMENTS = "iiifpipifpi"
"""Kinds of the arguments of a kernel that is called so: integers, float32 and pointers."""


class _Array(ctypes.Structure):
    """An array behind the head of its object, as NumPy's binary interface has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("axes", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("base", ctypes.c_void_p),
        ("type", ctypes.c_void_p),
    )


class _Product(ctypes.Structure):
    """``struct product``."""

    _fields_ = (
        ("layout", ctypes.c_ssize_t * 7),
        ("serving", ctypes.c_void_p),
        ("shape", ctypes.py_object),
        ("sizes", ctypes.c_int * 3),
        ("lines", ctypes.c_int * 3),
        ("swapped", ctypes.c_int),
    )


class _Method(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


class NumpyProducts:
    """The function, and the products that it knows."""

    def __init__(self, library: ctypes.CDLL) -> None:
        import numpy as np

        self._float32 = np.dtype(np.float32)
        library.numpy_products_prepare.argtypes = [ctypes.py_object] * 4
        library.numpy_products_prepare.restype = None
        library.numpy_products_prepare(None, np.empty, self._float32, np.ndarray)
        self._remember = library.numpy_products_remember
        self._remember.argtypes, self._remember.restype = [ctypes.POINTER(_Product)], None
        function = ctypes.cast(library.numpy_products_multiply, ctypes.c_void_p).value
        self._method = _Method(b"multiply", function, FASTCALL, None)
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p)(
            ("PyCFunction_NewEx", ctypes.pythonapi)
        )
        self.multiply: Callable[[Any, Any], Any] = make(ctypes.byref(self._method), None, None)
        """The product of two arrays, a new array; None where it is not known."""
        self._kept: dict[tuple[int, ...], tuple[ctypes.c_void_p, tuple[int, int]]] = {}
        """Objects that the table in C points to, by layout."""

    def remember(self, a: Any, b: Any, serving: ctypes.c_void_p, values: list[Any], places: dict[str, int]) -> None:
        """Has products of arrays like these made by the kernel at an address, which may be exchanged, with such ``values``, where its
        arguments are those of a product; ``places``: of the arrays among them."""
        kinds = "".join("p" if value is None else "f" if isinstance(value, ctypes.c_float) else "i" for value in values)
        if kinds != ARGUMENTS or places["out"] != ARGUMENTS.rindex("p") or a.dtype is not self._float32 or b.dtype is not self._float32:
            return
        layout = (*a.shape, b.shape[1], *a.strides, *b.strides)
        if len(self._kept) >= MAX_REMEMBERED and layout not in self._kept:
            return
        product = _Product()
        product.layout[:] = layout
        product.serving = ctypes.addressof(serving)
        product.shape = shape = (a.shape[0], b.shape[1])
        integers = [value.value for value, kind in zip(values, kinds, strict=True) if kind == "i"]
        product.sizes[:], product.lines[:] = integers[:3], integers[3:]
        product.swapped = places["a"] > places["b"]
        self._remember(ctypes.byref(product))
        self._kept[layout] = serving, shape


@cache
def numpy_products() -> NumpyProducts | None:
    """The function, compiled through the user's cache; None where there is no compiler, or Python's or NumPy's objects are others."""
    architecture = best_architecture()
    if architecture is None or sys.implementation.name != "cpython" or object.__basicsize__ != HEAD_BYTES or not _is_known_array():
        return None
    source = (resource_directory("templates") / "cpu_gemm" / f"{NAME}.c").read_text()
    try:
        binary = compile_c(source, name=NAME, architecture=architecture, options=OPTIONS, cache=Cache())
        return NumpyProducts(loaded_library(binary, ctypes.PyDLL))
    except (CompileError, EnvironmentMissing, LaunchError, OSError, AttributeError):
        return None


def _is_known_array() -> bool:
    """True if arrays look as ``_Array`` says."""
    import numpy as np

    array = np.zeros((5, 7), np.float32)[1:, ::2]
    seen = _Array.from_address(id(array) + HEAD_BYTES)
    if (seen.data, seen.axes, seen.base, seen.type) != (array.ctypes.data, 2, id(array.base), id(array.dtype)):
        return False
    return tuple(seen.shape[:2]) == array.shape and tuple(seen.strides[:2]) == array.strides
