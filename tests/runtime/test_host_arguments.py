"""Structs that the host computes from the problem: packed, described, and passed by value on every backend."""

import struct

import numpy as np
import pytest
from fake_driver import fake_driver

from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import ArrayArgument, Dimension, HostArgument, HostField, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.nvrtc import compile_source

__all__ = ["fake_driver"]

TABLE = HostArgument(
    "table",
    "Table",
    (
        HostField("step", "s32", 4, Formula("count"), Formula("i * pitch - 3"), "offsets"),
        HostField("bit", "u32", 2, Formula("2"), Formula("1 << (30 + i)"), "masks"),
    ),
    "what to add",
)

SEQUENCE = LaunchSequence(
    name="look_up",
    dimensions=(Dimension("count", "rows"), Dimension("pitch", "distance", default=Formula("10"))),
    arguments=(
        TABLE,
        ScalarArgument("count", "s32", "rows"),
        ArrayArgument("y", "s32", "output", (Formula("count"),), (Formula("1"),), 4, "result"),
    ),
    launches=(KernelLaunch("look_up", (Formula("1"),) * 3, (32, 1, 1), ("table", "y", "count")),),
)

SOURCE = """
struct Table {
    int step[4];
    unsigned bit[2];
};

extern "C" __global__ void look_up(const __grid_constant__ Table table, int* y, int count)
{
    if (threadIdx.x < count)
        y[threadIdx.x] = table.step[threadIdx.x] + static_cast<int>(table.bit[threadIdx.x % 2] >> 30);
}
"""


def test_fields_are_packed_one_after_another_and_filled_up():
    assert TABLE.size_bytes == 24
    assert TABLE.pack({"count": 3, "pitch": 7}) == struct.pack("<4i2I", -3, 4, 11, 0, 1 << 30, 1 << 31)


@pytest.mark.parametrize("problem", [{"count": 5, "pitch": 1}, {"count": 2, "pitch": 1 << 32}])
def test_what_does_not_fit_is_an_error_that_names_the_field(problem):
    with pytest.raises(LaunchError, match=r"table.step \(offsets\) holds 4 s32 values"):
        TABLE.pack(problem)


def test_a_resolved_launch_carries_the_bytes():
    (launch,) = SEQUENCE.resolve({"count": 2, "pitch": 5})
    assert launch.parameters == (("table", "struct"), ("y", "pointer"), ("count", "s32"))
    assert dict(launch.structs) == {"table": TABLE.pack({"count": 2, "pitch": 5})}


def test_the_description_holds_the_formulas():
    (described, *_) = SEQUENCE.to_json()["arguments"]
    assert described["kind"] == "host" and described["bytes"] == 24
    assert [field["value"] for field in described["fields"]] == ["i * pitch - 3", "1 << (30 + i)"]


def test_the_emulator_reads_the_struct():
    kernel = Kernel(SEQUENCE, compile_source(SOURCE, architecture="sm_75"))
    y = np.zeros(4, np.int32)
    kernel(y=y, pitch=100)
    assert y.tolist() == [-3 + 1, 97 + 2, 197 + 1, 297 + 2]


def test_a_caller_cannot_pass_what_the_host_computes():
    kernel = Kernel(SEQUENCE, compile_source(SOURCE, architecture="sm_75"))
    with pytest.raises(LaunchError, match="the arguments are count, y, pitch"):
        kernel(y=np.zeros(4, np.int32), table=b"")


def test_the_driver_is_given_a_pointer_to_the_struct(fake_driver):
    seen = []
    fake_driver.kernels["look_up"] = lambda launch, values: seen.append(values)
    problem = {"count": 2, "pitch": 5}
    launcher = Launcher(LoadedBinary(b"", "sm_80", 0), SEQUENCE.resolve(problem), problem)
    launcher.launch(1, *launcher.values({"y": 4096}, {}))
    assert seen == [[TABLE.pack(problem), 4096, 2]]


def test_defaults_depend_on_dimensions_before_or_after_them():
    dimensions = (
        Dimension("inner", "a stride", default=Formula("rows * outer")),
        Dimension("rows", "an extent"),
        Dimension("outer", "a stride", default=Formula("rows + 1")),
    )
    assert LaunchSequence("kernel", dimensions, (), ()).completed({"rows": 3}) == {"rows": 3, "outer": 4, "inner": 12}
