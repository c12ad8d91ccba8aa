"""Products of complex matrices, computed as four products of real matrices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import FLOAT32_OVERFLOW, number
from gemmgen.ops.arrays import is_torch, readable, stored, type_word

PARTS = {"complex64": "float32", "complex128": "float64"}
"""Types of real and imaginary parts."""
WHOLES = {part: word for word, part in PARTS.items()}
"""Types of complex numbers, by the type of their parts."""


@lru_cache(maxsize=64)
def _is_complex_type(dtype: object) -> bool:
    return getattr(dtype, "name", str(dtype)).removeprefix("torch.") in PARTS


def is_complex(array: object) -> bool:
    """True if an array has complex numbers."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and _is_complex_type(dtype)


def multiply(real_product: Callable[..., object], a: object, b: object, out: object, alpha: complex, beta: complex) -> Any:
    """The product alpha a b + beta out in complex64 or complex128. One factor may be real. ``real_product`` multiplies real arrays and
    takes ``out``, ``alpha`` and ``beta``. Raises ``LaunchError``."""
    a, b = readable(a), readable(b)
    words = {type_word(one) for one in (a, b)}
    complex_words = words & set(PARTS)
    part = PARTS[next(iter(complex_words))]
    if len(complex_words) > 1 or words - complex_words - {part}:
        raise LaunchError(f"matmul: a has elements {type_word(a)} and b {type_word(b)}, need one precision for both")
    if out is not None and type_word(out) != next(iter(complex_words)):
        raise LaunchError(f"matmul: out has elements {type_word(out)}, need {next(iter(complex_words))}")
    alpha, beta = (_factor(name, value, part) for name, value in (("alpha", alpha), ("beta", beta)))
    if out is None and beta != 0:
        raise LaunchError("matmul: beta is not 0, but there is no out that it would multiply; pass out=")
    (a_real, a_imaginary), (b_real, b_imaginary) = _parts(a), _parts(b)
    real = real_product(a_real, b_real)
    if a_imaginary is not None and b_imaginary is not None:
        real_product(a_imaginary, b_imaginary, out=real, alpha=-1.0, beta=1.0)
    imaginary = None
    if b_imaginary is not None:
        imaginary = real_product(a_real, b_imaginary)
    if a_imaginary is not None:
        imaginary = real_product(a_imaginary, b_real, out=imaginary, beta=0.0 if imaginary is None else 1.0)
    return _joined(real, imaginary, out, alpha, beta)


def _factor(name: str, value: object, part: str) -> complex:
    """A factor of a product as a real or complex number. Raises ``LaunchError`` for anything else and for what ``part`` does not hold."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    overflow = FLOAT32_OVERFLOW if part == "float32" else inf
    if not isinstance(value, complex):
        return number("matmul", name, value, overflow)
    return complex(number("matmul", name, value.real, overflow), number("matmul", name, value.imag, overflow))


def _parts(array: Any) -> tuple[Any, Any]:
    """Contiguous real and imaginary parts; the imaginary part of a real array is None."""
    if not is_complex(array):
        return array, None
    if is_torch(array):
        array = array.resolve_conj().resolve_neg()
        return array.real.contiguous(), array.imag.contiguous()
    library = sys.modules.get(type(array).__module__.split(".")[0])
    if library is None or not hasattr(library, "ascontiguousarray"):
        raise LaunchError(f"matmul: complex arrays of {type(array).__module__}, need those of NumPy, CuPy or torch")
    return library.ascontiguousarray(array.real), library.ascontiguousarray(array.imag)


def _joined(real: Any, imaginary: object, out: Any, alpha: complex, beta: complex) -> Any:
    """The array alpha (real + i imaginary) + beta out, which the arrays' library computes."""
    if is_torch(real):
        result = sys.modules["torch"].complex(real, imaginary)
    else:
        library = sys.modules[type(real).__module__.split(".")[0]]
        result = library.empty(real.shape, WHOLES[type_word(real)])
        result.real, result.imag = real, imaginary
    if out is not None and tuple(out.shape) != tuple(result.shape):
        raise LaunchError(f"matmul: out has shape {tuple(out.shape)}, need {tuple(result.shape)}")
    return stored(result, alpha, beta, out)
