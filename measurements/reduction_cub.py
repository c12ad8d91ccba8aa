"""CUB's sum as a function of the driver's handles, built by nvcc in the background."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any


class Cub:
    """The library made from ``reduction_cub.cu``, beside this file."""

    def __init__(self, library: Path) -> None:
        source = Path(__file__).with_name("reduction_cub.cu")
        self._library, self._build = library, None
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            command = ["nvcc", "-O3", "-std=c++17", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(source)]
            self._build = subprocess.Popen(command)

    def wait(self) -> None:
        """Until the library is there."""
        if self._build is not None and self._build.wait() != 0:
            raise RuntimeError("nvcc could not build reduction_cub.cu")

    def load(self) -> None:
        """Finds the function."""
        self.wait()
        self._sum = ctypes.CDLL(str(self._library)).cub_sum
        self._sum.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
        ]

    def workspace(self, size: int) -> Any:
        """Memory for a sum of ``size`` elements, as a torch tensor."""
        import torch

        needed = ctypes.c_size_t(0)
        self._checked(self._sum(None, ctypes.byref(needed), None, None, size, None))
        return torch.empty(max(1, needed.value), dtype=torch.uint8, device="cuda")

    def enqueue(self, workspace: Any, x: int, y: int, size: int, stream: int) -> None:
        """Puts one sum on a stream."""
        needed = ctypes.c_size_t(workspace.numel())
        self._checked(self._sum(workspace.data_ptr(), ctypes.byref(needed), x, y, size, stream))

    @staticmethod
    def _checked(code: int) -> None:
        if code:
            raise RuntimeError(f"CUB failed with CUDA error {code}")
