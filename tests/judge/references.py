"""References of the corpus."""

import numpy as np


def gemm(sizes, arrays):
    return {"C": arrays["A"] @ arrays["B"]}


def row_sum(sizes, arrays):
    return {"y": arrays["x"].sum(axis=1)}


def row_max(sizes, arrays):
    return {"y": arrays["x"].max(axis=1)}


def scale_add(sizes, arrays):
    return {"y": 2 * arrays["x"] + arrays["z"]}


def relu(sizes, arrays):
    return {"y": np.maximum(arrays["x"], 0.0)}


def transpose(sizes, arrays):
    return {"y": arrays["x"].T}


def softmax(sizes, arrays):
    x = arrays["x"]
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    y = powers / powers.sum(axis=1, keepdims=True)
    # The difference of two elements errs by half a unit in its last place, which the exponential multiplies.
    spread = 2 + np.abs(x - x.max(axis=1, keepdims=True))
    return {"y": y, "y_bound": np.maximum(y * 2.0**-23 * (sizes["n"] + 4 * spread), 2.0**-126)}


def layer_norm(sizes, arrays):
    x = arrays["x"]
    n = sizes["n"]
    centred = x - x.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    y = centred * scale
    off = (n + 8) * 2.0**-24 * np.abs(x).mean(axis=1, keepdims=True) + 2.0**-24 * np.abs(x)
    return {"y": y, "y_bound": scale * off * (2 + 2 * np.abs(y) * np.sqrt(n)) + np.abs(y) * (n + 16) * 2.0**-23 + 1e-37}


def scan(sizes, arrays):
    return {"y": np.cumsum(arrays["x"], axis=1)}


def stencil_without_bound(sizes, arrays):
    x = np.pad(arrays["x"], ((0, 0), (1, 1)))
    return {"y": x[:, :-2] - 2 * x[:, 1:-1] + x[:, 2:]}


def stencil(sizes, arrays):
    x = np.pad(np.abs(arrays["x"]), ((0, 0), (1, 1)))
    return stencil_without_bound(sizes, arrays) | {"y_bound": 2.0**-22 * (x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]) + 2.0**-126}


def histogram(sizes, arrays):
    return {"y": np.stack([np.bincount(row & 15, minlength=16) for row in arrays["x"].astype(np.int64)])}


def silu(sizes, arrays):
    x = arrays["x"]
    with np.errstate(over="ignore"):
        y = x / (1 + np.exp(-x))
    # The exponential of 88.8 is infinite in float32, where the result is 88.8 / 2^128.
    return {"y": y, "y_bound": np.abs(y) * 2.0**-20 * (1 + np.abs(x)) + 2.0**-118}
