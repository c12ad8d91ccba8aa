"""The backend contract on the emulator."""

import numpy as np
import pytest
from sample_kernels import AXPBY, AXPBY_SOURCE, SCRIBBLE_SOURCE, SUM, SUM_SOURCE, compile_sample, scribble

from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import ArrayArgument, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.emulation import EmulatorBackend

BACKEND = EmulatorBackend()


def run_scribble(sequence, size=20, at=0, offset=0):
    out, bits = HostBuffer(np.zeros(size, np.float32), offset), HostBuffer(np.zeros(1, np.int32))
    BACKEND.run(compile_sample(SCRIBBLE_SOURCE), sequence, {"n": size, "at": at}, {}, {"out": out, "bits": bits})
    return out.storage, int(bits.storage[0])


@pytest.mark.parametrize("number", [float, int, np.float32, np.float64])
def test_scalars_and_dimensions_get_types_of_their_parameters(number):
    x, y = np.arange(6 * 5, dtype=np.float32), np.ones(6 * 7, np.float32)
    buffers = {"X": HostBuffer(x), "Y": HostBuffer(y, 12)}
    dimensions = {"m": np.int64(6), "n": 5, "ldx": 5, "ldy": 7}
    BACKEND.run(compile_sample(AXPBY_SOURCE), AXPBY, dimensions, {"alpha": number(2), "beta": number(-1)}, buffers)
    assert (y.reshape(6, 7)[:, :5] == 2 * x.reshape(6, 5) - 1).all()
    assert (y.reshape(6, 7)[:, 5:] == 1).all()


def test_scalars_have_their_defaults():
    x, y = np.arange(6, dtype=np.float32), np.full(6, np.nan, np.float32)
    dimensions = {"m": 2, "n": 3, "ldx": 3, "ldy": 3}
    BACKEND.run(compile_sample(AXPBY_SOURCE), AXPBY, dimensions, {}, {"X": HostBuffer(x), "Y": HostBuffer(y)})
    assert (y == x).all()


def test_launches_run_in_order_through_the_workspace():
    x, result = np.arange(40 * 3, dtype=np.float32), np.zeros(1, np.float32)
    buffers = {"X": HostBuffer(x), "result": HostBuffer(result, initialised=False)}
    BACKEND.run(compile_sample(SUM_SOURCE), SUM, {"m": 40, "n": 3}, {}, buffers)
    assert result[0] == x.sum()


def test_an_empty_grid_is_skipped():
    beyond = np.full(5, 7, np.float32)
    buffers = {name: HostBuffer(beyond[:0]) for name in ("X", "Y")}
    BACKEND.run(compile_sample(AXPBY_SOURCE), AXPBY, {"m": 0, "n": 5, "ldx": 5, "ldy": 5}, {}, buffers)
    assert (beyond == 7).all()


@pytest.mark.parametrize("offset", [0, 4, 16, 252])
def test_pointers_have_their_offset(offset):
    assert run_scribble(scribble("low_address_bits", ("out", "bits")), offset=offset)[1] == offset


def test_shared_memory_is_as_large_as_asked_for():
    out = HostBuffer(np.arange(512, dtype=np.float32))
    sequence = scribble("reverse_in_shared", ("n", "out"), shared="4 * n", block=256)
    BACKEND.run(compile_sample(SCRIBBLE_SOURCE), sequence, {"n": 512, "at": 0}, {}, {"out": out})
    assert (out.storage == np.arange(512)[::-1]).all()
    short = scribble("reverse_in_shared", ("n", "out"), shared="4 * n - 4", block=256)
    with pytest.raises(LaunchError, match="kernel reverse_in_shared"):
        BACKEND.run(compile_sample(SCRIBBLE_SOURCE), short, {"n": 512, "at": 0}, {}, {"out": out})


@pytest.mark.parametrize("at", [-1, 20])
def test_a_write_outside_an_array_is_one_readable_error(at):
    with pytest.raises(LaunchError, match=r"kernel scribble, grid \(1, 1, 1\).*out of bounds.*out"):
        run_scribble(scribble("scribble", ("n", "at", "out")), at=at)
    assert (run_scribble(scribble("scribble", ("n", "at", "out")))[0] == np.arange(20)).all()


def test_an_array_that_is_not_there_is_a_null_pointer():
    with pytest.raises(LaunchError, match="null pointer"):
        BACKEND.run(compile_sample(SCRIBBLE_SOURCE), scribble("scribble", ("n", "at", "out")), {"n": 4, "at": 0}, {}, {})


def test_a_scalar_without_a_value_is_named():
    from dataclasses import replace

    arguments = [replace(a, default=None) if a.name == "alpha" else a for a in AXPBY.arguments]
    with pytest.raises(LaunchError, match="alpha has no value"):
        BACKEND.run(
            compile_sample(AXPBY_SOURCE),
            replace(AXPBY, arguments=tuple(arguments)),
            {"m": 1, "n": 1, "ldx": 1, "ldy": 1},
            {},
            {},
        )


TICKET_SOURCE = """
extern "C" __global__ void take(unsigned int* tickets, unsigned int* same, int reset, int* out)
{
    out[0] = static_cast<int>(atomicInc(tickets, reset) + same[1]);
}
"""
TICKET = LaunchSequence(
    name="ticket_sample",
    dimensions=(Dimension("reset", "the largest ticket"),),
    arguments=(
        ArrayArgument("tickets", "u8", "workspace", (Formula("8"),), (Formula("1"),), 4, "the tickets"),
        ArrayArgument("same", "u8", "workspace", (Formula("8"),), (Formula("1"),), 4, "the same memory"),
        ScalarArgument("reset", "s32", "the largest ticket"),
        ArrayArgument("out", "s32", "output", (Formula("1"),), (Formula("1"),), 4, "the ticket that was taken"),
    ),
    launches=(KernelLaunch("take", (Formula("1"),) * 3, (1, 1, 1), ("tickets", "same", "reset", "out")),),
    workspace_bytes=Formula("8"),
    workspace_zero_bytes=Formula("8"),
)


def take_ticket(sequence, reset):
    out = HostBuffer(np.full(1, -1, np.int32), initialised=False)
    BACKEND.run(compile_sample(TICKET_SOURCE), sequence, {"reset": reset}, {}, {"out": out})
    return out.storage[0]


def test_the_start_of_the_workspace_is_zero_and_the_rest_is_not():
    from dataclasses import replace

    assert take_ticket(TICKET, reset=0) == 0
    with pytest.raises(LaunchError, match=r"read of .*\[1\], which nothing has written"):
        take_ticket(replace(TICKET, workspace_zero_bytes=Formula("4")), reset=0)


def test_a_workspace_that_is_not_left_zero_is_reported():
    with pytest.raises(LaunchError, match="does not leave its workspace as it found it: byte 0 is not zero"):
        take_ticket(TICKET, reset=1)
