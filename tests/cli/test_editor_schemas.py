"""Schemas for editors: shipped files are valid, and a mistake is reported at its field."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from gemmgen.cli import cli

SPECS = Path(__file__).parents[2] / "specs"
FILES = sorted(path for path in SPECS.rglob("*.yaml") if path.parent.name != "sweeps" and path.name != "library.yaml")
SWEEPS = sorted((SPECS / "sweeps").glob("*.yaml"))


@cache
def validator(*options: str) -> jsonschema.Draft202012Validator:
    schema = json.loads(CliRunner().invoke(cli, ["schema", *options], catch_exceptions=False).output)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def content(path: Path) -> Any:
    return json.loads(json.dumps(yaml.safe_load(path.read_text())))


def mistakes(fields: Any, *options: str) -> list[tuple[str, str]]:
    """The path and the message of each mistake."""
    return [(".".join(map(str, error.path)), error.message) for error in validator(*options).iter_errors(fields)]


def test_shipped_specs_are_valid() -> None:
    assert len(FILES) > 100
    assert {path.name: found for path in FILES if (found := mistakes(content(path)))} == {}


def test_shipped_sweeps_are_valid() -> None:
    assert SWEEPS
    assert {path.name: found for path in SWEEPS if (found := mistakes(content(path), "--sweep"))} == {}


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"kind": "gem"}, "kind", "'gem' is not one of"),
        ({"transposed": "nt"}, "", "'transposed' was unexpected"),
        ({"mainloop": {"strategy": "tiledd"}}, "mainloop.strategy", "'tiledd' is not one of"),
        ({"epilogue": [{"op": "bias", "pre": "row"}]}, "epilogue.0", "'pre' was unexpected"),
        ({"epilogue": [{"op": "rellu"}]}, "epilogue.0.op", "'rellu' is not one of"),
    ],
)
def test_a_mistake_is_reported_at_its_field_alone(change: dict[str, Any], path: str, message: str) -> None:
    found = mistakes(content(SPECS / "gemm/v3_double_buffer.yaml") | change)
    assert [where for where, _ in found] == [path] and message in found[0][1]


def test_a_choice_needs_a_problem() -> None:
    fields = {"kind": "gemm", "mainloop": "auto"}
    assert [message for _, message in mistakes(fields)] == ["'problem' is a required property"]
    assert mistakes(fields | {"problem": "512,512,512,nt", "rasterization": {"group": 4}}) == []


def test_a_misspelt_field_of_a_sweep_is_named() -> None:
    fields = content(SWEEPS[0]) | {"axis": {}}
    assert [where for where, message in mistakes(fields, "--sweep") if "'axis' was unexpected" in message] == [""]


@pytest.mark.parametrize("options", [(), ("--sweep",)])
def test_every_property_is_described(options: tuple[str, ...]) -> None:
    definitions = validator(*options).schema["$defs"]
    assert [
        f"{name}.{field}"
        for name, one in definitions.items()
        for field, part in one.get("properties", {}).items()
        if not part.get("description", "").strip()
    ] == []


def test_one_schema_at_a_time() -> None:
    assert CliRunner().invoke(cli, ["schema", "--sweep", "--of", "verify"]).exit_code == 2
