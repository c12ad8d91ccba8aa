"""Calls of operations: the first of a kind chooses an instance, compiles and prepares it; the others only launch it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from gemmgen.core.errors import LaunchError
from gemmgen.dispatch.devices import gpu_device, host_device
from gemmgen.dispatch.matcher import matcher_of
from gemmgen.dispatch.selection import Choice, choose
from gemmgen.kernels import PROBLEM_KINDS, PROCESSOR
from gemmgen.kernels.family import InstancePlan, KernelPlan, KernelSpec
from gemmgen.kernels.requests import Copy, Interpretation, Layout
from gemmgen.ops.arrays import address_reader, alignment_of, array_type, copied, is_torch, layout_of, new_array, readable, view_of
from gemmgen.ops.background import Compilers, soonest
from gemmgen.ops.filters import Filter
from gemmgen.ops.group_ends import bounds_of_ends, check_ends, raise_reported
from gemmgen.ops.jax_arrays import check_given, finished, is_jax
from gemmgen.ops.operators import operator_called
from gemmgen.ops.tensor_signature import MAX_LIKENESSES, Likeness, likeness
from gemmgen.ops.torch_memory import captured_memory, current_stream, kept_memory, templates
from gemmgen.runtime.arrays.views import LEGACY_STREAM, ArrayView, Device, is_same, overlaps
from gemmgen.runtime.kernel import Kernel, stream_handle

if TYPE_CHECKING:
    from gemmgen.ops.native import NativeCall
    from gemmgen.runtime.cuda.driver import LoadedBinary
    from gemmgen.runtime.cuda.launcher import Launcher
    from gemmgen.runtime.cuda.workspaces import Allocate

CACHED_CALLS = 8192
"""Combinations of layouts and options for which an operation remembers its launch."""


ASKED: Any = object()
"""In the place of a stream: the caller asks for the kernel, and nothing is launched."""


def handle_of(stream: object) -> int | None:
    """The handle of the stream that a caller gave; None if it gave none. Raises ``LaunchError`` for objects that are no streams."""
    return None if stream is None or stream is ASKED else stream_handle(stream)


@dataclass(frozen=True)
class LaunchedKernel:
    """The kernel that a call launches."""

    plan: InstancePlan
    """For ``gemmgen.render``, ``compile``, ``verify``, and for exports."""
    choice: Choice | None
    """The choice that it came out of; None for a processor."""
    dimensions: Mapping[str, int]
    """Every dimension of the launch; empty for a processor."""

    @property
    def spec(self) -> KernelSpec:
        """The spec of the kernel, all numbers written out."""
        spec: KernelSpec = self.plan.spec
        return spec


Function = TypeVar("Function", bound=Callable[..., Any])


def with_kernel(function: Function) -> Function:
    """``function`` with an attribute ``kernel``: of the same arguments, the kernel that a call would launch, without launching it."""

    def kernel(*given: object, **named: object) -> LaunchedKernel:
        launched = function(*given, **{**named, "stream": ASKED})
        answer: LaunchedKernel = launched[0] if isinstance(launched, tuple) else launched
        return answer

    kernel.__doc__ = f"The kernel that ``{function.__name__}`` would launch for these arguments: its plan, its spec, the choice."
    function.kernel = kernel  # type: ignore[attr-defined]
    return function


class Call:
    """State shared by all calls with the same layouts and options."""

    __slots__ = (
        "apart",
        "best",
        "choice",
        "copies",
        "interpretation",
        "kernel",
        "launcher",
        "native",
        "orders",
        "ordinal",
        "spans",
        "templates",
    )

    def __init__(
        self,
        choice: Choice | None,
        interpretation: Interpretation,
        kernel: Kernel | None,
        spans: tuple[tuple[int, int], ...],
        orders: tuple[tuple[int, str], ...],
        native: NativeCall | None = None,
        copies: tuple[tuple[int, Copy], ...] = (),
    ) -> None:
        self.choice = choice
        self.interpretation = interpretation
        self.kernel = kernel
        self.native = native
        """The host processor's way to do it; there is then neither a choice nor a kernel."""
        self.spans = spans
        self.orders = orders
        """Arrays of the call that are read in an order of the instance's, and that order."""
        self.copies = copies
        """Arrays of the call that no instance can read in place, and the copies that are read instead."""
        self.ordinal = 0
        """The GPU."""
        self.templates: tuple[Any, ...] = ()
        """Templates from which the arrays' library makes each result fastest."""
        self.apart: list[int] = []
        """Addresses of arrays that were found not to overlap."""
        self.best: KernelPlan | None = None
        """Plan that a thread compiles while this call's serves."""
        self.launcher: Launcher | None = None
        """On a GPU: how it is launched."""


