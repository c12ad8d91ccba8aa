"""Kernels that first prepare real numbers, bit by bit, and then compute a polynomial of the result.

The launches that prepare run on real numbers and are compared with NumPy bit by bit. Their results are then replaced by random bits, and
the launches behind them run over the finite field from there (`gemmgen.verification.field`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gemmgen.emulator.arithmetic import FIELD
from gemmgen.emulator.data_loads import DataLoads
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.runtime.backend import HostBuffer
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.case_arrays import CaseMemory


class Stages(Protocol):
    """A family's description of a problem in two stages."""

    launches: int
    code_bits: int

    @property
    def elements(self) -> int:
        """Numbers that the first stage prepares."""

    @property
    def elements_of_word(self) -> int:
        """Numbers that lie side by side in a word of 32 bits; 0 if they do not."""

    @property
    def given(self) -> list[tuple[str, int, int]]:
        """Bytes of the workspace that the first stage decides, and the second does not compute with as data."""

    def real_factors(self, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
        """Real numbers for the first stage."""

    def wrong_split(self, factors: Mapping[str, npt.NDArray[np.float32]], workspace: npt.NDArray[np.uint8]) -> str:
        """The difference between the workspace and NumPy's."""

    def draw(self, workspace: npt.NDArray[np.uint8], rng: np.random.Generator) -> None:
        """Random bits in place of the results of the first stage."""

    def product(self, arrays: Mapping[str, npt.NDArray[Any]], workspace: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The polynomial of the workspace's contents, as canonical residues."""


@dataclass(frozen=True)
class StagedRun:
    """One run: the arrays before the second stage, the output behind it, the polynomial, and the loads of the second stage."""

    wrong: str
    before: dict[str, npt.NDArray[Any]]
    after: npt.NDArray[Any]
    product: npt.NDArray[Any]
    loads: DataLoads


def run_stages(
    plan: KernelPlan, binary: Binary, stages: Stages, case: Case, memory: Mapping[str, CaseMemory], scalars: Mapping[str, Any], seed: int
) -> StagedRun:
    """Runs both stages on arrays that hold residues; the run's codes are for the second one."""
    rng = np.random.default_rng([seed, case.seed, 44])
    sequence, sizes = plan.sequence, case.dimensions
    workspace = np.zeros(sequence.workspace_bytes.evaluate(sizes), np.uint8)
    buffers = {name: piece.buffer for name, piece in memory.items()} | {"workspace": HostBuffer(workspace)}
    data = {name: memory[name].view.copy() for name in ("A", "B")}
    factors = stages.real_factors({name: values.shape for name, values in data.items()}, rng)
    for name, values in factors.items():
        memory[name].view[...] = values
    first = replace(sequence, launches=sequence.launches[: stages.launches])
    EmulatorBackend(hazards=False).run(binary, first, sizes, scalars, buffers)
    wrong = stages.wrong_split(factors, workspace)
    for name, values in data.items():
        memory[name].view[...] = values
    stages.draw(workspace, rng)
    before = {name: piece.view.copy() for name, piece in memory.items()}
    held = workspace.copy()
    loads = DataLoads(set(before), given=stages.given)
    second = replace(sequence, launches=sequence.launches[stages.launches :])
    EmulatorBackend((loads,) if seed == 0 else (), hazards=False, arithmetic=FIELD).run(binary, second, sizes, scalars, buffers)
    product = stages.product({name: _words(values) for name, values in data.items()}, held)
    return StagedRun(wrong, before, memory["C"].view, product, loads)


def _words(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)
