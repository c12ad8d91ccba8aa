"""The compile cache: damage, races, kills, limits and directories that cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from pathlib import Path

import platformdirs
import pytest
from waiting import PATIENCE

from gemmgen.core import cache as cache_module
from gemmgen.core.cache import Cache, CacheWarning, cache_key, default_directory, default_limit_bytes
from gemmgen.core.private_files import make_folder

FILES = {"kernel.ptx": b"text" * 100, "kernel.cubin": bytes(range(256)) * 20}
KEY = cache_key("a key")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def entry_of(cache: Cache, key: str = KEY) -> Path:
    return cache.directory / "v1" / key


def run_python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT)


def test_returns_what_was_stored_and_nothing_else(cache):
    assert cache.load(KEY) is None
    assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES
    assert cache.load(cache_key("another key")) is None
    assert Cache(cache.directory).load(KEY) == FILES


def test_keys_frame_their_parts():
    keys = [
        cache_key("ab", "c"),
        cache_key("a", "bc"),
        cache_key("abc"),
        cache_key("ab", "c", ""),
        cache_key("ab", b"d"),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key("\ud800")


@pytest.mark.parametrize("name", ["../up", "meta.json", "", "a/b"])
def test_refuses_file_names_that_could_escape_or_collide(cache, name):
    with pytest.raises(ValueError, match="file names"):
        cache.store(KEY, {name: b""})


def test_refuses_keys_that_are_paths(cache):
    with pytest.raises(ValueError, match="not a cache key"):
        cache.load("../../etc")


def test_every_truncation_and_flip_of_every_file_is_miss(cache):
    cache.store(KEY, FILES)
    for name in (*FILES, "meta.json"):
        whole = (entry_of(cache) / name).read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 12)):
            flipped = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
            for damaged in (whole[:at], flipped):
                (entry_of(cache) / name).write_bytes(damaged)
                assert cache.load(KEY) is None, (name, at)
                assert not entry_of(cache).exists()
                assert cache.store(KEY, FILES)
                assert cache.load(KEY) == FILES


@pytest.mark.parametrize("name", [*FILES, "meta.json"])
def test_an_entry_without_one_of_its_files_is_a_miss(cache, name):
    cache.store(KEY, FILES)
    (entry_of(cache) / name).unlink()
    assert cache.load(KEY) is None


@pytest.mark.parametrize("meta", ["[]", "null", "{}", '{"format":"v1"}', "[" * 100_000, '{"format":"v1","key":"x","sha256":3}'])
def test_a_meta_file_of_another_form_is_a_miss(cache, meta):
    cache.store(KEY, FILES)
    (entry_of(cache) / "meta.json").write_text(meta)
    assert cache.load(KEY) is None


def test_an_entry_moved_to_another_key_is_a_miss(cache):
    cache.store(KEY, FILES)
    other = cache_key("another key")
    entry_of(cache).rename(entry_of(cache, other))
    assert cache.load(other) is None


def test_a_meta_file_cannot_point_outside_its_entry(cache):
    cache.store(KEY, FILES)
    (cache.directory / "secret").write_bytes(b"secret")
    meta = json.loads((entry_of(cache) / "meta.json").read_text())
    meta["sha256"]["../../secret"] = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    (entry_of(cache) / "meta.json").write_text(json.dumps(meta))
    assert cache.load(KEY) is None


def test_a_file_where_an_entry_should_be_is_replaced(cache):
    cache.store(KEY, FILES)
    other = cache_key("other")
    entry_of(cache, other).write_text("not a directory")
    assert cache.load(other) is None
    assert cache.store(other, FILES)
    assert cache.load(other) == FILES


def test_a_damaged_entry_is_replaced_by_a_store_without_a_load(cache):
    cache.store(KEY, FILES)
    (entry_of(cache) / "kernel.ptx").write_bytes(b"")
    assert cache.store(KEY, FILES)
    assert cache.load(KEY) == FILES


def test_a_small_entry_takes_little_memory_to_read(cache):
    cache.store(KEY, FILES)
    tracemalloc.start()
    try:
        assert cache.load(KEY) == FILES
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


RACE = """
import random, sys
from gemmgen.core.cache import Cache, cache_key
cache, seed = Cache(sys.argv[1], limit_bytes=400_000), int(sys.argv[2])
choose = random.Random(seed)
hits = 0
for _ in range(250):
    number = choose.randrange(6)
    key, files = cache_key(str(number)), {"a": bytes([number]) * 50_000, "b": str(number).encode()}
    found = cache.load(key)
    assert found in (None, files), "a reader saw a wrong entry"
    hits += found is not None
    if found is None or choose.random() < 0.3:
        assert cache.store(key, files)
    if choose.random() < 0.03:
        (cache.directory / "v1" / key / "a").unlink(missing_ok=True)
    if choose.random() < 0.01:
        cache.clear()
