"""``gemmgen.ops.pointer_matmul``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Any, Literal

from gemmgen.core.elements import BY_WORD, ELEMENTS, numpy_type
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.dispatch.devices import gpu_device, host_device
from gemmgen.hardware.target import Architecture, Device
from gemmgen.kernels.calls import FLOAT32_OVERFLOW, integer, is_plain_number, number
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.grouping import SIZES
from gemmgen.kernels.gemm.request import alignment_elements, is_stored, result_type
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.requests import Copy, Layout
from gemmgen.ops.arrays import copied, is_torch, layout_of, new_array, view_of
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream
from gemmgen.runtime.arrays.views import ArrayView
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan

KERNELS = 128
"""Kernels that are kept."""
WIDEST = 16
"""Bytes of the widest access."""
FACTORS = ("f32", "f16", "bf16", "s8", "e4m3", "e5m2", "f64")
RESULTS = {
    "f32": ("f32", "f16", "bf16"),
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "s8": ("s32", "f32"),
    "e4m3": ("bf16", "f16", "f32"),
    "e5m2": ("bf16", "f16", "f32"),
    "f64": ("f64",),
}
"""Types of results by the type of the factors."""
MAX_PRODUCTS = 65535
Letters = Literal["nn", "nt", "tn", "tt"]


def pointer_matmul(
    a: Sequence[ArrayT] | Array,
    b: Sequence[ArrayT] | Array,
    out: Sequence[ArrayT] | Array | None = None,
    *,
    alpha: float | Sequence[float] | Array = 1.0,
    beta: float | Sequence[float] | Array = 0.0,
    output: str | None = None,
    sizes: Array | None = None,
    most: tuple[int, int, int] | None = None,
    factors: str | None = None,
    transpose: Letters = "nn",
    alignment: int = WIDEST,
    check: bool = False,
    stream: Stream | None = None,
) -> list[ArrayT]:
    """Products of many pairs of matrices at any addresses and of different sizes, in one launch: alpha a[i] b[i] + beta out[i].

    The matrices are given as lists of NumPy arrays or of torch tensors on one device, or, on a GPU, as arrays of addresses and sizes that
    the host need not know. All a and b have one type: float32, float16, bfloat16, int8, 8-bit floats or float64.

    Parameters
    ----------
    a, b
        Lists of matrices (m_i, k_i) and (k_i, n_i), stored in rows or in columns; or int64 arrays of addresses.
    out
        A list of matrices (m_i, n_i) stored in rows, which must not overlap; by default new ones. With addresses, an int64 array of them.
    alpha, beta
        Factors of the products and of ``out``: numbers, or lists with one number for each product; with addresses also arrays on the
        device, float32, or float64 for float64 factors. With ``beta`` 0, ``out`` is not read.
    output
        Type of the results if ``out`` is not a list. The default is the type of a and b, int32 for int8, bfloat16 for 8-bit floats.
    sizes
        With addresses: int32 of (products, 6) on the device, m, n, k, lda, ldb and ldc of each product; leading dimensions are in elements.
    most
        With addresses: the largest m, n and k. Larger sizes count as these, negative sizes as 0.
    factors
        With addresses: the type of a and b.
    transpose
        With addresses: ``n`` for a factor stored in rows, ``t`` for one in columns; ``out`` lies in rows.
    alignment
        With addresses: 16 or a smaller power of two; addresses and leading dimensions must be multiples of this many bytes. The kernel
        skips a product that breaks this rule or has a null address.
    check
        With addresses: True copies addresses and sizes to the host first, which waits for the device, and refuses products that the kernel
        would skip and leading dimensions with which rows overlap.
    stream
        The CUDA stream, as for ``Kernel``.

    Returns
    -------
    list
        The results; with addresses an empty list.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if isinstance(a, list | tuple):
        if sizes is not None or most is not None or factors is not None:
            raise LaunchError("pointer_matmul: sizes, most and factors are for arrays of addresses; lists of matrices have them")
        return _of_lists(a, b, out, alpha, beta, output, stream)
    if sizes is None or most is None or factors is None or out is None:
        raise LaunchError("pointer_matmul: arrays of addresses need out, sizes, most and factors")
    _of_addresses((a, b, out), sizes, most, (factors, output), transpose, alignment, (alpha, beta), check, stream)
    return []


