"""Convolutions of one tap: where the images lie without gaps, a product of their pixels and the filters, if that takes less time.

Instances of products have tiles of many more sizes, and clusters that share both factors: on an H200, 7 images of 744 x 26 x 20 with 384
filters are read from the L2 a third less often.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gemmgen.dispatch.devices import gpu_device
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import Device
from gemmgen.ops.arrays import is_torch, library_of
from gemmgen.ops.engine import ASKED
from gemmgen.ops.filters import Filter

REMEMBERED = 4096
"""Layers of which it is remembered how they are made."""
TYPES = {"float16": "f16", "bfloat16": "bf16"}


def product(
    x: Any, weights: Filter, bias: Any, residual: Any, out: Any, activation: object, alpha: float, gamma: float, stream: Any
) -> Any | None:
    """The convolution with stride 1 of images (n, h, w, c) by filters of one tap, as a product; None if it is none, or if the convolution
    is expected to take less time. With ``ASKED`` as a stream, the kernel of the product."""
    kind = TYPES.get(str(x.dtype).removeprefix("torch."))
    device = gpu_of(x)
    given = [x, *(array for array in (residual, out) if array is not None)]
    whole = kind is not None and device is not None and all(map(is_whole, given)) and not (residual is not None and out is not None)
    if not whole or weights.key[1:] != (str(x.dtype), str(x.device)) or x.shape[3] != weights.shape[1] or activation not in (None, "relu"):
        return None
    if bias is not None and getattr(bias, "dtype", None) != x.dtype:
        return None
    n, h, w, c = map(int, x.shape)
    k = weights.shape[0]
    if not n * h * w * c * k or not is_faster((n, h, w, c), k, str(kind), device):
        return None
    from gemmgen.ops.functions.matmul import matmul

    multiply: Callable[..., Any] = matmul
    rows: Any = weights.ordered("rows")
    found = multiply(
        x.reshape(n * h * w, c),
        rows.reshape(k, c).T,
        bias=bias,
        residual=None if residual is None else residual.reshape(n * h * w, k),
        activation=activation,
        alpha=alpha,
        gamma=gamma,
        out=None if out is None else out.reshape(n * h * w, k),
        stream=stream,
    )
    if stream is ASKED:
        return found
    return found.reshape(n, h, w, k) if out is None else out


def gpu_of(x: Any) -> Device | None:
    """The GPU that an array of torch or CuPy lies on."""
    if is_torch(x):
        return gpu_device(x.get_device()) if x.is_cuda else None
    return gpu_device(int(x.device.id)) if library_of(x) == "cupy" else None


def is_whole(array: Any) -> bool:
    """True if the array lies without gaps, its last axis innermost."""
    return bool(array.is_contiguous() if is_torch(array) else array.flags.c_contiguous)


@lru_cache(REMEMBERED)
def is_faster(images: tuple[int, int, int, int], filters: int, kind: str, device: Device) -> bool:
    """True if, on a device with the instructions that both families are tuned for, the product of (n h w, c) by the filters is expected to
    take less time than the convolution of ``images`` (n, h, w, c)."""
    if not device.architecture.supports("wgmma"):
        return False
    n, h, w, c = images
    product, convolution = (
        choose(parse_problem(problem), device).chosen
        for problem in (f"gemm:{n * h * w},{filters},{c},nt,{kind}", f"conv2d:{n},{c},{h},{w},{filters},1,1,1,0,{kind}")
    )
    return product.seconds < convolution.seconds
