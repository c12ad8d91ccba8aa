"""``gemmgen.ops.quantize``: from the arrays and options of a call to the request that it makes."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.quantise.matcher import INPUTS, QuantiseRequest, shape_of_scales
from gemmgen.kernels.requests import Interpretation, Layout, Result


def interpret(operands: Mapping[str, Layout], options: Mapping[str, object]) -> Interpretation:
    """The request of a call. ``options``: ``block`` as in a spec, ``output`` and ``scales``, types. Raises ``LaunchError``."""
    x, block = operands["x"], str(options["block"])
    if (
        x.type not in INPUTS
        or len(x.shape) != 2
        or (x.shape[1] > 1 and x.strides[1] != 1)
        or (x.shape[0] > 1 and x.strides[0] < x.shape[1])
    ):
        raise LaunchError(f"quantize: x has elements {x.type}, shape {x.shape} and strides {x.strides}, need rows without gaps within them")
    m, k = x.shape
    shape = shape_of_scales(block, m, k)
    y = operands.get("out") or Layout.packed((m, k), str(options["output"]))
    scales = operands.get("scales") or Layout.packed(shape, str(options["scales"]))
    if y.shape != x.shape or scales.shape != shape:
        raise LaunchError(f"quantize: out and scales have shapes {y.shape} and {scales.shape}, need {x.shape} and {shape}")
    results = Result("out", y.shape, y.type), Result("scales", scales.shape, scales.type)
    return Interpretation(QuantiseRequest(x, y, scales, block), results)
