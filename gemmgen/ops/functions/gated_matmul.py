"""``gemmgen.ops.gated_matmul``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import Operations, by_name, word
from gemmgen.kernels.epilogue.options import hashable
from gemmgen.ops import torch_state
from gemmgen.ops.engine import with_kernel
from gemmgen.ops.formulas import finished
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream

GATES = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")
"""Activations of the first of two products."""


@with_kernel
def gated_matmul(
    a: ArrayT,
    b_gate: Array,
    b_up: Array,
    *,
    activation: str = "silu",
    epilogue: Operations | None = None,
    operands: Mapping[str, Array | float] | None = None,
    out: Array | None = None,
    output: str | None = None,
    stream: Stream | None = None,
    backend: Literal["auto", "emulator"] = "auto",
) -> ArrayT:
    """Two products in one launch, activation(a b_gate) * (a b_up): SwiGLU, and with other activations GEGLU and ReGLU.

    Tensors that require gradients are refused.

    Parameters
    ----------
    a
        Rows (..., m, k), of the types of ``matmul``.
    b_gate, b_up
        Matrices (k, n) of one type, stored alike.
    activation
        ``silu``, ``gelu``, ``gelu_tanh``, ``relu``, ``sigmoid`` or ``tanh``.
    epilogue
        A formula in its place, which names the products ``acc`` and ``acc2``.
    operands
        The operands and further outputs of ``epilogue`` by name.
    out, output, stream, backend
        As for ``matmul``.

    Returns
    -------
    ArrayT
        ``out``, or a new array of a's library.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if epilogue is None:
        if not isinstance(activation, str) or activation not in GATES:
            raise LaunchError(f"gated_matmul: activation is {activation!r}, need one of {', '.join(GATES)}, or an epilogue")
        epilogue = {"value": f"{activation}(acc) * acc2"}
    operands = by_name("gated_matmul", operands)
    if torch_state.compiling is not None and torch_state.recording(a, b_gate, b_up, *operands.values()):
        raise LaunchError("gated_matmul: it has no derivative: detach the tensors, or call matmul for each product")
    word("gated_matmul", "backend", backend, ("auto", "emulator"))
    factors = {"a": a, "b_gate": b_gate, "b_up": b_up}
    choices = {"backend": backend, "output": output}
    return finished("gated_matmul", factors, hashable(epilogue), operands, out, (1.0, 0.0), choices, stream)