class Operator:
    """One operation on arrays of any library."""

    def __init__(
        self,
        name: str,
        operands: Sequence[str],
        results: Sequence[str],
        numbers: Sequence[str],
        options: Sequence[str],
        updated: Sequence[str] = (),
        required: int = 1,
        in_place: Sequence[str] = (),
    ) -> None:
        """Names in the order in which calls pass them, of arrays (``operands`` and ``results``), of ``numbers``, and of ``options``
        as ``interpret`` takes them; ``updated``: operands that are written, too; ``required``: number of leading operands that have to be
        given; ``in_place``: operands that a result may be, since each element is read before it is written."""
        self.name = name
        self._required = tuple(operands)[:required]
        self._updated = frozenset(updated)
        self._in_place = frozenset(in_place)
        self.operands, self.results, self.numbers, self.options = tuple(operands), tuple(results), tuple(numbers), tuple(options)
        self._arrays = (*self.operands, *self.results)
        self._calls: dict[Any, Call] = {}
        self._alike: dict[Any, tuple[tuple[Likeness, Call], ...]] = {}
        self._given = len(self.operands)
        self._renewal = Lock()
        """Held while calls are remembered, and while they are forgotten because something better is compiled."""

    def interpret(self, layouts: Mapping[str, Layout], options: Mapping[str, object]) -> Interpretation:
        """The request that a call makes, and its results; raises ``LaunchError``."""
        for name in self._required:
            if name not in layouts:
                raise LaunchError(f"{self.name}: {name} is None, need an array")
        return operator_called(self.name).interpret(layouts, options)

    def call(self, arrays: tuple[object, ...], options: tuple[object, ...], numbers: tuple[float, ...], stream: object) -> tuple[Any, ...]:
        """The results. ``arrays``: operands, then results or None; ``options``: the properties besides layouts that decide the instance,
        hashable. Raises ``LaunchError``."""
        if stream is ASKED:
            return (self._answer(self._readable(arrays), options),)
        first = arrays[0]
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(first, torch.Tensor):
            if first.is_cuda:
                return self._on_torch(torch, arrays, options, numbers, stream)
        elif first.__class__ is _cupy_array():
            return self._on_cupy(sys.modules["cupy"], arrays, options, numbers, stream)
        elif stream is None and first.__class__ is numpy_array():
            return self._on_numpy(arrays, options, numbers)
        return self._on_others(arrays, options, numbers, stream)

    def _answer(self, arrays: tuple[object, ...], options: tuple[object, ...]) -> LaunchedKernel:
        """The kernel that a call would launch."""
        call = self._prepare(arrays, options)
        if call.choice is None:
            assert call.native is not None
            return LaunchedKernel(call.native.plan, None, {})
        option = call.choice.chosen
        plan = option.plan if call.best is None else call.best
        return LaunchedKernel(plan, call.choice, option.dimensions)

    # In the next three every microsecond is one of each call: attributes are read once, and nothing is made that is not needed.

    def _on_torch(
        self, torch: Any, arrays: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...], stream: Any
    ) -> tuple[Any, ...]:
        tensors: list[Any] = []
        pointers: list[int] = []
        low = form = 0
        filter_key = None
        for array in arrays:
            form += form
            if array is None:
                pointers.append(0)
            elif array.__class__ is Filter:
                filter_key = array.key
                pointers.append(0)
            else:
                try:
                    pointer = array.data_ptr()
                except (AttributeError, RuntimeError):
                    return self._on_others(arrays, options, numbers, stream)
                tensors.append(array)
                pointers.append(pointer)
                low |= pointer
                form += 1
        call = None
        if not low & 15:
            try:
                for is_like, known in self._alike.get((options, form, filter_key, torch.is_grad_enabled()), ()):
                    if is_like(*tensors):
                        call = known
                        break
            except TypeError:  # options that cannot be looked up; said below
                pass
        if call is None:
            call = self._looked_up(torch, arrays, options, tensors)
            if call is None:
                return self._on_others(arrays, options, numbers, stream)
            if not low & 15:
                self._recognise(torch, (options, form, filter_key, torch.is_grad_enabled()), tensors, call)
        for index, order in call.orders:
            pointers[index] = arrays[index].ordered(order).data_ptr()
        given = self._given
        results = arrays[given:]
        if results[0] is None or results[-1] is None:
            results = tuple([torch.empty_like(like) for like in call.templates])
            pointers[given:] = [result.data_ptr() for result in results]
        elif call.apart != pointers:
            self._check_overlap(call, arrays, pointers)
        handle = (current_stream(torch)(call.ordinal) or LEGACY_STREAM) if stream is None else stream_handle(stream)
        if call.copies:
            copies = [copied(arrays[index], copy, handle) for index, copy in call.copies]
            pointers = list(pointers)
            for (index, _), array in zip(call.copies, copies, strict=True):
                pointers[index] = array.data_ptr()
        call.launcher.launch(handle, *pointers, *numbers)  # type: ignore[union-attr]
        return results

    def known_on_numpy(self, arrays: tuple[Any, ...], options: tuple[object, ...]) -> Call | None:
        """The call that serves these arrays of NumPy's; None if none was prepared."""
        address = address_reader()
        parts = (
            (array.shape, array.strides, array.dtype, array.flags.writeable, address(array) & 15) for array in arrays if array is not None
        )
        known = iter(parts)
        return self._known((options, *(None if array is None else next(known) for array in arrays)))

    def _looked_up(self, torch: Any, arrays: tuple[Any, ...], options: tuple[Any, ...], tensors: Sequence[Any]) -> Call | None:
        """The call for these tensors, prepared if it is the first; None if they are not all torch's."""
        parts: list[Any] = [options]
        try:
            for array in arrays:
                if array is None:
                    parts.append(None)
                elif array.__class__ is Filter:
                    parts.append(array.key)
                else:
                    place = array.get_device(), array.data_ptr() & 15
                    parts.append((array.shape, array.stride(), array.dtype, *place, array.is_neg()))
            differentiable = any(tensor.requires_grad for tensor in tensors)
        except (AttributeError, RuntimeError):
            return None
        if differentiable and torch.is_grad_enabled():
            raise LaunchError(f"{self.name}: an array requires gradients, which no kernel records; pass its detach()")
        key = tuple(parts)
        call = self._known(key)
        if call is None:
            call = self._prepare(arrays, options)
            call.ordinal = ordinal = arrays[0].get_device()
            self._prepare_launcher(call, ordinal, kept_memory(torch, ordinal), captured_memory(torch, ordinal))
            call.templates = templates(torch, call.interpretation.results, ordinal)
            self._remember(key, call)
        return call

    def _recognise(self, torch: object, form: object, tensors: Sequence[object], call: Call) -> None:
        """From now on, calls of this form with tensors like these are known without being looked up."""
        is_like = likeness(torch, tensors) if len(self._alike.get(form, ())) < MAX_LIKENESSES else None
        if is_like is None:
            return
        with self._renewal:
            if len(self._alike) >= CACHED_CALLS:
                self._alike.clear()
            if not _is_outdated(call):
                self._alike[form] = (*self._alike.get(form, ()), (is_like, call))

    def _on_cupy(
        self, cupy: Any, arrays: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...], stream: Any
    ) -> tuple[Any, ...]:
        parts: list[Any] = [options]
        pointers: list[int] = []
        kind, ordinal = cupy.ndarray, cupy.cuda.runtime.getDevice()
        for array in arrays:
            if array is None:
                parts.append(None)
                pointers.append(0)
            elif array.__class__ is Filter:
                parts.append(array.key)
                pointers.append(0)
            elif array.__class__ is kind and array.data.device_id == ordinal:
                pointer = array.data.ptr
                parts.append((array.shape, array.strides, array.dtype.num, ordinal, pointer & 15))
                pointers.append(pointer)
            else:
                return self._on_others(arrays, options, numbers, stream)
        key = tuple(parts)
        call = self._known(key)
        if call is None:
            call = self._prepare(arrays, options)
            self._prepare_launcher(call, ordinal)
            results = call.interpretation.results
            call.templates = tuple((result.shape, array_type(arrays[0], result.type, result.truth)) for result in results)
            self._remember(key, call)
        for index, order in call.orders:
            pointers[index] = arrays[index].ordered(order).data.ptr
        given = self._given
        results = arrays[given:]
        if results[0] is None or results[-1] is None:
            results = tuple([kind(shape, element) for shape, element in call.templates])
            pointers[given:] = [result.data.ptr for result in results]
        elif call.apart != pointers:
            self._check_overlap(call, arrays, pointers)
        handle = (cupy.cuda.get_current_stream().ptr or LEGACY_STREAM) if stream is None else stream_handle(stream)
        if call.copies:
            copies = [copied(arrays[index], copy, handle) for index, copy in call.copies]
            pointers = list(pointers)
            for (index, _), array in zip(call.copies, copies, strict=True):
                pointers[index] = array.data.ptr
        call.launcher.launch(handle, *pointers, *numbers)  # type: ignore[union-attr]
        return results

    def _on_numpy(self, arrays: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...]) -> tuple[Any, ...]:
        parts: list[Any] = [options]
        pointers: list[int] = []
        kind = arrays[0].__class__
        address = address_reader()
        for array in arrays:
            if array is None:
                parts.append(None)
                pointers.append(0)
            elif array.__class__ is kind:
                pointer = address(array)
                parts.append((array.shape, array.strides, array.dtype, array.flags.writeable, pointer & 15))
                pointers.append(pointer)
            else:
                return self._on_others(arrays, options, numbers, None)
        key = tuple(parts)
        call = self._known(key)
        if call is None:
            read = self._readable(arrays)
            if read is not arrays:
                return self._on_numpy(read, options, numbers)
            call = self._prepare(arrays, options)
            if call.native is not None:
                call.native.bind(self._arrays, self.numbers)
            results = call.interpretation.results
            call.templates = tuple((result.shape, array_type(arrays[0], result.type, result.truth)) for result in results)
            self._remember(key, call)
        native = call.native
        if native is None or call.copies:
            return self._on_others(arrays, options, numbers, None, call)
        given = self._given
        results = arrays[given:]
        if results[0] is None or results[-1] is None:
            empty = sys.modules["numpy"].empty
            results = tuple([empty(shape, element) for shape, element in call.templates])
            pointers[given:] = [address(result) for result in results]
        elif call.apart != pointers:
            self._check_overlap(call, arrays, pointers)
        native.call(pointers, numbers)
        return results

    def _on_others(
        self, arrays: tuple[Any, ...], options: tuple[object, ...], numbers: tuple[float, ...], stream: object, call: Call | None = None
    ) -> tuple[Any, ...]:
        """``call``: the remembered launch for these arrays, if any."""
        if call is None:
            arrays = self._readable(arrays)
        handle = None if stream is None else stream_handle(stream)
        if is_jax(arrays[0]):
            check_given(self.name, dict(zip(self._arrays, arrays, strict=True)), self._arrays[self._given :])
        elif handle is None and is_torch(arrays[0]) and arrays[0].is_cuda:
            handle = current_stream(sys.modules["torch"])(arrays[0].get_device()) or LEGACY_STREAM
        views = self._views(arrays, handle)
        if call is None:
            key = (options, *(None if view is None else (*view.layout, alignment_of(view.pointer)) for view in views))
            call = self._known(key)
        if call is None:
            call = self._prepare(arrays, options)
            device = arrays_device(views)
            if not isinstance(device, str):
                self._prepare_launcher(call, device[1])
            self._remember(key, call)
        if call.orders:
            orders = dict(call.orders)
            arrays = tuple(array.ordered(orders[index]) if index in orders else array for index, array in enumerate(arrays))
            views = self._views(arrays, handle)
        results = arrays[self._given :]
        if any(result is None for result in results):
            results = tuple(new_array(arrays[0], result.shape, result.type, result.truth) for result in call.interpretation.results)
            views = (*views[: self._given], *self._views((None,) * self._given + results, handle)[self._given :])
        elif call.launcher is not None or call.native is not None:
            pointers = [0 if view is None else view.pointer for view in views]
            if call.apart != pointers:
                self._check_overlap(call, arrays, pointers)
        if call.copies:
            replaced_arrays = list(arrays[: self._given]) + [None] * len(results)
            for index, copy in call.copies:
                replaced_arrays[index] = copied(arrays[index], copy, handle)
            views = (*self._views(replaced_arrays, handle)[: self._given], *views[self._given :])
        if call.native is not None:
            places = {name: 0 if view is None else view.pointer for name, view in zip(self._arrays, views, strict=True)}
            call.native(places, dict(zip(self.numbers, numbers, strict=True)))
        elif call.launcher is None:
            self._emulate(call, dict(zip(self._arrays, views, strict=True)), dict(zip(self.numbers, numbers, strict=True)))
        else:
            self._launch(call.launcher, views, numbers, handle)
        if is_jax(arrays[0]):
            if call.launcher is not None:
                from gemmgen.runtime.cuda.launcher import wait_on_host

                wait_on_host(call.launcher.ordinal, handle or LEGACY_STREAM)
                raise_reported(call.launcher.ordinal)
            return tuple(finished(arrays[0], result) for result in results)
        return results

    def _readable(self, arrays: tuple[object, ...]) -> tuple[Any, ...]:
        """The arrays, with copies of operands that kernels cannot read; the same tuple if there are none."""
        read = tuple(
            array if array is None or index >= self._given or self._arrays[index] in self._updated else readable(array)
            for index, array in enumerate(arrays)
        )
        return arrays if all(one is other for one, other in zip(read, arrays, strict=True)) else read

    def _views(self, arrays: Sequence[object], stream: int | None) -> tuple[ArrayView | None, ...]:
        views: list[ArrayView | None] = []
        for index, (name, array) in enumerate(zip(self._arrays, arrays, strict=True)):
            array = array.source if array.__class__ is Filter else array
            views.append(None if array is None else view_of(array, name, stream, written=index >= self._given or name in self._updated))
        if len({view.device for view in views if view is not None}) > 1:
            placed = ", ".join(f"{name} on {view.device}" for name, view in zip(self._arrays, views, strict=True) if view is not None)
            raise LaunchError(f"{self.name}: the arrays are on different devices: {placed}")
        return tuple(views)

    def _prepare(self, arrays: Sequence[object], options: tuple[object, ...]) -> Call:
        """Understands the arguments, chooses an instance and compiles it."""
        views = dict(zip(self._arrays, self._views(arrays, None), strict=True))
        layouts = {name: layout_of(view) for name, view in views.items() if view is not None}
        given = dict(zip(self.options, options, strict=True))
        interpretation = self.interpret(layouts, given)
        device = arrays_device(views.values())
        copies = tuple((self._arrays.index(copy.operand), copy) for copy in interpretation.copies)
        spans = tuple((0, 0) if view is None else view.span() for view in views.values())
        emulated = given.get("backend") == "emulator"
        if isinstance(device, str):
            if not emulated and interpretation.request.kind == PROBLEM_KINDS[PROCESSOR]:
                from gemmgen.ops.native import native_call

                native = native_call(interpretation.request)
                if native is not None:
                    return Call(None, interpretation, None, spans, (), native, copies)
        elif emulated:
            raise LaunchError(f"{self.name}: the emulator works on arrays in host memory, and these are on {device}")
        choice = choose(interpretation.request, host_device() if isinstance(device, str) else gpu_device(device[1]))
        best = choice.chosen.plan
        if _background:
            choice = self._meanwhile(choice)
        orders = matcher_of(choice.request.kind).operand_orders(choice.chosen.plan)
        placed = tuple((index, orders[name]) for index, name in enumerate(self._arrays) if name in orders)
        call = Call(choice, interpretation, compiled(choice.chosen.plan), spans, placed, copies=copies)
        if choice.chosen.plan is not best:
            call.best = best
            # Only after the fallback is compiled, because the compiler uses all CPU cores.
            compilers().submit(best, self._forget_outdated)
        return call

    def _meanwhile(self, choice: Choice) -> Choice:
        """The choice of the kernel that can serve soonest, if the best is not compiled."""
        if is_compiled(choice.chosen.plan):
            return choice
        return replace(choice, chosen=soonest(choice.options, is_held))

    def _forget_outdated(self) -> None:
        """Has calls prepared again for which something better is compiled now."""
        with self._renewal:
            self._calls = {key: call for key, call in self._calls.items() if not _is_outdated(call)}
            for form, known in list(self._alike.items()):
                self._alike[form] = tuple(pair for pair in known if not _is_outdated(pair[1]))

    def _known(self, key: Any) -> Call | None:
        try:
            return self._calls.get(key)
        except TypeError as error:
            raise LaunchError(f"{self.name}: {key[0]} contains a value that cannot be compared: {error}") from None

    def _remember(self, key: object, call: Call) -> None:
        with self._renewal:
            if len(self._calls) >= CACHED_CALLS:
                self._calls.clear()
            if not _is_outdated(call):
                self._calls[key] = call

    def _emulate(self, call: Call, views: Mapping[str, ArrayView | None], numbers: Mapping[str, float]) -> None:
        assert call.choice is not None
        option = call.choice.chosen
        arguments: dict[str, Any] = dict(option.fit.dimensions)
        shared = {array.name for array in option.plan.sequence.arrays if array.shares}
        for name, (operand, layout) in option.fit.arrays.items():
            view = views[operand]
            assert view is not None
            if name == "offsets":
                check_ends(self.name, bounds_of_ends(option), view)
            results = map(views.get, self.results)
            if name not in shared and any(other is not None and self._is_in_place(operand, other, view) for other in results):
                view = view.host_copy()
            arguments[name] = ArrayView(
                view.pointer, layout.shape, layout.strides, layout.type, view.device, view.read_only, view.producer_stream, view.owner
            )
        scalars = {scalar.name for scalar in option.plan.sequence.scalars}
        arguments |= {name: numbers[source] for name, source in option.fit.scalars.items() if name in scalars}
        assert call.kernel is not None
        call.kernel(**arguments)

    def _launch(self, launcher: Launcher, views: Sequence[ArrayView | None], numbers: Sequence[float], handle: int | None) -> None:
        """Launches on a stream that waits for all that the arrays' libraries enqueued; on theirs if no other was asked for."""
        producers = [view.producer_stream for view in views if view is not None and view.producer_stream is not None]
        if handle is None:
            handle = producers[0] if producers else LEGACY_STREAM
        waits = set(producers) - {handle}
        if waits and not launcher.is_empty:
            from gemmgen.runtime.cuda.launcher import wait_for

            wait_for(launcher.ordinal, handle, waits)
        launcher.launch(handle, *(0 if view is None else view.pointer for view in views), *numbers)

    def _prepare_launcher(self, call: Call, ordinal: int, kept: Allocate | None = None, captured: Allocate | None = None) -> None:
        """``kept``, ``captured``: make workspaces, as for ``Launcher``."""
        from gemmgen.runtime.cuda.launcher import Launcher
        from gemmgen.runtime.cuda.offsets import CheckedLauncher

        assert call.choice is not None
        option = call.choice.chosen
        sequence = option.plan.sequence
        known = {scalar.name for scalar in sequence.scalars}
        # An operand and a number of one name (a bias) are two slots.
        kinds = {option.fit.scalars[scalar.name]: scalar.type for scalar in sequence.scalars if scalar.name in option.fit.scalars}
        slots = [(f"{name}[]", "pointer") for name in self._arrays] + [(name, kinds.get(name, "f32")) for name in self.numbers]
        sources = {name: f"{operand}[]" for name, (operand, _) in option.fit.arrays.items()}
        sources |= {name: source for name, source in option.fit.scalars.items() if name in known}
        kind = CheckedLauncher if "offsets" in sources else Launcher
        call.launcher = kind.of_sequence(
            loaded(option.plan, ordinal), sequence, option.dimensions, slots, sources, kept, captured, option.early
        )
        if isinstance(call.launcher, CheckedLauncher):
            place = [name for name, _ in slots].index(sources["offsets"])
            call.launcher.check(place, bounds_of_ends(option), self.name)

    def _check_overlap(self, call: Call, arrays: Sequence[object], pointers: list[int]) -> None:
        """Raises ``LaunchError`` if a result that the caller gave has memory in common with another array, else remembers that."""
        placed = [(pointer + first, pointer + end) for pointer, (first, end) in zip(pointers, call.spans, strict=True)]
        for index in range(self._given, len(placed)):
            start, end = placed[index]
            for other in range(index):
                other_start, other_end = placed[other]
                if start < other_end and other_start < end and arrays[other] is not None:
                    one, two = (view_of(arrays[place], self._arrays[place], None) for place in (index, other))
                    if not self._is_in_place(self._arrays[other], one, two) and overlaps(one, two):
                        raise LaunchError(f"{self.name}: {self._arrays[index]} is written, but overlaps {self._arrays[other]} in memory")
        call.apart = pointers

    def _is_in_place(self, operand: str, result: ArrayView, view: ArrayView) -> bool:
        """True if a result is an operand itself, and may be."""
        return operand in self._in_place and is_same(result, view)


