from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import SHIPPED, SPECS
from hypothesis import given
from hypothesis import strategies as st

import gemmgen
from gemmgen.codegen.rendering import _folded, spec_lines
from gemmgen.core.literals import float_literal
from gemmgen.kernels.spec_files import load_spec

PATHS = SHIPPED
rendered = cache(gemmgen.render)
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|^[ ]*#[^\n]*|"[^"\n]*"|__attribute__\(\(\w+\)\)', re.DOTALL | re.MULTILINE)
NEEDLESS = re.compile(
    r"""(?<![\w.])(?:0u?\s[-+*/%]|1u?\s\*)\s                     # 0 + step, 0 * k, 1 * k
    | \s(?:[-+*/%|^]|<<|>>)\s0u?(?![\w.'])|\s[*/%]\s1u?(?![\w.'])  # i + 0, x << 0, k * 1, k / 1
    | (?<![\w>"\])])(?<!if[ ])(?<!while[ ])(?<!switch[ ])\(\w+\)(?=[\s;,)\]])  # (rank) * 4, but no cast and no call
    | \(\((?:[^()]|\([^()]*\))*\)\)                                # ((a + b))""",
    re.VERBOSE,
)
"""Arithmetic without effect, and brackets around a name or around brackets."""


def needless(text: str) -> list[str]:
    """The needless expressions in CUDA or C, whose comments, directives, attributes and strings do not count."""
    return NEEDLESS.findall(NOT_CODE.sub('""', text))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_rendered_source_is_clean(path: Path) -> None:
    source = rendered(path)
    text = source.text
    assert not re.search(r"[ \t]+$", text, re.MULTILINE), "trailing spaces"
    assert "\n\n\n" not in text and "\t" not in text and "{{" not in text
    assert not re.search(r"\{%[^\d]", text), "a statement of a template; {%0 is an operand of assembler"
    assert text.endswith("}\n")
    assert text.count("{") == text.count("}") and text.count("(") == text.count(")")
    code = [line for line in text.splitlines() if line and not line.lstrip().startswith(("//", "*", "#"))]
    starts = [line for before, line in pairwise(code) if before.endswith((";", "{", "}"))]  # the others continue a statement
    assert all((len(line) - len(line.lstrip())) % 4 == 0 for line in starts), "odd indent"
    assert max(map(len, text.splitlines())) <= 160
    assert needless(text) == []
    assert source.name in "\n".join(code) and (source.suffix == ".c" or 'extern "C" __global__' in text)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_no_function_or_constant_is_unused(path: Path) -> None:
    code = re.sub(r"//.*", "", rendered(path).text)
    declared = re.findall(r"^constexpr \w+ (\w+)", code, re.MULTILINE) + re.findall(r"__device__ [\w ]*?(\w+)\(", code)
    unused = [name for name in set(declared) if len(re.findall(rf"\b{name}\b", code)) < 2]
    assert not unused


def test_needless_expressions_are_found() -> None:
    texts = ["(0 + step) * 4", "a + 0;", "x - 0)", "0 * k + i", "part * 1, b", "part / 1", "n % 1", "1 * k", "x << 0", "f(part\n    * 1)"]
    texts += ["b = (rank) * 4;", "a / (kTileM);", "return (x);", "f((a + b))", "if ((a == f(b)))"]
    assert [text for text in texts if len(needless(text)) != 1] == []


def test_plain_expressions_are_not_needless() -> None:
    texts = ["x * 16", "x * 1.0f", "i + 0x80u", "1 / x", "a - 1", "x = -1 + y", "a[0] + b", "10 * k", "0.5f * x", "n % 10", "if (x) {"]
    texts += ["(float)x", "f(x) + g(y)", "static_cast<int>(x)", "((a + b) * c)", "__attribute__((always_inline)) void f();"]
    texts += ["// (0 + step)", "#define TWICE(x) ((x) * 2)", 'asm("add %0, %1 + 0;" : "=r"(x) : "r"(y));']
    assert [text for text in texts if needless(text)] == []


