"""The GPU backend: against a fake driver everywhere, and against the real one where there is a GPU."""

import ctypes
import dataclasses
import os
import signal
import threading
import types
from multiprocessing import Pipe

import numpy as np
import pytest
from fake_driver import array_at, fake_driver, real
from sample_kernels import (
    AXPBY,
    AXPBY_SOURCE,
    SCRIBBLE_SOURCE,
    SUM,
    SUM_SOURCE,
    compile_sample,
    formulas,
    needs_gpu,
    scribble,
)
from waiting import PATIENCE

from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.kernels.launch import KernelLaunch, ResolvedLaunch
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.cuda import GpuBackend, gpu, gpu_available, list_gpus, why_no_gpu
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.runtime.cuda.launcher import Launcher
from gemmgen.runtime.cuda.worker import GUARD_BYTES, BufferRequest, RunRequest, serve

__all__ = ["fake_driver"]


# -- without a GPU ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(gpu_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_request_for_one_says_what_to_do():
    assert list_gpus() == ()
    assert why_no_gpu()
    with pytest.raises(EnvironmentMissing, match="emulator"):
        GpuBackend()


class Served:
    """A worker on the fake driver, in a thread."""

    def __init__(self):
        self.connection, theirs = Pipe()
        self.thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self.thread.start()
        assert self.reply() == ("ready", "")

    @staticmethod
    def _serve(connection):
        try:
            serve(connection, 0)
        except EOFError:
            connection.close()

    def reply(self):
        assert self.connection.poll(PATIENCE)
        return self.connection.recv()

    def run(self, request, *storages):
        self.connection.send(request)
        for storage in storages:
            self.connection.send_bytes(storage.view(np.uint8))
        replies = [self.reply()]
        while replies[-1][0] == "launching":
            replies.append(self.reply())
        if replies[-1][0] == "done":
            for storage in storages:
                self.connection.recv_bytes_into(storage.view(np.uint8))
        return replies

    def end(self):
        self.connection.close()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def request(entry, size, offset=0, workspace=0, zero=0, **launch):
    resolved = {"grid": (1, 1, 1), "block": (1, 1, 1), "cluster": (1, 1, 1), "shared_bytes": 0, **launch}
    parameters = (("n", "s32"), ("out", "pointer"), ("absent", "pointer"), ("alpha", "f32"), ("w", "pointer"))
    return RunRequest(
        title="sample",
        cubin=b"cubin",
        architecture="sm_80",
        launches=(ResolvedLaunch(entry, parameters=parameters, **resolved),),
        dimensions={"n": size},
        scalars={"alpha": 1.5},
        buffers=(BufferRequest("out", 4 * size, offset),),
        workspaces=("w",),
        workspace_bytes=workspace,
        workspace_zero_bytes=zero,
    )


def test_the_worker_runs_kernels_and_brings_the_arrays_back(fake_driver):
    def doubled(launch, values):
        n, out, absent, alpha, workspace = values
        assert (out % 256, absent, alpha) == (12, 0, 1.5)
        assert np.isnan(array_at(workspace, 8)).all()
        array_at(out, n)[:] *= 2

    fake_driver.kernels["doubled"] = doubled
    served = Served()
    values = np.arange(10, dtype=np.float32)
    assert served.run(request("doubled", 10, offset=12, workspace=32), values) == [
        ("launching", "doubled"),
        ("done", ""),
    ]
    assert (values == 2 * np.arange(10)).all()
    served.end()


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (-1, "4 bytes before out, the first 4 bytes before its start"),
        (-GUARD_BYTES // 4, f"4 bytes before out, the first {GUARD_BYTES} bytes before its start"),
        (10, "4 bytes after out, the first 0 bytes past its end"),
        (12, "4 bytes after out, the first 8 bytes past its end"),
    ],
)
@pytest.mark.parametrize("offset", [0, 4, 252])
def test_a_write_beside_an_array_is_reported_with_its_distance(fake_driver, at, message, offset):
    def stray(launch, values):
        array_at(values[1] + 4 * at, 1)[0] = 1.0

    fake_driver.kernels["stray"] = stray
    served = Served()
    replies = served.run(request("stray", 10, offset=offset), np.zeros(10, np.float32))
    assert replies[-1] == ("error", f"sample wrote outside its arrays: {message}")
    served.end()


