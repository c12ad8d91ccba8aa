"""JAX packages: built with a C++ compiler alone, and called by XLA where JAX is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from waiting import PATIENCE

from export.c_host import build, build_fake_driver, compiler, cuda_include, dummy_bundle
from gemmgen.core.errors import SpecError
from gemmgen.dispatch.layers import layers_of
from gemmgen.export.framework_packages import jax_package
from gemmgen.hardware.target import device

PROGRAM = Path(__file__).parent / "jax_package_program.py"
HOST_STREAM = """
struct HostStream {};
struct HostDevice {};
template <>
struct xla::ffi::CtxDecoding<HostStream> {
    using Type = CUstream;
    static std::optional<Type> Decode(const XLA_FFI_Api *, XLA_FFI_ExecutionContext *, DiagnosticEngine &) { return nullptr; }
};
template <>
struct xla::ffi::CtxDecoding<HostDevice> {
    using Type = std::int32_t;
    static std::optional<Type> Decode(const XLA_FFI_Api *, XLA_FFI_ExecutionContext *, DiagnosticEngine &) { return 0; }
};
namespace ffi = xla::ffi;
"""
"""Types that XLA's processor backend does not pass."""


def test_a_package_builds_and_xla_calls_its_targets(tmp_path: Path) -> None:
    if find_spec("jax") is None:
        pytest.skip("JAX is not installed, whose headers the package needs")
    import jax

    layers = layers_of(["gemm:16,64,32,nt,bf16,bias,silu", "gemm:2048,64,32,nt,bf16,bias,silu"], device("H200"))
    plans = {row.plan.name: row.plan for layer in layers for row in layer.served}
    for name, text in jax_package("mine", layers, {name: dummy_bundle(plan) for name, plan in plans.items()}).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if path.suffix == ".py":
            compile(text, name, "exec")
    package, driver = tmp_path / "mine", build_fake_driver(tmp_path)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-Wno-unused-function", "-shared", "-fPIC"]
    folders = ["-isystem", jax.ffi.include_dir(), "-isystem", cuda_include()]
    build([compiler("g++"), *flags, *folders, "-fsyntax-only", package / "handlers.cc"])
    source = (package / "handlers.cc").read_text()
    for ours, theirs in (
        ("namespace ffi = xla::ffi;\n", HOST_STREAM),
        ("ffi::PlatformStream<CUstream>", "HostStream"),
        ("ffi::DeviceOrdinal", "HostDevice"),
    ):
        assert ours in source
        source = source.replace(ours, theirs)
    (package / "on_host.cc").write_text(source)
    build([compiler("g++"), *flags, *folders, package / "on_host.cc", "-o", package / "_kernels.so", driver, f"-Wl,-rpath,{tmp_path}"])
    command = [sys.executable, str(PROGRAM), str(tmp_path), "mine", str(driver)]
    environment = {**os.environ, "FAKE_ANY_ENTRY": "1", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert result.stdout.strip() == "fine", result.stderr


@pytest.mark.parametrize("problem", ["reduction:64,128,1,max", "gemm:16,64,32,batch=4", "gemm:16,64,32,alpha"])
def test_a_layer_that_is_no_product_of_two_matrices_is_refused(problem: str) -> None:
    layers = layers_of([problem], device("H200"))
    with pytest.raises(SpecError, match="a JAX package holds products"):
        jax_package("mine", layers, {row.plan.name: dummy_bundle(row.plan) for layer in layers for row in layer.served})
