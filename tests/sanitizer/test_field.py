"""Kernels compared over a finite field, with each other and with expressions."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gemmgen.cli import cli
from gemmgen.sanitizer.arguments import KernelArgument
from gemmgen.sanitizer.field import degree_of_expression, evaluate
from gemmgen.sanitizer.source import UnusableInput

KERNEL = """extern "C" __global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m * n) return;
    float sum = 0.0f;
    {loop}
    c[i] = sum;
}}"""
TERM = "sum = fmaf(a[i / n * k + x], b[x * n + i % n], sum);"
UP = f"for (int x = 0; x < k; ++x) {TERM}"
DOWN = f"for (int x = k - 1; x >= 0; --x) {TERM}"
LOST = f"for (int x = 0; x < k; ++x) if (x != 3 || i != 77) {TERM}"
SKIPS = f"for (int x = 0; x < k; ++x) if (a[i / n * k + x] != 0.0f) {{ {TERM} if (sum > 1e30f) c[i] = 0.0f; }}"
ARGUMENTS = [
    *("--grid", "2", "--block", "96", "--arg", "f32[80]=random", "--arg", "f32[120]=random", "--arg", "f32[96]"),
    *("--arg", "i32=8", "--arg", "i32=12", "--arg", "i32=10"),
]


@pytest.fixture
def compare(tmp_path):
    def run(loop: str, other: str):
        file = tmp_path / "first.cu"
        file.write_text(KERNEL.format(loop=loop))
        if other.startswith("for"):
            (tmp_path / "second.cu").write_text(KERNEL.format(loop=other))
            other = str(tmp_path / "second.cu")
        return CliRunner().invoke(cli, ["emulate", str(file), *ARGUMENTS, "--field", other])

    return run


def test_two_orders_of_a_sum_are_the_same_function(compare):
    result = compare(UP, DOWN)
    assert result.exit_code == 0, result.output
    assert "field: same: the same function, wrong with probability below 2^-29" in result.output


def test_a_lost_term_is_another_function(compare):
    result = compare(UP, LOST)
    assert result.exit_code == 1
    assert "c[77] is another function of the arrays; 1 of 96 elements differ" in result.output


def test_an_impossible_launch_of_the_second_kernel_is_told(tmp_path):
    for name in ("first", "second"):
        (tmp_path / f"{name}.cu").write_text(KERNEL.format(loop=UP))
    words = ["emulate", str(tmp_path / "first.cu"), *ARGUMENTS, "--field", str(tmp_path / "second.cu"), "--field-block", "2000"]
    result = CliRunner().invoke(cli, words)
    assert (result.exit_code, "a block of (2000, 1, 1) has 2000 threads" in result.output) == (2, True), result.output


POWER = "float t = 1, w = sum; for (unsigned e = {e}u; e; e >>= 1) {{ if (e & 1) t *= w; w *= w; }} sum {by} t;"


@pytest.mark.parametrize("power", [POWER.format(e=2**31 - 2, by="*="), POWER.format(e=2**31 - 1, by="= sum - sum +")])
def test_powers_that_change_nothing_are_not_claimed(compare, power):
    result = compare(UP, f"{UP} {{ {power} }}")
    assert "field: not claimed: product multiplies in a loop what it has multiplied before" in result.output


def test_the_degree_counts(compare):
    result = compare(f"{UP} sum *= sum; sum *= sum;", f"{DOWN} sum *= sum * (sum * sum);")
    assert "field: same: the same function, wrong with probability below 2^-55 (2 runs)" in result.output


@pytest.mark.parametrize(
    ("text", "degree"), [("a @ b + a", 2), ("-a.T * b.reshape(3, 4) * 2.0", 2), ("(a * a).sum(axis=0) * b[1:]", 3), ("1.5", 0)]
)
def test_degrees_of_expressions(text, degree):
    assert degree_of_expression(text) == degree


def test_an_expression_is_compared(compare):
    assert compare(UP, "c=a.reshape(8,10)@b.reshape(10,12)").exit_code == 0
    assert compare(UP, "c=a.reshape(8,10)@b.reshape(10,12) + 1").exit_code == 1


def test_nothing_is_claimed_where_data_decide(compare):
    result = compare(SKIPS, SKIPS)
    assert result.exit_code == 0
    assert "field: not claimed" in result.output


THRESHOLD = """extern "C" __global__ void f(const float* a, float* c, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = a[i], r;
    {test} {{ r = v * 2 + 1; r = r * r + v; r = r * v + 3; r = r * r + 5 * v; }}
    else {{ r = v * 3; r = r * v + 2; r = r * r + v; r = r * v + 7; }}
    c[i] = r;
}}"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{UP} sum *= 2147483648.0f;", UP),
        (f"{UP} sum *= 65536.0f; sum *= 32768.0f;", UP),
        (f"{UP} sum *= 12582912.0f;", f"{UP} sum *= 1262485504.0f;"),
        (f"{UP} sum *= 2147483648.0f;", "c=a.reshape(8,10)@b.reshape(10,12)"),
    ],
)
def test_equality_over_the_field_alone_gets_no_verdict(compare, one, other):
    """2^31 is 1 over the field, and some constants stand for their bits."""
    result = compare(one, other)
    assert "field: not claimed: results differ for ordinary numbers" in result.output, result.output


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{UP} sum += b[0] * 0x1p-40f;", f"{UP} sum += b[0] * 0x1p-71f;"),
        (f"{UP} sum += (b[0] * 0x1p-31f - b[0]) * 0x1p-60f;", UP),
        (f"{UP} sum += 0x1p-60f;", f"{UP} sum += 0x1p-91f;"),
    ],
)
def test_terms_that_are_tiny_beside_others_get_no_verdict(compare, one, other):
    """They are equal over the field, as 2^31 is 1 there."""
    result = compare(one, other)
    assert "field: not claimed: results differ for numbers of many sizes" in result.output, result.output


