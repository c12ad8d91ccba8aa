"""Exports on a GPU: every case of sampled instances, launched by the C header and by the Python module, is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.c_host import CHost, driver_library
from export.plans import import_module, sampled_plans
from gemmgen import api
from gemmgen.core.errors import LaunchError, PlanError
from gemmgen.export.fatbin import make_fatbin
from gemmgen.export.images import Bundle, bundle, plans_for
from gemmgen.hardware.target import ARCHITECTURES, Architecture
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.cuda import gpu_available
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.runner import verify_binary

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_available(), reason="this machine has no GPU")]


def device_architecture() -> Architecture:
    from gemmgen.runtime.cuda import list_gpus

    found = list_gpus()[0].architecture
    assert found is not None
    return found


class ExportBackend:
    """Runs an exported instance in this process; subclasses say how it is launched."""

    name = "gpu"
    description = "an exported instance"
    architecture = None

    def enqueue(self, dimensions: Mapping[str, int], pointers: Sequence[int], scalars: Sequence[float], workspace: int) -> None:
        raise NotImplementedError

    def run(
        self,
        binary: Binary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        from gemmgen.runtime.cuda.driver import call, current_device, release

        starts: list[int] = []
        with ExitStack() as stack:
            stack.enter_context(current_device(0))
            for buffer in buffers.values():
                size = buffer.storage.nbytes
                address = int(call("cuMemAlloc", size + buffer.offset_bytes + 1))
                stack.callback(release, "cuMemFree", address)
                starts.append(address + buffer.offset_bytes if size else 0)
                if size:
                    call("cuMemcpyHtoD", starts[-1], buffer.storage.ctypes.data, size)
            has_workspace = any(argument.role == "workspace" for argument in sequence.arrays)
            workspace_bytes = sequence.workspace_bytes.evaluate(dimensions) if has_workspace else 0
            workspace = int(call("cuMemAlloc", workspace_bytes + 1))
            stack.callback(release, "cuMemFree", workspace)
            call("cuMemsetD8", workspace, 0xA5, workspace_bytes + 1)
            values = {**sequence.default_scalars, **scalars}
            pointers = [start and start + buffer.origin_bytes for start, buffer in zip(starts, buffers.values(), strict=True)]
            self.enqueue(dimensions, pointers, [values[scalar.name] for scalar in sequence.scalars], workspace)
            call("cuCtxSynchronize")
            for buffer, start in zip(buffers.values(), starts, strict=True):
                if start:
                    call("cuMemcpyDtoH", buffer.storage.ctypes.data, start, buffer.storage.nbytes)


class HeaderBackend(ExportBackend):
    def __init__(self, host: CHost, prefix: str) -> None:
        self.host, self.prefix = host, prefix

    def enqueue(self, dimensions: Mapping[str, int], pointers: Sequence[int], scalars: Sequence[float], workspace: int) -> None:
        code, reason, _, _ = self.host.call(self.prefix, dimensions, pointers, scalars, workspace, 0)
        if code:
            raise LaunchError(f"CUresult {code}: {reason}")


class ModuleBackend(ExportBackend):
    def __init__(self, module: Any, sequence: LaunchSequence) -> None:
        self.module, self.scalars = module, sequence.scalars

    def enqueue(self, dimensions: Mapping[str, int], pointers: Sequence[int], scalars: Sequence[float], workspace: int) -> None:
        numbers = {s.name: value if s.type in ("f32", "f64") else int(value) for s, value in zip(self.scalars, scalars, strict=True)}
        try:
            self.module.launch(*pointers, **dimensions, **numbers)
        except self.module.LaunchError as error:
            raise LaunchError(str(error)) from None


@pytest.fixture(scope="module")
def bundles() -> list[Bundle]:
    """Sampled instances that this GPU runs, compiled for it."""
    architecture = device_architecture()
    found = []
    for sampled in sampled_plans():
        try:
            plan = api.plan(sampled, architecture)
        except PlanError:
            continue  # an instance of a single architecture, another one
        found.append(bundle(plan, [compile_plan(plan)]))
    assert len(found) >= 10
    return found


def test_headers_are_right(bundles: list[Bundle], tmp_path: Path) -> None:
    host = CHost(bundles, tmp_path, driver_library())
    for (prefix, plan), each in zip(host.plans.items(), bundles, strict=True):
        report = verify_binary(plan, compile_plan(each.plan), HeaderBackend(host, prefix))
        assert report.passed, f"{plan.name}: {report.failures[0].case.name}: {report.failures[0].failure}"


def test_modules_are_right(bundles: list[Bundle], tmp_path: Path) -> None:
    for each in bundles:
        backend = ModuleBackend(import_module(each, tmp_path), each.plan.sequence)
        report = verify_binary(each.plan, compile_plan(each.plan), backend)
        assert report.passed, f"{each.plan.name}: {report.failures[0].case.name}: {report.failures[0].failure}"


@pytest.mark.parametrize("names", [["sm_80", "sm_90"], ["sm_80"]], ids=["cubin", "PTX for an older architecture"])
def test_a_fat_binary_loads_and_has_the_kernel(names: list[str]) -> None:
    from gemmgen.runtime.cuda.driver import call, current_device

    plan = api.plan("gemm/simt/linear/bias_relu")
    plans = plans_for(plan, [ARCHITECTURES[name] for name in names])
    content = make_fatbin(bundle(plans[0], [compile_plan(each) for each in plans]))
    with current_device(0):
        module = call("cuModuleLoadData", content)
        assert call("cuModuleGetFunction", module, plan.sequence.launches[0].entry.encode())
        call("cuModuleUnload", module)


def test_a_module_takes_arrays_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    plan = api.plan("gemm/simt/linear/bias_relu", device_architecture())
    module = import_module(bundle(plan, [compile_plan(plan)]), tmp_path)
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randint(-3, 4, (100, 64), generator=generator, device="cuda").float()
    weights = torch.randint(-3, 4, (48, 64), generator=generator, device="cuda").float()
    bias = torch.randint(-9, 10, (48,), generator=generator, device="cuda").float()
    result = torch.full((100, 48), float("nan"), device="cuda")
    module.launch(x, weights.T, result, bias, stream=torch.cuda.current_stream())
    assert torch.equal(result, (x @ weights.T + bias).relu())
    assert np.isfinite(result.cpu().numpy()).all()
