"""Instances for processors as libraries: the instance's own function, and BLAS's where its loops serve every storage order."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.codegen.rendering import render
from gemmgen.core.cache import Cache
from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan
from gemmgen.kernels.launch import Argument, ArrayArgument
from gemmgen.toolchain.host import compile_c

STAYS_LOADED = ("-Wl,-z,nodelete",)
"""Threads may wait in the library when a program closes it."""


def with_blas(plan: CpuGemmPlan) -> CpuGemmPlan:
    """The plan with BLAS's functions, if its loops can do what these ask for: both operands packed, no epilogue, alpha and beta."""
    blocked = plan.blocked
    serves_all = blocked is not None and blocked.packs_left and blocked.packs_right
    whole = not plan.epilogue and plan.spec.alpha == "argument" and plan.spec.beta == "argument"
    return replace(plan, blas=True) if serves_all and whole else plan


def shared_library(plan: CpuGemmPlan) -> bytes:
    """A shared library. Raises ``CompileError``, and ``EnvironmentMissing`` without a compiler."""
    source = render(with_blas(plan))
    options = (*plan.compiler_options, *STAYS_LOADED)
    return compile_c(source.text, name=plan.name, architecture=plan.architecture, options=options, cache=Cache()).library


def c_header(plan: CpuGemmPlan) -> str:
    """A C and C++ header that declares the library's functions."""
    exported = with_blas(plan)
    guard = f"{plan.name.upper()}_H"
    parameters = ", ".join(_declaration(argument) for argument in plan.sequence.arguments)
    lines = [
        f"// {plan.name}: C = {'epilogue of ' if plan.epilogue else ''}alpha A B + beta C on {plan.architecture.name}.",
        f"// Link with lib{plan.name}.so.",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "// Returns 0, or ENOMEM where there is no memory for packed operands.",
        f"int {plan.name}({parameters});",
    ]
    if plan.blocked is not None and plan.blocked.threaded:
        lines += ["", "// How many threads calls may use from now on, 0 for as many as the spec says; returns how many it was."]
        lines.append(f"int {plan.name}_threads(int count);")
    if exported.blas:
        lines += [
            "",
            "// BLAS: order is 101 for matrices stored by rows and 102 for those stored by columns, trans_a and trans_b are 111 for",
            "// the matrix, 112 and 113 for its transpose.",
            "void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,",
            "                 const float *b, int ldb, float beta, float *c, int ldc);",
            "void sgemm_(const char *trans_a, const char *trans_b, const int *m, const int *n, const int *k, const float *alpha,",
            "            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c, const int *ldc);",
        ]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif  // {guard}", ""]
    return "\n".join(lines)


def _declaration(argument: Argument) -> str:
    if isinstance(argument, ArrayArgument):
        return f"{'' if argument.writes else 'const '}{ELEMENTS[argument.type].c_type} *{argument.name}"
    return f"{ELEMENTS[argument.type].c_type} {argument.name}"  # type: ignore[union-attr]  # a processor's instance has no other arguments
