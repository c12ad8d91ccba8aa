"""Accesses in native code: the same results, findings and shadow memory as step by step."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from gemmgen.emulator import Device, HazardError, launch, native
from gemmgen.emulator.fused_access import FusedAccess
from gemmgen.emulator.memory import GLOBAL_BASE

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
KERNEL = """
.visible .entry kernel(.param .u64 kernel_x, .param .u64 kernel_y)
{
  .reg .u32 %r<16>; .reg .u64 %rd<12>; .reg .f32 %f<8>; .reg .pred %p<3>; .reg .b16 %rs<3>;
  .shared .align 16 .b8 tile[1024];
  ld.param.u64 %rd1, [kernel_x];
  ld.param.u64 %rd2, [kernel_y];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mad.lo.u32 %r3, %r2, 256, %r1;
  mul.wide.u32 %rd3, %r3, 4;
  add.u64 %rd4, %rd1, %rd3;
  add.u64 %rd5, %rd2, %rd3;
  shl.b32 %r4, %r1, 2;
  mov.u32 %r5, tile;
  add.u32 %r6, %r5, %r4;
  BODY
  ret;
}
"""
BODIES = {
    "update in place": "ld.global.f32 %f1, [%rd4]; add.f32 %f2, %f1, %f1; st.global.f32 [%rd4], %f2; ld.global.f32 %f3, [%rd4];"
    "st.global.f32 [%rd5], %f3;",
    "vectors": "and.b32 %r7, %r3, 0xfffffffc; mul.wide.u32 %rd6, %r7, 4; add.u64 %rd7, %rd1, %rd6; add.u64 %rd8, %rd2, %rd6;"
    "and.b32 %r8, %r3, 3; setp.eq.u32 %p1, %r8, 0; @%p1 ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd7];"
    "@%p1 st.global.v4.f32 [%rd8], {%f4, %f3, %f2, %f1};",
    "shared": "ld.global.f32 %f1, [%rd4]; st.shared.f32 [%r6], %f1; bar.sync 0; xor.b32 %r7, %r4, 1020; add.u32 %r7, %r5, %r7;"
    "ld.shared.f32 %f2, [%r7]; st.global.f32 [%rd5], %f2;",
    "race in shared": "ld.global.f32 %f1, [%rd4]; st.shared.f32 [%r6], %f1; xor.b32 %r7, %r4, 1020; add.u32 %r7, %r5, %r7;"
    "ld.shared.f32 %f2, [%r7]; st.global.f32 [%rd5], %f2;",
    "neighbour": "ld.global.f32 %f1, [%rd4]; st.global.f32 [%rd4+4], %f1;",
    "one element": "st.global.u32 [%rd2], %r3;",
    "unwritten shared": "ld.shared.f32 %f1, [%r6]; add.f32 %f1, %f1, %f1; st.global.f32 [%rd5], %f1;",
    "bytes": "cvt.u64.u32 %rd6, %r3; add.u64 %rd7, %rd1, %rd6; add.u64 %rd8, %rd2, %rd6;"
    "ld.global.s8 %rs1, [%rd7]; ld.global.s8 %r9, [%rd7]; add.u32 %r9, %r9, 1; st.global.u8 [%rd8], %rs1; st.global.u8 [%rd8], %r9;",
    "halves": "mul.wide.u32 %rd6, %r3, 2; add.u64 %rd7, %rd1, %rd6; ld.global.s16 %r9, [%rd7]; ld.global.u16 %rd9, [%rd7];"
    "cvt.u32.u64 %r10, %rd9; sub.u32 %r9, %r9, %r10; st.global.u32 [%rd5], %r9;",
}
"""Ways to access memory, right and wrong."""

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or not any(shutil.which(name) for name in ("cc", "gcc", "clang", "g++")), reason="a C compiler builds the loops"
)


def outcome(body: str, mark: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Arrays and findings of a launch; `mark` makes another program of the same text, with machines of its own."""
    x, y = np.arange(16 * 256 + 4, dtype=np.float32), np.zeros(16 * 256 + 4, np.float32)
    try:
        result = launch(HEAD + f"// {mark}\n" + KERNEL.replace("BODY", body), grid=16, block=256, args=[x, y], hazards=True)
        found = [str(finding) for finding in result.findings]
    except HazardError as error:
        found = [str(error)]
    return x, y, found


