"""Figures in the prose of the stories: each comes from a named source or from a measurement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from gemmgen.kernels.spec_files import load_spec
from measurements.overview import comparisons, picture

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.stem: path for path in (ROOT / "docs" / "stories").glob("*.md")}
FIGURE = re.compile(r"\d+(?: to \d+)?%|\d+\.\d+|[\d,]+ [GT]i?(?:FLOP|B)/s|\d+ times\b")
STEPS = {
    (chapter["chapter"], step["spec"], *step["changes"]): step
    for chapter in json.loads((ROOT / "measurements" / "stories.json").read_text())["chapters"]
    for step in chapter["steps"]
}
SOURCES = (
    ("convolution", "which it puts above 80% of cuDNN"),
    ("gemm", "The source measured 200 GFLOP/s for its naive kernel on a GTX 1060, about 6% of cuBLAS"),
    ("gemm", "The source: 2600 GFLOP/s, 70% of cuBLAS"),
    ("gemm", "The source: 2800 GFLOP/s, 80% of cuBLAS"),
    ("gemm", "The source: 3900 GFLOP/s"),
    ("maxas", "98% of a GTX 980's theoretical rate (his figure)"),
    ("maxas", "the source counts 47% of operands reused where going back and forth gives 39%"),
    ("maxas", "the source comes to 285 GiB/s for its small version, above the 224 GiB/s"),
)
"""Page, and words with a source's own figures."""


def prose(page: str) -> str:
    """A page's text without blocks of code, directives and tables, in one line."""
    text = re.sub(r"^```.*?^```", "", PAGES[page].read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"^\|.*$", "", text, flags=re.MULTILINE))


def gain(chapter: str, spec: str, slow: tuple[str, ...], fast: tuple[str, ...] = ()) -> int:
    """Percent by which a step of a spec is faster than another."""
    return round(100 * (STEPS[chapter, spec, *slow]["median_us"] / STEPS[chapter, spec, *fast]["median_us"] - 1))


def between(chapter: str, slow: tuple[str, ...], fast: tuple[str, ...]) -> float:
    return float(STEPS[chapter, *slow]["median_us"] / STEPS[chapter, *fast]["median_us"])


def milliseconds(spec: str) -> str:
    """Time of a step of 4096 x 4096 x 4096 in float32."""
    return f"{STEPS['sgemm_4096', spec]['median_us'] / 1000:.1f}"


def stated(file: str, words: str) -> str:
    """A figure behind some words of a report of measurements."""
    found = re.search(rf"{words}\D*([\d.]+\d)", (ROOT / "measurements" / file).read_text())
    assert found, words
    return f"{float(found[1]):.2f}"


def product(name: str, column: int) -> str:
    """A figure of a row of the summary of products beside cuBLASLt."""
    row = re.search(rf"^\| {name} \|.*$", (ROOT / "measurements" / "products_h200.md").read_text(), re.MULTILINE)
    assert row, name
    return row[0].split("|")[column + 1].strip()


def weights(shape: str, column: int) -> str:
    """A time of packed weights of 4 bits, in microseconds: that of ``ops.matmul`` in column 3, that of cuBLASLt in column 5."""
    row = re.search(rf"^\| {shape} \| 4 \|.*$", (ROOT / "measurements" / "formats.md").read_text(), re.MULTILINE)
    assert row, shape
    return row[0].split("|")[column].strip()


def planes(start: str, column: int) -> str:
    """A figure of the first row of float32 by planes that begins with some cells; of errors, the ratio without its case."""
    row = re.search(rf"^\| {start} \|.*$", (ROOT / "measurements" / "f32_planes.md").read_text(), re.MULTILINE)
    assert row, start
    return row[0].split("|")[column].split("(")[0].strip()


def split_rows(start: str, column: int) -> str:
    """A time of a product of few rows in float32, in microseconds."""
    row = re.search(rf"^\| {start} \|.*$", (ROOT / "measurements" / "f32_split.md").read_text(), re.MULTILINE)
    assert row, start
    return row[0].split("|")[column].strip()