BITS = """extern "C" __global__ void f(const float* a, float* c, int n) {{
    __shared__ unsigned char bytes[64][4];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? a[i] : 0.0f;
    *reinterpret_cast<float*>(bytes[threadIdx.x]) = v;
    int bits = __float_as_int(v);
    if (i < n) c[i] = {value};
}}"""


@pytest.mark.parametrize(
    "value",
    [
        "__int_as_float(bits & 0x7fffffff)",
        "__int_as_float(max(bits, 0))",
        "__int_as_float(bits & ~(bits >> 31))",
        "v + (float)__popc(bits & 0x80000000)",
        "v + (float)__ballot_sync(__activemask(), bits < 0)",
        "v + (float)(bytes[threadIdx.x][3] >> 7)",
        "v + (float)(reinterpret_cast<const unsigned char*>(a)[4 * i + 3] >> 7)",
        "v + (float)__umulhi(bits, 2)",
        "v + (float)(__byte_perm(bits, 0, 0xbbbb) & 1)",
    ],
)
def test_kernels_that_see_the_sign_of_numbers_get_no_verdict(tmp_path, value):
    """Residues have no sign: over the field, each of these is the number itself."""
    for name, text in (("one.cu", "v"), ("other.cu", value)):
        (tmp_path / name).write_text(BITS.format(value=text))
    arguments = ["--grid", "2", "--block", "64", "--arg", "f32[128]=random", "--arg", "f32[128]", "--arg", "i32=128"]
    result = CliRunner().invoke(cli, ["emulate", str(tmp_path / "one.cu"), *arguments, "--field", str(tmp_path / "other.cu")])
    assert "field: not claimed: f: it computes with the bits of numbers" in result.output, result.output
    result = CliRunner().invoke(cli, ["emulate", str(tmp_path / "one.cu"), *arguments, "--field", str(tmp_path / "one.cu")])
    assert "field: same" in result.output, result.output