@pytest.mark.parametrize(("left", "reply"), [(0.0, "done"), (1.0, "error")])
def test_start_of_workspace_is_zero_before_run(fake_driver, left, reply):
    def ticket(launch, values):
        found = array_at(values[4], 4)
        assert (found[:2] == 0).all() and np.isnan(found[2:]).all()
        found[1] = left

    fake_driver.kernels["ticket"] = ticket
    served = Served()
    replies = served.run(request("ticket", 10, workspace=16, zero=8), np.zeros(10, np.float32))
    assert replies[-1][0] == reply
    assert not left or "does not leave its workspace as it found it: byte 6 is not zero" in replies[-1][1]
    served.end()


def test_a_write_beside_the_workspace_is_reported(fake_driver):
    def stray(launch, values):
        array_at(values[4] + 6, 1, ctypes.c_ubyte)[0] = 1

    fake_driver.kernels["stray"] = stray
    served = Served()
    replies = served.run(request("stray", 10, workspace=6), np.zeros(10, np.float32))
    assert replies[-1] == ("error", "sample wrote outside its arrays: 1 bytes after w, the first 0 bytes past its end")
    served.end()


def test_a_fault_names_the_kernel_and_ends_the_worker(fake_driver):
    fake_driver.kernels["wild"] = lambda launch, values: real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    served = Served()
    kind, text = served.run(request("wild", 10), np.zeros(10, np.float32))[-1]
    assert kind == "broken"
    assert text.startswith("CUDA_ERROR_ILLEGAL_ADDRESS") and "in kernel wild (grid (1, 1, 1)" in text
    served.thread.join(PATIENCE)
    assert not served.thread.is_alive()


def test_an_error_without_a_fault_leaves_the_worker_alive(fake_driver):
    fake_driver.kernels["fine"] = lambda launch, values: None
    served = Served()
    kind, text = served.run(request("missing", 10), np.zeros(10, np.float32))[-1]
    assert (kind, "no kernel missing" in text) == ("error", True)
    kind, text = served.run(request("fine", 10, shared_bytes=200_000), np.zeros(10, np.float32))[-1]
    assert (kind, "200000 bytes of dynamic shared memory" in text) == ("error", True)
    assert served.run(request("fine", 10, shared_bytes=60_000), np.zeros(10, np.float32))[-1] == ("done", "")
    assert ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", "fine", 60_000) in fake_driver.calls
    served.end()


FAKE_WORKER = """
import os, time
import fake_driver
from gemmgen.runtime.cuda import worker

def doubled(launch, values):
    fake_driver.array_at(values[1], values[0])[:] *= 2

def fault(launch, values):
    return fake_driver.real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS

kernels = {
    "doubled": doubled, "fault": fault, "endless": lambda *_: time.sleep(600), "crash": lambda *_: os._exit(7),
    "stray": lambda _, values: fake_driver.array_at(values[1] - 4, 1).fill(1),
}
fake_driver.install(fake_driver.FakeDriver(kernels))
worker.main()
"""


@pytest.fixture
def fake_backend(fake_driver, monkeypatch):
    """The backend with a real worker process, in which the driver is a fake one."""
    monkeypatch.setattr("gemmgen.runtime.cuda.backend.WORKER", FAKE_WORKER)
    made = GpuBackend(time_limit=PATIENCE)
    yield made
    made.close()


def run_fake(backend, entry, values):
    sequence = dataclasses.replace(
        scribble("doubled", ("n", "out")), launches=(KernelLaunch(entry, formulas(1, 1, 1), (1, 1, 1), ("n", "out")),)
    )
    binary = types.SimpleNamespace(cubin=b"cubin", architecture="sm_80")
    backend.run(binary, sequence, {"n": len(values), "at": 0}, {}, {"out": HostBuffer(values)})
    return values


