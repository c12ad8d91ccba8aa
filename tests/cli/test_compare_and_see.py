"""The commands that compare and show: diff, view, banks, and pictures in other forms than SVG."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import gemmgen
from cli.conftest import Run
from gemmgen.cli.commands.diff import print_changes
from gemmgen.hardware.target import ARCHITECTURES
from gemmgen.present.comparison import Change
from gemmgen.toolchain.control_codes import control_of, parse_annotations


class Lines(HTMLParser):
    """The lines of the source that the rows of each pane belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.pane = ""
        self.lines: dict[str, set[str]] = {}
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if "pane" in (found.get("class") or "").split():
            self.pane = found["id"] or ""
        if line := found.get("data-line"):
            self.lines.setdefault(self.pane, set()).add(line)
        self.addresses += [value for name, value in attributes if name in ("src", "href") and value]


def test_a_view_has_source_ptx_and_sass_of_the_same_lines(run: Run) -> None:
    run("view", "gemm/v1_tiled", "-o", "out.html")
    page = Path("out.html").read_text()
    panes = Lines()
    panes.feed(page)
    assert len(panes.lines["cuda"] & panes.lines["ptx"] & panes.lines["sass"]) > 20
    assert all(address.startswith("data:") for address in panes.addresses)
    assert "Why slow" in page and "bank conflicts, most in line" in page


def test_control_codes_are_decoded() -> None:
    text = (
        '\t.section\t.text.k,"ax",@progbits\n'
        "        /*14d0*/   FFMA R116, R105.reuse, R67, R45 ;   /* 0x0000004369747223 */   // |   |   |   |\n"
        "                                                       /* 0x058fe2000000002d */   // |  115  |   1    |    4   |\n"
    )
    (found,) = parse_annotations(text).values()
    assert found.live_registers == 115
    assert found.control == control_of(0x058FE2000000002D << 64)
    assert found.control.stall == 1 and not found.control.yields and found.control.waits == (3, 4)


@pytest.mark.parametrize("option", ["--set", "--set-b"])
def test_a_diff_names_what_changed(run: Run, option: str) -> None:
    found = run("diff", "gemm/v1_tiled", option, "mainloop.stages=2", "--json").json
    assert [(change["name"], change["difference"]) for change in found["spec"]] == [("mainloop.stages", 1)]
    assert any(line.startswith("+") and "kStages" in line for line in found["source"])
    names = {change["name"] for change in found["resources"]}
    assert "shared memory a block, bytes" in names


def test_sentences_of_a_diff_are_folded_at_100_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    copied = "a thread reads 1 x 16 bytes along k and writes 16 bytes at a time into [m][k]"
    print_changes(
        [Change("stages", "1", "2", 1.0), Change("copies of A", copied, f"{copied}, transposed here, and again")], "gemm/a", "gemm/b"
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2] == "stages       1       2      +1"
    assert lines[4:8] == ["- gemm/a", "+ gemm/b", "", "copies of A"]
    assert lines[8:10] == [f"  - {copied}", f"  + {copied}, transposed here,"]


def test_a_kernel_does_not_differ_from_itself(run: Run) -> None:
    assert run("diff", "gemm/v0_naive", "gemm/v0_naive").out == "gemm/v0_naive and gemm/v0_naive are the same kernel.\n"


def test_a_diff_is_written_as_a_page(run: Run) -> None:
    run("diff", "reduction/s0_interleaved", "reduction/s1_interleaved_compact", "-o", "out.html")
    page = Path("out.html").read_text()
    assert "s0_interleaved" in page and "<h2>Source</h2>" in page and "data:image/svg+xml" in page


REVERSE = """\
__global__ void reverse(const float* in, float* out)
{
    __shared__ float tile[64];
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x];
}
"""


def test_files_of_kernels_are_compared_with_their_counters(run: Run) -> None:
    Path("one.cu").write_text(REVERSE)
    Path("two.cu").write_text(
        REVERSE.replace("float tile[64]", "float tile[128]").replace("tile[t", "tile[2 * t").replace("63 -", "126 - 2 *")
    )
    launch = ["--grid", "1", "--block", "64", "--arg", "f32[64]=range", "--arg", "f32[64]"]
    found = run("diff", "one.cu", "two.cu", *launch, "--json").json
    assert found["names"] == ["one.cu", "two.cu"] and found["spec"] == [] and found["source"]
    counters = {change["name"]: change["difference"] for change in found["counters"]}
    assert counters["shared wavefronts"] == 4 and counters["shared conflicts"] == 4
    assert {change["name"]: change["difference"] for change in found["resources"]}["shared memory a block, bytes"] == 256


def test_counters_of_two_specs_are_those_of_one_problem(run: Run) -> None:
    found = run("diff", "gemm/v0_naive", "gemm/v1_tiled", "--no-source", "--json").json
    assert found["counted_cases"][0] == found["counted_cases"][1]
    counters = {change["name"]: change["difference"] for change in found["counters"]}
    assert counters["global sectors"] < 0  # tiles read less; on smaller problems of its own the naive kernel would


def test_files_without_a_launch_are_compared_all_the_same(run: Run) -> None:
    Path("one.cu").write_text(REVERSE)
    Path("two.cu").write_text(REVERSE.replace("    __syncthreads();\n", ""))
    told = run("diff", "one.cu", "two.cu").out
    assert "barrier" in told and "Counters are not compared: --grid, --block and --arg launch it" in told
    assert "-    __syncthreads();" in told


