"""`gemmgen run`: host code and kernels of one program, with a mode for each thing that can be right or wrong in it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from waiting import eventually

from gemmgen.cli import cli
from gemmgen.core.errors import CompileError, GemmgenError
from gemmgen.emulator.device import Touched
from gemmgen.emulator.errors import BadLaunch
from gemmgen.emulator.memory import GLOBAL_BASE as BASE
from gemmgen.emulator.memory import Region
from gemmgen.emulator.ptx import parse
from gemmgen.sanitizer.programs.blas import Memory, Operation, OutsideOfAllocation, Refusal, compute
from gemmgen.sanitizer.programs.building import Toolkit, build_environment, build_program, make_toolkit, run_build
from gemmgen.sanitizer.programs.fat_binaries import linked, ptx_of
from gemmgen.sanitizer.programs.messages import BadMessage, Body, limit_of
from gemmgen.sanitizer.programs.places import CallPlace, Places
from gemmgen.sanitizer.programs.running import fence_here, landlock_version, run_program
from gemmgen.sanitizer.programs.session import Report, RunSettings
from gemmgen.sanitizer.programs.streams import StreamOrder
from gemmgen.toolchain.nvcc import Nvcc, find_nvcc

SOURCE = Path(__file__).with_name("whole_programs.cu")
DRIVER_PROGRAM = Path(__file__).with_name("driver_program.py")
WRONG_CALLS = Path(__file__).with_name("wrong_driver_calls.py")
needs_nvcc = pytest.mark.skipif(
    sys.platform != "linux" or find_nvcc() is None or shutil.which("g++") is None, reason="programs are built by nvcc and g++"
)
SETTINGS = RunSettings(seconds=60, memory_bytes=1 << 30)


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return make_toolkit(tmp_path_factory.mktemp("lib"), "80")


@pytest.fixture(scope="module")
def program(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program"
    build_program(toolkit, [SOURCE], path, (), (), ())
    return path


def run(program: Path, toolkit: Toolkit, *arguments: str, settings: RunSettings = SETTINGS) -> Report:
    return run_program([str(program), *arguments], toolkit.libraries, settings, [toolkit.nvcc.include])


def line_of(words: str) -> int:
    return next(number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if words in line)


@needs_nvcc
def test_streams_graphs_textures_and_grid_barriers_are_clean(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run(program, toolkit, "features")
    out = capfd.readouterr().out
    assert report.findings == () and report.status == 0 and not report.refused and not report.unsupported
    assert out.splitlines() == ["streams 12", "graph 2", "cooperative 128 6, 32 blocks", "dynamic 63", "texture 5 8"]
    assert report.timed and report.kernels["increment"].launches == 6


@needs_nvcc
def test_graphs_of_two_streams_memory_and_loops_are_clean(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run(program, toolkit, "graphs")
    assert capfd.readouterr().out.splitlines() == ["graph of two streams 6", "loop 0"]
    assert report.findings == () and report.status == 0 and not report.refused and not report.unsupported
    assert report.kernels["count_down"].launches == 7


@needs_nvcc
def test_a_launch_that_begins_early_has_to_wait(program: Path, toolkit: Toolkit) -> None:
    report = run(program, toolkit, "dependent")
    found = [finding for finding in report.findings if finding.severity == "error"]
    assert {finding.code for finding in found} == {"unordered-launch", "unfinished-launch"} and report.status == 0
    assert report.kernels["increment"].launches == 4


@needs_nvcc
def test_neighbours_and_atomics_of_two_streams_are_clean(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run(program, toolkit, "neighbours")
    assert capfd.readouterr().out.splitlines()[0] == "neighbours 1 2 3 4, 256"
    assert report.findings == () and report.status == 0


@needs_nvcc
def test_a_fill_with_zeros_ends_at_its_bytes(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run(program, toolkit, "zeros")
    assert capfd.readouterr().out.splitlines()[0] == f"zeros 5 {(2 << 20) + 77} 0"
    assert report.findings == () and report.status == 0


@needs_nvcc
@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 instructions")
def test_atomics_of_host_and_kernel_run_side_by_side(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run(program, toolkit, "host atomics")
    assert capfd.readouterr().out.splitlines()[0] == "count 100"
    assert report.findings == () and report.status == 0


@needs_nvcc
def test_surfaces_layers_faces_and_rows_with_gaps(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run(program, toolkit, "surfaces")
    assert capfd.readouterr().out.splitlines() == ["surface 1 32", "11 10 12 1 7854 6 5 "]
    assert report.findings == () and report.status == 0 and not report.unsupported


def run_python(toolkit: Toolkit, *arguments: str) -> Report:
    return run_program([sys.executable, str(DRIVER_PROGRAM), *arguments], toolkit.libraries, SETTINGS, [toolkit.nvcc.include])


@needs_nvcc
def test_a_python_program_reaches_the_driver(toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run_python(toolkit)
    assert capfd.readouterr().out == "sum 500500.0 right\n"
    assert report.findings == () and report.status == 0 and not report.unsupported and report.kernels["add"].launches == 1


@needs_nvcc
def test_an_access_out_of_bounds_names_the_python_variable(toolkit: Toolkit) -> None:
    report = run_python(toolkit, "bad")
    finding, *others = report.findings
    shown = str(DRIVER_PROGRAM).removeprefix(f"{Path.cwd()}/")
    line = next(number for number, text in enumerate(DRIVER_PROGRAM.read_text().splitlines(), 1) if "a_device = " in text)
    assert finding.code == "out-of-bounds" and f"past the end of a_device (cuMemAlloc at {shown}:{line})" in finding.message
    assert finding.places[0].file == "add.cu" and report.status == 0
    assert [other.message.partition(" (")[0].split()[-1] for other in others] == ["b_device", "c_device"]


@needs_nvcc
def test_cuda_core_allocates_and_launches_through_the_driver(toolkit: Toolkit) -> None:
    report = run_python(toolkit, "core")
    assert report.findings == () and report.status == 0 and not report.unsupported and report.kernels["add"].launches == 1


@needs_nvcc
def test_wrong_calls_of_the_driver_are_refused(toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    report = run_program([sys.executable, str(WRONG_CALLS)], toolkit.libraries, SETTINGS, [toolkit.nvcc.include])
    first, *calls = capfd.readouterr().out.splitlines()
    assert first == "before cuInit 3 0 without a context 201"
    assert calls[:9] == [
        *("length 200", "load 0", "function 0", "launch 0", "unload 0 400 400", "after unload 400 400", "again 0 0", "launch 0", "fill 1"),
    ]
    assert calls[9:] == [
        "create 0 another thread (201, 201, 201)",
        "destroy 0 201 201",
        "in the primary context 400 400 201",
        "release 0 201 destroyed 709 709 709 709",
        "stream 709 pop 0 none 201 201 201",
        "again 0 0 0 0 0",
        "current 0 stream 0 True",
        "pool 0 default stream 201 free 0",
    ]
    (finding,) = report.findings
    assert finding.code == "copy-out-of-bounds" and report.kernels["f"].launches == 2 and report.status == 0


@needs_nvcc
def test_a_program_that_a_signal_ends_is_not_clean(capfd: pytest.CaptureFixture[str]) -> None:
    done = CliRunner().invoke(cli, ["run", str(WRONG_CALLS), "--", "abort"])
    assert done.exit_code == 128 + signal.SIGABRT
    assert "not run to its end" in done.stderr and "clean" not in done.stderr


@needs_nvcc
def test_a_program_that_leaves_the_emulator_is_not_clean(capfd: pytest.CaptureFixture[str]) -> None:
    done = CliRunner().invoke(cli, ["run", str(WRONG_CALLS), "--", "close"])
    assert done.exit_code in (128 + signal.SIGKILL, 1)  # it is ended, unless it ends before that
    assert "not run to its end" in done.stderr and "clean" not in done.stderr
    assert "the program has closed it" in capfd.readouterr().err


@needs_nvcc
def test_programs_that_ended_hold_no_open_files() -> None:
    def open_files() -> int:
        CliRunner().invoke(cli, ["run", str(WRONG_CALLS), "--", "abort"])
        return len(os.listdir("/proc/self/fd"))

    assert open_files() >= open_files()


@needs_nvcc
def test_the_command_runs_a_python_file_with_its_arguments() -> None:
    done = CliRunner().invoke(cli, ["run", "--json", str(DRIVER_PROGRAM), "--", "bad"])
    assert done.exit_code == 1 and json.loads(done.stdout)["findings"][0]["code"] == "out-of-bounds"


@needs_nvcc
def test_a_program_compiles_kernels_with_nvrtc(toolkit: Toolkit, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program"
    build_program(toolkit, [SOURCE.with_name("nvrtc_program.cpp")], program, (), (), ("-lnvrtc", "-lcuda"))
    report = run(program, toolkit)
    assert capfd.readouterr().out == "7 3\n"
    (finding,) = (finding for finding in report.findings if finding.severity == "error")
    assert finding.code == "out-of-bounds" and finding.places[0].file == "add.cu" and finding.places[0].line == 2


@needs_nvcc
def test_the_driver_has_arrays_and_ranges_of_addresses(toolkit: Toolkit, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program"
    build_program(toolkit, [SOURCE.with_name("driver_memory.cu")], program, (), (), ("-lcuda",))
    report = run(program, toolkit)
    assert capfd.readouterr().out.splitlines() == ["texture 9 25", "range 3 3", "registered 5 8 8"]
    assert report.findings == () and report.status == 0 and not report.unsupported


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("cudaMalloc(&table, 8)", "table"),
        ("CHECK(cudaMalloc((void **)&rows[i], 8));", "rows[i]"),
        ("cudaMalloc((void**)&(this->memory_.speeds), n * sizeof(double));", "memory_.speeds"),
        ("cudaMallocManaged(reinterpret_cast<void**>(&self->data), n)", "self->data"),
        ("cudaMallocAsync((float**) &out, 8, stream)", "out"),
        ("allocate()", None),
    ],
)
def test_an_allocation_is_called_by_its_variable(tmp_path: Path, call: str, name: str | None) -> None:
    (tmp_path / "a.cu").write_text(f"{call}\n")
    assert Places([]).variable(CallPlace(str(tmp_path / "a.cu"), 1, None)) == name


def test_the_driver_refuses_machine_code_and_takes_ptx() -> None:
    assert ptx_of(b"// comment\n.version 8.0\n.target sm_80\0rest", 80) == "// comment\n.version 8.0\n.target sm_80"
    with pytest.raises(BadLaunch, match="no fat binary"):
        ptx_of(b"\x7fELF" + bytes(80), 80)


@needs_nvcc
def test_source_files_with_relocatable_device_code_are_linked(toolkit: Toolkit, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.cu").write_text(
        "#include <cstdio>\nextern __device__ int twice(int);\nextern __device__ int shared_count;\n"
        "static __device__ int own = 7;\nvoid other(int*);\n"
        "__global__ void k(int* out) { out[threadIdx.x] = twice(threadIdx.x) + shared_count + own++; }\n"
        "int main() { int *p, h[2]; cudaMalloc(&p, 8); other(p); k<<<1, 2>>>(p); cudaMemcpy(h, p, 8, cudaMemcpyDeviceToHost);"
        ' printf("%d\\n", h[1]); cudaFree(p); }\n'
    )
    (tmp_path / "b.cu").write_text(
        "__device__ int shared_count = 5;\nstatic __device__ int own = 100;\n__device__ int twice(int x) { return 2 * x; }\n"
        "__global__ void more(int* p) { shared_count += own; own = 0; *p = 1; }\nvoid other(int* p) { more<<<1, 1>>>(p); }\n"
    )
    built = tmp_path / "program"
    build_program(toolkit, [tmp_path / "a.cu", tmp_path / "b.cu"], built, (), (), ("-rdc=true",))
    report = run(built, toolkit)
    assert capfd.readouterr().out in ("114\n", "115\n") and report.status == 0 and not report.refused


@needs_nvcc
def test_calls_of_cublas_are_computed_and_checked(toolkit: Toolkit, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    built = tmp_path / "program"
    build_program(toolkit, [Path(__file__).with_name("blas_program.cu")], built, (), (), ("-lcublas",))
    report = run(built, toolkit, "beyond")
    out = capfd.readouterr().out.splitlines()
    assert out == ["31 37 43 31 39 47 dot 26 nrm2 2.23607 amax 12 gemv 10 64 batched 30 46", "13"]
    assert [finding.code for finding in report.findings] == ["library-out-of-bounds"]
    assert "cublasSgemm touches 48 bytes" in report.findings[0].message


def _blas(numbers: list[int], scalars: list[float], memory: bytes) -> tuple[bytes, np.ndarray]:
    array = np.frombuffer(memory, np.uint8).copy()
    region = Region("array", 0, len(array), True)
    return compute(Memory(array, lambda address: region), numbers, scalars), array


def test_products_of_narrow_types_are_rounded_once() -> None:
    bits = np.array([0x3F80, 0x4000, 0x3B80, 0x3F80], np.uint16)  # 1, 2, 2^-8, 1 in bfloat16
    _, array = _blas([Operation.GEMM, 0, 1, 1, 1, 2, 14, 14, 14, 1, 1, 1, 0, 0, 0, 1, BASE, BASE + 4, BASE], [1, 0, 0, 0], bits.tobytes())
    assert array.view(np.uint16)[0] == 0x4000  # 2 + 2^-8 is nearest to 2
    halves = np.array([1, 2, 3, 4], np.float16)
    result, _ = _blas([Operation.DOT, 2, 2, BASE, 1, BASE + 4, -1, 0], [1, 0], halves.tobytes())
    assert np.frombuffer(result, np.float32)[0] == 1 * 4 + 2 * 3


def test_matrices_are_factorized_in_place() -> None:
    a = np.array([[[0.0, 2, 1], [4, 1, 3], [2, 5, 2]], [[1, 2, 3], [2, 4, 6], [0, 1, 1]]])
    memory = np.swapaxes(a, 1, 2).tobytes() + bytes(4 * 8)  # columns one after the other; then pivots and statuses
    numbers = [Operation.FACTORIZE, 3, 1, 3, BASE + 144, BASE + 168, 2, BASE, BASE + 72]
    _, array = _blas(numbers, [], memory)
    found, pivots, statuses = np.swapaxes(array[:144].view("f8").reshape(2, 3, 3), 1, 2), array[144:168].view("i4"), array[168:].view("i4")
    assert statuses.tolist() == [0, 3]  # the second matrix is singular
    for matrix, factors, exchanges in zip(a, found, pivots.reshape(2, 3) - 1, strict=True):
        rows = matrix.copy()
        for row, other in enumerate(exchanges.tolist()):
            rows[[row, other]] = rows[[other, row]]
        assert np.allclose((np.tril(factors, -1) + np.eye(3)) @ np.triu(factors), rows)


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        ([99], BadMessage),
        ([Operation.FACTORIZE, 1, 1, 1, BASE, BASE, 2, BASE], BadMessage),
        ([Operation.FACTORIZE, 1 << 20, 1, 1 << 20, BASE, BASE, 1, BASE], Refusal),
        ([Operation.DOT, 1], BadMessage),
        ([Operation.DOT, 1 << 40, 0, BASE, 1, BASE, 1, 0], Refusal),
        ([Operation.DOT, 5, 0, BASE, 1, BASE, 1, 0], OutsideOfAllocation),
        ([Operation.DOT, 1, 77, BASE, 1, BASE, 1, 0], Refusal),
        ([Operation.GEMM, 0, 0, 4, 1, 1, 0, 0, 0, 1, 1, 4, 0, 0, 0, 1, BASE, BASE, BASE], Refusal),
        ([Operation.GEMM, 0, 0, 1 << 20, 1 << 20, 1 << 20, 0, 0, 0, 1, 1, 4, 0, 0, 0, 1, BASE, BASE, BASE], Refusal),
    ],
)
def test_bad_calls_of_cublas_end_in_one_message(numbers: list[int], error: type[Exception]) -> None:
    with pytest.raises(error):
        _blas(numbers, {Operation.GEMM: [1, 0, 0, 0], Operation.FACTORIZE: []}.get(numbers[0], [1, 0]), bytes(16))


@needs_nvcc
@pytest.mark.parametrize(
    ("mode", "code", "words", "status"),
    [
        ("outside", "out-of-bounds", "access to (32, 0) of a surface of 8 x 4 texels of 4 bytes", 4),
        ("race", "shared-race", "tile[63]", 0),
        ("bounds", "out-of-bounds", "past the end of second_array (cudaMalloc at", 0),
        ("wild", "out-of-bounds", "67108608 bytes past the end of second_array (cudaMalloc at", 6),
        ("freed", "out-of-bounds", "that has been freed", 0),
        ("twice", "double-free", "cudaFree of first_array", 0),
        ("copy", "copy-out-of-bounds", "260 bytes, from byte 0 of an allocation of 256 bytes", 0),
        ("null", "copy-out-of-bounds", "256 bytes from a null pointer", 0),
        ("unwritten", "unwritten-copy", "nothing has written 256, from second_array", 0),
        ("host", "host-access", "host code touches device memory", -11),
        ("streams", "stream-race", "set in stream 2 writes second_array", 0),
        ("freed in another stream", "stream-race", "cudaFreeAsync in stream 2 writes second_array", 0),
        ("overtakes", "stream-race", "cudaMemcpy in the default stream reads second_array", 0),
        ("pinned", "host-race", "memory that set writes", 0),
    ],
)
def test_a_mistake_of_a_program_is_found(program: Path, toolkit: Toolkit, mode: str, code: str, words: str, status: int) -> None:
    report = run(program, toolkit, mode)
    found = [finding for finding in report.findings if finding.code != "leak"]
    assert [finding.code for finding in found] == [code] and words in found[0].text
    assert report.status == status


@needs_nvcc
def test_the_launch_behind_a_race_runs(program: Path, toolkit: Toolkit) -> None:
    assert set(run(program, toolkit, "race").kernels) == {"reversed", "increment"}


@needs_nvcc
def test_places_of_calls_are_lines_of_the_program(program: Path, toolkit: Toolkit) -> None:
    (found,) = run(program, toolkit, "copy").findings
    assert found.places[0].line == line_of("cudaMemcpy(host, first_array, 260")


@needs_nvcc
def test_a_host_that_waits_may_read_what_a_kernel_wrote(program: Path, toolkit: Toolkit) -> None:
    assert run(program, toolkit, "pinned", "wait").findings == ()


@needs_nvcc
def test_launches_that_change_nothing_are_skipped(program: Path, toolkit: Toolkit) -> None:
    totals = run(program, toolkit, "repeats").kernels["set"]
    assert totals.launches == 100 and totals.skipped >= 90
    assert run(program, toolkit, "repeats", settings=replace(SETTINGS, repeats=1)).kernels["set"].skipped == 99


@needs_nvcc
def test_a_launch_on_memory_that_was_reset_is_not_run_again(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    totals = run(program, toolkit, "resets", settings=replace(SETTINGS, repeats=1)).kernels["increment"]
    assert totals.launches == 50 and totals.skipped >= 40
    assert "sum 1" in capfd.readouterr().out.splitlines()


@needs_nvcc
def test_large_inputs_are_known_by_their_versions(program: Path, toolkit: Toolkit, capfd: pytest.CaptureFixture[str]) -> None:
    totals = run(program, toolkit, "large input").kernels["add"]
    assert totals.launches == 40 and 30 <= totals.skipped <= 38
    assert [line for line in capfd.readouterr().out.splitlines() if line.startswith("sum")] == ["sum 1010101", "sum 2020202"]


@needs_nvcc
@pytest.mark.parametrize("byte", ["0", "4", "9", "255"])
def test_a_program_that_writes_garbage_is_ended(program: Path, toolkit: Toolkit, byte: str) -> None:
    report = run(program, toolkit, "garbage", byte)
    assert "does not send" in report.ended_early and report.status == -9


@needs_nvcc
def test_a_program_is_ended_at_its_limit(program: Path, toolkit: Toolkit) -> None:
    report = run(program, toolkit, "busy", settings=replace(SETTINGS, seconds=2))
    assert "after 2 s" in report.ended_early and -report.status in (signal.SIGKILL, signal.SIGXCPU)


@needs_nvcc
def test_a_kernel_without_end_is_ended_at_the_limit(program: Path, toolkit: Toolkit) -> None:
    report = run(program, toolkit, "busy kernel", settings=replace(SETTINGS, seconds=3))
    assert report.ended_early == "the program was ended after 3 s (--seconds): kernel draw was running" and report.seconds < 30


@needs_nvcc
@pytest.mark.skipif(not landlock_version(), reason="needs Landlock")
def test_a_fenced_program_writes_in_the_current_folder_only(
    program: Path, toolkit: Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    settings = replace(SETTINGS, sandbox=True)
    run(program, toolkit, "writes", "own", settings=settings)
    run(program, toolkit, "writes", str(tmp_path / "other"), settings=settings)
    assert [line for line in capfd.readouterr().out.splitlines() if "file" in line] == ["file 1", "file 0"]
    assert (inside / "own").exists() and not (tmp_path / "other").exists()


@pytest.mark.skipif(not landlock_version(), reason="needs Landlock")
def test_a_fenced_build_writes_in_the_current_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    run_build("echo own > own", os.environ, fence_here([]))
    with pytest.raises(GemmgenError, match="failed"):
        run_build("echo other > ../other", os.environ, fence_here([]))
    assert (inside / "own").read_text() == "own\n" and not (tmp_path / "other").exists()


def test_a_build_without_end_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gemmgen.sanitizer.programs.building._MAX_SECONDS", 1)
    with pytest.raises(GemmgenError, match="took more than 1 s"):
        run_build(f"(sleep 100; echo late > {tmp_path}/late) & echo $! > {tmp_path}/child; wait", os.environ)
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert eventually(lambda: not child.exists() or ") Z " in child.read_text())


def test_the_output_of_a_build_is_not_the_document(capfd: pytest.CaptureFixture[str]) -> None:
    run_build("echo compiling", os.environ)
    assert capfd.readouterr() == ("", "compiling\n")


@needs_nvcc
def test_temporary_folders_may_have_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    (tmp_path / "a.cu").write_text("int main() { return cudaDeviceSynchronize(); }")
    (tmp_path / "Makefile").write_text('a: a.cu\n\t"$(CUDA_PATH)/bin/nvcc" -o a a.cu\n')
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["run", "--build", "make", "./a"])
    assert result.exit_code == 0, result.stderr


@needs_nvcc
def test_calls_that_the_emulator_does_not_have_are_named(program: Path, toolkit: Toolkit) -> None:
    (call,) = run(program, toolkit, "unsupported").unsupported.items()
    assert call[0] == "cudaGraphicsUnregisterResource" and call[1].endswith(f":{line_of('cudaGraphicsUnregisterResource')}")


def test_a_failure_behind_an_unsupported_call_is_not_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("")
    program.chmod(0o755)
    for status, code in ((1, 2), (0, 0)):
        report = Report(status=status, unsupported={"cuGetExportTable": "script.py:8"})
        monkeypatch.setattr("gemmgen.sanitizer.programs.running.run_program", lambda *_, report=report, **__: report)
        monkeypatch.setattr(
            "gemmgen.sanitizer.programs.building.make_toolkit", lambda *_: Toolkit(Nvcc("nvcc", "include", "13"), tmp_path, "80")
        )
        result = CliRunner().invoke(cli, ["run", str(program)])
        assert result.exit_code == code
        assert ("not run to its end" in result.stderr) == bool(code) and "not supported: cuGetExportTable (first at" in result.stderr


@needs_nvcc
def test_kernels_of_one_architecture_alone_are_compiled_for_it(tmp_path: Path) -> None:
    (tmp_path / "main.cu").write_text(
        '#include <cstdio>\n__global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); if (!threadIdx.x) printf("ran\\n"); }\n'
        "int main() { k<<<1, 128>>>(); return cudaDeviceSynchronize(); }\n"
    )
    result = CliRunner().invoke(cli, ["run", "--arch", "sm_90a", "--json", str(tmp_path / "main.cu")])
    assert result.exit_code == 0 and json.loads(result.stdout)["kernels"][0]["name"] == "k"


@needs_nvcc
def test_the_build_of_a_project_uses_the_wrapper(toolkit: Toolkit, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # The Makefile sets the toolkit itself, and links by the C compiler.
    (tmp_path / "Makefile").write_text(
        "CUDA_DIR = /usr/local/none\nmain: main.o\n\tgcc -o $@ $< -L$(CUDA_DIR)/lib64 -lcudart\n"
        "main.o: main.cu\n\t$(CUDA_DIR)/bin/nvcc -arch=sm_52 -gencode arch=compute_60,code=sm_60 -cudart static -c $<\n"
    )
    (tmp_path / "main.cu").write_text(
        "#include <cstdio>\n#include <cuda_profiler_api.h>\n#include <nvToolsExt.h>\n"
        '__global__ void k() { printf("built\\n"); }\nint main() {\n'
        '  int* x; cudaProfilerStart(); nvtxRangePush("all"); cudaMallocManaged(&x, 4); cudaMemPrefetchAsync(x, 4, cudaCpuDeviceId);\n'
        "  cudaMemAdvise(x, 4, cudaMemAdviseSetReadMostly, 0); nvtxRangePop(); cudaProfilerStop(); cudaFree(x);\n"
        "  struct cudaDeviceProp properties = {0}; cudaGetDeviceProperties(&properties, 0);\n"
        "  k<<<1, 1>>>(); return cudaThreadSynchronize() || !properties.clockRate || properties.major != 8;\n"
        "}\n"
    )
    subprocess.run(["make", "-C", str(tmp_path)], env=build_environment(toolkit, tmp_path / "t"), check=True, capture_output=True)
    report = run(tmp_path / "main", toolkit)
    assert report.status == 0 and "built" in capfd.readouterr().out and "k" in report.kernels


@needs_nvcc
def test_an_error_of_the_compiler_is_one_message(toolkit: Toolkit, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("int main() { return missing; }\n")
    with pytest.raises(CompileError, match=r'identifier "missing" is undefined'):
        build_program(toolkit, [source], tmp_path / "wrong", (), (), ())


@needs_nvcc
def test_the_command_reports_as_json_and_sarif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["run", "--json", "--counters", "--sarif", "run.sarif", str(SOURCE), "--", "race"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    counters = {kernel["name"]: kernel["counters"]["total"] for kernel in document["kernels"]}
    assert counters["reversed"]["shared_memory"]["store"]["requests"] == 2 and counters["increment"]["shared_memory"] == {}
    assert document["status"] == 0 and [finding["code"] for finding in document["findings"]] == ["shared-race"]
    (place,) = json.loads(Path("run.sarif").read_text())["runs"][0]["results"][0]["locations"]
    assert place["physicalLocation"]["region"]["startLine"] == line_of("tile[63 - threadIdx.x]")


def test_the_action_runs_each_program_and_fails_with_one(tmp_path: Path) -> None:
    action = yaml.safe_load((Path(__file__).parents[2] / ".github/actions/run/action.yml").read_text())
    (tmp_path / "gemmgen").write_text('#!/bin/sh\necho "$@"\ncase "$*" in *bad*) exit 1;; esac\n')
    (tmp_path / "gemmgen").chmod(0o755)
    inputs = {"PROGRAMS": "./good -- --n 3\n\nbad.cu\n", "BUILD": "make all", "ARGUMENTS": "--arch sm_90\n", "SARIF": str(tmp_path / "s")}
    environment = {**inputs, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = action["runs"]["steps"][-1]["run"]
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    common = f"run --annotations --sarif {tmp_path}/s/"
    lines = [line for line in done.stdout.splitlines() if line.startswith("run")]
    assert lines == [f"{common}1.sarif --build make all --arch sm_90 ./good -- --n 3", f"{common}2.sarif --arch sm_90 bad.cu"]


def test_a_file_that_is_no_program_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "text")])
    assert result.exit_code == 2


REGION = Region("array", 256, 256 + 4096, True)


@pytest.fixture
def order() -> Iterator[StreamOrder]:
    made = StreamOrder()
    made.create(1, False)
    made.create(2, True)
    yield made


def conflicts(order: StreamOrder, *steps: tuple[int, bool]) -> int:
    """Conflicts of writes (True) and reads of the same bytes, by stream."""
    return sum(len(list(order.touch_bytes(order.enqueue(stream, "work"), REGION, 0, 64, writes))) for stream, writes in steps)


def test_the_default_stream_waits_for_blocking_streams(order: StreamOrder) -> None:
    assert conflicts(order, (1, True), (0, True), (1, True)) == 0
    assert conflicts(order, (2, True)) == 1


def test_two_reads_need_no_order_and_events_give_one(order: StreamOrder) -> None:
    assert conflicts(order, (1, False), (2, False)) == 0
    order.record(7, 1)
    order.wait(stream=2, event=7)
    order.synchronize(2)
    assert conflicts(order, (2, True)) == 0


def test_the_host_orders_what_it_has_waited_for(order: StreamOrder) -> None:
    assert conflicts(order, (2, True)) == 0
    order.synchronize(2)
    assert conflicts(order, (1, True)) == 0


@pytest.mark.parametrize(("stop", "meets"), [(4100, True), (4099, False)])
def test_kernels_and_copies_may_share_a_unit(order: StreamOrder, stop: int, meets: bool) -> None:
    """A flag of a large region stands for four bytes, of which a copy may have moved one and a kernel another one."""
    region = Region("large", 0, 8 << 20, True)
    touched = Touched.nothing_of(region)
    touched.read[1024:1030] = True
    assert not list(order.touch(order.enqueue(1, "kernel"), touched))
    assert bool(list(order.touch_bytes(order.enqueue(2, "copy"), region, 3840, stop - 3840, True))) == meets


def test_other_bytes_do_not_meet(order: StreamOrder) -> None:
    for first, size in ((0, 3), (3, 8), (11, 1), (12, 52)):
        assert not list(order.touch_bytes(order.enqueue(1 + first % 2, "work"), REGION, first, size, True))
    assert len(list(order.touch_bytes(order.enqueue(1, "work"), REGION, 10, 1, True))) == 1


def test_neighbours_in_a_large_region_do_not_meet(order: StreamOrder) -> None:
    large = replace(REGION, stop=REGION.start + (80 << 20))
    assert not list(order.touch_bytes(order.enqueue(1, "work"), large, 0, 8388609, True))
    assert not list(order.touch_bytes(order.enqueue(2, "work"), large, 8388609, 8388609, True))
    assert len(list(order.touch_bytes(order.enqueue(3, "work"), large, 8388608, 1, True))) == 1


def touched(kind: str, *elements: int) -> Touched:
    made = Touched.nothing_of(REGION)
    getattr(made, kind)[list(elements)] = True
    return made


@pytest.mark.parametrize(
    "first, second, met",
    [
        (("written", 8, 9, 30), ("written", 10, 29, 31), 0),
        (("written", 8, 9, 30), ("written", 30), 1),
        (("atomic", 5), ("atomic", 5), 0),
        (("atomic", 5), ("written", 5), 1),
        (("read", 5), ("atomic", 4, 6), 0),
        (("read", 5), ("read", 5), 0),
    ],
)
def test_launches_in_two_streams_meet_in_bytes(order: StreamOrder, first: tuple[str, int], second: tuple[str, int], met: int) -> None:
    found = [
        conflict
        for stream, (kind, *elements) in ((1, first), (2, second))
        for conflict in order.touch(order.enqueue(stream, "work"), touched(kind, *map(int, elements)))
    ]
    assert len(found) == met


def test_messages_are_checked() -> None:
    with pytest.raises(BadMessage):
        limit_of(99)
    for data in (b"\x05\0\0\0", b"\xff\xff\xff\xff"):
        with pytest.raises(BadMessage):
            Body(data).text()
        with pytest.raises(BadMessage):
            Body(data).frames()
    with pytest.raises(BadMessage):
        Body(b"12345").end()


def test_local_names_of_linked_modules_stay_apart() -> None:
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    first = (
        head
        + ".global .align 1 .b8 $str[2] = {65, 0};\n.visible .global .align 4 .u32 both = 5;\n.func helper()\n{\nmov.u64 %rd1, $str;\n}\n"
    )
    second = head + ".extern .global .align 4 .u32 both;\n.global .align 1 .b8 $str[2] = {66, 0};\n.func helper()\n{\nret;\n}\n"
    text = linked([first, second])
    assert "$str$m0[2] = {65" in text and "$str$m1[2] = {66" in text and "mov.u64 %rd1, $str$m0;" in text
    assert text.count("helper$m0") == text.count("helper$m1") == 1 and "both$m" not in text
    module = parse(text)
    assert not module.variables["both"].external and len(module.functions) == 2


@pytest.mark.parametrize("data", [b"", b"\x50\xed\x55\xba" + bytes(12), b"\x50\xed\x55\xba\x01\x00\x10\x00" + b"\xff" * 200])
def test_broken_fat_binaries_are_refused(data: bytes) -> None:
    from gemmgen.emulator import BadLaunch

    with pytest.raises(BadLaunch):
        ptx_of(data, 80)