_background = False
"""True if calls do not wait for the compiler where something else can serve them."""
_kernels: dict[tuple[str, str], Kernel] = {}
_loaded: dict[tuple[str, str, int], LoadedBinary] = {}


def compiled(plan: KernelPlan) -> Kernel:
    """The kernel of a plan, compiled through the user's cache at its first use."""
    from gemmgen.toolchain.compilation import compile_plan

    key = plan.name, plan.architecture.name
    kernel = _kernels.get(key)
    return kernel if kernel is not None else _kernels.setdefault(key, Kernel(plan.sequence, compile_plan(plan)))


def _is_outdated(call: Call) -> bool:
    """True if a better kernel than the call's was compiled while the call was prepared."""
    return call.best is not None and is_held(call.best)


def compile_in_background(enabled: bool = True) -> None:
    """Compiles kernels in the background: the first call of a kind no longer waits for an instance that takes long to compile.

    Another instance serves meanwhile, one that is compiled already or soon is, a thread compiles the best, and later calls take that. The
    results of the two may differ in their last bits. If the best cannot be compiled, a ``RuntimeWarning`` says so, and the fallback
    remains in use.

    Parameters
    ----------
    enabled
        False turns it off again.
    """
    global _background
    _background = enabled


def is_held(plan: KernelPlan) -> bool:
    """True if this process has the kernel of a plan."""
    return (plan.name, plan.architecture.name) in _kernels


