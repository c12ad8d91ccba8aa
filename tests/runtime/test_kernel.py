"""A kernel called on arrays: on the emulator, on a fake driver, and on a GPU where there is one."""

import dataclasses
import os
import subprocess
import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest
from fake_driver import array_at, fake_driver
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_kernels import AXPBY, AXPBY_SOURCE, SUM, SUM_SOURCE, compile_sample, formulas, needs_gpu
from waiting import PATIENCE

from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.runtime.cuda import gpu_available
from gemmgen.runtime.kernel import Kernel, stream_handle

__all__ = ["fake_driver"]


@pytest.fixture(scope="module")
def axpby():
    return Kernel(AXPBY, compile_sample(AXPBY_SOURCE))


# -- on the emulator -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    size=st.tuples(st.integers(0, 9), st.integers(0, 40)),
    pads=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    start=st.integers(0, 3),
    beta=st.sampled_from([0, 1.0, -2.0]),
)
def test_numpy_arrays_are_changed_in_place_where_they_should(axpby, size, pads, start, beta):
    m, n = size
    rng = np.random.default_rng(m * 41 + n)
    x_memory, y_memory = (rng.integers(-9, 9, m * (n + pad) + 4).astype(np.float32) for pad in pads)
    x, y = (
        memory[start : start + m * (n + pad)].reshape(m, n + pad)[:, :n] for memory, pad in zip((x_memory, y_memory), pads, strict=True)
    )
    expected_memory = y_memory.copy()
    expected = expected_memory[start : start + m * (n + pads[1])].reshape(m, n + pads[1])[:, :n]
    expected[...] = 3 * x + np.float32(beta) * expected
    x_before = x_memory.copy()
    axpby(X=x, Y=y, alpha=3, beta=beta)
    assert (y_memory == expected_memory).all()
    assert (x_memory == x_before).all()


def test_halves_of_the_same_rows_work(axpby):
    base = np.arange(40, dtype=np.float32).reshape(4, 10).copy()
    left = base[:, :5].copy()
    axpby(X=base[:, :5], Y=base[:, 5:])
    assert (base[:, 5:] == left).all()
    assert (base[:, :5] == left).all()


def test_a_read_only_input_is_fine(axpby):
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    x.flags.writeable = False
    axpby(X=x, Y=y)
    assert (y == 1).all()


def test_workspaces_are_no_arguments():
    total = Kernel(SUM, compile_sample(SUM_SOURCE))
    result = np.zeros(1, np.float32)
    total(X=np.ones((40, 5), np.float32), result=result)
    assert result[0] == 200
    assert "sums" not in total.signature


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": None}, "the array X (the array X) is missing"),
        ({"Z": np.zeros(3)}, "no argument 'Z'"),
        ({"X": np.zeros((2, 4), np.float32)}, "n is 4 by X's columns and 3 by Y's columns"),
        ({"X": np.zeros((2, 3))}, "X has elements f64, need f32"),
        ({"X": np.zeros(3, np.float32)}, "X has 1 dimensions, need 2 (m, n)"),
        ({"X": np.zeros((3, 2), np.float32).T}, "X's column stride is 2, need 1"),
        ({"alpha": "a"}, "alpha must be a real number"),
        ({"X": [[1.0]]}, "X must be an array"),
        ({"X": np.zeros(8, np.uint8)[1:5].view(np.float32).reshape(1, 1)}, "it starts 1 bytes past one"),
        ({"ldx": 2.5}, "ldx must be an integer"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_words(axpby, changes, message):
    with pytest.raises(LaunchError) as caught:
        axpby(**({"X": np.zeros((2, 3), np.float32), "Y": np.zeros((2, 3), np.float32)} | changes))
    assert message in str(caught.value)
    assert str(caught.value).startswith("axpby_sample cannot be launched:")


def test_all_that_is_wrong_with_a_call_comes_in_one_message(axpby):
    base = np.zeros((6, 6), np.float32)
    with pytest.raises(LaunchError) as caught:
        axpby(X=base, Y=base[:, 1:], alpha="a", gamma=1)
    assert str(caught.value).count("\n  - ") == 4
    with pytest.raises(LaunchError) as caught:
        axpby(X=base, Y=base[:, 1:])
    assert str(caught.value).count("\n  - ") == 2


def test_the_signature_names_everything_a_call_needs(axpby):
    assert axpby.signature.splitlines()[0] == "axpby_sample(X, Y, alpha = 1.0, beta = 0.0, stream=None)"
    for part in ("X: f32[m, n], strides (ldx, 1) in elements, input", "needs ldx >= n: the rows of X must not overlap"):
        assert part in axpby.signature


# -- on a fake driver ------------------------------------------------------------------------------------------


class OnGpu:
    """A CuPy-like array in the fake driver's memory."""

    def __init__(self, fake, shape, stream=1, offset=0, ordinal=0):
        size = 4 * int(np.prod(shape)) + offset
        pointer = int(fake.cuMemAlloc(size)[1]) + offset
        self.values = array_at(pointer, shape)
        self.ordinal = ordinal
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "strides": None,
            "typestr": "<f4",
            "data": (pointer, False),
            "stream": stream,
        }

    def __dlpack_device__(self):
        return 2, self.ordinal