def test_the_header_holds_the_spec_that_the_source_was_made_from(tmp_path: Path) -> None:
    original = load_spec("gemm/simt/epilogues/tour")
    text = gemmgen.render(original).text
    lines = text[text.index("Spec, SHA-256") :].splitlines()[1:]
    held = [line[5:] for line in lines if line.startswith("//   ")]
    path = tmp_path / "again.yaml"
    path.write_text("\n".join(held))
    assert load_spec(path).identity() == original.identity()


def test_a_description_never_reaches_the_source() -> None:
    spec = load_spec(SPECS / "gemm" / "v0_naive.yaml", ['description="*/ } evil"'])
    assert "evil" not in gemmgen.render(spec).text
    assert not any("description" in line for line in spec_lines(spec))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_literal_reads_back_as_the_same_float(value: float) -> None:
    literal = float_literal(value)
    assert literal.endswith("f") and re.search(r"[.e]", literal)
    assert np.float32(literal[:-1]) == np.float32(value)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_compiles_the_same_source(tmp_path: Path) -> None:
    source = gemmgen.render("gemm/simt/epilogues/tour")
    path = tmp_path / source.file_name
    path.write_text(source.text)
    command = ["nvcc", "-arch=sm_80", "-cubin", "-o", str(tmp_path / "out.cubin"), str(path)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("line", "first_words"),
    [
        ("    f(" + "argument, " * 12 + "last);", ["f(argument,", "argument,"]),
        ("    // " + "word " * 30 + "end", ["// word", "// word"]),
        ("    x = y;  // Word, " + "word, " * 20 + "end.", ["// Word,", "// word,", "x = y;"]),
    ],
)
def test_an_overlong_line_is_folded_where_a_reader_would(line: str, first_words: list[str]) -> None:
    folded = _folded(line)
    assert all(len(part) <= 120 for part in folded)
    assert all(part.lstrip().startswith(words) for part, words in zip(folded, first_words, strict=True))
    assert sorted("".join(folded).replace("/", "").replace(" ", "")) == sorted(line.replace("/", "").replace(" ", ""))


NAMES = "argument, " * 10


def test_what_is_folded_within_brackets_goes_one_deeper() -> None:
    level = _folded("    " + NAMES * 2 + "last)", continues=True)
    assert len(level) == 2 and level[1].startswith("    argument")
    deeper = _folded("    inner(" + NAMES * 2 + "last),", continues=True)
    assert len(deeper) == 2 and deeper[1].startswith("        argument")
    both = _folded("    " + NAMES + "inner(" + NAMES * 2 + "last),", continues=True)
    assert [len(part) - len(part.lstrip()) for part in both] == [4, 4, 8]


def test_a_comment_above_its_line_is_a_sentence() -> None:
    assert _folded("    x = y" + " + y" * 20 + ";  // what becomes of it, and of others")[0] == "    // What becomes of it, and of others."


def test_a_line_without_its_comment_ends_in_no_space() -> None:
    assert _folded("    STEPS = 8,             // " + "word " * 20 + "end")[1] == "    STEPS = 8,"


@pytest.mark.parametrize("line", ["//   a: [" + "1, " * 60 + "1]", '    asm("' + "a, " * 50 + '");'])
def test_specs_in_headers_and_quoted_text_are_never_folded(line: str) -> None:
    assert _folded(line) == [line]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("alignment", [1, 2, 4])
def test_results_of_sixteen_bits_are_stored_at_every_width(kind: str, alignment: int) -> None:
    """Parts of a line that are empty for one width leave nothing behind."""
    storage = f"storage={{a: {kind}, b: {kind}, c: {kind}}}"
    text = gemmgen.render(gemmgen.plan("gemm/simt/half_storage/f16", overrides=[storage, f"alignment.c={alignment}"])).text
    assert "\0" not in text
    assert f"const float (&values)[{alignment}]" in text
