"""Loops that count: iterations until their exit opens, beside counting them one by one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmgen import emulator
from gemmgen.emulator.counted_loops import Exit
from gemmgen.emulator.ptx.syntax import Instruction, Register
from tests.emulator.helpers import run_cuda

BITS = 6
NOTHING = Instruction("setp", (), (), None, False, 0, "", None)


def counted(way: Exit, counter: int, limit: int) -> float:
    for iteration in range(1 << BITS):
        if way.open(way.normal(counter + way.offset + iteration * way.step), way.normal(limit)):
            return iteration
    return math.inf


@given(
    st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), st.integers(-40, 40), st.integers(-9, 9), st.booleans(), st.integers(0, 63),
    st.integers(-32, 63),
)  # fmt: skip
def test_turns_are_those_that_counting_finds(relation, step, offset, signed, counter, limit):
    way = Exit(Register("r", "b32"), offset, step, relation, limit, BITS, signed, NOTHING)
    told, found = way.iterations(counter, limit), counted(way, counter, limit)
    if relation in ("eq", "ne"):
        assert told == found
    else:
        assert told <= found


@pytest.mark.parametrize("relation, step, limit", [("ge", 3, 50), ("gt", 3, 50), ("le", -3, -7), ("lt", -3, -7), ("ge", 1, 31)])
def test_turns_of_counters_that_do_not_wrap_are_exact(relation, step, limit):
    way = Exit(Register("r", "b32"), 0, step, relation, limit, BITS, limit < 31, NOTHING)
    assert way.iterations(2, limit) == counted(way, 2, limit)


@pytest.mark.parametrize(
    "function, message",
    [
        (
            "int f(int n, int sum) { return n == 0 ? sum : f(n - 2, sum ^ n); }",
            "never ends: a counter, now -[0-9]+, changes by -[0-9]+ an iteration",
        ),
        (
            "int f(int n, int sum) { return n == 1 ? sum : f(n - 1, sum ^ n); }",
            "runs for [0-9,]+ iterations or more, over the limit of steps",
        ),
        ("int f(int n, int sum) { for (int i = n; i < 2000000000; ++i) sum = sum * 5 + 3 * (sum >> 7); return sum; }", "runs for"),
    ],
)
def test_a_count_beyond_the_limit_ends_soon(function, message):
    source = f'__device__ __noinline__ {function}\nextern "C" __global__ void k(int* o) {{ o[threadIdx.x] = f(threadIdx.x - 40, 1); }}'
    with pytest.raises(emulator.Deadlock, match=message) as told:
        run_cuda(source, "k", 1, 32, [np.zeros(32, np.int32)])
    assert "misses its base case" in str(told.value)


@pytest.mark.parametrize(
    "function", ["while (n != 60000) { s = s * 5 + (s >> 7); n += 2; }", "for (; n < 50000; ++n) s = s * 5 + (s >> 7);"]
)
def test_a_long_count_within_the_limit_goes_on(function):
    source = f'extern "C" __global__ void k(unsigned* o) {{ unsigned s = 1; int n = 2 * threadIdx.x; {function} o[threadIdx.x] = s; }}'
    out = np.zeros(2, np.uint32)
    run_cuda(source, "k", 1, 2, [out])
    step, last = (2, 60000) if "+= 2" in function else (1, 50000)
    for lane in range(2):
        s = 1
        for _ in range(2 * lane, last, step):
            s = (s * 5 + (s >> 7)) & 0xFFFFFFFF
        assert out[lane] == s
