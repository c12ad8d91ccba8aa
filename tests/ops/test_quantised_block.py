"""The example of a quantised ResNet block, at a small size on the emulator."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import quantised_block as example


def test_the_block_is_close_to_float32():
    assert example.run(images=1, channels=64, size=6) < 0.03


def test_the_block_is_what_its_integers_say(monkeypatch):
    monkeypatch.setattr(example, "_device", lambda: (lambda array: array, lambda array: array))
    rng = np.random.default_rng(3)
    shapes = [(16, 64, 1, 1), (16, 16, 3, 3), (64, 16, 1, 1)]
    weights = [rng.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]
    biases = [rng.normal(0, 1, shape[0]).astype(np.float32) for shape in shapes]
    scales = [0.02, 0.03, 0.04, 0.05]
    block = example.Block(weights, biases, scales, lambda array: array)
    x = example.channels_last(rng.integers(-128, 128, (2, 64, 5, 4)).astype(np.int8))
    y = x
    for index, layer in enumerate(block.layers):
        sums = example.convolved(y.astype(np.float64), layer.weights.source.astype(np.float64), layer.padding)
        shift = (layer.alpha.astype(np.float64)[:, None, None] * sums + layer.bias[:, None, None]).astype(np.float32)
        if index == 2:
            shift = (np.float32(block.residual_factor).astype(np.float64) * x + shift).astype(np.float32)
        y = np.clip(np.rint(np.maximum(shift, 0)), -128, 127).astype(np.int8)
    assert (block(x) == y).all()