@dataclass(frozen=True)
class Call:
    """The properties of a call that determine its kernel."""

    type: str
    result: str
    letters: str
    aligned: tuple[int, int, int]
    """Elements that matrices A, B and C are aligned to."""
    large: bool
    architecture: Architecture
    own_scalars: bool = False
    """True if each product has separate factors alpha and beta."""


def spec_of(call: Call) -> GemmSpec:
    """The checked spec of a kernel. Raises ``LaunchError`` for types that the architecture does not multiply."""
    if call.type != "f32" and not call.architecture.supports("cp_async"):
        raise LaunchError(f"pointer_matmul: {call.type} needs an architecture from sm_80 on, this is {call.architecture.name}")
    if call.type in ("e4m3", "e5m2") and not call.architecture.supports("fp8_mma"):
        raise LaunchError(f"pointer_matmul: {call.type} needs an architecture from sm_89 on, this is {call.architecture.name}")
    block, warp, thread = (128, (64, 32), (8, 8)) if call.large else (64, (32, 32), (8, 4))
    depth = 8 if call.type == "f32" else 16 if call.type == "f64" else 64 if ELEMENTS[call.type].bytes == 1 else 32
    tile: dict[str, Any] = {"threadblock": {"m": block, "n": block, "k": depth}, "warp": dict(zip("mn", warp, strict=True))}
    tile |= {"thread": dict(zip("mn", thread, strict=True))} if call.type == "f32" else {}
    copies = "cp_async" if call.architecture.supports("cp_async") else "registers"
    stages = 2 if copies == "registers" else 3
    loop = {"strategy": "tiled" if call.type == "f32" else "mma_sync", "tile": tile, "copies": copies, "stages": stages}
    plain = call.result == "s32"
    return GemmSpec.model_validate(
        {
            "kind": "gemm",
            "label": "pointers",
            "architecture": "sm_89" if call.type in ("e4m3", "e5m2") else "sm_80" if copies == "cp_async" else "sm_75",
            "alpha": "one" if plain else "argument",
            "beta": "zero" if plain else "argument",
            "scalars": "products" if call.own_scalars else "launch",
            "transpose": call.letters,
            "storage": {"a": call.type, "b": call.type, "c": call.result},
            "batch": "strided",
            "grouping": {"places": "addresses"},
            "alignment": dict(zip("abc", call.aligned, strict=True)),
            "mainloop": loop,
        }
    )


@lru_cache(maxsize=KERNELS)
def kernel_of(call: Call) -> Kernel:
    """The kernel, made once for all equal calls. Raises ``LaunchError`` as ``spec_of`` does."""
    plan = plan_gemm(spec_of(call), call.architecture)
    return Kernel(plan.sequence, compile_plan(plan))


def _is_large(sizes: Sequence[tuple[int, int]], device: Device) -> bool:
    """True if tiles of 128 x 128 give every SM two of them."""
    return sum(ceil_div(m, 128) * ceil_div(n, 128) for m, n in sizes) >= 2 * device.sm_count


