"""Arrays of random types, values and strides for random calls of ``gemmgen.ops``, of NumPy, torch and CuPy, and comparisons of results.

A call is drawn from two generators: ``form`` decides types, options and layouts, ``data`` extents nearby and elements. Calls that share
the first differ in sizes and values alone, so that one compiled kernel often serves several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to a type."""
SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
"""Smallest positive number of a type."""
OVERFLOW = {"float64": np.inf, "float32": 2.0**128 - 2.0**103, "float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}
"""The least magnitude that becomes infinity as a number of a type."""
FLOATS = tuple(UNIT)
GARBAGE = 0x7F
"""Byte of memory between the elements of an array: large numbers, or NaN."""
LIBRARIES = ("numpy", "torch", "cupy")


@dataclass(frozen=True)
class Draw:
    """Source of the choices of one call."""

    form: np.random.Generator
    data: np.random.Generator
    library: str
    device: str | None

    def one_of(self, *choices: Any) -> Any:
        """One of several choices, the same for calls of one form."""
        return choices[int(self.form.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        """True with this probability, the same for calls of one form."""
        return bool(self.form.random() < probability)

    def extent(self, least: int, most: int) -> int:
        """A number, up to an eighth larger or smaller in calls of one form."""
        middle = int(self.form.integers(least, most, endpoint=True))
        spread = middle // 8
        return min(max(middle + int(self.data.integers(-spread, spread, endpoint=True)), least), most)

    def shape(self) -> tuple[int, ...]:
        """One to four extents."""
        return tuple(self.extent(1, most) for most in (6, 12, 40, 300)[4 - int(self.form.integers(1, 5)) :])

    def values(self, word: str, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers of a type, as float64 or as that type of integers, of one of several distributions."""
        rng = self.data
        if word not in FLOATS:
            if word == "bool":
                return rng.random(shape) < 0.5
            low, high = (0, 10) if word.startswith("u") else (-9, 10)
            return rng.integers(low, high, shape).astype(word)
        form = int(self.form.integers(8))
        x = rng.standard_normal(shape)
        if form == 1:
            x = x * 10.0 ** rng.uniform(-3, 3, shape)
        elif form == 2:
            x = 1000 + x
        elif form == 3:
            x = np.rint(3 * x)
        elif form == 4:
            x = np.where(rng.random(shape) < 0.5, 1, -1) * (100 + x)
        elif form == 5 and x.size:
            x.flat[int(rng.integers(x.size))] *= 1e3
        elif form == 6:
            x = x * (2.0**-17 if word == "float16" else 2.0**-20)
        return rounded(x, word)

    def view(self, x: np.ndarray, zero: bool = True, negative: bool = True) -> np.ndarray:
        """A view of the same or fewer elements with other strides, some of them negative or zero."""
        form = int(self.form.integers(7))
        if form == 1 and x.ndim > 1:
            return x.swapaxes(0, -1)
        if form == 2:
            return x[..., ::2]
        if form == 3 and negative:
            return x[::-1]
        if form == 4 and x.ndim > 1 and zero:
            return np.broadcast_to(x[:1], x.shape)
        if form == 5 and x.ndim > 1:
            return x[:, 1:] if x.shape[1] > 1 else x
        if form == 6 and negative:
            return x[..., ::-1]
        return x

    def given(self, x: np.ndarray, word: str, places: tuple[int, ...] = (0, 0, 0, 16, 3)) -> Any:
        """An array of the call's library with the strides of ``x``, among bytes that are no part of it, after one of so many elements."""
        if x.size and any(stride < 0 for stride in x.strides) and self.library == "torch":
            x = x.copy()
        steps = [stride // x.itemsize if extent > 1 else 1 for stride, extent in zip(x.strides, x.shape, strict=True)]
        ends = [(extent - 1) * step for extent, step in zip(x.shape, steps, strict=True)] if x.size else []
        first, count = -sum(min(end, 0) for end in ends), sum(abs(end) for end in ends) + (1 if x.size else 0)
        first += self.one_of(*places)
        kind = np.dtype("uint16" if word == "bfloat16" else word)
        memory = np.full((first + count + 5) * kind.itemsize, 1 if word == "bool" else GARBAGE, np.uint8).view(kind)
        byte_steps = tuple(step * kind.itemsize for step in steps)
        placed = np.lib.stride_tricks.as_strided(memory[first:], x.shape, byte_steps)
        with np.errstate(over="ignore"):
            placed[...] = bits_of(x) if word == "bfloat16" else x.astype(kind)
        if self.library == "numpy":
            return placed
        if self.library == "cupy":
            import cupy

            there = cupy.asarray(memory)
            return cupy.ndarray(x.shape, kind, there.data + first * kind.itemsize, byte_steps)
        import torch

        there = torch.from_numpy(memory)
        if word == "bfloat16":
            there = there.view(torch.bfloat16)
        return there.to(self.device).as_strided(x.shape, steps, first)


def bits_of(x: np.ndarray) -> np.ndarray:
    """The bits of numbers that bfloat16 holds."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def rounded(x: np.ndarray, word: str) -> np.ndarray:
    """The nearest numbers of a type, as float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        if word != "bfloat16":
            return np.asarray(x).astype(word).astype(np.float64)
        exact = np.asarray(x, np.float64)
        step = 2.0 ** (np.maximum(np.floor(np.log2(np.where(exact == 0, 1, np.abs(exact)))), -126) - 7)
        near = np.where(np.isfinite(exact), np.rint(exact / step) * step, exact)
        return np.where(np.abs(near) >= 2.0**128, np.copysign(np.inf, near), near)


def found(result: Any) -> tuple[np.ndarray, str]:
    """The numbers of a result, floats as float64, and their type."""
    word = str(result.dtype).removeprefix("torch.")
    if hasattr(result, "cpu"):
        result = (result.float() if word == "bfloat16" else result).cpu().numpy()
    elif hasattr(result, "get"):
        result = result.get()
    if word == "uint16":
        word, result = "bfloat16", (result.astype(np.uint32) << 16).view(np.float32)
    return (result.astype(np.float64) if word in FLOATS else result), word


def fault(result: Any, word: str, want: Any, bound: Any = 0.0) -> str:
    """Empty if a result has this type and these numbers, floats within ``bound`` and one rounding; else the difference, in words."""
    got, kind = found(result)
    want = np.asarray(want)
    if kind != word:
        return f"{kind} instead of {word}"
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if word not in FLOATS:
        wrong = got != want
    else:
        with np.errstate(all="ignore"):
            bound = np.broadcast_to(np.asarray(bound, np.float64), want.shape)
            allowed = bound + UNIT[word] * (np.abs(want) + bound) + SMALLEST[word]
            same = (np.isnan(got) & np.isnan(want)) | (got == want)
            beyond = np.isinf(got) & (np.sign(got) == np.sign(want)) & (np.abs(want) + bound >= OVERFLOW[word])
            wrong = ~(same | beyond | (np.abs(got - want) <= allowed))
    if not wrong.any():
        return ""
    at = tuple(int(index) for index in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    allowed_there = float(np.broadcast_to(np.asarray(bound), want.shape)[at])
    return f"{int(wrong.sum())} of {wrong.size}, first at {at}: {got[at]!r} instead of {want[at]!r}, bound {allowed_there:.3g}"
