"""Requests for operations on rows: which instance does them, and with how many lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast, get_args

from gemmgen.core.elements import ELEMENTS
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.problem_words import unknown_word
from gemmgen.kernels.requests import Fit, Layout, Request, changed_fields, replaced, say_once, widest
from gemmgen.kernels.rows.plan import MAX_SELECTED, MAX_SUMMED_ELEMENTS, SHORT_ROWS_THREADS, TYPICAL_SELECTED, RowsPlan, resident_threads
from gemmgen.kernels.rows.programs import GRADIENTS_OF_NORMS, NORMS, Program, program
from gemmgen.kernels.rows.spec import RowOperation, RowsSpec

OPERATIONS: tuple[RowOperation, ...] = get_args(RowOperation)
INPUTS = ("f32", "f16", "bf16")
LANES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
HELD_WORDS = 32
"""Registers, at most, in which a thread keeps the elements of all matrices."""
FEW_WORDS = 16
"""Registers that it should keep them in: more lanes work on a row before a lane keeps more."""
SUMMING_LANES = 128
"""Lanes at least where values are summed over rows, unless fewer hold a row in one vector each: 16384 x 1024 of float16, the gradients of a
layer norm, take 57.9 us with 128, 60.5 with 64."""
WIDE_LANES, WIDE_WORDS = 512, 20
"""Registers that 512 lanes keep before 1024 work on a row: 1024 x 20000 softmax of bfloat16 takes 25.3 us with 512, 28.3 with 1024."""
MAX_SHIFTED_ELEMENTS = 40
"""Elements that a thread may hold of a row which begins anywhere: reading its ends one by one takes registers, too."""
SUMMING_SMS = 132
"""SMs that divide rows whose values are summed over rows: each block's sums are written, and read once more."""