FAKE_BINARY = types.SimpleNamespace(cubin=b"cubin", architecture="sm_80")


@pytest.fixture
def on_fake(fake_driver):
    def axpby(launch, values):
        m, n, alpha, x, ldx, beta, y, ldy = values
        assert (ldx, ldy) == (n, n)
        array_at(y, (m, n))[:] = alpha * array_at(x, (m, n)) + beta * array_at(y, (m, n))

    fake_driver.kernels["axpby"] = axpby
    yield Kernel(AXPBY, FAKE_BINARY)
    fake_driver.memory.clear()


def test_gpu_arrays_are_launched_on_the_stream_that_they_name(fake_driver, on_fake):
    x, y = OnGpu(fake_driver, (5, 40), stream=9), OnGpu(fake_driver, (5, 40), stream=9)
    x.values[:] = 2
    on_fake(X=x, Y=y, alpha=4)
    assert (y.values == 8).all()
    assert fake_driver.launches == [("axpby", (2, 1, 1), (32, 8, 1), 0, 9)]
    assert not fake_driver.calls


def test_a_stream_that_is_passed_waits_for_the_arrays_own(fake_driver, on_fake):
    x, y = OnGpu(fake_driver, (5, 4), stream=9), OnGpu(fake_driver, (5, 4), stream=9)
    on_fake(X=x, Y=y, stream=12)
    assert fake_driver.launches[0][-1] == 12
    assert fake_driver.calls == [("wait", 12, 9)]


def test_arrays_that_name_no_stream_use_the_legacy_default(fake_driver, on_fake):
    on_fake(X=OnGpu(fake_driver, (5, 4), stream=None), Y=OnGpu(fake_driver, (5, 4), stream=None))
    assert fake_driver.launches[0][-1] == 1


def test_what_layout_implies_is_found_once(fake_driver, on_fake, monkeypatch):
    counted = []
    module = sys.modules["gemmgen.runtime.kernel"]
    monkeypatch.setattr(module, "_Problem", lambda *a, real=module._Problem: counted.append(1) or real(*a))
    for _ in range(3):
        on_fake(X=OnGpu(fake_driver, (5, 4)), Y=OnGpu(fake_driver, (5, 4)))
    assert counted == [1]
    with pytest.raises(LaunchError, match="Y must start at a multiple of 4 bytes, it starts 2 bytes past one"):
        on_fake(X=OnGpu(fake_driver, (5, 4)), Y=OnGpu(fake_driver, (5, 4), offset=2))
    x = OnGpu(fake_driver, (5, 4))
    with pytest.raises(LaunchError, match="Y is written, but overlaps X"):
        on_fake(X=x, Y=x)
    on_fake(X=OnGpu(fake_driver, (6, 4)), Y=OnGpu(fake_driver, (6, 4)))
    assert counted == [1, 1]
    assert len(fake_driver.launches) == 4


def test_arrays_on_different_devices_are_refused(fake_driver, on_fake):
    with pytest.raises(LaunchError, match="X on cuda:0, Y on cuda:1"):
        on_fake(X=OnGpu(fake_driver, (5, 4)), Y=OnGpu(fake_driver, (5, 4), ordinal=1))
    with pytest.raises(LaunchError, match="X on cpu, Y on cuda:0"):
        on_fake(X=np.zeros((5, 4), np.float32), Y=OnGpu(fake_driver, (5, 4)))


def test_a_device_of_another_architecture_is_refused(fake_driver, on_fake):
    other = Kernel(AXPBY, types.SimpleNamespace(cubin=b"cubin", architecture="sm_90"))
    with pytest.raises(LaunchError, match=r"compiled for sm_90.*compile it for sm_80"):
        other(X=OnGpu(fake_driver, (5, 4)), Y=OnGpu(fake_driver, (5, 4)))


