"""The diagnosis: whole, crippled and with a stand-in for the driver."""

from __future__ import annotations

import importlib.util
from enum import IntEnum
from types import SimpleNamespace

import pytest

from gemmgen.cli import environment
from gemmgen.cli.environment import examine
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.core.extras import install_command


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NO_DEVICE = 100


def fake_driver(name: bytes = b"NVIDIA H200", capability=(9, 0), sms=132, count=1, init=Result.CUDA_SUCCESS, version=13000):
    """The calls of cuda.bindings.driver that the diagnosis makes, for a machine with `count` equal GPUs."""
    attributes = {1: capability[0], 2: capability[1], 3: sms}
    ok = Result.CUDA_SUCCESS
    return SimpleNamespace(
        CUresult=Result,
        CUdevice_attribute=SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=1,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=2,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=3,
        ),
        cuDriverGetVersion=lambda: (ok, version),
        cuInit=lambda flags: (init,),
        cuDeviceGetCount=lambda: (ok, count),
        cuDeviceGet=lambda index: (ok, index),
        cuDeviceGetName=lambda length, handle: (ok, name.ljust(length, b"\0")),
        cuDeviceTotalMem=lambda handle: (ok, 150 * 10**9),
        cuDeviceGetAttribute=lambda number, handle: (ok, attributes[number]),
    )


@pytest.fixture
def use_driver(monkeypatch):
    def use(driver: object) -> dict[str, environment.Finding]:
        real = environment.import_module

        def import_module(name: str) -> object:
            if name != "cuda.bindings.driver":
                return real(name)
            if isinstance(driver, Exception):
                raise driver
            return driver

        monkeypatch.setattr(environment, "import_module", import_module)
        return {finding.name: finding for finding in examine()}

    return use


def test_every_piece_is_examined():
    findings = examine()
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names)
    pieces = "Python gemmgen cuda-bindings NVRTC driver nvdisasm nvcc nvFatbin Optuna Dask torch cupy cache"
    assert set(pieces.split()) <= set(names)
    for finding in findings:
        assert finding.detail
        assert bool(finding.cost) == (finding.status != "ok"), finding


def test_nvrtc_is_told_with_version_path_and_architectures():
    (finding,) = [finding for finding in examine() if finding.name == "NVRTC"]
    assert finding.status == "ok"
    assert "libnvrtc" in finding.detail
    assert "sm_90" in finding.detail


def test_a_gpu_is_told_with_its_capability_memory_and_entry(use_driver):
    findings = use_driver(fake_driver())
    assert findings["driver"].status == "ok"
    assert findings["driver"].detail == "supports CUDA 13.0"
    assert findings["GPU 0"].status == "ok"
    assert findings["GPU 0"].detail == ("NVIDIA H200, compute capability 9.0, 132 SMs, 140 GiB, compiled for as sm_90a, known as H200")


def test_several_and_unknown_gpus(use_driver):
    findings = use_driver(fake_driver(b"NVIDIA Nameless", (8, 6), 20, count=2))
    assert findings["GPU 1"].detail.endswith("compiled for as sm_86, peaks not known")
    old = use_driver(fake_driver(b"Tesla V100", (7, 0), 80))
    assert old["GPU 0"].status == "warning"
    assert "no known architecture" in old["GPU 0"].cost


def test_a_driver_without_a_gpu_or_that_does_not_start(use_driver):
    assert use_driver(fake_driver(count=0))["GPU"].status == "missing"
    broken = use_driver(fake_driver(init=Result.CUDA_ERROR_NO_DEVICE))
    assert broken["driver"].status == "warning"
    assert "CUDA_ERROR_NO_DEVICE" in broken["driver"].detail


def test_a_driver_older_than_the_compiler_is_a_warning(use_driver):
    finding = use_driver(fake_driver(version=12040))["driver"]
    assert (finding.status, finding.detail) == ("warning", "supports CUDA 12.4")


def test_no_driver_and_a_driver_that_fails_oddly(use_driver):
    assert use_driver(RuntimeError("libcuda not found"))["driver"].status == "missing"
    odd = use_driver(ValueError("odd"))["driver"]
    assert odd.status == "warning"
    assert "ValueError: odd" in odd.detail


def test_missing_pieces_are_reported_not_raised(monkeypatch, tmp_path):
    def no_nvrtc() -> None:
        raise EnvironmentMissing("NVRTC was not found; install it")

    monkeypatch.setattr("gemmgen.toolchain.nvrtc.nvrtc_version", no_nvrtc)
    monkeypatch.setattr("gemmgen.toolchain.sass.find_nvdisasm", lambda: None)
    monkeypatch.setattr(environment, "_version_of", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    findings = {finding.name: finding for finding in examine()}
    for name in ("NVRTC", "nvdisasm", "nvcc", "cuda-bindings", "torch", "cupy"):
        assert findings[name].status == "missing", name
    assert "pip install 'nvidia-cuda-nvdisasm" in findings["nvdisasm"].cost
    assert findings["cache"].status == "warning"
    assert "GEMMGEN_CACHE_DIR" in findings["cache"].cost


def test_a_tool_that_does_not_run_is_a_warning(monkeypatch, tmp_path):
    tool = tmp_path / "nvcc"
    tool.write_text("#!/bin/sh\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = {finding.name: finding for finding in examine()}
    assert findings["nvcc"].status == "warning"


def test_what_extra_would_bring_is_said_with_how_to_install_it(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("optuna", "distributed") else find_spec(name))
    monkeypatch.setattr("gemmgen.export.fatbin.loaded_library", lambda: None)
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    findings = {finding.name: finding for finding in examine()}
    for name, extra in (("nvFatbin", "fatbin"), ("Optuna", "search"), ("Dask", "cluster")):
        assert findings[name].status == "missing"
        assert findings[name].cost.startswith("optional: no ")
        assert install_command(extra) in findings[name].cost


def test_the_toolkits_fatbinary_takes_the_place_of_the_library(monkeypatch):
    monkeypatch.setattr("gemmgen.export.fatbin.loaded_library", lambda: None)
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/opt/{name}")
    (finding,) = environment._nvfatbin()
    assert (finding.status, finding.detail) == ("ok", "not found, but /opt/fatbinary takes its place")