OF_INTEGERS = """extern "C" __global__ void f(const signed char* a, const float* s, float* c) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = s[0] * 0.0f + static_cast<float>(a[i]);
    c[i] = {value};
}}"""


@pytest.mark.parametrize("value", ["__int_as_float(__float_as_int(v) & 0x7fffffff)", "__int_as_float(max(__float_as_int(v), 0))"])
def test_signs_of_numbers_made_of_integers_get_no_verdict(tmp_path, value):
    for name, text in (("one.cu", "v"), ("other.cu", value)):
        (tmp_path / name).write_text(OF_INTEGERS.format(value=text))
    arguments = ["--grid", "1", "--block", "64", "--arg", "s8[64]=random", "--arg", "f32[1]=random", "--arg", "f32[64]"]
    result = CliRunner().invoke(cli, ["emulate", str(tmp_path / "one.cu"), *arguments, "--field", str(tmp_path / "other.cu")])
    assert "field: not claimed: f: it computes with the bits of numbers" in result.output, result.output
    result = CliRunner().invoke(cli, ["emulate", str(tmp_path / "one.cu"), *arguments, "--field", str(tmp_path / "one.cu")])
    assert "field: same" in result.output, result.output


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("if (v > 0.5f)", "if (v > 0.5000001f)"),
        ("if (v > 0.5f)", "if (v > 0.0f)"),
        ("if (reinterpret_cast<const int*>(a)[i] > 9)", "if (reinterpret_cast<const int*>(a)[i] > 10)"),
    ],
)
def test_kernels_that_choose_by_data_get_no_verdict(tmp_path, one, other):
    for name, test in (("one.cu", one), ("other.cu", other)):
        (tmp_path / name).write_text(THRESHOLD.format(test=test))
    arguments = ["--grid", "2", "--block", "64", "--arg", "f32[128]=random", "--arg", "f32[128]", "--arg", "i32=128"]
    result = CliRunner().invoke(cli, ["emulate", str(tmp_path / "one.cu"), *arguments, "--field", str(tmp_path / "other.cu")])
    assert result.exit_code == 0, result.output
    assert "field: not claimed: f: " in result.output
    assert "depends on data" in result.output


def test_the_document_shows_what_its_commands_print(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/field.md").read_text()
    for name, text in re.findall(r"```cuda\n// (\w+\.cu)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(f"// {name}\n{text}")
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^\$ gemmgen (emulate product(?:.*\\\n)*.*)\n((?:(?!\$ |```).*\n)*)", page, re.MULTILINE)
    assert len(shown) == 3
    for command, wanted in shown:
        result = CliRunner().invoke(cli, shlex.split(command.replace("\\\n", " ")), prog_name="gemmgen")
        assert result.output.strip() == wanted.strip()
        assert result.exit_code == (1 if wanted.startswith("not clean") else 0)


def test_a_text_that_is_no_expression_is_refused(tmp_path):
    (tmp_path / "one.cu").write_text(BITS.format(value="v"))
    arguments = ["--grid", "2", "--block", "64", "--arg", "f32[128]=random", "--arg", "f32[128]", "--arg", "i32=128"]
    result = CliRunner().invoke(cli, ["emulate", str(tmp_path / "one.cu"), *arguments, "--field", "c=a@"])
    assert result.exit_code == 2
    assert "'a@' is no expression" in result.output


def test_a_second_kernel_that_is_no_file_is_refused(tmp_path, compare):
    for other in (str(tmp_path), str(tmp_path / "missing.cu")):
        result = compare(UP, f"{other}")
        assert result.exit_code == 2
        assert "neither a file nor ARRAY=EXPRESSION" in result.output


@pytest.mark.parametrize("text", ["__import__('os')", "a.tofile('x')", "a if a else b", "a[b]", "(" * 60, "unknown + 1", "a @"])
def test_other_expressions_are_refused(text):
    import numpy as np

    arrays = {name: KernelArgument(name, "f32", np.ones(4, np.float32)) for name in "ab"}
    with pytest.raises(UnusableInput):
        evaluate(text, arrays)
