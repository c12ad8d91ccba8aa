"""``gemmgen.ops.matmul``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from numbers import Real
from typing import Literal

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import Operations, are_floats, by_name, is_plain_number, number, word
from gemmgen.kernels.epilogue.options import hashable
from gemmgen.kernels.gemm.request import PRECISIONS
from gemmgen.kernels.gemm.triangles import Triangles
from gemmgen.ops import torch_state
from gemmgen.ops.arrays import same_place
from gemmgen.ops.complex_products import is_complex
from gemmgen.ops.complex_products import multiply as multiply_complex
from gemmgen.ops.constant import Constant
from gemmgen.ops.doubles import BY_INTEGERS, is_deep, multiply_scaled
from gemmgen.ops.engine import Operator, numpy_array, with_kernel
from gemmgen.ops.factors import numbers_as_factors, refuse_beside_epilogue
from gemmgen.ops.plain_products import PLAIN, plain_first
from gemmgen.ops.planes import Planes
from gemmgen.ops.sparse import SparseWeight
from gemmgen.ops.weights import Weight
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream

OPERATOR = Operator(
    "matmul",
    ("a", "b", "bias", "residual", "scale_a", "scale_b", "scale_out", "planes", "amax"),
    ("out",),
    ("alpha", "beta", "gamma", "bias"),
    ("scaled", "accumulates", "bias_number", "activation", "precision", "backend", "output", "batch_invariant", "constant", "triangles"),
    ("amax",),
    2,
)


@with_kernel
@plain_first
def matmul(
    a: ArrayT,
    b: Array | Constant | Planes | Weight | SparseWeight,
    *,
    out: Array | None = None,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    bias: Array | float | None = None,
    residual: Array | None = None,
    gamma: float = 1.0,
    activation: Operations | None = None,
    epilogue: Operations | None = None,
    operands: Mapping[str, Array | float] | None = None,
    saved: Literal["auto", "store", "recompute"] = "auto",
    scale_a: Array | float | None = None,
    scale_b: Array | float | None = None,
    scale_out: Array | None = None,
    amax: Array | None = None,
    output: str | None = None,
    precision: Literal["f32", "ffma", "tf32", "int8x14", "int8x15"] = "f32",
    batch_invariant: bool = False,
    triangles: Mapping[str, str] | None = None,
    stream: Stream | None = None,
    backend: Literal["auto", "emulator"] = "auto",
) -> ArrayT:
    """Product of matrices with an epilogue, in float32 (in float64 for float64 factors), with shapes by NumPy's rules for ``matmul``:
    scale_out activation(alpha scale_a scale_b a b + beta out + bias + gamma residual).

    With ``alpha`` 0, a and b are not read; with ``beta`` 0, out is not.

    Parameters
    ----------
    a
        Left factor (..., m, k), stored in rows or in columns: float32, float16 or bfloat16; 8-bit integers (from sm_80 on) or
        8-bit floats (from sm_89 on), if ``b`` has such a type, too; or float64 (from sm_80 on) with a ``b`` of float64 and only
        ``out``, ``alpha`` and ``beta``. Factors of complex64 or complex128, of which one may be real, are multiplied by four real products
        on the current stream; ``alpha`` and ``beta`` may then be complex. Views that are transposed, sliced or broadcast along the batch
        are read in place; others are copied first. Tensor cores multiply all types but float32 from sm_80 on, and float16 and 8-bit
        integers from sm_75 on. Products on Hopper GPUs are fastest if a and b are aligned to 16 bytes and, for 8-bit types, a is stored in
        rows and b in columns. A vector is a row.
    b
        Right factor (..., k, n), stored like ``a``, or ``Planes`` of it; a vector is a column. Or a ``Weight`` of 4 or 8 bits;
        then ``a`` (m, k) is float16 or bfloat16, or of 8 bits beside a weight for such, and only ``out``, ``bias``, ``activation``,
        ``output``, ``stream`` and, beside activations of 8 bits, an array ``scale_a`` may be given. With a ``SparseWeight``, whose type
        ``a`` must have, ``scale_a`` may not be given.
        Or a ``Constant``, a matrix that earlier work in the stream does not write, such as weights: on Hopper GPUs, the product copies its
        first tiles before it waits for that work.
    out
        Array that receives the result; by default a new one.
    alpha, beta, gamma
        Factors of the product, of ``out`` and of ``residual``.
    bias
        A number, (n,) values (one for each column) or (m, 1) values (one for each row), of the result's type, or float32 if the result has
        integers or 8-bit floats.
    residual
        An array of the result's shape and type.
    activation
        ``relu``, ``leaky_relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``sigmoid``, ``tanh``, or a mapping as in a spec's epilogue,
        ``{"op": "clamp", "high": 6.0}``, or several of them.
    epilogue
        A formula as in a spec, the result of ``gemmgen.epilogue``, or several operations, in place of bias, residual, activation and
        scales, for matrices or batches of them.
    operands
        The operands and further outputs of ``epilogue`` by name.
    saved
        If torch records gradients of an ``epilogue`` that reads the product: ``store`` keeps the product for the backward pass,
        ``recompute`` multiplies again, ``auto`` decides by k.
    scale_a, scale_b, scale_out
        Float32 arrays of one element, which the kernel reads if they are on the GPU; ``scale_a`` also of (m, 1), one for each row,
        ``scale_b`` of (1, n), one for each column. ``scale_a`` and ``scale_b`` may be numbers, which are multiplied into ``alpha``.
        8-bit floats on Hopper GPUs also take a scale for each 128 values of k, float32 or float8_e8m0fnu: ``scale_a`` of
        (m, ceil(k / 128)) or (ceil(m / 128), ceil(k / 128)), ``scale_b`` of (ceil(k / 128), n) or (ceil(k / 128), ceil(n / 128)), as
        ``quantize`` makes them.
    amax
        Float32 of one element, at least 0. The kernel raises it to the largest absolute value of the result before ``scale_out`` and before
        rounding. Only for products on tensor cores.
    output
        The type of a new result, such as ``"int8"`` or ``"bfloat16"``. The default is the type of ``a`` and ``b``, or float32 if they
        differ. For 8-bit integers it is int32, or float32 with ``alpha``, scales, a bias, a residual or an activation. For 8-bit floats
        it is bfloat16.
    precision
        For float32 factors, ``f32`` selects the faster of multiply-adds and products by planes on tensor cores, whose error bound is no
        larger; ``ffma`` selects multiply-adds; ``tf32`` also allows factors cut to 11 bits, as
        ``torch.set_float32_matmul_precision("high")`` does. For float64 matrices on Hopper GPUs, ``int8x14`` and ``int8x15`` compute the
        result from 14 or 15 products of 8-bit integers, within the error bound of float64 multiply-adds; only ``out``, ``alpha``,
        ``beta`` and ``stream`` may be given (docs/formats.md).
    batch_invariant
        True: a row of the result has the same bits for every number of rows. The choice is the fastest instance of one numeric class, which
        adds products in one order (docs/classes.md).
    triangles
        Triangular matrices: ``{"c": "lower"}`` or ``"upper"`` computes the elements on one side of the diagonal, and on it, with about
        half of the work, and leaves the rest of ``out`` as it is; ``{"c": "mirrored"}`` stores those below the diagonal above it as well,
        for a product that is symmetric, such as ``matmul(a, a.T)``. ``{"a": "lower"}``, or ``"upper"``, or ``"b"``: the factor holds zeros
        on the other side, which most kernels skip. Goes with ``out``, ``alpha``, ``beta``, ``bias``, ``residual``, ``activation`` and
        ``output`` (docs/formats.md).
    stream
        The CUDA stream, as for ``Kernel``.
    backend
        ``auto``: a kernel for the processor multiplies float32 arrays in host memory if there is a C compiler; the emulator multiplies all
        other arrays in host memory. ``emulator``: the emulator multiplies them all, slowly and with the bits of a GPU.

    Returns
    -------
    ArrayT
        ``out``, or a new array of a's library.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    plain = (
        a.__class__ is b.__class__ is numpy_array()
        and (out is None or out.__class__ is a.__class__)
        and (bias is None and residual is None and activation is None and epilogue is None and operands is None)
        and (scale_a is None and scale_b is None and scale_out is None and amax is None and output is None and stream is None)
        and alpha.__class__ is beta.__class__ is gamma.__class__ is float
        and alpha == gamma == 1.0
        and beta == 0.0
        and precision.__class__ is str
        and backend.__class__ is str
        and precision == "f32"
        and backend == "auto"
        and batch_invariant is False
        and triangles is None
    )
    if plain:
        product: ArrayT | None = PLAIN.product(a, b, out)
        if product is not None:
            return product
    word("matmul", "precision", precision, ("f32", *PRECISIONS, *BY_INTEGERS))
    word("matmul", "backend", backend, ("auto", "emulator"))
    constant = isinstance(b, Constant)
    if isinstance(b, Constant):
        b = b.source
    parts = None if triangles is None else _checked_triangles(triangles)
    if parts is not None and (
        isinstance(b, Planes | Weight | SparseWeight) or is_complex(a) or is_complex(b) or precision in BY_INTEGERS or epilogue is not None
    ):
        raise LaunchError("matmul: triangles go with plain factors and without epilogue; use bias, residual and activation")
    if is_complex(a) or is_complex(b):
        unwanted = (bias, residual, activation, epilogue, operands, scale_a, scale_b, scale_out, amax, output)
        if any(one is not None for one in unwanted) or (gamma, batch_invariant, stream) != (1, False, None):
            raise LaunchError("matmul: complex factors allow only out, alpha, beta, precision and backend")
        if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(a, b)):
            raise LaunchError("matmul: complex factors have no derivatives and do not work inside torch.compile")
        joined: ArrayT = multiply_complex(partial(matmul, precision=precision, backend=backend), a, b, out, alpha, beta)
        return joined
    if precision in BY_INTEGERS:
        unwanted = (bias, residual, activation, epilogue, operands, scale_a, scale_b, scale_out, amax, output)
        if any(one is not None for one in unwanted) or (gamma, batch_invariant, backend) != (1, False, "auto"):
            raise LaunchError(f"matmul: precision {precision} allows only out, alpha, beta and stream")
        if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(a, b)):
            raise LaunchError(f"matmul: precision {precision} has no derivatives and does not work inside torch.compile")
        if not is_deep(a):
            factors = number("matmul", "alpha", alpha), number("matmul", "beta", beta)
            multiplied: ArrayT = multiply_scaled(a, b, precision, out, factors, stream)
            return multiplied
        precision = "f32"
    if isinstance(b, Weight | SparseWeight):
        scaled = scale_a is not None and isinstance(b, Weight) and not is_plain_number(scale_a)
        beside = (residual, epilogue, operands, None if scaled else scale_a, scale_b, scale_out, amax)
        if any(one is not None for one in beside) or (alpha, beta, precision, batch_invariant, backend) != (1, 0, "f32", False, "auto"):
            more = "an array scale_a, " if isinstance(b, Weight) else ""
            raise LaunchError(f"matmul: a {type(b).__name__} goes with {more}out, bias, activation, output and stream alone")
        named = None if activation is None else hashable(activation)
        if isinstance(b, Weight):
            scales = None if isinstance(scale_a, int | float) else scale_a
            return b.multiply(a, out=out, bias=bias, activation=named, output=output, scale_a=scales, stream=stream)
        return b.multiply(a, out=out, bias=bias, activation=named, output=output, stream=stream)
    if epilogue is not None:
        others = {"bias": bias, "residual": residual, "activation": activation, "scale_a": scale_a, "scale_b": scale_b, "amax": amax}
        refuse_beside_epilogue("matmul", others | {"scale_out": scale_out})
        if batch_invariant or Planes in (a.__class__, b.__class__):
            raise LaunchError("matmul: an epilogue does not go together with batch_invariant or with Planes")
        from gemmgen.ops.formulas import finished

        factors = number("matmul", "alpha", alpha), number("matmul", "beta", beta)
        choices = {"precision": precision, "backend": backend, "output": output, "constant": constant}
        if saved not in ("auto", "store", "recompute"):
            raise LaunchError(f"matmul: saved is {saved!r}, need auto, store or recompute")
        operands = by_name("matmul", operands)
        if torch_state.compiling is not None and torch_state.recording(a, b, *operands.values()):
            if out is not None or factors[1] != 0 or stream is not None:
                raise LaunchError("matmul: where torch records gradients, an epilogue makes its result: no out, beta or stream")
            from gemmgen.ops.torch_formulas import recorded

            return recorded("matmul", a, b, hashable(epilogue), operands, factors[0], choices, saved)
        return finished("matmul", {"a": a, "b": b}, hashable(epilogue), operands, out, factors, choices, stream)
    if operands is not None:
        raise LaunchError("matmul: operands without epilogue, need the formula that reads them")
    if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(a, b, bias, residual)):
        b = b.source if b.__class__ is Planes else b
        output, alpha, scale_a, scale_b = numbers_as_factors(a, alpha, scale_a, scale_b, output)
        return torch_state.by_operator(
            "matmul",
            (a, b, bias, residual, alpha, gamma, activation or "", scale_a, scale_b, scale_out, output or "", precision),
            beta == 0
            and out is None
            and amax is None
            and stream is None
            and not batch_invariant
            and parts is None
            and (activation is None or isinstance(activation, str))  # the tracer does not see through the class of a text
            and backend == "auto"
            and not isinstance(bias, Real),
        )
    alpha = alpha if alpha.__class__ is float else number("matmul", "alpha", alpha)
    scaled = alpha != 1
    if scale_a is not None and is_plain_number(scale_a):
        scale_a, alpha, scaled = None, number("matmul", "alpha", alpha) * number("matmul", "scale_a", scale_a), True
    if scale_b is not None and is_plain_number(scale_b):
        scale_b, alpha, scaled = None, number("matmul", "alpha", alpha) * number("matmul", "scale_b", scale_b), True
    added = 0.0
    bias_number = bias is not None and is_plain_number(bias)
    if bias_number:
        bias, added = None, number("matmul", "bias", bias)
    if activation.__class__ is not str and activation is not None:
        activation = hashable(activation)
    if backend not in ("auto", "emulator"):
        raise LaunchError(f"matmul: backend is {backend!r}, need 'auto' or 'emulator'")
    if residual is not None and out is not None and scale_a is scale_b is scale_out is None and same_place(residual, out):
        # Read before it is written, as beta times out is.
        residual, beta = None, number("matmul", "beta", beta) + number("matmul", "gamma", gamma)
    planes = None
    if isinstance(a, Planes):
        raise LaunchError("matmul: a is Planes, which are of a right factor; give the array itself, or the transposed product")
    if isinstance(b, Planes):
        planes = None if precision == "ffma" else b.array(backend == "emulator", stream)
        b = b.source
    beta = beta if beta.__class__ is float else number("matmul", "beta", beta)
    options = (scaled, beta != 0, bias_number, activation, precision, backend, output, batch_invariant, constant, parts)
    if not are_floats(alpha, beta, gamma):
        alpha, beta, gamma = number("matmul", "alpha", alpha), number("matmul", "beta", beta), number("matmul", "gamma", gamma)
    arrays = (a, b, bias, residual, scale_a, scale_b, scale_out, planes, amax, out)
    result: ArrayT = OPERATOR.call(arrays, options, (alpha, beta, gamma, added), stream)[0]
    if plain:
        PLAIN.remember(a, b, out, OPERATOR.known_on_numpy(arrays, options))
    return result


def _checked_triangles(given: Mapping[str, str]) -> Triangles:
    """Triangular matrices as a request has them."""
    sides: dict[str, tuple[str, ...]] = {"a": ("lower", "upper"), "b": ("lower", "upper"), "c": ("lower", "upper", "mirrored")}
    if not isinstance(given, Mapping) or any(str(given[name]) not in sides.get(name, ()) for name in given):
        need = "a mapping of a and b to 'lower' or 'upper', and of c to 'lower', 'upper' or 'mirrored'"
        raise LaunchError(f"matmul: triangles is {given!r}, need {need}")
    return Triangles.model_validate(dict(given))
