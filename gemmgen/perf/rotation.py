"""Device memory for a benchmark: several sets of the same arrays, so that no launch finds its inputs in the L2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import ELEMENTS, numpy_type, to_elements, to_numbers
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.runtime.arrays.views import ArrayView
from gemmgen.runtime.backend import BASE_ALIGNMENT
from gemmgen.runtime.cuda.driver import CudaError, call, release

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_ROTATION = 2048
"""Sets at most. Problems so small that more would be needed stay in the L2 in part."""

_POOL_ELEMENTS = 1 << 22


class Rotation:
    """``count`` sets of device arrays for one problem, in one plain allocation of the current context."""

    def __init__(
        self,
        cleanup: ExitStack,
        arguments: Iterable[ArrayArgument],
        dimensions: Mapping[str, int],
        ordinal: int,
        rotate_bytes: int,
    ) -> None:
        """Makes as many sets as it takes for their inputs to exceed ``rotate_bytes``, and one at least.

        Raises ``LaunchError`` if the device lacks that much memory.
        """
        self._ordinal = ordinal
        self.arguments = tuple(argument for argument in arguments if argument.role != "workspace")
        self._layouts = {argument.name: _view(argument, dimensions, 0, ordinal) for argument in self.arguments}
        self._offsets: dict[str, int] = {}
        size = 0
        for name, view in self._layouts.items():
            self._offsets[name] = size
            size += round_up(view.span()[1], BASE_ALIGNMENT)
        inputs = sum(self._layouts[argument.name].span()[1] for argument in self.arguments if argument.reads)
        self.count = min(max(1, ceil_div(rotate_bytes, max(inputs, 1))), MAX_ROTATION)
        self.input_bytes = inputs * self.count
        """Bytes of the inputs of all sets."""
        self._set_bytes = max(size, BASE_ALIGNMENT)
        total = self._set_bytes * self.count
        try:
            self._base = int(call("cuMemAlloc", total))
        except CudaError as error:
            free = call("cuMemGetInfo")
            raise LaunchError(f"the problem needs {total} bytes of device memory ({error}; free: {free})") from None
        cleanup.callback(release, "cuMemFree", self._base)

    def views(self, index: int) -> dict[str, ArrayView]:
        """The arrays of one set."""
        start = self._base + index * self._set_bytes
        return {
            name: ArrayView(start + self._offsets[name], view.shape, view.strides, view.type, view.device)
            for name, view in self._layouts.items()
        }

    def pointers(self, index: int) -> dict[str, int]:
        """The addresses of the arrays of one set."""
        return {name: view.pointer for name, view in self.views(index).items()}

    def fill_random(self, rng: np.random.Generator) -> None:
        """Fills every byte of every set: normally distributed floats, integers over the range of small types."""
        pools = {kind: _random_pool(kind, rng) for kind in {argument.type for argument in self.arguments}}
        for index in range(self.count):
            for argument in self.arguments:
                view = self.views(index)[argument.name]
                pool = pools[argument.type]
                position, done, size = int(rng.integers(pool.size)) * pool.itemsize, 0, view.span()[1]
                while done < size:
                    part = min(size - done, pool.nbytes - position)
                    call("cuMemcpyHtoD", view.pointer + done, pool.ctypes.data + position, part)
                    done, position = done + part, 0

    def upload(self, index: int, name: str, values: npt.NDArray[Any]) -> None:
        """Fills one array with ``values``, of its shape."""
        storage, elements = self._host(name)
        elements[...] = to_elements(self._layouts[name].type, values)
        if storage.nbytes:
            call("cuMemcpyHtoD", self.views(index)[name].pointer, storage.ctypes.data, storage.nbytes)

    def poison(self, index: int, name: str) -> None:
        """Fills one array with NaN, or -1 if its type is an integer."""
        size = self._layouts[name].span()[1]
        if size:
            call("cuMemsetD8", self.views(index)[name].pointer, 0xFF, size)

    def download(self, index: int, name: str) -> npt.NDArray[Any]:
        """The elements of one array, as numbers that NumPy knows."""
        storage, elements = self._host(name)
        if storage.nbytes:
            call("cuMemcpyDtoH", storage.ctypes.data, self.views(index)[name].pointer, storage.nbytes)
        return to_numbers(self._layouts[name].type, elements)

    def torch_tensors(self, index: int, torch: object) -> dict[str, object]:
        """The arrays of one set as torch tensors on the same memory."""
        return {name: _torch_tensor(view, torch) for name, view in self.views(index).items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one array."""
        return self._layouts[name].shape

    def _host(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Host memory for one array, and the array within it."""
        import numpy as np

        view = self._layouts[name]
        storage = np.zeros(view.span()[1] // ELEMENTS[view.type].bytes, numpy_type(view.type))
        strides = [stride * storage.itemsize for stride in view.strides]
        return storage, np.lib.stride_tricks.as_strided(storage, view.shape, strides)


def _view(argument: ArrayArgument, dimensions: Mapping[str, int], pointer: int, ordinal: int) -> ArrayView:
    return ArrayView(
        pointer,
        tuple(extent.evaluate(dimensions) for extent in argument.shape),
        tuple(stride.evaluate(dimensions) for stride in argument.strides),
        argument.type,
        ("cuda", ordinal),
    )


def _random_pool(kind: str, rng: np.random.Generator) -> npt.NDArray[Any]:
    import numpy as np

    if ELEMENTS[kind].is_float:
        return to_elements(kind, rng.standard_normal(_POOL_ELEMENTS, np.float32))
    low, high = ELEMENTS[kind].limits
    return rng.integers(int(max(low, -1000)), int(min(high, 999)) + 1, _POOL_ELEMENTS).astype(numpy_type(kind))


def _torch_tensor(view: ArrayView, torch: Any) -> Any:
    element = ELEMENTS[view.type]
    item = element.bytes
    interface = {
        "version": 3,
        "shape": view.shape,
        "strides": tuple(stride * item for stride in view.strides),
        "typestr": f"<i{item}" if element.holder != element.word else element.typestr,
        "data": (view.pointer, False),
    }
    holder = type("DeviceMemory", (), {"__cuda_array_interface__": interface})()
    tensor = torch.as_tensor(holder, device=f"cuda:{view.device[1]}")
    return tensor if element.holder == element.word else tensor.view(getattr(torch, element.word))