def way(name: str) -> str:
    """Speed of a way to multiply 4096 x 4096 x 4096 on tensor cores, over that of cuBLAS."""
    row = re.search(rf"^\| {name} \|.*$", (ROOT / "measurements" / "tensor_ways.md").read_text(), re.MULTILINE)
    assert row, name
    return row[0].split("|")[2].strip()


def benchmark(label: str) -> float:
    """Microseconds of a kernel for 4096 x 4096 x 4096 on an H200, by the library's evidence."""
    found = [
        timed["median_us"]
        for record in RECORDS
        if re.match(rf"{label}_\d", record["instance"])
        for timed in record["benchmarks"]
        if {timed["problem"].get(name) for name in "mnk"} == {4096}
    ]
    assert len(found) == 1, label
    return float(found[0])


RECORDS = json.loads((ROOT / "generated" / "evidence" / "h200.json").read_text())["records"]
PLAIN, PING_PONG = "bf16_128x128", "bf16_128x128_ping_pong"
V3, BLOCKED, SMALL, LARGE, COPIES = (
    f"gemm/{name}" for name in ("v3_double_buffer", "simt/blocked/128x128x8", "simt/maxas/64", "simt/maxas/256", "simt/swizzled_cp_async")
)
GUARDED, ONE = ("mainloop.edges=each_vector", "mainloop.fragment_buffers=1"), ("mainloop.fragment_buffers=1",)
TILE = load_spec("gemm/v1_tiled").mainloop.tile.threadblock
TRANSPOSING = tuple(f"mainloop.shared_a.{field}" for field in ("order=mn_major", "k_vector=1", "fragment=quads_in_warp", "swizzle=none"))
MEASURED: tuple[tuple[str, str, Callable[[], str]], ...] = (
    (
        "gemm",
        "4096³ take {} less time",
        lambda: f"{round(100 * (1 - 1 / between('shared', (COPIES,), (COPIES, 'mainloop.edges=each_tile'))))}%",
    ),
    ("gemm", "{} times cuBLAS's speed as a geometric mean", lambda: stated("sgemm.md", "Geometric mean of cuBLAS's time over the best")),
    (
        "gemm",
        "gain another {}",
        lambda: f"{gain('sgemm_4096', V3, GUARDED, ONE)} to {gain('sgemm_4096', BLOCKED, GUARDED, ONE)}%",
    ),
    (
        "gemm",
        "neither gains nor costs more than {}",
        lambda: f"{max(abs(gain('sgemm_4096', spec, ONE)) for spec in (V3, BLOCKED))}%",
    ),
    (
        "maxas",
        "the large version is {} faster",
        lambda: f"{gain('maxas_4096', LARGE, ('mainloop.edges=each_vector', 'mainloop.min_blocks_per_sm=1'))}%",
    ),
    ("maxas", "row by row is {} faster with 64", lambda: f"{-gain('maxas_4096', SMALL, ('mainloop.order=rows',))}%"),
    ("maxas", "the swirl {} faster with 256", lambda: f"{gain('maxas_4096', LARGE, ('mainloop.order=rows',))}%"),
    ("shared_memory", "the second variant is {} faster", lambda: f"{gain('shared', COPIES, (), TRANSPOSING)}%"),
    (
        "shared_memory",
        "the swizzle gains only {}",
        lambda: f"{gain('shared', COPIES, ('mainloop.shared_a.swizzle=none', 'mainloop.shared_a.padding=0'))}%",
    ),
    ("shared_memory", "need {} registers instead of", lambda: str(STEPS["shared", COPIES, *TRANSPOSING]["registers"]["registers"])),
    ("shared_memory", "registers instead of {}.", lambda: str(STEPS["shared", COPIES]["registers"]["registers"])),
    ("gemm", "**Gain:** {} ms instead of", lambda: milliseconds("gemm/v1_tiled")),
    ("gemm", " {} ms with V0", lambda: milliseconds("gemm/v0_naive")),
    ("gemm", "**Gain:** {} ms instead of", lambda: milliseconds("gemm/v2_transposed_quads")),
    ("gemm", " {} ms with V1", lambda: milliseconds("gemm/v1_tiled")),
    ("gemm", "**Gain:** {} ms instead of", lambda: milliseconds(V3)),
    ("gemm", " {} ms with V2", lambda: milliseconds("gemm/v2_transposed_quads")),
    ("gemm", "{} times its speed as a geometric mean", lambda: product("bf16", 2)),
    ("gemm", "and {} at worst", lambda: product("bf16", 3)),
    ("hopper", "step 3 takes {} µs", lambda: f"{benchmark(PLAIN):.1f}"),
    ("hopper", "step 4 {} µs", lambda: f"{benchmark(PING_PONG):.1f}"),
    ("hopper", "{} of cuBLAS's speed. **Limit.** All", lambda: way("mma cp 128x256x64 w64x64 s3 f2")),
    ("hopper", "{} of cuBLAS's speed, with the same", lambda: way("mma tma 128x128x64 f2")),
    ("hopper", "**Gain.** {} of cuBLAS's speed.", lambda: way("128x128 persistent")),
    ("hopper", "{} µs instead", lambda: f"{benchmark(PING_PONG):.1f}"),
    ("hopper", " of {} µs for step 3 in", lambda: f"{benchmark(PLAIN):.1f}"),
    ("hopper", "run: {} less time", lambda: f"{round(100 * (1 - benchmark(PING_PONG) / benchmark(PLAIN)))}%"),
    ("hopper", "128 × 256 take {} µs", lambda: f"{benchmark('bf16_128x256'):.1f}"),
    ("hopper", "against {} µs for step 3", lambda: f"{benchmark(PLAIN):.1f}"),
    ("hopper", "takes {} µs, the same kernel", lambda: f"{benchmark('bf16_192x192_pair'):.1f}"),
    ("hopper", "without it, , {} µs", lambda: f"{benchmark('bf16_192x192'):.1f}"),
    ("hopper", "become {} times as fast", lambda: stated("early_launch.md", r"0 to 12 us \| 39 \|")),
    ("hopper", "range from {}", lambda: stated("early_launch.md", r"0 to 12 us \| 39 \| [\d.]+ \|")),
    ("hopper", " to {} (", lambda: stated("early_launch.md", r"0 to 12 us \| 39 \| [\d.]+ \| [\d.]+ \|")),
    ("gemm", "{} times fewer", lambda: str(round(2 / (1 / TILE.m + 1 / TILE.n)))),
    ("quantised_weights", "weights reads {} MB of bfloat16", lambda: f"{2 * 4096 * 4096 / 1e6:.1f}"),
    ("quantised_weights", "weights of 4 bits take {} µs for one row", lambda: weights("1 × 4096 × 4096", 3)),
    ("quantised_weights", "and {} µs for 16 rows", lambda: weights("16 × 4096 × 4096", 3)),
    ("quantised_weights", "on an H200, where cuBLASLt takes {} µs with bfloat16", lambda: weights("16 × 4096 × 4096", 5)),
    ("quantised_weights", "32 rows by 4096 × 4096 take {} µs", lambda: weights("32 × 4096 × 4096", 3)),
    ("quantised_weights", ", where cuBLASLt takes {} µs with bfloat16 weights; 64", lambda: weights("32 × 4096 × 4096", 5)),
    ("quantised_weights", "columns with k = 4096 take {} µs", lambda: weights("64 × 14336 × 4096", 3)),
    ("quantised_weights", " against {} µs, and 1024", lambda: weights("64 × 14336 × 4096", 5)),
    ("quantised_weights", "rows by 4096 × 4096 take {} µs against", lambda: weights("1024 × 4096 × 4096", 3)),
    ("quantised_weights", " {} µs ([measurements", lambda: weights("1024 × 4096 × 4096", 5)),
    ("quantised_weights", "for 128 weights: {} bytes", lambda: f"{(128 * 4 + 16 + 16) / 8 / 128:.2f}"),
    ("quantised_weights", ", or {} bits", lambda: f"{(128 * 4 + 16 + 16) / 128:.2f}"),
    ("float32", "25 shapes reach {} times cuBLAS's speed", lambda: stated("sgemm.md", "Geometric mean of cuBLAS's time over the best")),
    ("float32", "**Gain.** {} times cuBLAS's speed for 4096", lambda: planes(r"nt \| 4096×4096×4096", 8)),
    ("float32", "errors is {} times cuBLAS's", lambda: planes(r"f16x3, plain sums \| from 64 on", 6)),
    ("float32", "over all data and depths, is {}.", lambda: planes(r"f16x3 \| from 64 on", 6)),
    ("float32", "speed: {} times cuBLAS's for 4096", lambda: planes(r"nt \| 4096×4096×4096", 6)),
    ("float32", "64 rows by 4096 × 4096 take {} µs on an H100", lambda: split_rows(r"64 \| 4096 \| 4096", 4)),
    ("float32", "where cuBLAS takes {} µs and", lambda: split_rows(r"64 \| 4096 \| 4096", 6)),
    ("roofline", "took {} ms", lambda: re.findall(r"--time ([\d.]+)ms", PAGES["roofline"].read_text())[0]),
)
"""Page, words with a place for the figure, and the figure."""


