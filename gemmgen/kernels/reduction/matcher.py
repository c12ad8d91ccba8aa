"""Reductions as requests: the arguments of ``ops.reduce`` understood, and how an instance does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any, ClassVar, get_args

from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import Device
from gemmgen.kernels.epilogue.operations import DATA_TYPES
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.problem_words import unknown_word
from gemmgen.kernels.reduction.arithmetic import JOINED, Arithmetic, plan_arithmetic
from gemmgen.kernels.reduction.choice import MULTIPROCESSORS, BlockChoice, WalkChoice, choose
from gemmgen.kernels.reduction.plan import MAX_AXES, ReductionPlan
from gemmgen.kernels.reduction.spec import SERIES, BlockStrategy, InputType, OperationName, ReductionSpec
from gemmgen.kernels.reduction.tensor import TensorLayout
from gemmgen.kernels.reduction.traversal import Axis, Tensor, tensor_of, traversal
from gemmgen.kernels.requests import Fit, Layout, NoClass, Request, changed_fields, replaced, say_once, widest

SPEC_TYPES: dict[str, str] = {kind: name for name, kind in DATA_TYPES.items()}
"""The types of a launch sequence as those of a spec."""
INDICES = ("argmin", "argmax")
EXTREMA = frozenset(("min", "max", *INDICES))
ALIGNED_BYTES = 16


@dataclass(frozen=True)
class ReductionRequest(Request):
    """Y[outer, inner] = reduce X[outer, :, inner]; the results lie without gaps."""

    kind: ClassVar[str] = "reduction"
    operation: str
    """Two that one pass makes have a + between them."""
    x: Layout
    """With three axes: outer, reduced, inner."""
    output: str | None = None
    """Type of the results; None: the operation's own."""
    correction: int = 0
    tensor: Tensor | None = None
    """All axes as they are; None: those of ``x``."""
    walkable: bool = True
    """False if the three axes of ``x`` only have the right extents: no three strides walk through the array."""
    multiprocessors: int = MULTIPROCESSORS
    early: bool = False
    """True if the device starts kernels while the work before them still runs."""
    invariant: bool = False
    """True if a row of ``x`` must give the same bits beside any number of others."""

    @property
    def companions(self) -> tuple[ReductionRequest, ...]:
        if not self.invariant:
            return ()
        return tuple(replace(self, x=Layout.packed((rows, *self.x.shape[1:]), self.x.type), tensor=None) for rows in INVARIANT_ROWS)

    def on(self, device: Device) -> ReductionRequest:
        return replace(self, multiprocessors=device.sm_count, early=device.architecture.supports("programmatic_launch"))

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def is_empty(self) -> bool:
        return 0 in self.x.shape[::2]

    @property
    def shapes(self) -> tuple[str, ...]:
        """The values of a spec's ``shape`` that describe it, beside ``tensor``."""
        if not self.walkable:
            return ()
        outer, _, inner = self.x.shape
        reduced_unit, inner_unit = (self.x.strides[axis] == 1 or self.x.shape[axis] <= 1 or self.x.is_empty for axis in (1, 2))
        fitting = ["all"] if outer == inner == 1 and reduced_unit else []
        fitting += ["rows"] if inner == 1 and reduced_unit else []
        fitting += ["columns"] if outer == 1 and inner_unit else []
        fitting += ["middle"] if inner_unit else []
        return (*fitting, "strided")

    @cached_property
    def axes(self) -> Tensor:
        """All axes, joined and sorted."""
        if self.tensor is not None:
            return self.tensor
        (outer, reduced, inner), strides = self.x.shape, self.x.strides
        outer_axes = (Axis(outer, strides[0], max(inner, 1)), Axis(inner, strides[2], 1))
        return tensor_of(outer_axes, (Axis(reduced, strides[1]),), in_order(self.operation))

    @cached_property
    def traits(self) -> tuple[str, ...]:
        shapes = self.shapes or ("strided",)
        full = promise(ALIGNED_BYTES // self.x.element_bytes, self.x, shapes[0]) * self.x.element_bytes == ALIGNED_BYTES
        return (
            "" if self.operation == "sum" else self.operation,
            "" if self.x.type == "f32" else self.x.type,
            "strided" if shapes == ("strided",) else "",
            "" if full or shapes == ("strided",) else "unaligned",
        )


INVARIANT_ROWS = (1, 64, 512, 4096)
"""Numbers of rows that an instance is chosen for whose bits do not depend on them."""
HEAVY = ("logsumexp", "mean_variance")
"""Operations with more arithmetic on an element than the model counts, unless the rows of a tensor's axes are read in whole vectors."""
HEAVY_MARGIN = 1.5
ROWS_MARGIN = 1.1
"""An instance for rows is taken only if it is expected to be faster by this factor than one whose threads are chosen for the problem: 2048
rows of 1000 floats take 6.8 and 3.8 us on an H200, 10,008 of 38,880 take 372 and 342 us."""
EARLY_BYTES = 6 << 20
"""Tensors up to this gain from an early launch on an H200: 1.13 to 1.66 times on ten of 0.4 to 4.5 MB. Of thirteen from 8 to 46 MB,
six lose, up to a quarter: blocks of the next launch crowd on the SMs that are free first. Blocks that share a row do not come early."""
EARLY_BYTES_OF_MOMENTS = 10 << 20
"""That limit for means and variances, whose threads combine more at the end: 2048 x 1000 of float32 takes 4.7 us instead of 5.3."""
EARLY_BYTES_OF_COLUMNS = 32 << 20
"""That limit for columns: 880939 x 4 of float32 takes 8.7 us instead of 9.3, 996093 x 7 12.4 instead of 12.8; fourteen other arrays of 1.3
to 26 MB, in whole tiles and in parts, take .6 to .7 us less; one of 36 MB 13.8 instead of 11.4."""
EARLY_ARCHITECTURE = "sm_90"
"""The oldest architecture of kernels that come early."""
BLOCKS_MARGIN = 2.0
"""Correction for blocks that share rows: in a CUDA graph, their tickets are set to 0 first, which the model does not know."""


def promise(most: int, x: Layout, shape: str) -> int:
    """Elements, at most ``most``, that everything is a multiple of that a spec's ``alignment`` speaks of."""
    most = min(most, ALIGNED_BYTES // x.element_bytes)
    if x.is_empty:
        return most
    axes = {"all": (), "rows": (0,), "columns": (1,), "middle": (0, 1), "strided": (0, 1, 2)}[shape]
    seen = [x.alignment // x.element_bytes, *(x.strides[axis] for axis in axes if x.shape[axis] > 1)]
    seen += [x.shape[2]] if shape in ("columns", "middle") else []
    return widest(most, tuple(seen))


def fit(spec: ReductionSpec, request: ReductionRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    shape, x = spec.shape, request.x
    if shape == "tensor":
        return _tensor_fit(spec, request)
    if "+" in request.operation:
        return "it makes one reduction, two are asked for"
    if shape not in request.shapes:
        return f"it reduces {shape}, the array can be read as {' or '.join((*request.shapes, 'tensor'))}"
    axes = {"all": (1,), "rows": (0, 1), "columns": (1, 2), "middle": (0, 1, 2), "strided": (0, 1, 2)}[shape]
    alignment = promise(spec.alignment, x, shape)
    if request.invariant:
        # One row alone tells nothing about where the next one would begin.
        alignment = widest(alignment, (x.shape[1],))
    wanted = DATA_TYPES[SPEC_TYPES[x.type]]
    probe = arithmetic(request.operation, wanted)
    changes: dict[str, Any] = _types(spec, request, probe) | {"alignment": alignment}
    vector = getattr(spec.strategy, "vector", None)
    if spec.strategy is not None and vector is not None and vector > min(alignment, ALIGNED_BYTES // x.element_bytes):
        changes["strategy"] = spec.strategy.model_copy(update={"vector": None})
    if isinstance(spec.strategy, BlockStrategy) and spec.strategy.name not in SERIES[:6]:  # the grid does not grow with the array
        strategy = changes.get("strategy", spec.strategy)
        changes["strategy"] = strategy.model_copy(update={"multiprocessors": request.multiprocessors})
    changed = replaced(spec, changes)
    view = Layout(tuple(x.shape[axis] for axis in axes), tuple(x.strides[axis] for axis in axes), x.type, x.alignment)
    results = {"all": (1,), "rows": x.shape[:1], "columns": x.shape[2:], "middle": x.shape[::2], "strided": x.shape[::2]}[shape]
    kind = request.output or probe.output
    arrays = {"X": ("x", view)} | {name: (operand, Layout.packed(results, kind)) for name, operand in _result_names(probe).items()}
    margin = _row_margin(changed, request, probe) if shape == "rows" else 1.0
    return Fit(changed, arrays, derived=changed_fields(spec, changed), margin=margin)


def _row_margin(spec: KernelSpec, request: ReductionRequest, types: Arithmetic) -> float:
    assert isinstance(spec, ReductionSpec)
    choice = choose(spec, request.x.element_bytes, types.state_bytes)
    if isinstance(choice, BlockChoice) and (choice.blocks_per_row or 1) > 1:
        return BLOCKS_MARGIN
    return HEAVY_MARGIN if request.operation in HEAVY else ROWS_MARGIN


def numeric_class_of(plan: ReductionPlan, dimensions: Mapping[str, int]) -> str | NoClass:
    """Each instance that reduces rows is a class: how it divides a row depends on the row's length alone."""
    if plan.spec.shape != "rows":
        return NoClass(f"it reduces {plan.spec.shape}, in parts that depend on the number of results")
    if plan.finish == "atomic":
        return NoClass("blocks add their parts in any order")
    return plan.name


def _tensor_fit(spec: ReductionSpec, request: ReductionRequest) -> Fit | str:
    """The instance with the strategy that the rule has for the request's axes."""
    probe = arithmetic(request.operation, request.x.type)
    walk = traversal(request.axes, probe, request.x.alignment, request.multiprocessors)
    strategy = walk.strategy
    if spec.strategy is None or spec.strategy.name != strategy.name:
        return f"the rule takes {strategy.name} for these axes"
    if len(walk.kept) + len(walk.reduced) > MAX_AXES:
        return f"{len(walk.kept)} kept and {len(walk.reduced)} reduced axes that no stride joins, need at most {MAX_AXES} together"
    changes: dict[str, Any] = _types(spec, request, probe) | {"alignment": walk.alignment, "strategy": strategy}
    most = EARLY_BYTES_OF_MOMENTS if probe.state == "moments" else EARLY_BYTES
    whole = strategy.name == "tensor_rows" and walk.parts == 1
    by_columns = strategy.name in ("flat_columns", "flat_tiles", "tensor_columns")
    most = EARLY_BYTES_OF_COLUMNS if by_columns else most if whole else 0
    if request.early and prod(request.x.shape) * request.x.element_bytes <= most:
        changes |= {"strategy": strategy.model_copy(update={"early_launch": True}), "architecture": EARLY_ARCHITECTURE}
    changed = replaced(spec, changes)
    assert isinstance(changed, ReductionSpec)
    choice = choose(changed, request.x.element_bytes, probe.state_bytes)
    assert isinstance(choice, WalkChoice)
    layout = TensorLayout(choice, walk.alignment)
    named = dict(zip((*layout.kept, *layout.reduced), (*walk.kept, *walk.reduced), strict=True))
    axes = [named[name] for name in layout.axes]
    x = Layout(tuple(axis.extent for axis in axes), tuple(axis.stride for axis in axes), request.x.type, request.x.alignment)
    kind = request.output or probe.output
    results = Layout(tuple(axis.extent for axis in walk.kept), tuple(axis.result_stride for axis in walk.kept), kind)
    results = results if walk.kept else Layout((1,), (1,), kind)
    kinds: list[str] = [part.output for part in probe.parts] or [kind] * 2
    named_results = zip(_result_names(probe).items(), kinds, strict=False)
    arrays = {"X": ("x", x)} | {name: (operand, replace(results, type=stored)) for (name, operand), stored in named_results}
    dimensions = {"parts": walk.parts} if layout.in_parts else {}
    return Fit(changed, arrays, dimensions=dimensions, derived=changed_fields(spec, changed))


def _result_names(types: Arithmetic) -> dict[str, str]:
    """For each result of the kernel, that of the operation."""
    if types.parts:
        return {"Y0": "first", "Y1": "second"}
    return {"mean": "mean", "variance": "variance"} if types.state == "moments" else {"Y": "out"}


def _types(spec: ReductionSpec, request: ReductionRequest, probe: Arithmetic) -> dict[str, object]:
    """The fields of a spec that define the computation."""
    stored = SPEC_TYPES[DATA_TYPES[SPEC_TYPES[request.x.type]]]
    names = request.operation.split("+")
    return {
        "operation": tuple(names) if len(names) > 1 else request.operation,
        "input": stored,
        "accumulator": spec.accumulator if (spec.operation, spec.input) == (request.operation, stored) else None,
        "output": spec.output if _output(spec, request) else _output_name(request, probe),
        "correction": request.correction,
        "prologue": (),
        "epilogue": (),
    }


def _output_name(request: ReductionRequest, types: Arithmetic) -> str | None:
    """The spec's ``output`` for the request's results; None where that is the operation's own type."""
    return None if request.output is None or request.output == types.output else SPEC_TYPES[request.output]


def _output(spec: ReductionSpec, request: ReductionRequest) -> bool:
    """True if the spec's own output type is the requested one."""
    if spec.output is None or (spec.operation, spec.input) != (request.operation, SPEC_TYPES[request.x.type]):
        return False
    return DATA_TYPES[spec.output] == (request.output or arithmetic(request.operation, request.x.type).output)


@cache
def arithmetic(operation: str, stored: str) -> Arithmetic:
    """The types that a reduction of elements of type ``stored`` has where nobody says otherwise."""
    names = tuple(operation.split("+"))
    spec = ReductionSpec.model_validate(
        {"kind": "reduction", "operation": names if len(names) > 1 else operation, "input": SPEC_TYPES[stored]}
    )
    return plan_arithmetic(spec, [])


def in_order(operation: str) -> bool:
    """True if the places of the elements that are reduced are numbered."""
    return any(name in INDICES for name in operation.split("+"))


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> ReductionRequest:
    """A request from extents (outer, reduced, inner) and words: ``argmax``, ``f16``, ``strided``, ``unaligned``. Raises ``SpecError``."""
    operation, kind, aligned, strided = "sum", "f32", True, False
    said: dict[str, str] = {}
    for option in options:
        if option in get_args(OperationName) or (option.count("+") == 1 and all(name in JOINED for name in option.split("+"))):
            say_once(said, "operation", option)
            operation = option
        elif option in SPEC_TYPES and option != "u8":
            say_once(said, "type", option)
            kind = option
        elif option in get_args(InputType):
            say_once(said, "type", option)
            kind = DATA_TYPES[option]
        elif option == "strided":
            strided = True
        elif option in ("aligned", "unaligned"):
            say_once(said, "alignment", option)
            aligned = option == "aligned"
        else:
            need = f"an operation ({', '.join(get_args(OperationName))}), a type such as f16, aligned, unaligned or strided"
            raise unknown_word("a reduction", option, (*get_args(OperationName), "aligned", "unaligned", "strided"), need)
    outer, reduced, inner = sizes
    if reduced == 0 and not EXTREMA.isdisjoint(operation.split("+")):
        raise SpecError(f"a reduction by {operation} of no element has no value: reduced must be at least 1")
    layout = Layout.packed((outer, reduced, inner), kind)
    strides = tuple(2 * stride for stride in layout.strides) if strided else layout.strides
    return ReductionRequest(operation, Layout(layout.shape, strides, kind, layout.alignment if aligned else layout.element_bytes))


WHOLE = tuple(1 << exponent for exponent in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28))
ROWS = (
    (1 << 20, 32),
    (1 << 18, 128),
    (1 << 16, 512),
    (1 << 14, 1024),
    (1 << 14, 4096),
    (1 << 12, 1 << 14),
    (1 << 10, 1 << 16),
    (64, 1 << 20),
    (8, 1 << 22),
    (128, 1024),
    (4096, 768),
    (1024, 50257),
)
COLUMNS = (
    (1 << 20, 32),
    (1 << 18, 128),
    (1 << 16, 512),
    (1 << 14, 1024),
    (4096, 4096),
    (1024, 1 << 14),
    (128, 1 << 17),
    (32, 1 << 20),
    (1024, 128),
    (4096, 768),
)
MIDDLE = ((8, 1024, 1024), (64, 256, 1024), (256, 64, 512), (1024, 49, 256))


def problem_grid(fine: bool) -> list[str]:
    """Everything to one value, rows, columns and the middle of three axes; the costlier operations and other types at some."""
    whole = [f"1,{size},1" for size in WHOLE]
    rows = [f"{outer},{reduced},1" for outer, reduced in ROWS]
    columns = [f"1,{reduced},{inner}" for reduced, inner in COLUMNS]
    middle = [f"{outer},{reduced},{inner}" for outer, reduced, inner in MIDDLE]
    texts = [*whole, *rows, *columns, *middle]
    texts += [f"{text},unaligned" for text in (*whole[3:8:2], *rows[2:8:2], *columns[2:8:2])]
    texts += [f"{text},{word}" for word in ("max", "f16", "argmax") for text in (whole[5], rows[3], columns[3])]
    if fine:
        some = (*whole[2::2], *rows[1::2], *columns[1::2])
        texts += [f"{text},{word}" for word in ("f16", "bf16", "f64", "argmax", "logsumexp") for text in some]
    return list(dict.fromkeys(texts))


def operand_orders(plan: ReductionPlan) -> Mapping[str, str]:
    """None: an array is read as it lies."""
    return {}
