"""cuBLASLt through ctypes: every algorithm that its heuristic offers for a product, each as a separate call.

The numbers of its enumerations are those of ``cublasLt.h`` (CUDA 12 and 13); the order and the meaning of arguments are documented in
NVIDIA's cuBLAS manual, "Using the cuBLASLt API".
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

WORKSPACE_BYTES = 64 << 20
"""Workspace that algorithms may use; more than the 32 MiB that NVIDIA recommends for Hopper."""
MAX_ALGORITHMS = 64
"""Algorithms that the heuristic is asked for. It has returned up to eight."""

DATA_TYPES = {"f32": 0, "f64": 1, "f16": 2, "s8": 3, "s32": 10, "bf16": 14, "e4m3": 28, "e5m2": 29}
"""Element types by their number in ``cudaDataType``."""
COMPUTE_F32, COMPUTE_F64, COMPUTE_S32, COMPUTE_TF32 = 68, 70, 72, 77
"""``cublasComputeType_t``: float32, float64, int32, and float32 by TF32."""
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER, A_SCALE_POINTER, B_SCALE_POINTER, FAST_ACCUMULATION, BIAS_TYPE = (
    3,
    4,
    7,
    8,
    17,
    18,
    25,
    26,
)
"""``cublasLtMatmulDescAttributes_t``."""
BATCH_COUNT, BATCH_STRIDE = 5, 6
"""``cublasLtMatrixLayoutAttribute_t``."""
MAX_WORKSPACE_BYTES = 1
"""``cublasLtMatmulPreferenceAttributes_t``."""

Epilogue = Literal["none", "relu", "bias", "bias_relu", "gelu", "bias_gelu"]
"""Operation on the results within the kernel. ``gelu`` is the form with tanh."""
EPILOGUES: dict[Epilogue, int] = {"none": 1, "relu": 2, "bias": 4, "bias_relu": 6, "gelu": 32, "bias_gelu": 36}


class CublasLtError(Exception):
    """A failed call of cuBLASLt: its name and the status."""


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _HeuristicResult(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(frozen=True)
class Operand:
    """A matrix on the device, or a batch of them, by rows and columns and their strides in elements."""

    type: str
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    batch: int = 1
    batch_stride: int = 0

    @property
    def transposed(self) -> Operand:
        """The transpose of each matrix, in the same memory."""
        return Operand(self.type, self.columns, self.rows, self.column_stride, self.row_stride, self.batch, self.batch_stride)

    @property
    def column_major(self) -> bool:
        """True if elements of a column are contiguous."""
        return self.row_stride == 1 and (self.columns == 1 or self.column_stride >= self.rows)

    @property
    def leading_dimension(self) -> int:
        """Elements from the start of one column to the next, of a column-major matrix."""
        return self.column_stride if self.columns > 1 else max(self.rows, 1)


@dataclass(frozen=True)
class Product:
    """D = epilogue(alpha A B + beta D). ``fast_accumulation`` lets 8-bit floats be summed without promotion to float32."""

    a: Operand
    b: Operand
    d: Operand
    epilogue: Epilogue = "none"
    tf32: bool = False
    fast_accumulation: bool = False

    @property
    def integers(self) -> bool:
        """True if sums are int32."""
        return self.a.type == "s8"

    @property
    def scale_type(self) -> str:
        """The type of alpha and beta."""
        return self.d.type if self.d.type in ("s32", "f64") else "f32"


@dataclass(frozen=True)
class Addresses:
    """Device addresses of a product's arrays; ``bias`` has an element for each column of D, of D's type."""

    a: int
    b: int
    d: int
    bias: int = 0
    scale: int = 0
    """A float32 on the device, one, that 8-bit floats are scaled by."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of the heuristic for one product."""

    number: int
    """Place in the heuristic's order, from 0."""
    run: Callable[[Addresses, float, float, int], None]
    """Enqueues the product: addresses, alpha, beta, stream."""