@pytest.mark.parametrize(("page", "words"), SOURCES, ids=[words for _, words in SOURCES])
def test_a_figure_of_a_source_is_named_as_such(page: str, words: str) -> None:
    text = prose(page)
    assert words in text
    place = text.index(words)
    assert re.search(r"\b(source|his figure)\b", text[max(0, place - 120) : place + len(words)])


@pytest.mark.parametrize(("page", "words", "figure"), MEASURED, ids=[words for _, words, _ in MEASURED])
def test_a_figure_is_what_was_measured(page: str, words: str, figure: Callable[[], str]) -> None:
    assert words.format(figure()) in prose(page)


def test_fractions_of_the_first_steps() -> None:
    steps = (("gemm/v1_tiled",), ("gemm/v2_transposed_quads",), (V3, *GUARDED, "mainloop.order=rows"))
    fifth, ninth = (between("sgemm_4096", slow, fast) - 1 for slow, fast in pairwise(steps))
    assert "V2 gains most, a fifth, then the second stage, a ninth" in prose("gemm")
    assert round(1 / fifth) == 5 and round(1 / ninth) == 9


@pytest.mark.parametrize("page", sorted(PAGES))
def test_no_figure_is_without_a_source(page: str) -> None:
    text = prose(page)
    known = [words for where, words in SOURCES if where == page]
    known += [words.format(figure()) for where, words, figure in MEASURED if where == page]
    for words in known:
        text = text.replace(words, "")
    assert not [text[max(0, one.start() - 40) : one.end() + 20] for one in FIGURE.finditer(text)]