def test_an_edited_kernel_is_compared_with_its_spec(run: Run) -> None:
    run("render", "reduction/s7_shuffle", "-o", "out")
    (rendered,) = Path("out").glob("*.cu")
    assert run("diff", "reduction/s7_shuffle", rendered).out.endswith("are the same kernel.\n")
    edited = rendered.read_text().replace("__restrict__ ", "")
    Path("mine.cu").write_text(edited)
    found = run("diff", "reduction/s7_shuffle", "mine.cu", "--json").json
    assert found["spec"] == found["plan"] == [] and any("__restrict__" in line for line in found["source"])
    assert found["counted_cases"][0] == found["counted_cases"][1] != "not counted"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["one.cu", "gone.cu"], "gone.cu: No such file"),
        (["one.cu", "one.cu", "--set", "a=1"], "--set changes fields of specs"),
        (["one.cu", "one.cu", "--grid", "1"], "--grid and --block go together"),
        (["gemm/v0_naive", "gemm/v1_tiled", "--grid", "1", "--block", "1"], "are for files of kernels"),
        (["one.cu", "one.cu", "--entry", "revers"], "did you mean"),
        (["one.cu", "one.cu", "--grid", "1", "--block", "64", "--arg", "f32[4]=zeros", "--arg", "f32[64]"], "gemmgen emulate one.cu"),
    ],
)
def test_files_that_cannot_be_compared_are_told(run: Run, arguments: list[str], told: str) -> None:
    Path("one.cu").write_text(REVERSE)
    assert told in run("diff", *arguments, code=2).err


@pytest.mark.parametrize(
    ("pattern", "options", "wavefronts", "best"),
    [
        ("lane*4", [], 1, 1),
        ("lane*128", [], 32, 1),
        ("lane*16", ["--width", "16"], 4, 4),
        ("lane//2*16", ["--width", "16"], 2, 2),
        ("lane//2*16", ["--width", "16", "--store"], 4, 4),
        ("lane%8*256 + lane//8*16", ["--width", "16"], 32, 4),
        ("0,128,256,-1", [], 3, 1),
        ("select(lane < 16, lane*8, -1)", ["--width", "8"], 1, 1),
    ],
)
def test_an_access_costs_what_the_rule_says(run: Run, pattern: str, options: list[str], wavefronts: int, best: int) -> None:
    layouts = run("banks", pattern, *options, "--json").json["layouts"]
    assert layouts[0]["wavefronts"] == wavefronts
    assert min(layout["wavefronts"] for layout in layouts) == best


def test_swizzles_of_tma_are_compared(run: Run) -> None:
    """Eight rows of 128 bytes, a chunk of each: eight, four or two places of it."""
    layouts = run("banks", "lane%8*128 + lane//8*16", "--width", "16", "--row", "128", "--json").json["layouts"]
    waves = {layout["title"].removesuffix(" swizzle of TMA"): layout["wavefronts"] for layout in layouts}
    assert {name: waves[name] for name in waves if name.startswith("128B")} == {"128B": 4, "128B_ATOM_32B": 8, "128B_ATOM_64B": 16}
    narrow = run("banks", "lane*8", "--width", "8", "--row", "128", "--json").json["layouts"]
    assert any(layout["title"].startswith("128B_ATOM_32B_FLIP_8B") for layout in narrow)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("__import__('os')", "is not supported; allowed are"),
        ("lane.real", "is not a number"),
        ("[1]*10**9", "is not supported; allowed are"),
        ("[lane]*1000000000", "a list is not a number"),
        ("threadIdx", "'threadIdx' has no value"),
        ("lane*2", "not a multiple of the 4 bytes"),
        ("1 << lane*60", "a shift by"),
        ("lane // 0", "divides by zero"),
        ("-1", "every lane is inactive"),
        ("-lane*4", "lane 1 accesses byte -4"),
    ],
)
def test_a_pattern_that_means_nothing_is_told(run: Run, pattern: str, told: str) -> None:
    assert told in run("banks", "--", pattern, code=2).err


def test_a_picture_under_another_name_is_refused(run: Run) -> None:
    assert ".svg, .png, .pdf" in run("draw", "gemm/v1_tiled", "-o", "x.gif", code=2).err
    assert not Path("x.gif").exists()


@pytest.mark.parametrize("command", [["view", "gemm/v1_tiled"], ["diff", "gemm/v0_naive", "gemm/v1_tiled"]])
def test_a_page_under_another_name_is_refused(run: Run, command: list[str]) -> None:
    assert "x.pdf: unsupported format of a page; use .html" in run(*command, "-o", "x.pdf", code=2).err
    assert not Path("x.pdf").exists()


def test_a_view_without_machine_code_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.toolchain.sass.find_nvdisasm", lambda: None)
    told = run("view", "gemm/v0_naive", "-o", "out.html").err
    assert "Without machine code: nvdisasm was not found" in told


def test_a_png_is_a_png(run: Run) -> None:
    pytest.importorskip("cairosvg", reason="CairoSVG draws PNG")
    run("draw", "gemm/v1_tiled", "--picture", "tiles", "-o", "x.png")
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")


def test_every_instruction_has_live_registers_and_control_codes() -> None:
    from gemmgen.perf.analysis.listing import listing
    from gemmgen.toolchain.compilation import compile_plan

    listed = listing(compile_plan(gemmgen.plan("gemm/v1_tiled", ARCHITECTURES["sm_80"])))
    assert all(one.annotation is not None for one in listed)
    assert max(one.annotation.live_registers or 0 for one in listed if one.annotation) <= 255
    loop = [one for one in listed if one.in_main_loop]
    assert sum(one.kind == "fma float32" for one in loop) == 8 * 8 * 8
    assert all(re.fullmatch(r"[-0-5]{6}:[-0-5]:[-0-5]:[-Y]:\d+", str(one.annotation.control)) for one in loop if one.annotation)
