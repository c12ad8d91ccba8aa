"""Finds the tools on this machine that gemmgen can use, and the features that each missing tool disables. Never raises."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.core.extras import install_command
from gemmgen.core.version import __version__

_OLDEST_PYTHON = (3, 11)
_TOOL_TIMEOUT_SECONDS = 20

Status = Literal["ok", "missing", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of the environment. `cost` states the disabled features and the fix; empty when ok."""

    name: str
    status: Status
    detail: str
    cost: str = ""


def examine() -> list[Finding]:
    """All findings, in the order in which a reader wants them."""
    probes: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
        ("Python", _python),
        ("gemmgen", _gemmgen),
        ("cuda-bindings", _cuda_bindings),
        ("NVRTC", _nvrtc),
        ("driver", _driver_and_gpus),
        ("nvdisasm", _nvdisasm),
        ("nvcc", _nvcc),
        ("nvFatbin", _nvfatbin),
        ("Optuna", lambda: _extra("Optuna", "optuna", "search", "no guided search of sweeps (--search)")),
        ("Dask", lambda: _extra("Dask", "distributed", "cluster", "no sweeps on a cluster (--scheduler); one machine needs none")),
        ("torch", lambda: _package("torch", "no comparison with cuBLAS, and no torch tensors as arguments")),
        ("cupy", lambda: _package("cupy", "no cupy arrays as arguments")),
        ("cache", _cache),
    )
    findings: list[Finding] = []
    for name, probe in probes:
        try:
            findings.extend(probe())
        except Exception as error:  # a diagnosis must not fail on the fault that it diagnoses
            findings.append(Finding(name, "warning", f"could not be examined: {type(error).__name__}: {error}"))
    return findings


def _python() -> Iterable[Finding]:
    detail = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        yield Finding("Python", "warning", detail, "gemmgen is made for Python 3.11 and later")
    else:
        yield Finding("Python", "ok", detail)


def _gemmgen() -> Iterable[Finding]:
    yield Finding("gemmgen", "ok", f"{__version__} at {Path(__file__).parents[1]}")


def _cuda_bindings() -> Iterable[Finding]:
    version = _version_of("cuda-bindings")
    if version is None:
        cost = "nothing can be compiled or run on a GPU; get it with: pip install 'cuda-python>=13,<14'"
        yield Finding("cuda-bindings", "missing", "not installed", cost)
    else:
        yield Finding("cuda-bindings", "ok", version)


def _nvrtc() -> Iterable[Finding]:
    from gemmgen.toolchain.nvrtc import nvrtc_version, supported_architectures

    try:
        major, minor = nvrtc_version()
    except EnvironmentMissing as error:
        yield Finding("NVRTC", "missing", str(error), "sources can be rendered and checked, but not compiled or verified")
        return
    path = import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc").abs_path
    yield Finding("NVRTC", "ok", f"{major}.{minor} at {path}, compiles for {', '.join(supported_architectures())}")


def _driver_and_gpus() -> Iterable[Finding]:
    cost = "kernels are verified on the emulator; benchmarks and GPU runs need an NVIDIA GPU with its driver"
    try:
        driver = import_module("cuda.bindings.driver")
        version = _result(driver, driver.cuDriverGetVersion())
    except (ImportError, RuntimeError) as error:
        yield Finding("driver", "missing", _first_line(error), cost)
        return
    text = f"supports CUDA {version // 1000}.{version % 1000 // 10}"
    try:
        _result(driver, driver.cuInit(0))
        count = _result(driver, driver.cuDeviceGetCount())
    except RuntimeError as error:
        yield Finding("driver", "warning", f"{text}, but does not start: {error}", cost)
        return
    yield _judge_driver(version, text)
    if count == 0:
        yield Finding("GPU", "missing", "the driver sees none", cost)
    for index in range(count):
        yield _gpu(driver, index)


def _judge_driver(version: int, text: str) -> Finding:
    from gemmgen.toolchain.nvrtc import nvrtc_version

    try:
        nvrtc_major = nvrtc_version()[0]
    except EnvironmentMissing:
        return Finding("driver", "ok", text)
    if version // 1000 < nvrtc_major:
        cost = f"cubins of NVRTC {nvrtc_major} may not load; update the driver to one for CUDA {nvrtc_major} or later"
        return Finding("driver", "warning", text, cost)
    return Finding("driver", "ok", text)


