"""Instances that run on the host's processor: calls on arrays, threads, and the errors that are found."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest
from kernels.cpu_gemm.specs import HERE, blocked
from waiting import PATIENCE

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.kernels.family import Case
from gemmgen.runtime.native import LoadedLibrary, NativeBackend, NativeKernel
from gemmgen.toolchain.compilation import compile_host_plan
from gemmgen.toolchain.host import HostBinary, compile_c
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary
from gemmgen.verification.sanitized import verify_sanitized

pytestmark = pytest.mark.skipif(not HERE, reason="this machine runs no code for x86-64-v3")

SMALL = {"micro_kernel": {"rows": 2, "columns": 8}, "blocks": {"m": 8, "n": 24, "k": 12}}
THREADED = blocked(threads={"count": 3, "least_work": 1000})


@pytest.fixture(scope="module")
def kernel() -> NativeKernel:
    compiled = gemmgen.compile(THREADED)
    assert isinstance(compiled, NativeKernel)
    return compiled


def product(m: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return a, b, np.full((m, n), np.nan, np.float32)


def test_a_kernel_is_called_on_arrays(kernel: NativeKernel) -> None:
    a, b, c = product(70, 51, 33)
    kernel(A=a, B=b, C=c)
    assert (c == a @ b).all()


def test_formulas_of_extrema_are_right_beside_blocks() -> None:
    plan = gemmgen.plan({**blocked(**SMALL), "epilogue": [{"op": "formula", "value": "max(min(acc, 3), -2)"}]})
    assert verify_binary(plan, compile_host_plan(plan), NativeBackend()).passed


def test_a_slice_is_worked_on_in_place(kernel: NativeKernel) -> None:
    a, b, _ = product(20, 30, 33)
    whole = np.zeros((40, 60), np.float32)
    kernel(A=a, B=b, C=whole[5:25, 10:40], alpha=2.0)
    assert (whole[5:25, 10:40] == 2 * (a @ b)).all()
    assert np.count_nonzero(whole) == np.count_nonzero(a @ b)


def test_shapes_that_do_not_fit_are_an_error(kernel: NativeKernel) -> None:
    a, b, c = product(20, 30, 33)
    with pytest.raises(LaunchError, match="k"):
        kernel(A=a, B=b[:-1], C=c)


def test_calls_from_many_threads_agree(kernel: NativeKernel) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        a, b, c = product(90, 80, 70, seed)
        for _ in range(20):
            c[...] = np.nan
            kernel(A=a, B=b, C=c)
            if not (c == a @ b).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _multiply(kernel: NativeKernel, results: Any) -> None:
    a, b, c = product(90, 80, 70)
    kernel(A=a, B=b, C=c)
    results.put(bool((c == a @ b).all()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own(kernel: NativeKernel) -> None:
    a, b, c = product(90, 80, 70)
    kernel(A=a, B=b, C=c)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_multiply, args=(kernel, results))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert results.get()


def test_threads_can_be_set_and_told(kernel: NativeKernel) -> None:
    assert kernel.library.set_threads(2) == 3
    assert kernel.library.set_threads(0) == 2
    assert kernel.library.set_threads(0) == 3


def test_a_library_of_another_processor_is_refused() -> None:
    plan = gemmgen.plan(blocked())
    with pytest.raises(EnvironmentMissing, match="which this machine is not"):
        LoadedLibrary(HostBinary(plan.name, "aarch64", b"", "cc", ()), plan.sequence)


MUTATIONS = {
    "a step of k is left out": ("k < depth; ++k) {\n        add_products", "k + 1 < depth; ++k) {\n        add_products"),
    "beta is applied to every slice": ("k == 0 ? p->beta : 1.0f", "p->beta"),
    "a row ends a lane too late": ("vector_store_first(to, lanes,", "vector_store_first(to, lanes + 1,"),
    "rows of C are one element too far apart": (".ldc = p->ldc", ".ldc = p->ldc + 1"),
    "C is read with beta of 0": ("p->beta == 0.0f ? 0.0f : p->beta * *c", "p->beta * *c"),
    "the last part is left out": ("turn < parts; ++turn", "turn + 1 < parts; ++turn"),
}


def mutant(name: str) -> tuple[Any, str]:
    plan = gemmgen.plan(THREADED)
    text, (old, new) = render(plan).text, MUTATIONS[name]
    assert old in text
    return plan, text.replace(old, new)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_error_is_found(name: str) -> None:
    plan, text = mutant(name)
    options = [option for option in plan.compiler_options if option != "-O2"]
    binary = compile_c(text, name=plan.name, architecture=plan.architecture, options=(*options, "-O1"))
    assert not verify_binary(plan, binary, NativeBackend()).passed


def test_a_write_beyond_an_array_is_found() -> None:
    plan = gemmgen.plan(blocked())
    text = render(plan).text.replace("return multiply(&p);", "C[(long)m * ldc] = 1.0f;\n    return multiply(&p);")
    binary = compile_c(text, name=plan.name, architecture=plan.architecture, options=plan.compiler_options)
    case: Case = oracle_of(plan.spec.kind).cases(plan)[0]
    report = verify_binary(plan, binary, NativeBackend(), cases=[case])
    assert "wrote behind C" in report.results[0].failure


def test_the_sanitizers_find_nothing() -> None:
    report = verify_sanitized(gemmgen.plan(blocked(**SMALL, threads={"count": 2, "least_work": 1000}, transpose="nt")))
    assert report.passed, report.finding


def test_the_sanitizers_see_a_read_beyond_an_array(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    # A compiler of the same name that plants an error in its input.
    script = tmp_path / "cc"
    plant = r"s/return multiply(&p);/return A[(long)m * lda] == 12345.0f ? 1 : multiply(\&p);/"
    script.write_text(f"#!/bin/sh\nfor file; do case $file in *.c) sed -i '{plant}' $file;; esac; done\nexec gcc \"$@\"\n")
    script.chmod(0o755)
    monkeypatch.setenv("GEMMGEN_CC", str(script))
    report = verify_sanitized(gemmgen.plan(blocked(**SMALL, label="reads_beyond")))
    assert "heap-buffer-overflow" in report.finding
