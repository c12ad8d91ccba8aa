"""A bottleneck block of ResNet in int8: quantised once, then three convolutions with bias, ReLU and residual fused into them.

    python examples/quantised_block.py                 the block of 256 channels at 56 x 56, on a GPU through torch
    python examples/quantised_block.py --size 6 ...    in NumPy on the emulator, where there is no GPU

Weights get a scale for each output channel, activations one for each tensor. A convolution then computes

    y = relu(alpha * sum + bias + gamma * residual),   alpha[k] = scale of x * scale of w[k] / scale of y

in one kernel, with y rounded and saturated to int8. The result is held against the block in float32.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmgen import ops

LIMIT = 127


@dataclass
class Layer:
    """A quantised convolution; its weights are prepared once."""

    weights: ops.Filter
    alpha: Any
    bias: Any
    padding: int


class Block:
    """relu(x + expand(relu(middle(relu(reduce(x)))))) with int8 between the layers."""

    def __init__(self, weights: list[Any], biases: list[Any], scales: list[float], to_device: Any) -> None:
        """``weights``: float32, (k, c, r, s) of each layer; ``scales``: of x and of each layer's results."""
        self.residual_factor = scales[0] / scales[3]
        self.layers = []
        for weight, bias, x_scale, y_scale in zip(weights, biases, scales, scales[1:], strict=False):
            weight_scale = np.abs(weight).max(axis=(1, 2, 3)) / LIMIT
            whole = np.rint(weight / weight_scale[:, None, None, None]).astype(np.int8)
            alpha = (x_scale * weight_scale / y_scale).astype(np.float32)
            shift = (bias / y_scale).astype(np.float32)
            self.layers.append(Layer(ops.Filter(to_device(whole)), to_device(alpha), to_device(shift), weight.shape[2] // 2))

    def __call__(self, x: Any) -> Any:
        """``x``: (n, c, h, w) of int8, channels last."""
        y = x
        for index, layer in enumerate(self.layers):
            last = index == len(self.layers) - 1
            y = ops.conv2d(
                y,
                layer.weights,
                bias=layer.bias,
                alpha=layer.alpha,
                padding=layer.padding,
                activation="relu",
                residual=x if last else None,
                gamma=self.residual_factor if last else 1.0,
            )
        return y


def convolved(x: Any, weight: Any, padding: int) -> Any:
    """A convolution in float32, (n, c, h, w)."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, weight, optimize=True)


def exact_block(x: Any, weights: list[Any], biases: list[Any]) -> list[Any]:
    """The results of each layer in float32."""
    found, y = [], x
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        y = convolved(y, weight, weight.shape[2] // 2) + bias[:, None, None]
        y = np.maximum(y + x if index == 2 else y, 0)
        found.append(y)
    return found


def channels_last(x: Any) -> Any:
    """(n, c, h, w) with the channels side by side in memory."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def run(images: int, channels: int, size: int, seed: int = 0) -> float:
    """Error of the quantised block against float32, as a share of the largest result."""
    rng = np.random.default_rng(seed)
    narrow = channels // 4
    shapes = [(narrow, channels, 1, 1), (narrow, narrow, 3, 3), (channels, narrow, 1, 1)]
    weights = [rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32) for shape in shapes]
    biases = [rng.normal(0, 0.1, shape[0]).astype(np.float32) for shape in shapes]
    x = np.maximum(rng.normal(0, 1, (images, channels, size, size)), 0).astype(np.float32)
    expected = exact_block(x, weights, biases)
    scales = [float(np.abs(y).max()) / LIMIT for y in (x, *expected)]
    whole = channels_last(np.rint(x / scales[0]).astype(np.int8))

    to_device, to_host = _device()
    block = Block(weights, biases, scales, to_device)
    result = to_host(block(to_device(whole))).astype(np.float32) * scales[3]
    return float(np.abs(result - expected[2]).max() / expected[2].max())


def _device() -> tuple[Any, Any]:
    """How arrays get to where the block runs, and back: a GPU through torch, or host memory, which the emulator works on."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        return lambda array: array, lambda array: array
    return lambda array: torch.from_numpy(array).cuda(), lambda tensor: tensor.cpu().numpy()


def main() -> None:
    """Runs the block and prints its error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--size", type=int, default=56)
    options = parser.parse_args()
    error = run(options.images, options.channels, options.size)
    print(f"{options.images} x {options.channels} x {options.size} x {options.size}: error {100 * error:.2f}% of the largest result")


if __name__ == "__main__":
    main()
