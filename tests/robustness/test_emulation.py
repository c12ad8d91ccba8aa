"""`emulate`, `diff` and `banks` with files that are none, deep launch files and numbers beyond all bounds: a message, at once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from gemmgen.cli import cli
from gemmgen.emulator import BadLaunch
from gemmgen.emulator.launch import LOCAL_LIMIT, MEMORY_LIMIT, check_memory
from gemmgen.sanitizer import launches
from gemmgen.sanitizer.source import KernelCode

from .test_budget import SECONDS, budget

KERNEL = "__global__ void copy(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }"
STRAY = KERNEL.replace("y[threadIdx.x] =", "y[threadIdx.x + n] =")
HOSTILE = "a\x1b[2J<img src=x onerror=alert(1)>\x01\udcff.cu"
LAUNCH = ("--grid", "1", "--block", "32", "--arg", "f32[32]=ones", "--arg", "f32[32]=zeros", "--arg", "i32=32")


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    file = tmp_path / "copy.cu"
    file.write_text(KERNEL)
    return str(file)


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "pipe.npy")
    return str(tmp_path / "pipe.npy")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="gemmgen")


def test_a_named_pipe_as_a_kernel_does_not_hang(pipe: str) -> None:
    result = run("emulate", pipe, *LAUNCH)
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


@pytest.mark.parametrize("argument", ["f32[32]=@{}", "f32[]=@{}"])
def test_a_named_pipe_as_an_array_does_not_hang(kernel: str, pipe: str, argument: str) -> None:
    result = run("emulate", kernel, "--grid", "1", "--block", "32", "--arg", argument.format(pipe))
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


def test_a_named_pipe_that_is_expected_does_not_hang(kernel: str, pipe: str) -> None:
    result = run("emulate", kernel, *LAUNCH, "--expect", f"y=@{pipe}")
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


def test_a_named_pipe_as_a_launch_file_does_not_hang(kernel: str, pipe: str) -> None:
    result = run("emulate", kernel, "--launches", pipe)
    assert (result.exit_code, "is a pipe" in result.output) == (2, True)


def test_named_pipes_are_not_compared(kernel: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.cu")
    result = run("diff", kernel, str(tmp_path / "pipe.cu"))
    assert (result.exit_code != 0, "is a pipe" in result.output) == (True, True)


def test_a_file_of_several_arrays_is_told(kernel: str, tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "two.npz", a=np.ones(3), b=np.ones(3))
    result = run("emulate", kernel, *LAUNCH, "--expect", f"y=@{tmp_path / 'two.npz'}")
    assert (result.exit_code, "holds several arrays" in result.output) == (2, True)


LAUNCH_FILES = {
    "[" * 60_000: "nested more than",
    "arrays: &a {}\nlaunches: *a": "alias",
    "{arrays: {}, arrays: {}}": "twice",
    "{launches: [" + "{entry: k}," * 5000 + "]}": "more",
    "": "describes no launches",
    "launches: !!python/object/apply:os.system [true]": "tag",
    "launches: [{entry: copy, grid: 1:00, block: 1}]": "grid",
    '{launches: [], "\\e[2J": 1}': "x1b",
}


@pytest.mark.parametrize("text", LAUNCH_FILES, ids=range(len(LAUNCH_FILES)))
def test_a_hostile_launch_file_is_a_short_message(kernel: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "launches.yaml"
    file.write_text(text)
    result = run("emulate", kernel, "--launches", str(file))
    assert (result.exit_code, len(result.output) < 6000, "\x1b" in result.output) == (2, True, False)
    assert LAUNCH_FILES[text] in result.output


@pytest.mark.parametrize("option", ["--schedules", "--seed"])
def test_a_number_beyond_all_bounds_is_a_mistake(kernel: str, option: str) -> None:
    result = run("emulate", kernel, *LAUNCH, option, "9" * 21)
    assert (result.exit_code, "is not in the range" in result.output) == (2, True)


@pytest.mark.parametrize("pattern", ["9" * 5000, "--5", "0,--4"], ids=range(3))
def test_an_offset_that_is_no_number_is_a_mistake(pattern: str) -> None:
    result = run("banks", "--", pattern)
    assert (result.exit_code, "no number" in result.output, len(result.output) < 400) == (2, True, True)


@pytest.mark.parametrize("text", ["0:" + "9" * 5000, "9" * 5000, "0:x", "y:-1"], ids=range(4))
def test_a_print_of_no_number_is_a_short_message(kernel: str, text: str) -> None:
    result = run("emulate", kernel, *LAUNCH, "--print", text)
    assert (result.exit_code, "--print" in result.output, len(result.output) < 12_000) == (2, True, True)


NESTED = ["[" * 40_000, "[" * 900 + "f32[1]" + "]" * 900, "{" * 40_000, "f32[" + "1," * 100 + "1]"]


@pytest.mark.parametrize("text", NESTED, ids=range(len(NESTED)))
def test_a_deep_argument_is_a_message(kernel: str, text: str) -> None:
    result = run("emulate", kernel, "--grid", "1", "--block", "32", "--arg", text, "--arg", "f32[32]", "--arg", "i32=32")
    assert (result.exit_code, len(result.output) < 25_000) == (2, True)


def test_a_grid_that_takes_months_is_refused(kernel: str) -> None:
    result = run("emulate", kernel, "--grid", "2147483647,65535,65535", *LAUNCH[2:])
    assert (result.exit_code, "need at most" in result.output) == (2, True)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_launch_is_given_up_after_its_time(kernel: str, jobs: str) -> None:
    result = run("emulate", kernel, "--grid", "2000000", *LAUNCH[2:], "--jobs", jobs, "--seconds", "2")
    assert (result.exit_code, "had not come to its end after 2 s; --seconds S allows S seconds" in result.output) == (2, True)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


ENDLESS = """extern "C" __global__ void f(const float* x, float* y, int n) {
    float v = x[threadIdx.x]; int i = 0;
    while (v < 1e30f) v = v * 0.5f + x[threadIdx.x & ++i & 31] * 0.25f;
    y[threadIdx.x] = v;
}"""


def test_a_loop_without_end_is_given_up_without_being_asked(tmp_path: Path) -> None:
    (tmp_path / "endless.cu").write_text(ENDLESS)
    assert "[default: 120" in run("emulate", "--help").output
    defaults = {"emulate": {"seconds": 1}}
    result = CliRunner().invoke(cli, ["emulate", str(tmp_path / "endless.cu"), *LAUNCH], default_map=defaults)
    assert (result.exit_code, "endless.cu had not come to its end after 1 s; --seconds S allows S seconds" in result.output) == (2, True)


def test_a_second_kernel_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_launches(code: KernelCode, *arguments: Any, **more: Any) -> launches.Run:
        if code.name.endswith("second.cu"):
            signal.raise_signal(signal.SIGALRM)
        return launches.run_launches(code, *arguments, **more)

    monkeypatch.setattr("gemmgen.sanitizer.field.run_launches", run_launches)
    for name in ("first", "second"):
        (tmp_path / f"{name}.cu").write_text(ENDLESS.replace("while (v < 1e30f)", ""))
    result = run("emulate", str(tmp_path / "first.cu"), *LAUNCH, "--field", str(tmp_path / "second.cu"))
    assert (result.exit_code, "second.cu had not come to its end after 120 s" in result.output) == (2, True), result.output


def test_an_array_file_larger_than_memory_is_refused(kernel: str, tmp_path: Path) -> None:
    import numpy as np

    with (tmp_path / "large.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**38,)})
        file.truncate(2**40)
    for more in (("--expect", f"y=@{file.name}"), ("--symbol", f"x=@{file.name}")):
        result = run("emulate", kernel, *LAUNCH, *more)
        assert (result.exit_code, "need at most 1 GiB" in result.output) == (2, True)


HEADERS = ["[" * 9000, "{'descr': 3}", "{'descr':'|O','fortran_order':False,'shape':(1,)}", "(" + "9" * 5000 + ",)"]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_a_damaged_header_of_an_array_is_a_message(kernel: str, tmp_path: Path, header: str) -> None:
    data = header.encode()
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data)
    result = run("emulate", kernel, *LAUNCH, "--expect", f"y=@{tmp_path / 'x.npy'}")
    assert (result.exit_code, "--expect" in result.output) == (2, True)


EXPECTATIONS = {
    "def f(arrays):\n    raise KeyError('\x1b[2J')\n": "line 2: KeyError",
    "def f(:\n": "line 1: SyntaxError",
    "import sys\nsys.exit(0)\n": "line 2: SystemExit",
    "import sys\ndef f(arrays):\n    sys.exit(0)\n": "line 3: SystemExit",
    "def f(arrays):\n    return ['x'] * 32\n": "need numbers",
    "def f(arrays):\n    return None\n": "need numbers",
    "def f(arrays):\n    return [[1], [2, 3]]\n": "ValueError",
    "def f():\n    return 1\n": "TypeError",
    "def f(arrays):\n    return f(arrays)\n": "RecursionError",
    "import numpy\ndef f(arrays):\n    return numpy.ma.masked_less(arrays['x'], 2)\n": "filled()",
    "\0": "SyntaxError",
    "(" * 5000: "SyntaxError",
}


@pytest.mark.parametrize("text", EXPECTATIONS, ids=range(len(EXPECTATIONS)))
def test_a_function_that_fails_is_told_with_its_line(kernel: str, tmp_path: Path, text: str) -> None:
    (tmp_path / "own.py").write_text(text)
    result = run("emulate", kernel, *LAUNCH, "--expect", f"y={tmp_path}/own.py:f")
    assert (result.exit_code, "\x1b" in result.output, len(result.output) < 1500) == (2, False, True)
    assert EXPECTATIONS[text] in result.output


@pytest.mark.parametrize("name", ["x" * 5000 + ".py", "\0.py", "nothing.py", "."])
def test_a_function_of_no_file_is_a_message(kernel: str, name: str) -> None:
    result = run("emulate", kernel, *LAUNCH, "--expect", f"y={name}:f")
    assert (result.exit_code, "--expect" in result.output or "--arg" in result.output) == (2, True)


@pytest.mark.parametrize("text", [STRAY, STRAY.replace("x[threadIdx.x]", "nothing")], ids=["runs", "does not compile"])
def test_a_line_of_a_pipe_is_not_waited_for(tmp_path: Path, text: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/zero"):
        (tmp_path / "stray.cu").write_text(text.replace("{", f'{{\n#line 7 "{name}"\n', 1))
        assert run("emulate", str(tmp_path / "stray.cu"), *LAUNCH).exit_code in (1, 2)


@pytest.mark.parametrize("more", [["--counters"], ["--json"], ["--annotations"], []], ids=["counters", "json", "annotations", "text"])
@pytest.mark.parametrize("text", [KERNEL, STRAY], ids=["clean", "stray"])
def test_no_name_and_no_line_reaches_the_terminal_raw(tmp_path: Path, text: str, more: list[str]) -> None:
    (tmp_path / HOSTILE).write_text(text.replace("{", "{ // \x1b[2J\n", 1))
    result = run("emulate", str(tmp_path / HOSTILE), *LAUNCH, *more)
    assert (result.exit_code, "\x1b" in result.output, "\x01" in result.output) == (int(text == STRAY), False, False)


def test_text_of_a_kernel_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    (tmp_path / "copy.cu").write_text(KERNEL.replace("{", '{ printf("\\033[2J%d\\n", n);', 1))
    result = run("emulate", str(tmp_path / "copy.cu"), *LAUNCH)
    assert (result.exit_code, "\x1b" in result.output, "\\x1b[2J32\n" in result.output) == (0, False, True)


def test_reports_of_hostile_names_are_well_formed(tmp_path: Path) -> None:
    (tmp_path / HOSTILE).write_text(STRAY)
    files = {"--junit": tmp_path / "junit.xml", "--sarif": tmp_path / "findings.sarif"}
    assert run("emulate", str(tmp_path / HOSTILE), *LAUNCH, *(str(part) for item in files.items() for part in item)).exit_code == 1
    case = ElementTree.parse(files["--junit"]).getroot().find("testsuite/testcase")
    assert case is not None and "<img src=x" in case.attrib["name"]
    assert json.loads(files["--sarif"].read_text())["runs"][0]["results"]


def test_a_page_of_a_hostile_name_holds_no_markup_of_it(tmp_path: Path) -> None:
    (tmp_path / HOSTILE).write_text(STRAY.replace("{", "{ // <script>alert(2)</script>\n", 1))
    (tmp_path / "copy.cu").write_text(KERNEL)
    assert run("diff", str(tmp_path / HOSTILE), str(tmp_path / "copy.cu"), "-o", str(tmp_path / "diff.html")).exit_code == 0
    clean = tmp_path / HOSTILE.replace("a", "b", 1)
    clean.write_text(KERNEL.replace("{", "{ // <script>alert(2)</script>\n", 1))
    assert run("emulate", str(clean), *LAUNCH, "--counters-html", str(tmp_path / "counters.html")).exit_code == 0
    for page in ("diff.html", "counters.html"):
        text = (tmp_path / page).read_text()
        assert ("<script>alert" in text, "<img" in text, "alert(1)" in text) == (False, False, True)


def emulated(tmp_path: Path, body: str, *more: str, name: str = "k.cu") -> Result:
    """Runs one thread of a kernel with this body and an array of four numbers."""
    (tmp_path / name).write_text(f"#include <cstdio>\n__global__ void k(int* p) {{ {body} }}\n")
    return run("emulate", str(tmp_path / name), "--grid", "1", "--block", "1", "--arg", "i32[4]=zeros", *more)


def commands(output: str) -> list[str]:
    """Lines that a service of continuous integration takes for commands."""
    return [line for line in output.splitlines() if line.lstrip().startswith("::") or "##[" in line or "##vso[" in line]


FORGED = r"::add-mask::x\n \t::stop-commands::t\n##[error]a\nb ##vso[task.complete]\n##teamcity[x]\n::error::forged"


@pytest.mark.parametrize("body", [f'printf("{FORGED}"); p[9] = 1;', f"// {FORGED}\n*/\n"], ids=["printed", "refused"])
def test_a_kernel_gives_no_commands_to_a_log(tmp_path: Path, body: str) -> None:
    result = emulated(tmp_path, body, "--annotations")
    own = [line for line in commands(result.output) if line.startswith("::error file=")]
    assert commands(result.output) == own and "forged" not in "".join(line.partition(",title=")[0] for line in own)
    assert result.exit_code == (1 if "printf" in body else 2) and len(own) == (1 if "printf" in body else 0)


@pytest.mark.parametrize(
    ("body", "begins"),
    [
        ('printf("%1000000000d|", 1);', "(999,995,904 characters that were printed earlier are left out)\n "),
        ('printf("%*d|", 1000000000, 1);', "(999,995,904 characters"),
        ('printf("%.1000000000f|", 1.0);', "(999,995,904 characters that were printed earlier are left out)\n1.0"),
        ('printf("%99999999999999999999999d|", 1);', "("),
        ('printf("%.*f|", -1, 1.0);', "1.000000|"),
        ('printf("%*d|%.f|%.*d|", -4, 7, 1.5, -2147483647 - 1, 3);', "7   |2|3|"),
    ],
)
def test_a_print_is_bounded_like_the_devices(tmp_path: Path, body: str, begins: str) -> None:
    result = emulated(tmp_path, body)
    assert (result.exit_code, result.output[: len(begins)]) == (0, begins) and len(result.output) < 10_000


def test_a_flood_of_prints_keeps_the_newest_megabyte(tmp_path: Path) -> None:
    result = emulated(tmp_path, 'for (int i = 0; i < 500; ++i) printf("%4000d\\n", i);', "--json")
    printed = json.loads(result.output)["output"]
    left_out, _, kept = printed.partition("\n")
    assert left_out == f"({500 * 4001 - (1 << 20):,} characters that were printed earlier are left out)"
    assert len(kept) == 1 << 20 and kept.endswith(" 499\n")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "volatile char s[1 << 24]; s[p[0]] = 1; p[0] = s[p[0] + 1];",
            "local memory a thread; the limit is 524288",
        ),
        ("volatile char s[1 << 30]; s[p[0]] = 1; p[0] = s[p[0] + 1];", "needs 1073741824 bytes of local memory a thread"),
        ("static __device__ char s[1ll << 36]; s[p[0]] = 1; p[0] = s[p[1]];", "take 64 GiB, need at most 2 GiB"),
    ],
)
def test_memory_of_a_kernel_is_sized_before_it_is_taken(tmp_path: Path, body: str, told: str) -> None:
    result = emulated(tmp_path, body)
    assert result.exit_code == 2 and told in result.output and len(result.output) < 500


def test_a_block_whose_lanes_take_gigabytes_is_refused() -> None:
    entry = SimpleNamespace(name="k")
    program: Any = SimpleNamespace(entry=entry, local_bytes=LOCAL_LIMIT, static_bytes=0, registers={"b64": range(70_000)})
    with pytest.raises(BadLaunch, match=r"a block of k needs 11\d{8} bytes for registers and local memory; the emulator's limit is"):
        check_memory(program, (1024, 1, 1))
    with pytest.raises(BadLaunch, match="the module's variables have"):
        program.static_bytes = MEMORY_LIMIT + 1
        check_memory(program, (1, 1, 1))


def test_calls_that_double_end_in_a_message(tmp_path: Path) -> None:
    functions = ".func f0() { ret; }\n" + "".join(f".func f{n}() {{ call f{n - 1}; call f{n - 1}; ret; }}\n" for n in range(1, 31))
    (tmp_path / "k.ptx").write_text(f".version 8.0\n.target sm_80\n.address_size 64\n{functions}.visible .entry k() {{ call f30; ret; }}\n")
    result = run("emulate", str(tmp_path / "k.ptx"), "--grid", "1", "--block", "1")
    assert result.exit_code == 2 and "the expanded code is too large" in result.output


def test_arguments_are_counted_before_they_are_filled(kernel: str) -> None:
    large = ("--arg", "f64[134217728]=random")
    with budget() as spent:
        result = run("emulate", kernel, "--grid", "1", "--block", "32", *large, *large)
    assert result.exit_code == 2 and "takes 3 arguments, got 2" in result.output and spent() < SECONDS


@pytest.mark.parametrize("text", ["i32[٣]=zeros", "i32[3x٣]", "i32[²]"])
def test_a_length_is_written_in_ascii(kernel: str, text: str) -> None:
    result = run("emulate", kernel, "--grid", "1", "--block", "32", "--arg", text)
    assert result.exit_code == 2 and "is no length" in result.output


@pytest.mark.parametrize("words", [("--arg", "i32=٣"), ("--arg", "f32=٣"), ("--grid", "٣"), ("--block", "٣,1")])
def test_a_number_is_written_in_ascii(kernel: str, words: tuple[str, ...]) -> None:
    result = run("emulate", kernel, "--grid", "1", "--block", "32", *words)
    assert result.exit_code == 2 and "٣" in result.output and ("is no value" in result.output or "expected one to three" in result.output)


def test_a_member_of_a_structure_is_written_in_ascii(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("struct Given { int n; };\n__global__ void k(Given given, int* y) { y[0] = given.n; }\n")
    words = ("emulate", str(tmp_path / "a.cu"), "--grid", "1", "--block", "1", "--arg", "{n=%s}", "--arg", "i32[1]")
    assert run(*(word.replace("%s", "3") for word in words)).exit_code == 0
    result = run(*(word.replace("%s", "٣") for word in words))
    assert result.exit_code == 2 and "is no value of the member n" in result.output


@pytest.mark.parametrize("option", ["--rtol", "--atol"])
@pytest.mark.parametrize("value", ["nan", "-1", "-nan", "inf", "1e400", "٣"])
def test_a_tolerance_is_a_number(kernel: str, option: str, value: str) -> None:
    result = run("emulate", kernel, *LAUNCH, option, value)
    assert result.exit_code == 2 and option in result.output


@pytest.mark.parametrize(
    "words",
    [("emulate", "a.cu", "--seconds"), ("sweep", "a.yaml", "--timeout"), ("prove", "a.cu", "--seconds"), ("tune", "a.csv", "--minutes")],
)
@pytest.mark.parametrize("value", ["nan", "inf", "٣"])
def test_a_limit_of_time_is_a_number(words: tuple[str, ...], value: str, tmp_path: Path) -> None:
    (tmp_path / words[1]).write_text("")
    result = run(words[0], str(tmp_path / words[1]), words[2], value)
    assert result.exit_code == 2 and f"Invalid value for '{words[2]}'" in result.output
