"""Files of strangers for the newer commands: references and tasks of ``judge``, profiles and lists of problems."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from judge.corpus import GEMM, GEMM_SHAPE, LOOP, gemm_source

from gemmgen.cli import cli
from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.dispatch.profiles import read_counted, read_profile
from gemmgen.dispatch.table import load_table, read_table
from gemmgen.judge import reference
from gemmgen.judge.reference import Question, answers
from gemmgen.judge.task import Task, grid_of_shapes, parse_shapes, read_task
from robustness.mutated_files import TIMES


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments], prog_name="gemmgen")


def _answers(folder: Path, program: str) -> list[dict[str, object]]:
    (folder / "reference.py").write_text(program)
    return answers(folder / "reference.py", "f", [Question({"m": 2}, {"A": np.zeros(2)})])  # type: ignore[return-value]


NO_ARRAYS = {
    "texts": "import numpy as np\ndef f(s, a): return {'C': np.full(2, 'x')}",
    "dates": "import numpy as np\ndef f(s, a): return {'C': np.full(2, np.datetime64('2020-01-01'))}",
    "structures": "import numpy as np\ndef f(s, a): return {'C': np.zeros(2, [('a', 'f4')])}",
    "complex numbers": "import numpy as np\ndef f(s, a): return {'C': np.full(2, 1j)}",
    "objects": "def f(s, a): return {'C': [None, {}]}",
    "nothing": "def f(s, a): return None",
    "results of no question": "import os, numpy as np\nnp.savez('results.npz', **{'9/C': np.zeros(3), 'x/C': np.zeros(2)})\nos._exit(0)",
    "another file": "import os\nopen('results.npz', 'wb').write(b'PK\\3\\4' * 9)\nos._exit(0)",
    "members that are no arrays": "import os, zipfile\nwith zipfile.ZipFile('results.npz', 'w') as z: z.writestr('0/C', b'x')\nos._exit(0)",
    "a link to a device": "import os\nos.symlink('/dev/zero', 'results.npz')\nos._exit(0)",
    "an error with commands": "def f(s, a): raise ValueError('\\x1b[2J')",
}


@pytest.mark.parametrize("name", NO_ARRAYS)
def test_a_reference_without_arrays_is_a_message(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        _answers(tmp_path, NO_ARRAYS[name])
    assert "\x1b" not in str(raised.value) and len(str(raised.value)) < 1000


def test_an_archive_that_grows_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MAX_RESULTS", 1 << 20)
    array = io.BytesIO()
    np.save(array, np.zeros(1 << 19))
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0/C.npy", array.getvalue())
    assert (tmp_path / "bomb.zip").stat().st_size < 1 << 16
    copied = f"import os, shutil\nshutil.copy({str(tmp_path / 'bomb.zip')!r}, 'results.npz')\nos._exit(0)"
    with pytest.raises(SpecError, match="more than 1048576 bytes"):
        _answers(tmp_path, copied)


def test_a_reference_that_prints_without_end_takes_no_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SpecError, match="the last line"):
            _answers(tmp_path, "import sys\nfor _ in range(64): sys.stderr.write('x' * (1 << 20))\nsys.exit('\\nthe last line')")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


BOUNDS = {
    "undefined": "np.full((s['m'], s['n']), np.nan)",
    "negative": "-np.ones((s['m'], s['n']))",
    "of another shape": "np.ones((3, 5, 7))",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(GEMM))
    (tmp_path / "kernel.cu").write_text(gemm_source(LOOP))
    return tmp_path


def judged(files: Path, body: str) -> Result:
    (files / "reference.py").write_text(f"import numpy as np\ndef f(s, a):\n    return {body}\n")
    reference = f"{files / 'reference.py'}:f"
    return run("judge", files / "kernel.cu", "--task", files / "task.yaml", "--reference", reference, "--shapes", GEMM_SHAPE)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_that_is_none_is_a_message(name: str, files: Path) -> None:
    result = judged(files, f"{{'C': np.zeros((s['m'], s['n'])), 'C_bound': {BOUNDS[name]}}}")
    assert result.exit_code == 2 and "C_bound must have the shape" in result.output


def test_a_reference_of_undefined_numbers_refuses_every_kernel(files: Path) -> None:
    result = judged(files, "{'C': np.full((s['m'], s['n']), np.nan)}")
    assert result.exit_code == 1 and "REFUSED" in result.output


@pytest.mark.parametrize(
    ("change", "shape", "told"),
    [
        ({}, "m=9999999,n=9999999,k=9", "elements, need at most"),
        ({"grid": [2**31 - 1, 65535]}, GEMM_SHAPE, "threads, need at most"),
        ({"arguments": [{"name": "A", "shape": ["m - 100"]}]}, "m=16", "a negative extent"),
        ({"grid": ["m // (m - m)"]}, GEMM_SHAPE, "divi"),
        ({"grid": ["1 << 1 << 1 << m * m"]}, GEMM_SHAPE, ""),
    ],
)
def test_a_launch_is_sized_before_it_is_judged(change: dict[str, object], shape: str, told: str) -> None:
    with pytest.raises(GemmgenError) as raised:
        grid_of_shapes(Task.model_validate({**GEMM, **change}), parse_shapes((shape,)))
    assert told in str(raised.value)


@pytest.mark.parametrize("shape", ["m=٣", ",".join(f"a{index}=1" for index in range(17)), "m=1\x1b", "m=", "=1", "m=-1", ""])
def test_shapes_that_are_none_are_a_message(shape: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_shapes((shape,))
    assert "\x1b" not in str(raised.value)


def test_a_task_is_no_device_and_names_each_argument_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="pipe or a device"):
        read_task(Path("/dev/zero"))
    (tmp_path / "task.yaml").write_text(json.dumps({**GEMM, "arguments": GEMM["arguments"][:1] * 2}))
    with pytest.raises(SpecError, match="two arguments have one name"):
        read_task(tmp_path / "task.yaml")


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 18, "1." + "9" * 400, "٣"])
def test_a_count_of_many_digits_is_no_number(digits: str, tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text(f"gemm:64,64,64  # count={digits} us={digits}\n")
    (found,) = read_counted(tmp_path / "model.txt")
    assert (found.count, found.microseconds) == (1, None)


def test_a_profile_runs_no_query_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    database = sqlite3.connect(path)
    database.execute("create view NVTX_EVENTS as select 'aten::mm, sizes = [[64, 64], [64, 64]]' as text, 0 as start, 1 as end")
    database.commit()
    database.close()
    with pytest.raises(SpecError, match="no product"):
        read_profile(path)


def _table(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A table of measured times as a stranger may give it, in the place where choices look for it; ``change`` edits its first row."""
    table = json.loads(TIMES)
    change(table["problems"][0])
    path = folder / "gemmgen" / "tuned" / "h200.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(table))
    return path