def load() -> ctypes.CDLL:
    """cuBLASLt from the wheel that torch brings, or from the system. Raises ``OSError`` where there is none."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    files = [file for place in places for file in sorted(place.glob("**/libcublasLt.so*"))]
    for name in [*(str(file) for file in files), "libcublasLt.so.13"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return ctypes.CDLL("libcublasLt.so")


class CublasLt:
    """A handle on the current device, with a workspace at ``workspace`` of ``WORKSPACE_BYTES`` bytes.

    Raises ``OSError`` where cuBLASLt is not installed.
    """

    def __init__(self, workspace: int, library: Any = None) -> None:
        self._library = load() if library is None else library
        self._workspace = workspace
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))

    @cached_property
    def version(self) -> str:
        """Version as NVIDIA writes it: 13.1.0."""
        get = self._library.cublasLtGetVersion
        get.restype = ctypes.c_size_t
        number = int(get())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def algorithms(self, product: Product) -> tuple[Algorithm, ...]:
        """Every algorithm that the heuristic offers, its first choice first; none if cuBLASLt does not compute the product.

        Raises ``CublasLtError`` if an array lies in a way that cuBLASLt cannot address.
        """
        if not product.d.column_major:  # D row-major is its transpose column-major: transpose both sides
            transposed = Product(product.b.transposed, product.a.transposed, product.d.transposed, product.epilogue, product.tf32)
            flags = product.fast_accumulation
            return tuple(self._algorithms(transposed, flags, swapped=True))
        if "bias" in product.epilogue:
            raise CublasLtError("a bias for each column takes a row-major D")
        return tuple(self._algorithms(product, product.fast_accumulation, swapped=False))

    def _algorithms(self, product: Product, fast_accumulation: bool, *, swapped: bool) -> Sequence[Algorithm]:
        compute = COMPUTE_S32 if product.integers else COMPUTE_TF32 if product.tf32 else COMPUTE_F32
        compute = COMPUTE_F64 if product.a.type == "f64" else compute
        description = ctypes.c_void_p()
        scale = DATA_TYPES[product.scale_type]
        self._call("cublasLtMatmulDescCreate", ctypes.byref(description), ctypes.c_int(compute), ctypes.c_int(scale))
        a, a_is_transposed = self._layout(product.a)
        b, b_is_transposed = self._layout(product.b)
        d, d_is_transposed = self._layout(product.d)
        if d_is_transposed:
            raise CublasLtError("neither rows nor columns of D are contiguous")
        self._set(description, TRANSPOSE_A, ctypes.c_int(a_is_transposed))
        self._set(description, TRANSPOSE_B, ctypes.c_int(b_is_transposed))
        self._set(description, EPILOGUE, ctypes.c_int(EPILOGUES[product.epilogue]))
        if fast_accumulation:
            self._set(description, FAST_ACCUMULATION, ctypes.c_int8(1))
        if "bias" in product.epilogue:
            self._set(description, BIAS_TYPE, ctypes.c_int(DATA_TYPES[product.d.type]))
            self._set(description, BIAS_POINTER, ctypes.c_void_p(256))  # aligned as the bias will be; set again before each call
        preference = ctypes.c_void_p()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        limit = ctypes.c_size_t(WORKSPACE_BYTES)
        self._call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            ctypes.c_int(MAX_WORKSPACE_BYTES),
            ctypes.byref(limit),
            ctypes.c_size_t(ctypes.sizeof(limit)),
        )
        results = (_HeuristicResult * MAX_ALGORITHMS)()
        count = ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, description, a, b, d, d, preference, ctypes.c_int(MAX_ALGORITHMS), results, ctypes.byref(count)
        )
        if status:  # CUBLAS_STATUS_NOT_SUPPORTED and CUBLAS_STATUS_INVALID_VALUE: it has no such product
            return ()

        def scalar(value: float) -> ctypes.c_int | ctypes.c_float | ctypes.c_double:
            if product.scale_type == "s32":
                return ctypes.c_int(int(value))
            return ctypes.c_double(value) if product.scale_type == "f64" else ctypes.c_float(value)

        def enqueue(result: _HeuristicResult, at: Addresses, alpha: float, beta: float, stream: int) -> None:
            if "bias" in product.epilogue:
                self._set(description, BIAS_POINTER, ctypes.c_void_p(at.bias))
            if product.a.type in ("e4m3", "e5m2"):
                self._set(description, A_SCALE_POINTER, ctypes.c_void_p(at.scale))
                self._set(description, B_SCALE_POINTER, ctypes.c_void_p(at.scale))
            first, second = (at.b, at.a) if swapped else (at.a, at.b)
            of_product, of_d = scalar(alpha), scalar(beta)
            self._call(
                "cublasLtMatmul",
                self._handle,
                description,
                ctypes.byref(of_product),
                ctypes.c_void_p(first),
                a,
                ctypes.c_void_p(second),
                b,
                ctypes.byref(of_d),
                ctypes.c_void_p(at.d),
                d,
                ctypes.c_void_p(at.d),
                d,
                ctypes.byref(result.algorithm),
                ctypes.c_void_p(self._workspace),
                ctypes.c_size_t(WORKSPACE_BYTES),
                ctypes.c_void_p(stream),
            )

        def algorithm(number: int) -> Algorithm:
            result = results[number]
            return Algorithm(number, lambda at, alpha, beta, stream: enqueue(result, at, alpha, beta, stream))

        return [algorithm(number) for number in range(count.value) if not results[number].status]

    def _layout(self, operand: Operand) -> tuple[ctypes.c_void_p, bool]:
        """The description of a matrix, and whether it describes the transpose. Raises ``CublasLtError`` if neither is column-major."""
        transposed = not operand.column_major
        stored = operand.transposed if transposed else operand
        if not stored.column_major:
            raise CublasLtError(f"neither rows nor columns of a matrix of {operand.rows} x {operand.columns} are contiguous")
        layout = ctypes.c_void_p()
        self._call(
            "cublasLtMatrixLayoutCreate",
            ctypes.byref(layout),
            ctypes.c_int(DATA_TYPES[stored.type]),
            ctypes.c_uint64(stored.rows),
            ctypes.c_uint64(stored.columns),
            ctypes.c_int64(stored.leading_dimension),
        )
        if stored.batch > 1:
            for attribute, value in ((BATCH_COUNT, ctypes.c_int32(stored.batch)), (BATCH_STRIDE, ctypes.c_int64(stored.batch_stride))):
                size = ctypes.c_size_t(ctypes.sizeof(value))
                self._call("cublasLtMatrixLayoutSetAttribute", layout, ctypes.c_int(attribute), ctypes.byref(value), size)
        return layout, transposed

    def _set(self, description: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call("cublasLtMatmulDescSetAttribute", description, ctypes.c_int(attribute), ctypes.byref(value), size)

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise CublasLtError(f"{name}: status {status}")
