"""Results for arrays of JAX, which nothing may change: a launch writes into fresh memory that becomes a JAX array when it is done."""

from __future__ import annotations

import sys
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError


def is_jax(array: object) -> bool:
    """True if it is an array of JAX or a tracer of its transformations; JAX is not imported for this."""
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def check_given(operation: str, arrays: dict[str, object], written: tuple[str, ...]) -> None:
    """Raises ``LaunchError`` for tracers, and for JAX arrays that the operation is asked to write to."""
    for name, array in arrays.items():
        if is_jax(array) and isinstance(array, sys.modules["jax"].core.Tracer):
            raise LaunchError(
                f"{operation}: {name} is an array that JAX traces. Call gemmgen.ops outside of jax.jit, jax.grad and jax.vmap; inside of "
                "them, call the package that `gemmgen export --format jax` makes"
            )
        if name in written and is_jax(array):
            raise LaunchError(f"{operation}: {name} is an array of JAX, which cannot be changed; use the result instead")


def new_result(like: Any, shape: tuple[int, ...], kind: str, truth: bool) -> Any:
    """Memory for a result on the device of ``like``: a NumPy array on the processor, else a JAX array that nothing else holds.

    Raises ``LaunchError`` for types that JAX does not have as it is configured.
    """
    import numpy as np

    jax = sys.modules["jax"]
    element = jax.numpy.dtype("bool" if truth else ELEMENTS[kind].word)
    if jax.dtypes.canonicalize_dtype(element) != element:
        raise LaunchError(f"the result has elements {element}, which JAX has only with jax.config.update('jax_enable_x64', True)")
    (device,) = like.devices()
    if device.platform == "cpu":
        return np.empty(shape, element)
    made = jax.device_put(np.empty(shape, element), device) if not shape else jax.numpy.empty(shape, element, device=device)
    return made.block_until_ready()


def finished(like: Any, result: object) -> Any:
    """A result as an array of JAX on the device of ``like``, after its launch."""
    if is_jax(result):
        return result
    jax = sys.modules["jax"]
    (device,) = like.devices()
    return jax.device_put(result, device)
