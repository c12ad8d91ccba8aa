"""Proofs of small kernels for all sizes, and of the same kernels with one mistake."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("z3")

import z3

import gemmgen
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.proof.prover import KernelProof, domain, prove_sequence
from gemmgen.proof.terms import forget_terms
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from tests.proof.kernels import SAMPLES, Sample

MISTAKES = [(name, mistake) for name, sample in SAMPLES.items() for mistake in sample.mistakes]


def proof_of(sample: Sample, source: str, architecture: str = "sm_80") -> KernelProof:
    binary = compile_source(source, architecture=architecture, options=[], name="sample.cu")
    return prove_sequence(sample.sequence, binary.ptx, seconds=120)[0]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_right_kernel_is_proved(name: str) -> None:
    sample = SAMPLES[name]
    proof = proof_of(sample, sample.source)
    assert {each.name: each.reasons for each in proof.properties if each.status != "proved" and each.name not in sample.unproved} == {}


@pytest.mark.parametrize(("name", "mistake"), MISTAKES, ids=[f"{name}: {mistake}" for name, mistake in MISTAKES])
def test_a_mistake_is_not_proved(name: str, mistake: str) -> None:
    sample = SAMPLES[name]
    text, instead, wrong = sample.mistakes[mistake]
    assert text in sample.source
    proof = proof_of(sample, sample.source.replace(text, instead, 1))
    assert wrong not in proof.proved


def test_low_words_are_divided_only_if_high_words_are_zero() -> None:
    sample = SAMPLES["vectors"]
    ptx = compile_source(sample.source, architecture="sm_80", options=[], name="sample.cu").ptx
    right = prove_sequence(sample.sequence, ptx, 120)[0]
    assert {"memory", "once", "complete"} <= {*right.proved}
    for old, new in (
        (", -4294967296;", ", -8589934592;"),
        (", -4294967296;", ", 4294967295;"),
        ("or.b64 ", "and.b64 "),
        ("or.b64 ", "xor.b64 "),
    ):
        assert ptx.count(old) == 1
        wrong = prove_sequence(sample.sequence, ptx.replace(old, new), 120)[0]
        assert "memory" not in wrong.proved or "once" not in wrong.proved, (old, new)


def test_a_counterexample_names_sizes_and_thread() -> None:
    sample = SAMPLES["scale"]
    proof = proof_of(sample, sample.source.replace("i < n", "i <= n"))
    found = next(each for each in proof.properties if each.name == "memory")
    assert found.counterexample is not None
    problem, thread = found.counterexample["problem"], found.counterexample["thread"]
    assert thread["ctaid.x"] * 256 + thread["tid.x"] == problem["n"] <= 300


@pytest.mark.parametrize(
    ("statement", "obstacle"),
    [
        ('asm volatile("bar.sync 1, 64;");', "waits for 64 threads"),
        ('asm volatile("fence.proxy.async;");', "fences between proxies"),
        ('asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" :: "r"(0));', "shared memory that is not one array"),
    ],
)
def test_statements_without_a_model_leave_all_unproved(statement: str, obstacle: str) -> None:
    sample = SAMPLES["scale"]
    proof = proof_of(sample, sample.source.replace("if (i < n)", f"{statement} if (i < n)"), "sm_90")
    assert proof.proved == ()
    assert all(obstacle in each.reasons[0] for each in proof.properties)


def test_a_branch_to_no_label_leaves_all_unproved() -> None:
    sample = SAMPLES["scale"]
    ptx = compile_source(sample.source, architecture="sm_80", options=[], name="sample.cu").ptx
    proof = prove_sequence(sample.sequence, ptx.replace("bra \t$L__BB0_2;", "bra \t$L__BB0_9;"), 60)[0]
    assert proof.proved == () and "$L__BB0_9 is no label" in proof.properties[0].reasons[0]


@pytest.mark.parametrize(
    ("pattern", "text", "reason"),
    [
        (r"bra \t\$L__BB0_2;", "bra %r1;", "no label"),
        (r"ld.param.u32 \t(%r\d+), \[.*\];", r"ld.param.u32 \1, %r2;", "without an address"),
        (r"ld.global.f32 \t(%f\d+), \[.*\];", r"ld.global.f32 \1, %rd2;", "without an address"),
        (r"\.entry \w+\(", ".entry other(", "no kernel"),
    ],
)
def test_malformed_ptx_leaves_all_unproved(pattern: str, text: str, reason: str) -> None:
    sample = SAMPLES["scale"]
    ptx = compile_source(sample.source, architecture="sm_80", options=[], name="sample.cu").ptx
    changed, count = re.subn(pattern, text, ptx)
    proof = prove_sequence(sample.sequence, changed, 60)[0]
    assert count and proof.proved == () and reason in proof.properties[0].reasons[0]


def test_time_that_is_used_up_leaves_properties_unproved() -> None:
    sample = SAMPLES["transpose"]
    binary = compile_source(sample.source, architecture="sm_80", options=[], name="sample.cu")
    proof = prove_sequence(sample.sequence, binary.ptx, seconds=0.0)[0]
    assert proof.proved == () and "time" in proof.properties[0].reasons[0]


def test_the_domain_names_every_precondition() -> None:
    assert domain(SAMPLES["transpose"].sequence)[-4:] == (
        "ldx >= n",
        "ldy >= m",
        "no two arrays overlap",
        "no grid of more than 2^30 blocks",
    )
    assert domain(SAMPLES["batch"].sequence)[-2:] == (
        "different elements of y have different addresses",
        "no grid of more than 2^30 blocks",
    )


def test_launches_before_an_early_one_are_waited_for() -> None:
    plan = gemmgen.plan(gemmgen.load_spec(shipped_specs()["reduction/sum/1k"]))
    assert isinstance(plan, KernelPlan) and plan.sequence.launches[0].programmatic
    ptx = compile_plan(plan).ptx
    early = ptx.replace("griddepcontrol.wait;", "")
    assert early != ptx
    proved = [prove_sequence(plan.sequence, text, seconds=30.0)[0].proved for text in (ptx, early)]
    assert "races" in proved[0] and "races" not in proved[1]


def test_terms_are_numbered_afresh_for_each_kernel() -> None:
    """z3 searches in the order of these numbers, so that earlier kernels would change the outcome."""
    forget_terms()
    number = z3.Int("x").get_id()
    kept = [z3.Int(f"x{each}") for each in range(100)]
    forget_terms()
    assert z3.Int("x").get_id() == number and len(kept) == 100


def test_proofs_ask_the_same_in_every_process() -> None:
    """Sets of texts have another order in another process."""
    program = """
import sys
from gemmgen.proof.prover import prove_sequence
from gemmgen.proof import terms
from tests.proof.kernels import SAMPLES
prove_sequence(SAMPLES["kept"].sequence, sys.stdin.read(), 60)
print([node.term.sexpr() for node in terms._NODES.values()])
"""
    ptx = compile_source(SAMPLES["kept"].source, architecture="sm_80", options=[], name="sample.cu").ptx
    asked = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        asked.add(
            subprocess.run([sys.executable, "-c", program], input=ptx, env=environment, capture_output=True, text=True, check=True).stdout
        )
    assert len(asked) == 1
