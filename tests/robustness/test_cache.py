"""A hostile compile cache: links, pipes, planted and edited entries, folders that others may write."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from waiting import PATIENCE

from gemmgen.core.cache import Cache, CacheWarning, cache_key
from gemmgen.core.private_files import NotPlainError, NotPrivateError, user_key

KEY = cache_key("a key")
FILES = {"kernel.ptx": b"text", "kernel.cubin": b"\x7fELF"}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    assert made.store(KEY, FILES)
    return made


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def entry_of(cache: Cache) -> Path:
    return cache.directory / "v1" / KEY


@pytest.mark.parametrize("name", ["used", "meta.json", "kernel.ptx", "kernel.cubin"])
def test_a_hit_writes_through_no_link(cache: Cache, victim: Path, name: str) -> None:
    link = entry_of(cache) / name
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    cache.load(KEY)
    cache.store(KEY, FILES)
    assert victim.read_text() == "precious"


def test_a_hit_creates_nothing_through_a_link(cache: Cache, tmp_path: Path) -> None:
    (entry_of(cache) / "used").unlink(missing_ok=True)
    (entry_of(cache) / "used").symlink_to(tmp_path / "created")
    cache.load(KEY)
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("name", ["meta.json", "kernel.ptx"])
def test_a_linked_file_is_a_miss_that_is_replaced(cache: Cache, tmp_path: Path, name: str) -> None:
    path = entry_of(cache) / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.load(KEY) is None
    assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES
    assert not path.is_symlink()


def test_a_linked_entry_is_a_miss_that_is_replaced(cache: Cache, tmp_path: Path) -> None:
    entry_of(cache).rename(tmp_path / "elsewhere")
    entry_of(cache).symlink_to(tmp_path / "elsewhere")
    assert cache.load(KEY) is None
    assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["kernel.cubin", "kernel.ptx", "meta.json"]


@pytest.mark.parametrize("part", ["v1", "v1.tmp"])
def test_a_linked_folder_is_not_used(cache: Cache, tmp_path: Path, part: str) -> None:
    (cache.directory / part).rename(tmp_path / "elsewhere")
    (cache.directory / part).symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheWarning):
        assert not cache.store(cache_key("another"), FILES)
    assert cache.clear() == 0


def test_a_named_pipe_in_an_entry_does_not_hang(cache: Cache) -> None:
    (entry_of(cache) / "kernel.ptx").unlink()
    os.mkfifo(entry_of(cache) / "kernel.ptx")
    assert cache.load(KEY) is None
    assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES


def test_a_file_too_large_to_read_is_a_miss(cache: Cache) -> None:
    os.truncate(entry_of(cache) / "kernel.cubin", 2**40)
    assert cache.load(KEY) is None


def test_an_edited_entry_with_its_checksum_is_a_miss(cache: Cache) -> None:
    (entry_of(cache) / "kernel.ptx").write_bytes(b"evil")
    meta = json.loads((entry_of(cache) / "meta.json").read_text())
    meta["sha256"]["kernel.ptx"] = hashlib.sha256(b"evil").hexdigest()
    (entry_of(cache) / "meta.json").write_text(json.dumps(meta))
    assert cache.load(KEY) is None


def test_an_entry_without_proof_is_a_miss(cache: Cache) -> None:
    meta = json.loads((entry_of(cache) / "meta.json").read_text())
    del meta["hmac"]
    (entry_of(cache) / "meta.json").write_text(json.dumps(meta))
    assert cache.load(KEY) is None


def test_another_users_entry_is_a_miss(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_KEY", str(tmp_path / "other" / "key"))
    other = Cache(tmp_path / "cache of another")
    assert other.store(KEY, {"kernel.ptx": b"evil", "kernel.cubin": b"evil"})
    shutil.rmtree(entry_of(cache))
    shutil.copytree(entry_of(other), entry_of(cache))
    assert cache.load(KEY) is None


@pytest.mark.parametrize("part", [".", "v1"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_write_is_refused(cache: Cache, part: str, mode: int) -> None:
    (cache.directory / part).chmod(mode)
    with pytest.warns(CacheWarning, match="others may write"):
        assert cache.load(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cache.store(KEY, FILES)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_another_owns_is_refused(cache: Cache) -> None:
    os.chown(cache.directory, 65534, 65534)
    with pytest.warns(CacheWarning, match="another user"):
        assert cache.load(KEY) is None
    assert not cache.store(KEY, FILES)
    assert not cache.info().writable


TWO_USERS = """
import os, sys, time, warnings
from gemmgen.core.cache import Cache, CacheWarning, cache_key
number = int(sys.argv[3])
if number:
    os.setgid(65534); os.setuid(65534)
