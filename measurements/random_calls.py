"""Random calls of ``gemmgen.ops`` beside NumPy in float64 or exact integers.

    python measurements/random_calls.py reduce --calls 200 --seed 3
    python measurements/random_calls.py elementwise --calls 5000 --jobs-nice 10

Prints what is wrong, what is refused and what raised anything but ``LaunchError``, and exits with 1 for a wrong value or a traceback.
Calls of a seed are always the same; ``--first`` starts in the middle.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter
from typing import Any

import numpy as np

from gemmgen import ops
from gemmgen.core.errors import LaunchError

TYPES = ("float32", "float32", "float16", "float64", "int8", "int32", "int64", "uint8", "int16", "bool")
REDUCTIONS = ("sum", "prod", "min", "max", "mean", "sum_of_squares", "l1_norm", "norm", "any", "all", "argmin", "argmax", "var", "std")
UNARY = ("relu", "abs", "square")


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
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - want)
        return bool(((error <= tolerance * scale + 1e-38) | (np.isnan(got) & np.isnan(want)) | (got == want)).all())


def reduce_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One reduction: True if it is right, and what it was."""
    word, op = str(rng.choice(TYPES)), str(rng.choice(REDUCTIONS))
    x = laid_out(rng, values(rng, word, shape_of(rng)))
    axis = None if rng.random() < 0.2 else int(rng.integers(-x.ndim, x.ndim))
    keepdims = bool(rng.random() < 0.3)
    said = f"reduce {op} {word} {x.shape} {x.strides} axis={axis}"
    got = ops.reduce(x, op, axis, keepdims=keepdims)
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
        sizes = np.sum(np.abs(wide.astype(np.float64)) ** (2 if op in ("sum_of_squares", "var") else 1), **named)
        sizes = np.abs(want) if op in ("prod", "norm", "min", "max", "l1_norm") else np.abs(want) + sizes
    unit = 2.0**-53 if got.dtype == np.float64 else 2.0**-24
    return close(got, want, sizes, unit * max(64, 2 * x.size)), said


def elementwise_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One elementwise operation: True if it is right, and what it was."""
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
            got, want = ops.elementwise(x, "bias", bias=other), wide + (other if isinstance(other, int) else other.astype(wide.dtype))
        elif op == "residual":
            z = values(rng, word, x.shape)
            got, want = ops.elementwise(x, "residual", z=z, gamma=2.0), wide + 2 * z.astype(np.float64)
        elif op == "multiply":
            f = values(rng, word, x.shape)
            got, want = ops.elementwise(x, "multiply", f=f), wide * f.astype(np.float64)
        elif op == "copy":
            got, want = ops.elementwise(x), wide
        else:
            function = {"relu": lambda v: np.maximum(v, 0), "abs": np.abs, "square": lambda v: v * v}[op]
            got, want = ops.elementwise(x, op), function(wide)
        unit = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}.get(word, 0.0)
        overflown = want.astype(word) if floats else want
    return got.dtype == held and (close(got, want, np.abs(want) + np.abs(wide), 4 * unit) or bool((got == overflown).all())), said


def matmul_once(rng: np.random.Generator) -> tuple[bool, str]:
    """One product: True if it is right, and what it was."""
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
    got = ops.matmul(a, b)
    wide = np.float64 if word.startswith("float") else np.int64
    want, sizes = a.astype(wide) @ b.astype(wide), np.abs(a).astype(wide) @ np.abs(b).astype(wide)
    return close(got, want, sizes, {"float32": 2.0**-24, "float16": 2.0**-10}.get(word, 0.0) * max(4, 2 * k)), said


KINDS = {"reduce": reduce_once, "elementwise": elementwise_once, "matmul": matmul_once}


def run(kind: str, calls: int, seed: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Outcomes of calls, and what is to be told of them."""
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


def main() -> None:
    """Makes the calls and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs-nice", type=int, default=0, help="how much less urgent the process is")
    options = parser.parse_args()
    os.nice(options.jobs_nice)
    found, told = run(options.kind, options.calls, options.seed, options.first)
    print("\n".join(told))
    print(f"{options.kind}, seed {options.seed}: {dict(found)}")
    sys.exit(1 if found["wrong"] or found["traceback"] else 0)


if __name__ == "__main__":
    main()
