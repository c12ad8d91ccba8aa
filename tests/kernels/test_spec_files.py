from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import SHIPPED, spec_id

from gemmgen.core.errors import SpecError
from gemmgen.kernels.shipped import find_shipped, shipped_specs
from gemmgen.kernels.spec_files import json_schema, load_spec

TILE = {"threadblock": {"m": 64, "n": 64, "k": 8}, "warp": {"m": 32, "n": 32}, "thread": {"m": 8, "n": 4}}
GOOD: dict[str, Any] = {"kind": "gemm", "mainloop": {"strategy": "tiled", "tile": TILE}}


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "spec.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=spec_id)
def test_every_shipped_spec_loads_and_says_what_it_is_for(path: Path) -> None:
    assert load_spec(path).description


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"mainlop": 1}, "mainlop"),
        ({"transpose": "xy"}, "transpose"),
        ({"alignment": {"a": 3}}, "alignment.a"),
        ({"label": "a'; }"}, "label"),
        ({"label": "two\nlines"}, "label"),
        ({"label": 'quote"d'}, "label"),
        ({"epilogue": [{"op": "tanhh"}]}, "epilogue.0"),
        ({"epilogue": [{"op": "scale", "factor": float("nan")}]}, "factor"),
        ({"epilogue": [{"op": "leaky_relu", "slope": 1e39}]}, "slope"),
        ({"mainloop": {"strategy": "tiled", "tile": {**TILE, "warp": {"m": True, "n": 32}}}}, "mainloop.tile.warp.m"),
        ({"mainloop": {"strategy": "tiled", "tile": {**TILE, "warp": {"m": -8, "n": 32}}}}, "mainloop.tile.warp.m"),
        ({"mainloop": {"strategy": "tiled", "tile": {**TILE, "warp": {"m": 10**30, "n": 32}}}}, "mainloop.tile.warp.m"),
        ({"mainloop": {"strategy": "tiled"}}, "mainloop.tile"),
        ({"mainloop": {"strategy": "magic"}}, "mainloop"),
        ({"schema_version": 2}, "schema_version"),
        ({"kind": "gem"}, "need one of: gemm"),
        ({"kind": ["gemm"]}, "need one of: gemm"),
        ({"architecture": "sm_9000"}, "architecture"),
    ],
)
def test_a_wrong_field_or_value_is_named(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError, match=expected.replace(".", r"\.")):
        load_spec({**GOOD, **change})


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        load_spec({**GOOD, "transpose": "xy", "order": "diagonal", "extra": 1})
    assert all(field in str(caught.value) for field in ("transpose", "order", "extra"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("- 1\n- 2\n", "holds a list"),
        ("just words", "holds a line of text"),
        ("kind: gemm\nkind: gemm\n", "given twice"),
        ("kind: [gemm", "not valid YAML"),
        ("kind: *x", "alias"),
        ("a: &x 1\nkind: *x", "alias"),
        ("kind: !!python/object/apply:os.system [ls]", "not valid YAML"),
        (b"kind: \xff\xfe", "not valid YAML"),
        (b"kind: g\x00emm", "not valid YAML"),
        ("? [a, b]\n: 1\n", "not valid YAML"),
        ("? {a: b}\n: 1\n", "not valid YAML"),
        ("kind: gemm\n---\nkind: gemm\n", "not valid YAML"),
        ("[" * 3000, "nested more than"),
        ("kind: gemm\nlabel: 2024-01-01\n", "label"),
        ("x" * 1_000_001, "larger than"),
    ],
    ids=range(16),
)
def test_a_file_that_is_no_spec_is_rejected_with_its_name(tmp_path: Path, text: str | bytes, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError, match=expected) as caught:
        load_spec(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_directory_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        load_spec(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="is a directory"):
        load_spec(tmp_path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec("nul\0.yaml")


def test_overrides_change_nested_fields() -> None:
    fields = {**GOOD, "epilogue": [{"op": "relu"}]}
    spec = load_spec(fields, ["mainloop.tile.threadblock.k=16", "epilogue.0={op: scale, factor: 2}", "epilogue.1={op: relu}", "alpha=one"])
    assert spec.mainloop.tile.threadblock.k == 16  # type: ignore[attr-defined]
    assert [operation.op for operation in spec.epilogue] == ["scale", "relu"]  # type: ignore[attr-defined]
    assert fields["epilogue"] == [{"op": "relu"}] and TILE["threadblock"]["k"] == 8


@pytest.mark.parametrize(
    "override", ["alpha", "=1", "a..b=1", "kind.deeper=1", "epilogue.x=1", "epilogue.7=1", "mainloop.tile.threadblock.k=[1", "nothing=1"]
)
def test_an_override_that_leads_nowhere_is_an_error(override: str) -> None:
    with pytest.raises(SpecError):
        load_spec({**GOOD, "epilogue": []}, [override])


def test_the_schema_describes_every_field_of_a_shipped_spec() -> None:
    text = str(json_schema())
    assert all(field in text for field in ("threadblock", "fragment", "alignment", "epilogue", "factor"))
    assert "$schema" in json_schema()


@pytest.mark.parametrize("override", ["early_launch=1", "early_launch='true'", "unroll='2'", "unroll=2.0", "operations.0.factor='0.1'"])
def test_a_value_of_another_type_is_refused(override: str) -> None:
    fields = {"kind": "elementwise", "operations": [{"op": "scale", "factor": 2}]}
    with pytest.raises(SpecError, match=override.split("=")[0]):
        load_spec(fields, [override])


def told_of(path: Path, *overrides: str) -> str:
    with pytest.raises(SpecError) as error:
        load_spec(path, overrides)
    return str(error.value)


def test_an_override_is_told_instead_of_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, shipped_specs()["gemm/v3_double_buffer"].read_bytes())
    told = told_of(path, "mainloop.stages=200")
    assert "mainloop.stages: got 200" in told and "by --set mainloop.stages=200" in told and "^" not in told


def test_a_wrong_kind_is_shown_in_its_line(tmp_path: Path) -> None:
    told = told_of(write(tmp_path, "schema_version: 1\nkind: gem\n"))
    assert "did you mean gemm?" in told and told.endswith("      2 | kind: gem\n        | ^")


def test_a_misspelt_strategy_is_told_where_it_is_missed(tmp_path: Path) -> None:
    told = told_of(write(tmp_path, "kind: gemm\nmainloop:\n  stratgy: tiled\n"))
    assert "mainloop.strategy: required field is missing (no field is called stratgy)" in told


def test_a_name_that_begins_like_one_of_ours_suggests_it() -> None:
    with pytest.raises(SpecError, match="did you mean gemm/v2_transposed_quads"):
        find_shipped("gemm/v2_vectorized")


def test_a_field_unlike_all_others_names_them(tmp_path: Path) -> None:
    told = told_of(shipped_specs()["gemm/wgmma/tour/bf16_128x256"], "mainloop.tile.threadblock=64")
    assert "mainloop.tile.threadblock: no such field (there are m, n, k)" in told


def test_a_tab_is_called_by_its_name(tmp_path: Path) -> None:
    told = told_of(write(tmp_path, "kind: gemm\nmainloop:\n\tstrategy: tiled\n"))
    assert "line 3, column 1: not valid YAML: a tab" in told and told.endswith("      3 | →strategy: tiled\n        | ^")


def test_identities_leave_out_defaults_of_later_fields() -> None:
    def identity(**fields: Any) -> dict[str, Any]:
        return load_spec({"kind": "gemm", "mainloop": {"strategy": "naive", "threadblock": {"m": 16, "n": 16}}, **fields}).identity()

    assert not {"sizes", "amax", "batch_invariant", "description"} & set(identity())
    assert identity(batch_invariant=True)["batch_invariant"] is True
    assert "l1_a" not in identity()["cache"] and identity(cache={"l1_a": "keep"})["cache"]["l1_a"] == "keep"
    assert "alpha" in identity()


@pytest.mark.parametrize(("former", "current"), [("tensor_core", "wgmma"), ("vector", "gemv")])
def test_former_names_of_strategies_are_accepted_with_a_warning(former: str, current: str) -> None:
    name = {"wgmma": "gemm/wgmma/bf16/128x128", "gemv": "gemm/gemv/rows/four_by_eight"}[current]
    with pytest.warns(FutureWarning, match=f"{former} is now called {current}"):
        assert load_spec(name, [f"mainloop.strategy={former}"]) == load_spec(name)


def test_a_missing_strategy_lists_the_strategies(tmp_path: Path) -> None:
    told = told_of(write(tmp_path, "kind: gemm\nmainloop:\n  stages: 3\n"))
    assert "mainloop.strategy: required field is missing (one of naive, gemv, tiled, wgmma" in told


def test_a_colon_without_a_space_is_named(tmp_path: Path) -> None:
    told = told_of(write(tmp_path, shipped_specs()["gemm/v0_naive"].read_bytes()), "epilogue=[{op:silu}]")
    assert "YAML takes op:silu for one word: write op: silu with a space" in told
