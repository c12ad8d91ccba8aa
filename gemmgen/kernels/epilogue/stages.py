"""A kernel's epilogue: its operations with the names and the arguments of what they read, and their combined reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemmgen.kernels.epilogue.operations import EpilogueOperation
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, ScalarArgument
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    from gemmgen.kernels.accuracy import Array


@dataclass(frozen=True)
class EpilogueStage:
    """One operation of a kernel's epilogue, with the names of what it reads."""

    operation: EpilogueOperation
    arguments: tuple[ScalarArgument | ArrayArgument, ...]
    """Scalars and vectors."""
    matrices: tuple[Matrix, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the operation's macro writes for its arguments and for the elements of its matrices."""
        return (*(argument.name for argument in self.arguments), *(matrix.variable for matrix in self.matrices))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arguments and of the matrices, for callers that hold values."""
        return (*(argument.name for argument in self.arguments), *(matrix.name for matrix in self.matrices))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(dimension for matrix in self.matrices for dimension in matrix.dimensions)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(constraint for matrix in self.matrices for constraint in matrix.constraints)

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """All that the stage adds to the kernel's parameters."""
        parameters: list[Argument] = list(self.arguments)
        for matrix in self.matrices:
            parameters += [matrix.argument("input"), *matrix.scalars]
        return tuple(parameters)


def epilogue_stages(operations: Sequence[EpilogueOperation], output: Matrix) -> tuple[EpilogueStage, ...]:
    """The operations with their arguments, whose names no two share."""
    seen: dict[str, int] = {}
    stages = []
    for operation in operations:
        index = seen.get(operation.op, 0)
        seen[operation.op] = index + 1
        stages.append(EpilogueStage(operation, operation.arguments(index, output), operation.matrices(index, output)))
    return tuple(stages)


def apply_reference(stages: Sequence[EpilogueStage], value: Array, bound: Array, arguments: Mapping[str, Any]) -> tuple[Array, Array]:
    """Value (m x n, or a batch of that) and error bound after all stages; ``arguments`` maps names to matrices, vectors or numbers."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for stage in stages:
            given = []
            for name, argument in zip(stage.inputs, (*stage.arguments, *stage.matrices), strict=True):
                array = np.asarray(arguments[name], dtype=np.float64)
                per_row = isinstance(argument, ArrayArgument) and argument.shape[0].text == "m"
                given.append(array[:, None] if per_row else array)
            value, bound = stage.operation.reference(value, bound, given)
    return value, bound
