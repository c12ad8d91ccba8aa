"""cuDNN's int8 convolution with bias and ReLU, called through ctypes: NHWC, and NCHW_VECT_C in blocks of 32 channels."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NCHW, NHWC, NCHW_VECT_C = 0, 1, 2
FLOAT, INT8, INT32, INT8X32 = 0, 3, 4, 8
CROSS_CORRELATION = 1
TENSOR_OP_MATH = 1
DEFAULT_REORDER, NO_REORDER = 0, 1
RELU = 1
ALGORITHMS = {"implicit_precomp_gemm": 1, "implicit_gemm": 0}


class CudnnError(Exception):
    """A call of cuDNN failed; the message names it."""


def _library() -> ctypes.CDLL:
    """cuDNN from the wheel that torch brings, or from the system."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    found = [file for place in places for file in sorted(place.glob("cudnn/lib/libcudnn.so.9*"))]
    return ctypes.CDLL(str(found[0]) if found else "libcudnn.so.9", mode=ctypes.RTLD_GLOBAL)


class Cudnn:
    """A handle on one stream."""

    def __init__(self, stream: int) -> None:
        self._library = _library()
        self._library.cudnnGetErrorString.restype = ctypes.c_char_p
        self._library.cudnnGetVersion.restype = ctypes.c_size_t
        self.handle = ctypes.c_void_p()
        self.call("cudnnCreate", ctypes.byref(self.handle))
        self.call("cudnnSetStream", self.handle, ctypes.c_void_p(stream))

    @property
    def version(self) -> int:
        """As cuDNN counts: 91900 is 9.19.0."""
        return int(self._library.cudnnGetVersion())

    def call(self, name: str, *arguments: Any) -> None:
        """Calls one function and checks its status."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudnnError(f"{name}: {self._library.cudnnGetErrorString(status).decode()}")

    def close(self) -> None:
        """Gives the handle back."""
        self.call("cudnnDestroy", self.handle)

    def _create(self, kind: str) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self.call(f"cudnnCreate{kind}Descriptor", ctypes.byref(descriptor))
        return descriptor

    def convolution(
        self,
        problem: Mapping[str, int],
        *,
        vectorised: bool,
        algorithm: str,
        reorder: int,
        allocate: Callable[[int], int],
        alpha: float,
    ) -> Callable[[int, int, int, int], None]:
        """relu(alpha * convolution + bias) as a callable on the pointers of x, filter, bias and y.

        ``allocate`` returns device memory for the workspace. Raises ``CudnnError`` if cuDNN does not offer it.
        """
        n, c, h, w, k, r, s, p, q = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q"))
        layout, kind = (NCHW_VECT_C, INT8X32) if vectorised else (NHWC, INT8)
        x, y, bias = (self._create("Tensor") for _ in range(3))
        filter, convolution, activation = self._create("Filter"), self._create("Convolution"), self._create("Activation")
        self.call("cudnnSetTensor4dDescriptor", x, layout, kind, n, c, h, w)
        self.call("cudnnSetTensor4dDescriptor", y, layout, kind, n, k, p, q)
        self.call("cudnnSetTensor4dDescriptor", bias, NCHW, FLOAT, 1, k, 1, 1)
        self.call("cudnnSetFilter4dDescriptor", filter, kind, layout, k, c, r, s)
        self.call(
            "cudnnSetConvolution2dDescriptor", convolution, problem["padding_h"], problem["padding_w"], problem["stride_h"],
            problem["stride_w"], problem["dilation_h"], problem["dilation_w"], CROSS_CORRELATION, INT32,
        )  # fmt: skip
        self.call("cudnnSetConvolutionMathType", convolution, TENSOR_OP_MATH)
        if vectorised:
            self.call("cudnnSetConvolutionReorderType", convolution, reorder)
        self.call("cudnnSetActivationDescriptor", activation, RELU, 0, ctypes.c_double(0.0))
        number = ALGORITHMS[algorithm]
        size = ctypes.c_size_t()
        self.call("cudnnGetConvolutionForwardWorkspaceSize", self.handle, x, filter, convolution, y, number, ctypes.byref(size))
        workspace = ctypes.c_void_p(allocate(size.value) if size.value else None)
        one, zero = ctypes.c_float(alpha), ctypes.c_float(0.0)

        def launch(x_at: int, filter_at: int, bias_at: int, y_at: int) -> None:
            target = ctypes.c_void_p(y_at)
            self.call(
                "cudnnConvolutionBiasActivationForward", self.handle, ctypes.byref(one), x, ctypes.c_void_p(x_at), filter,
                ctypes.c_void_p(filter_at), convolution, number, workspace, size, ctypes.byref(zero), y, target, bias,
                ctypes.c_void_p(bias_at), activation, y, target,
            )  # fmt: skip

        return launch
