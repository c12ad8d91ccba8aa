"""Numbers as CUDA writes them."""

from __future__ import annotations


def float_literal(value: float) -> str:
    """A float32 constant that reads back as exactly the nearest float32 of ``value``."""
    import numpy as np

    with np.errstate(over="ignore"):  # plans refuse what is beyond float32, with a reason
        constant = np.float32(value)
    text = str(np.format_float_positional(constant, unique=True, trim="0"))
    if len(text) > 16:
        text = str(np.format_float_scientific(constant, unique=True, trim="0"))
    return f"{text}f"


def literal(kind: str, value: float) -> str:
    """A constant of type ``kind``, f32, f64 or an integer type, as CUDA writes it."""
    if kind == "f32":
        return float_literal(value)
    return repr(float(value)) if kind == "f64" else str(int(value))
