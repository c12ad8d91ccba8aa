"""cuDNN beside convolution instances: its missing features are reported in words, and on a GPU it is timed in the same run."""

from __future__ import annotations

from typing import Any

import pytest
from sample_kernels import needs_gpu

from gemmgen import api
from gemmgen.kernels import family_of
from gemmgen.kernels.conv2d.cudnn import Cudnn
from gemmgen.perf.benchmark import Candidate, benchmark
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.toolchain.compilation import compile_plan

LOOP = {"strategy": "warpgroup", "tile": {"channels": 64, "pixels": 64, "k": 64}, "stages": 3, "consumers": 1}


def spec(type: str = "s8", **fields: Any) -> dict[str, Any]:
    layers = {"input": {"type": type, "layout": "nhwc"}, "output": {"type": type, "layout": "nhwc"}}
    return {"kind": "conv2d", "architecture": "sm_90a", "mainloop": LOOP, **layers, **fields}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (spec(alpha="channel"), "one alpha"),
        (spec("u8", zero_point="argument"), "no zero point"),
        (spec(activation={"op": "h_swish"}), "but ReLU"),
        (spec(epilogue=[{"op": "bias", "per": "channel"}]), "but ReLU"),
        (spec("u8"), "no convolution of u8"),
        (spec(output={"type": "f16", "layout": "nhwc"}), "no convolution of s8 with results in f16"),
    ],
)
def test_what_cudnn_lacks_is_said(fields: dict[str, Any], reason: str) -> None:
    said = cost_model_of("conv2d").peer(api.plan(fields), {}, {}, {})
    assert isinstance(said, str)
    assert reason in said


def test_without_cudnn_the_library_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("ctypes.CDLL", _missing)
    with pytest.raises(OSError, match=r"libcudnn\.so\.9"):
        Cudnn(0)


def _missing(name: str, mode: int) -> None:
    raise OSError(f"{name}: cannot open shared object file")


@needs_gpu
@pytest.mark.parametrize(
    "fields",
    [
        spec(bias="f32", activation={"op": "relu"}, store="tma"),
        spec(input={"layout": "nchw32"}, output={"layout": "nchw32"}),
        spec("f16", bias="f32", residual=True, activation={"op": "relu"}),
    ],
    ids=["int8 in NHWC", "int8 in NCHW32", "float16 with a residual"],
)
def test_cudnn_is_checked_and_timed_in_the_run(fields: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    plan = api.plan(fields)
    problem = family_of(plan.spec).problem(plan, (2, 64, 14, 14, 96, 3, 3, 1, 1))
    report = benchmark([Candidate(plan, compile_plan(plan))], problem, rounds=3)
    assert [timing.kind for timing in report.timings] == ["candidate", "peer"], report.notes
    assert report.timings[1].name.startswith("cuDNN")
    assert report.timings[0].checked.startswith("equal to cuDNN")
