"""Links and pipes where files are expected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import read_plain, write_atomically
from gemmgen.kernels.spec_files import load_spec
from gemmgen.library.folder import LibraryFolder, write_file
from gemmgen.sanitizer import source
from gemmgen.sweep.exports import write
from gemmgen.sweep.file import load_sweep
from gemmgen.sweep.records import SweepError
from gemmgen.sweep.store import ResultStore


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("writer", [write_atomically, write_file, write])
def test_a_link_gives_way_to_what_is_written(tmp_path: Path, victim: Path, writer) -> None:
    link = tmp_path / "output.json"
    link.symlink_to(victim)
    writer(link, "new")
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == ("precious", "new", False)


def test_a_link_to_nothing_creates_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "output").symlink_to(tmp_path / "created")
    write_atomically(tmp_path / "output", "new")
    assert not (tmp_path / "created").exists()


def test_a_link_to_the_same_content_gives_way(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "output").symlink_to(victim)
    assert write_atomically(tmp_path / "output", "precious")
    assert not (tmp_path / "output").is_symlink()


def test_rights_of_a_links_target_are_not_taken(tmp_path: Path, victim: Path) -> None:
    victim.chmod(0o777)
    (tmp_path / "output").symlink_to(victim)
    write_atomically(tmp_path / "output", "new")
    assert (tmp_path / "output").stat().st_mode & 0o022 == 0


def test_what_a_process_has_open_is_written_to(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+") as stream:
        write_atomically(f"/dev/fd/{stream.fileno()}", "new")
        assert stream.read() == "new"


def test_a_cuda_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_CUDA", 100)
    (tmp_path / "a.cu").write_text(" " * 101)
    with pytest.raises(source.UnusableInput, match="has 101 characters, the most of a CUDA file are 100"):
        source.read_kernel_file(tmp_path / "a.cu")


def test_a_pipe_of_the_shell_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"kind: gemm")
    os.close(writer)
    assert read_plain(f"/dev/fd/{reader}", 100) == b"kind: gemm"
    os.close(reader)


def test_a_named_pipe_as_a_spec_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.yaml")
    with pytest.raises(GemmgenError, match="pipe"):
        load_spec(tmp_path / "spec.yaml")


def test_a_named_pipe_without_a_reader_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.html")
    with pytest.raises(OSError, match="is a pipe that nobody reads"):
        write_atomically(tmp_path / "out.html", "a page")


def test_a_named_pipe_with_a_reader_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.html")
    reader = os.open(tmp_path / "out.html", os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(tmp_path / "out.html", "a page")
    assert os.read(reader, 100) == b"a page"
    os.close(reader)


def test_a_named_pipe_as_a_certificate_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "some.json")
    assert LibraryFolder(tmp_path).certificate("some.json") is None


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_results_are_not_reached_through_links(tmp_path: Path, suffix: str) -> None:
    ResultStore(tmp_path / "results").close()
    if not suffix:
        (tmp_path / "results").rename(tmp_path / "elsewhere")
    (tmp_path / f"results{suffix}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SweepError, match="is a link"):
        ResultStore(tmp_path / "results")
    assert suffix == "" or not (tmp_path / "elsewhere").exists()


def test_a_named_pipe_as_results_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results")
    with pytest.raises(SweepError, match="pipe"):
        ResultStore(tmp_path / "results")


def test_a_file_that_tells_no_size_is_read() -> None:
    assert read_plain("/proc/self/status", 10_000).startswith(b"Name:") and len(read_plain("/proc/self/status", 10_000)) > 100


@pytest.mark.parametrize("base", ["/etc/passwd", "../secret.yaml", "below/../../secret.yaml", "link.yaml"])
def test_a_sweep_reads_no_base_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    (tmp_path / "secret.yaml").write_text("token: abc\n")
    here = tmp_path / "here"
    (here / "below").mkdir(parents=True)
    (here / "link.yaml").symlink_to("../secret.yaml")
    (here / "sweep.yaml").write_text(f"name: a\nbase: {base}\n")
    monkeypatch.chdir(here)
    with pytest.raises(GemmgenError, match="leads out of") as raised:
        load_sweep("sweep.yaml")
    assert "token" not in str(raised.value)
