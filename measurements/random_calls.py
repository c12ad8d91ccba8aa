"""Random calls of ``gemmgen.ops`` beside NumPy in float64 or exact integers.

    python measurements/random_calls.py reduce --calls 200 --seed 3
    python measurements/random_calls.py elementwise --calls 5000 --jobs-nice 10 --journal calls.jsonl
    python measurements/random_calls.py rows --device cuda --seconds 60       # tensors of torch on a GPU

Prints wrong results, refusals and calls that raised anything but ``LaunchError``, and exits with 1 for a wrong value or a traceback.
Calls of a seed are always the same; ``--first`` starts in the middle. With a journal, which has a line of JSON for each block of
calls, a program that was ended continues behind the last block.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen import ops
from gemmgen.core.errors import LaunchError

TYPES = ("float32", "float32", "float16", "float64", "int8", "int32", "int64", "uint8", "int16", "bool")
REDUCTIONS = ("sum", "prod", "min", "max", "mean", "sum_of_squares", "l1_norm", "norm", "any", "all", "argmin", "argmax", "var", "std")
UNARY = ("relu", "abs", "square")
ROWS = ("softmax", "log_softmax", "cumsum", "logcumsumexp", "rms_norm", "layer_norm", "softmax_gradient", "log_softmax_gradient",
        "rms_norm_gradient", "layer_norm_gradient")  # fmt: skip
OVERFLOWS = {np.dtype(np.float16): 65520.0, np.dtype(np.float32): 2.0**128 - 2.0**103}
"""The least magnitude that becomes infinity as a number of a type."""
HALF_STEP = {np.dtype(np.float16): 2.0**-25}
"""Half of the distance of the smallest numbers of a type."""
MOST_FACTORS = 126
"""Sum of the factors' binary exponents, without their signs, up to which no order of a product leaves the range of float32."""
MOST_SELECTED_FROM = 6000
"""Elements of an array for topk, which the emulator compares in many turns."""
BLOCK = 25
"""Calls of a line of the journal."""
_DEVICE: list[str] = []
"""Device that arrays go to as tensors of torch, if there is one."""


