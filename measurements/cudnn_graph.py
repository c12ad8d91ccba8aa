"""Convolutions by cuDNN's graph API, called through ctypes: every engine and every configuration that its heuristics propose.

``plans`` builds the graph alpha * conv(x, w), for integers with bias and ReLU after it, for arrays in NHWC. Numbers are those of cuDNN 9's
headers. A configuration that cuDNN refuses to finalise is left out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gemmgen.kernels.conv2d.cudnn import Cudnn, CudnnError

POINTWISE, CONVOLUTION, ENGINE, ENGINE_CONFIG, HEURISTICS, PLAN = 0, 1, 2, 3, 4, 5
CONVOLUTION_FORWARD, POINTWISE_OPERATION, GRAPH, VARIANT_PACK, TENSOR = 10, 13, 15, 16, 17
"""Kinds of descriptors (``cudnnBackendDescriptorType_t``)."""
HANDLE, DATA_TYPE, BOOLEAN, INT64, FLOAT, POINTER, MODE, HEURISTIC, POINTWISE_MODE, DESCRIPTOR = 0, 1, 2, 3, 4, 6, 7, 8, 14, 15
"""Types of attributes (``cudnnBackendAttributeType_t``)."""
FLOAT32, FLOAT16, INT8, INT32, BFLOAT16 = 0, 2, 3, 4, 9
ADD, MULTIPLY, RELU = 0, 1, 100
CROSS_CORRELATION = 1
BY_MEASURES, BY_NETWORK, FALLBACK = 3, 1, 2
"""Modes of the heuristics: A, B and the fallback."""
MAX_OF_A_MODE = 8

_C_TYPES: dict[int, Any] = {
    HANDLE: ctypes.c_void_p,
    DATA_TYPE: ctypes.c_int,
    BOOLEAN: ctypes.c_bool,
    INT64: ctypes.c_int64,
    FLOAT: ctypes.c_float,
    POINTER: ctypes.c_void_p,
    MODE: ctypes.c_int,
    HEURISTIC: ctypes.c_int,
    POINTWISE_MODE: ctypes.c_int,
    DESCRIPTOR: ctypes.c_void_p,
}


@dataclass(frozen=True)
class Layer:
    """One convolution: extents, one stride and one padding for both axes, elements as cuDNN numbers them."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int
    padding: int
    groups: int
    element: int

    @property
    def pixels(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        return (
            (self.h + 2 * self.padding - self.r) // self.stride + 1,
            (self.w + 2 * self.padding - self.s) // self.stride + 1,
        )


class GraphApi:
    """The calls of cuDNN's graph API on one handle."""

    def __init__(self, stream: int) -> None:
        self.cudnn = Cudnn(stream)
        library = self.cudnn._library
        library.cudnnBackendSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p]
        pointer = ctypes.POINTER(ctypes.c_int64)
        library.cudnnBackendGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, pointer, ctypes.c_void_p]
        library.cudnnBackendFinalize.argtypes = [ctypes.c_void_p]
        library.cudnnBackendExecute.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

    def descriptor(self, kind: int, *attributes: tuple[int, int, Sequence[Any]], final: bool = True) -> int:
        """A descriptor with attributes (name, type, values), finalised. Raises ``CudnnError``."""
        made = ctypes.c_void_p()
        self.cudnn.call("cudnnBackendCreateDescriptor", kind, ctypes.byref(made))
        for name, of, values in attributes:
            array = (_C_TYPES[of] * len(values))(*values)
            self.cudnn.call("cudnnBackendSetAttribute", made, name, of, len(values), array)
        if final:
            self.cudnn.call("cudnnBackendFinalize", made)
        return int(made.value or 0)

    def number(self, descriptor: int, name: int) -> int:
        """An attribute that is one integer of 64 bits."""
        value, count = ctypes.c_int64(), ctypes.c_int64()
        self.cudnn.call("cudnnBackendGetAttribute", descriptor, name, INT64, 1, ctypes.byref(count), ctypes.byref(value))
        return value.value

    def tensor(self, name: int, element: int, extents: Sequence[int], virtual: bool = False) -> int:
        """A tensor of (n, c, h, w) extents whose c lies last in memory."""
        n, c, h, w = extents
        return self.descriptor(
            TENSOR,
            (901, DATA_TYPE, [element]),
            (902, INT64, [n, c, h, w]),
            (903, INT64, [h * w * c, 1, w * c, c]),
            (906, INT64, [name]),
            (900, INT64, [16]),
            (907, BOOLEAN, [virtual]),
        )

    def pointwise(self, mode: int, x: int, y: int, other: int | None = None) -> int:
        """One operation on elements, in float32."""
        of = self.descriptor(POINTWISE, (0, POINTWISE_MODE, [mode]), (1, DATA_TYPE, [FLOAT32]))
        operands = [(750, DESCRIPTOR, [of]), (751, DESCRIPTOR, [x]), (753, DESCRIPTOR, [y])]
        return self.descriptor(POINTWISE_OPERATION, *operands, *([(752, DESCRIPTOR, [other])] if other is not None else []))

    def graph(self, layer: Layer, form: str) -> int:
        """The graph of a layer. ``form``: ``plain``, or for integers ``scaled`` (alpha as a product of its own), ``inside`` (alpha in the
        convolution) and ``integers`` (as ``scaled``, the sums int32 between). Tensors: 1 x, 2 w, 3 y, 4 bias, 5 alpha."""
        p, q = layer.pixels
        last = (layer.n, layer.k, p, q)
        integers = layer.element == INT8
        x = self.tensor(1, layer.element, (layer.n, layer.c, layer.h, layer.w))
        w = self.tensor(2, layer.element, (layer.k, layer.c // layer.groups, layer.r, layer.s))
        y = self.tensor(3, layer.element, last)
        convolution = self.descriptor(
            CONVOLUTION,
            (100, DATA_TYPE, [INT32 if integers else FLOAT32]),
            (101, MODE, [CROSS_CORRELATION]),
            (102, INT64, [1, 1]),
            (103, INT64, [layer.stride] * 2),
            (104, INT64, [layer.padding] * 2),
            (105, INT64, [layer.padding] * 2),
            (106, INT64, [2]),
        )
        sums = y if form == "plain" else self.tensor(10, INT32 if form == "integers" else FLOAT32, last, True)
        alpha = ALPHA if form == "inside" else 1.0
        operations = [
            self.descriptor(
                CONVOLUTION_FORWARD,
                (704, DESCRIPTOR, [x]),
                (703, DESCRIPTOR, [w]),
                (705, DESCRIPTOR, [sums]),
                (702, DESCRIPTOR, [convolution]),
                (700, FLOAT, [alpha]),
                (701, FLOAT, [0.0]),
            )
        ]
        if form != "plain":
            if form != "inside":
                scaled = self.tensor(11, FLOAT32, last, True)
                operations.append(self.pointwise(MULTIPLY, sums, scaled, self.tensor(5, FLOAT32, (1, 1, 1, 1))))
                sums = scaled
            biased = self.tensor(12, FLOAT32, last, True)
            operations.append(self.pointwise(ADD, sums, biased, self.tensor(4, FLOAT32, (1, layer.k, 1, 1))))
            operations.append(self.pointwise(RELU, biased, y))
        return self.descriptor(GRAPH, (801, DESCRIPTOR, operations), (800, HANDLE, [self.cudnn.handle.value]))

    def proposed(self, graph: int, mode: int) -> list[int]:
        """Configurations that the heuristics propose in one mode."""
        heuristics = self.descriptor(HEURISTICS, (201, DESCRIPTOR, [graph]), (200, HEURISTIC, [mode]))
        count = ctypes.c_int64()
        self.cudnn.call("cudnnBackendGetAttribute", heuristics, 202, DESCRIPTOR, 0, ctypes.byref(count), None)
        wanted = min(count.value, MAX_OF_A_MODE)
        found = [self.descriptor(ENGINE_CONFIG, final=False) for _ in range(wanted)]
        array = (ctypes.c_void_p * wanted)(*found)
        self.cudnn.call("cudnnBackendGetAttribute", heuristics, 202, DESCRIPTOR, wanted, ctypes.byref(count), array)
        return [int(one) for one in array if one][: count.value]

    def configurations(self, graph: int) -> Iterator[tuple[str, int]]:
        """Proposals of all modes, then every engine with the settings that it has by default."""
        for mode, word in ((BY_MEASURES, "a"), (BY_NETWORK, "b"), (FALLBACK, "fallback")):
            try:
                proposals = self.proposed(graph, mode)
            except CudnnError:
                continue
            yield from ((f"{word}{index}", one) for index, one in enumerate(proposals))
        for engine in range(self.number(graph, 802)):
            try:
                made = self.descriptor(ENGINE, (1300, DESCRIPTOR, [graph]), (1301, INT64, [engine]))
                yield f"engine{engine}", self.descriptor(ENGINE_CONFIG, (300, DESCRIPTOR, [made]))
            except CudnnError:
                continue

    def plan(self, configuration: int) -> tuple[int, int]:
        """The plan of a configuration, and the bytes of its workspace. Raises ``CudnnError``."""
        made = self.descriptor(PLAN, (400, HANDLE, [self.cudnn.handle.value]), (401, DESCRIPTOR, [configuration]))
        return made, self.number(made, 402)

    def launch(self, plan: int, tensors: dict[int, int], workspace: int) -> Callable[[int], None]:
        """A call of a plan on addresses, on the stream that is given."""
        names, places = list(tensors), list(tensors.values())
        pack = self.descriptor(VARIANT_PACK, (1000, INT64, names), (1001, POINTER, places), (1003, POINTER, [workspace]))

        def run(stream: int) -> None:
            self.cudnn.use(stream)
            self.cudnn.call("cudnnBackendExecute", self.cudnn.handle, plan, pack)

        return run


ALPHA = 2.0**-9
"""Factor of the sums of integers, and the number that tensor 5 holds."""
FORMS = {INT8: ("inside", "scaled", "integers")}


def plans(api: GraphApi, layer: Layer, until: Callable[[], bool]) -> Iterator[tuple[str, int, int]]:
    """Name, plan and workspace of every plan that cuDNN makes, until the time is over."""
    for form in FORMS.get(layer.element, ("plain",)):
        try:
            graph = api.graph(layer, form)
        except CudnnError:
            continue
        for name, configuration in api.configurations(graph):
            if until():
                return
            try:
                plan, workspace = api.plan(configuration)
            except CudnnError:
                continue
            yield f"{form}/{name}", plan, workspace
