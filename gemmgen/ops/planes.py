"""Weights of float32 products, kept as the planes that tensor cores multiply."""

from __future__ import annotations

import sys
from typing import Any, cast

from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.core.resources import resource_directory
from gemmgen.dispatch.devices import gpu_device, host_device
from gemmgen.hardware.target import Device, Feature
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.request import is_stored
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.gemm.split_precision.kept import keeping_spec, planes_layout
from gemmgen.kernels.requests import Layout
from gemmgen.kernels.spec_files import load_spec
from gemmgen.ops.arrays import is_torch, layout_of, new_array, view_of
from gemmgen.runtime.arrays.protocols import Array, Stream
from gemmgen.runtime.arrays.views import LEGACY_STREAM
from gemmgen.runtime.kernel import Kernel, stream_handle
from gemmgen.toolchain.compilation import compile_plan

SPECS: tuple[tuple[Feature, str], ...] = (
    ("wgmma", "gemm/split_precision/f16x3.yaml/128x128"),
    ("cp_async", "gemm/split_precision/mma_sync.yaml/f16x3"),
)
"""Instances whose kernels split, each with the feature of an architecture that it needs; all make the same planes."""


class Planes:
    """A float32 matrix that several products have as their right factor, kept as planes that tensor cores multiply.

    Its planes are made once, at the first product that may use them, and kept: as many bytes again as the matrix has. Changes to the
    array after that are not seen: make new ``Planes``. Where multiply-adds are faster, they read the array itself. The product that
    makes them waits for them, so that later ones may use them on any stream; one that a CUDA graph captures makes none, and splits
    the array at every replay.

    Parameters
    ----------
    w
        NumPy, CuPy or torch: float32 (k, n), stored by rows or by columns.

    Raises
    ------
    LaunchError
        For other arrays.
    """

    def __init__(self, w: Array) -> None:
        view = view_of(w, "b", None)
        if len(view.shape) != 2 or view.type != "f32":
            raise LaunchError(f"matmul: planes are of float32 matrices (k, n); this is of {view.type}, shaped {view.shape}")
        self._layout: Layout = layout_of(view)
        if not (is_stored(self._layout, True) or is_stored(self._layout, False)):
            raise LaunchError(f"matmul: b has strides {view.strides} (elements) for shape {view.shape}; pass a contiguous copy")
        self.source: Any = w
        self._device = view.device
        self._made: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    def array(self, emulated: bool = False, stream: Stream | None = None) -> Array | None:
        """The planes, on the device of the matrix.

        Parameters
        ----------
        emulated
            Make planes of matrices in host memory, too.
        stream
            The stream of the product, as for ``Kernel``.

        Returns
        -------
        Array or None
            Bytes; None where no kernel takes planes.

        Raises
        ------
        LaunchError
            For an object that is no stream.
        """
        if self._layout.is_empty or (isinstance(self._device, str) and not emulated):
            return None
        if self._made is None:
            device = host_device() if isinstance(self._device, str) else gpu_device(self._device[1])
            spec_path = next((path for feature, path in SPECS if device.architecture.supports(feature)), None)
            if spec_path is None:
                return None
            ordinal = None if isinstance(self._device, str) else self._device[1]
            if ordinal is not None and _is_captured(self._stream(stream), ordinal):
                return None
            self._made = self._split(device, spec_path, ordinal, stream)
        return cast("Array", self._made)

    def _stream(self, stream: object) -> int:
        """The handle of the stream that a product by these planes runs on."""
        if stream is not None:
            return stream_handle(stream)
        if is_torch(self.source):
            return int(sys.modules["torch"].cuda.current_stream(self.source.device).cuda_stream) or LEGACY_STREAM
        return view_of(self.source, "b", None).producer_stream or LEGACY_STREAM

    def _split(self, device: Device, path: str, ordinal: int | None, stream: Any) -> Any:
        spec = load_spec(resource_directory("specs") / path)
        assert isinstance(spec, GemmSpec)
        plan = plan_gemm(keeping_spec(spec, self._layout), device.architecture)
        if plan.keeping is None:
            raise EnvironmentMissing(f"{plan.name} keeps no planes")
        made = new_array(self.source, planes_layout(self._layout).shape, "u8")
        made[...] = 0
        kernel = Kernel(plan.keeping, compile_plan(plan))
        if ordinal is None:
            kernel(B=self.source, planes_b=made)
            return made
        _wait_for(self._stream(None), ordinal)  # where the library of the array has set it to 0
        kernel(B=self.source, planes_b=made, stream=stream)
        _wait_for(self._stream(stream), ordinal)
        return made


def _wait_for(stream: int, ordinal: int) -> None:
    """Waits until the stream's work is done."""
    from gemmgen.runtime.cuda.driver import call, current_device

    with current_device(ordinal):
        call("cuStreamSynchronize", stream)


def _is_captured(stream: int, ordinal: int) -> bool:
    """True if a CUDA graph captures the stream's work; the legacy stream cannot be captured."""
    from gemmgen.runtime.cuda.driver import call, current_device

    if stream == LEGACY_STREAM:
        return False
    with current_device(ordinal):
        return int(call("cuStreamIsCapturing", stream)) != 0
