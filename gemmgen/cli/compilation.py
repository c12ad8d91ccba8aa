"""Compiling many plans in parallel, with progress."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from gemmgen.cli.output import progress_bar
from gemmgen.core.errors import CompileError

if TYPE_CHECKING:
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.toolchain.nvrtc import Binary


def compile_plans(plans: Sequence[KernelPlan], *, line_info: bool = True) -> list[Binary]:
    """The binary of each plan, through the user's cache, with or without the lines of the source.

    Raises ``CompileError`` with the errors of all that failed.
    """
    from gemmgen.codegen.rendering import render
    from gemmgen.core.cache import Cache
    from gemmgen.toolchain.compilation import COMPILE_OPTIONS
    from gemmgen.toolchain.nvrtc import CompileJob, compile_many

    jobs = []
    for plan in plans:
        source = render(plan)
        jobs.append(CompileJob(source.text, plan.architecture.name, COMPILE_OPTIONS, source.file_name, line_info))
    with progress_bar() as progress:
        task = progress.add_task("compiling", total=len(jobs))
        results = compile_many(jobs, cache=Cache(), on_finished=partial(progress.advance, task))
    errors = [result for result in results if isinstance(result, CompileError)]
    if errors:
        raise CompileError("\n".join(str(error) for error in errors), "\n".join(error.log for error in errors))
    return [result for result in results if not isinstance(result, CompileError)]
