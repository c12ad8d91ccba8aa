"""Changes drawn statements of kernels: where the emulator finds a fault, no property may be proved that the fault contradicts.

python -m measurements.proof_mutants --mutants 300 --jobs 15 --seconds 440 --out measurements
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import click

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import ArrayArgument
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.workers import cpus, run_tasks
from gemmgen.proof.prover import prove_sequence
from gemmgen.runtime.emulation import EmulatorBackend, KernelFault
from gemmgen.sanitizer.findings import code_of
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.baked_cases import cases_of
from gemmgen.verification.runner import verify_case
from tests.proof.test_differential import ALL

KERNELS = (
    "gemm/wgmma/bf16/64x64",
    "gemm/wgmma/bf16/128x88",
    "gemm/wgmma/fp8/64x32",
    "gemm/wgmma/fp8/64x64",
    "gemm/wgmma/int8/64x64",
    "gemm/wgmma/tf32/64x48",
    "gemm/wgmma/bf16_decode/32",
    "gemm/wgmma/fp8_decode/16",
    "gemm/wgmma/bf16_split_k/64x64",
    "gemm/mma_sync/bf16/32x32",
    "gemm/mma_sync/bf16_tall/64x16_k16",
    "gemm/mma_sync/bf16_direct/16x16",
    "gemm/simt/sgemm_small/nn",
    "gemm/simt/sgemm_tiny/nt",
    "gemm/simt/half/f16_small_nt_unaligned",
    "gemm/simt/batched/large_nn",
    "gemm/simt/linear/bias_relu",
    "gemm/v1_tiled",
    "gemm/gemv/rows/one",
    "gemm/gemv/columns/whole32",
    "reduction/columns/32",
    "reduction/sum/1m",
    "reduction/rows/128",
    "reduction/s8_streaming",
    "elementwise/general/flat",
    "elementwise/grid_stride",
)
CASES, STEP_LIMIT, PROOF_SECONDS = 4, 400_000, 60.0

Change = Callable[[re.Match[str]], str]
RINGS: dict[str, tuple[str, Change]] = {
    "a slot is not released": (r"mbarrier\.arrive\.shared::cta\.b64 _, \[[^;]*;", lambda found: ""),
    "a slot is released twice": (r"mbarrier\.arrive\.shared::cta\.b64 _, \[[^;]*;", lambda found: 2 * found[0]),
    "bytes are promised twice": (r"mbarrier\.arrive\.expect_tx[^;]*;", lambda found: 2 * found[0]),
    "nothing is promised": (r"mbarrier\.arrive\.expect_tx[^;]*;", lambda found: ""),
    "more bytes are promised": (r"(mbarrier\.arrive\.expect_tx[^;]*, )(\d+);", lambda found: f"{found[1]}{int(found[2]) + 16};"),
    "a box is not fetched": (r"cp\.async\.bulk\.tensor\.2d\.shared::cluster[^;]*;", lambda found: ""),
    "a box is not stored": (r"cp\.async\.bulk\.tensor\.2d\.global[^;]*;", lambda found: ""),
    "coordinates are exchanged": (r"\{(%r\d+), (%r\d+)\}", lambda found: f"{{{found[2]}, {found[1]}}}"),
    "no fence of products": (r"wgmma\.fence[^;]*;", lambda found: ""),
    "no end of a group of products": (r"wgmma\.commit_group[^;]*;", lambda found: ""),
    "no wait for products": (r"wgmma\.wait_group[^;]*;", lambda found: ""),
    "one group more in flight": (r"(wgmma\.wait_group\S*\s+)(\d+);", lambda found: f"{found[1]}{int(found[2]) + 1};"),
    "no fence between proxies": (r"fence\.proxy\.async[^;]*;", lambda found: ""),
    "no barrier of a group": (r"bar\.sync %r[^;]*;", lambda found: ""),
    "no wait for boxes that leave": (r"cp\.async\.bulk\.wait_group[^;]*;", lambda found: ""),
    "the other parity": (r"(xor\.b32\s+%r\d+, %r\d+, )1;", lambda found: f"{found[1]}0;"),
    "one stage more": (r"(setp\.(?:eq|ne)\.s32\s+%p\d+, %r\d+, )([3-9]);", lambda found: f"{found[1]}{int(found[2]) + 1};"),
    "one stage less": (r"(setp\.(?:eq|ne)\.s32\s+%p\d+, %r\d+, )([3-9]);", lambda found: f"{found[1]}{int(found[2]) - 1};"),
    "one arrival more": (r"(mbarrier\.init[^;]*, )(%r\d+|\d+);", lambda found: f"{found[1]}5;"),
    "another operand": (r"wgmma\.mma_async[^;]*?(%rd\d+), (%rd\d+)", lambda found: found[0].replace(found[2], found[1])),
    "a descriptor further on": (r"(add\.s64\s+%rd\d+, %rd\d+, )(\d+);", lambda found: f"{found[1]}{int(found[2]) + 2};"),
    "a counter without release": (r"atom\.add\.acq_rel\.gpu", lambda found: "atom.add.relaxed.gpu"),
    "two tickets of a block": (r"atom\.add\.acq_rel[^;]*;", lambda found: 2 * found[0]),
    "no transposition": (r"(ldmatrix|stmatrix)(\S*)\.trans", lambda found: f"{found[1]}{found[2]}"),
    "another fragment": (r"(mma\.sync[^;]*\{)(%r\d+), (%r\d+)", lambda found: f"{found[1]}{found[3]}, {found[2]}"),
}
KINDS = {**ALL, **RINGS}
CONTRADICTED = {
    "memory": ("out-of-bounds", "misaligned", "read-only", "invalid-address", "unallocated"),
    "races": ("shared-race", "in-flight", "missing-proxy", "copy-without-proxy", "unfinished", "register-in-flight"),
    "progress": ("divergent-barrier", "deadlock", "divergent-warp", "endless"),
    "initialised": ("uninitiali", "undefined", "unwritten"),
}
"""Beginnings of the codes of faults that contradict a property."""
EVERYTHING = frozenset(("memory", "races", "once", "progress", "initialised", "complete", "coverage"))


class Mutant(TypedDict):
    """One changed statement, the emulator's fault, and the properties that are proved nevertheless."""

    kernel: str
    kind: str
    line: int
    problem: dict[str, int]
    code: str
    fault: str
    proved: list[str]
    contradicted: list[str]
    seconds: float


