"""Agreement with a peer on windows of a problem, by the reference's bounds."""

import numpy as np
import pytest

from gemmgen.api import choose
from gemmgen.core.elements import to_elements, to_numbers
from gemmgen.kernels.family import Case
from gemmgen.perf import agreement
from gemmgen.perf.agreement import Window, agree, windows
from gemmgen.verification.oracle import oracle_of


def the_windows(text, monkeypatch, operations=1e9):
    chosen = choose(text, "H200")
    monkeypatch.setattr(agreement, "WINDOW_OPERATIONS", 1e8)
    return chosen, list(windows(chosen.plan.sequence.arrays, chosen.dimensions, operations))


@pytest.mark.parametrize(
    ("text", "dimension", "size"),
    [
        ("gemm:500,64,64,nt,silu", "m", 500),
        ("reduction:700,64,1,mean,bf16", "k0", 700),
        ("conv2d:20,32,8,8,32,3,3,1,1", "n", 20),
        ("elementwise:1,1,90,96,silu,padded", "d0", 90),
    ],
)
def test_windows_are_the_first_middle_and_last_part_of_results(text, dimension, size, monkeypatch):
    _, found = the_windows(text, monkeypatch)
    count = size // 10
    assert found == [Window(dimension, start, count) for start in (0, (size - count) // 2, size - count)]


def test_a_problem_within_the_limit_is_one_window(monkeypatch):
    _, found = the_windows("gemm:500,64,64,nt,silu", monkeypatch, operations=1e6)
    assert found == [Window("m", 0, 500)]


def test_results_may_differ_from_a_peer_by_both_bounds(monkeypatch):
    chosen, found = the_windows("gemm:400,64,64,nt,bf16,silu", monkeypatch)
    draw = np.random.default_rng(1)
    inputs = {"A": draw.integers(-2, 3, (400, 64)), "B": draw.integers(-2, 3, (64, 64))}

    def reference(rows):
        arrays = {name: to_elements("bf16", array) for name, array in (("A", inputs["A"][rows]), ("B", inputs["B"]))}
        arrays["C"] = np.zeros((len(arrays["A"]), 64), arrays["A"].dtype)
        problem = {**chosen.dimensions, "m": len(arrays["A"])}
        return oracle_of("gemm").reference(chosen.plan, Case("test", problem, {}, "integers"), arrays)["C"]

    whole = reference(slice(None))
    exact = to_numbers("bf16", to_elements("bf16", whole.value))
    expected = [(window.part(argument), reference(window.part(argument)[0])) for window in found for argument in chosen.plan.sequence.arrays
                if argument.name == "C"]  # fmt: skip
    assert [len(one.value) for _, one in expected] == [40, 40, 40]
    got = exact + np.where(draw.random(exact.shape) < 0.5, 0.9, -0.9) * (whole.bound - np.abs(exact - whole.value))
    assert not np.array_equal(got, exact)
    assert agree("C", got, exact, expected)
    inside = got.copy()
    inside[5, 7] = exact[5, 7] + 3 * whole.bound[5, 7]
    assert not agree("C", inside, exact, expected)
    outside = got.copy()
    place = 100 + int(np.argmax(exact[100] > 4)), 0  # in no window
    outside[place] = exact[place] * 1.5 + 1
    assert not agree("C", outside, exact, expected)
    peer = exact.copy()
    outside[place], peer[place] = exact[place], 0.0
    assert not agree("C", outside, peer, expected)
    outside[place] = np.nan
    assert not agree("C", outside, exact, expected)
