"""Disks that are full or read-only, two builds of one library at a time, and a clock that goes backwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE

from gemmgen.core.cache import Cache, cache_key
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.building import compiler_fits
from gemmgen.library.listing import read_listing

SWEEP = "name: small\nbase: gemm/v0_naive\naxes: {alpha: [one, argument]}\ncases: 1\nstages: compile\n"
COMMANDS = {
    "sweep": ("sweep", "small.yaml", "--jobs", "1"),
    "render": ("render", "gemm/v0_naive", "-o", "kernels"),
    "export": ("export", "gemm/v0_naive", "--format", "header", "-o", "kernel.h"),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB with a sweep file; skips where nothing can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        (place / "small.yaml").write_text(SWEEP)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gemmgen", *command],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def fill(place: Path) -> None:
    with (place / "filling").open("wb", buffering=0) as filling:
        try:
            while filling.write(bytes(4096)):
                pass
        except OSError:
            return


@pytest.mark.parametrize("state", ["full", "read-only"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_takes_nothing_is_one_message(disk: Path, command: str, state: str) -> None:
    if state == "full":
        fill(disk)
    else:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    before = {path.name for path in disk.iterdir()}
    result = run(disk, *COMMANDS[command])
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert ("full" if "full" in result.stderr else "No space left" if state == "full" else "Read-only") in result.stderr
    left = {path for path in disk.rglob("*") if path.name not in before and path.is_file() and path.stat().st_size}
    assert left == set()


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_cache_on_such_a_disk_is_done_without(disk: Path, state: str) -> None:
    if state == "full":
        fill(disk)
    else:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    result = run(disk.parent, "compile", "gemm/v0_naive", GEMMGEN_CACHE_DIR=str(disk / "cache"), XDG_CACHE_HOME=str(disk / "cache"))
    assert result.returncode == 0 and "Traceback" not in result.stderr


def test_two_builds_of_one_library_agree(tmp_path: Path) -> None:
    release = read_listing().release
    if not compiler_fits(read_listing()):
        pytest.skip("certificates are made with another release of NVRTC")
    specs = tmp_path / "specs"
    (specs / "gemm").mkdir(parents=True)
    shutil.copy(shipped_specs()["gemm/v0_naive"], specs / "gemm")
    groups = [{"title": "one", "specs": ["gemm/v0_naive"], "sizes": [[64, 64, 64]]}]
    (specs / "library.yaml").write_text(json.dumps({"compiler": release, "architectures": ["sm_80"], "groups": groups}))
    command = [sys.executable, "-m", "gemmgen", "library", "build", "-o", "library", "--list", "specs/library.yaml"]
    builds = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    ends = [(build.communicate(timeout=PATIENCE)[0], build.returncode) for build in builds]
    assert [code for _, code in ends] == [0, 0], ends
    # The next build may complete the work of the two; after that nothing changes.
    for said in ("", "0 files written"):
        later = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert later.returncode == 0 and said in later.stderr


def test_a_clock_that_goes_backwards_loses_no_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    year = 365 * 86400 * 10**9
    cache, now = Cache(tmp_path / "cache"), time.time_ns()
    for number, moment in enumerate((now, now - year, now + year, 0)):
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment)
        assert cache.store(cache_key(str(number)), {"kernel.ptx": b"%d" % number})
        os.utime(tmp_path / "cache" / "v1" / cache_key(str(number)), ns=(moment, moment))
    monkeypatch.undo()
    assert [cache.load(cache_key(str(number))) for number in range(4)] == [{"kernel.ptx": b"%d" % number} for number in range(4)]