def _scalars(alpha: object, beta: object, count: int, result: str, like: Any) -> dict[str, Any]:
    """The arguments of a kernel for alpha and beta: numbers, or arrays in the library of ``like``. Raises ``LaunchError``."""
    if result == "s32":
        return {}
    kind, overflow = ("f64", inf) if result == "f64" else ("f32", FLOAT32_OVERFLOW)
    if is_plain_number(alpha) and is_plain_number(beta):
        return {name: number("pointer_matmul", name, value, overflow) for name, value in (("alpha", alpha), ("beta", beta))}
    import numpy as np

    scalars = {}
    for name, given in (("alpha", alpha), ("beta", beta)):
        if is_plain_number(given):
            given = [given] * count
        if isinstance(given, list | tuple):
            host = np.array([number("pointer_matmul", name, one, overflow) for one in given], numpy_type(kind))
            if host.shape != (count,):
                raise LaunchError(f"pointer_matmul: {name} has {host.size} factors, need one for each of {count} products")
            given = sys.modules["torch"].from_numpy(host).to(like.device) if is_torch(like) else host
        view = view_of(given, name, None)
        if view.shape != (count,) or view.type != kind:
            raise LaunchError(f"pointer_matmul: {name} is {view.type} of shape {view.shape}, need {ELEMENTS[kind].word} of {(count,)}")
        scalars[f"{name}s"] = given
    return scalars


def _kind(given: object) -> str:
    """The short name of an element type; empty for anything but a name."""
    return BY_WORD.get(given, given) if isinstance(given, str) else ""


def _result_type(factors: str, output: str | None, alpha: object, beta: object) -> str:
    """The type of new results. Raises ``LaunchError`` for a type that these factors cannot have as a result."""
    kind = result_type(factors, factors) if output is None else _kind(output)
    if kind not in RESULTS[factors]:
        words = ", ".join(ELEMENTS[one].word for one in RESULTS[factors])
        raise LaunchError(f"pointer_matmul: results are {output!s:.200}, need {words} for factors of {ELEMENTS[factors].word}")
    if kind == "s32" and not (is_plain_number(alpha) and is_plain_number(beta) and (alpha, beta) == (1.0, 0.0)):
        raise LaunchError(f"pointer_matmul: alpha is {alpha} and beta {beta}, need 1 and 0 for results of int32")
    return kind


def _matrices(name: str, given: object, count: int) -> list[tuple[Any, ArrayView, Layout]]:
    """The matrices of a list, which have one type and lie on one device."""
    if not isinstance(given, list | tuple):
        raise LaunchError(f"pointer_matmul: {name} is {type(given).__name__}, need a list of matrices like a")
    if len(given) != count:
        raise LaunchError(f"pointer_matmul: {name} has {len(given)} matrices, need as many as a, {count}")
    matrices = []
    for index, one in enumerate(given):
        view = view_of(one, f"{name}[{index}]", None, written=name == "out")
        layout = layout_of(view)
        if len(layout.shape) != 2:
            raise LaunchError(f"pointer_matmul: {name}[{index}] has shape {layout.shape}, need a matrix")
        matrices.append((one, view, layout))
        if layout.type != matrices[0][2].type:
            raise LaunchError(f"pointer_matmul: {name}[{index}] has elements {layout.type}, need those of {name}[0], {matrices[0][2].type}")
    return matrices


