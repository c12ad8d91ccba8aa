"""Products of two of NumPy's arrays with nothing else, once a call has prepared them: as little as Python has to do for one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from gemmgen.ops.arrays import NO_MEMORY, address_reader
from gemmgen.ops.engine import ASKED
from gemmgen.ops.first_products import FirstProducts
from gemmgen.ops.numpy_products import numpy_products

if TYPE_CHECKING:
    from gemmgen.ops.engine import Call

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_KNOWN = 8192
"""Combinations of layouts that are remembered."""
FLOAT_BYTES = 4


class PlainProducts:
    """Remembered products, by the layouts of the arrays."""

    def __init__(self) -> None:
        self._known: dict[Any, Callable[[Any, Any, Any], Any]] = {}
        self.at_once: Callable[[Any, Any], Any] | None = None
        """The product of two matrices, a new array; None where that is not known."""
        self.array: type | None = None
        """The class of NumPy's arrays once there is ``at_once``."""
        self.first: FirstProducts | None = None
        """``at_once`` before another product was made."""

    def product(self, a: Any, b: Any, out: Any) -> Any:
        """The product; None where nothing is remembered for such arrays, or something is to be said against them."""
        layouts = a.shape, b.shape, a.strides, b.strides, a.dtype, b.dtype
        known = self._known.get(layouts if out is None else (*layouts, out.shape, out.strides, out.dtype))
        return None if known is None else known(a, b, out)

    def remember(self, a: Any, b: Any, out: Any, call: Call | None) -> None:
        """Has later products of such arrays go by ``call``, where it is one function of the processor that reads them in place."""
        if call is None or call.native is None or call.copies or call.orders:
            return
        arguments = call.native.plain_arguments()
        if arguments is None or any(stride < 0 for array in (a, b) for stride in array.strides):
            return
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        layouts = a.shape, b.shape, a.strides, b.strides, a.dtype, b.dtype
        self._known[layouts if out is None else (*layouts, out.shape, out.strides, out.dtype)] = _prepared(call, arguments, a, b, out)
        products = numpy_products() if out is None and a.ndim == b.ndim == 2 else None
        if products is not None:
            products.remember(a, b, call.native.served.address, *arguments)
            self.at_once, self.array = products.multiply, a.__class__


PLAIN = PlainProducts()


def plain_first(function: Function) -> Function:
    """``function``, but products of two arrays and nothing else are made by ``PLAIN`` where it knows them: it takes Python longer to fill
    in the defaults of all options than to make a small product."""

    def prepare(a: object, b: object) -> None:
        function(a, b, stream=ASKED)
        numpy_products()

    if "numpy" in sys.modules:
        PLAIN.first = PLAIN.at_once = FirstProducts(prepare)
        PLAIN.array = sys.modules["numpy"].ndarray

    @wraps(function)
    def product(a: object, b: object, **options: object) -> Any:
        if not options and a.__class__ is PLAIN.array:
            assert PLAIN.at_once is not None
            result = PLAIN.at_once(a, b)
            if result is not None:
                return result
        return function(a, b, **options)

    return product  # type: ignore[return-value]


def _prepared(
    call: Call, arguments: tuple[list[Any], dict[str, int]], like_a: object, like_b: object, like_out: object
) -> Callable[[Any, Any, Any], Any]:
    """The product by a function whose ``arguments`` are all there, but for the addresses at these places."""
    values, places = arguments
    at_a, at_b, at_out = places["a"], places["b"], places["out"]
    assert call.native is not None
    served, address, empty = call.native.served, address_reader(), sys.modules["numpy"].empty
    ((shape, kind),) = call.templates
    bytes_a, bytes_b, bytes_out = _span(like_a), _span(like_b), 0 if like_out is None else _span(like_out)

    def product(a: object, b: object, out: Any) -> Any:
        from_a, from_b = address(a), address(b)
        if out is None:
            out = empty(shape, kind)
            to = address(out)
        else:
            to = address(out)
            end = to + bytes_out
            if not out.flags.writeable or (from_a < end and to < from_a + bytes_a) or (from_b < end and to < from_b + bytes_b):
                return None
        if (from_a | from_b | to) % FLOAT_BYTES:
            return None
        given = values.copy()
        given[at_a], given[at_b], given[at_out] = from_a, from_b, to
        if served.function(*given) != 0:
            raise MemoryError(NO_MEMORY)
        return out

    return product


def _span(array: Any) -> int:
    """Bytes from the first element to behind the last, along strides that are not negative."""
    places: list[tuple[int, int]] = list(zip(array.shape, array.strides, strict=True))
    return FLOAT_BYTES + sum((extent - 1) * stride for extent, stride in places)
