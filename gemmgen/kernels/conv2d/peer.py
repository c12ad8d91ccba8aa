"""cuDNN beside a convolution instance: the fastest of its layouts and algorithms on the same data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from gemmgen.kernels.conv2d.cudnn import ALGORITHMS, Cudnn, CudnnError
from gemmgen.kernels.conv2d.layouts import (
    CHANNELS,
    nchw32_to_nchw,
    nchw32_to_nhwc,
    nchw_to_nchw32,
    nhwc_to_nchw32,
    reorder_filter,
    restore_filter,
)
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.family import Peer
from gemmgen.kernels.vendor import milliseconds, on_any_set

RESULTS = {"s8": ("s8", "f32"), "f16": ("f16",), "bf16": ("bf16",)}
"""Types of results that cuDNN has for those of x."""


@dataclass(frozen=True)
class Way:
    """One way in which cuDNN computes a layer."""

    layout: Literal["NHWC", "NCHW32"]
    algorithm: str
    """Algorithm of the fused call; ``torch``: the engine that torch finds fastest."""

    @property
    def name(self) -> str:
        """For reports."""
        return "cuDNN (torch)" if self.algorithm == "torch" else f"cuDNN {self.layout} {self.algorithm}"


_FASTEST: dict[object, Way] = {}
"""The fastest way by layer, of those that were asked for."""


def cudnn_peer(plan: FinishingPlan, problem: Mapping[str, int], arrays: Mapping[str, object], scalars: Mapping[str, float]) -> Peer | str:
    """cuDNN on torch tensors, in the fastest way that it has; why there is none, else. Arrays that it wants in another layout are
    converted here, and results when they are delivered, so that neither is timed."""
    if lacking := _lacking(plan.spec):
        return lacking
    layer = Layer(plan, problem, arrays, scalars)
    try:
        if layer.key in _FASTEST:
            return layer.peer(_FASTEST[layer.key])
        peers, refusals = layer.peers()
    except OSError as error:
        return f"cuDNN is not installed: {error}"
    if not peers:
        return f"cuDNN does not compute this layer: {refusals[0]}"
    times = {way: milliseconds(on_any_set(peer)) for way, peer in peers.items()}
    _FASTEST[layer.key] = min(times, key=lambda way: times[way])
    return peers[_FASTEST[layer.key]]


def _lacking(spec: Conv2dSpec) -> str:
    """Features of a spec that cuDNN's fused convolution lacks; empty if none."""
    if spec.alpha == "channel":
        return "cuDNN's convolution has one alpha for all output channels"
    if spec.zero_point != "none":
        return "cuDNN's convolution has no zero point"
    if spec.epilogue or spec.activation.op not in ("none", "relu"):
        return "cuDNN's convolution has no operation behind it but ReLU"
    if spec.output.type not in RESULTS.get(spec.input.type, ()):
        return f"cuDNN has no convolution of {spec.input.type} with results in {spec.output.type}"
    if spec.output.layout == "nchw4":
        return "cuDNN's int8 convolution writes no NCHW4"
    return ""


@dataclass(frozen=True)
class LayoutArrays:
    """x, the filter, y and the residual, if there is one, in one of cuDNN's layouts."""

    x: Any
    filter: Any
    y: Any
    z: Any | None