assert hits > 20, hits
"""


def test_racing_processes_see_whole_entries_or_none(tmp_path):
    racers = [run_python(RACE, tmp_path, seed) for seed in range(4)]
    assert [racer.wait(timeout=PATIENCE) for racer in racers] == [0, 0, 0, 0]


STORE_FOREVER = """
import itertools, sys
from gemmgen.core.cache import Cache, cache_key
cache = Cache(sys.argv[1])
for number in itertools.count():
    cache.store(cache_key(str(number % 50)), {"a": bytes([number % 50]) * 300_000})
    (cache.directory / "v1" / cache_key(str(number % 50)) / "a").unlink()
"""


def test_a_killed_writer_leaves_no_entry_that_loads_wrong(tmp_path):
    for delay in (0.15, 0.2, 0.3):
        writer = run_python(STORE_FOREVER, tmp_path)
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    cache = Cache(tmp_path)
    for number in range(50):
        expected = {"a": bytes([number]) * 300_000}
        assert cache.load(cache_key(str(number))) in (None, expected)
        assert cache.store(cache_key(str(number)), expected)
        assert cache.load(cache_key(str(number))) == expected


def test_what_a_killed_writer_left_is_deleted_when_it_is_old(cache, monkeypatch):
    monkeypatch.setattr(cache_module, "_STORES_BETWEEN_SCANS", 1)
    building = cache.directory / "v1.tmp"
    old, young = building / f"{time.time_ns() - 2 * 3600 * 10**9}-1-aa", building / f"{time.time_ns()}-1-bb"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "kernel.ptx").write_text("half")
    cache.store(KEY, FILES)
    assert not old.exists()
    assert young.exists()


def test_the_least_recently_used_entries_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_STORES_BETWEEN_SCANS", 1)
    cache = Cache(tmp_path, limit_bytes=50_000)
    keys = [cache_key(str(number)) for number in range(5)]
    for key in keys[:4]:
        cache.store(key, {"a": bytes(12_000)})
    for second, key in enumerate(keys[:4]):  # a file system's clock may give several the same time
        os.utime(entry_of(cache, key), (second, second))
    assert cache.load(keys[0]) is not None
    cache.store(keys[4], {"a": bytes(12_000)})
    assert [cache.load(key) is not None for key in keys] == [True, False, False, True, True]
    assert cache.info().size_bytes <= 50_000


def test_the_limit_holds_without_the_random_look(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_STORES_BETWEEN_SCANS", 10**9)
    cache = Cache(tmp_path, limit_bytes=100_000)
    for number in range(40):
        cache.store(cache_key(str(number)), {"a": bytes(10_000)})
    assert 50_000 < cache.info().size_bytes <= 115_000


def test_info_and_clear_leave_foreign_files_alone(cache):
    assert cache.info().entries == 0
    for number in range(3):
        cache.store(cache_key(str(number)), FILES)
    (cache.directory / "foreign").write_text("keep me")
    info = cache.info()
    assert info.entries == 3
    assert info.size_bytes > 3 * sum(map(len, FILES.values()))
    assert info.writable
    assert cache.clear() == 3
    assert cache.info().entries == 0
    assert [path.name for path in cache.directory.rglob("*") if path.is_file()] == ["foreign"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no folder in which nobody can make one")
def test_a_folder_that_holds_no_other_is_no_place():
    with pytest.raises(FileNotFoundError):
        make_folder("/proc/gemmgen/cache")


def test_directory_that_cannot_exist_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning, match="cannot be written"):
        assert not cache.store(KEY, FILES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cache.store(KEY, FILES)
        assert cache.load(KEY) is None
    assert not cache.info().writable
    assert cache.clear() == 0


READ_ONLY = """
import os, sys, warnings, tempfile
from gemmgen.core.cache import Cache, cache_key
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
warnings.simplefilter("ignore")
cache = Cache(sys.argv[1])
assert cache.load(cache_key("a key"))["kernel.ptx"] == b"text" * 100, "an entry of a read-only cache can be read"
assert not cache.store(cache_key("other"), {"a": b"b"})
assert cache.load(cache_key("damaged")) is None
assert not cache.info().writable and cache.info().entries == 2
assert cache.clear() == 0
"""


def test_a_read_only_cache_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE_KEY", str(tmp_path / "secret" / "key"))
    cache = Cache(tmp_path / "cache")
    cache.store(KEY, FILES)
    cache.store(cache_key("damaged"), FILES)
    (entry_of(cache, cache_key("damaged")) / "kernel.ptx").write_bytes(b"")
    for folder in (tmp_path, *tmp_path.parents):
        if Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)
    for part in ("cache", "secret"):
        for folder, _, files in os.walk(tmp_path / part):
            for path in (folder, *(os.path.join(folder, file) for file in files)):
                if os.getuid() == 0:
                    os.chown(path, 65534, 65534)
            os.chmod(folder, 0o555)
    try:
        assert run_python(READ_ONLY, cache.directory).wait(timeout=PATIENCE) == 0
    finally:
        for folder, _, _ in os.walk(tmp_path):
            os.chmod(folder, 0o755)


def test_directory_is_argument_environment_or_platform(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "environment"))
    assert Cache().directory == tmp_path / "environment"
    assert Cache(tmp_path / "argument").directory == tmp_path / "argument"
    monkeypatch.delenv("GEMMGEN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "gemmgen"


@pytest.mark.parametrize(("text", "expected"), [("", 2**30), ("1000", 1000), ("500M", 500 * 2**20), ("2 GiB", 2**31)])
def test_the_limit_is_read_with_its_unit(monkeypatch, text, expected):
    monkeypatch.setenv("GEMMGEN_CACHE_LIMIT", text)
    assert default_limit_bytes() == expected


@pytest.mark.parametrize("text", ["lots", "9" * 5000, "x" * 100_000])
def test_a_limit_that_is_no_size_is_a_warning(monkeypatch, text):
    monkeypatch.setenv("GEMMGEN_CACHE_LIMIT", text)
    with pytest.warns(CacheWarning, match=text[:4]) as told:
        assert default_limit_bytes() == 2**30
    assert len(str(told[0].message)) < 200


@pytest.mark.parametrize("kind", ["cache", "data"])
@pytest.mark.parametrize("named", ["", "/elsewhere"])
def test_directories_are_those_of_platformdirs(kind, named, monkeypatch):
    monkeypatch.delenv("GEMMGEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("GEMMGEN_CACHE_KEY", raising=False)
    for variable in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, named)
    if kind == "cache":
        assert str(cache_module.default_directory()) == platformdirs.user_cache_dir("gemmgen", appauthor=False)
    else:
        assert str(cache_module.default_key_file().parent) == platformdirs.user_data_dir("gemmgen", appauthor=False)
