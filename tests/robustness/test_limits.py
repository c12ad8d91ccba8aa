"""Specs and arguments that ask for more memory or a larger grid than there is, and arrays whose fields are inconsistent."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import gemmgen
from gemmgen import ops
from gemmgen.cli import cli
from gemmgen.core.errors import GemmgenError, LaunchError, PlanError
from gemmgen.kernels import planning
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.runtime.arrays.views import describe
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.case_arrays import MAX_CASE_BYTES, case_bytes
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="gemmgen")


HUGE = {
    "multiples": ("gemm/v3_double_buffer", ["multiple_of.n=348081", "multiple_of.k=150937"]),
    "padding": ("conv2d/mma_sync/same_3x3", ["convolution.padding_h=1800", "convolution.padding_w=1800"]),
    "filters": ("conv2d/mma_sync/same_3x3", ["convolution.k=1048576", "convolution.c=14528"]),
}


@pytest.mark.parametrize("name", HUGE)
def test_cases_too_large_for_memory_are_refused(name: str) -> None:
    spec, overrides = HUGE[name]
    outcome = run("verify", "--backend", "emulator", spec, *(part for item in overrides for part in ("--set", item)))
    assert outcome.exit_code == 2
    assert "GiB for the case" in outcome.output and "[case_arrays]" in outcome.output


def test_a_spec_that_no_small_problem_meets_is_refused() -> None:
    padded = ["--set", "convolution.padding_h=30000", "--set", "convolution.padding_w=30000"]
    outcome = run("verify", "--backend", "emulator", "conv2d/mma_sync/same_3x3", *padded)
    assert outcome.exit_code == 2 and "[no_case]" in outcome.output


def test_a_case_too_large_is_refused_before_anything_runs() -> None:
    plan = gemmgen.plan("specs/gemm/v3_double_buffer.yaml", overrides=HUGE["multiples"][1])
    with pytest.raises(PlanError, match="cannot be verified"):
        verify_binary(plan, compile_plan(plan), EmulatorBackend(), progress=pytest.fail)


def test_no_shipped_spec_comes_near_the_limit() -> None:
    plans = [gemmgen.plan(path) for name, path in shipped_specs().items() if name.split("/")[0] in ("gemm", "conv2d", "reduction")]
    assert max(case_bytes(plan, case) for plan in plans for case in oracle_of(plan.spec.kind).cases(plan)) < MAX_CASE_BYTES / 4


COPY = "__global__ void copy(float* y, const float* x, int n) { int i = blockIdx.x * 32 + threadIdx.x; if (i < n) y[i] = x[i]; }"


def test_an_argument_too_large_for_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy.cu").write_text(COPY)
    outcome = run("emulate", str(tmp_path / "copy.cu"), "--grid", "1", "--block", "32", "--arg", "f32[2147483648]")
    assert outcome.exit_code == 2 and "8 GiB, need at most 1 GiB" in outcome.output


def test_arrays_too_large_for_memory_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "copy.cu").write_text(COPY)
    launches = "launches: [{grid: 1, block: 32, args: [a, b, i32=4]}]"
    (tmp_path / "run.yaml").write_text("arrays: {" + ", ".join(f"{name}: 'u8[1073741824]=zeros'" for name in "abc") + "}\n" + launches)
    outcome = run("emulate", str(tmp_path / "copy.cu"), "--launches", str(tmp_path / "run.yaml"))
    assert outcome.exit_code == 2 and "3 GiB together, need at most 2 GiB" in outcome.output


def test_an_access_wider_than_the_hardware_has_is_a_reason() -> None:
    outcome = run("check", "gemm/simt/swizzled_cp_async", "--set", "alignment.b=8")
    assert outcome.exit_code == 2 and "alignment.b: got 8 elements of 4 bytes" in outcome.output


def test_one_file_that_shows_a_bug_leaves_the_others_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = planning.plan

    def plan(spec: Any, *more: Any) -> Any:
        if spec.mainloop.strategy == "naive":
            raise ZeroDivisionError("unforeseen")
        return real(spec, *more)

    monkeypatch.setattr(planning, "plan", plan)
    outcome = run("check", "gemm/v0_naive", "gemm/v1_tiled", "--json")
    findings = json.loads(outcome.stdout)
    assert [finding["accepted"] for finding in findings] == [False, True]
    assert outcome.exit_code == 70 and "a bug in gemmgen" in findings[0]["error"]


@pytest.mark.parametrize("name", [name for name in shipped_specs() if name.startswith("conv2d/")])
def test_every_convolution_is_explained_without_a_size(name: str) -> None:
    outcome = run("explain", name)
    assert outcome.exit_code == 0, outcome.output


def test_more_groups_than_a_grid_has_blocks_is_a_reason() -> None:
    outcome = run("check", "conv2d/mma_sync/grouped", "--set", "convolution.groups=1048576")
    assert outcome.exit_code == 2 and "at most 65535" in outcome.output


def test_a_masked_array_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"filled\(\)"):
        describe(np.ma.masked_less(np.ones(4, np.float32), 2), "x")


def test_an_operation_refuses_a_masked_array() -> None:
    with pytest.raises(GemmgenError, match=r"filled\(\)"):
        ops.reduce(np.ma.masked_less(np.arange(8, dtype=np.float32), 3), "sum")


_make_capsule = ctypes.pythonapi.PyCapsule_New
_make_capsule.restype = ctypes.py_object
_make_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Garbage:
    """An exporter that returns a given object."""

    def __init__(self, capsule: Any, device: Any = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> Any:
        return self.device


def capsule_of(name: bytes, *words: int) -> tuple[Any, Any]:
    memory = (ctypes.c_int64 * 16)(*words)
    return _make_capsule(ctypes.addressof(memory), name, None), memory


GARBAGE = {
    "nothing": None,
    "a number": 7,
    "another capsule": capsule_of(b"used_dltensor")[0],
    "axes without end": (HELD := capsule_of(b"dltensor", 0, 1, 2**31 - 1))[0],
    "axes without extents": (MORE := capsule_of(b"dltensor", 0, 1, 3))[0],
    "another version": (LAST := capsule_of(b"dltensor_versioned", 99))[0],
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_from_dlpack_is_a_message(name: str) -> None:
    with pytest.raises(LaunchError, match="x cannot be read through DLPack"):
        describe(Garbage(GARBAGE[name]), "x")


WHOLE = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}


@pytest.mark.parametrize(
    "interface",
    [
        7,
        "x",
        {},
        WHOLE | {"shape": "x"},
        WHOLE | {"shape": (-4,)},
        WHOLE | {"strides": ("x",)},
        WHOLE | {"strides": (4, 4)},
        WHOLE | {"data": 4096},
        WHOLE | {"data": ("x", False)},
        WHOLE | {"stream": "x"},
        WHOLE | {"shape": None},
    ],
)
def test_a_garbled_interface_is_a_message(interface: Any) -> None:
    with pytest.raises(LaunchError, match="x has "):
        describe(type("Garbled", (), {"__cuda_array_interface__": interface})(), "x")


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.reduce(None),
        lambda: ops.matmul(None, None),
        lambda: ops.matmul(np.ones((2, 2), np.float32), None),
        lambda: ops.conv2d(None, None),
        lambda: ops.elementwise(None, "exp"),
    ],
)
def test_no_array_where_one_is_needed_is_a_message(call: Callable[[], Any]) -> None:
    with pytest.raises(LaunchError, match="need an array"):
        call()


IMAGE, WEIGHTS = np.ones((1, 4, 5, 5), np.int8), np.ones((4, 4, 3, 3), np.int8)
MATRIX = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.conv2d(IMAGE, WEIGHTS, out=3.0),
        lambda: ops.conv2d(IMAGE, WEIGHTS, residual=[1]),
        lambda: ops.conv2d(memoryview(IMAGE), WEIGHTS),
        lambda: ops.conv2d(np.ndarray, WEIGHTS),
        lambda: ops.conv2d(IMAGE, WEIGHTS, zero_point="x"),  # type: ignore[arg-type]
        lambda: ops.conv2d(IMAGE, WEIGHTS, zero_point=10**400),
        lambda: ops.Filter(np.ndarray),
        lambda: ops.matmul(MATRIX, MATRIX, alpha=10**400),
        lambda: ops.matmul(MATRIX, MATRIX, scale_a=10**400),
        lambda: ops.matmul(MATRIX, MATRIX, bias=10**400),
    ],
)
def test_no_array_and_no_number_where_one_is_needed_is_a_message(call: Callable[[], Any]) -> None:
    with pytest.raises(LaunchError, match=r"^(conv2d|matmul): "):
        call()


def test_a_truth_is_no_size() -> None:
    kernel = gemmgen.compile("specs/gemm/v0_naive.yaml")
    with pytest.raises(LaunchError, match="m must be an integer, got True"):
        kernel(A=MATRIX, B=MATRIX, C=MATRIX.copy(), m=True)


@pytest.mark.parametrize("operations", [3, [None], [3], [{"op": "\x1b[2J"}], ["\x1b"], [{"op": "x" * 10**6}]])
def test_operations_that_are_none_are_a_message(operations: Any) -> None:
    with pytest.raises(LaunchError, match=r"^elementwise: operation") as caught:
        ops.elementwise(np.ones(4, np.float32), operations)
    assert len(str(caught.value)) < 2000 and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("device", [None, 3, ("cpu", 0), (1,)])
def test_a_garbled_device_is_a_message(device: Any) -> None:
    with pytest.raises(LaunchError, match="x reports a device"):
        describe(Garbage(None, device), "x")


def test_lists_without_end_are_no_kind() -> None:
    deep: list[Any] = []
    deep.append(deep)
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(GemmgenError, match="kind: got "):
        gemmgen.plan({"kind": deep})


class Unshown(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Raising:
    """An array of a library whose own code fails, in one place."""

    def __init__(self, place: str, error: Exception) -> None:
        self._place, self._error = place, error

    def _at(self, place: str) -> None:
        if place == self._place:
            raise self._error

    @property
    def __cuda_array_interface__(self) -> Any:
        self._at("interface")
        raise AttributeError

    @property
    def __dlpack__(self) -> Any:
        self._at("export")
        return self._export

    def _export(self, **arguments: Any) -> Any:
        self._at("exported")

    def __dlpack_device__(self) -> Any:
        self._at("device")
        return 1, 0


@pytest.mark.parametrize("error", [KeyError("gone"), OSError(5, "\x1b[2J"), Unshown(), ArithmeticError("x" * 10**6), LookupError()])
@pytest.mark.parametrize("place", ["interface", "export", "exported", "device"])
def test_an_array_that_raises_is_a_message(place: str, error: Exception) -> None:
    with pytest.raises(LaunchError, match=r"^x (does not give|cannot be read|reports a device)") as caught:
        describe(Raising(place, error), "x")
    assert type(error).__name__ in str(caught.value) and len(str(caught.value)) < 1000 and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("device", [(1, 10**400), (1, -1), (2**40, 0), (-1, 0)])
def test_a_device_of_no_number_is_a_message(device: Any) -> None:
    with pytest.raises(LaunchError, match="x reports a device"):
        describe(Garbage(None, device), "x")


def test_an_interface_that_raises_inside_is_a_message() -> None:
    class Interface(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise ZeroDivisionError

    with pytest.raises(LaunchError, match="x has a __cuda_array_interface__ of another form"):
        describe(type("Garbled", (), {"__cuda_array_interface__": Interface(WHOLE)})(), "x")


def test_an_array_at_address_0_is_a_message() -> None:
    extents = (ctypes.c_int64 * 1)(4)
    words = (ctypes.c_int64 * 16)(0, 1, (2 | 32 << 8 | 1 << 16) << 32 | 1, ctypes.addressof(extents))
    with pytest.raises(LaunchError, match="at address 0"):
        describe(Garbage(_make_capsule(ctypes.addressof(words), b"dltensor", None)), "x")


def test_a_subclass_of_numpys_is_believed_nothing() -> None:
    class Liar(np.ndarray[Any, Any]):
        shape = property(lambda self: (10**9,))  # type: ignore[assignment]
        strides = property(lambda self: (4,))  # type: ignore[assignment]
        dtype = property(lambda self: np.dtype(np.float64))  # type: ignore[assignment]
        flags = property(lambda self: 1 / 0)  # type: ignore[assignment]

    lies = np.arange(4, dtype=np.float32).view(Liar)
    view = describe(lies, "x")
    assert (view.shape, view.strides, view.type, view.read_only) == ((4,), (1,), "f32", False)


LIMITED = """
import resource, sys
limits = {"AS": 3 << 30, "DATA": 3 << 30, "CPU": 50, "FSIZE": 1 << 26}
for name, most in limits.items():
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
from pathlib import Path
from gemmgen.judge.reference import Question, answers
from gemmgen.sweep.worker import _limit_harm
answers(Path(sys.argv[1]), "f", [Question({"m": 2}, {})])
_limit_harm(1 << 40)
print(resource.getrlimit(resource.RLIMIT_DATA))
"""


def test_limits_of_the_shell_are_kept(tmp_path: Path) -> None:
    """The caller of gemmgen may have set a lower limit."""
    (tmp_path / "reference.py").write_text("import numpy as np\ndef f(sizes, arrays): return {'C': np.zeros(2)}")
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "reference.py")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (result.returncode, result.stdout) == (0, f"({3 << 30}, {3 << 30})\n"), result.stderr[-500:]
