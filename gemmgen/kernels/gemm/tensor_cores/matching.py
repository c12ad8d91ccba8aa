"""Fits of GEMMs on tensor cores: the parts that do not depend on the instructions."""

from __future__ import annotations

from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, Rasterization


def groups_refusal(spec: GemmSpec, request: GemmRequest) -> str | None:
    """The reason that an instance cannot multiply groups of rows, if they are asked for."""
    if request.groups is None:
        return None
    if spec.order != "row_major":
        return "it has no groups of rows"
    if spec.decomposition.scheme != "data_parallel":
        return "it divides k, and groups of rows are counted on the device"
    return None


def group_changes(request: GemmRequest) -> dict[str, object]:
    """An order of tiles for groups: those with the same columns come one after the other, while the group's B is in the L2."""
    return {} if request.groups is None else {"rasterization": Rasterization(along="major")}
