"""The options of gemmgen emulate for the inputs that people have and the formats that tools read."""

from __future__ import annotations

import gc
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from cli.conftest import Run

from gemmgen.emulator.buffers import DeviceMemory
from gemmgen.sanitizer.explanations import explain
from gemmgen.sanitizer.findings import code_of
from gemmgen.sanitizer.launch_file import LaunchFile, bind_launches
from gemmgen.sanitizer.launches import Settings, run_launches
from gemmgen.sanitizer.source import load_kernel

TWO = """
__device__ int turns;
__global__ void fill(int* x, int value) { x[threadIdx.x] = value; if (threadIdx.x == 0) turns += 1; }
__global__ void add(int* x, const int* y) { x[threadIdx.x] += y[threadIdx.x] + turns; }
"""
LAUNCHES = """
arrays: {x: 'i32[32]', y: 'i32[32]=range'}
launches:
  - {entry: fill, grid: 1, block: 32, args: [x, 5]}
  - {entry: fill, grid: 1, block: [16, 1], args: [x, 6]}
  - {entry: add, grid: 1, block: 32, args: [x, y]}
"""
RACE = "__global__ void k(int* o) { __shared__ int s[64]; s[threadIdx.x] = 1;\n o[threadIdx.x] = s[threadIdx.x ^ 32]; }\n"


def test_launches_instantiate_templates(run: Run) -> None:
    source = "template <int N> __global__ void add(int* x) { x[threadIdx.x] += N; }"
    Path("add.cu").write_text(source)
    Path("run.yaml").write_text(
        "arrays: {x: 'i32[32]=zeros'}\n"
        "launches: [{entry: 'add<3>', grid: 1, block: 32, args: [x]}, {entry: 'add<4>', grid: 1, block: 32, args: [x]}]"
    )
    run("emulate", "add.cu", "--launches", "run.yaml", "--save", "x=x.npy")
    assert (np.load("x.npy") == 7).all()


def test_launches_share_arrays_and_variables(run: Run) -> None:
    Path("two.cu").write_text(TWO)
    Path("run.yaml").write_text(LAUNCHES)
    run("emulate", "two.cu", "--launches", "run.yaml", "--save", "x=x.npy")
    assert np.load("x.npy").tolist() == [6 + i + 2 for i in range(16)] + [5 + i + 2 for i in range(16, 32)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("grid: 1,", ""), "launches.0.grid: Field required"),
        (("[x, 5]", "[x]"), "takes 2 arguments"),
        (("arrays:", "array:"), "Extra inputs"),
        (("grid: 1,", "grid: 1, early: true,"), "launches.0.early: there is no launch in front of it"),
        (("grid: 1,", "grid: 1, early: soon,"), "launches.0.early: Input should be a valid boolean"),
    ],
)
def test_wrong_launches_are_told(run: Run, change: tuple[str, str], message: str) -> None:
    Path("two.cu").write_text(TWO)
    Path("run.yaml").write_text(LAUNCHES.replace(*change))
    assert message in run("emulate", "two.cu", "--launches", "run.yaml", code=2).err


@pytest.mark.parametrize(("early", "waits", "code"), [("true", "", 1), ("true", "WAIT", 0), ("false", "", 0)])
def test_an_early_launch_has_to_wait(run: Run, early: str, waits: str, code: int) -> None:
    source = """__global__ void make(int* x) { asm volatile("griddepcontrol.launch_dependents;"); x[threadIdx.x] = 1; }
__global__ void take(const int* x, int* y) { WAIT y[threadIdx.x] = x[threadIdx.x]; }
"""
    Path("two.cu").write_text(source.replace("WAIT", 'asm volatile("griddepcontrol.wait;" ::: "memory");' if waits else ""))
    Path("run.yaml").write_text(
        "arrays: {x: 'i32[32]', y: 'i32[32]'}\n"
        "launches:\n"
        "  - {entry: make, grid: 1, block: 32, args: [x]}\n"
        f"  - {{entry: take, grid: 1, block: 32, args: [x, y], early: {early}}}\n"
    )
    told = run("emulate", "two.cu", "--launches", "run.yaml", "--arch", "sm_90a", code=code)
    assert ("unordered-launch" in told.out) == (code == 1)


def test_a_structure_on_the_command_line(run: Run) -> None:
    Path("s.cu").write_text("struct S { float* p; int n; };\n__global__ void k(S s) { if (threadIdx.x < s.n) s.p[threadIdx.x] = 1.f; }\n")
    launch = ["emulate", "s.cu", "--grid", "1", "--block", "8", "--print", "s.p"]
    assert "s.p (f32[4]): 1.0, 1.0, 1.0, 0.0" in run(*launch, "--arg", "{p=f32[4]=zeros, n=3}").out
    assert "the member n of S has no value" in run(*launch, "--arg", "{p=f32[4]=zeros}", code=2).err


@pytest.mark.parametrize(("tolerance", "code"), [("1e-3", 0), ("1e-7", 1)])
def test_expected_results(run: Run, tolerance: str, code: int) -> None:
    Path("k.cu").write_text("__global__ void k(const float* x, float* y) { y[threadIdx.x] = 2.0001f * x[threadIdx.x]; }\n")
    Path("reference.py").write_text("def twice(arrays):\n    return 2 * arrays['x']\n")
    np.save("reference.npy", 2 * np.arange(8, dtype=np.float32))
    launch = ["emulate", "k.cu", "--grid", "1", "--block", "8", "--arg", "f32[8]=range", "--arg", "f32[8]", "--rtol", tolerance]
    for value in ("@reference.npy", "reference.py:twice"):
        out = run(*launch, "--expect", f"y={value}", code=code).out
        assert ("y[1] is 2.0000998973846436, expected 2.0" in out) == bool(code)