def changed(name: str, ptx: str, drawn: int) -> tuple[str, int, str] | None:
    """The kind, the line and the text of a change; every kind that has a place is as likely as another one."""
    numbers = random.Random(f"{name} {drawn}")
    for kind in numbers.sample(list(KINDS), len(KINDS)):
        pattern, into = KINDS[kind]
        places = [found for found in re.finditer(pattern, ptx) if found.start() > ptx.index(".entry")]
        if places:
            found = numbers.choice(places)
            text = ptx[: found.start()] + into(found) + ptx[found.end() :]
            if text != ptx:
                return kind, ptx.count("\n", 0, found.start()) + 1, text
    return None


def fault_of(plan: KernelPlan, binary: Binary, drawn: int) -> tuple[dict[str, int], str, str] | None:
    """The first fault on drawn cases of the kernel's verification: its problem, its code and its message."""
    cases = cases_of(plan)
    for case in random.Random(drawn).sample(cases, min(CASES, len(cases))):
        code = ""
        try:
            message = verify_case(plan, binary, _Backend(), case).failure
        except _Fault as fault:
            code, message = fault.code, str(fault)
        except GemmgenError as error:
            return None if "does not" in str(error) else (dict(case.dimensions), "not run", str(error))
        if message:
            return dict(case.dimensions), code or "wrong results", message.strip().splitlines()[0][:300]
    return None


class _Fault(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Backend(EmulatorBackend):
    """Reports the kind of a fault."""

    def __init__(self) -> None:
        super().__init__(step_limit=STEP_LIMIT)

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Runs a sequence. Raises ``_Fault``."""
        try:
            return super().run(*arguments, **options)
        except KernelFault as fault:
            cause = fault.__cause__
            raise _Fault(code_of(type(cause)) if cause is not None else "fault", str(fault)) from None


def examine(name: str, drawn: int, end: float) -> Mutant | str:
    """One mutant; a text where there is none, or where the emulator finds no fault."""
    if time.time() >= end:
        return "no time is left"
    began = time.process_time()
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, KernelPlan)
    binary = compile_plan(plan)
    change = changed(name, binary.ptx, drawn)
    if change is None:
        return "no place for a change"
    kind, line, ptx = change
    try:
        fault = fault_of(plan, dataclasses.replace(binary, ptx=ptx), drawn)
    except Exception as error:  # a text that is no PTX any more
        return f"{type(error).__name__}: {error}"[:200]
    if fault is None:
        return "no fault"
    if time.time() + PROOF_SECONDS >= end:
        return "no time is left"
    problem, code, message = fault
    proofs = prove_sequence(plan.sequence, ptx, PROOF_SECONDS)
    proved = sorted(set.intersection(*[set(proof.proved) for proof in proofs]))
    wrong = [each for each, starts in CONTRADICTED.items() if code.startswith(starts) and each in proved]
    read_before = any(isinstance(each, ArrayArgument) and each.reads and each.writes for each in plan.sequence.arguments)
    if set(proved) >= EVERYTHING and not read_before:  # the epilogue's use of the old result is part of no property
        wrong = wrong or ["everything"]
    return Mutant(
        kernel=name,
        kind=kind,
        line=line,
        problem=problem,
        code=code,
        fault=message,
        proved=proved,
        contradicted=wrong,
        seconds=round(time.process_time() - began, 1),
    )


@click.command()
@click.option("--mutants", "wanted", type=int, default=300, help="Mutants that are drawn.")
@click.option("--first", type=int, default=0, help="Number of the first draw: other numbers are other mutants.")
@click.option("--jobs", type=int, default=None)
@click.option("--seconds", type=float, default=440.0, help="Seconds of the clock.")
@click.option("--out", type=Path, default=Path("measurements"))
@click.option("--kernels", default="", help="Only kernels whose name contains this.")
def main(wanted: int, first: int, jobs: int | None, seconds: float, out: Path, kernels: str) -> None:
    """Writes proof_mutants.json."""
    names = [name for name in KERNELS if kernels in name and name in shipped_specs()]
    end = time.time() + seconds
    tasks = [(names[number % len(names)], first + number // len(names), end) for number in range(wanted)]
    found: list[Mutant] = []
    without: dict[str, int] = {}
    for _, result in run_tasks(examine, tasks, jobs or cpus()):
        if isinstance(result, dict):
            found.append(result)
        else:
            reason = str(result).partition(":")[0]
            without[reason] = without.get(reason, 0) + 1
        run = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "faulty": len(found),
            "kernels": len({each["kernel"] for each in found}),
            "kinds": len({each["kind"] for each in found}),
            "contradicted": sum(bool(each["contradicted"]) for each in found),
            "others": without,
        }
        ordered = sorted(found, key=lambda each: (each["kernel"], each["kind"], each["line"]))
        text = ",\n".join(json.dumps(each) for each in ordered)
        (out / "proof_mutants.json").write_text(f'{{"run": {json.dumps(run)}, "mutants": [\n{text}\n]}}\n')
    click.echo(json.dumps(run))
    if any(each["contradicted"] for each in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
