"""Compiles mutants and tries whether verification catches them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from emulator.helpers import compile_ptx

import gemmgen
from gemmgen.core.errors import CompileError
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.digests import cases_digest, digest
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import Binary, compile_source
from gemmgen.verification.extra_cases import code_of, extra_cases, few_block_cases
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

from .elf import sections
from .operators import Mutant, all_mutants

WHOLE = (
    "gemm/v3_double_buffer",
    "gemm/simt/linear/bias_relu",
    "gemm/simt/blocked/128x128x8",
    "reduction/s4_unroll_last_warp",
    "reduction/s6_grid_stride",
    "reduction/s7_shuffle",
    "reduction/sum_last_block",
    "reduction/sum_exp_abs",
    "reduction/argmin_f64_two_pass",
    "reduction/softmax_logsumexp",
    "conv2d/mma_sync/int8/pixels_64x64x64",
    "conv2d/mma_sync/turing/one_stage",
    "conv2d/mma_sync/split_k",
)
"""Kernels of which every mutant has to be caught or explained."""
_CASES_FIRST = ("primes", "many steps", "one tile", "k one above a tile")
_STEP_LIMIT = 60_000
SCHEDULES = 8
"""Interleavings of warps and blocks under which a mutant runs that survives in the usual one, as by ``gemmgen verify --schedules 8``."""
CASE_OF_ORDERS = "padded leading dimensions, many steps"
"""The case that it runs on; only deep cases have it."""
_CASES_BEFORE_MACHINE_CODE = 3
"""Most mutants are caught by fewer, and compiling to machine code takes as long as several."""


@dataclass(frozen=True)
class Subject:
    """A kernel to break."""

    name: str
    plan: KernelPlan
    source: str
    cases: tuple[tuple[KernelPlan, Case], ...]
    """Each with the plan that it is launched by."""

    @classmethod
    def of(cls, name: str) -> Subject:
        """The instance of a spec, by its path below specs/."""
        plan = gemmgen.plan(shipped_specs()[name])
        source = gemmgen.render(plan).text
        cases = sorted(oracle_of(plan.spec.kind).cases(plan), key=_usefulness)
        return cls(name, plan, source, (*((plan, case) for case in (*cases, *deep_cases(plan))), *few_block_cases(plan)))

    @cached_property
    def binary(self) -> Binary:
        """The kernel as it should be."""
        return compile_plan(self.plan)

    @cached_property
    def own_ptx(self) -> str:
        """PTX of the unchanged source, without its places."""
        return _without_places(self.ptx(self.source))

    @cached_property
    def own_machine_code(self) -> dict[str, bytes]:
        """Instructions and constants of the unchanged source."""
        return self.machine_code(self.source)

    @cached_property
    def digest(self) -> str:
        """Identity of the inputs of a trial: the code of the source, its mutants and its cases."""
        return digest(code_of(self.source), *(code_of(mutant.text) for mutant in all_mutants(self.source)), digest_of_cases(self.plan))[:16]

    def machine_code(self, source: str) -> dict[str, bytes]:
        """The instructions and constants of a changed source, by section of its cubin; without its reservations and promises."""
        binary = compile_source(source, architecture=self.plan.architecture.name, options=COMPILE_OPTIONS, line_info=False)
        return {name: data for name, data in sections(binary.cubin).items() if name.startswith((".text.", ".nv.constant"))}

    def ptx(self, source: str) -> str:
        """PTX of a changed source; AssertionError if it does not compile."""
        architecture = self.plan.architecture.name.replace("sm_", "compute_")
        return compile_ptx(source, architecture, *COMPILE_OPTIONS)


def deep_cases(plan: KernelPlan) -> list[Case]:
    """The deep cases of a plan, of which only some families have any."""
    return [case for launched, case in extra_cases(plan) if launched is plan]


def digest_of_cases(plan: KernelPlan) -> str:
    """Identity of the cases of the kernel's own launches."""
    deep = [[case.name, sorted(case.dimensions.items())] for case in deep_cases(plan)]
    return digest(cases_digest(plan), json.dumps(deep)) if deep else cases_digest(plan)


def _usefulness(case: Case) -> tuple[int, int]:
    first = _CASES_FIRST.index(case.name) if case.name in _CASES_FIRST else len(_CASES_FIRST)
    size = 1
    for extent in case.dimensions.values():
        size *= max(extent, 1)
    return first, size


@dataclass(frozen=True)
class Verdict:
    """Outcome of a mutant: caught, survived, same code, same machine code, does not compile."""

    subject: str
    mutant: Mutant
    outcome: str
    how: str = ""


def _without_places(ptx: str) -> str:
    return re.sub(r"^\s*(\.loc|\.file|//).*$", "", ptx, flags=re.MULTILINE)


def try_mutant(subject: Subject, mutant: Mutant) -> Verdict:
    """Verifies a mutant, case by case, until one fails; one of clusters at last under several orders of their blocks."""
    try:
        ptx = subject.ptx(mutant.text)
    except AssertionError:
        return Verdict(subject.name, mutant, "does not compile")
    if _without_places(ptx) == subject.own_ptx:
        return Verdict(subject.name, mutant, "same code")
    binary = replace(subject.binary, ptx=ptx)
    backend = EmulatorBackend(step_limit=_STEP_LIMIT)
    decided = min(_CASES_BEFORE_MACHINE_CODE, len(subject.cases) - 1)
    for number, (plan, case) in enumerate(subject.cases):
        if number == decided:
            try:
                same = subject.machine_code(mutant.text) == subject.own_machine_code
            except CompileError:  # by ptxas: more shared memory than there is
                return Verdict(subject.name, mutant, "does not compile")
            if same:
                return Verdict(subject.name, mutant, "same machine code")
        result = verify_case(plan, binary, backend, case)
        if not result.passed:
            return Verdict(subject.name, mutant, "caught", result.failure)
    return _in_other_orders(subject, mutant, binary)


def _in_other_orders(subject: Subject, mutant: Mutant, binary: Binary) -> Verdict:
    """The verdict on a mutant that the usual order of warps and blocks does not show."""
    backend = EmulatorBackend(schedules=SCHEDULES)
    for plan, case in subject.cases:
        if case.name == CASE_OF_ORDERS and any(prod(launch.cluster) > 1 for launch in plan.sequence.launches):
            result = verify_case(plan, binary, backend, case)
            if not result.passed and verify_case(plan, subject.binary, backend, case).passed:
                return Verdict(subject.name, mutant, "caught", result.failure)
    return Verdict(subject.name, mutant, "survived")


def spread(items: Sequence[Mutant], count: int) -> list[Mutant]:
    """At most `count` of each kind, evenly spread over the source."""
    by_kind: dict[str, list[Mutant]] = {}
    for item in items:
        by_kind.setdefault(item.kind, []).append(item)
    chosen = []
    for mutants in by_kind.values():
        step = max(len(mutants) / count, 1)
        chosen += [mutants[int(index * step)] for index in range(min(count, len(mutants)))]
    return chosen


def drawn(name: str, items: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """At most `count` of a kernel's mutants by chance; which, is the same whatever other kernels and other mutants there are."""

    def ticket(mutant: Mutant) -> str:
        return hashlib.sha256("\0".join([str(seed), name, mutant.kind, mutant.previous, mutant.before, mutant.after]).encode()).hexdigest()

    return sorted(items, key=ticket)[:count]
