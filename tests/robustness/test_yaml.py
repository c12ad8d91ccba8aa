"""YAML made to exhaust, to deceive, or to reach the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from waiting import PATIENCE

from gemmgen.cli import cli
from gemmgen.core.errors import SpecError
from gemmgen.core.text import printable
from gemmgen.core.yaml_text import YamlTextError, parse
from gemmgen.kernels.spec_files import load_spec, overridden

ROOT = Path(__file__).parents[2]
DEEP = (
    "[" * 40_000,
    "{a: " * 40_000,
    "- " * 40_000,
    "[" * 40_000 + "]" * 40_000,
    "\n".join(" " * i + "a:" for i in range(1200)),
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="gemmgen")


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_deep_nesting_is_an_error(text: str) -> None:
    with pytest.raises(YamlTextError, match="nested more than"):
        parse(text)


@pytest.mark.parametrize("where", ["file", "--set"])
def test_deep_nesting_kills_no_interpreter(tmp_path: Path, where: str) -> None:
    (tmp_path / "deep.yaml").write_text("kind: " + "[" * 40_000)
    arguments = ["deep.yaml"] if where == "file" else ["gemm/v0_naive", "--set", "kind=" + "[" * 40_000]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gemmgen", "check", *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2 and "nested more than" in done.stdout


def test_a_value_of_two_megabytes_is_refused() -> None:
    with pytest.raises(SpecError, match="larger than"):
        overridden({}, "kind=" + "x" * 2_000_000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:00", "1:00"),
        ("190:20:30", "190:20:30"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("yes", "yes"),
        ("on", "on"),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("+7", 7),
        ("0", 0),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.INF", float("-inf")),
        ("~", None),
        ("", None),
        ("NULL", None),
        ("True", True),
        ("FALSE", False),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("! 1", "1"),
        ("!!int '3'", 3),
        ("!!float 3", 3.0),
        ("!!bool TRUE", True),
        ("!!null ~", None),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("=", "="),
        ("{a: [1, {b: }]}", {"a": [1, {"b": None}]}),
        ("!!map {a: 1}", {"a": 1}),
    ],
)
def test_words_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = parse(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: !!int ''", "line 1, column 4: not valid YAML: got '', need a whole number"),
        ("!!bool maybe", "got 'maybe', need true or false"),
        ("!!float x", "need a number"),
        ("!!null 3", "need null"),
        ("!!set {a}", "the tag"),
        ("!mine 3", "the tag"),
        ("!!map [1]", "the tag"),
        ("1" * 5000, "a number of 5000 digits"),
        ("!!int " + "1" * 5000, "a number of 5000 digits"),
        ("0x" + "f" * 5000, "a number of 5002 digits"),
        ("k: 020", "020 is 20 in YAML 1.2 and octal in YAML 1.1; write 20"),
        ("{a: 1, a: 2}", "'a' is given twice"),
        ("[1]: 2", "a key is a mapping or a list"),
        ("- &x 1\n- *x", "aliases"),
        ("1\n---\n2", "a single document"),
        ("a: \ud800", "not Unicode"),
    ],
    ids=range(16),
)
def test_what_is_not_data_is_told_with_its_place(text: str, says: str) -> None:
    with pytest.raises(YamlTextError) as caught:
        parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(("value", "says"), [("yes", "write true or false"), ("1:00", "write a decimal number")])
def test_what_yaml_1_1_took_for_something_else_is_told(value: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        load_spec(ROOT / "specs/gemm/v3_double_buffer.yaml", [f"mainloop.stages={value}"])


LONG = "x" * 900_000
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e"


@pytest.mark.parametrize(
    "override",
    [f"label={HOSTILE}", f'label="{HOSTILE.encode("unicode_escape").decode()}"', f"{HOSTILE}=1", f"kind={HOSTILE}", f"a.{HOSTILE}.b=1"],
    ids=range(5),
)
@pytest.mark.parametrize("command", ["check", "render"])
def test_no_value_reaches_the_terminal_raw(command: str, override: str) -> None:
    output = run(command, "gemm/v3_double_buffer", "--set", override).output
    assert not set(output) & set("\x1b\x07\x9b\r\u202e")


def test_a_file_name_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    (tmp_path / "\x1b[2J.yaml").write_text("kind: nothing")
    assert "\x1b" not in run("check", str(tmp_path)).output


@pytest.mark.parametrize("override", [f"{LONG}=1", f"label={LONG}", f"epilogue=[{{op: {LONG}}}]"], ids=range(3))
def test_a_long_value_is_cut_in_the_message(override: str) -> None:
    assert len(run("check", "gemm/v3_double_buffer", "--set", override).output) < 2000


def test_a_long_key_is_cut_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(f"kind: gemm\n? {'x' * 900_000}\n: 1\n")
    assert len(run("check", str(tmp_path / "long.yaml")).output) < 2000


def test_the_middle_of_a_long_message_is_left_out() -> None:
    shown = printable("a" * 500 + "b" * 500, 100)
    assert shown.startswith("a" * 75 + " ... (900 characters") and shown.endswith("b" * 25)
