"""Ends of groups that fall, or lie outside of their array: errors of the call on the host, of a later call on a GPU."""

import numpy as np
import pytest
from sample_kernels import needs_gpu

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.runtime.cuda.offsets import ENTRY, SOURCE, THREADS

WRONG = {"falls": (40, 30, 50), "lies below 0": (-1, 30, 50), "lies beyond the array": (40, 50, 65)}
RIGHT = {"ascends": (10, 10, 50), "begins with no rows": (0, 0, 64), "leaves rows out": (1, 2, 3), "has no rows": (0, 0, 0)}


def half(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(-3, 4, shape).astype(np.float16)


@pytest.mark.parametrize("ends", WRONG.values(), ids=WRONG)
def test_wrong_ends_of_rows_are_refused_on_the_host(ends: tuple[int, ...]) -> None:
    out = np.full((64, 16), 9, np.float16)
    with pytest.raises(LaunchError, match=r"offsets\[\d\] is .*, need 3 ends of groups in ascending order, from 0 to m = 64"):
        ops.grouped_matmul(half(64, 32), half(3, 16, 32).transpose(0, 2, 1), np.array(ends, np.int32), out=out)
    assert (out == 9).all()


@pytest.mark.parametrize("ends", WRONG.values(), ids=WRONG)
def test_wrong_ends_of_depths_are_refused_on_the_host(ends: tuple[int, ...]) -> None:
    with pytest.raises(LaunchError, match="from 0 to k = 64"):
        ops.grouped_matmul(half(64, 16).T, half(64, 24), np.array(ends, np.int32))


def test_ends_within_steps_are_refused_on_the_host() -> None:
    a, b = np.zeros((16, 384), np.uint8), np.zeros((16, 384), np.uint8)
    scales = np.ones((16, 3), np.float32)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = a.view(ml_dtypes.float8_e4m3fn), b.view(ml_dtypes.float8_e4m3fn)
    with pytest.raises(LaunchError, match=r"offsets\[0\] is 100 after 0, need 2 ends .* multiples of 128 below 384"):
        ops.grouped_matmul(a, b.T, np.array([100, 384], np.int32), scale_a=scales, scale_b=scales.T)


@pytest.mark.parametrize(
    ("ends", "limit", "step", "wrong"),
    [
        *((ends, 64, 1, True) for ends in WRONG.values()),
        *((ends, 64, 1, False) for ends in RIGHT.values()),
        *(((128, 300), 300, 128, False), ((256, 256), 300, 128, False), ((100, 300), 300, 128, True), ((128, 384), 300, 128, True)),
        ((*range(200), 199), 300, 1, False),
        ((*range(200), 100), 300, 1, True),
    ],
)
def test_a_kernel_checks_ends(ends: tuple[int, ...], limit: int, step: int, wrong: bool) -> None:
    arguments = [np.array(ends, np.int32), len(ends), limit, step, 5, np.zeros(1, np.int32)]
    run = gemmgen.emulate(SOURCE, ENTRY, grid=1, block=THREADS, args=arguments)
    assert run.clean and run["word"] == [5 if wrong else 0]


@needs_gpu
@pytest.mark.parametrize("ends", WRONG.values(), ids=WRONG)
def test_wrong_ends_are_reported_by_a_later_call(ends):
    torch = pytest.importorskip("torch")
    a, b = torch.ones(64, 32, device="cuda").half(), torch.ones(3, 16, 32, device="cuda").half().mT
    memory = torch.full((66, 16), 9.0, device="cuda").half()
    offsets, right = (torch.tensor(one, device="cuda", dtype=torch.int32) for one in (ends, (10, 20, 64)))
    need = "grouped_matmul: offsets of an earlier call were wrong, need 3 ends of groups in ascending order, from 0 to m = 64"
    ops.synchronize()
    ops.grouped_matmul(a, b, offsets, out=memory[1:65])
    with pytest.raises(LaunchError, match=need):
        ops.synchronize()
    assert (memory[0] == 9).all() and (memory[65] == 9).all()
    ops.grouped_matmul(a, b, offsets)
    torch.cuda.synchronize()
    with pytest.raises(LaunchError, match=need):
        ops.grouped_matmul(a, b, right)
    assert (ops.grouped_matmul(a, b, right) == 32).all()
    ops.synchronize()


@needs_gpu
def test_graphs_report_wrong_ends():
    torch = pytest.importorskip("torch")
    a, b = torch.ones(64, 32, device="cuda").half(), torch.ones(3, 16, 32, device="cuda").half().mT
    offsets = torch.tensor((10, 20, 64), device="cuda", dtype=torch.int32)
    ops.grouped_matmul(a, b, offsets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.grouped_matmul(a, b, offsets)
    graph.replay()
    ops.synchronize()
    assert (out == 32).all()
    offsets[1] = 70
    graph.replay()
    with pytest.raises(LaunchError, match="offsets of an earlier call"):
        ops.synchronize()