def _of_lists(a: Any, b: object, out: Any, alpha: object, beta: object, output: str | None, stream: Stream | None) -> list[Any]:
    count = len(a)
    if not 0 < count <= MAX_PRODUCTS:
        raise LaunchError(f"pointer_matmul: a has {count} matrices, need from 1 to {MAX_PRODUCTS}")
    left, right = _matrices("a", a, count), _matrices("b", b, count)
    kind = left[0][2].type
    if kind not in FACTORS or right[0][2].type != kind:
        need = ", ".join(ELEMENTS[one].word for one in FACTORS)
        raise LaunchError(f"pointer_matmul: a has elements {kind}, b {right[0][2].type}, need one type for both: {need}")
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        if one[2].shape[1] != other[2].shape[0]:
            shapes = f"a[{index}] of shape {one[2].shape} and b[{index}] of shape {other[2].shape}"
            raise LaunchError(f"pointer_matmul: {shapes} cannot be multiplied")
    if out is None:
        if not is_plain_number(beta) or beta != 0:
            raise LaunchError("pointer_matmul: beta is not 0, but there is no out that it would multiply; pass out=")
        made = _result_type(kind, output, alpha, beta)
        out = [new_array(one[0], (one[2].shape[0], other[2].shape[1]), made) for one, other in zip(left, right, strict=True)]
    results = _matrices("out", out, count)
    result = _result_type(kind, results[0][2].type, alpha, beta)
    for index, (one, other, third) in enumerate(zip(left, right, results, strict=True)):
        shape = one[2].shape[0], other[2].shape[1]
        if third[2].shape != shape or not is_stored(third[2], True):
            got = f"shape {third[2].shape} and strides {third[2].strides}"
            raise LaunchError(f"pointer_matmul: out[{index}] has {got}, need {shape} in rows")
    devices = {view.device for _, view, _ in (*left, *right, *results)}
    if len(devices) > 1:
        raise LaunchError(f"pointer_matmul: matrices lie on {len(devices)} devices, need one")
    _check_apart([view for _, view, _ in results])
    device = host_device() if isinstance(left[0][1].device, str) else gpu_device(left[0][1].device[1])
    extents = [(one[2].shape[0], other[2].shape[1], one[2].shape[1]) for one, other in zip(left, right, strict=True)]
    numbers = _scalars(alpha, beta, count, result, left[0][0])
    large = _is_large([shape[:2] for shape in extents], device)
    if isinstance(left[0][1].device, str):
        _in_a_pool(
            Call(kind, result, "nn", _widest(kind, result), large, device.architecture, "alphas" in numbers),
            (left, right, results),
            extents,
            numbers,
        )
    else:
        _in_place((left, right, results), (kind, result, large, device), extents, numbers, stream)
    return list(out)


def _widest(kind: str, result: str) -> tuple[int, int, int]:
    """Elements of the widest accesses to A, B and C."""
    elements = WIDEST // ELEMENTS[kind].bytes
    return elements, elements, WIDEST // ELEMENTS[result].bytes


def _check_apart(views: Sequence[ArrayView]) -> None:
    """Refuses results that overlap."""
    places = sorted((view.pointer + view.span()[0], view.pointer + view.span()[1]) for view in views)
    places = [place for place in places if place[0] < place[1]]
    for (_, end), (start, _) in pairwise(places):
        if start < end:
            raise LaunchError("pointer_matmul: matrices of out overlap, need separate memory")


def _most(shapes: Sequence[tuple[int, int, int]]) -> dict[str, int]:
    return {name: max(shape[axis] for shape in shapes) for axis, name in enumerate(("m", "n", "k"))}


def _in_place(
    operands: Any, kinds: tuple[str, str, bool, Device], shapes: Sequence[tuple[int, int, int]], numbers: Any, stream: Any
) -> None:
    """The products of matrices on a GPU, read in place; if the matrices of a factor are stored in several orders, they are copied."""
    import numpy as np

    kind, result, large, device = kinds
    like = operands[0][0][0]
    if not is_torch(like):
        raise LaunchError(f"pointer_matmul: lists of {type(like).__module__} on a GPU, need torch tensors, or arrays of addresses")
    import torch

    letters, aligned, table = "", [], np.zeros((len(shapes), len(SIZES)), np.int32)
    table[:, :3] = shapes
    pointers, copies = [], []
    for axis, (matrices, promise) in enumerate(zip(operands, _widest(kind, result), strict=True)):
        by_columns = axis < 2 and not all(is_stored(layout, True) for _, _, layout in matrices)
        by_columns = by_columns and all(is_stored(layout, False) for _, _, layout in matrices)
        addresses = np.zeros(len(shapes), np.int64)
        for index, (array, view, layout) in enumerate(matrices):
            if not is_stored(layout, not by_columns):
                array = copied(array, Copy("a" if axis == 0 else "b", layout.shape, False))
                copies.append(array)
                view = view_of(array, "copy", None)
                layout = layout_of(view)
            slow = 1 if by_columns else 0
            pitch = layout.strides[slow] if layout.shape[slow] > 1 else round_up(max(layout.shape[1 - slow], 1), promise)
            addresses[index], table[index, 3 + axis] = view.pointer, pitch
            promise = alignment_elements(promise, layout, not by_columns)
        letters += "t" if by_columns else "n"
        aligned.append(promise)
        pointers.append(addresses)
    call = Call(kind, result, letters[:2], (aligned[0], aligned[1], aligned[2]), large, device.architecture, "alphas" in numbers)
    arrays = {f"at_{name}": torch.from_numpy(one).to(like.device) for name, one in zip("abc", pointers, strict=True)}
    arrays["sizes"] = torch.from_numpy(table).to(like.device)
    nothing = {name: new_array(like, (0,), element) for name, element in (("A", kind), ("B", kind), ("C", result))}
    kernel_of(call)(**nothing, **arrays, **_most(shapes), **numbers, stream=stream)


