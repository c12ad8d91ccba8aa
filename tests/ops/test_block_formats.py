"""Matrices in block-scaled formats: conversions back, and products of them on the emulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.elements import to_numbers
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.gemm.scaling import from_tiles
from gemmgen.ops import quantize_blocks
from gemmgen.ops.block_formats import MAGNITUDES
from gemmgen.runtime import kernel as kernel_module

FILE = "specs/gemm/mma_sync/block_scales.yaml"
RANDOM = np.random.default_rng(11)


def numbers(codes: Any, tiles: Any, factor: float, format: str) -> Any:
    """The matrix that codes and scales say."""
    codes, tiles = codes.view(np.uint8), tiles.view(np.uint8)
    if format == "mxfp8":
        values = to_numbers("e4m3", codes).astype(np.float64)
    else:
        both = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
        values = np.array(MAGNITUDES)[both & 7] * np.where(both & 8, -1, 1)
    length = 16 if format == "nvfp4" else 32
    scales = to_numbers("e4m3" if format == "nvfp4" else "ue8m0", from_tiles(tiles, len(values), -(-values.shape[1] // length)))
    return values * np.repeat(scales.astype(np.float64), length, axis=1)[:, : values.shape[1]] * factor


@pytest.mark.parametrize(("format", "error"), [("mxfp8", 2.0**-4), ("mxfp4", 1 / 3), ("nvfp4", 1 / 5)])
def test_blocks_keep_their_numbers(format: Any, error: float) -> None:
    """Each element is off by a half of the widest step of its type at the block's largest magnitude."""
    x = (RANDOM.standard_normal((130, 90)) * np.exp2(RANDOM.integers(-3, 4, (130, 1)))).astype(np.float32)
    x[5, :32] = 0
    codes, tiles, factor = quantize_blocks(x, format)
    assert codes.shape == (130, 90 if format == "mxfp8" else 45)
    assert tiles.shape == (2, 2 if format == "nvfp4" else 1, 512)
    got = numbers(codes, tiles, factor, format)
    length = 16 if format == "nvfp4" else 32
    for first in range(0, 90, length):
        part = np.s_[:, first : first + length]
        largest = np.abs(x[part]).max(axis=1, keepdims=True)
        assert (np.abs(got[part] - x[part]) <= error * largest + 1e-12).all()
    assert (got[5, :32] == 0).all()


def test_halves_round_to_even() -> None:
    x = np.array([[6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, -0.25]], np.float32)
    codes, _, _ = quantize_blocks(x, "mxfp4")
    both = np.stack([codes & 15, codes >> 4], -1).ravel().tolist()
    assert both == [7, 0, 2, 2, 4, 4, 6, 6, 14, 8]


@pytest.mark.parametrize("format", ["mxfp8", "nvfp4"])
def test_products_of_quantised_matrices(format: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (RANDOM.standard_normal((lines, 96)).astype(np.float32) for lines in (20, 24))
    (qa, sa, fa), (qb, sb, fb) = quantize_blocks(a, format), quantize_blocks(b, format)
    variant = "nvfp4_64x64" if format == "nvfp4" else "mxfp8"
    kernel = gemmgen.compile(f"{FILE}/{variant}")
    c = np.zeros((20, 24), np.uint16)
    # NumPy has no such elements without another package: here their bytes are taken for them.
    types = {array.name: array.type for array in kernel.sequence.arrays}
    own = kernel_module.describe
    monkeypatch.setattr(kernel_module, "describe", lambda array, name, stream: replace(own(array, name, stream), type=types[name]))
    kernel(A=qa, B=qb.T, scales_a=sa, scales_b=sb, C=c, alpha=fa * fb, k=96)
    wanted = numbers(qa, sa, fa, format) @ numbers(qb, sb, fb, format).T
    assert np.abs(to_numbers("bf16", c) - wanted).max() <= 2.0**-8 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("x", "format", "words"),
    [
        (np.zeros((2, 4), np.float32), "fp4", "need 'mxfp8'"),
        (np.zeros((2, 3), np.float32), "nvfp4", "an even number"),
        (np.zeros((2, 3, 4), np.float32), "nvfp4", "two axes"),
        (np.zeros((2, 4), np.int32), "mxfp8", "two axes of float32"),
    ],
)
def test_other_arguments_are_refused(x: Any, format: Any, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        quantize_blocks(x, format)
