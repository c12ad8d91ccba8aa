"""The small device functions that a tiled GEMM calls to copy elements, each once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.loop import TiledLoop
    from gemmgen.kernels.gemm.plan import GemmPlan


@dataclass(frozen=True)
class Helper:
    """A device function: the template and the macro in it that write the function, and the macro's arguments."""

    template: str
    name: str
    arguments: tuple[Any, ...] = ()


def fragment_helpers(plan: GemmPlan) -> tuple[Helper, ...]:
    """Packing and guarded reads of pairs for a kernel on tensor cores, whose factors stay as they are."""
    if plan.fragment_store not in ("boxes", "pairs"):
        return ()
    matrices = plan.residuals + ((plan.matrix_c,) if plan.spec.beta == "argument" else ())
    needed = [Helper("half", "pack", (plan.matrix_c.type,))] if plan.matrix_c.is_half else []
    for half in sorted({matrix.is_half for matrix in matrices}):
        needed.append(Helper("half" if half else "copy", "load_guarded", (2,)))
    for element in sorted({matrix.type for matrix in matrices if matrix.is_half}):
        needed.append(Helper("half", "load_converted", (2, element, True)))
    return tuple(needed)


def copy_helpers(plan: GemmPlan, loop: TiledLoop) -> tuple[Helper, ...]:
    """Copies of vectors between memories and registers; wide ones first, and what others call before those."""
    needed: dict[Helper, None] = {}

    def load(kind: str, width: int, half: bool) -> None:
        needed[Helper("half" if half else "copy", f"load_{kind}", (width,))] = None

    for operand in sorted(loop.copied, key=lambda operand: -operand.copy.vector):
        kind = "guarded" if operand.guarded else "whole"
        if operand.is_async:
            arguments = operand.copy.vector, operand.element_bytes, operand.l2_prefetch, operand.keeps_in_l1
            needed[Helper("copy", f"copy_async_{kind}", arguments)] = None
            if operand.converts_fragments and operand.load_width > 1:
                load("whole", operand.load_width, half=True)
        else:
            load(kind, operand.copy.vector, operand.is_half)
    if loop.copies == "cp_async":
        needed[Helper("copy", "copy_async_groups")] = None
    kind = "whole" if plan.whole_minor else "guarded"
    if plan.store == "partial":
        needed[Helper("copy", f"store_{kind}", (plan.partial_vector,))] = None
        return tuple(needed)
    width, element = plan.vector_c, plan.matrix_c.type
    half = plan.matrix_c.is_half
    if plan.spec.beta == "argument" or plan.residuals:
        load(kind, width, half)
        if half:
            needed[Helper("half", "load_converted", (width, element, kind == "guarded"))] = None
    if half and width > 1:
        needed[Helper("half", "pack", (element,))] = None
    streaming = (True,) if plan.spec.cache.streaming_stores else ()
    stored = (width, element, *streaming) if half else (width, *streaming)
    needed[Helper("half" if half else "copy", f"store_{kind}", stored)] = None
    return tuple(needed)