class Layer:
    """One layer on the torch tensors of one set."""

    def __init__(self, plan: FinishingPlan, problem: Mapping[str, int], arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        import torch

        spec: Conv2dSpec = plan.spec
        self._spec, self._problem, self._arrays = spec, problem, arrays
        self._alpha, self._gamma = scalars.get("alpha", 1.0), scalars.get("gamma", 1.0) if spec.residual else 0.0
        self.key = (tuple(sorted(problem.items())), spec.input, spec.output, spec.activation.op, spec.residual)
        y, bias = arrays["y"], arrays.get("bias")
        wanted = torch.float32 if spec.input.type == "s8" else y.dtype
        none = torch.zeros(problem["k"], dtype=wanted, device=y.device)
        self._bias = none if bias is None else (scalars.get("beta", 1.0) * bias).to(wanted)
        arranged = restore_filter(arrays["filter"], plan.filter_order)
        self._filter = (arranged if len(arranged.shape) == 4 else nchw32_to_nchw(arranged))[: problem["k"]]

    def ways(self) -> list[Way]:
        """Ways that may compute the layer; cuDNN refuses some when asked."""
        all_ways = [Way("NHWC", algorithm) for algorithm in ALGORITHMS]
        whole = all(self._problem[name] % CHANNELS == 0 for name in "ck") and self._problem["groups"] == 1
        if self._spec.input.type == self._spec.output.type == "s8" and whole:
            all_ways += [Way("NCHW32", algorithm) for algorithm in ALGORITHMS]
        return all_ways if self._spec.input.type == "s8" else [*all_ways, Way("NHWC", "torch")]

    def peers(self) -> tuple[dict[Way, Peer], list[str]]:
        """All engines that compute the layer, and cuDNN's reasons against the others. Raises ``OSError`` if there is no cuDNN."""
        by_way: dict[Way, Peer] = {}
        refusals: list[str] = []
        for way in self.ways():
            try:
                by_way[way] = self.peer(way)
            except CudnnError as error:
                refusals.append(f"{way.name}: {error}")
        return by_way, refusals

    def peer(self, way: Way) -> Peer:
        """The layer computed in one way, once already. Raises ``CudnnError`` if cuDNN does not, ``OSError`` if there is no cuDNN."""
        data = self._converted(way.layout)
        peer = self._by_torch(way, data) if way.algorithm == "torch" else self._fused(way, data)
        peer.run()
        return peer

    def _converted(self, layout: str) -> LayoutArrays:
        convert = nchw32_to_nhwc if layout == "NHWC" else nhwc_to_nchw32

        def of(name: str, own: str) -> Any:
            array = self._arrays.get(name)
            return array if array is None or own == layout.lower() else convert(array)

        output = self._spec.output.layout
        filter = reorder_filter(self._filter, "rows") if layout == "NHWC" else nchw_to_nchw32(self._filter)
        return LayoutArrays(of("x", self._spec.input.layout), filter, of("y", output), of("z", output))

    def _fused(self, way: Way, data: LayoutArrays) -> Peer:
        import torch

        library = _library(data.x.device.index)
        workspaces: list[Any] = []

        def allocate(size: int) -> int:
            workspaces.append(torch.empty(size, dtype=torch.int8, device=data.x.device))
            return int(workspaces[-1].data_ptr())

        library.use(torch.cuda.current_stream().cuda_stream)
        vectorised = way.layout == "NCHW32"
        launch = library.convolution(
            self._problem,
            algorithm=way.algorithm,
            allocate=allocate,
            alpha=self._alpha,
            gamma=self._gamma,
            types=(self._spec.input.type, self._spec.output.type),
            relu=self._spec.activation.op == "relu",
            vectorised=vectorised,
        )
        filter, bias = data.filter, self._bias
        if vectorised:
            filter, bias = torch.empty_like(filter), torch.empty_like(bias)
            library.reorder(self._problem, data.filter.data_ptr(), filter.data_ptr(), self._bias.data_ptr(), bias.data_ptr())
        operands = (data.x, filter, bias, data.y, *(() if data.z is None else (data.z,)))
        held = (operands, workspaces)  # as long as the graph that replays the launch

        def run() -> None:
            library.use(torch.cuda.current_stream().cuda_stream)
            launch(*(array.data_ptr() for array in held[0]))

        y = self._arrays["y"]
        back = nhwc_to_nchw32 if way.layout == "NHWC" else nchw32_to_nhwc
        return Peer(way.name, run, None if data.y is y else lambda: y.copy_(back(data.y)))

    def _by_torch(self, way: Way, data: LayoutArrays) -> Peer:
        import torch

        x, filter = data.x.permute(0, 3, 1, 2), (self._alpha * self._filter).contiguous(memory_format=torch.channels_last)
        z = None if data.z is None else data.z.permute(0, 3, 1, 2)
        pairs = [[self._problem[f"{name}_h"], self._problem[f"{name}_w"]] for name in ("stride", "padding", "dilation")]
        common = (self._bias, *pairs, self._problem["groups"])
        relu = self._spec.activation.op == "relu"
        results: list[Any] = [None]

        def run() -> None:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                if relu and z is not None:
                    results[0] = torch.cudnn_convolution_add_relu(x, filter, z, self._gamma, *common)
                elif relu:
                    results[0] = torch.cudnn_convolution_relu(x, filter, *common)
                else:
                    results[0] = torch.nn.functional.conv2d(x, filter, *common)
                    if z is not None:
                        results[0].add_(z, alpha=self._gamma)

        return Peer(way.name, run, lambda: self._arrays["y"].copy_(results[0].permute(0, 2, 3, 1)))


@cache
def _library(device: int) -> Cudnn:
    import torch

    with torch.cuda.device(device):
        return Cudnn(torch.cuda.current_stream().cuda_stream)