@dataclass(frozen=True)
class RowsRequest(Request):
    """An operation on the rows of matrices of one shape."""

    kind: ClassVar[str] = "rows"
    operation: RowOperation
    layouts: tuple[tuple[str, Layout], ...]
    """Operands and results by the names of the operation's program."""
    smallest: bool = False
    """topk of the smallest elements."""

    @property
    def arrays(self) -> dict[str, Layout]:
        """These by name."""
        return dict(self.layouts)

    @property
    def program(self) -> Program:
        """Formulas of the operation with these operands."""
        named = self.arrays
        weight, bias = "dweight" in named or "weight" in named, "bias" in named or "dbias" in named
        return program(self.operation, self.first.type, weight, bias, "residual" in named)

    @property
    def first(self) -> Layout:
        """The first matrix that is read."""
        return self.layouts[0][1]

    @property
    def weight(self) -> str | None:
        """Type of the factors for columns; None without any."""
        layout = self.arrays.get("weight")
        return None if layout is None else layout.type

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.first.shape

    @property
    def is_empty(self) -> bool:
        if self.program.selects:
            return self.results[0].is_empty
        return self.first.is_empty and not any(len(layout.shape) == 1 for layout in self.results)

    @property
    def results(self) -> tuple[Layout, ...]:
        made = self.program
        return tuple(self.arrays[name] for name in (*made.outputs, *made.column_sums))

    @property
    def read(self) -> tuple[Layout, ...]:
        """Arrays whose vectors begin at the same columns: all, but the short results of topk."""
        return (self.first,) if self.program.selects else tuple(self.arrays.values())

    @property
    def selected(self) -> int:
        """Elements of a row that topk finds; 0 for other operations."""
        return self.arrays["values"].shape[1] if self.program.selects else 0

    @property
    def vector(self) -> int:
        """Elements that begin every row at a multiple of their size, of at most 16 bytes."""
        seen = [self.first.shape[1]]
        for layout in self.read:
            seen.append(layout.alignment // layout.element_bytes or 1)
            if len(layout.shape) == 2 and layout.shape[0] > 1:
                seen.append(layout.strides[0])
        most = 16 // self.first.element_bytes
        vectors = [layout for layout in self.read if len(layout.shape) == 1]
        # Vectors of float32 beside those of halves are aligned to 16 bytes, if not to their whole size.
        seen = [value * 2 if value * 2 == most and vectors and index else value for index, value in enumerate(seen)]
        return widest(most, tuple(seen))

    @property
    def traits(self) -> tuple[str, ...]:
        weight = self.arrays.get("weight")
        named = "" if weight is None else "weight" if weight.type == self.first.type else f"weight_{weight.type}"
        bias = "bias" if self.program.vectors[1:] or "dbias" in self.arrays else ""
        whole = self.vector == 16 // self.first.element_bytes
        residual = "residual" if "residual" in self.arrays else ""
        words = (self.operation, self.first.type, named, bias, residual, "" if whole else "unaligned")
        return (*words, "smallest" if self.smallest else "", f"k={self.selected}" if self.program.selects else "")


def numbers(request: RowsRequest) -> dict[str, Any]:
    """Lanes, vectors and elements in registers for a request.

    A row is held in registers if it fits: by few lanes with several vectors each, which are in flight together, and by more lanes where
    those had to keep too many. At least eight lanes read 128 bytes at a time: 65536 x 128 softmax of float16 takes 9.8 us, 10.8 with four.
    """
    columns, element_bytes = request.sizes[1], request.first.element_bytes
    made = request.program
    if made.selects:
        return _numbers_of_selection(request)
    most = 16 // element_bytes
    summed = bool(made.column_sums)
    aligned = summed or request.vector == most
    vector = request.vector if aligned else most
    words = max(vector * element_bytes // 4, 1) * len(made.matrices)
    spare = 0 if aligned else vector - 1
    best = None
    least = SUMMING_LANES if summed else LANES[1] if most == vector else LANES[0]
    for limit in (FEW_WORDS, HELD_WORDS):
        for lanes in LANES:
            if lanes < least and columns > lanes * vector:
                continue
            held = -(-(columns + spare) // (lanes * vector)) or 1
            allowed = max(limit, WIDE_WORDS) if lanes == WIDE_LANES else limit
            fits = held <= 16 and held * words <= allowed and (not summed or held * vector <= MAX_SUMMED_ELEMENTS)
            fits = fits and (aligned or held * vector <= MAX_SHIFTED_ELEMENTS)
            if fits and best is None:
                best = lanes, held
    lanes, held = best or (LANES[-1], 0)
    threads = lanes if lanes > WARP_THREADS else SHORT_ROWS_THREADS
    blocks = SUMMING_SMS * max(resident_threads(threads) // threads, 1) if summed else RowsSpec.model_fields["blocks"].default
    return {"lanes": lanes, "vector": vector, "held": held, "aligned": aligned, "blocks": blocks}


def _numbers_of_selection(request: RowsRequest) -> dict[str, object]:
    """Numbers of topk: warps, and vectors no longer than k allows, as the first elements of k vectors bound the others."""
    columns, element_bytes = request.sizes[1], request.first.element_bytes
    most = 16 // element_bytes
    aligned = request.vector == most
    vector = most
    while vector > 1 and columns < vector * request.selected * 2:
        vector //= 2
    spare = 0 if aligned else vector - 1
    words = max(vector * element_bytes // 4, 1)
    for limit in (FEW_WORDS, HELD_WORDS):
        for lanes in LANES[LANES.index(WARP_THREADS) :]:
            held = -(-(columns + spare) // (lanes * vector)) or 1
            if held <= 16 and held * words <= limit and (aligned or held * vector <= MAX_SHIFTED_ELEMENTS):
                return {"lanes": lanes, "vector": vector, "held": held, "aligned": aligned}
    return {"lanes": LANES[-1], "vector": vector, "held": 0, "aligned": aligned}


def fit(spec: RowsSpec, request: RowsRequest) -> Fit | str:
    """The instance's spec with the request's types and lengths; or why it cannot be."""
    if spec.operation != request.operation:
        return f"it computes {spec.operation}"
    made = request.program
    if made.column_sums and not numbers(request)["held"]:
        return f"rows of {request.sizes[1]} columns are too long to be summed over rows"
    changes = {
        "input": request.first.type,
        "weight": request.weight,
        "bias": "bias" in made.vectors or "dbias" in request.arrays,
        "residual": "residual" in request.arrays,
        "smallest": request.smallest,
        **numbers(request),
    }
    changed = replaced(spec, changes)
    scalars = {name: name for name in made.numbers}
    return Fit(changed, {name: (name, layout) for name, layout in request.arrays.items()}, scalars, derived=changed_fields(spec, changed))


def packed_request(
    operation: RowOperation,
    shape: tuple[int, int],
    kind: str,
    weight: str | None,
    bias: bool,
    residual: bool,
    alignment: int = 16,
    selected: int = 0,
    smallest: bool = False,
) -> RowsRequest:
    """A request for arrays without gaps. ``selected``: elements of a row that topk finds."""
    made = program(operation, kind, weight is not None, bias, residual)
    arrays = {name: Layout.packed(shape, kind, alignment) for name in made.matrices}
    arrays |= {name: Layout.packed((shape[1],), weight or kind) for name in made.vectors}
    if made.selects:
        few = (shape[0], selected)
        arrays |= {"values": Layout.packed(few, kind), "indices": Layout.packed(few, "s64")}
        return RowsRequest(operation, tuple(arrays.items()), smallest)
    arrays |= {name: Layout.packed(shape, kind, alignment) for name in made.outputs}
    arrays |= {name: Layout.packed((shape[1],), weight or kind) for name in made.column_sums}
    return RowsRequest(operation, tuple(arrays.items()))


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> RowsRequest:
    """A request from m, n and words: an operation such as ``softmax``, a type, ``weight`` or ``weight_f32``, ``bias``, ``residual``,
    ``unaligned``; for topk ``k=8`` and ``smallest``. Raises ``SpecError``."""
    m, n = sizes
    said: dict[str, str] = {}
    words = dict.fromkeys(OPERATIONS, "operation") | dict.fromkeys(INPUTS, "type")
    words |= {"weight": "weight", **{f"weight_{kind}": "weight" for kind in INPUTS}}
    words |= {"bias": "bias", "residual": "residual", "unaligned": "alignment", "aligned": "alignment"}
    words |= {"smallest": "order", "largest": "order", **{f"k={count}": "k" for count in range(1, MAX_SELECTED + 1)}}
    for option in options:
        if option not in words:
            raise unknown_word(
                "a problem of rows", option, tuple(words), ", ".join(word for word in words if "=" not in word) + ", k=1 to k=64"
            )
        say_once(said, words[option], option)
    operation, kind = cast("RowOperation", said.get("operation", "softmax")), said.get("type", "f32")
    norm = operation in (*NORMS, *GRADIENTS_OF_NORMS)
    weight = (said["weight"].partition("_")[2] or kind) if "weight" in said and norm else None
    alignment = 1 if said.get("alignment") == "unaligned" else 16
    bias, residual = "bias" in said and operation.startswith("layer"), "residual" in said and operation in NORMS
    selected = min(int(said.get("k", f"k={TYPICAL_SELECTED}")[2:]), n)
    smallest = operation == "topk" and said.get("order") == "smallest"
    return packed_request(operation, (m, n), kind, weight, bias, residual, max(alignment, ELEMENTS[kind].bytes), selected, smallest)


def problem_grid(fine: bool) -> list[str]:
    """Rows of models: hidden sizes, attention, vocabularies."""
    sizes = ((8192, 4096), (16384, 1000), (2048, 50257)) if fine else ((8192, 4096),)
    return [f"{m},{n},{operation},bf16" for operation in OPERATIONS for m, n in sizes if n < 9000 or operation not in GRADIENTS_OF_NORMS]


def operand_orders(plan: RowsPlan) -> Mapping[str, str]:
    """None: arrays are read as they lie."""
    return {}


def settings(plan: RowsPlan, problem: Mapping[str, int], device: object) -> list[dict[str, int]]:
    """Nothing is left to the launch."""
    return [{}]