def is_compiled(plan: KernelPlan) -> bool:
    """True if this process or the user's cache has the kernel of a plan; it is then ready at once."""
    from gemmgen.toolchain.compilation import cached_plan

    if not is_held(plan):
        binary = cached_plan(plan)
        if binary is not None:
            _kernels[plan.name, plan.architecture.name] = Kernel(plan.sequence, binary)
    return is_held(plan)


@cache
def compilers() -> Compilers:
    """Threads that compile while others serve."""
    return Compilers(compiled)


def loaded(plan: KernelPlan, ordinal: int) -> LoadedBinary:
    """The kernel of a plan, loaded on a device."""
    from gemmgen.runtime.cuda.driver import LoadedBinary

    key = plan.name, plan.architecture.name, ordinal
    module = _loaded.get(key)
    if module is None:
        binary = compiled(plan).binary
        module = _loaded.setdefault(key, LoadedBinary(binary.cubin, binary.architecture, ordinal))
    return module


def arrays_device(views: Iterable[ArrayView | None]) -> Device:
    """The one device that all arrays are on."""
    return next(view.device for view in views if view is not None)


def numpy_array() -> Any:
    """The class of NumPy's arrays; None where NumPy was not imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.ndarray


def _cupy_array() -> Any:
    """The class of CuPy's arrays; None where CuPy was not imported."""
    cupy = sys.modules.get("cupy")
    return None if cupy is None else getattr(cupy, "ndarray", None)