def there(x: np.ndarray) -> Any:
    """The array, or a tensor with its strides on the device."""
    if not _DEVICE:
        return x
    import torch

    if any(stride < 0 for stride in x.strides):
        x = x.copy()
    plain = torch.from_numpy(np.array(x, order="C"))
    strides = tuple(stride // x.itemsize for stride in x.strides)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True)) if x.size else 0
    target = torch.zeros(max(extent, 1), dtype=plain.dtype, device=_DEVICE[0]).as_strided(x.shape, strides)
    if 0 in strides:
        index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        target[index].copy_(plain[index])
    else:
        target.copy_(plain)
    return target


def here(x: Any) -> Any:
    """The array of a result."""
    return x.cpu().numpy() if _DEVICE else x


def values(rng: np.random.Generator, word: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array of a type, of one of several distributions."""
    if word.startswith("float"):
        form = int(rng.integers(4))
        x = rng.standard_normal(shape)
        if form == 1:
            x = x * 10.0 ** rng.uniform(-3, 3, shape)
        elif form == 2:
            x = 1000 + x
        elif form == 3:
            x = np.rint(3 * x)
        return x.astype(word)
    if word == "bool":
        return rng.random(shape) < 0.5
    low, high = (0, 9) if word.startswith("u") else (-9, 10)
    return rng.integers(low, high, shape).astype(word)


def laid_out(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The same or fewer elements with other strides."""
    form = int(rng.integers(5))
    if form == 1 and x.ndim > 1:
        return x.swapaxes(0, -1)
    if form == 2:
        return x[..., ::2]
    if form == 3:
        return x[::-1]
    if form == 4 and x.ndim > 1:
        return np.broadcast_to(x[:1], x.shape)
    return x


def shape_of(rng: np.random.Generator) -> tuple[int, ...]:
    """One to four extents."""
    return tuple(int(extent) for extent in rng.integers(1, (300, 40, 12, 6)[: int(rng.integers(1, 5))][::-1], endpoint=True))


def close(got: Any, want: np.ndarray, scale: np.ndarray, tolerance: float) -> bool:
    """True if integers are equal, and floats within a part of the sum of the sizes that they are made of."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return False
    if not np.issubdtype(got.dtype, np.floating):
        return bool((got == want).all())
    if got.dtype in OVERFLOWS:
        want = np.where(np.abs(want) >= OVERFLOWS[got.dtype], np.copysign(np.inf, want), want)
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - want)
        least = HALF_STEP.get(got.dtype, 1e-38)  # results below the normal numbers are rounded by it
        return bool(((error <= tolerance * scale + least) | (np.isnan(got) & np.isnan(want)) | (got == want)).all())


def reduce_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One reduction: True if it is right, and its description."""
    word, op = str(rng.choice(TYPES)), str(rng.choice(REDUCTIONS))
    x = laid_out(rng, values(rng, word, shape_of(rng)))
    axis = None if rng.random() < 0.2 else int(rng.integers(-x.ndim, x.ndim))
    keepdims = bool(rng.random() < 0.3)
    said = f"reduce {op} {word} {x.shape} {x.strides} axis={axis}"
    got = here(ops.reduce(there(x), op, axis, keepdims=keepdims))
    wide = x.astype(np.float64 if word.startswith("float") else np.int64)
    named: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    functions = {
        "sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "mean": np.mean, "any": np.any, "all": np.all,
        "argmin": np.argmin, "argmax": np.argmax, "var": np.var, "std": np.std,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        if op in functions:
            want = functions[op](wide, **named)
        else:
            want = np.sum(np.abs(wide) if op == "l1_norm" else wide * wide, **named)
            want = np.sqrt(want) if op == "norm" else want
        if op == "prod" and got.dtype == np.float32:
            exponents = np.abs(np.log2(np.where(wide == 0, 1, np.abs(wide))))
            want = np.where(np.sum(exponents, **named) < MOST_FACTORS, want, got)
        sizes = np.sum(np.abs(wide.astype(np.float64)) ** (2 if op in ("sum_of_squares", "var") else 1), **named)
        sizes = np.abs(want) if op in ("prod", "norm", "min", "max", "l1_norm") else np.abs(want) + sizes
    unit = 2.0**-53 if got.dtype == np.float64 else 2.0**-24
    return close(got, want, sizes, unit * max(64, 2 * x.size)), said


def elementwise_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One elementwise operation: True if it is right, and its description."""
    word, op = str(rng.choice(TYPES)), str(rng.choice((*UNARY, "bias", "copy", "residual", "multiply")))
    x = laid_out(rng, values(rng, word, shape_of(rng)))
    floats = word.startswith("float")
    if op in ("residual", "multiply") and not floats:
        op = "abs"
    held = "int8" if word == "bool" else word
    wide = x.astype(np.float64 if floats else held)
    said = f"elementwise {op} {word} {x.shape} {x.strides}"
    with np.errstate(all="ignore"):
        if op == "bias":
            other = values(rng, word, x.shape[-1:]) if rng.random() < 0.5 else int(rng.integers(0, 5))
            bias = other if isinstance(other, int) else there(other)
            got, want = (
                here(ops.elementwise(there(x), "bias", bias=bias)),
                wide + (other if isinstance(other, int) else other.astype(wide.dtype)),
            )
        elif op == "residual":
            z = values(rng, word, x.shape)
            got, want = here(ops.elementwise(there(x), "residual", z=there(z), gamma=2.0)), wide + 2 * z.astype(np.float64)
        elif op == "multiply":
            f = values(rng, word, x.shape)
            got, want = here(ops.elementwise(there(x), "multiply", f=there(f))), wide * f.astype(np.float64)
        elif op == "copy":
            got, want = here(ops.elementwise(there(x))), wide
        else:
            function = {"relu": lambda v: np.maximum(v, 0), "abs": np.abs, "square": lambda v: v * v}[op]
            got, want = here(ops.elementwise(there(x), op)), function(wide)
        unit = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}.get(word, 0.0)
        overflown = want.astype(word) if floats else want
    return got.dtype == held and (close(got, want, np.abs(want) + np.abs(wide), 4 * unit) or bool((got == overflown).all())), said


def matmul_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One product: True if it is right, and its description."""
    word = str(rng.choice(("float32", "float32", "float16", "int8")))
    m, n, k = (int(extent) for extent in rng.integers(1, 70, 3))
    batch = () if rng.random() < 0.7 else (int(rng.integers(1, 4)),)
    a, b = values(rng, word, (*batch, m, k)), values(rng, word, (k, n))
    a, b = np.clip(a, -100, 100), np.clip(b, -100, 100)
    if rng.random() < 0.3:
        b = np.asfortranarray(b)
    if rng.random() < 0.2:
        a = a[..., ::-1]
    said = f"matmul {word} {a.shape} {a.strides} {b.shape} {b.strides}"
    got = here(ops.matmul(there(a), there(b)))
    wide = np.float64 if word.startswith("float") else np.int64
    want, sizes = a.astype(wide) @ b.astype(wide), np.abs(a).astype(wide) @ np.abs(b).astype(wide)
    return close(got, want, sizes, {"float32": 2.0**-24, "float16": 2.0**-10}.get(word, 0.0) * max(4, 2 * k)), said


def rows_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One operation on rows: True if it is right, and its description. The reference is NumPy in float64."""
    word, op = str(rng.choice(("float32", "float16"))), str(rng.choice(ROWS))
    shape = shape_of(rng)
    axis = int(rng.integers(-len(shape), len(shape)))
    x = laid_out(rng, np.clip(values(rng, word, shape), -100, 100))
    n = x.shape[axis]
    weight, bias = (values(rng, "float32", (n,)) for _ in range(2))
    said = f"{op} {word} {x.shape} {x.strides} axis={axis}"
    wide, line = np.moveaxis(x.astype(np.float64), axis, -1), {"axis": -1, "keepdims": True}
    unit = {"float16": 2.0**-10, "float32": 2.0**-23}[word]
    powers = np.exp(wide - wide.max(**line))
    shares = powers / powers.sum(**line)
    distance = wide.max(**line) - wide  # the rounding of an exponent is a relative error of its power
    centred = wide - wide.mean(**line) if op.startswith("layer") else wide
    eps = 1e-5 if op.startswith("layer") else 1e-6
    inverse = 1 / np.sqrt((centred**2).mean(**line) + eps)
    normal = centred * inverse
    function = getattr(ops, op)
    growth = 8 + n / 8
    if op in ("softmax", "log_softmax"):
        want = shares if op == "softmax" else wide - wide.max(**line) - np.log(powers.sum(**line))
        got, sizes = [function(there(x), axis)], [np.abs(want) + (shares * distance if op == "softmax" else 1 + np.abs(wide))]
        wanted = [want]
    elif op in ("cumsum", "logcumsumexp"):
        wanted = [np.cumsum(wide, axis=-1) if op == "cumsum" else np.logaddexp.accumulate(wide, axis=-1)]
        got, sizes = [function(there(x), axis)], [np.cumsum(np.abs(wide), axis=-1) + (op != "cumsum")]
    elif op.endswith("softmax_gradient"):
        y = np.moveaxis((shares if op == "softmax_gradient" else np.log(np.maximum(shares, 1e-30))), -1, axis).astype(word)
        dy, kept = wide, np.moveaxis(y.astype(np.float64), axis, -1)
        whole = ((dy * kept) if op == "softmax_gradient" else dy).sum(**line)
        wanted = [(dy - whole) * kept if op == "softmax_gradient" else dy - np.exp(kept) * whole]
        size = np.abs(dy).sum(**line)
        sizes, got = [np.abs(dy) + size * np.abs(kept if op == "softmax_gradient" else np.exp(kept))], [function(there(x), there(y), axis)]
    elif op in ("rms_norm", "layer_norm"):
        wanted = [normal * weight + (bias if op == "layer_norm" else 0)]
        vectors = (there(weight), there(bias)) if op == "layer_norm" else (there(weight),)
        got = [function(there(x), *vectors, axis=axis)]
        sizes = [(np.abs(normal) + inverse * np.abs(wide).mean(**line)) * np.abs(weight) + np.abs(bias)]
    else:
        dy = np.clip(values(rng, word, x.shape), -100, 100)
        down = np.moveaxis(dy.astype(np.float64), axis, -1)
        weighted = down * weight
        along, level = (weighted * normal).mean(**line), weighted.mean(**line) if op.startswith("layer") else 0.0
        others = tuple(range(x.ndim - 1))
        wanted = [(weighted - level - normal * along) * inverse, (down * normal).sum(others), down.sum(others)]
        blurred = np.abs(normal) + inverse * np.abs(wide).mean(**line)
        size = np.abs(weighted) + np.abs(weighted).mean(**line) * (1 + blurred * blurred)
        sizes = [size * inverse * (1 + blurred), (np.abs(down) * blurred).sum(others) * 2, np.abs(down).sum(others)]
        got = list(function(there(dy), there(x), there(weight), axis=axis))
        wanted, sizes = wanted[: len(got)], sizes[: len(got)]
        growth = max(growth, 8 + x.size / n / 8)
    right = True
    for index, (mine, other, size) in enumerate(zip(got, wanted, sizes, strict=True)):
        found = here(mine)
        placed = np.moveaxis(found, axis, -1) if index == 0 else found
        smallest = 2.0**-24 if word == "float16" else 0.0
        right &= close(placed, other, size + smallest / unit, unit * growth if found.dtype == word else 2.0**-23 * growth)
    return right, said


def topk_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One ``topk``: True if values and places are those of a stable order, and its description."""
    word, largest = str(rng.choice(("float32", "float16"))), bool(rng.integers(2))
    x = values(rng, word, shape_of(rng) if rng.random() < 0.9 else (int(rng.integers(1, 4)), int(rng.integers(300, 3000))))
    x[rng.random(x.shape) < rng.choice((0, 0.05, 0.3))] = rng.choice((np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0))
    while x.size > MOST_SELECTED_FROM:
        x = x[: -(-x.shape[0] // 2)] if x.shape[0] > 1 else x[0]
    x = laid_out(rng, x)
    axis = int(rng.integers(-x.ndim, x.ndim))
    n = x.shape[axis]
    k = int(rng.integers(1, min(n, 64), endpoint=True))
    said = f"topk {word} {x.shape} {x.strides} k={k} axis={axis} largest={largest}"
    found, places = map(here, ops.topk(there(x), k, axis, largest=largest))
    order = np.argsort(x, axis, kind="stable") if not largest else n - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    first = np.take(order, np.arange(k), axis)
    wanted = np.take_along_axis(x, first, axis)
    same = np.array_equal(found.view(f"i{x.itemsize}"), wanted.view(f"i{x.itemsize}"))
    return found.dtype == x.dtype and places.dtype == np.int64 and same and np.array_equal(places, first), said


def conv2d_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One convolution of small integers, NHWC, in one or several groups, some with infinities: True if it is exact, and its description."""
    word = str(rng.choice(("int8", "float16")))
    n, h, w = (int(one) for one in rng.integers(1, (3, 13, 13), endpoint=True))
    groups = int(rng.choice((1, 1, 2, 3, 4, 8)))
    if groups > 1:
        inputs = int(rng.choice((1, 2, 4, 8, 16, 24, 40)))
        outputs = inputs if rng.random() < 0.5 else int(rng.choice((1, 4, 16, 48)))
        c, k = groups * inputs, groups * outputs
    else:
        inputs, outputs = (int(one) for one in rng.integers(1, (70, 70), endpoint=True))
        c, k = inputs, outputs
    r, s = (int(one) for one in rng.choice((1, 3, 5), 2))
    stride, padding = int(rng.integers(1, 3)), int(rng.integers(0, 3))
    said = f"conv2d {word} n={n} h={h} w={w} c={c} k={k} groups={groups} r={r} s={s} stride={stride} padding={padding}"
    if h + 2 * padding < r or w + 2 * padding < s:
        return True, said
    x, f = rng.integers(-3, 4, (n, h, w, c)).astype(np.float64), rng.integers(-2, 3, (k, r, s, inputs)).astype(np.float64)
    if word == "float16" and groups > 1 and rng.random() < 0.3:
        x[rng.random(x.shape) < 0.01] = rng.choice((np.inf, -np.inf, np.nan))
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (r, s), (1, 2))[:, ::stride, ::stride]
    with np.errstate(invalid="ignore"):
        parts = [
            np.einsum("npqcrs,krsc->npqk", views[:, :, :, g * inputs : (g + 1) * inputs], f[g * outputs : (g + 1) * outputs])
            for g in range(groups)
        ]
    want = np.concatenate(parts, axis=3)
    if word == "int8":
        want = np.clip(want, -128, 127)
    image, filters = (there(one.astype(word).transpose(0, 3, 1, 2)) for one in (x, f))
    got, want = here(ops.conv2d(image, filters, stride=stride, padding=padding, groups=groups)), want.transpose(0, 3, 1, 2)
    return bool(np.array_equal(got, want.astype(got.dtype), equal_nan=word == "float16")), said


KINDS = {
    "reduce": reduce_once,
    "elementwise": elementwise_once,
    "matmul": matmul_once,
    "rows": rows_once,
    "topk": topk_once,
    "conv2d": conv2d_once,
}


def run(kind: str, calls: int, seed: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Outcomes of calls, and their reports."""
    found: Counter[str] = Counter()
    told: list[str] = []
    for number in range(first, first + calls):
        try:
            right, said = KINDS[kind](np.random.default_rng([seed, number]))
            found["right" if right else "wrong"] += 1
            told += [] if right else [f"WRONG {number}: {said}"]
        except LaunchError as error:
            found["refused"] += 1
            told.append(f"refused {number}: {error}")
        except Exception:
            found["traceback"] += 1
            told.append(f"TRACEBACK {number}: {traceback.format_exc(limit=-3)}")
    return found, told


def done_before(journal: Path | None, kind: str, seed: int, first: int) -> tuple[Counter[str], int]:
    """Outcomes that a journal has, and the number of the next call. Lines that were cut off count for nothing."""
    found: Counter[str] = Counter()
    for line in journal.read_text().splitlines() if journal is not None and journal.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if (entry["kind"], entry["seed"], entry["first"]) == (kind, seed, first):
            found.update(entry["found"])
            first += entry["calls"]
    return found, first


def main() -> None:
    """Makes the calls and prints their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no more calls after this time")
    parser.add_argument("--journal", type=Path, help="file to which each block of calls is added, and from which to go on")
    parser.add_argument("--device", help="a device of torch that the arrays go to, cuda say")
    parser.add_argument("--jobs-nice", type=int, default=0, help="how much less urgent the process is")
    options = parser.parse_args()
    os.nice(options.jobs_nice)
    if options.device:
        _DEVICE.append(options.device)
    until = time.monotonic() + options.seconds
    last = options.first + options.calls
    found, number = done_before(options.journal, options.kind, options.seed, options.first)
    while number < last and time.monotonic() < until:
        count = min(BLOCK, last - number)
        block, told = run(options.kind, count, options.seed, number)
        found.update(block)
        print("".join(f"{line}\n" for line in told), end="", flush=True)
        if options.journal is not None:
            entry = {"kind": options.kind, "seed": options.seed, "first": number, "calls": count, "found": dict(block), "told": told}
            with options.journal.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        number += count
    print(f"{options.kind}, seed {options.seed}: {dict(found)}")
    sys.exit(1 if found["wrong"] or found["traceback"] else 0)


if __name__ == "__main__":
    main()
