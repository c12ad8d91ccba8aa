"""A gemmgen spec as the reference: its family's oracle computes the expected value of every element."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from gemmgen.core.elements import numpy_type, to_elements
from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.judge.reference import Arrays, Question
from gemmgen.judge.task import Task
from gemmgen.kernels import family, family_module, has_family_module
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.kernels.planning import plan as plan_of
from gemmgen.verification.field import FieldOracle
from gemmgen.verification.oracle import oracle_of


class SpecReference:
    """The function that a spec asks for; the task names its arrays and sizes as the spec does."""

    any_order = True

    def __init__(self, file: Path, task: Task) -> None:
        plan = plan_of(file)
        if not isinstance(plan, KernelPlan):
            raise SpecError(f"--reference {file}: the spec of a kernel for processors has no arrays to judge by")
        self.plan, self.file = plan, file
        numbers = [scalar.name for scalar in plan.sequence.scalars if scalar.type in ("f32", "f64")]
        if numbers:
            raise SpecError(f"--reference {file}: the spec leaves {', '.join(numbers)} to the call; need a spec that fixes them")
        own = {array.name: array for array in plan.sequence.arrays if array.role != "workspace"}
        given = {argument.name: argument for argument in task.arrays}
        if own.keys() != given.keys():
            raise SpecError(f"--reference {file}: its arrays are {', '.join(own)}; those of the task are {', '.join(given)}")
        for name, array in own.items():
            if array.type != given[name].type or array.writes != (given[name].role == "output"):
                role = "output" if array.writes else "input"
                raise SpecError(f"--reference {file}: {name} is an {role} of type {array.type} there, another in the task")

    def answers(self, questions: Sequence[Question]) -> list[Arrays]:
        """Results that the oracle expects, with their bounds."""
        return [self._over_field(question) if question.field else self._expected(question) for question in questions]

    def _case(self, question: Question) -> Case:
        own = family(self.plan.spec.kind)
        names = own.instance_sizes(self.plan)
        missing = [name for name in names if name not in question.sizes]
        if missing:
            raise SpecError(f"--reference {self.file}: shapes must give {', '.join(missing)}")
        return Case("judged", own.problem(self.plan, [question.sizes[name] for name in names]), data="reals")

    def _expected(self, question: Question) -> Arrays:
        case = self._case(question)
        arrays = self._elements(question, case)
        try:
            with np.errstate(all="ignore"):
                expected = oracle_of(self.plan.spec.kind).reference(self.plan, case, arrays)
        except (ValueError, IndexError) as error:
            raise SpecError(f"--reference {self.file}: shapes of the task are not those of the spec: {error}") from None
        answers: Arrays = {}
        for name, one in expected.items():
            answers[name] = one.value
            answers[f"{name}_bound"] = np.zeros(one.value.shape) if one.bound is None else np.broadcast_to(one.bound, one.value.shape)
        return answers

    def _elements(self, question: Question, case: Case) -> Arrays:
        """The inputs as elements, and zeros for the outputs."""
        elements: Arrays = {}
        for array in self.plan.sequence.arrays:
            if array.name in question.arrays:
                elements[array.name] = to_elements(array.type, question.arrays[array.name])
            elif array.role != "workspace":
                elements[array.name] = np.zeros([extent.evaluate(case.dimensions) for extent in array.shape], numpy_type(array.type))
        return elements

    def _over_field(self, question: Question) -> Arrays:
        if not has_family_module(self.plan.spec.kind, "field"):
            return {}
        oracle = cast("FieldOracle", family_module(self.plan.spec.kind, "field"))
        if oracle.excluded(self.plan):
            return {}
        arrays = {name: np.mod(array, question.field).astype(np.uint64) for name, array in question.arrays.items()}
        try:
            return oracle.polynomial(self.plan, self._case(question), arrays, {}) or {}
        except (GemmgenError, ValueError, KeyError):
            return {}