def test_one_process_serves_all_runs(fake_backend):
    for size in (0, 1, 1000, 300_000):
        values = np.arange(size, dtype=np.float32)
        assert (run_fake(fake_backend, "doubled", values) == 2 * np.arange(size, dtype=np.float32)).all()
    pid = fake_backend._worker._process.pid
    with pytest.raises(LaunchError, match="4 bytes before out"):
        run_fake(fake_backend, "stray", np.zeros(4, np.float32))
    run_fake(fake_backend, "doubled", np.zeros(4, np.float32))
    assert fake_backend._worker._process.pid == pid


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("fault", r"CUDA_ERROR_ILLEGAL_ADDRESS.*in kernel fault"),
        ("endless", "did not (run kernel endless|receive the arrays of .*) within 0.5 s"),
        ("crash", r"ended \(exit status 7\) when it had to run kernel crash"),
    ],
)
def test_kernel_that_takes_its_process_down_is_named(fake_backend, entry, message):
    values = np.ones(8, np.float32)
    if entry == "endless":
        run_fake(fake_backend, "doubled", np.ones(8, np.float32))  # so that it has started
        fake_backend._time_limit = 0.5
    with pytest.raises(LaunchError, match=message):
        run_fake(fake_backend, entry, values)
    fake_backend._time_limit = PATIENCE
    assert (values == 1).all()
    assert (run_fake(fake_backend, "doubled", values) == 2).all()


def test_closing_ends_the_process(fake_backend):
    run_fake(fake_backend, "doubled", np.ones(8, np.float32))
    process = fake_backend._worker._process
    fake_backend.close()
    assert process.poll() == 0


@pytest.mark.skipif(gpu_available(), reason="this machine has a GPU")
def test_a_worker_that_cannot_start_says_why(fake_driver):
    backend = GpuBackend()  # the fake driver is in this process, not in the worker's
    with pytest.raises(EnvironmentMissing, match=r"the GPU cannot be used.*driver"):
        run_fake(backend, "doubled", np.ones(8, np.float32))


def test_clusters_are_passed_as_a_launch_attribute(fake_driver):
    fake_driver.kernels["fine"] = lambda launch, values: None
    launch = ResolvedLaunch("fine", (4, 2, 1), (32, 1, 1), (2, 1, 1), 0, (("n", "s32"),))
    Launcher(LoadedBinary(b"cubin", "sm_80", 0), [launch], {"n": 3}).launch(5)
    assert fake_driver.launches == [("fine", (4, 2, 1), (32, 1, 1), 0, 5)]
    assert ("cluster", 2, 1, 1) in fake_driver.calls


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1)])
def test_an_early_start_is_passed_as_a_launch_attribute(fake_driver, cluster):
    fake_driver.kernels["fine"] = lambda launch, values: None
    launch = ResolvedLaunch("fine", (4, 2, 1), (32, 1, 1), cluster, 0, (("n", "s32"),), programmatic=True)
    Launcher(LoadedBinary(b"cubin", "sm_80", 0), [launch], {"n": 3}).launch(5)
    assert fake_driver.launches == [("fine", (4, 2, 1), (32, 1, 1), 0, 5)]
    assert ("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION", 1) in fake_driver.calls
    assert (("cluster", 2, 1, 1) in fake_driver.calls) == (cluster != (1, 1, 1))


def test_a_binary_for_another_architecture_is_refused_by_name(fake_driver):
    with pytest.raises(LaunchError, match=r"compiled for sm_90.*Fake GPU.*compile it for sm_80"):
        LoadedBinary(b"cubin", "sm_90", 0)


def test_a_device_that_does_not_exist_is_refused_with_the_count(fake_driver):
    assert gpu(0).name == "Fake GPU"
    assert str(gpu(0)) == "Fake GPU (sm_80), driver for CUDA 13.0"
    with pytest.raises(EnvironmentMissing, match="no CUDA device 3; this machine has 1"):
        GpuBackend(3)