def _in_a_pool(call: Call, operands: Any, shapes: Sequence[tuple[int, int, int]], numbers: Any) -> None:
    """The products of matrices in host memory, on the emulator, after copies of the matrices into one array for each operand."""
    import numpy as np

    table = np.zeros((len(shapes), len(SIZES)), np.int32)
    table[:, :3] = shapes
    arrays: dict[str, Any] = {}
    parts: list[Any] = []
    for axis, (name, matrices) in enumerate(zip("ABC", operands, strict=True)):
        element = call.result if axis == 2 else call.type
        pitches = [round_up(max(layout.shape[1], 1), call.aligned[axis]) for _, _, layout in matrices]
        ends = np.cumsum([layout.shape[0] * pitch for pitch, (_, _, layout) in zip(pitches, matrices, strict=True)])
        pool = np.zeros(int(ends[-1]), numpy_type(element))
        parts = []
        for (array, _, layout), pitch, end in zip(matrices, pitches, ends, strict=True):
            part = pool[int(end) - layout.shape[0] * pitch : int(end)].reshape(layout.shape[0], pitch)[:, : layout.shape[1]]
            part[...] = _bits(array, element)
            parts.append(part)
        table[:, 3 + axis] = pitches
        starts = np.concatenate(([0], ends[:-1])) * pool.itemsize
        arrays |= {name: _typed(pool, element), f"at_{name.lower()}": starts.astype(np.int64)}
    kernel_of(call)(**arrays, sizes=table, **_most(shapes), **numbers)
    for (array, _, _), part in zip(operands[2], parts, strict=True):
        _bits(array, call.result)[...] = part


def _bits(array: Any, element: str) -> Any:
    """A host array with elements of NumPy's own types, which share its memory."""
    if is_torch(array):
        import torch

        held = {"bf16": torch.int16, "e4m3": torch.int8, "e5m2": torch.int8}
        array = (array.view(held[element]) if element in held else array).numpy()
    return array.view(numpy_type(element))


def _typed(pool: Any, element: str) -> Any:
    """A pool of bits as an array of a type that kernels know: that of bfloat16 is NumPy's own."""
    if element in ("e4m3", "e5m2"):
        import ml_dtypes
        import numpy as np

        return pool.view(np.dtype(getattr(ml_dtypes, ELEMENTS[element].word)))
    return pool


