"""cuDNN's convolution with bias, residual and ReLU, called through ctypes: NHWC, and int8 in NCHW_VECT_C, blocks of 32 channels."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

NCHW, NHWC, NCHW_VECT_C = 0, 1, 2
INT32, INT8X32 = 4, 8
TYPES = {"f32": 0, "f16": 2, "s8": 3, "bf16": 9}
"""Element types by cuDNN's numbers (``cudnnDataType_t``)."""
CROSS_CORRELATION = 1
TENSOR_OP_MATH = 1
DEFAULT_REORDER, NO_REORDER = 0, 1
RELU, IDENTITY = 1, 5
ALGORITHMS = {"implicit_precomp_gemm": 1, "implicit_gemm": 0}

Launch = Callable[..., None]
"""Takes the addresses of x, the filter, the bias, y and, where there is one, the residual z."""


class CudnnError(Exception):
    """A failed call of cuDNN, by its name and cuDNN's message."""


def _library() -> ctypes.CDLL:
    """cuDNN from the wheel that torch brings, or from the system. Raises ``OSError`` where there is none."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    files = [file for place in places for file in sorted(place.glob("cudnn/lib/libcudnn.so.9*"))]
    return ctypes.CDLL(str(files[0]) if files else "libcudnn.so.9", mode=ctypes.RTLD_GLOBAL)


class Cudnn:
    """A handle on one stream of the current device. Raises ``OSError`` where cuDNN is not installed."""

    def __init__(self, stream: int) -> None:
        self._library = _library()
        self._library.cudnnGetErrorString.restype = ctypes.c_char_p
        self._library.cudnnGetVersion.restype = ctypes.c_size_t
        self.handle = ctypes.c_void_p()
        self.call("cudnnCreate", ctypes.byref(self.handle))
        self.use(stream)

    @property
    def version(self) -> int:
        """Version as cuDNN counts: 91900 is 9.19.0."""
        return int(self._library.cudnnGetVersion())

    def use(self, stream: int) -> None:
        """Enqueues on another stream from now on."""
        self.call("cudnnSetStream", self.handle, ctypes.c_void_p(stream))

    def call(self, name: str, *arguments: object) -> None:
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

    def reorder(self, problem: Mapping[str, int], filter_at: int, target: int, bias_at: int, bias_target: int) -> None:
        """The filter and the bias of a convolution in NCHW_VECT_C, in the order that its kernels read."""
        filter = self._create("Filter")
        self.call("cudnnSetFilter4dDescriptor", filter, INT8X32, NCHW_VECT_C, *(problem[name] for name in "kcrs"))
        addresses = [ctypes.c_void_p(address) for address in (filter_at, target, bias_at, bias_target)]
        self.call("cudnnReorderFilterAndBias", self.handle, filter, DEFAULT_REORDER, *addresses[:2], 1, *addresses[2:])

    def convolution(
        self,
        problem: Mapping[str, int],
        *,
        algorithm: str,
        allocate: Callable[[int], int],
        alpha: float,
        gamma: float = 0.0,
        types: tuple[str, str] = ("s8", "s8"),
        relu: bool = True,
        vectorised: bool = False,
        reorder: int = NO_REORDER,
    ) -> Launch:
        """activation(alpha * convolution + bias + gamma * z) as a callable on addresses.

        ``types``: of x and the filter, and of y and z; the bias is float32 for int8, else of y's type. ``vectorised``: all arrays in
        NCHW_VECT_C; ``reorder``: its filter is reordered in every call, or not at all. ``allocate`` returns device memory for the
        workspace. Raises ``CudnnError`` if cuDNN does not offer it.
        """
        n, c, h, w, k, r, s, p, q = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q"))
        kind, result = TYPES[types[0]], TYPES[types[1]]
        layout, kind, result = (NCHW_VECT_C, INT8X32, INT8X32) if vectorised else (NHWC, kind, result)
        integers = types[0] == "s8"
        x, y, bias = (self._create("Tensor") for _ in range(3))
        filter, convolution, activation = self._create("Filter"), self._create("Convolution"), self._create("Activation")
        self.call("cudnnSetTensor4dDescriptor", x, layout, kind, n, c, h, w)
        self.call("cudnnSetTensor4dDescriptor", y, layout, result, n, k, p, q)
        self.call("cudnnSetTensor4dDescriptor", bias, NCHW, TYPES["f32"] if integers else result, 1, k, 1, 1)
        self.call("cudnnSetFilter4dDescriptor", filter, kind, layout, k, c // problem["groups"], r, s)
        self.call(
            "cudnnSetConvolution2dDescriptor",
            convolution,
            problem["padding_h"],
            problem["padding_w"],
            problem["stride_h"],
            problem["stride_w"],
            problem["dilation_h"],
            problem["dilation_w"],
            CROSS_CORRELATION,
            INT32 if integers else TYPES["f32"],
        )
        self.call("cudnnSetConvolutionGroupCount", convolution, problem["groups"])
        self.call("cudnnSetConvolutionMathType", convolution, TENSOR_OP_MATH)
        if vectorised:
            self.call("cudnnSetConvolutionReorderType", convolution, reorder)
        self.call("cudnnSetActivationDescriptor", activation, RELU if relu else IDENTITY, 0, ctypes.c_double(0.0))
        number = ALGORITHMS[algorithm]
        size = ctypes.c_size_t()
        self.call("cudnnGetConvolutionForwardWorkspaceSize", self.handle, x, filter, convolution, y, number, ctypes.byref(size))
        workspace = ctypes.c_void_p(allocate(size.value) if size.value else None)
        of_sum, of_z = ctypes.c_float(alpha), ctypes.c_float(gamma)

        def launch(x_at: int, filter_at: int, bias_at: int, y_at: int, z_at: int | None = None) -> None:
            self.call(
                "cudnnConvolutionBiasActivationForward",
                self.handle,
                ctypes.byref(of_sum),
                x,
                ctypes.c_void_p(x_at),
                filter,
                ctypes.c_void_p(filter_at),
                convolution,
                number,
                workspace,
                size,
                ctypes.byref(of_z),
                y,
                ctypes.c_void_p(y_at if z_at is None else z_at),
                bias,
                ctypes.c_void_p(bias_at),
                activation,
                y,
                ctypes.c_void_p(y_at),
            )

        return launch