@pytest.fixture
def scaling(fake_driver):
    """A launcher of a kernel that takes a dimension, scalars and arrays."""
    fake_driver.kernels["scale"] = lambda launch, values: None
    parameters = (("n", "s32"), ("alpha", "f32"), ("A", "pointer"), ("bias", "pointer"), ("count", "s64"))
    launch = ResolvedLaunch("scale", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, parameters)
    return Launcher(LoadedBinary(b"cubin", "sm_80", 0), [launch], {"n": 3})


def test_arguments_get_their_types(scaling):
    values = scaling.values({"A": 4096}, {"alpha": 1, "count": 4.0})
    assert values == (1.0, 4096, 0, 4)
    assert [type(value) for value in values] == [float, int, int, int]


def test_a_scalar_without_a_value_is_an_error(scaling):
    with pytest.raises(LaunchError, match="alpha has no value"):
        scaling.values({}, {"count": 1})


def test_clusters_of_more_than_eight_blocks_are_asked_for(fake_driver):
    fake_driver.kernels["fine"] = lambda launch, values: None
    launch = ResolvedLaunch("fine", (16, 1, 1), (32, 1, 1), (16, 1, 1), 0, ())
    Launcher(LoadedBinary(b"cubin", "sm_80", 0), [launch], {}).launch(0)
    assert ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", "fine", 1) in fake_driver.calls


# -- on a GPU --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend():
    made = GpuBackend(time_limit=30)
    yield made
    made.close()


def run_scribble(backend, sequence, size=100, at=0, offset=0):
    out, bits = HostBuffer(np.zeros(size, np.float32), offset), HostBuffer(np.zeros(1, np.int32))
    binary = compile_sample(SCRIBBLE_SOURCE)
    backend.run(binary, sequence, {"n": size, "at": at}, {}, {"out": out, "bits": bits})
    return out.storage, int(bits.storage[0])


@needs_gpu
def test_gpu_result_is_right(backend):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(7 * 50).astype(np.float32) for _ in range(2))
    buffers = {"X": HostBuffer(x.copy(), 4), "Y": HostBuffer(y.copy(), 8)}
    dimensions = {"m": 7, "n": 45, "ldx": 50, "ldy": 50}
    backend.run(compile_sample(AXPBY_SOURCE), AXPBY, dimensions, {"alpha": 2.0, "beta": 1.0}, buffers)
    expected = y.reshape(7, 50).copy()
    expected[:, :45] += 2 * x.reshape(7, 50)[:, :45]
    assert np.allclose(buffers["Y"].storage.reshape(7, 50), expected, rtol=1e-6, atol=1e-6)
    assert (buffers["Y"].storage.reshape(7, 50)[:, 45:] == y.reshape(7, 50)[:, 45:]).all()
    assert (buffers["X"].storage == x).all()
    assert gpu().name in backend.description


@needs_gpu
def test_gpu_runs_a_sequence_through_its_workspace(backend):
    x = np.arange(100 * 7, dtype=np.float32)
    buffers = {"X": HostBuffer(x), "result": HostBuffer(np.full(1, np.nan, np.float32), initialised=False)}
    backend.run(compile_sample(SUM_SOURCE), SUM, {"m": 100, "n": 7}, {}, buffers)
    assert buffers["result"].storage[0] == x.sum()


@needs_gpu
def test_gpu_skips_an_empty_grid(backend):
    buffers = {"X": HostBuffer(np.zeros(0, np.float32)), "Y": HostBuffer(np.zeros(0, np.float32))}
    backend.run(compile_sample(AXPBY_SOURCE), AXPBY, {"m": 0, "n": 5, "ldx": 5, "ldy": 5}, {}, buffers)
    assert buffers["Y"].storage.size == 0


@needs_gpu
@pytest.mark.parametrize("offset", [0, 4, 16, 252])
def test_gpu_honours_offsets(backend, offset):
    assert run_scribble(backend, scribble("low_address_bits", ("out", "bits")), offset=offset)[1] == offset


