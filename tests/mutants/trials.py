"""Compiles mutants and tries whether verification catches them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from emulator.helpers import compile_ptx

import gemmgen
from gemmgen.kernels.blas_cases import case_of, scalar_values
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.kernels.gemm.oracle import promised
from gemmgen.kernels.gemm.plan import GemmPlan, packed
from gemmgen.kernels.gemm.spec import SplitKLast, StreamK
from gemmgen.kernels.gemm.vector import VectorLoop
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.digests import cases_digest, digest
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import Binary, compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

from .elf import sections
from .operators import Mutant, all_mutants

WHOLE = (
    "gemm/v3_double_buffer",
    "gemm/linear_bias_relu",
    "gemm/blocked_128x128x8",
    "reduction/s4_unroll_last_warp",
    "reduction/s6_grid_stride",
    "reduction/s7_shuffle",
    "reduction/sum_last_block",
    "reduction/sum_exp_abs",
    "reduction/argmin_f64_two_pass",
    "reduction/softmax_logsumexp",
    "conv2d/pixels_64x64x64",
    "conv2d/turing_one_stage",
    "conv2d/split_k",
)
"""Kernels of which every mutant has to be caught or explained."""
_CASES_FIRST = ("primes", "many steps", "one tile", "k one above a tile")
_SEVERAL_TILES = ("tiles of many steps", "2 x 3 tiles", "2 x 3 tiles of each of 2 problems", "primes")
_SLICES = 70
_STEP_LIMIT = 60_000
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
        return cls(name, plan, source, (*((plan, case) for case in (*cases, *deep_cases(plan))), *cases_of_few_blocks(plan)))

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
        """Identity of what mutants are made of and tried on: the code of the source, its mutants and its cases."""
        return digest(code_of(self.source), *(code_of(mutant.text) for mutant in all_mutants(self.source)), digest_of_cases(self.plan))[:16]

    def machine_code(self, source: str) -> dict[str, bytes]:
        """The instructions and constants of a changed source, by section of its cubin; what it reserves and promises left out."""
        binary = compile_source(source, architecture=self.plan.architecture.name, options=COMPILE_OPTIONS, line_info=False)
        return {name: data for name, data in sections(binary.cubin).items() if name.startswith((".text.", ".nv.constant"))}

    def ptx(self, source: str) -> str:
        """PTX of a changed source; AssertionError if it does not compile."""
        architecture = self.plan.architecture.name.replace("sm_", "compute_")
        return compile_ptx(source, architecture, *COMPILE_OPTIONS)


def shares_out_tiles(plan: KernelPlan) -> bool:
    """True for kernels of a fixed number of blocks, which take one tile after another."""
    return bool(_mainloop(plan).get("persistent_blocks"))


def with_few_blocks(plan: KernelPlan) -> KernelPlan:
    """The plan of the same kernel, launched with no more than two clusters."""
    spec = plan.spec.model_dump(mode="json", exclude_unset=True)
    spec["mainloop"]["persistent_blocks"] = 2 * plan.loop.cluster_blocks  # type: ignore[attr-defined]
    return gemmgen.plan(spec)


def cases_of_few_blocks(plan: KernelPlan) -> list[tuple[KernelPlan, Case]]:
    """Cases of several tiles a block, which small problems have with few blocks only; none for kernels whose blocks take one tile each."""
    if not shares_out_tiles(plan):
        return []
    few = with_few_blocks(plan)
    cases = {case.name: case for case in oracle_of(few.spec.kind).cases(few) if case.name in _SEVERAL_TILES}
    return [(few, case) for case in cases.values()]


def deep_cases(plan: KernelPlan) -> list[Case]:
    """Cases of a depth that not every verification takes the time for: more steps of one tile than the blocks of stream-K, so that some
    take two of them; more slices than a block adds up at a time, none of them empty."""
    if not isinstance(plan, GemmPlan):
        return []
    loop, decomposition = plan.loop, plan.spec.decomposition
    if isinstance(decomposition, StreamK):
        name, depth, further = "more steps than blocks", loop.tile_k * (decomposition.blocks + 5) + 1, {}  # type: ignore[union-attr]
    elif isinstance(decomposition, SplitKLast) and isinstance(loop, VectorLoop):
        name, depth, further = f"{_SLICES} whole slices", loop.step * (_SLICES - 1) + 1, {"slices": _SLICES}
    else:
        return []
    size = promised(plan, (plan.tile_m // 2 + 1, plan.tile_n // 2 + 1, depth))
    return [case_of(name, packed(plan, size) | further, scalar_values(plan.sequence)["integers"], "integers")]


def digest_of_cases(plan: KernelPlan) -> str:
    """Identity of the cases of the kernel's own launches."""
    deep = [[case.name, sorted(case.dimensions.items())] for case in deep_cases(plan)]
    return digest(cases_digest(plan), json.dumps(deep)) if deep else cases_digest(plan)


def _mainloop(plan: KernelPlan) -> dict[str, Any]:
    found = plan.spec.model_dump(mode="json", exclude_unset=True).get("mainloop")
    return found if isinstance(found, dict) else {}


def _usefulness(case: Case) -> tuple[int, int]:
    first = _CASES_FIRST.index(case.name) if case.name in _CASES_FIRST else len(_CASES_FIRST)
    size = 1
    for extent in case.dimensions.values():
        size *= max(extent, 1)
    return first, size


def code_of(source: str) -> str:
    """The lines of a source that have more than a comment, without comments and indentation."""
    lines = (" ".join(line.partition("//")[0].split()) for line in source.split("\n"))
    return "\n".join(line for line in lines if line)


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
    """Verifies a mutant, case by case, until one fails."""
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
        if number == decided and subject.machine_code(mutant.text) == subject.own_machine_code:
            return Verdict(subject.name, mutant, "same machine code")
        launched = binary if plan is subject.plan else replace(binary, ptx=ptx.replace(subject.plan.name, plan.name))
        result = verify_case(plan, launched, backend, case)
        if not result.passed:
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