def test_the_overview_shows_the_tables_of_measurements() -> None:
    assert (ROOT / "measurements" / "overview.svg").read_text() == picture(comparisons()), "python -m measurements.overview draws it anew"


def test_the_readme_has_the_figures_of_the_overview() -> None:
    readme = (ROOT / "README.md").read_text()
    found = {(row.name, row.peer): (f"{row.mean:.2f}", f"{min(row.ratios):.2f}", len(row.ratios)) for row in comparisons()}
    table = {
        "float32 products, beside the fastest": found["float32 products", "cuBLASLt"],
        "bfloat16 products, beside the fastest": found["bfloat16 products", "cuBLASLt"],
        "reductions along rows, beside PyTorch": found["reductions along rows", "PyTorch"],
    }
    for words, (mean, worst, _) in table.items():
        assert re.search(rf"^\| {words}.* \| {mean}× \| {worst}× \|$", readme, re.MULTILINE), words
    mean, worst, count = found["reductions along rows", "PyTorch, torch.compile"]
    assert f"{count} of those reductions reach {mean}× on average and {worst}× at worst" in readme
    mean, worst, count = found["16-bit convolutions", "cuDNN"]
    assert f"| {count} further layers" in readme and f"| {mean} times its speed as a geometric mean, {worst} at worst" in readme
    for name, row in (("f16", "float16 products"), ("e4m3", "8-bit float products"), ("int8", "int8 products")):
        mean, worst, _ = found[row, "cuBLASLt"]
        assert f"{name} {mean}, {worst}" in readme
