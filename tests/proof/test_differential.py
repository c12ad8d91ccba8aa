"""Right kernels changed at random in their PTX: no property is proved that a run of the mutant contradicts."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel
from gemmgen.proof.prover import KernelProof, Property, prove_sequence
from gemmgen.verification.contradictions import contradict
from tests.proof.test_held_out import WRONG, Wrong
from tests.proof.test_mutants import KINDS, Change

X, Y, N = "x=in f32[n]", "y=out f32[n]", "const float* x, float* y, int n"
RIGHT = {
    "stencil": Wrong(
        N,
        "__shared__ float s[66]; int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x; s[t + 1] = i < n ? x[i] : 0;"
        " if (t == 0) s[0] = i > 0 && i - 1 < n ? x[i - 1] : 0; if (t == 63) s[65] = i + 1 < n ? x[i + 1] : 0; __syncthreads();"
        " if (i < n) y[i] = s[t] + s[t + 1] + s[t + 2];",
        (X, Y),
        "",
    ),
    "transpose": Wrong(
        "const float* x, float* y, int m, int n",
        "__shared__ float s[8][9]; int r = threadIdx.x / 8, c = threadIdx.x % 8, a = blockIdx.y * 8, b = blockIdx.x * 8;"
        " s[r][c] = a + r < m && b + c < n ? x[(long long)(a + r) * n + b + c] : 0; __syncthreads();"
        " if (b + r < n && a + c < m) y[(long long)(b + r) * m + a + c] = s[c][r];",
        ("x=in f32[m, n]", "y=out f32[n, m]"),
        "",
        "ceil_div(n, 8), ceil_div(m, 8)",
    ),
    "quotients": Wrong(
        "const float* x, float* y, int m, int n",
        "int tiles = (n + 7) / 8, a = blockIdx.x / tiles * 8 + threadIdx.x / 8, b = blockIdx.x % tiles * 8 + threadIdx.x % 8;"
        " if (a < m && b < n) y[(long long)a * n + b] = x[(long long)a * n + b];",
        ("x=in f32[m, n]", "y=out f32[m, n]"),
        "",
        "ceil_div(m, 8) * ceil_div(n, 8)",
    ),
    "tree": Wrong(
        N,
        "__shared__ float s[64]; int t = threadIdx.x, i = blockIdx.x * 64 + t; s[t] = i < n ? x[i] : 0; __syncthreads();"
        " for (int h = 32; h > 0; h /= 2) { if (t < h) s[t] += s[t + h]; __syncthreads(); } if (t == 0) y[blockIdx.x] = s[0];",
        (X, "y=out f32[ceil_div(n, 64)]"),
        "",
    ),
}
MORE: dict[str, tuple[str, Change]] = {
    "a statement is missing": (r"\n\t[a-z][^\n;]*;", lambda found: "\n"),
    "signed as unsigned": (r"setp\.(\w\w)\.s(32|64)", lambda found: f"setp.{found[1]}.u{found[2]}"),
    "a shift of unsigned numbers": (r"shr\.s(32|64)", lambda found: f"shr.u{found[1]}"),
    "a difference for a sum": (r"add\.s(32|64)", lambda found: f"sub.s{found[1]}"),
    "or for and": (r"and\.(b32|pred)", lambda found: f"or.{found[1]}"),
    "and for or": (r"or\.(b32|pred)", lambda found: f"and.{found[1]}"),
    "half a number": (r"(, )(\d+);", lambda found: f"{found[1]}{int(found[2]) // 2};"),
    "twice a number": (r"(, )(\d+);", lambda found: f"{found[1]}{int(found[2]) * 2};"),
    "a number less": (r"(, )([1-9]\d*);", lambda found: f"{found[1]}{int(found[2]) - 1};"),
    "another register": (r"%r(\d+)(?=[,;\]])", lambda found: f"%r{max(1, int(found[1]) - 1)}"),
    "another address": (r"%rd(\d+)(?=[,;\]+])", lambda found: f"%rd{max(1, int(found[1]) - 1)}"),
    "another axis": (r"%tid\.x", lambda found: "%tid.y"),
    "a branch to elsewhere": (r"(bra\s+\$L__BB0_)(\d+)", lambda found: f"{found[1]}{int(found[2]) + 1}"),
}
ALL = {**KINDS, **MORE}
MUTANTS, PARTS, SECONDS = 5, 5, 15.0
DRAWN = ("stencil", "transpose", "quotients")
PROPERTIES = ("memory", "races", "once", "progress", "initialised", "complete")


def contradicted(kernel: ForeignKernel) -> dict[str, str]:
    """Properties that runs contradict, each with what they show."""
    claims = tuple(Property(name, "", "proved", 1, 1) for name in PROPERTIES)
    (judged,) = contradict(kernel.sequence, kernel.code.ptx, kernel.code.architecture, [KernelProof(kernel.entry.symbol, claims, 0, 0)])
    return {each.name: each.reasons[0] for each in judged.properties if each.status == "contradicted"}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", DRAWN)
def test_no_mutant_is_proved_that_runs_contradict(name: str, part: int, tmp_path: Path) -> None:
    kernel = RIGHT[name].read(tmp_path)
    ptx, numbers = kernel.code.ptx, random.Random(f"{name} {part}")
    places = [(kind, found) for kind, (pattern, _) in ALL.items() for found in re.finditer(pattern, ptx) if found.start() > ptx.index("{")]
    for kind, found in numbers.sample(places, MUTANTS):
        changed = ptx[: found.start()] + ALL[kind][1](found) + ptx[found.end() :]
        mutant = replace(kernel, code=replace(kernel.code, ptx=changed, source=None))
        if seen := contradicted(mutant):
            (proof,) = prove_sequence(mutant.sequence, changed, SECONDS)
            assert not seen.keys() & set(proof.proved), f"{kind}: {seen}"


@pytest.mark.parametrize("name", RIGHT)
def test_runs_of_the_right_kernels_contradict_nothing(name: str, tmp_path: Path) -> None:
    assert contradicted(RIGHT[name].read(tmp_path)) == {}


UNSEEN = {
    "a product that wraps",
    "one array inside another",
    "a pointer that iterations exchange",
    "a step of 0 or more",
    "a loop that may never meet its end",
    "half a warp at its barrier",
    "a copy that still reads what its thread stores",
    "few sizes",
    "an early return of a block",
}
"""Mistakes at sizes that no run has, in loops without an end, and in races of global memory."""


@pytest.mark.parametrize("name", sorted(WRONG.keys() - UNSEEN))
def test_runs_contradict_a_proof_of_a_wrong_kernel(name: str, tmp_path: Path) -> None:
    kernel = WRONG[name].read(tmp_path)
    names = (*PROPERTIES, *(["coverage"] if WRONG[name].property == "coverage" else []))
    claims = tuple(Property(each, "", "proved", 1, 1) for each in names)
    (judged,) = contradict(kernel.sequence, kernel.code.ptx, kernel.code.architecture, [KernelProof(kernel.entry.symbol, claims, 0, 0)])
    assert WRONG[name].property in {each.name for each in judged.properties if each.status == "contradicted"}


SGEMM = Wrong(
    "const float* A, const float* B, float* C, int m, int n, int k",
    "int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x; if (r >= m || c >= n) return; float s = 0;\n"
    "for (int p = 0; p < k; ++p) s += A[r * k + p] * B[p * n + c];\nC[r * n + c] = s > 0 ? s : 0;",
    ("A=in f32[m, k]", "B=in f32[k, n]", "C=out f32[m, n]"),
    "coverage",
    "ceil_div(n, 16), ceil_div(m, 16)",
    (16, 16),
    ("m <= 10000", "n <= 10000", "k <= 10000"),
)
MISTAKES = {
    "the last index": ("p < k", "p < k - 1"),
    "another index of B": ("B[p * n", "B[(p ^ 1 < k ? p ^ 1 : p) * n"),
    "another row from 64 columns on": ("A[r * k", "A[(n > 64 ? 0 : r) * k"),
    "the next column": ("B[p * n + c]", "B[p * n + (c + 1 < n ? c + 1 : c)]"),
    "a number for A": ("A[r * k + p]", "5.0f"),
    "no sum at all": ("s > 0 ? s : 0", "r"),
}
EPILOGUES = ("s > 0 ? s : 0", "fminf(s, -1e6f)", "s > 100 ? 1 : 0")


def coverage(kernel: ForeignKernel) -> str:
    claim = KernelProof(kernel.entry.symbol, (Property("coverage", "", "proved", 1, 1),), 0, 0)
    (judged,) = contradict(kernel.sequence, kernel.code.ptx, kernel.code.architecture, [claim])
    return judged.properties[0].status


@pytest.mark.parametrize("mistake", MISTAKES)
def test_sums_are_compared_without_a_reference(mistake: str, tmp_path: Path) -> None:
    body = SGEMM.body.replace(*MISTAKES[mistake])
    assert body != SGEMM.body and coverage(replace(SGEMM, body=body).read(tmp_path)) == "contradicted"


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues_contradict_no_sum(epilogue: str, tmp_path: Path) -> None:
    assert coverage(replace(SGEMM, body=SGEMM.body.replace(EPILOGUES[0], epilogue)).read(tmp_path)) == "proved"


@pytest.mark.parametrize("result", ["s * scale", "fminf(fmaxf(s, -scale), scale)"])
def test_parameters_of_an_epilogue_contradict_no_sum(result: str, tmp_path: Path) -> None:
    scaled = replace(SGEMM, parameters=SGEMM.parameters + ", float scale", body=SGEMM.body.replace(EPILOGUES[0], result))
    assert coverage(scaled.read(tmp_path)) == "proved"


def test_a_factor_of_0_contradicts_no_sum(tmp_path: Path) -> None:
    scaled = replace(SGEMM, parameters=SGEMM.parameters + ", const float* D", arrays=(*SGEMM.arrays, "D=in f32[n]"))
    assert coverage(replace(scaled, body=SGEMM.body.replace(EPILOGUES[0], "s * D[c]")).read(tmp_path)) == "proved"


def test_a_kernel_of_which_no_run_ends_is_not_proved(tmp_path: Path) -> None:
    endless = Wrong(
        N, "int i = blockIdx.x * 64 + threadIdx.x; volatile float v = 1; while (v > 0) ; if (i < n) y[i] = x[i];", (X, Y), "progress"
    )
    kernel = endless.read(tmp_path)
    claim = KernelProof(kernel.entry.symbol, (Property("progress", "", "proved", 1, 1),), 0, 0)
    (judged,) = contradict(kernel.sequence, kernel.code.ptx, kernel.code.architecture, [claim])
    assert judged.properties[0].status == "unproved" and "ended within" in judged.properties[0].reasons[0]


def test_a_kernel_that_cannot_run_is_not_proved(tmp_path: Path) -> None:
    kernel = RIGHT["stencil"].read(tmp_path)
    ptx = kernel.code.ptx.replace("\tret;", "\tabs.b32 %r1, %r1;\n\tret;")
    claim = KernelProof(kernel.entry.symbol, (Property("memory", "", "proved", 1, 1),), 0, 0)
    (judged,) = contradict(kernel.sequence, ptx, kernel.code.architecture, [claim])
    assert judged.properties[0].status == "unproved" and "unknown instruction" in judged.properties[0].reasons[0]


def test_a_store_beyond_its_array_says_nothing_of_another_one(tmp_path: Path) -> None:
    """Memory is not proved: a load beyond the end of x may reach y, which holds nothing yet."""
    wrong = Wrong(N, "int i = blockIdx.x * 64 + threadIdx.x; if (i < n) y[i] = x[i + 96];", (X, Y), "memory")
    kernel = wrong.read(tmp_path)
    claims = tuple(Property(name, "", "proved", 1, 1) for name in ("initialised", "once", "races"))
    (judged,) = contradict(kernel.sequence, kernel.code.ptx, kernel.code.architecture, [KernelProof(kernel.entry.symbol, claims, 0, 0)])
    assert [each.status for each in judged.properties] == ["proved"] * 3
