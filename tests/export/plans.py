"""Plans of shipped specs, and random calls of them, for tests of exports."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
from pathlib import Path
from types import ModuleType

from gemmgen import api
from gemmgen.core.errors import GemmgenError
from gemmgen.export.header import resolution_order
from gemmgen.export.images import Bundle
from gemmgen.export.python_module import render_module
from gemmgen.kernels import family_of
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.verification.oracle import oracle_of

WHOLE = "GEMMGEN_TEST_ALL_EXPORTS"
"""Set to 1, this variable has every shipped spec tried on many problems; else a sample of them is, on fewer."""

DRAWS = 400 if os.environ.get(WHOLE) == "1" else 40


def sampled_plans() -> list[KernelPlan]:
    """Plans of shipped specs: one of each form of launch sequence, or all."""
    plans, forms = [], set()
    for path in shipped_specs().values():
        plan = api.plan(path)
        if not isinstance(plan, KernelPlan):
            continue
        sequence = plan.sequence
        form = (
            plan.spec.kind,
            len(sequence.launches),
            any(launch.programmatic for launch in sequence.launches),
            any(launch.dynamic_shared_bytes.text != "0" for launch in sequence.launches),
            frozenset(argument.name for argument in sequence.host_arguments),
            sequence.workspace_zero_bytes.text != "0",
            len(sequence.dimensions),
            len(sequence.scalars),
        )
        if os.environ.get(WHOLE) == "1" or form not in forms:
            forms.add(form)
            plans.append(plan)
    return plans


def draw_problem(plan: KernelPlan, rng: random.Random) -> dict[str, int]:
    """A problem that is often right, sometimes at the edge, and sometimes absurd; a part of it is left to defaults."""
    family, sequence = family_of(plan.spec), plan.sequence
    if rng.random() < 0.5:
        problem = dict(rng.choice(oracle_of(plan.spec.kind).cases(plan)).dimensions)
    else:
        sizes = [rng.choice([0, 1, 2, 7, 32, 64, 65, 128, 500, 1024, 4096, 100_000, 2**24, 2**31 - 1]) for _ in family.instance_sizes(plan)]
        try:
            problem = dict(family.problem(plan, sizes))
        except GemmgenError:
            problem = {}
    required = resolution_order(sequence.dimensions)[1]
    for dimension in sequence.dimensions:
        if dimension.name not in required and rng.random() < 0.2:
            problem.pop(dimension.name, None)
    for dimension in rng.sample(sequence.dimensions, k=min(rng.choice([0, 0, 1, 1, 2]), len(sequence.dimensions))):
        edges = [dimension.minimum, dimension.minimum - 1, dimension.maximum, dimension.maximum + 1, 2**62, -(2**62), 2**63 - 1]
        others = [rng.randrange(1, 2**31), 2 ** rng.randrange(31), 32 * rng.randrange(100)]
        nearby = [problem.get(dimension.name, 0) + step for step in (-1, 1, 4, 32)]
        problem[dimension.name] = rng.choice(rng.choice([edges, others, nearby]))
    return {**{name: rng.choice([0, 1, 32, 64]) for name in required}, **problem}


def draw_call(plan: KernelPlan, rng: random.Random) -> tuple[dict[str, int], list[int], list[float], int]:
    arrays = [argument for argument in plan.sequence.arrays if argument.role != "workspace"]
    pointers = [0 if rng.random() < 0.01 else 256 * rng.randrange(1, 2**40) + (rng.random() < 0.02) * 4 for _ in arrays]
    scalars = [float(rng.randrange(-4, 5)) for _ in plan.sequence.scalars]
    return draw_problem(plan, rng), pointers, scalars, 256 * rng.randrange(1, 2**40) + (rng.random() < 0.02)


_modules = itertools.count()


def import_module(bundle: Bundle, folder: Path) -> ModuleType:
    """The exported module of an instance."""
    name = f"exported_{next(_modules)}"
    file = folder / f"{name}.py"
    file.write_text(render_module(bundle, name))
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