@needs_gpu
@pytest.mark.parametrize(("at", "where"), [(-1, "4 bytes before out"), (100, "4 bytes after out"), (130, "the first 120 bytes")])
def test_gpu_guard_bands_catch_stray_writes(backend, at, where):
    with pytest.raises(LaunchError, match=where):
        run_scribble(backend, scribble("scribble", ("n", "at", "out")), at=at)
    out, _ = run_scribble(backend, scribble("scribble", ("n", "at", "out")))
    assert (out == np.arange(100)).all()


@needs_gpu
def test_gpu_fault_is_reported_and_the_next_run_works(backend):
    with pytest.raises(LaunchError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*in kernel wild"):
        run_scribble(backend, scribble("wild", ("out",)))
    out, _ = run_scribble(backend, scribble("scribble", ("n", "at", "out")))
    assert (out == np.arange(100)).all()


@needs_gpu
def test_gpu_kernel_that_does_not_end_is_ended():
    impatient = GpuBackend(time_limit=5)
    try:
        run_scribble(impatient, scribble("scribble", ("n", "at", "out")))
        with pytest.raises(LaunchError, match="did not run kernel endless within 5 s"):
            run_scribble(impatient, scribble("endless", ("out",)))
        assert run_scribble(impatient, scribble("scribble", ("n", "at", "out")))[0][99] == 99
    finally:
        impatient.close()


@needs_gpu
def test_gpu_worker_that_is_killed_is_replaced(backend):
    run_scribble(backend, scribble("scribble", ("n", "at", "out")))
    os.kill(backend._worker._process.pid, signal.SIGKILL)
    with pytest.raises(LaunchError, match="GPU worker ended"):
        run_scribble(backend, scribble("scribble", ("n", "at", "out")))
    assert run_scribble(backend, scribble("scribble", ("n", "at", "out")))[0][99] == 99


@needs_gpu
@pytest.mark.parametrize("size", [1000, 16 * 1024, 24 * 1024])
def test_gpu_gives_dynamic_shared_memory_beyond_48_kb(backend, size):
    sequence = scribble("reverse_in_shared", ("n", "out"), shared="4 * n", block=256)
    out = HostBuffer(np.arange(size, dtype=np.float32))
    backend.run(compile_sample(SCRIBBLE_SOURCE), sequence, {"n": size, "at": 0}, {}, {"out": out})
    assert (out.storage == np.arange(size)[::-1]).all()


@needs_gpu
def test_gpu_refuses_more_shared_memory_than_there_is(backend):
    sequence = scribble("reverse_in_shared", ("n", "out"), shared="4 * n", block=256)
    with pytest.raises(LaunchError, match="400000 bytes of dynamic shared memory"):
        out = HostBuffer(np.zeros(100_000, np.float32))
        backend.run(compile_sample(SCRIBBLE_SOURCE), sequence, {"n": 100_000, "at": 0}, {}, {"out": out})


@needs_gpu
def test_gpu_refuses_a_cubin_of_another_architecture(backend):
    other = "sm_120" if gpu().compute_capability[0] != 12 else "sm_80"
    binary = compile_sample(SCRIBBLE_SOURCE, other)
    with pytest.raises(LaunchError, match=f"compiled for {other}"):
        backend.run(binary, scribble("scribble", ("n", "at", "out")), {"n": 1, "at": 0}, {}, {})


@needs_gpu
def test_gpu_launches_clusters(backend):
    if gpu().compute_capability < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    launch = dataclasses.replace(AXPBY.launches[0], cluster=(2, 1, 1), grid=formulas(2, 1, 1))
    buffers = {"X": HostBuffer(np.ones(8 * 64, np.float32)), "Y": HostBuffer(np.zeros(8 * 64, np.float32))}
    sequence = dataclasses.replace(AXPBY, launches=(launch,))
    backend.run(compile_sample(AXPBY_SOURCE), sequence, {"m": 8, "n": 64, "ldx": 64, "ldy": 64}, {}, buffers)
    assert (buffers["Y"].storage == 1).all()
