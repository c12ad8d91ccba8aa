"""Weights of 4 and 8 bits, packed once for products with activations of 16 or 8 bits."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import ceil_div
from gemmgen.dispatch.devices import gpu_device, host_device
from gemmgen.kernels.calls import Operations
from gemmgen.kernels.gemm.packed_weights import PANEL, pack
from gemmgen.kernels.gemm.request import alignment_elements, is_stored
from gemmgen.ops.arrays import is_torch, layout_of, new_array, view_of
from gemmgen.ops.weight_forms import Numbers
from gemmgen.ops.weight_kernels import Product, call_of, kernel_of, parts_of, slices_of
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Codes = npt.NDArray[np.int64]

Format = Literal["plain", "gptq", "gptq_v2", "awq", "compressed-tensors", "mxfp4"]
Activations = Literal["int8", "float8_e4m3fn", "float8_e5m2"]
BYTES = {"int8": "s8", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""Types of activations of 8 bits by name."""
FORMATS = ("plain", "gptq", "gptq_v2", "awq", "compressed-tensors", "mxfp4")
NAN_CODES = (0x7F, 0xFF)
"""Codes of NaN among 8-bit floats."""
MAX_EXPONENT = 254
"""Largest code of a power of two in 8 bits; 255 is NaN."""
GROUPS = (32, 64, 128)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Columns, of eight, that AWQ's nibbles hold, from the lowest on."""
WORD_BITS = 32


