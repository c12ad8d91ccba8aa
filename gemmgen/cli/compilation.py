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
    """The binary of each plan, all of one target, through the user's cache, with or without the lines of the source.

    Raises ``CompileError`` with the errors of all that failed.
    """
    from gemmgen.runtime.targets import target_of

    if not plans:
        return []
    with progress_bar() as progress:
        task = progress.add_task("compiling", total=len(plans))
        results = target_of(plans[0].spec.kind).compile_all(plans, line_info, partial(progress.advance, task))
    errors = [result for result in results if isinstance(result, CompileError)]
    if errors:
        raise CompileError("\n".join(str(error) for error in errors), "\n".join(error.log for error in errors))
    return [result for result in results if not isinstance(result, CompileError)]
