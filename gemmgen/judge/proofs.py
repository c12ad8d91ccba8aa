"""Proofs of a candidate's properties for every problem, and counterexamples as problems to run."""

from __future__ import annotations

from gemmgen.core.formulas import Formula
from gemmgen.judge.candidates import KernelCandidate
from gemmgen.judge.task import Argument, Size
from gemmgen.kernels.launch import Argument as LaunchArgument
from gemmgen.kernels.launch import ArrayArgument, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.proof.prover import KernelProof, prove_sequence
from gemmgen.verification.contradictions import contradict


def prove(kernel: KernelCandidate, seconds: float) -> KernelProof | str:
    """Properties of a kernel that are proved within ``seconds``, or the reason why none is. Raises ``EnvironmentMissing`` without z3."""
    sequence = _sequence(kernel)
    if isinstance(sequence, str):
        return sequence
    return contradict(sequence, kernel.code.ptx, kernel.code.architecture, prove_sequence(sequence, kernel.code.ptx, seconds))[0]


def _sequence(kernel: KernelCandidate) -> LaunchSequence | str:
    task = kernel.task
    if not all(isinstance(size, int) for size in task.block):
        return "the threads of a block depend on the problem"
    if kernel.scratch:
        return "the kernel has scratch memory"
    own = [argument.name for argument in task.arguments if argument.shape is None]
    if any(argument.value is not None for argument in task.arguments):
        return "an argument is a formula"
    arguments: list[LaunchArgument] = []
    for argument in task.arguments:
        arguments.append(ScalarArgument(argument.name, "s32", argument.name) if argument.shape is None else _array(argument))
    x, y, z = [*map(_formula, task.grid), Formula("1"), Formula("1")][:3]
    width, height, depth = [*(int(size) for size in task.block), 1, 1][:3]
    launch = KernelLaunch(
        kernel.entry.symbol, (x, y, z), (width, height, depth), tuple(one.name for one in arguments), _formula(task.shared_bytes)
    )
    names = {name for formula in (x, y, z, launch.dynamic_shared_bytes) for name in formula.names}
    names |= {name for one in arguments if isinstance(one, ArrayArgument) for extent in one.shape for name in extent.names}
    if missing := names - set(own):
        return f"{min(missing)} is no argument of the kernel"
    dimensions = tuple(Dimension(name, name, 1) for name in own)
    return LaunchSequence(kernel.entry.symbol, dimensions, tuple(arguments), (launch,))


def _array(argument: Argument) -> ArrayArgument:
    shape = tuple(map(_formula, argument.shape or ()))
    strides = tuple(Formula(" * ".join(f"({extent})" for extent in shape[axis + 1 :]) or "1") for axis in range(len(shape)))
    return ArrayArgument(argument.name, argument.type, argument.role, shape, strides, 256, argument.name)


def _formula(size: Size) -> Formula:
    return Formula(str(size))
