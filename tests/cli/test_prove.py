"""``gemmgen prove``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("z3")

from gemmgen.cli import cli, exit_codes
from gemmgen.present.web.pages import page
from gemmgen.proof.solver import Answer


def test_a_kernel_is_proved_and_required_to_be() -> None:
    result = CliRunner().invoke(cli, ["prove", "gemm/v0_naive", "--require", "all", "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    assert "lda >= k" in found["domain"]
    assert [each["status"] for each in found["kernels"][0]["properties"]] == ["proved"] * 7


COLLATZ = """.version 8.0
.target sm_80
.address_size 64
.visible .entry collatz(.param .u32 n)
{
    .reg .b32 %r<4>;
    .reg .pred %p<3>;
    ld.param.u32 %r1, [n];
TURN:
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 shr.u32 %r1, %r1, 1;
    @!%p1 mad.lo.u32 %r1, %r1, 3, 1;
    setp.gt.u32 %p2, %r1, 1;
    @%p2 bra TURN;
    ret;
}
"""


def test_required_properties_must_be_proved(tmp_path: Path) -> None:
    arguments = ["prove", "gemm/v0_naive", "--seconds", "1", "--set", "architecture=sm_80"]
    (tmp_path / "collatz.ptx").write_text(COLLATZ)
    file = ["prove", str(tmp_path / "collatz.ptx"), "--grid", "1", "--block", "32"]
    lenient = CliRunner().invoke(cli, file)
    assert lenient.exit_code == 0 and "was not proved to end" in lenient.stdout, lenient.output
    strict = CliRunner().invoke(cli, [*file, "--require", "progress"])
    assert strict.exit_code == 1
    assert CliRunner().invoke(cli, [*arguments, "--require", "speed"]).exit_code == 2


BEYOND = """extern "C" __global__ void beyond(const float* x, float* y, int n)
{
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i <= n) y[i] = x[i];
}
"""


def test_a_proof_that_a_run_contradicts_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.proof.solver.Solver._answer", lambda *_: Answer("proved"))
    (tmp_path / "beyond.cu").write_text(BEYOND)
    launch = ["--block", "64", "--grid", "ceil_div(n, 64)", "--array", "x=in f32[n]", "--array", "y=out f32[n]"]
    result = CliRunner().invoke(cli, ["prove", str(tmp_path / "beyond.cu"), *launch, "--json"])
    assert result.exit_code == exit_codes.BUG, result.output
    (found,) = json.loads(result.stdout)
    memory = next(each for each in found["kernels"][0]["properties"] if each["name"] == "memory")
    assert memory["status"] == "contradicted" and "for n = 1: out of bounds" in memory["reasons"][0]


def test_a_property_not_asked_of_a_kernel_cannot_be_required() -> None:
    assert CliRunner().invoke(cli, ["prove", "reduction/s0_interleaved", "--require", "coverage"]).exit_code == 1


def test_the_page_of_a_kernel_names_what_is_proved() -> None:
    nothing = dict.fromkeys(("title", "summary", "bound", "least", "device", "case", "sass_missing"), "")
    empty = dict.fromkeys(("causes", "cuda", "ptx", "sass", "pictures"), ())
    text = page("view.html.j2", **nothing, **empty, proved="memory, races")
    assert "Proved for all sizes that the launch accepts: memory, races." in text


def test_a_missing_spec_is_a_mistake_of_the_user() -> None:
    assert CliRunner().invoke(cli, ["prove", "gemm/no_such_kernel"]).exit_code == 2
