"""The table of element types, and conversions between elements and numbers."""

import ctypes

import numpy as np
import pytest

from gemmgen.core.elements import BY_WORD, ELEMENTS, FLOATS, float_format, numpy_type, to_elements, to_numbers


@pytest.mark.parametrize("kind", ELEMENTS)
def test_numpy_and_ctypes_agree_on_the_size(kind):
    assert numpy_type(kind).itemsize == ctypes.sizeof(getattr(ctypes, ELEMENTS[kind].ctypes_name)) == ELEMENTS[kind].bytes


@pytest.mark.parametrize("kind", ELEMENTS)
def test_the_typestr_names_the_holder(kind):
    assert np.dtype(ELEMENTS[kind].typestr) == numpy_type(kind)


@pytest.mark.parametrize(("kind", "numpy_kind"), [("f16", np.float16), ("f32", np.float32), ("f64", np.float64)])
def test_formats_are_those_of_numpy(kind, numpy_kind):
    known = np.finfo(numpy_kind)
    shape = float_format(kind)
    assert (shape.roundoff, shape.smallest, shape.largest) == (float(known.eps) / 2, float(known.smallest_subnormal), float(known.max))


@pytest.mark.parametrize("kind", [kind for kind in FLOATS if kind != "f64"])
def test_the_largest_number_survives_and_more_overflows(kind):
    shape = float_format(kind)
    just_below = np.array([shape.largest, min(shape.overflow * (1 - 2.0**-30), 1e30 if shape.saturates else np.inf)])
    assert (to_numbers(kind, to_elements(kind, just_below[:1])) == shape.largest).all()
    if not shape.saturates and kind in ("f16", "bf16"):
        with np.errstate(over="ignore"):
            beyond = to_numbers(kind, to_elements(kind, np.array([shape.overflow, shape.overflow * (1 - 2.0**-20)], np.float64)))
        assert beyond.tolist() == [np.inf, shape.largest]


def test_tf32_keeps_ten_bits_of_the_fraction():
    values = np.array([1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-20, -np.inf, np.nan])
    kept = to_elements("tf32", values)
    assert kept[:3].tolist() == [1 + 2.0**-10, 1.0, -np.inf] and np.isnan(kept[3])


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("e4m3", {0x00: 0.0, 0x01: 2.0**-9, 0x08: 2.0**-6, 0x38: 1.0, 0x7E: 448.0, 0xB8: -1.0}),
        ("e5m2", {0x00: 0.0, 0x01: 2.0**-16, 0x04: 2.0**-14, 0x3C: 1.0, 0x7B: 57344.0, 0x7C: np.inf, 0xBC: -1.0}),
    ],
)
def test_8_bit_floats_have_the_values_of_their_standard(kind, codes):
    assert to_numbers(kind, np.array(list(codes), np.uint8)).tolist() == list(codes.values())


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_every_8_bit_float_converts_to_itself(kind):
    codes = np.arange(256, dtype=np.uint8)
    finite = codes[np.isfinite(to_numbers(kind, codes))]
    assert (to_elements(kind, to_numbers(kind, finite)) == finite).all()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_8_bit_floats_round_ties_to_even_and_saturate(kind):
    step = 2 * float_format(kind).roundoff
    values = np.array([1 + step / 2, 1 + 1.5 * step, -1 - 0.51 * step, 1e9, -np.inf])
    largest = float_format(kind).largest
    assert to_numbers(kind, to_elements(kind, values)).tolist() == [1.0, 1 + 2 * step, -1 - step, largest, -largest]


@pytest.mark.parametrize("kind", ["bf16", "e4m3", "e5m2"])
def test_nan_stays_nan_among_bits(kind):
    assert np.isnan(to_numbers(kind, to_elements(kind, np.array([np.nan, -np.nan])))).all()


def test_words_lead_back_to_their_types():
    assert BY_WORD["float32"] == "f32" and all(ELEMENTS[kind].word == word for word, kind in BY_WORD.items())
