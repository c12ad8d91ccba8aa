"""Tables of variants: one spec file, many kernels."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml
from conftest import SHIPPED, SPECS

from cli.conftest import Run
from gemmgen.core.errors import SpecError
from gemmgen.kernels.shipped import find_shipped, shipped_specs
from gemmgen.kernels.spec_files import file_schema, load_spec, spec_fields
from gemmgen.kernels.variants import MAX_ROW_FIELDS, MAX_VARIANTS, expanded, matching, split_variant

TABLE = """\
kind: gemm
label: mine_{variant}
description: Products
alignment: {a: 4, b: 4, c: 4}
mainloop:
  strategy: tiled
  tile:
    threadblock: {m: 64, n: 64, k: 8}
    warp: {m: 32, n: 64}
    thread: {m: 8, n: 8}
  stages: 2

variants:
  plain: {}
  deep: {tile.threadblock.k: 16, stages: 1, alignment: null, description: "A deep one"}
  column_major: {order: column_major, mainloop.order: serpentine_rows}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE)
    return path


def test_a_row_sets_fields_of_the_spec_above(table: Path) -> None:
    plain, deep, turned = (load_spec(spec) for spec in expanded(table))
    assert (plain.label, plain.description, plain.mainloop.stages) == ("mine_plain", "Products", 2)
    assert (deep.label, deep.description) == ("mine_deep", "A deep one")
    assert (deep.mainloop.tile.threadblock.k, deep.mainloop.stages, deep.alignment.a) == (16, 1, 1)
    assert (turned.order, turned.mainloop.order) == ("column_major", "serpentine_rows")


def test_a_variant_equals_the_spec_with_its_fields_written_out(table: Path) -> None:
    fields = {**yaml.safe_load(TABLE), "label": "mine_deep", "description": "A deep one"}
    del fields["variants"], fields["alignment"]
    fields["mainloop"]["tile"]["threadblock"]["k"], fields["mainloop"]["stages"] = 16, 1
    assert load_spec(table / "deep") == load_spec(fields)
    assert spec_fields(table / "deep") == fields


def test_overrides_come_after_the_row(table: Path) -> None:
    assert load_spec(table / "deep", ["mainloop.stages=2"]).mainloop.stages == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("stages: 1", "stages: 99"), "mainloop.stages: got 99"),
        (("stages: 1", "stagse: 1"), "mainloop.stagse: no such field"),
        (("tile.threadblock.k: 16", "tile.threadblock: 16"), "mainloop.tile.threadblock: got 16, need a mapping of fields"),
        (("stages: 1", "kind: conv2d"), "kind is the file's"),
        (("  deep: {", "  Deep: {"), "variants.Deep"),
        (("  deep: {tile.threadblock.k: 16, stages: 1", "  deep: {tile.threadblock.k.x: 16"), "has no field 'x'"),
    ],
)
def test_a_mistake_in_a_row_is_shown_in_its_line(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(TABLE.replace(*change))
    with pytest.raises(SpecError) as error:
        load_spec(path / "deep")
    assert told in str(error.value)
    if "has no field" not in told:
        assert f"     15 | {change[1].strip()[:6]}" in str(error.value) or "     15 |   " in str(error.value)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("mine.yaml", "mine.yaml describes 3 kernels; name one of them: mine.yaml/plain, mine.yaml/deep, mine.yaml/column_major"),
        ("mine.yaml/dep", "there is no variant 'dep'; did you mean deep?"),
        ("mine.yaml/x", "there is no variant 'x'; there are plain, deep, column_major"),
        ("single.yaml/x", "single.yaml has no table of variants, so 'x' names nothing in it"),
    ],
)
def test_a_name_that_means_no_kernel(table: Path, monkeypatch: pytest.MonkeyPatch, named: str, told: str) -> None:
    monkeypatch.chdir(table.parent)
    Path("single.yaml").write_text(TABLE.partition("variants:")[0].replace("mine_{variant}", "mine"))
    with pytest.raises(SpecError) as error:
        load_spec(named)
    assert told in str(error.value)


