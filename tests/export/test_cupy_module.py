"""The module for CuPy: parsed, and called with a CuPy that records launches."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cli.conftest import Run, run

__all__ = ["run"]

SPEC = """
kind: gemm
mainloop:
  strategy: tiled
  tile: {threadblock: {m: 32, n: 32, k: 8}, warp: {m: 16, n: 32}, thread: {m: 4, n: 4}}
decomposition: {scheme: split_k_parallel, slices: 2}
"""


class FakeArray(np.ndarray):
    """A NumPy array with the address that CuPy's arrays have."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    fake: Any = ModuleType("cupy")

    class RawModule:
        def __init__(self, path: str) -> None:
            self.image = Path(path).read_bytes()

        def get_function(self, entry: str) -> Any:
            return lambda grid, block, arguments, shared_mem: made.append((entry, self.image[:4], grid, block, arguments, shared_mem))

    fake.RawModule = RawModule
    fake.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(compute_capability="80", attributes={"MultiProcessorCount": 58}))
    fake.zeros = np.zeros
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return made


def array(*shape: int) -> Any:
    return np.zeros(shape, np.float32).view(FakeArray)


def exported(run: Run, text: str, code: int = 0) -> str:
    """The module that the command writes for a spec, or its message."""
    Path("spec.yaml").write_text(text)
    outcome = run(
        "export", "spec.yaml", "--format", "cupy", "--arch", "sm_90a" if "sm_90a" in text else "sm_80", "-o", "made.py", code=code
    )
    return outcome.err if code else Path("made.py").read_text()


def test_the_module_launches_what_the_sequence_says(run: Run, launches: list[Any]) -> None:
    names: dict[str, Any] = {}
    exec(compile(exported(run, SPEC), "made.py", "exec"), names)
    function = next(value for name, value in names.items() if name.startswith("sgemm"))
    function(array(40, 16), array(16, 33), array(40, 33), alpha=2.0)
    (first, image, grid, block, given, _), (second, *_) = launches
    assert image == b"\x7fELF" and second == f"{first}_reduce"
    assert (grid, block) == ((4, 1, 2), (64, 1, 1))
    assert list(given[:3]) == [40, 33, 16] and given[0].dtype == np.int32
    assert np.float32(2.0) in [one for one in given if isinstance(one, np.float32)]


def test_a_persistent_grid_follows_the_device(run: Run, launches: list[Any]) -> None:
    spec = "kind: gemm\narchitecture: sm_80\nstorage: {a: f16, b: f16, c: f32}\nalignment: {a: 8, b: 8, c: 4}\n"
    spec += "mainloop: {strategy: mma_sync, tile: {threadblock: {m: 64, n: 64, k: 32}, warp: {m: 32, n: 32}}, persistent_blocks: 264}\n"
    names: dict[str, Any] = {}
    exec(compile(exported(run, spec), "made.py", "exec"), names)
    function = next(value for name, value in names.items() if name.startswith("gemm"))
    a, b = (np.zeros((640, 640), np.float16).view(FakeArray) for _ in range(2))
    function(a, b, array(640, 640))
    assert launches[0][2] == (min(100, 2 * 58), 1, 1)
    function(np.zeros((1280, 640), np.float16).view(FakeArray), b, array(1280, 640))
    assert launches[1][2] == (2 * 58, 1, 1)


def test_wrong_arrays_are_refused(run: Run, launches: list[Any]) -> None:
    names: dict[str, Any] = {}
    exec(compile(exported(run, SPEC), "made.py", "exec"), names)
    function = next(value for name, value in names.items() if name.startswith("sgemm"))
    with pytest.raises(ValueError, match=r"B needs shape \[k, n\]"):
        function(array(40, 16), array(15, 33), array(40, 33))
    assert not launches


def test_tensor_maps_are_refused(run: Run) -> None:
    spec = "kind: gemm\narchitecture: sm_90a\ntranspose: nt\nstorage: {a: bf16, b: bf16, c: bf16}\nalignment: {a: 8, b: 8, c: 8}\n"
    spec += "mainloop: {strategy: wgmma, tile: {m: 64, n: 32, k: 64}, consumers: 1, stages: 2}\n"
    assert "takes a tensor map" in exported(run, spec, code=2)
