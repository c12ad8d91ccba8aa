"""Problems from profiles: the fields that are read, and files that are refused."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gemmgen.core.errors import SpecError
from gemmgen.dispatch.profiles import Call, Counted, problem_of, problems_text, read_counted, read_profile


def event(name: str, dims: Any, kinds: Any = (), strides: Any = None, duration: Any = 10, concrete: Any = None) -> dict[str, Any]:
    arguments = {"Input Dims": dims, "Input type": list(kinds)}
    arguments |= {} if strides is None else {"Input Strides": strides}
    arguments |= {} if concrete is None else {"Concrete Inputs": concrete}
    return {"ph": "X", "name": name, "dur": duration, "args": arguments}


def traced(path: Path, events: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_operations_of_a_trace_become_problems(tmp_path: Path) -> None:
    bf16 = "c10::BFloat16"
    events = [
        event("aten::mm", [[64, 128], [128, 32]], [bf16, bf16], [[128, 1], [1, 128]], 30),
        event("aten::mm", [[64, 128], [128, 32]], [bf16, bf16], [[128, 1], [1, 128]], 20),
        event("aten::addmm", [[32], [64, 128], [128, 32], [], []], ["float"] * 3),
        event("aten::bmm", [[4, 16, 8], [4, 8, 24]], ["c10::Half"] * 2),
        event("aten::silu", [[64, 11, 3]], ["float"]),
        event("aten::sum", [[64, 128, 8], [], []], ["float", "ScalarList", ""], concrete=["", "[1]", "False"]),
        event("aten::copy_", [[3]]),
        {"name": "cudaLaunchKernel", "args": {}},
    ]
    found = read_profile(traced(tmp_path / "trace.json", events))
    assert found[0] == Counted("gemm:64,32,128,nt,bf16", 2, 50.0)
    assert {one.problem for one in found[1:]} == {
        "gemm:64,32,128,bias",
        "gemm:16,24,8,f16,batch=4",
        "elementwise:1,1,1,2112,silu",
        "reduction:64,128,8",
    }
    (tmp_path / "problems.txt").write_text(problems_text(found))
    assert read_counted(tmp_path / "problems.txt") == found


def test_ranges_of_nsight_systems_become_problems(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER)")
        database.execute("INSERT INTO StringIds VALUES (7, 'aten::mm, op_id = 3, sizes = [[64, 128], [128, 32]]')")
        rows = [(0, 4000, None, 7), (0, 1000, "aten::relu, sizes = [[8, 8]]", None), (0, 1, "forward", None), (0, 1, b"\x00", None)]
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?)", rows)
    assert read_profile(path, "bf16") == [
        Counted("gemm:64,32,128,bf16", 1, 4.0),
        Counted("elementwise:1,1,1,64,relu,bf16", 1, 1.0),
    ]


@pytest.mark.parametrize(
    "events",
    [
        None,
        {},
        [None, 3, "x", [], {"name": 4}, {"name": "aten::mm", "args": 3}],
        [
            event("aten::mm", dims)
            for dims in (None, 3, "x", [], [[1]], [[1, 2], [3, 4]], [[1, -2], [-2, 4]], [[True, 2], [2, 2]], [[2**40] * 2] * 2)
        ],
        [event("aten::mm", [[0, 4], [4, 4]]), event("aten::silu", [[]]), event("aten::sum", [[]]), event("aten::silu", [[2**31 - 1] * 8])],
        [event("aten::sum", [[4, 4, 4]], concrete=["", "[0, 2]"])],
    ],
)
def test_events_of_another_form_are_passed_over(tmp_path: Path, events: Any) -> None:
    with pytest.raises(SpecError, match="that a problem describes"):
        read_profile(traced(tmp_path / "trace.json", events))


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"SQLite format 3\0" + b"\xff" * 5000, b"9" * 9999])
def test_files_of_another_form_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SpecError):
        read_profile(tmp_path / "file")


def test_a_query_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.dispatch.profiles.SQLITE_STEPS", 500_000)
    path = tmp_path / "large.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT)")
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (0, 1, ?)", (("x",) for _ in range(200_000)))
    with pytest.raises(SpecError, match="interrupted"):
        read_profile(path)


def test_lists_name_the_line_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "problems.txt"
    path.write_text("# a model\ngemm:8,8,8  # count=3 us=4.5 share=100%\n\nreduction:1,2,x\n")
    with pytest.raises(SpecError, match="line 4"):
        read_counted(path)
    path.write_text("gemm:8,8,8  # count=3 us=4.5 share=100%\n")
    assert read_counted(path) == [Counted("gemm:8,8,8", 3, 4.5)]
    path.write_text("# none\n")
    with pytest.raises(SpecError, match="lists no problem"):
        read_counted(path)


def test_a_transposed_factor_is_told_by_its_strides() -> None:
    call = Call("aten::mm", ((4, 8), (8, 5)), ((1, 4), (1, 8)), ("float", "float"))
    assert problem_of(call) == "gemm:4,5,8,tt"
    assert problem_of(Call("aten::mm", ((4, 8), (8, 5)))) == "gemm:4,5,8"
    assert problem_of(Call("aten::unknown", ((4, 8),))) is None
