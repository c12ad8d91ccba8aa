"""Every data-processing instruction against an H200's results, bit for bit; approximate ones within the ISA's bounds.

measurements/instruction_vectors.py has the forms and their operands, and recorded the results.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from measurements import instruction_vectors as vectors

RECORD = Path(__file__).parents[1] / "data" / "instruction_vectors_h200.npz"
EXACT = [name for name in vectors.GROUPS if name != "approximations"]


@cache
def recorded() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The first results and the checksums of all, by form."""
    with np.load(RECORD) as arrays:
        return dict(zip(str(arrays["names"]).split("\n"), zip(arrays["heads"], arrays["sums"], strict=True), strict=True))


def test_every_exact_form_is_recorded():
    assert set(recorded()) == {form.text for form in vectors.forms() if not form.approximate}


@pytest.mark.parametrize("group", EXACT)
def test_results_are_those_of_the_gpu(group):
    wrong = []
    for form in vectors.GROUPS[group]():
        head, sums = vectors.heads_and_sums(vectors.on_emulator(form))
        measured_head, measured_sums = recorded()[form.text]
        if not (np.array_equal(head, measured_head) and np.array_equal(sums, measured_sums)):
            first = np.flatnonzero(head != measured_head)[:1]
            where = f"lane {first[0]}: {measured_head[first[0]]:x}, emulated {head[first[0]]:x}" if len(first) else "beyond the first lanes"
            wrong.append(f"{form.text} {where}")
    assert not wrong, "\n".join(wrong)


BOUNDS = {
    "ex2.approx.f16": (2.0**-9.9, 2.0**-24),
    "ex2.approx.ftz.bf16": (2.0**-7, 0.0),
    "tanh.approx.f16": (0.0, 2.0**-10.987),
    "tanh.approx.bf16": (0.0, 2.0**-8),
    "tanh.approx.f32": (2.0**-11, 0.0),
    "rcp.approx.ftz.f64": (2.0**-19, 0.0),
    "sin.approx.f32": (0.0, 2.0**-20.5),
    "sin.approx.ftz.f32": (0.0, 2.0**-20.5),
    "cos.approx.f32": (0.0, 2.0**-20.5),
    "cos.approx.ftz.f32": (0.0, 2.0**-20.5),
    "lg2.approx.f32": (2.0**-21, 2.0**-22),
    "lg2.approx.ftz.f32": (2.0**-21, 2.0**-22),
}
"""Relative and absolute bounds of the ISA; of all others, a few units in the last place."""


@np.errstate(invalid="ignore")
def _numbers(bits: np.ndarray, type_name: str) -> np.ndarray:
    if type_name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[type_name]
    return bits.astype(f"u{np.dtype(dtype).itemsize}").view(dtype).astype(np.float64)


@pytest.mark.parametrize("form", list(vectors.approximations()), ids=lambda form: form.text.split()[0])
def test_approximations_lie_within_their_bounds(form):
    with np.load(RECORD) as arrays:
        measured = arrays["approximate_results"][str(arrays["approximate_names"]).split("\n").index(form.text)]
    gpu, emulated = (_numbers(bits[: len(measured)], form.result) for bits in (measured, vectors.on_emulator(form)))
    operand = _numbers(vectors.operands_of(form)[0][: len(measured)], form.operands[0])
    sane = np.isfinite(gpu) & np.isfinite(emulated) & (np.abs(gpu) > 2.0**-120)
    if form.opcode in ("sin", "cos"):
        sane &= np.abs(operand) <= np.pi
    relative, absolute = BOUNDS.get(form.text.split()[0], (4 * 2.0**-23, 0.0))
    allowed = relative * np.abs(gpu[sane]) + absolute
    assert sane.sum() > 20
    assert (np.abs(gpu[sane] - emulated[sane]) <= allowed).all()
    assert np.array_equal(np.isnan(gpu), np.isnan(emulated))