def test_an_empty_problem_launches_nothing(fake_driver, on_fake):
    on_fake(X=OnGpu(fake_driver, (0, 4)), Y=OnGpu(fake_driver, (0, 4)))
    assert fake_driver.launches == []


def test_a_grid_that_no_gpu_has_is_refused(fake_driver):
    launch = dataclasses.replace(AXPBY.launches[0], grid=formulas(1, "m * 70000", 1))
    kernel = Kernel(dataclasses.replace(AXPBY, launches=(launch,)), FAKE_BINARY)
    with pytest.raises(LaunchError, match=r"grid of \(1, 350000, 1\) blocks"):
        kernel(X=OnGpu(fake_driver, (5, 4)), Y=OnGpu(fake_driver, (5, 4)))
    fake_driver.memory.clear()


@pytest.fixture
def summing(fake_driver):
    """A sequence with a workspace, and the addresses that its launches found it at."""
    found = []

    def row_sums(launch, values):
        found.append(values[3])
        array_at(values[3], values[0])[:] = array_at(values[2], values[:2]).sum(axis=1)

    def total(launch, values):
        assert values[1] == found[-1]
        array_at(values[2], 1)[0] = array_at(values[1], values[0]).sum()

    fake_driver.kernels.update(row_sums=row_sums, total=total)
    yield Kernel(SUM, FAKE_BINARY), found
    fake_driver.memory.clear()


def sum_of_ones(fake, kernel, rows, stream):
    x, result = OnGpu(fake, (rows, 3), stream=stream), OnGpu(fake, (1,), stream=stream)
    x.values[:] = 1
    kernel(X=x, result=result)
    return result


def allocations(fake):
    return [call for call in fake.calls if call[0] == "cuMemAllocAsync"]


def test_the_workspace_of_a_stream_is_kept_for_its_next_launch(fake_driver, summing):
    kernel, found = summing
    assert [sum_of_ones(fake_driver, kernel, rows, 7).values[0] for rows in (40, 40, 10)] == [120, 120, 30]
    assert len(set(found)) == 1
    assert allocations(fake_driver) == [("cuMemAllocAsync", 65536, 7)]


def test_workspace_too_small_makes_room_for_larger_one(fake_driver, summing):
    kernel, _ = summing
    before = None
    for rows in (40, 40_000):
        assert sum_of_ones(fake_driver, kernel, rows, 7).values[0] == 3 * rows
        before = before or set(fake_driver.memory)
    assert [size for _, size, _ in allocations(fake_driver)] == [65536, 196608]
    assert len(before - set(fake_driver.memory)) == 1


def test_two_streams_never_share_a_workspace(fake_driver, summing):
    kernel, found = summing
    for stream in (7, 8, 7):
        sum_of_ones(fake_driver, kernel, 40, stream)
    assert found[0] == found[2] != found[1]


def test_what_a_graph_captures_has_a_workspace_of_its_own(fake_driver, summing):
    kernel, found = summing
    sum_of_ones(fake_driver, kernel, 40, 7)
    fake_driver.cuStreamBeginCapture(7, None)
    sum_of_ones(fake_driver, kernel, 40, 7)
    captured = fake_driver.capturing.pop(7)
    assert len(captured) == 2
    assert captured[0][1][3] == captured[1][1][1] != found[0]
    assert ("cuMemAllocAsync", 160, 7) in fake_driver.calls


def test_part_of_workspace_that_must_be_zero_is_zeroed_on_stream(fake_driver):
    seen = []
    fake_driver.kernels.update(
        row_sums=lambda launch, values: seen.append(array_at(values[3], 2).tolist()), total=lambda launch, values: None
    )
    x, result = OnGpu(fake_driver, (40, 3), stream=7), OnGpu(fake_driver, (1,), stream=7)
    sequence = dataclasses.replace(SUM, workspace_zero_bytes=Formula("8"))
    kernel = Kernel(sequence, FAKE_BINARY)
    kernel(X=x, result=result)
    assert ("cuMemsetD8Async", 8, 7) in fake_driver.calls
    assert seen == [[0.0, 0.0]]
    kernel(X=x, result=result)
    assert fake_driver.calls.count(("cuMemsetD8Async", 8, 7)) == 1, "the kernels leave it zero"
    fake_driver.memory.clear()


def test_what_another_kernel_wrote_to_workspace_is_zeroed_again(fake_driver, summing):
    kernel, _ = summing
    zeroing = Kernel(dataclasses.replace(SUM, workspace_zero_bytes=Formula("8")), FAKE_BINARY)
    for one in (zeroing, kernel, zeroing, zeroing):
        sum_of_ones(fake_driver, one, 40, 7)
    assert fake_driver.calls.count(("cuMemsetD8Async", 8, 7)) == 2