def test_commands_take_a_file_for_all_its_variants(table: Path, run: Run) -> None:
    assert [entry["spec"] for entry in run("check", table, "--json").json] == [
        f"{table}/{name}" for name in ("plain", "deep", "column_major")
    ]
    assert len(run("check", table.parent, "--json").json) == 3
    assert len(run("check", f"{table}/deep", "--json").json) == 1
    assert "did you mean deep?" in run("check", f"{table}/deap", code=2).out


def test_shipped_variants_have_names_like_paths() -> None:
    name = "gemm/wgmma/bf16/128x256"
    assert shipped_specs()[name] == SPECS / "gemm/wgmma/bf16.yaml/128x256"
    assert list(find_shipped("gemm/wgmma/bf16")) == [known for known in shipped_specs() if known.startswith("gemm/wgmma/bf16/")]
    assert load_spec(name) == load_spec(f"specs/{name}")
    for other in ("gemm/hopper/bf16_128x256", "gemm/wgmma/bf16[128x256]", "gemm/wgmma/bf16:128x256"):
        with pytest.raises(SpecError, match="did you mean gemm/wgmma/bf16/128x256 "):
            find_shipped(other)


def test_patterns_name_files_and_variants() -> None:
    whole = matching(SPECS, "gemm/wgmma/bf16")
    assert whole == matching(SPECS, "gemm/wgmma/bf16/*") and len(whole) > 10
    assert [path.name for path in matching(SPECS, "gemm/wgmma/bf16/192x*")] == ["192x96_pair", "192x128", "192x192", "192x192_pair"]
    assert matching(SPECS, "gemm/wgmma/nothing/*") == []


def test_shipped_files_are_few_and_specs_without_their_tables() -> None:
    files = {split_variant(path)[0] for path in SHIPPED}
    assert len(files) <= 150
    for file in files:
        fields = yaml.safe_load(file.read_text())
        if fields.pop("variants", None) is not None:
            load_spec({**fields, "label": None})


def test_the_schema_of_files_has_the_table() -> None:
    models = file_schema()["$defs"]
    assert models["GemmSpec"]["properties"]["variants"]["maxProperties"] == MAX_VARIANTS
    json.dumps(models)


def test_a_mapping_has_no_table() -> None:
    with pytest.raises(SpecError, match="variants: only a file has a table of variants"):
        load_spec(yaml.safe_load(TABLE))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("".join(f"  v{index}: {{}}\n" for index in range(MAX_VARIANTS + 1)), "a length of at most 500"),
        ("  v: {" + ", ".join(f"f{index}: 1" for index in range(MAX_ROW_FIELDS + 1)) + "}\n", "a length of at most 40"),
        ("  {}\n", "a length of at least 1"),
        ("  v: 3\n", "a mapping of fields"),
        ("  v: {stages: " + "[" * 40 + "]" * 40 + "}\n", "nested more than 32 levels deep"),
    ],
    ids=["rows", "fields", "empty", "no mapping", "deep"],
)
def test_tables_are_bounded(tmp_path: Path, run: Run, rows: str, told: str) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(TABLE.partition("variants:")[0] + "variants:\n" + rows)
    outcome = run("check", path, code=2)
    assert told in outcome.out + outcome.err


def test_the_largest_table_is_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    filler = "x" * 1000
    rows = "".join(f'  v{index}: {{stages: 99, description: "{filler}"}}\n' for index in range(MAX_VARIANTS))
    path.write_text(TABLE.partition("variants:")[0] + "variants:\n" + rows)
    start = time.process_time()
    for spec in expanded(path):
        with pytest.raises(SpecError, match=r"mainloop\.stages"):
            load_spec(spec)
    assert time.process_time() - start < 15


def test_a_variant_of_a_file_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gemm").mkdir()
    (tmp_path / "gemm" / "twice.yaml").write_text("kind: gemm\nvariants:\n  one: {stages: 2}\n  one: {stages: 3}\n")
    monkeypatch.setattr("gemmgen.kernels.shipped.resource_directory", lambda name: tmp_path)
    with pytest.raises(SpecError, match="'one' is given twice"):
        find_shipped("gemm/twice/one")
