"""Requests to quantise: which instance does them, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gemmgen.core.formulas import Formula
from gemmgen.kernels.problem_words import unknown_word
from gemmgen.kernels.quantise.plan import READ_BYTES, SHAPES, QuantisePlan
from gemmgen.kernels.quantise.spec import QuantiseSpec
from gemmgen.kernels.requests import Fit, Layout, Request, changed_fields, replaced, say_once, widest

INPUTS, OUTPUTS = ("f32", "f16", "bf16"), ("e4m3", "e5m2")
VECTOR = 8


@dataclass(frozen=True)
class QuantiseRequest(Request):
    """y and scales of a matrix x, row-major."""

    kind: ClassVar[str] = "quantise"
    x: Layout
    y: Layout
    scales: Layout
    block: str = "1x128"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def is_empty(self) -> bool:
        return self.y.is_empty and self.scales.is_empty

    @property
    def by_rows(self) -> bool:
        """True if scales along a row are adjacent."""
        (rows, columns), (down, across) = self.scales.shape, self.scales.strides
        return self.scales.is_empty or ((columns == 1 or across == 1) and (rows == 1 or down >= columns))

    @property
    def vector(self) -> int:
        """Elements that a lane can read at a time: 8, or 1 where rows begin anywhere."""
        if self.x.is_empty:
            return VECTOR
        for layout in (self.x, self.y):
            wanted = min(VECTOR, READ_BYTES // layout.element_bytes)
            seen = [layout.alignment // layout.element_bytes, *([layout.strides[0]] if layout.shape[0] > 1 else [])]
            if widest(wanted, tuple(seen)) < wanted:
                return 1
        return VECTOR

    @property
    def traits(self) -> tuple[str, ...]:
        return (
            self.x.type,
            "" if self.y.type == "e4m3" else self.y.type,
            self.block,
            "" if self.scales.type == "f32" else self.scales.type,
            "" if self.by_rows else "mn",
            "" if self.vector == VECTOR else "unaligned",
        )


def fit(spec: QuantiseSpec, request: QuantiseRequest) -> Fit | str:
    """The instance's spec with the request's types and layouts; or why it cannot be."""
    if spec.block != request.block:
        return f"its scales are for {spec.block}"
    changes = {
        "input": request.x.type,
        "output": request.y.type,
        "scales": request.scales.type,
        "layout": "k_major" if request.by_rows else "mn_major",
        "vector": min(spec.vector, request.vector),
    }
    changed = replaced(spec, changes)
    arrays = {"x": ("x", request.x), "y": ("out", request.y), "scales": ("scales", request.scales)}
    return Fit(changed, arrays, derived=changed_fields(spec, changed))


def shape_of_scales(block: str, m: int, k: int) -> tuple[int, int]:
    """Blocks along rows and columns of x."""
    rows, columns = (Formula(extent).evaluate({"m": m, "k": k}) for extent in SHAPES[block])
    return rows, columns


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> QuantiseRequest:
    """A request from m, k and words: ``bf16``, ``e5m2``, ``128x128``, ``row``, ``tensor``, ``ue8m0``, ``mn`` (scales of neighbouring rows
    are adjacent), ``unaligned``. Raises ``SpecError``."""
    m, k = sizes
    said: dict[str, str] = {}
    words = {name: "input" for name in INPUTS} | {name: "output" for name in OUTPUTS} | {name: "block" for name in SHAPES}
    words |= {"ue8m0": "type of scales", "mn": "order of scales", "unaligned": "alignment", "aligned": "alignment"}
    for option in options:
        if option not in words:
            raise unknown_word("a problem of quantisation", option, tuple(words), ", ".join(words))
        say_once(said, words[option], option)
    block, kind = said.get("block", "1x128"), said.get("type of scales", "f32")
    rows, columns = shape_of_scales(block, m, k)
    scales = Layout.packed((rows, columns), kind)
    if "order of scales" in said:
        scales = Layout((rows, columns), (1, max(rows, 1)), kind)
    x, y = Layout.packed((m, k), said.get("input", "bf16")), Layout.packed((m, k), said.get("output", "e4m3"))
    if said.get("alignment") == "unaligned":
        x, y = (Layout(one.shape, one.strides, one.type, one.element_bytes) for one in (x, y))
    return QuantiseRequest(x, y, scales, block)


SIZES = ((1, 4096), (16, 4096), (128, 7168), (4096, 4096), (4096, 7168), (16384, 16384))


def problem_grid(fine: bool) -> list[str]:
    """Activations of layers, and their weights."""
    blocks = SHAPES if fine else ("1x128", "row")
    return [f"{m},{k},bf16,{block}" for block in blocks for m, k in SIZES]


def operand_orders(plan: QuantisePlan) -> Mapping[str, str]:
    """None: arrays are read as they lie."""
    return {}


def settings(plan: QuantisePlan, problem: Mapping[str, int], device: object) -> list[dict[str, int]]:
    """Nothing is left to the launch."""
    return [{}]
