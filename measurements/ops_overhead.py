"""Host time of a call of gemmgen.ops after the first, beside torch's and CuPy's own operations, in microseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cupy
import torch

from gemmgen import ops
from gemmgen.layouts import nchw_to_nchw32

CALLS, ROUNDS = 100, 200


class Exported:
    """A tensor that only DLPack can read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        """The tensor's capsule."""
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """The tensor's device."""
        return self.tensor.__dlpack_device__()


def exports(*arrays: Exported) -> list[Any]:
    """Cost of the protocol alone."""
    return [array.__dlpack__(stream=1, max_version=(1, 0)) for array in arrays]


def microseconds(call: Callable[[], Any]) -> float:
    """Least mean time of a batch of calls that the device keeps up with, or nearly."""
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - started) / CALLS)
    torch.cuda.synchronize()
    return best * 1e6


def main() -> None:
    """Prints one line for each call."""
    a, b, bias = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda"), torch.randn(64, device="cuda")
    deep_a, deep_b = torch.randn(128, 4096, device="cuda"), torch.randn(4096, 128, device="cuda")
    out, x = torch.empty(64, 64, device="cuda"), torch.randn(1 << 14, device="cuda")
    image = nchw_to_nchw32(torch.randint(-8, 8, (1, 64, 8, 8), dtype=torch.int8, device="cuda"))
    weights = ops.Filter(torch.randint(-8, 8, (64, 64, 1, 1), dtype=torch.int8, device="cuda"))
    cupy_a, cupy_b, cupy_out, cupy_x = (cupy.from_dlpack(tensor) for tensor in (a, b, out, x))
    plain_a, plain_b, plain_out = (Exported(tensor) for tensor in (a, b, out))
    pairs: list[tuple[str, Callable[[], Any], Callable[[], Any] | None]] = [
        ("matmul", lambda: ops.matmul(a, b), lambda: torch.matmul(a, b)),
        ("matmul, out=", lambda: ops.matmul(a, b, out=out), lambda: torch.matmul(a, b, out=out)),
        ("matmul, bias, relu", lambda: ops.matmul(a, b, bias=bias, activation="relu"), lambda: torch.addmm(bias, a, b).relu_()),
        ("matmul 128x128x4096", lambda: ops.matmul(deep_a, deep_b), lambda: torch.matmul(deep_a, deep_b)),
        ("matmul, torch.ops", lambda: torch.ops.gemmgen.matmul(a, b), lambda: torch.matmul(a, b)),
        ("reduce", lambda: ops.reduce(x), lambda: torch.sum(x)),
        ("reduce rows", lambda: ops.reduce(a, "sum", 1), lambda: torch.sum(a, 1)),
        ("conv2d", lambda: ops.conv2d(image, weights, alpha=0.1), None),
        ("CuPy, matmul", lambda: ops.matmul(cupy_a, cupy_b), lambda: cupy_a @ cupy_b),
        ("CuPy, matmul, out=", lambda: ops.matmul(cupy_a, cupy_b, out=cupy_out), lambda: cupy.matmul(cupy_a, cupy_b, out=cupy_out)),
        ("CuPy, reduce", lambda: ops.reduce(cupy_x), lambda: cupy_x.sum()),
        ("DLPack, matmul, out=", lambda: ops.matmul(plain_a, plain_b, out=plain_out), lambda: exports(plain_a, plain_b, plain_out)),
    ]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: host time of a call, µs")
    for name, own, peer in pairs:
        beside = f"   the library's own {microseconds(peer):6.2f}" if peer else ""
        print(f"{name:<22}{microseconds(own):6.2f}{beside}")


if __name__ == "__main__":
    ops.register_torch()
    main()
