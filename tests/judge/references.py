"""References of the corpus."""

import numpy as np


def gemm(sizes, arrays):
    return {"C": arrays["A"] @ arrays["B"]}


def row_sum(sizes, arrays):
    return {"y": arrays["x"].sum(axis=1)}


def scale_add(sizes, arrays):
    return {"y": 2 * arrays["x"] + arrays["z"]}


def relu(sizes, arrays):
    return {"y": np.maximum(arrays["x"], 0.0)}


def transpose(sizes, arrays):
    return {"y": arrays["x"].T}
