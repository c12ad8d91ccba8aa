"""The kernel families, and the only list of them. A family is imported when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gemmgen.kernels.family import Family, KernelSpec

FAMILIES = {
    "gemm": "gemmgen.kernels.gemm",
    "reduction": "gemmgen.kernels.reduction",
    "conv2d": "gemmgen.kernels.conv2d",
    "elementwise": "gemmgen.kernels.elementwise",
    "quantise": "gemmgen.kernels.quantise",
    "rows": "gemmgen.kernels.rows",
    "cpu_gemm": "gemmgen.kernels.cpu_gemm",
}
"""The package of each kind; it has one attribute ``family``."""

PROCESSOR_KINDS = ("cpu_gemm",)
"""Kinds whose instances run on the host's processor, compiled by a C compiler."""
GPU_KINDS = tuple(kind for kind in FAMILIES if kind not in PROCESSOR_KINDS)
"""Kinds whose instances run on GPUs, compiled by NVRTC."""

OPERATIONS = {
    "matmul": "gemm",
    "grouped_matmul": "gemm",
    "reduce": "reduction",
    "conv2d": "conv2d",
    "elementwise": "elementwise",
}
"""The functions of ``gemmgen.ops``, and the kind of the family whose instances compute each."""
WITHOUT_TORCH_OPERATOR = {"gated_matmul": "gemm"}
"""Functions without an operator in torch, and the kind of the family whose instances compute each."""
ROW_OPERATIONS = (
    "softmax", "softmax_gradient", "log_softmax", "log_softmax_gradient", "rms_norm", "rms_norm_gradient", "layer_norm",
    "layer_norm_gradient", "cumsum", "logcumsumexp", "topk",
)  # fmt: skip
EXTRA_OPERATIONS = {"quantize": "quantise", **dict.fromkeys(ROW_OPERATIONS, "rows")}
"""Functions that also work without an instance, and have no operator of torch's."""


GROUPED, PROCESSOR = "grouped", "cpu"
"""Kinds of problems that are no family's name: products of groups of rows, and products on this machine's processor."""
PROBLEM_KINDS = {**{kind: kind for kind in GPU_KINDS}, GROUPED: "gemm", PROCESSOR: "gemm"}
"""Every kind of problem, and the family whose grammar it has."""


@cache
def family(kind: str) -> Family:
    """The family of ``kind``; ``KeyError`` if there is none."""
    loaded: Family = import_module(FAMILIES[kind]).family
    return loaded


def family_of(spec: KernelSpec) -> Family:
    """The family that a spec belongs to."""
    return family(spec.kind)


@cache
def family_module(kind: str, name: str) -> Any:
    """The module of a family that serves one station, which defines the required contents in its own protocol.

    ``oracle``: ``gemmgen.verification``; ``cost_model``: ``gemmgen.perf``; ``matcher``: ``gemmgen.dispatch``; ``operator``:
    ``gemmgen.ops``; ``explain``: ``gemmgen.codegen`` and ``gemmgen.present``; ``pictures``:
    ``gemmgen.present``.
    """
    return import_module(f"{FAMILIES[kind]}.{name}")


def has_family_module(kind: str, name: str) -> bool:
    """True if a family has a module that it may do without."""
    return find_spec(f"{FAMILIES[kind]}.{name}") is not None
