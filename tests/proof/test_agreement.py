"""The lifted formulas give the accesses that kernels make: on random problems they are compared with the emulator's trace."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

pytest.importorskip("z3")

import gemmgen
from gemmgen.emulator.program import link
from gemmgen.emulator.ptx.parser import parse
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.contract import Contract, Inexpressible
from gemmgen.proof.control import Unliftable
from gemmgen.proof.lifting import Lifter
from gemmgen.proof.semantics import _ARITHMETIC, _bits_of_two
from gemmgen.proof.solver import OutOfTime, Solver
from gemmgen.proof.values import constant
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.case_arrays import prepare_case
from gemmgen.verification.oracle import oracle_of
from tests.proof.agreement import Formulas, TooManyTurns, Trace, Unknown, disagreement

FAMILIES = ("gemm/simt/", "gemm/v", "reduction/s", "elementwise/")
KERNELS = [name for name in sorted(shipped_specs()) if name.startswith(FAMILIES)]
SIZES, FEW_SIZES = 2000, 3
"""Problems of all kernels together, and of one kernel where not all tests run."""
MAX_LAUNCH_THREADS = 2048
DRAWS = 400
LIFTING_SECONDS = 60.0


def formulas_of(plan: KernelPlan, binary: Binary) -> list[Formulas]:
    """The launches of a sequence as formulas. Raises ``Unliftable``, ``Inexpressible``."""
    module = parse(binary.ptx)
    found = []
    for launch in plan.sequence.launches:
        function = next(each for each in module.functions.values() if each.is_entry and each.name == launch.entry)
        lifter = Lifter(module, function, Contract(plan.sequence, launch), Solver(LIFTING_SECONDS))
        lifter.lift()
        found.append(Formulas(lifter.known))
    return found


def problems(plan: KernelPlan, name: str) -> Iterator[Case]:
    """Cases of the kernel's verification, with some sizes and strides changed at random, that its launch allows."""
    numbers = random.Random(name)
    cases = oracle_of(plan.spec.kind).cases(plan)
    for _ in range(DRAWS):
        case = numbers.choice(cases)
        sizes = dict(case.dimensions)
        for dimension in numbers.sample(plan.sequence.dimensions, numbers.randint(0, len(plan.sequence.dimensions))):
            number = sizes[dimension.name] + numbers.choice([-4, -1, 1, 2, 4, 7, 8, 16, 32])
            sizes[dimension.name] = min(max(dimension.minimum, number), dimension.maximum)
        allowed = all(constraint.condition.evaluate(sizes) for constraint in plan.sequence.constraints)
        grids = [launch.grid_of(sizes) for launch in plan.sequence.launches] if allowed else []
        threads = [x * y * z * launch.threads for (x, y, z), launch in zip(grids, plan.sequence.launches, strict=False)]
        if allowed and min(threads) > 0 and max(threads) <= MAX_LAUNCH_THREADS:
            yield Case(case.name, sizes, case.scalars)


def disagreement_on(plan: KernelPlan, binary: Binary, formulas: list[Formulas], case: Case) -> tuple[str, int]:
    """The first access that the formulas and the emulator do not share, empty if there is none; and the number of accesses traced."""
    accesses = 0
    by_entry: dict[str, list[tuple[Formulas, tuple[int, int, int]]]] = defaultdict(list)
    for lifted, launch in zip(formulas, plan.sequence.launches, strict=True):
        by_entry[launch.entry].append((lifted, launch.grid_of(case.dimensions)))
    for entry, launched in by_entry.items():
        trace = Trace(link(binary.ptx, entry))
        memory = {name: piece.buffer for name, piece in prepare_case(plan, case).items()}
        EmulatorBackend([trace], hazards=False).run(binary, plan.sequence, case.dimensions, case.scalars, memory)
        accesses += sum(len(rows) for parts in trace.rows.values() for rows in parts)
        if found := disagreement(launched, case.dimensions, trace.rows):
            return f"{dict(case.dimensions)}: {found}", accesses
    return "", accesses


@pytest.mark.parametrize("name", KERNELS)
def test_lifted_accesses_are_those_of_the_trace(name: str, request: pytest.FixtureRequest) -> None:
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, KernelPlan)
    binary = compile_plan(plan)
    try:
        formulas = formulas_of(plan, binary)
    except (Unliftable, Inexpressible) as error:
        pytest.skip(f"not lifted: {error}")
    except OutOfTime:
        pytest.skip(f"not lifted within {LIFTING_SECONDS:g} s")
    wanted = -(-SIZES // len(KERNELS)) if request.config.getoption("--tier") == "all" else FEW_SIZES
    compared = 0
    for case in problems(plan, name):
        try:
            assert disagreement_on(plan, binary, formulas, case)[0] == ""
            compared += 1
        except TooManyTurns:
            continue
        except Unknown:
            pytest.skip("addresses of forgotten registers")
        if compared == wanted:
            return
    if not compared:
        pytest.skip("no problem is small enough")


def test_a_wrong_meaning_of_a_statement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = gemmgen.plan(shipped_specs()["gemm/v1_tiled"])
    assert isinstance(plan, KernelPlan)
    binary = compile_plan(plan)
    wrong = lambda known, statement, values, *rest: _bits_of_two(known, statement, [values[0], constant(1)], *rest)  # noqa: E731
    monkeypatch.setitem(_ARITHMETIC, "and", wrong)
    formulas = formulas_of(plan, binary)
    assert any(disagreement_on(plan, binary, formulas, case)[0] for case, _ in zip(problems(plan, "wrong"), range(3), strict=False))