os.environ["GEMMGEN_CACHE_KEY"] = f"{sys.argv[2]}{number}/key"
warnings.simplefilter("ignore", CacheWarning)
cache, own = Cache(sys.argv[1]), b"user %d" % number
kept = 0
for round in range(60):
    key = cache_key(str(round % 6))
    assert cache.load(key) in (None, {"kernel.ptx": own}), "another user's binary"
    kept += cache.store(key, {"kernel.ptx": own})
cache.clear()
print(kept)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, 0), (0o755, 0), (0o700, 65534), (None, 0)])
def test_two_users_of_one_folder_get_only_binaries_of_their_own(tmp_path: Path, mode: int | None, owner: int) -> None:
    """At the same time; a folder that either may not use, or not trust, costs a warning and no more."""
    for folder in (tmp_path, *tmp_path.parents[: len(tmp_path.parts) - len(Path(tempfile.gettempdir()).parts) - 1]):
        folder.chmod(0o755)
    keys, folder = tmp_path / "keys", tmp_path / "shared"
    for number, user in enumerate((0, 65534)):
        Path(f"{keys}{number}").mkdir(mode=0o700)
        os.chown(f"{keys}{number}", user, user)
    tmp_path.chmod(0o1777)
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, owner, owner)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    users = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_USERS, str(folder), str(keys), str(number)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in (0, 1)
    ]  # fmt: skip
    told = [user.communicate(timeout=PATIENCE) for user in users]
    assert [user.returncode for user in users] == [0, 0], told
    kept = [int(out) for out, _ in told]
    assert kept == {0o777: [0, 0], 0o1777: [0, 0], 0o755: [60, 0], 0o700: [0, 60]}.get(mode or 0, kept)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_folders_and_files_are_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        cache = Cache(tmp_path / "above" / "cache")
        assert cache.store(KEY, FILES)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.lstat().st_mode) for path in cache.directory.rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.lstat().st_mode) for path in (cache.directory, *cache.directory.rglob("*")) if path.is_dir()}
    assert (modes, folders) == ({0o600}, {0o700})


def test_the_secret_is_private_and_stays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "key"
    key = user_key(path)
    assert len(key) == 32 and user_key(path) == key
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret" / "key"
    user_key(path)
    path.chmod(mode)
    with pytest.raises(NotPrivateError):
        user_key(path)


def test_a_secret_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(NotPlainError):
        user_key(tmp_path / "key")


def test_a_secret_cut_off_is_made_anew(tmp_path: Path) -> None:
    key = user_key(tmp_path / "key")
    os.truncate(tmp_path / "key", 5)
    assert user_key(tmp_path / "key") not in (key, key[:5])


AGREE = "import sys; from pathlib import Path; from gemmgen.core.private_files import user_key; print(user_key(Path(sys.argv[1])).hex())"


def test_processes_that_make_the_secret_at_once_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AGREE, str(tmp_path / "secret" / "key")]
    racers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(8)]
    assert len({racer.communicate(timeout=PATIENCE)[0] for racer in racers}) == 1
    assert os.listdir(tmp_path / "secret") == ["key"]


HOLD = """
import os, sys, time
from gemmgen.core import cache
def stop(*_, **__):
    print("built", flush=True)
    time.sleep(600)
os.rename = stop
cache.Cache(sys.argv[1]).store(cache.cache_key("held"), {"a": b"b"})
"""


def test_leftovers_go_once_their_maker_is_killed(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.core.cache._ABANDONED_NS", 0)
    maker = subprocess.Popen([sys.executable, "-c", HOLD, str(cache.directory)], cwd=ROOT, stdout=subprocess.PIPE)
    assert maker.stdout is not None and maker.stdout.readline() == b"built\n"
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    building = cache.directory / "v1.tmp"
    assert len(os.listdir(building)) == 1
    cache.clear()
    assert os.listdir(building) == []


def test_what_is_being_built_is_no_leftover(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.core.cache._ABANDONED_NS", 0)
    building = cache.directory / "v1.tmp" / f"{time.time_ns() - 10**12}-1-aa"
    building.mkdir()
    descriptor = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        cache.clear()
        assert building.exists()
    finally:
        os.close(descriptor)
