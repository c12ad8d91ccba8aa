"""``kernel`` of operations: the kernel that a call would launch, without the launch."""

from __future__ import annotations

import numpy as np

import gemmgen
from gemmgen import ops


def test_every_operation_names_the_kernel_that_it_would_launch() -> None:
    half = np.ones((64, 64), np.float16)
    image = np.ones((1, 8, 8, 32), np.int8).transpose(0, 3, 1, 2)
    asked = [
        ops.matmul.kernel(half, half, activation="relu", backend="emulator"),  # type: ignore[attr-defined]
        ops.reduce.kernel(half, "max", 0),  # type: ignore[attr-defined]
        ops.reduce.kernel(half, "mean_variance", 0),  # type: ignore[attr-defined]
        ops.elementwise.kernel(half, operations="silu"),  # type: ignore[attr-defined]
        ops.conv2d.kernel(image, np.ones((32, 32, 3, 3), np.int8)),  # type: ignore[attr-defined]
    ]
    assert [kernel.plan.spec.kind for kernel in asked] == ["gemm", "reduction", "reduction", "elementwise", "conv2d"]
    assert all(kernel.choice is not None and kernel.choice.chosen.plan is kernel.plan for kernel in asked)
    assert all(kernel.spec is kernel.plan.spec and kernel.dimensions for kernel in asked)


def test_a_call_on_the_processor_names_its_kernel_too() -> None:
    single = np.ones((8, 8), np.float32)
    kernel = ops.matmul.kernel(single, single)  # type: ignore[attr-defined]
    assert kernel.choice is None and kernel.plan.spec.kind == "cpu_gemm"
    assert gemmgen.for_problem("cpu:8,8,8").spec == kernel.spec


def test_the_plan_of_a_problem_is_that_of_the_call() -> None:
    plan = gemmgen.for_problem("gemm:64,64,64,f16,relu", device="H200")
    half = np.ones((64, 64), np.float16)
    assert ops.matmul.kernel(half, half, activation="relu").plan.name == plan.name  # type: ignore[attr-defined]