@needs_compiler
@pytest.mark.parametrize("name", BODIES)
def test_native_accesses_are_those_of_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    original = FusedAccess.__call__
    monkeypatch.setattr(FusedAccess, "__call__", lambda self, *what: calls.append(original(self, *what)) or calls[-1])
    x, y, found = outcome(BODIES[name], "native")
    assert any(calls)
    monkeypatch.setattr(native, "loops_for", lambda lanes: None)
    count = len(calls)
    other_x, other_y, other = outcome(BODIES[name], "numpy")
    assert len(calls) == count
    assert x.tobytes() == other_x.tobytes() and y.tobytes() == other_y.tobytes() and found == other
    assert bool(found) == (name in ("race in shared", "neighbour", "one element", "unwritten shared"))


@needs_compiler
def test_a_device_notes_native_accesses() -> None:
    device = Device(1 << 24)
    module = device.load(HEAD + KERNEL.replace("BODY", BODIES["vectors"]))
    size = 4 * 16 * 256
    x, y = device.allocate(size, "x"), device.allocate(size, "y")
    device.memory[x - GLOBAL_BASE : x - GLOBAL_BASE + size].view(np.float32)[:] = np.arange(16 * 256)
    device.note_written(x, size)
    parameters = x.to_bytes(8, "little") + y.to_bytes(8, "little")
    result = device.launch(module, "kernel", grid=(16, 1, 1), block=(256, 1, 1), parameters=parameters, tracks=True)
    assert result.error is None and not result.findings
    touched = {each.region.name: each for each in result.touched}
    assert touched["x"].read[:size].all() and not touched["x"].written.any()
    assert touched["y"].written[:size].all() and not touched["y"].read.any()
    assert device.count_unwritten(y, size) == 0
    got = device.memory[y - GLOBAL_BASE : y - GLOBAL_BASE + 16].view(np.float32)
    assert got.tolist() == [3, 2, 1, 0]


WRITES = 'while [ "$1" != "-o" ]; do shift; done; '
LACKING = {
    "none": None,
    "fails": "exit 1",
    "is killed": "kill -9 $$",
    "hangs": "exec sleep 100",
    "floods": "exec yes",
    "writes nothing": "exit 0",
    "writes an empty file": f'{WRITES} : > "$2"',
    "writes text": f'{WRITES} echo text > "$2"',
    "makes a folder": f'{WRITES} mkdir "$2"',
    "links to a device": f'{WRITES} ln -s /dev/zero "$2"',
    "leaves functions out": f'{WRITES} echo "int f(void) {{ return 1; }}" | "$COMPILER" -shared -fPIC -x c - -o "$2"',
}
"""C compilers as shell scripts that build no loops."""


@needs_compiler
@pytest.mark.parametrize("compiler", LACKING)
def test_without_loops_numpy_computes(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = LACKING[compiler]
    folder = tmp_path / "bin"
    folder.mkdir()
    if script is not None:
        (folder / "cc").write_text(f"#!/bin/sh\nPATH={os.environ['PATH']}\n{script}\n")
        (folder / "cc").chmod(0o755)
    monkeypatch.setenv("COMPILER", next(filter(None, map(shutil.which, ("cc", "gcc", "clang", "g++")))))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_SECONDS", 2)
    monkeypatch.setattr(native, "loops", native.loops.__wrapped__)
    assert native.loops() is None
    x, y, findings = outcome(BODIES["update in place"], f"compiler {compiler}")
    assert (x[: 16 * 256] == 2 * np.arange(16 * 256)).all() and (x == y)[: 16 * 256].all() and not findings
    assert not list((tmp_path / "cache").rglob("loops.so")), "the cache keeps files that cannot be used"


@needs_compiler
def test_what_a_compiler_starts_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout ends the driver alone: its processes end after as many seconds of processor time."""
    (tmp_path / "cc").write_text(f"#!/bin/sh\n/bin/sh -c 'ulimit -t > {tmp_path}/limit'\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(native, "_SECONDS", 77)
    assert native._compiled(b"int x;", ()) is None
    assert (tmp_path / "limit").read_text().strip() == "77"


@needs_compiler
def test_a_system_without_places_for_the_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert native.loops.__wrapped__() is None
    monkeypatch.undo()
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(os, "memfd_create", lambda name: os.open("/", os.O_WRONLY))
    assert native.loops.__wrapped__() is None


@needs_compiler
def test_loops_in_the_cache_that_do_not_load_are_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_SECONDS", 600)
    kept: dict[str, bytes] = {"loops.so": b"of another machine"}
    monkeypatch.setattr(native.Cache, "load", lambda self, key: kept)
    monkeypatch.setattr(native.Cache, "store", lambda self, key, files: kept.update(files))
    assert native.loops.__wrapped__() is not None and kept["loops.so"].startswith(b"\x7fELF")
