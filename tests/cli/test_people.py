"""Small things that people stumble over: narrow terminals, colours, completion, places of mistakes, reports for other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.shell_completion import ShellComplete

import gemmgen
from cli.conftest import SPEC, Run
from gemmgen.cli import cli
from gemmgen.cli.help_text import continued
from gemmgen.cli.output import Column, print_table
from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.core.yaml_text import positions
from gemmgen.sanitizer.arguments import parse_argument

COLUMNS = [Column("spec", folds=True), Column("registers", "right"), Column("limited by")]
ROWS = [["gemm/v0_naive", "32", "warps, registers"], ["gemm/v3_double_buffer", "128", "registers"]]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_table_never_loses_a_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS)
    shown = capsys.readouterr().out
    assert all(cell in shown.replace("\n", "") for row in ROWS for cell in row[:2])
    assert ("registers" in shown.splitlines()[0]) is (width > 40)


@pytest.mark.parametrize(("name", "coloured"), [("FORCE_COLOR", True), ("NO_COLOR", False)])
def test_colours_follow_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch, name: str, coloured: bool) -> None:
    monkeypatch.setenv(name, "1")
    assert ("\x1b[32maccepted" in run("check", "gemm/v0_naive").out) is coloured


def completed(*arguments: str) -> list[str]:
    *before, last = arguments
    return [item.value for item in ShellComplete(cli, {}, "gemmgen", "_GEMMGEN_COMPLETE").get_completions(before, last)]


def test_paths_of_fields_are_completed() -> None:
    assert "mainloop.stages=" in completed("render", "gemm/v1_tiled", "--set", "mainloop.st")
    assert completed("render", "conv2d/mma_sync/grouped", "--set", "transp") == []
    assert completed("diff", "gemm/v1_tiled", "--set-b", "mainloop.st") == completed("render", "gemm/v1_tiled", "--set", "mainloop.st")
    assert completed("diff", "conv2d/mma_sync/grouped", "--set-b", "transp") == []
    assert "mainloop.stages=" in completed("sweep", "ci_gemm", "--set", "mainloop.st")
    assert completed("sweep", "ci_conv2d", "--set", "transp") == []


def test_values_of_fields_are_completed() -> None:
    assert completed("render", "gemm/v1_tiled", "--set", "transpose=t") == ["transpose=tn", "transpose=tt"]


def test_codes_of_findings_are_completed() -> None:
    assert completed("emulate", "--explain", "shared-") == ["shared-race"]


def test_names_of_pictures_are_completed() -> None:
    assert "fragments" in completed("draw", "gemm/v1_tiled", "--picture", "f")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  tile:", "  stage: 1\n  tile:", ["mainloop.stage: no such field (did you mean stages?)", "6 |   stage: 1\n"]),
        ("kind: gemm\n", "kind: gemm\ntranspose: nx\n", ["transpose: got 'nx', need 'nn', 'nt', 'tn' or 'tt'", "2 | transpose: nx\n"]),
        ("k: 8}", "k: eight}", ["threadblock.k: got 'eight', need a whole number [wrong_type]", "^"]),
    ],
)
def test_a_mistake_is_shown_in_its_line(run: Run, old: str, new: str, expected: list[str]) -> None:
    Path("bad.yaml").write_text(SPEC.replace(old, new, 1))
    told = run("render", "bad.yaml", code=2).err
    for part in expected:
        assert part in told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("explain gemm/v1_tiled --problem gemm:8,8,8", "--problem asks which instance a problem gets, and takes no SPEC"),
        ("explain --problem gemm:8,8,8,gleu", "no option 'gleu' (did you mean gelu?)"),
        ("explain --problem gem:8,8,8", "(did you mean gemm?)"),
        ("emulate gemm/v1_tiled --grid 1 --block 1", "gemmgen verify gemm/v1_tiled runs that spec on the emulator"),
        ("compile gemm/v1_tiled --arch h100", "'h100' is a device; its architecture is sm_90a"),
        ("export gemm/nothing --format header", "No instance of the library has a name with this prefix."),
        ("banks lane*", "such as lane*16"),
        ("help", "'gemmgen --help' shows it"),
        ("help verify", "did you mean 'gemmgen verify --help'?"),
        ("list", "did you mean 'library list'?"),
        ("show gemm/v0_naive", "did you mean 'library show'?"),
        ("render linear_bias_relu", "did you mean gemm/simt/linear/bias_relu?"),
        ("check sweep.yaml", "sweep.yaml: this is a sweep, not a spec; gemmgen sweep runs it"),
        ("sweep gemm/v0_naive", "'gemm/v0_naive' is a spec, not a sweep; a sweep names it as its base"),
        ("sweep empty.yaml --dry-run", "axes.mainloop.stages: got [], need a length of at least 1"),
        ("emulate nothing.cu --grid 1 --block 1 --arg float[4]", "'float' is not a type here; did you mean f32?"),
        ("sweep spec.yaml", "spec.yaml: this is a spec, not a sweep; a sweep names it (base: spec.yaml)"),
        ("view nothing.cu", "this is a file of kernels, not a spec; gemmgen emulate runs it"),
        ("draw gemm/v1_tiled -o pictures", "or pictures/ for a folder with an SVG of each"),
        ("render gemm/nope", "is no file, no directory and no spec that ships with gemmgen; "),
        ("render reducton", "did you mean reduction?"),
        ("render gem/v1_tilde", "did you mean gemm/v1_tiled?"),
        (
            "emulate template.cu --grid 1 --block 1",
            "no kernel except the template scale; name an instance of a template, for example --entry 'scale<float>'",
        ),
        ("emulate number.cu --grid 1 --block 1 --arg f32=1", "n is .u32, got the float 1.0"),
        ("check gemm/v0_naive --set mainlop.x=1", "(did you mean mainloop?) [unknown_field] by --set mainlop.x=1"),
        ("check twice.yaml", "'kind' is given twice 2 | kind: gemm | ^"),
        ("verify gemm/v0_naive --junit nothing.cu/x.xml", "--junit 'nothing.cu/x.xml': cannot be written: nothing.cu is not a directory"),
        ("verify gemm/v0_naive --size 8,8", "--size 8,8: gemm/v0_naive needs 3 numbers: m,n,k"),
        ("verify gemm/simt/h200/128x128x8 --size 100,128,64", "m must be a multiple of 128, as the spec's multiple_of.m promises"),
        ("verify cpu/c0_naive --field", "--field is for kernels of GPUs, which the emulator runs"),
    ],
)
def test_a_typical_mistake_is_told_with_a_way_out(run: Run, command: str, told: str) -> None:
    Path("sweep.yaml").write_text("name: s\nbase: gemm/v1_tiled\naxes: {mainloop.stages: [1, 2]}\n")
    Path("empty.yaml").write_text("name: s\nbase: gemm/v1_tiled\naxes: {mainloop.stages: []}\n")
    Path("nothing.cu").write_text("__global__ void nothing(float *) {}\n")
    Path("number.cu").write_text("__global__ void number(int n) {}\n")
    Path("template.cu").write_text("template <typename T> __global__ void __launch_bounds__(32) scale(T *x) {}\n")
    Path("spec.yaml").write_text(SPEC)
    Path("twice.yaml").write_text("kind: gemm\nkind: gemm\n")
    outcome = run(*command.split(), code=2)
    assert told in " ".join((outcome.out + outcome.err).split())


@pytest.mark.parametrize("command", ["explain", "analyze"])
def test_a_problem_without_elements_needs_nothing(run: Run, command: str) -> None:
    told = run(command, "gemm/v0_naive", "--size", "0,0,0").out
    assert "nothing: no element is read or written" in told and "inf" not in told
    assert "16.4 kB of memory traffic" in run(command, "gemm/v0_naive", "--size", "64,64,0").out


def test_a_tensor_map_without_contents_is_shown_how() -> None:
    with pytest.raises(GemmgenError, match=r"the contents are missing: tensormap\[bf16, 64x128"):
        parse_argument("tensormap", 0)


def test_a_problem_is_told_with_its_epilogue(run: Run) -> None:
    assert "gemm:64,64,64,gelu on the" in run("explain", "--problem", "gemm:64,64,64,gelu").out


def test_a_caret_stands_below_the_field() -> None:
    assert positions("a: 1\nb: [{c: 2, d: 3}]\n")["b", 0, "d"] == (2, 12)


def test_functions_take_the_names_of_specs() -> None:
    assert gemmgen.plan("gemm/v0_naive").spec.kind == "gemm"
    with pytest.raises(SpecError, match="did you mean gemm/v0_naive"):
        gemmgen.plan("gemm/v0_naiv")
    with pytest.raises(SpecError, match=r"names \d+ specs"):
        gemmgen.plan("reduction")


def test_a_verification_is_reported_to_other_tools(run: Run) -> None:
    run("verify", "gemm/v0_naive", "--backend", "emulator", "--junit", "out.xml", "--sarif", "out.sarif", "--github")
    suites = ElementTree.parse("out.xml").getroot()
    assert [suite.get("name") for suite in suites] == ["gemm/v0_naive"]
    assert int(suites[0].get("tests", 0)) > 30 and suites[0].get("failures") == "0"
    assert json.loads(Path("out.sarif").read_text())["runs"][0]["results"] == []


def test_a_failure_is_an_annotation(capsys: pytest.CaptureFixture[str]) -> None:
    from gemmgen.cli.check_reports import Check, CheckReports, junit, sarif

    failed = Check("gemm/x", "one tile", "x.yaml", "C[1, 2] is 3, must be 4", "integers")
    CheckReports("verify", None, None, True).write([failed])
    assert capsys.readouterr().err == "::error file=x.yaml,line=1,title=gemm/x%3A one tile::C[1, 2] is 3, must be 4\n"
    assert json.loads(sarif("verify", [failed]))["runs"][0]["results"][0]["ruleId"] == "integers"
    assert ElementTree.fromstring(junit("verify", [failed]).encode())[0].get("failures") == "1"


def test_every_command_has_its_help() -> None:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None and command.help


def commands(command: click.Command, context: click.Context | None = None) -> Iterator[click.Context]:
    """Contexts of a command and of all below it, at 80 columns."""
    here = command.context_class(command, info_name=command.name, parent=context, terminal_width=80, max_content_width=80)
    yield here
    if isinstance(command, click.Group):
        for name in command.list_commands(here):
            below = command.get_command(here, name)
            assert below is not None
            yield from commands(below, here)


def test_help_fits_into_80_columns() -> None:
    assert [line for context in commands(cli) for line in context.get_help().splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("  short", ["  short"]),
        ("  torch   a package with an operator", ["  torch   a package with an", "          operator"]),
        (
            "  gemmgen prove x.cu --array 'a=in f32[n]' --grid 1",
            ["  gemmgen prove x.cu \\", "      --array 'a=in f32[n]' \\", "      --grid 1"],
        ),
    ],
)
def test_long_lines_of_help_continue(line: str, lines: list[str]) -> None:
    assert continued(line, 30) == lines
