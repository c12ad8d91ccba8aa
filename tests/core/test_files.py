"""Atomic writes."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from gemmgen.core.files import write_atomically


def test_reports_whether_content_changed(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    assert write_atomically(path, "ä\n")
    inode = path.stat().st_ino
    assert not write_atomically(path, "ä\n".encode())
    assert path.stat().st_ino == inode
    assert write_atomically(path, "b\r\n")
    assert path.read_bytes() == b"b\r\n"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert write_atomically(path, "for whoever reads")
        assert os.read(reader, 100) == b"for whoever reads"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode) and list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_keeps_permissions(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("old")
    path.chmod(0o750)
    assert write_atomically(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, contents = tmp_path / "file", [bytes([value]) * 200_000 for value in b"ab"]
    write_atomically(path, contents[0])
    done = threading.Event()

    def write() -> None:
        for round_ in range(100):
            write_atomically(path, contents[round_ % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_bytes())
    writer.join()
    assert seen <= set(contents)
