"""What commands print with --json is what their schemas say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.conftest import Run

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema validates")

CALLS = {
    "banks": ["banks", "lane*24", "--width", "8"],
    "check": ["check", "gemm/v3_double_buffer", "--arch", "sm_90"],
    "draw": ["draw", "gemm/swizzled_cp_async"],
    "explain": ["explain", "reduction/s7_shuffle"],
    "diff": ["diff", "gemm/v2_transposed_quads", "--set-b", "mainloop.stages=2"],
    "library-list": ["library", "list", "--kind", "reduction"],
    "verify": ["verify", "reduction/s7_shuffle", "--backend", "emulator"],
}


def schema(run: Run, name: str) -> Any:
    return run("schema", "--of", name).json


@pytest.mark.parametrize("name", CALLS)
def test_an_output_meets_its_schema(run: Run, name: str) -> None:
    found = schema(run, name)
    assert found["schema_version"] == 1
    jsonschema.validate(run(*CALLS[name], "--json").json, found)


def test_a_key_that_is_missing_breaks_the_schema(run: Run) -> None:
    data = run(*CALLS["banks"], "--json").json
    del data["layouts"][0]["wavefronts"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema(run, "banks"))


def test_a_command_without_a_schema_is_told(run: Run) -> None:
    assert json.dumps("verify")[1:-1] in run("schema", "--of", "doctor", code=2).err
