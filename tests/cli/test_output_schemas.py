"""Outputs of commands with --json against their schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from cli.conftest import Run
from gemmgen.cli import cli
from gemmgen.cli.commands.schema import output_schemas
from gemmgen.library.sections import separated
from gemmgen.toolchain.nvcc import find_nvcc

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema validates")

ROOT = Path(__file__).resolve().parents[2]
REVERSE = ROOT / "docs" / "tutorials" / "reverse_fixed.cu"
CALLS = {
    "banks": ["banks", "lane*24", "--width", "8"],
    "check": ["check", "gemm/v3_double_buffer", "--arch", "sm_90"],
    "draw": ["draw", "gemm/simt/swizzled_cp_async"],
    "explain": ["explain", "reduction/s7_shuffle"],
    "diff": ["diff", "gemm/v2_transposed_quads", "--set-b", "mainloop.stages=2"],
    "cache-info": ["cache", "info"],
    "compile": ["compile", "reduction/s7_shuffle"],
    "doctor": ["doctor"],
    "emulate": ["emulate", str(REVERSE), "--grid", "1", "--block", "64", "--arg", "f32[64]=range", "--arg", "f32[64]"],
    "export": ["export", "gemm/v1_tiled", "--format", "cubin", "--arch", "sm_80", "-o", "kernel.cubin"],
    "library-list": ["library", "list", "--kind", "reduction"],
    "library-show": ["library", "show", "reduction/rows/1m"],
    "render": ["render", "reduction/s7_shuffle", "-o", "out"],
    "sweep-dry-run": ["sweep", "ci_reduction", "--dry-run"],
    "verify": ["verify", "reduction/s7_shuffle", "--backend", "emulator"],
}


def schema(run: Run, name: str) -> Any:
    return run("schema", "--of", name).json


@pytest.mark.parametrize("name", CALLS)
def test_an_output_meets_its_schema(run: Run, name: str) -> None:
    found = schema(run, name)
    assert found["schema_version"] == 1
    jsonschema.validate(run(*CALLS[name], "--json").json, found)


OTHERS = {
    "analyze": ["analyze", "cpu/c3_packed"],
    "bench": ["bench", "cpu/c4_avx2_16x6", "--size", "64,64,64", "--threads", "1"],
    "check": ["check", "gemm/v0_naive", "cpu/c0_naive", "--set", "mainloop.stages=9"],
    "compile": ["compile", "cpu/c0_naive"],
    "explain": ["explain", "cpu/c3_packed"],
    "library-show": ["library", "show", "gemm/wgmma/bf16/64x64"],
    "sweep-dry-run": ["sweep", "ci_conv2d", "--dry-run"],
}
"""Outputs in another form: of processors, of specs of another kind, of refusals."""


@pytest.mark.parametrize("name", OTHERS)
def test_an_output_in_another_form_meets_its_schema_too(run: Run, name: str) -> None:
    code = 2 if name == "check" else 0
    jsonschema.validate(run(*OTHERS[name], "--json", code=code).json, schema(run, name))


def test_the_report_of_a_program_meets_its_schema(run: Run) -> None:
    if find_nvcc() is None:
        pytest.skip("programs are built by nvcc")
    program = ROOT / "tests" / "sanitizer" / "whole_programs.cu"
    jsonschema.validate(run("run", "--json", program, "--", "copy", code=1).json, schema(run, "run"))


def test_every_certificate_meets_the_schema_of_library_show(run: Run) -> None:
    certificates = [json.loads(path.read_text()) for path in sorted((ROOT / "generated").rglob("*.json"))]
    certificates = [one for certificate in certificates for one in separated(certificate).values()]
    assert len(certificates) > 800
    jsonschema.validate(certificates, schema(run, "library-show"))


def test_an_answer_to_a_problem_meets_the_schema_of_explain(run: Run) -> None:
    jsonschema.validate(run("explain", "--problem", "gemm:64,64,64", "--json").json, schema(run, "explain"))


def test_values_of_any_axes_meet_the_schema_of_sweeps(run: Run) -> None:
    Path("own.yaml").write_text("name: own\nbase: gemm/v1_tiled\naxes: {mainloop.tile.threadblock.k: [8, 16]}\nsizes: [[64, 64, 64]]\n")
    data = run("sweep", "own.yaml", "--stages", "check", "--json").json
    assert set(data["results"][0]["axes"]) == {"mainloop.tile.threadblock.k"}
    jsonschema.validate(data, schema(run, "sweep"))


def test_a_key_that_is_missing_breaks_the_schema(run: Run) -> None:
    data = run(*CALLS["banks"], "--json").json
    del data["layouts"][0]["wavefronts"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema(run, "banks"))


def test_a_command_without_a_schema_is_told(run: Run) -> None:
    assert "library-list" in run("schema", "--of", "completion", code=2).err


def test_every_command_with_json_has_a_schema(run: Run) -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    groups = {name: group for name, group in commands.items() if isinstance(group, click.Group)}
    commands |= {f"{name}-{below}": command for name, group in groups.items() for below, command in group.commands.items()}
    with_json = {name for name, one in commands.items() if one is not None and any("--json" in option.opts for option in one.params)}
    assert with_json and with_json <= set(output_schemas())
