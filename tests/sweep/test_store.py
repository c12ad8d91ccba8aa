from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from gemmgen.sweep import store as store_module
from gemmgen.sweep.records import SweepError
from gemmgen.sweep.store import ResultStore

from .helpers import result


def test_what_was_appended_comes_back_in_order(tmp_path: Path) -> None:
    kept = [result("a"), result("b", metrics={"worst_ratio": float("inf")}, reason="ß\n\0\ud800"), result("a", "other")]
    with ResultStore(tmp_path / "deep" / "results") as store:
        for one in kept:
            store.append(one)
    with ResultStore(tmp_path / "deep" / "results") as store:
        assert store.all() == kept
        assert store.all("other") == [kept[2]] and store.all("none") == []
        assert store.get("a") == kept[2] and store.get("a", "trial") == kept[0] and store.get("c") is None
        assert store.sweeps() == ["other", "trial"]


def test_newer_result_of_same_point_takes_place_of_older(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results") as store:
        for axes in ({"a": 1}, {"a": 1, "b": 2}):
            store.append(result(axes=axes))
        assert [one.axes for one in store.all()] == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("content", [b"", b"digest,status\n", b"SQLite format 3\0", os.urandom(5000)], ids=["empty", "csv", "cut", "noise"])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results"
    path.write_bytes(content)
    with pytest.raises(SweepError, match="results"):
        ResultStore(path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_database_of_another_program_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "results"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE results (digest)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(SweepError, match="not made by gemmgen"):
        ResultStore(path)
    assert path.read_bytes() == before


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    ResultStore(tmp_path / "results").close()
    with sqlite3.connect(tmp_path / "results") as later:
        later.execute("PRAGMA user_version = 2")
    later.close()
    with pytest.raises(SweepError, match="format 2"):
        ResultStore(tmp_path / "results")


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "results"
    with ResultStore(path) as store:
        for number in range(200):
            store.append(result(str(number)))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(SweepError, match=r"results.*damaged"), ResultStore(path) as store:
        store.all()


def test_a_record_that_is_no_result_is_an_error(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results") as store:
        store.append(result())
    with sqlite3.connect(tmp_path / "results") as other:
        other.execute("""UPDATE results SET record = '{"status": "fine"}'""")
    other.close()
    with ResultStore(tmp_path / "results") as store, pytest.raises(SweepError, match="no result"):
        store.all()


@pytest.mark.parametrize("path", [".", "results/below", "a\0b", "x" * 300], ids=["folder", "below a file", "nul", "long"])
def test_a_path_that_cannot_be_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").write_text("")
    with pytest.raises(SweepError):
        ResultStore(path)


def test_an_unwritable_file_is_refused_before_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ResultStore(tmp_path / "results") as store:
        store.append(result())
    connect = sqlite3.connect

    def read_only(path: Path, **options: object) -> sqlite3.Connection:
        return connect(f"{Path(path).as_uri()}?mode=ro", uri=True, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("gemmgen.sweep.store.sqlite3.connect", read_only)
    with pytest.raises(SweepError, match="readonly"):
        ResultStore(tmp_path / "results")


def test_reading_needs_a_file_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no such results file"):
        ResultStore(tmp_path / "results", read_only=True)
    assert not list(tmp_path.iterdir())


def _append(path: Path, sweep: str, count: int) -> None:
    with ResultStore(path) as store:
        for number in range(count):
            store.append(result(f"{sweep}-{number}", sweep))


def test_processes_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(tmp_path / "results", f"sweep{number}", 50)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    with ResultStore(tmp_path / "results") as store:
        assert len(store.all()) == 150
        assert all(len(store.all(f"sweep{number}")) == 50 for number in range(3))


WRITE_FOREVER = """
import sys
from sweep.helpers import result
from gemmgen.sweep.store import ResultStore
store = ResultStore(sys.argv[1])
for number in range(10**9):
    store.append(result(f"{sys.argv[2]}-{number}"))
    print(number, flush=True)
"""


def test_writer_killed_loses_nothing_that_it_had_appended(tmp_path: Path) -> None:
    kept: set[str] = set()
    for run in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(tmp_path / "results"), str(run)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.01 * run)
            writer.send_signal(signal.SIGKILL)
            kept |= {f"{run}-{number}" for number in [0, *(int(line) for line in writer.stdout if line.endswith("\n"))]}
        with ResultStore(tmp_path / "results") as store:
            assert kept <= {one.digest for one in store.all()}


def test_bytes_that_changed_by_chance_are_a_message(tmp_path: Path) -> None:
    """Headers, pages, logs, and files that end early: a result that is whole, or an error that names the file."""
    with ResultStore(tmp_path / "results") as store:
        for number in range(30):
            store.append(result(f"d{number}"), [f"p{number}"])
    whole = (tmp_path / "results").read_bytes()
    told: Counter[str] = Counter()
    for seed in range(300):
        rng, data = random.Random(seed), bytearray(whole)
        for _ in range(rng.choice((1, 2, 5, 20))):
            data[rng.randrange(100 if rng.random() < 0.2 else len(data))] = rng.randrange(256)
        (tmp_path / "changed").write_bytes(data[: rng.choice((len(data), len(data), rng.randrange(len(data))))])
        if rng.random() < 0.3:
            (tmp_path / "changed-wal").write_bytes(rng.randbytes(5000))
        try:
            with ResultStore(tmp_path / "changed", read_only=seed % 2 == 0) as store:
                read = [*store.all(), store.get("d3"), *store.sweeps(), store.digest_of("trial", "p3")]
                if seed % 2:
                    store.append(result("d3"), ["p3"])
                told["read" if read else "empty"] += 1
        except SweepError as error:
            assert "changed" in str(error)
            told["message"] += 1
        for left in tmp_path.glob("changed*"):
            left.unlink()
    assert min(told["read"], told["message"]) > 20


@pytest.mark.parametrize("record", [None, 7, b"\0", b"{}", "null", "[]"])
def test_a_row_of_another_type_is_an_error(tmp_path: Path, record: object) -> None:
    with ResultStore(tmp_path / "results") as store:
        store.append(result())
    with sqlite3.connect(tmp_path / "results") as other:
        other.execute("PRAGMA writable_schema = ON")
        other.execute("UPDATE sqlite_master SET sql = replace(sql, 'record TEXT NOT NULL', 'record')")
        other.execute("PRAGMA writable_schema = RESET")
        other.execute("UPDATE results SET record = ?", (record,))
    other.close()
    with ResultStore(tmp_path / "results") as store, pytest.raises(SweepError, match="no result"):
        store.all()


def test_a_file_that_another_program_keeps_locked_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WAIT_SECONDS", 0.1)
    with ResultStore(tmp_path / "results") as store:
        store.append(result("before"))
        other = sqlite3.connect(tmp_path / "results", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SweepError, match=r"results.*locked"):
            store.append(result("meanwhile"))
        with ResultStore(tmp_path / "results", read_only=True) as reader:
            assert [one.digest for one in reader.all()] == ["before"]
        other.execute("ROLLBACK")
        store.append(result("after"))
        assert [one.digest for one in store.all()] == ["before", "after"]
        other.close()