def test_captured_sequences_have_zeros_of_their_own(fake_driver, summing):
    _, found = summing
    kernel = Kernel(dataclasses.replace(SUM, workspace_zero_bytes=Formula("8")), FAKE_BINARY)
    sum_of_ones(fake_driver, kernel, 40, 7)
    zeroed = fake_driver.calls.count(("cuMemsetD8Async", 8, 7))
    fake_driver.cuStreamBeginCapture(7, None)
    for _ in range(2):
        sum_of_ones(fake_driver, kernel, 40, 7)
    places = [launch[1][3] for launch in fake_driver.capturing.pop(7)[::2]]
    assert len({*places, found[0]}) == 3
    assert all(array_at(place, 40).tolist() == [0.0] * 40 for place in places)
    assert fake_driver.calls.count(("cuMemsetD8Async", 8, 7)) == zeroed, "graphs set nothing to zero"
    modes = [entry[1].name for entry in fake_driver.calls if entry[0] == "cuThreadExchangeStreamCaptureMode"]
    assert modes == ["CU_STREAM_CAPTURE_MODE_RELAXED", "CU_STREAM_CAPTURE_MODE_GLOBAL"], "one allocation serves both"
    fake_driver.memory.clear()


def test_large_workspaces_of_a_capture_are_one(fake_driver, summing):
    _, found = summing
    many = {
        zero: Kernel(dataclasses.replace(SUM, workspace_bytes=Formula("4 * m + 131072"), workspace_zero_bytes=Formula(zero)), FAKE_BINARY)
        for zero in ("8", "16")
    }
    places = []
    for zeros in (("8", "8", "16"), ("8",)):
        fake_driver.cuStreamBeginCapture(7, None)
        for zero in zeros:
            sum_of_ones(fake_driver, many[zero], 40, 7)
        places += [launch[1][3] for launch in fake_driver.capturing.pop(7)[::2]]
    assert places[0] == places[1] and len({*places[1:], *found}) == 3, "one for each capture and each number of zeros"
    assert not [entry for entry in fake_driver.calls if entry[0] == "cuMemsetD8Async" and entry[2] == 7]
    fake_driver.memory.clear()


# -- streams ---------------------------------------------------------------------------------------------------


def stream_with(**attributes):
    return types.SimpleNamespace(**attributes)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 1),
        (1, 1),
        (4096, 4096),
        (stream_with(__cuda_stream__=lambda: (0, 4096)), 4096),
        (stream_with(__cuda_stream__=(0, 0)), 1),
        (stream_with(cuda_stream=4096), 4096),
        (stream_with(cuda_stream=0), 1),
        (stream_with(ptr=4096), 4096),
        (stream_with(handle=stream_with(value=4096)), 4096),
        (stream_with(handle=stream_with(value=None)), 1),
    ],
)
def test_streams_of_all_libraries_have_a_handle(stream, handle):
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", ["default", -1, 1.5j, True, object(), stream_with(ptr="x")])
def test_what_is_no_stream_is_refused(stream):
    with pytest.raises(LaunchError, match="stream must be"):
        stream_handle(stream)


@pytest.mark.skipif(gpu_available(), reason="this machine has a GPU")
def test_gpu_arrays_without_a_gpu_end_in_one_message(axpby):
    class Elsewhere:
        __cuda_array_interface__ = {  # noqa: RUF012
            "version": 3,
            "shape": (2, 2),
            "strides": None,
            "typestr": "<f4",
            "data": (4096, False),
            "stream": None,
        }

        def __dlpack_device__(self):
            return 2, 0

    class Other(Elsewhere):
        __cuda_array_interface__ = Elsewhere.__cuda_array_interface__ | {"data": (8192, False)}

    with pytest.raises(EnvironmentMissing):
        axpby(X=Elsewhere(), Y=Other())


# -- on a GPU --------------------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("own_stream", [False, True])
def test_gpu_torch_tensors_on_a_stream_that_is_not_the_default(axpby, own_stream):
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.randn(300, 501, device="cuda")
        y = torch.full((300, 600), 7.0, device="cuda")
        torch.cuda._sleep(20_000_000)  # the launch must come after this and before the next lines
        x += 1
        if not own_stream:
            axpby(X=x, Y=y[:, :501], alpha=2.0, beta=1.0)
            z = y * 1
    if own_stream:
        axpby(X=x, Y=y[:, :501], alpha=2.0, beta=1.0, stream=stream)
        with torch.cuda.stream(stream):
            z = y * 1
    torch.cuda.synchronize()
    assert torch.allclose(z[:, :501], 2 * x + 7)
    assert (z[:, 501:] == 7).all()