POINT = "point/wgmma/64x64x128_s6_c1"
ROWS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a label with a command": lambda row: row["points"][POINT].update(label="\x1b[2J"),
    "a formula of Python": lambda row: row["points"][POINT].update(epilogue={"outputs": {"value": "__import__('os').abort()"}}),
    "a formula that ends a comment": lambda row: row["points"][POINT].update(
        epilogue={"let": {"t": "*/ asm(1)"}, "outputs": {"value": "t"}}
    ),
    "a type that is CUDA": lambda row: row["points"][POINT]["storage"].update(a='half"); asm("trap'),
    "a spec of another kind": lambda row: row["points"][POINT].update(kind="cpu_gemm"),
    "a point that is no spec": lambda row: row["points"].update({POINT: [["kind", "gemm"]]}),
    "points that are a text": lambda row: row.update(points="ab"),
    "a time without end": lambda row: row["times"].update({POINT: float("inf")}),
    "a peer that is no time": lambda row: row.update(peer="x"),
    "a problem of another kind": lambda row: row.update(kind="\x1b[2J"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_measured_times_brings_nothing_but_a_spec(name: str, tmp_path: Path) -> None:
    path = _table(tmp_path, ROWS[name])
    with pytest.raises(SpecError, match=re.escape(str(path))) as raised:
        read_table(path)
    assert "\x1b" not in str(raised.value) and len(str(raised.value)) < 2000


def test_a_damaged_table_is_no_fault_of_the_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _table(tmp_path, lambda row: row.clear())
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    load_table.cache_clear()
    (tmp_path / "problems.txt").write_text("gemm:512,512,512,nt,bf16\n")
    result = run("plan-model", tmp_path / "problems.txt", "--device", "H200")
    load_table.cache_clear()
    assert result.exit_code == 2 and result.output.startswith(f"Error: {path}: ")


def test_another_spec_under_a_points_name_is_another_table(tmp_path: Path) -> None:
    first = read_table(_table(tmp_path / "one", lambda row: None))
    other = read_table(_table(tmp_path / "two", lambda row: row["points"][POINT]["mainloop"].update(stages=5)))
    assert first.digest != other.digest