def test_reports_for_other_tools(run: Run) -> None:
    Path("race.cu").write_text(RACE)
    reports = ["--sarif", "out.sarif", "--junit", "out.xml", "--annotations"]
    out = run("emulate", "race.cu", "--grid", "1", "--block", "64", "--arg", "i32[64]", *reports, code=1).out
    (result,) = json.loads(Path("out.sarif").read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["locations"][0]["physicalLocation"]["region"]["startLine"]) == ("shared-race", 2)
    assert ElementTree.parse("out.xml").find("testsuite/testcase/failure").get("type") == "shared-race"
    assert "::error file=race.cu,line=2,title=shared memory race::" in out


def test_findings_in_json(run: Run) -> None:
    Path("race.cu").write_text(RACE)
    (finding,) = run("emulate", "race.cu", "--grid", "1", "--block", "64", "--arg", "i32[64]", "--json", code=1).json["findings"]
    assert (finding["code"], finding["count"], finding["element"]) == ("shared-race", 64, "shared s[32]")
    assert [place["line"] for place in finding["places"]] == [2, 1]


def test_every_kind_of_finding_is_explained() -> None:
    from gemmgen import emulator

    kinds = [kind for name in emulator.__all__ if isinstance(kind := getattr(emulator, name), type)]
    for kind in kinds:
        if issubclass(kind, emulator.EmulatorError):
            assert f"[{code_of(kind)}]" in explain(code_of(kind))


def test_a_page_is_shown_by_its_code_or_a_word(run: Run) -> None:
    Path("race.cu").write_text(RACE)
    assert "__syncthreads();" in run("emulate", "--explain", "shared-race").out
    assert "[global-race]" in run("emulate", "--explain", "RACE").out
    assert "no finding has this name" in run("emulate", "--explain", "nonsense", code=2).err


def test_seeds_can_be_repeated(run: Run) -> None:
    Path("last.cu").write_text("__global__ void last(volatile int* out) { out[0] = threadIdx.x / 32; }\n")
    launch = ["emulate", "last.cu", "--grid", "1", "--block", "256", "--arg", "i32[1]"]
    first = run(*launch, "--schedules", "8", code=1).out
    seed = first.partition("under schedule ")[2].partition(";")[0]
    assert f"under schedule {seed};" in run(*launch, "--schedules", "1", "--seed", seed, code=1).out


def test_no_hazards_looks_for_no_race(run: Run) -> None:
    Path("race.cu").write_text(RACE)
    assert "race" not in run("emulate", "race.cu", "--grid", "1", "--block", "64", "--arg", "i32[64]", "--no-hazards").err


def test_an_option_reaches_the_compiler(run: Run) -> None:
    Path("k.cu").write_text("__global__ void k(int* o) { *o = __cplusplus / 100; }\n")
    launch = ["emulate", "k.cu", "--grid", "1", "--block", "1", "--arg", "i32[1]", "--print", "0"]
    assert "2020" in run(*launch, "--option=--std=c++20").out and "2017" in run(*launch).out


def test_the_action_passes_arguments_whole(tmp_path: Path) -> None:
    action = yaml.safe_load((Path(__file__).parents[2] / ".github/actions/emulate/action.yml").read_text())
    script = action["runs"]["steps"][-1]["run"].replace("gemmgen emulate", "printf '%s\\n'")
    arguments = "  --grid 4\n--arg {p=f32[4]=zeros, n=3}\n\n--strict"
    environment = {"FILE": "k.cu", "ARGUMENTS": arguments, "SARIF": "out.sarif", "PATH": os.environ["PATH"]}
    shown = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    options = ["--grid", "4", "--arg", "{p=f32[4]=zeros, n=3}", "--strict", "--sarif", "out.sarif"]
    assert shown == [*options, "--annotations", "--", "k.cu"]


def _launches(kernel: str, arguments: str, count: int) -> tuple[Any, ...]:
    code = load_kernel(kernel, "k.cu", Path())
    listed = LaunchFile.model_validate({"arrays": {"a": arguments}, "launches": [{"grid": 1, "block": 64, "args": ["a"]}] * count})
    return code, *bind_launches(listed, code, None)


def test_what_launches_do_again_is_told_once():
    code, launches, given = _launches("__global__ void k(int* a) { *a = 1; }", "i32[1]=zeros", 3)
    (finding,) = run_launches(code, launches, given, {}).findings
    assert finding.code == "same-value" and finding.count == 3 * 63
    assert finding.text.endswith("\n  again in 2 later launches; 189 accesses in all")


def test_memory_of_ended_launches_is_given_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gemmgen.sanitizer.launches._GARBAGE_BYTES", 0)
    alive = []

    def progress(done: int, total: int) -> None:
        alive.append(sum(isinstance(known, DeviceMemory) for known in gc.get_objects()))

    gc.collect()
    gc.disable()
    try:
        code, launches, given = _launches("__global__ void k(int* a) { a[threadIdx.x] += 1; }", "i32[64]=zeros", 6)
        run_launches(code, launches, given, {}, None, Settings(progress=progress))
    finally:
        gc.enable()
    assert len(alive) >= 6 and max(alive) <= alive[0] + 1
