"""Numbers as CUDA writes them."""

from __future__ import annotations

import math


def float_literal(value: float) -> str:
    """A float32 constant that reads back as exactly the nearest float32 of ``value``."""
    import numpy as np

    with np.errstate(over="ignore"):  # plans refuse values beyond float32, with a reason
        constant = np.float32(value)
    text = str(np.format_float_positional(constant, unique=True, trim="0"))
    if len(text) > 16:
        text = str(np.format_float_scientific(constant, unique=True, trim="0"))
    return f"{text}f"


def literal(kind: str, value: float) -> str:
    """A constant of type ``kind``, f32, f64 or an integer type, as CUDA writes it."""
    if math.isnan(value):
        return "__int_as_float(0x7fffffff)" if kind == "f32" else "__longlong_as_double(0x7fffffffffffffffLL)"
    if math.isinf(value):
        return (
            f"{'-' if value < 0 else ''}{'__int_as_float(0x7f800000)' if kind == 'f32' else '__longlong_as_double(0x7ff0000000000000LL)'}"
        )
    if kind == "f32":
        return float_literal(value)
    return repr(float(value)) if kind == "f64" else str(int(value))
