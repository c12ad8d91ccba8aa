"""The emulator and a GPU must leave the same bits behind, for every shipped spec and every one of its cases.

The exception are instances with operations whose approximate instructions the emulator rounds correctly: there both must be
within the error bound of the reference, and so at most twice the bound apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SHIPPED_KERNELS, spec_id

import gemmgen
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.case_arrays import prepare_case
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu() -> object:
    from gemmgen.runtime.cuda import GpuBackend, gpu_available

    if not gpu_available():
        pytest.skip("no GPU")
    return GpuBackend()


@pytest.mark.parametrize("path", SHIPPED_KERNELS, ids=spec_id)
def test_the_same_bits_on_both_backends(path: Path, gpu: object) -> None:
    plan = gemmgen.plan(path, gpu.architecture)  # type: ignore[attr-defined]
    binary = compile_plan(plan)
    for case in oracle_of(plan.spec.kind).cases(plan):
        found = {}
        for backend in (gpu, EmulatorBackend()):
            memory = prepare_case(plan, case)
            buffers = {name: piece.buffer for name, piece in memory.items()}
            backend.run(binary, plan.sequence, case.dimensions, case.scalars, buffers)  # type: ignore[attr-defined]
            found[backend] = {name: piece.buffer.storage.tobytes() for name, piece in memory.items()}
        first, second = found.values()
        if getattr(plan, "approximate", False):
            for backend in (gpu, EmulatorBackend()):
                result = verify_case(plan, binary, backend, case)  # type: ignore[arg-type]
                assert result.passed, result.failure
            continue
        for name in first:
            assert first[name] == second[name], f"{name} differs in case {case.name!r} ({case.data})"
