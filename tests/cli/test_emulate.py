from __future__ import annotations

import html
import io
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Run
from gemmgen.cli import emulation_progress
from gemmgen.cli.emulation_progress import EmulationProgress
from gemmgen.emulator.demangling import qualified_name

SAXPY = """\
__global__ void saxpy(int n, float a, const float* __restrict__ x, float* y)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
ARGUMENTS = ["--arg", "i32=1000", "--arg", "f32=2", "--arg", "f32[1000]=range", "--arg", "f32[1000]=ones"]
LAUNCH = ["--grid", "4", "--block", "256,1,1"]


@pytest.fixture
def saxpy(run: Run) -> Path:
    Path("saxpy.cu").write_text(SAXPY)
    return Path("saxpy.cu")


def test_clean_kernel_runs_and_its_result_can_be_printed(run: Run, saxpy: Path) -> None:
    shown = run("emulate", saxpy, *LAUNCH, *ARGUMENTS, "--print", "y:4", "--save", "3=out.npy").out
    assert shown.startswith("clean  saxpy in saxpy.cu")
    assert "y (f32[1000]): 1.0, 3.0, 5.0, 7.0, ... 996 more" in shown
    assert (np.load("out.npy") == 2 * np.arange(1000) + 1).all()


def test_access_out_of_bounds_is_told_with_its_place_and_exits(run: Run, saxpy: Path) -> None:
    saxpy.write_text(SAXPY.replace("i < n", "i <= n"))
    shown = run("emulate", saxpy, *LAUNCH, *ARGUMENTS, code=1).out
    assert "past the end of x (4000 bytes)" in shown
    assert "saxpy.cu:4" in shown
    assert "4 | if (i <= n) y[i] = a * x[i] + y[i];" in shown
    assert "thread (232,0,0) of block (3,0,0)" in shown


def test_reading_what_nothing_has_written_is_a_hazard(run: Run, saxpy: Path) -> None:
    unwritten = [text.replace("=ones", "") for text in ARGUMENTS]
    shown = run("emulate", saxpy, *LAUNCH, *unwritten, code=1).out
    assert "read of unwritten memory" in shown
    assert "saxpy.cu:4" in shown


RACE = """\
__global__ void reverse(float* y)
{
    __shared__ float s[64];
    s[threadIdx.x] = y[threadIdx.x];
    BARRIER
    y[threadIdx.x] = s[63 - threadIdx.x];
}
"""


def test_a_missing_barrier_is_a_hazard(run: Run) -> None:
    launch = ["emulate", "reverse.cu", "--grid", "1", "--block", "64", "--arg", "f32[64]=range"]
    Path("reverse.cu").write_text(RACE.replace("BARRIER", ""))
    assert "shared memory race" in run(*launch, code=1).out
    Path("reverse.cu").write_text(RACE.replace("BARRIER", "__syncthreads();"))
    assert run(*launch).out.startswith("clean")


def test_the_report_as_json(run: Run, saxpy: Path) -> None:
    clean = run("emulate", saxpy, *LAUNCH, *ARGUMENTS, "--print", "3:2", "--counters", "--json").json
    assert clean["clean"] is True
    assert clean["arrays"] == {"y": [1.0, 3.0]}
    assert clean["counters"]["total"]["global_memory"]["load"]["sectors"] == 250
    saxpy.write_text(SAXPY.replace("i < n", "i <= n"))
    broken = run("emulate", saxpy, *LAUNCH, *ARGUMENTS, "--json", code=1).json
    assert (broken["clean"], broken["kind"], broken["source_line"]) == (False, "out of bounds", 4)


def test_counters_by_line(run: Run, saxpy: Path) -> None:
    shown = run("emulate", saxpy, *LAUNCH, *ARGUMENTS, "--counters").out
    assert "32 fma float32" in shown
    assert "375" in shown


def test_ptx_runs_too(run: Run) -> None:
    Path("one.ptx").write_text(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry one(.param .u64 out)\n{\n.reg .b64 %a;\n"
        "ld.param.u64 %a, [out];\nst.global.u32 [%a], 7;\nret;\n}\n"
    )
    assert "out (u32[1]): 7" in run("emulate", "one.ptx", "--grid", "1", "--block", "1", "--arg", "u32[1]", "--print", "0").out


def test_a_result_that_depends_on_the_order_of_warps_is_found(run: Run) -> None:
    Path("last.cu").write_text("__global__ void last(volatile int* out) { out[0] = threadIdx.x / 32; }\n")
    launch = ["emulate", "last.cu", "--grid", "1", "--block", "256", "--arg", "i32[1]"]
    shown = run(*launch, "--schedules", "8", code=1).out
    assert "depends on the order of warps: out[0] is" in shown


def test_schedules_that_agree_are_mentioned(run: Run, saxpy: Path) -> None:
    assert "2 random schedules gave the same result" in run("emulate", saxpy, *LAUNCH, *ARGUMENTS, "--schedules", "2").out


def test_includes_definitions_and_dynamic_shared_memory(run: Run) -> None:
    Path("headers").mkdir()
    Path("headers/scale.h").write_text("constexpr float kScale = SCALE;\n")
    Path("beside.h").write_text("constexpr float kShift = 1.0f;\n")
    Path("scale.cu").write_text(
        '#include "scale.h"\n#include "beside.h"\n'
        "__global__ void scale(float* y) { extern __shared__ float s[]; s[threadIdx.x] = y[threadIdx.x]; "
        "y[threadIdx.x] = s[threadIdx.x] * kScale + kShift; }\n"
    )
    launch = ["emulate", "scale.cu", "--grid", "1", "--block", "4", "--arg", "f32[4]=range", "--print", "y"]
    more = ["--include", "headers", "--define", "SCALE=3.0f"]
    assert "1.0, 4.0, 7.0, 10.0" in run(*launch, *more, "--shared", "16").out
    assert "shared memory has 12 bytes" in run(*launch, *more, "--shared", "12", code=1).out


@pytest.mark.parametrize(
    ("argument", "printed"),
    [
        ("f32[3]=zeros", "0.0, 0.0, 0.0"),
        ("f64[2]=ones", "1.0, 1.0"),
        ("f16[2]=range", "0.0, 1.0"),
        ("bf16[2]=ones", "1.0, 1.0"),
        ("i8[3]=range", "0, 1, 2"),
        ("s64[2]=range", "0, 1"),
        ("f32[2]", "nan, nan"),
        ("i32[2,2]=range", "0, 1, 2, 3"),
        ("i32[]=@given.npy", "5, 6"),
        ("i32[2]=@given.npy", "5, 6"),
    ],
)
def test_arrays_of_every_kind(run: Run, argument: str, printed: str) -> None:
    Path("idle.cu").write_text('extern "C" __global__ void idle(void* data) {}\n')
    np.save("given.npy", np.array([5, 6], np.int32))
    assert f": {printed}\n" in run("emulate", "idle.cu", "--grid", "1", "--block", "1", "--arg", argument, "--print", "0").out


def test_random_values_are_the_same_each_time(run: Run) -> None:
    Path("idle.cu").write_text('extern "C" __global__ void idle(void* data) {}\n')
    launch = ["emulate", "idle.cu", "--grid", "1", "--block", "1", "--arg", "u8[64]=random", "--print", "data:64"]
    assert run(*launch).out == run(*launch).out


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("f33[4]", "'f33' is not a known type; the types are f32"),
        ("1024", "a number needs its type, s32=1024 or f32=1024 for example"),
        ("f32", "a scalar needs a value"),
        ("f32[four]", "[four] is no length"),
        ("f32[-1]", "cannot be negative"),
        ("f32[4]=nines", "'nines' fills no array; it may be zeros"),
        ("f32[99999999999999]", "need at most 1 GiB"),
        ("i32=2.5", "'2.5' is no value of type i32"),
        ("i8=200", "i8 holds -128 to 127"),
        ("f32[4]=@missing.npy", "missing.npy: No such file"),
        ("f32[4]=@given.npy", "holds int32, this type needs float32"),
        ("i32[3]=@given.npy", "holds 2 elements, not 3"),
        ("[4]", "expected an array such as"),
    ],
)
def test_a_bad_argument_is_explained(run: Run, saxpy: Path, argument: str, message: str) -> None:
    np.save("given.npy", np.array([5, 6], np.int32))
    assert message in run("emulate", saxpy, *LAUNCH, "--arg", argument, code=2).err


def test_wrong_arguments_show_the_signature(run: Run, saxpy: Path) -> None:
    few = run("emulate", saxpy, *LAUNCH, "--arg", "i32=1", code=2).err
    assert "saxpy takes 4 arguments, got 1" in few
    assert "--arg 2: x, a pointer or a 64-bit value" in few
    swapped = run("emulate", saxpy, *LAUNCH, *ARGUMENTS[4:], *ARGUMENTS[:4], code=2).err
    assert "argument 0 (n) of saxpy is a 32-bit value; 'f32[1000]=range' is an array" in swapped


TWO = "namespace a { __global__ void first() {} }\nnamespace b { __global__ void first() {} __global__ void second() {} }\n"


def test_an_entry_is_found_by_its_name_in_the_source(run: Run) -> None:
    Path("two.cu").write_text(TWO)
    launch = ["emulate", "two.cu", "--grid", "1", "--block", "1"]
    assert "b::second" in run(*launch, "--entry", "second").out
    assert "a::first" in run(*launch, "--entry", "a::first").out
    assert "b::second" in run(*launch, "--entry", "_ZN1b6secondEv").out
    assert "2 kernels of two.cu have this name" in run(*launch, "--entry", "first", code=2).err
    assert "has 3 kernels; choose one with --entry" in run(*launch, code=2).err
    assert "did you mean b::second?" in run(*launch, "--entry", "b::sekond", code=2).err


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("plain", "plain"),
        ("_Z5saxpyifPKfPf", "saxpy"),
        ("_Z4axpyIfEvPT_", "axpy<float>"),
        ("_ZN2my5saxpyIfEEviT_PKS1_PS1_", "my::saxpy<float>"),
        ("_ZN39_GLOBAL__N__4f2a_kernel_cu_0123456789ab4copyEv", "(anonymous)::copy"),
        ("_ZL5localv", "local"),
    ],
)
def test_mangled_names_are_read(symbol: str, name: str) -> None:
    assert qualified_name(symbol) == name


def test_what_does_not_compile_shows_the_compilers_error(run: Run, saxpy: Path) -> None:
    saxpy.write_text(SAXPY.replace("a * x[i]", "b * x[i]"))
    failed = run("emulate", saxpy, *LAUNCH, *ARGUMENTS, code=2).err
    assert 'saxpy.cu:4: identifier "b" is undefined' in failed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grid", "0", "--block", "1"], "expected one to three positive numbers"),
        (["--grid", "1", "--block", "2048"], "has 2048 threads; the limits are 1024"),
        ([*LAUNCH, "--print", "z"], "saxpy has no parameter 'z'; it has n, a, x, y"),
        ([*LAUNCH, "--print", "0"], "0 is no array but 'i32=1000'"),
        ([*LAUNCH, "--save", "3"], "expected ARRAY=FILE.npy"),
        ([*LAUNCH, "--symbol", "c=@none.npy"], "--symbol c: '@none.npy': none.npy: No such file"),
        ([*LAUNCH, "--symbol", "c=f31=2"], "--symbol c: 'f31=2': 'f31' is not a known type"),
        ([*LAUNCH, "--arch", "sm_12"], "NVRTC does not know the architecture sm_12"),
        ([*LAUNCH, "--shared", "1000000"], "the limit is"),
    ],
)
def test_what_cannot_be_run_exits_with_2(run: Run, saxpy: Path, options: list[str], message: str) -> None:
    assert message in run("emulate", saxpy, *options, *ARGUMENTS, code=2).err


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe\x00", "is not text"), (b"__device__ int x;", "has no kernel"), (b"__global__ void k() {", 'expected a "}"')],
)
def test_files_that_hold_no_kernel(run: Run, content: bytes, message: str) -> None:
    Path("bad.cu").write_bytes(content)
    assert message in run("emulate", "bad.cu", "--grid", "1", "--block", "1", code=2).err


def test_nonsense_for_ptx_is_one_message(run: Run) -> None:
    Path("bad.ptx").write_text("this is no PTX {")
    assert "cannot parse PTX" in run("emulate", "bad.ptx", "--grid", "1", "--block", "1", code=2).err
    assert (
        "includes, definitions and options are for CUDA"
        in run("emulate", "bad.ptx", "--grid", "1", "--block", "1", "--define", "A", code=2).err
    )


def test_counters_fit_into_80_columns(run: Run, saxpy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("emulate", saxpy, *LAUNCH, *ARGUMENTS, "--counters").out.splitlines()
    assert max(map(len, shown)) <= 80
    assert "4  if (i < n) y[i] = a * x[i] + y[i];" in shown and "   375 sectors, 100% efficiency" in shown


def test_counters_beside_the_source(run: Run, saxpy: Path) -> None:
    run("emulate", saxpy, *LAUNCH, *ARGUMENTS, "--counters-html", "counters.html")
    page = Path("counters.html").read_text()
    rows = {row.rpartition("<td class=source>")[2].partition("</td>")[0]: row for row in page.split("<tr>")}
    assert all(html.escape(line) in rows for line in SAXPY.splitlines())
    assert "<td>375</td><td>100%</td><td class=line>4</td>" in rows["    if (i &lt; n) y[i] = a * x[i] + y[i];"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_told_to_terminals_and_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation_progress, "_FIRST_SECONDS", 0.0)
    terminal, quiet, asked = Terminal(), io.StringIO(), io.StringIO()
    for progress in (EmulationProgress(False, terminal), EmulationProgress(False, quiet), EmulationProgress(True, asked)):
        progress(25, 100)
        progress.close()
    assert "emulated 25 of 100 blocks (25%), about 0 s left" in terminal.getvalue() and terminal.getvalue().endswith("\r")
    assert quiet.getvalue() == "" and asked.getvalue().endswith("left\n")


def test_the_time_left_is_estimated() -> None:
    assert emulation_progress.describe(1000, 4000, 30.0) == "emulated 1,000 of 4,000 blocks (25%), about 1 min 30 s left"
