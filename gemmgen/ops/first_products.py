"""Products of float32 matrices in host memory until a kernel is compiled for them, by a small function in C
(``templates/cpu_gemm/first_products.c``) that a compiler makes in a part of a second."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from gemmgen.core.cache import Cache
from gemmgen.core.errors import CompileError, EnvironmentMissing, LaunchError
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.cpu import CPU_ARCHITECTURES, best_architecture, runs_here
from gemmgen.runtime.native import loaded_library
from gemmgen.toolchain.host import compile_c

NAME = "first_products"
OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
MAX_PRODUCTS = 1 << 33
"""Multiplications of a product that does not wait for a better kernel."""
MAX_EXTENT = 2**31 - 1
FLOAT_BYTES = 4


_compiling = threading.Lock()


def first_products() -> Any:
    """The library, compiled through the user's cache; None where there is no compiler, or the processor is another."""
    with _compiling:
        return _first_products()


def compile_soon() -> None:
    """Has a thread compile the library where no array of a GPU can be multiplied: Python imports the operations meanwhile."""
    if "numpy" in sys.modules and not any(library in sys.modules for library in ("torch", "cupy", "jax")):
        threading.Thread(target=first_products, name="gemmgen-first-products").start()


@cache
def _first_products() -> Any:
    architecture = CPU_ARCHITECTURES["x86_64_v3"]
    if not runs_here(architecture):
        return None
    source = (resource_directory("templates") / "cpu_gemm" / f"{NAME}.c").read_text()
    best = best_architecture() or architecture
    options = (*OPTIONS, *architecture.compiler_flags, f"-DMOST_DOT_COLUMNS={best.dot_columns}")
    try:
        library = loaded_library(compile_c(source, name=NAME, architecture=architecture, options=options, cache=Cache()))
    except (CompileError, EnvironmentMissing, LaunchError, OSError):
        return None
    integer, number, pointer = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    for letters in ("nn", "nt", "tn", "tt"):
        function = getattr(library, f"first_product_{letters}")
        function.restype = integer
        function.argtypes = [integer, integer, integer, number, pointer, integer, pointer, integer, number, pointer, integer]
    return library


def first_function(letters: str) -> Any:
    """The function for operands stored so, which takes the arguments of a kernel without epilogue; None where there is none."""
    library = first_products()
    return None if library is None else getattr(library, f"first_product_{letters}")


class FirstProducts:
    """The first products of NumPy's matrices in a process. A thread prepares later ones meanwhile, which takes most of a second."""

    def __init__(self, prepare: Callable[[Any, Any], object]) -> None:
        """``prepare`` makes ready all that later products of such arrays need."""
        self._prepare = prepare
        self._over = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __call__(self, a: Any, b: Any) -> Any:
        """The product of two arrays, a new array; None where all is ready, or the arrays are of another kind."""
        if self._over:
            return None
        arguments = _arguments(a, b)
        library = None if arguments is None else first_products()
        if arguments is None or library is None:
            return None
        letters, sizes, (left, left_line), (right, right_line) = arguments
        m, n, k = sizes
        self._start(a, b)
        result = sys.modules["numpy"].empty((a.shape[0], b.shape[1]), "f4")
        status = getattr(library, f"first_product_{letters}")(
            m, n, k, 1.0, left.ctypes.data, left_line, right.ctypes.data, right_line, 0.0, result.ctypes.data, n
        )
        return result if status == 0 else None

    def wait(self) -> None:
        """Returns once the thread has ended, if there is one."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self, a: object, b: object) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._work, args=(a, b), name="gemmgen-first-product")
            os.register_at_fork(before=self.wait)  # a child would wait forever for modules that the thread imports
        self._thread.start()

    def _work(self, a: object, b: object) -> None:
        try:
            self._prepare(a, b)
        except Exception:
            pass  # the next call meets it, too, and says so
        finally:
            self._over = True


def _arguments(a: Any, b: Any) -> tuple[str, tuple[int, int, int], tuple[Any, int], tuple[Any, int]] | None:
    """Letters, m, n and k, and each operand with its leading dimension; None for arrays that the function does not take."""
    numpy = sys.modules["numpy"]
    if a.__class__ is not b.__class__ or a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        return None
    if a.dtype is not b.dtype or a.dtype is not numpy.dtype("f4") or not (a.flags.aligned and b.flags.aligned):
        return None
    (m, k), n = a.shape, b.shape[1]
    if not 0 < m * n * k <= MAX_PRODUCTS or max(m, n, k) > MAX_EXTENT:
        return None
    # A vector and a matrix that is stored along it, as the kernels that follow take them.
    if (m == 1 < n and _line(b) is None) or (n == 1 < m and _line(a) is None):
        a, b, m, n = b.T, a.T, n, m
    letters, operands = "", []
    for array in (a, b):
        line = _line(array)
        letters += "t" if line is None else "n"
        line = _line(array.T) if line is None else line
        if line is None or line > MAX_EXTENT:
            return None
        operands.append((array, line))
    return letters, (m, n, k), operands[0], operands[1]


def _line(array: Any) -> int | None:
    """Elements from one row of a matrix to the next; None if it is not stored by rows."""
    (rows, columns), (between, along) = array.shape, array.strides
    if columns > 1 and along != FLOAT_BYTES:
        return None
    if rows == 1:
        return int(columns)
    return None if between % FLOAT_BYTES or between < FLOAT_BYTES * columns else between // FLOAT_BYTES
