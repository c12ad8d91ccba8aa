"""Any spec that is accepted compiles without a warning and computes the right result."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import gemmgen
from gemmgen.codegen.rendering import render
from gemmgen.runtime.native import NativeBackend
from gemmgen.toolchain.host import compile_c
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case
from kernels.cpu_gemm.specs import HERE, random_specs

EXAMPLES = int(os.environ.get("GEMMGEN_RANDOM_CPU_SPECS", "6"))

pytestmark = pytest.mark.skipif(not HERE, reason="this machine runs no code for x86-64-v3")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(random_specs())
def test_accepted_specs_verify(fields: dict[str, Any]) -> None:
    plan = gemmgen.plan(fields)
    options = (*plan.compiler_options, "-O1", "-Wall", "-Wextra", "-Werror")
    binary = compile_c(render(plan).text, name=plan.name, architecture=plan.architecture, options=options)
    backend = NativeBackend()
    for case in oracle_of(plan.spec.kind).cases(plan):
        result = verify_case(plan, binary, backend, case)
        assert result.passed, (case, result.failure)


@pytest.mark.parametrize("kind", ["int32", "int64", "float16"])
def test_a_cast_value_is_what_is_stored(kind: str) -> None:
    plan = gemmgen.plan({"kind": "cpu_gemm", "loops": {"strategy": "naive"}, "epilogue": [{"op": "cast", "type": kind}]})
    report = gemmgen.verify(plan)
    assert report.passed, report.failures