def _gpu(driver: Any, index: int) -> Finding:
    from gemmgen.hardware.target import architecture_for, match_device

    handle = _result(driver, driver.cuDeviceGet(index))
    attributes = driver.CUdevice_attribute

    def attribute(name: str) -> int:
        number = getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_result(driver, driver.cuDeviceGetAttribute(number, handle)))

    name = _result(driver, driver.cuDeviceGetName(256, handle)).split(b"\0")[0].decode(errors="replace")
    memory_bytes = int(_result(driver, driver.cuDeviceTotalMem(handle)))
    major, minor = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    sm_count = attribute("MULTIPROCESSOR_COUNT")
    detail = f"{name}, compute capability {major}.{minor}, {sm_count} SMs, {memory_bytes / 2**30:.0f} GiB"
    architecture = architecture_for(major, minor)
    if architecture is None:
        return Finding(f"GPU {index}", "warning", detail, "no known architecture runs on it: kernels cannot be made for it")
    entry = match_device(name, sm_count)
    known = f"compiled for as {architecture.name}, " + (f"known as {entry.name}" if entry else "peaks not known")
    return Finding(f"GPU {index}", "ok", f"{detail}, {known}")


def _nvdisasm() -> Iterable[Finding]:
    from gemmgen.toolchain.sass import find_nvdisasm

    tool = find_nvdisasm()
    if tool is None:
        cost = f"no SASS listings and no instruction counts; get it with: {install_command('sass')}"
        yield Finding("nvdisasm", "missing", "not found", cost)
    else:
        yield _tool("nvdisasm", tool)


def _nvcc() -> Iterable[Finding]:
    path = shutil.which("nvcc")
    if path is None:
        cost = "optional: only a check that sources compile with nvcc too needs it; it comes with the CUDA toolkit"
        yield Finding("nvcc", "missing", "not on PATH", cost)
    else:
        yield _tool("nvcc", Path(path))


def _nvfatbin() -> Iterable[Finding]:
    from gemmgen.export.fatbin import loaded_library

    library, tool = loaded_library(), shutil.which("fatbinary")
    if library is not None:
        yield Finding("nvFatbin", "ok", ".".join(map(str, library.version())))
    elif tool is not None:
        yield Finding("nvFatbin", "ok", f"not found, but {tool} takes its place")
    else:
        cost = f"optional: no exports as fat binaries; get it with: {install_command('fatbin')}"
        yield Finding("nvFatbin", "missing", "not found, nor fatbinary of a CUDA toolkit", cost)


def _tool(name: str, path: Path) -> Finding:
    try:
        run = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=_TOOL_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, "warning", f"{path} does not run: {_first_line(error)}", f"reinstall {name}")
    versions = [word[1:] for word in run.stdout.split() if word[:1] == "V" and word[1:2].isdigit()]
    return Finding(name, "ok", f"{versions[0] if versions else 'version unknown'} at {path}")


def _package(name: str, cost: str) -> Iterable[Finding]:
    if importlib.util.find_spec(name) is None:
        yield Finding(name, "missing", "not installed", f"optional: {cost}")
    else:
        yield Finding(name, "ok", _version_of(name) or "version unknown")


def _extra(name: str, module: str, extra: str, cost: str) -> Iterable[Finding]:
    """A package that comes with an extra of gemmgen's."""
    if importlib.util.find_spec(module) is None:
        yield Finding(name, "missing", "not installed", f"optional: {cost}; get it with: {install_command(extra)}")
    else:
        yield Finding(name, "ok", _version_of(module) or "version unknown")


def _cache() -> Iterable[Finding]:
    from gemmgen.core.cache import DIRECTORY_VARIABLE, Cache

    info = Cache().info()
    size, limit = info.size_bytes / 2**20, info.limit_bytes / 2**20
    detail = f"{info.directory}, {info.entries} entries, {size:.1f} of {limit:.0f} MiB"
    if info.writable:
        yield Finding("cache", "ok", detail)
    else:
        cost = f"every kernel is compiled anew; set {DIRECTORY_VARIABLE} to a directory that you may write and others may not"
        yield Finding("cache", "warning", f"{detail}, not writable, or not by you alone", cost)


def _result(driver: Any, returned: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises RuntimeError with the driver's name for the error."""
    if returned[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(getattr(returned[0], "name", str(returned[0])))
    return returned[1] if len(returned) > 1 else None


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