def _of_addresses(
    addresses: tuple[Any, Any, Any],
    sizes: object,
    most: tuple[int, int, int],
    types: tuple[str, str | None],
    letters: Letters,
    alignment: int,
    scalars: tuple[Any, Any],
    check: bool,
    stream: Stream | None,
) -> None:
    kind = _kind(types[0])
    if kind not in FACTORS:
        raise LaunchError(f"pointer_matmul: factors is {types[0]!r:.200}, need {', '.join(ELEMENTS[one].word for one in FACTORS)}")
    if not isinstance(alignment, int) or alignment not in (1, 2, 4, 8, 16) or str(letters) not in ("nn", "nt", "tn", "tt"):
        got = f"alignment is {alignment!r:.100} and transpose {letters!r:.100}"
        raise LaunchError(f"pointer_matmul: {got}, need 1, 2, 4, 8 or 16, and nn, nt, tn or tt")
    result = _result_type(kind, types[1], *scalars)
    views = [view_of(one, name, None) for name, one in zip(("a", "b", "out", "sizes"), (*addresses, sizes), strict=True)]
    count = views[0].shape[0] if len(views[0].shape) == 1 else 0
    for name, view in zip(("a", "b", "out"), views, strict=False):
        if view.type != "s64" or view.shape != (count,) or not 0 < count <= MAX_PRODUCTS:
            need = f"int64 addresses, as many as those of a, from 1 to {MAX_PRODUCTS}"
            raise LaunchError(f"pointer_matmul: {name} is {view.type} of shape {view.shape}, need {need}")
    if views[3].type != "s32" or views[3].shape != (count, len(SIZES)):
        need = f"int32 of shape {(count, len(SIZES))}: {', '.join(SIZES)}"
        raise LaunchError(f"pointer_matmul: sizes is {views[3].type} of shape {views[3].shape}, need {need}")
    if any(isinstance(view.device, str) or view.device != views[0].device for view in views):
        raise LaunchError("pointer_matmul: addresses and sizes lie in host memory or on several devices, need one GPU; or pass lists")
    if not isinstance(most, list | tuple) or len(most) != 3:
        raise LaunchError(f"pointer_matmul: most is {most!r:.200}, need the largest m, n and k")
    if any(integer("pointer_matmul", "most", extent) < 0 for extent in most):
        raise LaunchError(f"pointer_matmul: most is {most!r:.200}, need no negative extents")
    aligned = tuple(max(1, alignment // ELEMENTS[one].bytes) for one in (kind, kind, result))
    if check:
        _check_addresses(addresses, sizes, most, (kind, result), letters, aligned)
    device = gpu_device(views[0].device[1])
    numbers = _scalars(*scalars, count, result, addresses[0])
    large = _is_large([most[:2]] * count, device)
    call = Call(kind, result, letters, (aligned[0], aligned[1], aligned[2]), large, device.architecture, "alphas" in numbers)
    nothing = {name: new_array(addresses[0], (0,), element) for name, element in (("A", kind), ("B", kind), ("C", result))}
    arrays = {f"at_{name}": one for name, one in zip("abc", addresses, strict=True)} | {"sizes": sizes}
    kernel_of(call)(**nothing, **arrays, **dict(zip(("m", "n", "k"), most, strict=True)), **numbers, stream=stream)


def _check_addresses(addresses: Any, sizes: Any, most: Any, kinds: tuple[str, str], letters: str, aligned: tuple[int, ...]) -> None:
    """Refuses products that the kernel would skip, and leading dimensions with which lines overlap."""
    table, places = _on_host(sizes), [_on_host(one) for one in addresses]
    for index, row in enumerate(table.tolist()):
        m, n, k = row[:3]
        if any(not 0 <= extent <= limit for extent, limit in zip(row, most, strict=False)):
            raise LaunchError(f"pointer_matmul: sizes[{index}] has m, n and k {(m, n, k)}, need 0 to {tuple(most)}")
        lines = (k if letters[0] == "n" else m), (n if letters[1] == "n" else k), n
        for axis, (name, element) in enumerate(zip(("a", "b", "out"), (kinds[0], kinds[0], kinds[1]), strict=True)):
            if 0 in (m, n) or (k == 0 and axis < 2):
                continue
            pitch = row[3 + axis]
            if pitch < lines[axis] or pitch % aligned[axis]:
                need = f"at least {lines[axis]} and a multiple of {aligned[axis]}"
                raise LaunchError(f"pointer_matmul: sizes[{index}] has {SIZES[3 + axis]} {pitch}, need {need}")
            address, size = int(places[axis][index]), aligned[axis] * ELEMENTS[element].bytes
            if address == 0 or address % size:
                raise LaunchError(f"pointer_matmul: {name}[{index}] is address {address:#x}, need a multiple of {size} that is not null")


def _on_host(array: Any) -> Any:
    import numpy as np

    if is_torch(array):
        return array.cpu().numpy()
    return array.get() if hasattr(array, "get") else np.asarray(array)