@needs_gpu
def test_gpu_torch_tensors_in_a_graph(axpby):
    torch = pytest.importorskip("torch")
    x, y = torch.ones(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    axpby(X=x, Y=y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        axpby(X=x, Y=y, alpha=2.0, beta=1.0)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (y == 7).all()


@needs_gpu
def test_gpu_torch_tensors_that_do_not_fit_are_refused(axpby):
    torch = pytest.importorskip("torch")
    x, y = torch.ones(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda")
    with pytest.raises(LaunchError, match=r"elements bf16, need f32"):
        axpby(X=x.bfloat16(), Y=y)
    with pytest.raises(LaunchError, match=r"pass X.detach\(\)"):
        axpby(X=x.clone().requires_grad_(), Y=y)
    with pytest.raises(LaunchError, match="different devices"):
        axpby(X=x.cpu(), Y=y)
    with torch.no_grad():
        axpby(X=x.clone().requires_grad_(), Y=y)
    torch.cuda.synchronize()
    assert (y == 1).all()


@needs_gpu
def test_gpu_host_tensors_go_to_the_emulator(axpby):
    torch = pytest.importorskip("torch")
    x, y = torch.ones(8, 8), torch.zeros(8, 8)
    axpby(X=x, Y=y, alpha=3.0)
    assert (y == 3).all()


@needs_gpu
def test_gpu_cupy_arrays_on_a_stream_that_is_not_the_default(axpby):
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.random.standard_normal((300, 501), dtype=cupy.float32)
        y = cupy.zeros((300, 501), cupy.float32)
        axpby(X=x, Y=y, alpha=2.0)
        twice = y * 2
    stream.synchronize()
    assert cupy.allclose(twice, 4 * x)
    other = cupy.cuda.Stream(non_blocking=True)
    axpby(X=x, Y=y, alpha=3.0, stream=other)
    other.synchronize()
    assert cupy.allclose(y, 3 * x)


JAX_SCRIPT = """
import jax, cupy, sys
from sample_kernels import AXPBY, AXPBY_SOURCE, compile_sample
from gemmgen.runtime.kernel import Kernel
if jax.default_backend() != "gpu":
    sys.exit(5)
x = jax.numpy.arange(12, dtype=jax.numpy.float32).reshape(3, 4)
y = cupy.zeros((3, 4), cupy.float32)
Kernel(AXPBY, compile_sample(AXPBY_SOURCE))(X=x, Y=y)
cupy.cuda.Device().synchronize()
assert y.get().ravel().tolist() == list(range(12)), y
"""


@needs_gpu
def test_gpu_jax_arrays_can_be_read():
    """In a process of its own, since jax takes most of the GPU's memory for itself."""
    pytest.importorskip("cupy")
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", JAX_SCRIPT], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode == 5:
        pytest.skip("this jax has no GPU")
    assert done.returncode == 0, done.stderr


@needs_gpu
def test_gpu_workspace_and_several_launches():
    cupy = pytest.importorskip("cupy")
    result = cupy.zeros(1, cupy.float32)
    Kernel(SUM, compile_sample(SUM_SOURCE))(X=cupy.ones((1000, 33), cupy.float32), result=result)
    assert float(result[0]) == 33000


@needs_gpu
def test_gpu_torch_bfloat16_is_described():
    torch = pytest.importorskip("torch")
    from gemmgen.runtime.arrays import describe
    from gemmgen.runtime.arrays.views import describe_dlpack

    tensor = torch.zeros(4, 6, device="cuda", dtype=torch.bfloat16)[:, ::2]
    own, by_dlpack = describe(tensor), describe_dlpack(tensor, "tensor", 1)
    assert (own.type, own.shape, own.strides, own.device) == ("bf16", (4, 3), (6, 2), ("cuda", 0))
    assert own == dataclasses.replace(by_dlpack, producer_stream=None)


@needs_gpu
def test_gpu_call_costs_little(axpby):
    torch = pytest.importorskip("torch")
    import time

    x, y = torch.ones(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda")
    for _ in range(10):
        axpby(X=x, Y=y)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(500):
        axpby(X=x, Y=y)
    each = (time.perf_counter() - started) / 500
    torch.cuda.synchronize()
    assert each < 200e-6
