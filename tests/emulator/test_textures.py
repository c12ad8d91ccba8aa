"""Textures: point and linear sampling, address modes, types, and refused forms."""

from __future__ import annotations

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.emulator import Texture

RANDOM = np.random.default_rng(0)
SAMPLE = """
__global__ void sample(cudaTextureObject_t image, const float* x, const float* y, float* out, int n) {
    int i = threadIdx.x;
    if (i < n) out[i] = tex2D<float>(image, x[i], y[i]);
}
"""


def sampled(texture: Texture, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    places = [np.asarray(each, np.float32) for each in (x, y)]
    result = gemmgen.emulate(SAMPLE, grid=1, block=128, args=[texture, *places, np.zeros(len(x), np.float32), len(x)])
    return result.check()["out"]


def test_points_are_clamped():
    image = RANDOM.standard_normal((5, 7)).astype(np.float32)
    x, y = RANDOM.uniform(-3, 10, 100), RANDOM.uniform(-3, 8, 100)
    expected = image[np.clip(np.floor(y), 0, 4).astype(int), np.clip(np.floor(x), 0, 6).astype(int)]
    np.testing.assert_array_equal(sampled(Texture(image), x, y), expected)


def test_outside_a_border_there_is_nothing():
    image = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(sampled(Texture(image, address="border"), [-0.5, 0.5, 4.0], [1, 1, 1]), [0, 1, 0])
    half = sampled(Texture(image, address="border", filter="linear"), [0.0, 0.5, 4.0], [1, 1, 1])
    np.testing.assert_array_equal(half, [0.5, 1, 0.5])


@pytest.mark.parametrize(("mode", "texels"), [("wrap", [3, 0, 3, 0, 1]), ("mirror", [0, 0, 3, 3, 2])])
def test_places_beyond_the_edges_come_back(mode, texels):
    image = np.tile(np.arange(4, dtype=np.float32), (2, 1))
    x = np.array([-0.125, 0.125, 0.875, 1.125, 1.375])
    np.testing.assert_array_equal(sampled(Texture(image, address=mode, normalized=True), x, np.full(5, 0.25)), texels)


def test_linear_filtering_weighs_four_texels():
    image = RANDOM.standard_normal((6, 8)).astype(np.float32)
    x, y = RANDOM.uniform(0.5, 7.5, 100), RANDOM.uniform(0.5, 5.5, 100)
    i, j = (np.floor(each - 0.5).astype(int) for each in (x, y))
    a, b = x - 0.5 - i, y - 0.5 - j
    right, below = np.minimum(i + 1, 7), np.minimum(j + 1, 5)
    expected = (1 - b) * ((1 - a) * image[j, i] + a * image[j, right]) + b * ((1 - a) * image[below, i] + a * image[below, right])
    np.testing.assert_allclose(sampled(Texture(image, filter="linear"), x, y), expected, atol=8 / 256)
    middle = sampled(Texture(image, filter="linear"), i + 1.0, j + 0.5)
    np.testing.assert_allclose(middle, (image[j, i] + image[j, right]) / 2, rtol=1e-6)


def test_weights_have_eight_bits_and_round_up():
    image = np.array([[0, 1], [0, 1]], np.float32)
    steps = np.array([7, 8, 23, 24, 40, 100, 4088, 4095])
    got = sampled(Texture(image, filter="linear"), 0.5 + steps / 4096, np.full(len(steps), 0.5))
    assert (got * 256).tolist() == [0, 1, 1, 2, 3, 6, 256, 256]


FETCH = """
__global__ void fetch(cudaTextureObject_t numbers, cudaTextureObject_t colours, int* out, float4* shades) {
    int i = threadIdx.x;
    out[i] = tex1Dfetch<int>(numbers, i);
    shades[i] = tex2D<float4>(colours, i + 0.5f, 0.5f);
}
"""


def test_whole_numbers_channels_and_normalised_bytes():
    numbers = np.arange(30, dtype=np.int32) + 100
    colours = RANDOM.integers(0, 256, (2, 32, 4)).astype(np.uint8)
    args = [Texture(numbers), Texture(colours, channels=4, as_float=True), np.zeros(32, np.int32), np.zeros((32, 4), np.float32)]
    result = gemmgen.emulate(FETCH, grid=1, block=32, args=args).check()
    assert result["out"].tolist() == [*range(100, 130), 0, 0]
    np.testing.assert_allclose(result["shades"], colours[0] / np.float32(255), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("texture[f32, 8x8, wrap]=zeros", "the address mode wrap needs normalised coordinates"),
        ("texture[i32, 8x8, linear]=zeros", "linear filtering needs texels that are read as floats"),
        ("texture[f64, 8x8]=zeros", "texels are integers or floats of up to 32 bits"),
        ("texture[f32, 8x8, cubic]=zeros", "'cubic': expected point, linear"),
    ],
)
def test_what_cuda_would_refuse(text, reason):
    with pytest.raises(GemmgenError, match=reason):
        gemmgen.emulate(SAMPLE, grid=1, block=32, args=[text, "f32[32]=zeros", "f32[32]=zeros", "f32[32]", 32])


def test_unwritten_texels_are_told():
    args = ["texture[f32, 8x8]", "f32[32]=zeros", "f32[32]=zeros", "f32[32]", 32]
    (finding,) = gemmgen.emulate(SAMPLE, grid=1, block=32, args=args).findings
    assert finding.code == "unwritten-read" and "image[0]" in finding.message


def test_a_number_is_no_texture():
    (finding,) = gemmgen.emulate(SAMPLE, grid=1, block=32, args=["u64=5", "f32[32]=zeros", "f32[32]=zeros", "f32[32]", 32]).findings
    assert finding.code == "out-of-bounds" and "0x5 is no texture of this launch" in finding.message
