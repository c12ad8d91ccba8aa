"""Kernels on a GPU: a driver without one stands in for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, array_at, fake_driver

from gemmgen.core.errors import LaunchError
from gemmgen.judge import device
from gemmgen.judge.candidates import Called, CandidateFailed, KernelCandidate
from gemmgen.judge.device import DeviceCandidate, sequence_of
from gemmgen.judge.device_child import measure
from gemmgen.judge.page import verdict_page
from gemmgen.judge.referee import Referee, Times, Timing
from gemmgen.judge.reference import Arrays, PythonReference
from gemmgen.judge.task import Task
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import load_kernel

from .corpus import MAP, PLAIN_MAP, map_source

__all__ = ["fake_driver"]
REFERENCES = Path(__file__).with_name("references.py")
TASK = Task.model_validate(MAP)
N = 96


def candidate() -> KernelCandidate:
    return KernelCandidate(load_kernel(map_source(PLAIN_MAP), "map.cu", Path(), CompileOptions("sm_80")), TASK)


def test_the_launch_of_a_task() -> None:
    sequence, numbers = sequence_of(TASK, "candidate", {"n": N}, (8,))
    (launch,) = sequence.resolve({})
    assert launch.grid == (2, 1, 1) and launch.block == (64, 1, 1)
    assert [kind for _, kind in launch.parameters] == ["pointer", "pointer", "pointer", "s32", "pointer"]
    assert numbers == {"n": N}
    assert sequence.arrays[-1].shape[0].evaluate({}) == 16


class Backend:
    """Stands for the process with the GPU."""

    def __init__(self, *_: Any) -> None:
        self.mistake = ""

    def run(self, binary: Any, sequence: Any, dimensions: Any, scalars: Any, buffers: Any) -> None:
        if self.mistake == "fault":
            raise LaunchError("candidate: illegal address")
        x, z, y = (buffers[name].storage for name in "xzy")
        y[:] = 2 * x + z
        if self.mistake == "input":
            x[0] = 1

    def close(self) -> None:
        pass


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> DeviceCandidate:
    monkeypatch.setattr(
        device, "gpu", lambda ordinal: type("Gpu", (), {"architecture": None, "ordinal": 0, "__str__": lambda _: "a GPU"})()
    )
    monkeypatch.setattr(device, "GpuBackend", Backend)
    return DeviceCandidate(candidate())


def test_results_of_a_gpu_and_its_faults(on_device: DeviceCandidate) -> None:
    inputs = {name: np.arange(N, dtype=np.float32) for name in "xz"}
    assert (on_device.call({"n": N}, inputs).outputs["y"] == 3 * inputs["x"]).all()
    for mistake, kind in (("fault", "fails-on-gpu"), ("input", "writes-input")):
        on_device.backend.mistake = mistake  # type: ignore[attr-defined]
        with pytest.raises(CandidateFailed) as failure:
            on_device.call({"n": N}, inputs)
        assert failure.value.kind == kind


@pytest.mark.parametrize("remembers", [False, True])
def test_results_are_read_after_the_timed_launches(tmp_path: Path, fake_driver: FakeDriver, remembers: bool) -> None:
    kept: dict[str, Any] = {}

    def kernel(launch: Any, values: list[int]) -> None:
        x, z, y = (array_at(pointer, (N,)) for pointer in values[:3])
        y[:] = kept.setdefault("y", 2 * x + z) if remembers else 2 * x + z

    fake_driver.kernels["candidate"] = kernel
    sequence, numbers = sequence_of(TASK, "candidate", {"n": N})
    launch = sequence.launches[0]
    arrays = [[one.name, one.type, one.role, [N]] for one in sequence.arrays]
    question = {"ordinal": 0, "architecture": "PTX", "sizes": {"n": N}, "numbers": numbers, "arrays": arrays, "entry": "candidate"}
    question |= {"grid": launch.grid_of({}), "block": launch.block, "shared_bytes": 0, "parameters": launch.arguments, "peer": None}
    (tmp_path / "question.json").write_text(json.dumps(question))
    (tmp_path / "image").write_bytes(b"code")
    data = {
        label: [np.random.default_rng(number).normal(size=N).astype(np.float32) for _ in "xz"]
        for number, label in enumerate(("seen", "unseen"))
    }
    for label, both in data.items():
        for name, array in zip("xz", both, strict=True):
            array.tofile(tmp_path / f"{label}.{name}")
    told = measure(tmp_path)
    assert told["candidate_us"] == pytest.approx(10) and told["peer"] == "no peer was named"
    wanted = [2 * x + z for x, z in data.values()]
    got = [np.fromfile(tmp_path / f"{label}.y", np.float32) for label in ("timed", "after")]
    assert (got[0] == wanted[0]).all()
    assert (got[1] == wanted[1]).all() == (not remembers)


class OneDevice:
    """A GPU that goes wrong in one way."""

    description = "a GPU"

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def call(self, sizes: dict[str, int], inputs: Arrays) -> Called:
        y = 2 * inputs["x"] + inputs["z"] + (1 if self.wrong == "wrong-on-gpu" else 0)
        return Called({"y": y}, {"y": np.ones(y.nbytes, np.bool_)})

    def timed(self, sizes: dict[str, int], inputs: Arrays, unseen: Arrays, peer: Any) -> tuple[Times, Arrays, Arrays]:
        if self.wrong == "fails-on-gpu":
            raise CandidateFailed("fails-on-gpu", "no end")
        first = 2 * inputs["x"] + inputs["z"]
        after = first if self.wrong == "wrong-after-timing" else 2 * unseen["x"] + unseen["z"]
        return Times("a GPU", sizes, 10.0, 12.0, "peer"), {"y": first}, {"y": after}


@pytest.mark.parametrize("wrong", ["", "wrong-on-gpu", "wrong-after-timing", "fails-on-gpu"])
def test_the_referee_judges_what_a_gpu_returns(wrong: str) -> None:
    reference = PythonReference(REFERENCES, "scale_add")
    verdict = Referee(candidate(), TASK, reference, [{"n": N}], OneDevice(wrong), Timing({"n": 200})).judge()
    assert verdict.kinds == ([wrong] if wrong else [])
    if not wrong:
        assert verdict.to_json()["times"] == {
            "device": "a GPU", "sizes": {"n": 200}, "candidate_us": 10.0, "peer": "peer", "peer_us": 12.0, "peer_over_candidate": 1.2
        }  # fmt: skip
        assert "peer 12.00 us" in verdict_page(verdict)