class Weight:
    """A right factor (k, n) of 4 or 8 bits for ``ops.matmul(a, weight)`` with float16 or bfloat16 activations, or of 4 bits with
    activations of 8 bits.

    A weight is scale (code - zero). Its codes are packed once, on the host, in the order in which kernels read them; later changes
    to the arrays have no effect. Products sum up integers and scale the sums of each group in float32; on sm_90a, those of many rows of
    16-bit activations first scale each weight of a group and round it to the activations' type, some from 17 rows on. Arrays are NumPy's
    or torch's, as a checkpoint has them; ``docs/formats.md`` lists the layouts.

    Parameters
    ----------
    q
        Codes. ``plain``: (k, n), one an element, unsigned, or signed, which need no zeros. ``gptq``, ``gptq_v2``: int32 words along k.
        ``awq``: int32 words along n, in its order. ``compressed-tensors``: int32 words (n, k) along k. ``mxfp4``: bytes (n, k / 2), the
        first code in the lower half. Arrays of float8_e4m3fn (k, n) are ``plain`` codes ``e4m3`` of 8 bits.
    scales
        (groups, n) or (n,), or (n, groups) for ``compressed-tensors``: float16 or bfloat16, the activations' type. Beside activations of
        8 bits float32 as well. ``mxfp4``: (n, k / 32) of uint8 or float8_e8m0fnu, the exponents of powers of two.
    zeros
        Zero points. ``plain``: (groups, n), integers from 0 to 2^bits, or from -2^(bits - 1) on for signed codes. ``gptq``: words along
        n, less one; ``gptq_v2``, ``awq`` and ``compressed-tensors``: words along n, as they are.
    format
        ``plain``, ``gptq``, ``gptq_v2``, ``awq``, ``compressed-tensors`` or ``mxfp4``, whose activations are bfloat16 or 8-bit floats.
    bits
        4 or 8.
    activations
        ``int8``, ``float8_e4m3fn`` or ``float8_e5m2``: the activations' type, for weights of 4 bits. None: the type of ``scales``.
    codes
        ``integers``, or ``e2m1`` and ``e4m3`` for codes that are floats of 4 and 8 bits, beside activations of floats and without zero
        points.
    perm
        The column of the activations that each row of ``q`` belongs to, for rows that were sorted by group.
    g_idx
        The group of each row, from which the permutation is made.

    Raises
    ------
    LaunchError
        If the arrays do not fit each other.
    """

    def __init__(
        self,
        q: Array,
        scales: Array,
        zeros: Array | None = None,
        *,
        format: Format = "plain",
        bits: int = 4,
        activations: Activations | None = None,
        codes: Literal["integers", "e2m1", "e4m3"] = "integers",
        perm: Array | None = None,
        g_idx: Array | None = None,
    ) -> None:
        import numpy as np

        if format not in FORMATS:
            raise LaunchError(f"Weight: format is {format!r}, need one of {', '.join(FORMATS)}")
        if bits not in (4, 8):
            raise LaunchError(f"Weight: bits is {bits!r}, need 4 or 8")
        if activations is not None and (activations not in BYTES or bits != 4):
            raise LaunchError(f"Weight: activations is {activations!r} with bits {bits}, need {', '.join(BYTES)} with 4, or None")
        if _type_word(q) == "float8_e4m3fn":
            codes, bits, q = "e4m3", 8, _bytes(q)
        codes = "e2m1" if format == "mxfp4" else codes
        floats = codes != "integers"
        wanted = {"integers": bits, "e2m1": 4, "e4m3": 8}.get(codes)
        if wanted != bits or (floats and (zeros is not None or activations == "int8" or (activations is not None and bits == 8))):
            need = "integers, e2m1 with 4 bits or e4m3 with 8, without zeros and beside activations of floats, for e4m3 of 16 bits"
            raise LaunchError(f"Weight: codes is {codes!r} with bits {bits} and activations {activations}, need {need}")
        self.kind, numbers = _exponents(scales) if format == "mxfp4" else _scales(scales, activations is not None)
        self.type = self.kind if activations is None else BYTES[activations]
        axes = (1, 2) if format == "plain" else (2,)
        unpacked, points = _read(format, _integers("q", q), None if zeros is None else _integers("zeros", zeros, axes), bits)
        if codes == "e4m3" and np.isin(unpacked, NAN_CODES).any():
            raise LaunchError("Weight: q has codes of NaN, need numbers")
        numbers = numbers.T if format in ("compressed-tensors", "mxfp4") else numbers
        numbers = numbers[None] if numbers.ndim == 1 else numbers
        points = points[None] if points is not None and points.ndim == 1 else points
        self.shape: tuple[int, int] = unpacked.shape
        self.bits = bits
        self.group = _group(unpacked.shape, numbers.shape)
        order = _order(perm, g_idx, unpacked.shape[0], self.group)
        if g_idx is not None and order is not None:
            unpacked = unpacked[order]
        if points is not None and points.shape != numbers.shape:
            raise LaunchError(f"Weight: zeros are for {points.shape} groups and columns, need those of scales, {numbers.shape}")
        if unpacked.size and (unpacked.min() < 0 or unpacked.max() >= 2**bits):
            raise LaunchError(f"Weight: q has codes from {unpacked.min()} to {unpacked.max()}, need {bits} bits")
        if points is not None and points.size and (points.min() < 0 or points.max() > 2**bits):
            raise LaunchError(f"Weight: zeros are from {points.min()} to {points.max()}, need 0 to {2**bits}")
        self.has_zeros = points is not None
        self._arrays = {
            "B": moved(pack(unpacked, bits, "pairs" if activations is None else "quads"), "u32", q),
            "scales": moved(to_elements(self.kind, numbers), self.kind, q),
        }
        if points is not None:
            self._arrays["zeros"] = moved(to_elements(self.kind, points.astype("float32")), self.kind, q)
        self._order = None if order is None else moved(order, "s64", q)
        self._numbers = Numbers(self.kind, bits, self.group, self.has_zeros, self.type, floats)

    def multiply(
        self,
        a: ArrayT,
        *,
        out: Array | None = None,
        bias: Array | float | None = None,
        activation: Operations | None = None,
        output: str | None = None,
        scale_a: Array | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """``activation(scale_a a @ weight + bias)``, as ``ops.matmul`` computes it.

        Parameters
        ----------
        a
            Activations (rows, k), of the scales' type or of the type ``activations``.
        scale_a
            Beside activations of 8 bits, float32 of (rows, 1), a scale for each row, or of one element.
        out, bias, activation, output, stream
            As for ``ops.matmul``; a new result has the scales' type.

        Returns
        -------
        ArrayT
            ``out``, or a new array of a's library.

        Raises
        ------
        LaunchError
            If the arguments are invalid or do not fit each other.
        """
        result: ArrayT = self._multiplied(a, out, bias, activation, output, scale_a, stream)
        return result

    def _multiplied(self, a: Any, out: Any, bias: Any, activation: Any, output: str | None, scale_a: Any, stream: Any) -> Any:
        k, n = self.shape
        if getattr(a, "ndim", 0) != 2 or a.shape[1] != k:
            raise LaunchError(
                f"matmul: a has shape {tuple(getattr(a, 'shape', ()))}, need (rows, {k}) beside a Weight of shape {self.shape}"
            )
        if self._order is not None:
            a = a.index_select(1, self._order) if is_torch(a) else a.take(self._order, 1)
        view = view_of(a, "a", None)
        layout = layout_of(view)
        if layout.type != self.type:
            need = f"the type of the Weight's scales, {self.kind}" if self.type == self.kind else f"the Weight's activations, {self.type}"
            raise LaunchError(f"matmul: a has elements {layout.type}, need {need}")
        widest = 16 // layout.element_bytes
        if not is_stored(layout, True) or alignment_elements(widest, layout, True) * layout.element_bytes < 4:
            raise LaunchError(f"matmul: a has strides {layout.strides}, need rows side by side that begin at multiples of 4 bytes")
        kinds = {None: self.kind, "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
        if output not in kinds:
            raise LaunchError(f"matmul: output is {output!r}, need float32, float16 or bfloat16 beside a Weight")
        c = new_array(a, (a.shape[0], n), kinds[output]) if out is None else out
        result = layout_of(view_of(c, "out", None, written=True))
        if result.shape != (a.shape[0], n) or not is_stored(result, True):
            raise LaunchError(f"matmul: out has shape {result.shape} and strides {result.strides}, need {(a.shape[0], n)} in rows")
        if bias is not None and tuple(bias.shape) != (n,):
            raise LaunchError(f"matmul: bias has shape {tuple(bias.shape)}, need {(n,)} beside a Weight")
        per = self._scale_place(scale_a, a.shape[0])
        if result.is_empty:
            return c
        device = host_device() if isinstance(view.device, str) else gpu_device(view.device[1])
        aligned = alignment_elements(widest, layout, True), alignment_elements(8, result, True)
        product = Product(a.shape[0], n, k, *aligned)
        arrays = {"C": c, **self._arrays, **({} if bias is None else {"bias": bias})}
        own = {} if per is None else {"factor": scale_a.reshape(-1) if per == "row" else scale_a}
        parts = parts_of(product, self._numbers, device.architecture, device.sm_count) if _can_be_cut(arrays) else (product,)
        first = 0
        for part in parts:
            call = call_of(part, self._numbers, device, result.type, bias is not None, activation, scaled=per)
            plan, kernel = kernel_of(call)
            slices = slices_of(call, plan, part, device)
            cut = arrays if len(parts) == 1 else _columns(arrays, first, first + part.n)
            kernel(A=a, **cut, **own, **slices, stream=stream)
            first += part.n
        return c

    def _scale_place(self, scale_a: object, rows: int) -> Literal["row", "memory"] | None:
        """The elements of the result that share a scale of activations; None: there are none."""
        if scale_a is None:
            return None
        if self.type == self.kind:
            raise LaunchError(f"matmul: a Weight for activations of {self.kind} goes without scale_a")
        layout = layout_of(view_of(scale_a, "scale_a", None))
        if layout.type != "f32" or (prod(layout.shape) != 1 and layout.shape != (rows, 1)):
            raise LaunchError(f"matmul: scale_a is {layout.type} of shape {layout.shape}, need float32 of ({rows}, 1) or of one element")
        return "memory" if prod(layout.shape) == 1 else "row"


def _can_be_cut(arrays: Mapping[str, object]) -> bool:
    """True if a part of an array is a view of it: torch's and NumPy's."""
    return all(is_torch(array) or type(array).__module__ == "numpy" for array in arrays.values())


def _columns(arrays: Mapping[str, Any], first: int, end: int) -> dict[str, Any]:
    """Views of some columns of all arrays: of the packed weights, whole panels."""
    views = {"B": arrays["B"][first // PANEL : ceil_div(end, PANEL)]}
    return views | {name: array[..., first:end] for name, array in arrays.items() if name != "B"}


def _integers(name: str, array: Any, axes: tuple[int, ...] = (2,)) -> Codes:
    """An array of integers on the host, with one of so many axes."""
    import numpy as np

    host = np.asarray(array.detach().cpu().numpy() if is_torch(array) else array)
    if host.dtype.kind not in "iu" or host.ndim not in axes:
        need = "integers and two axes" if 2 in axes else "integers and one axis"
        raise LaunchError(f"Weight: {name} has elements {host.dtype} and {host.ndim} axes, need {need}")
    return host


def _scales(scales: Any, wide: bool) -> tuple[str, Any]:
    """The type of scales, and their numbers on the host; ``wide``: float32 is allowed."""
    import numpy as np

    halves, wider = {"float16": "f16", "bfloat16": "bf16"}, {"float32": "f32"} if wide else {}
    if is_torch(scales):
        word = str(scales.dtype).removeprefix("torch.")
        kind, numbers = (halves | wider).get(word, ""), scales.detach().float().cpu().numpy()
    else:
        host = np.asarray(scales)
        word, kind = host.dtype.name, (halves | wider | {"uint16": "bf16"}).get(host.dtype.name, "")
        numbers = to_numbers(kind, host.view(np.uint16)) if kind == "bf16" else host.astype(np.float32)
    if not kind or numbers.ndim not in (1, 2):
        need = f"{'float32, ' if wide else ''}float16 or bfloat16 and (groups, n) or (n,)"
        raise LaunchError(f"Weight: scales have elements {word} and {numbers.ndim} axes, need {need}")
    return kind, numbers


def _type_word(array: object) -> str:
    return str(getattr(array, "dtype", "")).removeprefix("torch.")


def _bytes(array: Any) -> Any:
    """An array of 8-bit floats as their bits."""
    import numpy as np

    if is_torch(array):
        return array.view(sys.modules["torch"].uint8)
    return np.asarray(array).view(np.uint8)


def _exponents(scales: object) -> tuple[str, Any]:
    """Powers of two in 8 bits as numbers of bfloat16, which has all of them."""
    import numpy as np

    exponents = _bytes(scales) if _type_word(scales) == "float8_e8m0fnu" else scales
    host = _integers("scales", exponents)
    if host.dtype != np.uint8 or host.ndim != 2:
        raise LaunchError(f"Weight: scales have elements {host.dtype} and {host.ndim} axes, need exponents of 8 bits, (n, k / 32)")
    if host.size and host.max() > MAX_EXPONENT:
        raise LaunchError("Weight: scales have codes of NaN, need powers of two")
    return "bf16", np.ldexp(np.float32(1), host.astype(np.int32) - 127)


def _read(format: Format, q: Codes, zeros: Codes | None, bits: int) -> tuple[Codes, Codes | None]:
    """Codes (k, n) and zero points (groups, n) of a checkpoint's arrays, both without a sign."""
    import numpy as np

    half = 2 ** (bits - 1)
    if format == "plain":
        shift = half if q.dtype.kind == "i" else 0
        q = q.astype(np.int64) + shift
        return q, None if zeros is None else zeros.astype(np.int64) + shift
    if format == "mxfp4":
        if q.dtype.itemsize != 1 or q.ndim != 2 or bits != 4:
            raise LaunchError(f"Weight: q has elements {q.dtype}, need bytes (n, k / 2) of 4 bits for format mxfp4")
        pairs = q.view(np.uint8).astype(np.int64)
        return np.stack([pairs & 15, pairs >> 4], 2).reshape(q.shape[0], -1).T, None
    if q.dtype != np.int32:
        raise LaunchError(f"Weight: q has elements {q.dtype}, need int32 for format {format}")
    if format == "awq":
        return _awq(q, bits), None if zeros is None else _awq(zeros, bits)
    if format == "compressed-tensors":
        # The zero points of eight rows of (n, groups) in a word, codes and zero points with half of their range added.
        return _unpacked(q, bits, 1).T, None if zeros is None else _unpacked(zeros, bits, 0).T
    points = None if zeros is None else _unpacked(zeros, bits, 1)
    return _unpacked(q, bits, 0), points if points is None or format == "gptq_v2" else points + 1


def _unpacked(words: Codes, bits: int, axis: int, order: Sequence[int] | None = None) -> Codes:
    """The codes of words, from the lowest bits on, side by side along an axis; ``order``: the places that they belong to."""
    import numpy as np

    places = np.arange(WORD_BITS // bits)
    shifts = (places if order is None else np.argsort(np.asarray(order))) * bits
    codes = words.astype(np.int64)[..., None] >> shifts & 2**bits - 1
    moved = codes if axis == 1 else codes.transpose(0, 2, 1)
    unpacked: Codes = moved.reshape(words.shape[0] * (len(places) if axis == 0 else 1), -1)
    return unpacked


def _awq(words: Codes, bits: int) -> Codes:
    if bits != 4:
        raise LaunchError(f"Weight: bits is {bits}, need 4 for format awq")
    return _unpacked(words, bits, 1, AWQ_ORDER)


def _group(shape: tuple[int, int], scales: tuple[int, ...]) -> int:
    """Values of k of a group; 0: all."""
    (k, n), groups = shape, scales[0]
    if scales[1:] != (n,):
        raise LaunchError(f"Weight: scales are for {scales} groups and columns of weights of shape {shape}, need {n} columns")
    if groups == 1:
        return 0
    group = ceil_div(k, max(groups, 1))
    if group not in GROUPS or group * groups != k:
        need = ", ".join(str(k // size) for size in GROUPS if k % size == 0)
        raise LaunchError(
            f"Weight: scales are for {groups} groups of k = {k}, need 1{', ' + need if need else ''} (groups of {GROUPS} divide k)"
        )
    return group


def _order(perm: object, g_idx: object, k: int, group: int) -> Any:
    """The activations' column that each row belongs to; None where row i belongs to column i."""
    import numpy as np

    if perm is not None and g_idx is not None:
        raise LaunchError("Weight: perm and g_idx, need one of them")
    if perm is not None:
        order = _integers("perm", perm, (1,)).astype(np.int64)
        if order.shape != (k,) or not np.array_equal(np.sort(order), np.arange(k)):
            raise LaunchError(f"Weight: perm is no permutation of {k} columns")
        return order
    if g_idx is None:
        return None
    groups = _integers("g_idx", g_idx, (1,)).astype(np.int64)
    order = np.argsort(groups, kind="stable")
    if groups.shape != (k,) or not np.array_equal(groups[order], np.arange(k) // (group or max(k, 1))):
        raise LaunchError(f"Weight: g_idx has no groups of {group or k} rows each, need one number for each of {k} rows")
    return None if np.array_equal(order, np.arange(k)) else order


def moved(host: Any, kind: str, like: Any) -> Any:
    """A host array in the library of ``like``, on its device."""
    import numpy as np

    host = np.ascontiguousarray(host)
    if not is_torch(like):
        return host

    torch = sys.modules["torch"]
    signed = {
        "u32": (np.int32, torch.uint32),
        "bf16": (np.int16, torch.bfloat16),
        "f16": (np.float16, torch.float16),
        "f32": (np.float32, torch.float32),
        "u16": (np.int16, torch.uint16),
        "s8": (np.int8, torch.int8),
        "e4m3": (np.int8, torch.float8_e4m3fn),
        "e5m2": (np.int8, torch.float8_e5m2),
    }
    own, word = signed.get(kind, (np.int64, torch.int64))
    return torch.from_numpy(host.view(own)).view(word).to(like.device)
