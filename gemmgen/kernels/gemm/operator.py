"""The arguments of ``ops.matmul``: NumPy's rules for shapes, and every stride that a matrix can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Literal

from gemmgen.core.elements import BY_WORD, ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.epilogue.activations import activations
from gemmgen.kernels.epilogue.operations import COORDINATES, Axis, Bias, Factor, Operation, Residual
from gemmgen.kernels.gemm.grouping import ENDS, Grouping
from gemmgen.kernels.gemm.matcher import ACTIVATIONS
from gemmgen.kernels.gemm.request import (
    BYTE_TYPES,
    DOUBLE,
    FACTOR_TYPES,
    PRECISIONS,
    RESULT_TYPES,
    TYPES,
    GemmRequest,
    NamedOperand,
    ScaledBy,
    is_stored,
    result_type,
    vector_type,
)
from gemmgen.kernels.gemm.scaling import BlockDepth, BlockScale, scale_shape
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_FLOATS
from gemmgen.kernels.gemm.triangles import Triangles
from gemmgen.kernels.requests import Copy, Interpretation, Layout, Result, merged

SCALES = ("scale_a", "scale_b", "scale_out")
"""Scales in the order in which they are applied, the last after all else."""


def interpret(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: ``scaled`` and ``accumulates`` as in ``GemmRequest``, ``bias_number`` (the bias is a
    number), ``activation`` (as ``ops.matmul`` takes it). Raises ``LaunchError``."""
    if "b_up" in operands:
        return _interpret_gated(operands, options)
    if "offsets" in operands:
        return _interpret_groups(operands, options)
    formula: Sequence[Operation] = options.get("epilogue") or ()
    every, own = operands, {name for one in formula for name in (*(operand.name for operand in one.operands()), *one.extra_outputs)}
    operands = {name: layout for name, layout in every.items() if name not in own}
    a, b = operands["a"], operands["b"]
    for name in ("a", "b"):
        _check_type(name, operands[name], FACTOR_TYPES)
    if not a.shape or not b.shape:
        raise LaunchError("matmul: a and b need at least one axis each; multiply numbers with alpha")
    if a.shape[-1] != b.shape[-2 if len(b.shape) > 1 else 0]:
        raise LaunchError(f"matmul: a of shape {a.shape} and b of shape {b.shape} cannot be multiplied: {_inner(a, b)}")
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    a = Layout((1, *a.shape), (0, *a.strides), a.type, a.alignment) if vector_a else a
    b = Layout((*b.shape, 1), (*b.strides, 0), b.type, b.alignment) if vector_b else b
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    full = (*batch, a.shape[-2], b.shape[-1])
    shape = full[: len(full) - 2] + (() if vector_a else (full[-2],)) + (() if vector_b else (full[-1],))
    out = operands.get("out")
    residual = operands.get("residual")
    added = any(operands.get(name) is not None for name in ("bias", "amax", *SCALES))
    plain = not added and residual is None and not any(options.get(name) for name in ("scaled", "activation", "bias_number", "epilogue"))
    kind = out.type if out is not None else _output(options.get("output")) or result_type(a.type, b.type, plain)
    if DOUBLE in (a.type, b.type, kind):
        _check_doubles((a.type, b.type, kind), any(operands.get(name) is not None for name in ("amax", *SCALES)))
    if out is None:
        if options.get("accumulates"):
            raise LaunchError("matmul: beta is not 0, but there is no out that it would multiply; pass out=")
        out = Layout.packed(shape, kind)
    else:
        _check_type("out", out, RESULT_TYPES)
        if out.shape != shape:
            raise LaunchError(f"matmul: out has shape {out.shape}, need {shape}")
        if out.is_empty:
            out = Layout.packed(shape, kind)  # any strides that a library gives to arrays without elements
    c = _full(out, full, vector_a, vector_b)
    columns = not is_stored(c, True)
    if (columns and not is_stored(c, False)) or (prod(batch) > 1 and not _one_axis(c, batch)):
        raise LaunchError(
            f"matmul: out has strides {out.strides} (elements) for shape {shape}; its rows or columns must be contiguous and must not "
            "overlap, and its batch axes count as one: give another out, or none"
        )
    copies: dict[str, Copy] = {}
    if "planes" not in operands:
        b = _readable("b", b, batch, operands, copies)
    a = _readable("a", a, batch, operands, copies)
    z = None
    if residual is not None:
        _check_type("residual", residual, (kind,), "the result's")
        if residual.shape != shape:
            raise LaunchError(f"matmul: residual has shape {residual.shape}, need the result's, {shape}")
        z = _full(residual, full, vector_a, vector_b)
        columns = columns or (is_stored(c, False) and not is_stored(z, True) and is_stored(z, False))
        if not is_stored(z, not columns) or _one_axis(z, batch) is None:
            copies["residual"] = Copy("residual", shape, columns)
            z = _packed(full, kind, columns)
    per = "all" if options.get("bias_number") else _bias_per(operands.get("bias"), full, vector_b, kind)
    blocks = _block_scales(operands, a, b)
    factors = {name: _factor(name, operands[name], full) for name in SCALES if operands.get(name) is not None and name not in blocks}
    for name in ("bias", *(name for name in SCALES if name not in blocks)):
        vector = operands.get(name)
        if vector is not None and not _is_contiguous(vector):
            copies[name] = Copy(name, vector.shape)
    if per == "column" and prod(operands["bias"].shape) == 1 != full[-1]:
        copies["bias"] = Copy("bias", (*operands["bias"].shape[:-1], full[-1]))
    if factors and options.get("accumulates"):
        raise LaunchError("matmul: scales multiply the product and not out, but beta is not 0; pass a copy of out as residual")
    epilogue: list[Operation] = [factors[name] for name in SCALES[:2] if name in factors]
    epilogue += [] if per is None else [Bias.model_validate({"op": "bias", "per": per})]
    epilogue += [] if z is None else [Residual(op="residual")]
    epilogue += activations("matmul", options.get("activation"), ACTIVATIONS)
    epilogue += formula
    epilogue += [factors[name] for name in SCALES[2:] if name in factors]
    named = _named(formula, every, shape, batch)
    triangles = _triangles(options.get("triangles"), full, operands)
    own_rows = (
        triangles != Triangles.ALL
        or any(_tells_rows_apart(one) for one in formula)
        or any(getattr(step, "per", "") == "row" for step in epilogue)
    )
    if blocks and len(full) > 2:
        raise LaunchError(f"matmul: block scales for a result of shape {shape}, need two matrices; reshape a and out to (rows, columns)")
    layouts = _without_batch(a, b, c, z, own_rows)
    if layouts is not None:
        a, b, c, z = layouts
    else:
        a, b, c = (_batch_axis(layout, batch) for layout in (a, b, c))
        z = None if z is None else _batch_axis(z, batch)
    precision = options.get("precision", "f32")
    if precision not in ("f32", *PRECISIONS):
        raise LaunchError(f"matmul: precision is {precision!r}, need 'f32', 'ffma' or 'tf32'")
    if precision != "f32" and (a.type, b.type) != ("f32", "f32"):
        raise LaunchError(f"matmul: precision is {precision!r}, which is for float32 factors; these are {a.type} and {b.type}")
    if operands.get("amax") is not None and "f32" in (a.type, b.type) and precision != "tf32":
        raise LaunchError("matmul: amax is found on tensor cores, which multiply float32 with precision='tf32', and types of 16 or 8 bits")
    scaled, accumulates = bool(options.get("scaled")), bool(options.get("accumulates"))
    request = GemmRequest(
        a,
        b,
        c,
        scaled,
        accumulates,
        tuple(epilogue),
        z,
        precision=precision,
        scales=tuple(factors),
        amax=_amax(operands, "matmul"),
        planes=operands.get("planes"),
        invariant="m" if options.get("batch_invariant") else "none",
        constant=("b",) if options.get("constant") else (),
        named=named,
        triangles=triangles,
        scaled_a=blocks.get("scale_a"),
        scaled_b=blocks.get("scale_b"),
    )
    results = (Result("out", shape, kind),)
    return Interpretation(request.transposed if columns else request, results, tuple(copies.values()))


def _triangles(given: Triangles | None, shape: tuple[int, ...], operands: Mapping[str, Layout]) -> Triangles:
    """Triangular matrices of a call, with a result of ``shape``."""
    triangles = given or Triangles.ALL
    has_out = operands.get("out") is not None
    many = [name for name in ("bias", "residual", *SCALES) if operands.get(name) is not None and prod(operands[name].shape) > 1]
    if triangles.c == "mirrored" and many:
        raise LaunchError(f"matmul: a mirrored result with {' and '.join(many)}, need numbers: an element and its mirror image are equal")
    if triangles.c == "mirrored" and shape[-2] != shape[-1]:
        raise LaunchError(f"matmul: a mirrored result of shape {shape}, need as many rows as columns")
    if triangles.c in ("lower", "upper") and not has_out:
        raise LaunchError(f"matmul: the {triangles.c} triangle of c without out, need the array whose other elements stay as they are")
    return triangles


def _interpret_gated(operands: Mapping[str, Layout], options: Mapping[str, object]) -> Interpretation:
    """The request of a call with two matrices that a is multiplied by."""

    def refuse(why: str) -> LaunchError:
        return LaunchError(f"gated_matmul: {why}")

    gate, up = operands["b_gate"], operands["b_up"]
    gate_word, up_word = (ELEMENTS[one.type].word if one.type in ELEMENTS else one.type for one in (gate, up))
    if gate.type != up.type or gate.shape != up.shape or len(gate.shape) != 2:
        raise refuse(
            f"b_gate of {gate_word} has shape {gate.shape} and b_up of {up_word} {up.shape}, need two matrices of one type and shape"
        )
    if not any(is_stored(gate, order) and is_stored(up, order) for order in (True, False)):
        raise refuse(f"b_gate has strides {gate.strides} and b_up {up.strides}, need rows or columns that are contiguous in both")
    others = {name: layout for name, layout in operands.items() if name not in ("b_gate", "b_up")}
    try:
        plain = interpret({"a": operands["a"], "b": gate, **others}, options)
    except LaunchError as error:
        raise refuse(str(error).partition(": ")[2]) from None
    request = plain.request
    assert isinstance(request, GemmRequest)
    if request.operands != ("a", "b"):
        raise refuse("out is stored in columns, need rows that are contiguous")
    second = Layout((request.b.shape[0], *up.shape), (0, *up.strides), up.type, up.alignment) if request.batched else up
    return replace(plain, request=replace(request, operands=("a", "b_gate"), second=second, second_operand="b_up"))


def _interpret_groups(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call with groups of rows."""

    def refuse(why: str) -> LaunchError:
        return LaunchError(f"grouped_matmul: {why}")

    formula: Sequence[Operation] = options.get("epilogue") or ()
    every, own = operands, {name for one in formula for name in (*(operand.name for operand in one.operands()), *one.extra_outputs)}
    operands = {name: layout for name, layout in every.items() if name not in own}
    masked = bool(options.get("masked"))
    ends = ENDS["masked" if masked else "sorted"]
    a, b, offsets = operands["a"], operands["b"], operands["offsets"]
    gather, scatter = operands.get("gather"), operands.get("scatter")
    if len(a.shape) == len(b.shape) == 2 and not masked:
        return _interpret_depths(operands, options, refuse)
    if masked:
        if len(a.shape) != 3 or len(b.shape) != 3 or a.shape[0] != b.shape[0]:
            raise refuse(f"a has shape {a.shape} and b {b.shape}, need (groups, rows, k) and (groups, k, n) with counts")
        operands = {name: _joined(name, layout) if name in ("a", "out", "scale_a") else layout for name, layout in operands.items()}
        a = operands["a"]
    for name in ("a", "b"):
        _check_type(name, operands[name], (*TYPES[1:], *BYTE_TYPES), operation="grouped_matmul")
    for name, layout in ((ends, offsets), ("gather", gather), ("scatter", scatter)):
        if layout is not None:
            _check_type(name, layout, ("s32",), operation="grouped_matmul")
    if len(a.shape) != 2 or len(b.shape) != 3 or a.shape[1] != b.shape[1]:
        raise refuse(f"a has shape {a.shape} and b {b.shape}, need (m, k) and (groups, k, n)")
    (m, _), (groups, _, n) = a.shape, b.shape
    if offsets.shape != (groups,) or (groups > 1 and offsets.strides != (1,)):
        meaning = "rows of each group" if masked else "where each group ends"
        raise refuse(f"{ends} has shape {offsets.shape} and strides {offsets.strides}, need ({groups},) without gaps: {meaning}")
    if masked and (gather is not None or scatter is not None):
        raise refuse("counts with gather or scatter, need offsets beside them")
    if gather is not None:
        m = gather.shape[0] if len(gather.shape) == 1 else -1
    for name, layout in (("gather", gather), ("scatter", scatter)):
        if layout is not None and (layout.shape != (m,) or not is_packed(layout)):
            rows = "a row of a for each row of the groups" if name == "gather" else f"a row of out for each of the {m} rows of the groups"
            raise refuse(f"{name} has shape {layout.shape} and strides {layout.strides}, need one axis without gaps: {rows}")
    out = operands.get("out")
    residual = operands.get("residual")
    added = any(operands.get(name) is not None for name in ("bias", "amax", *SCALES))
    plain = not added and residual is None and not options.get("scaled") and not options.get("activation") and not formula
    kind = out.type if out is not None else _output(options.get("output"), "grouped_matmul") or result_type(a.type, b.type, plain)
    out = Layout.packed((m, n), kind) if out is None else out
    _check_type("out", out, RESULT_TYPES, operation="grouped_matmul")
    if out.shape[1:] != (n,) or (scatter is None and out.shape != (m, n)):
        raise refuse(f"out has shape {out.shape}, need {(m, n) if scatter is None else f'(rows, {n})'}")
    for name, layout in (("a", a), ("b", b), ("out", out)):
        if not (is_stored(layout, True) or (name != "out" and is_stored(layout, False))):
            need = "rows" if name == "out" else "rows or columns"
            raise refuse(f"{name} has strides {layout.strides} (elements) for shape {layout.shape}; its {need} must be contiguous")
    blocks = _block_scales(operands, a, b, "grouped_matmul")
    factors: dict[str, Factor] = {}
    shapes = {"scale_a": {(m,): "row", (m, 1): "row"}, "scale_b": {(groups, n): "column", (groups, 1, n): "column"}, "scale_out": {}}
    for name, known in shapes.items():
        scale = operands.get(name)
        if scale is None or name in blocks:
            continue
        _check_type(name, scale, ("f32",), operation="grouped_matmul")
        per = known.get(scale.shape) if is_packed(scale) else None
        if per is None and any(extent != 1 for extent in scale.shape):
            raise refuse(f"{name} has shape {scale.shape} and strides {scale.strides}, need one element" + _or_many(known))
        factors[name] = Factor.model_validate({"op": "factor", "per": per or "memory"})
    epilogue: list[Operation] = [factors[name] for name in SCALES[:2] if name in factors]
    bias = operands.get("bias")
    if bias is not None:
        _check_type("bias", bias, (vector_type(kind),), operation="grouped_matmul")
        if bias.shape != (groups, n) or not is_packed(bias):
            raise refuse(f"bias has shape {bias.shape} and strides {bias.strides}, need {(groups, n)} without gaps")
        epilogue.append(Bias(op="bias", per="column"))
    epilogue += activations("grouped_matmul", options.get("activation"), ACTIVATIONS)
    epilogue += formula
    epilogue += [factors[name] for name in SCALES[2:] if name in factors]
    request = GemmRequest(
        a,
        b,
        out,
        scaled=bool(options.get("scaled")),
        epilogue=tuple(epilogue),
        named=_named(formula, every, (m, n), (), groups, "grouped_matmul"),
        scales=tuple(factors),
        offsets=offsets,
        grouping=Grouping(rows="masked" if masked else "sorted", gathered=gather is not None, scattered=scatter is not None),
        gather=gather,
        scatter=scatter,
        amax=_amax(operands, "grouped_matmul"),
        scaled_a=blocks.get("scale_a"),
        scaled_b=blocks.get("scale_b"),
        invariant="m" if options.get("batch_invariant") else "none",
    )
    return Interpretation(request, (Result("out", (groups, m // groups, n) if masked and groups else (m, n), kind),))


def _interpret_depths(
    operands: Mapping[str, Layout], options: Mapping[str, object], refuse: Callable[[str], LaunchError]
) -> Interpretation:
    """The request of a call whose groups are values of k: a product of each, as the gradient of an expert's matrix."""
    a, b, offsets, out = operands["a"], operands["b"], operands["offsets"], operands.get("out")
    scaled = {"scale_a", "scale_b"} <= operands.keys()
    known = {"a", "b", "offsets", "out", *(("scale_a", "scale_b") if scaled else ())}
    others = [name for name in operands if name not in known] + [name for name in ("activation", "epilogue") if options.get(name)]
    if others:
        raise refuse(f"groups of values of k with {others[0]}, need a (m, k), b (k, n), offsets, out, alpha and scales of both alone")
    for name, layout in (("a", a), ("b", b)):
        _check_type(name, layout, BYTE_FLOATS if scaled else TYPES[1:], operation="grouped_matmul")
    _check_type("offsets", offsets, ("s32",), operation="grouped_matmul")
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows or len(offsets.shape) != 1 or not is_packed(offsets):
        raise refuse(f"a has shape {a.shape}, b {b.shape} and offsets {offsets.shape}, need (m, k), (k, n) and one axis without gaps")
    if not is_stored(a, scaled) or not is_stored(b, not scaled):
        need = "rows of a and columns of b" if scaled else "columns of a and rows of b"
        why = "8-bit floats lie along k" if scaled else "groups begin at any k"
        raise refuse(f"a and b have strides {a.strides} and {b.strides}; {need} must be contiguous: {why}")
    groups = offsets.shape[0]
    plain = result_type(a.type, b.type, True)
    kind = out.type if out is not None else _output(options.get("output"), "grouped_matmul") or plain
    out = Layout.packed((groups, m, n), kind) if out is None else out
    _check_type("out", out, TYPES, operation="grouped_matmul")
    if out.shape != (groups, m, n) or not is_stored(out, True):
        raise refuse(f"out has shape {out.shape} and strides {out.strides}, need {(groups, m, n)} in rows")
    blocks = _block_scales(operands, a, b, "grouped_matmul") if scaled else {}
    if scaled and len(blocks) < 2:
        raise refuse("groups of values of k take scales of 128 values of k, of both a and b")

    def shared(layout: Layout) -> Layout:
        return Layout((groups, *layout.shape), (0, *layout.strides), layout.type, layout.alignment)

    by = {name: replace(block, layout=shared(block.layout)) for name, block in blocks.items()}
    request = GemmRequest(
        shared(a),
        shared(b),
        out,
        scaled=bool(options.get("scaled")),
        grouping=Grouping(depth="steps" if scaled else "offsets"),
        depths=offsets,
        scaled_a=by.get("scale_a"),
        scaled_b=by.get("scale_b"),
    )
    return Interpretation(request, (Result("out", (groups, m, n), kind),))


def _joined(name: str, layout: Layout) -> Layout:
    """An array (groups, rows, ...) as one of all rows. Raises ``LaunchError`` where groups do not follow one another."""
    if len(layout.shape) < 2:
        return layout
    (groups, rows, *rest), (outer, inner, *extra) = layout.shape, layout.strides
    if groups > 1 and rows > 0 and outer != rows * inner:
        need = f"a group behind the other: {rows * inner} elements from one to the next"
        raise LaunchError(f"grouped_matmul: {name} has strides {layout.strides} for shape {layout.shape}, need {need}")
    return Layout((groups * rows, *rest), (inner, *extra), layout.type, layout.alignment)


def _or_many(shapes: Mapping[tuple[int, ...], str]) -> str:
    return f", or {' or '.join(map(str, shapes))} without gaps" if shapes else ""


def is_packed(layout: Layout) -> bool:
    """True if the array lies in rows without gaps."""
    if layout.is_empty:
        return True
    packed = Layout.packed(layout.shape, layout.type).strides
    return all(extent == 1 or one == other for extent, one, other in zip(layout.shape, layout.strides, packed, strict=True))


def _inner(a: Layout, b: Layout) -> str:
    return f"a has {a.shape[-1]} columns, b has {b.shape[-2 if len(b.shape) > 1 else 0]} rows"


def _check_doubles(types: tuple[str, ...], more: bool) -> None:
    """Raises ``LaunchError`` for a product of float64 that is of other types as well, or has scales."""
    if set(types) != {DOUBLE}:
        got = ", ".join(ELEMENTS[kind].word for kind in types)
        raise LaunchError(f"matmul: a, b and the result have elements {got}; float64 goes with float64 alone, need it for all or for none")
    if more:
        raise LaunchError("matmul: float64 with scales or amax, which are float32, need none: a formula of the epilogue multiplies")


def _check_type(name: str, layout: Layout, types: tuple[str, ...], whose: str = "", operation: str = "matmul") -> None:
    if layout.type not in types:
        need = " or ".join(ELEMENTS[kind].word for kind in types) + (f", {whose}" if whose else "")
        got = ELEMENTS[layout.type].word if layout.type in ELEMENTS else layout.type
        raise LaunchError(f"{operation}: {name} has elements {got}, need {need}")
    if layout.alignment < layout.element_bytes and not layout.is_empty:
        raise LaunchError(f"{operation}: {name} does not start at a multiple of its {layout.element_bytes} bytes an element")


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(one), len(other))
    one, other = ((1,) * (rank - len(shape)) + shape for shape in (one, other))
    if any(first != second and 1 not in (first, second) for first, second in zip(one, other, strict=True)):
        raise LaunchError(f"matmul: batches of shape {one} and {other} do not broadcast")
    return tuple(second if first == 1 else first for first, second in zip(one, other, strict=True))


def _full(layout: Layout, full: tuple[int, ...], vector_a: bool, vector_b: bool) -> Layout:
    """A result with the axes of extent 1 that a vector among the factors leaves out."""
    strides = list(layout.strides)
    if vector_b:
        strides.append(0)
    if vector_a:
        strides.insert(len(strides) - 1, 0)
    return Layout(full, tuple(strides), layout.type, layout.alignment)


def _bias_per(bias: Layout | None, full: tuple[int, ...], vector_b: bool, kind: str) -> str | None:
    if bias is None:
        return None
    _check_type("bias", bias, (vector_type(kind),), "as the result" if kind in (*TYPES, DOUBLE) else "for such results")
    m, n = full[-2:]
    rank = len(bias.shape)
    if sum(extent > 1 for extent in bias.shape) > 1:
        raise LaunchError(f"matmul: bias has shape {bias.shape}, need one axis of more than one value")
    if (rank >= 2 and bias.shape[-2:] == (m, 1) and m != 1) or (rank == 1 and vector_b and bias.shape == (m,)):
        return "row"
    if (rank >= 1 and bias.shape[-1] == n) or prod(bias.shape) == 1:
        return "column"
    raise LaunchError(f"matmul: bias has shape {bias.shape}, need ({n},) for one value a column, ({m}, 1) for one a row, or a number")


def _output(word: object, operation: str = "matmul") -> str | None:
    """The type that a caller names."""
    if word is None:
        return None
    words = [ELEMENTS[kind].word for kind in RESULT_TYPES]
    if word not in words:
        raise LaunchError(f"{operation}: output is {word!r}, need {', '.join(words[:-1])} or {words[-1]}")
    return BY_WORD[word]


def _factor(name: str, scale: Layout, full: tuple[int, ...]) -> Factor:
    """The operation that multiplies by a scale, from its shape."""
    _check_type(name, scale, ("f32",))
    m, n = full[-2:]
    if all(extent == 1 for extent in scale.shape):
        return Factor(op="factor", per="memory")
    if name == "scale_a" and scale.shape in ((m,), (m, 1)):
        return Factor(op="factor", per="row")
    if name == "scale_b" and scale.shape in ((n,), (1, n)):
        return Factor(op="factor", per="column")
    need = {
        "scale_a": f"a number, one element, or ({m},) or ({m}, 1)",
        "scale_b": f"a number, one element, or ({n},) or (1, {n})",
    }.get(name, "one element")
    raise LaunchError(f"matmul: {name} has shape {scale.shape}, need {need}")


SCALED_LINES: tuple[Literal[1, 128], ...] = (1, 128)
SCALED_K: BlockDepth = 128
"""Values of k that share a scale where ``scale_a`` or ``scale_b`` has several along k."""


def _block_scales(operands: Mapping[str, Layout], a: Layout, b: Layout, operation: str = "matmul") -> dict[str, ScaledBy]:
    """Scales of blocks of elements, by name: those whose shape says so. Raises ``LaunchError`` for other shapes with several along k."""
    scales: dict[str, ScaledBy] = {}
    sides: tuple[tuple[str, Literal["a", "b"], Layout], ...] = (("scale_a", "a", a), ("scale_b", "b", b))
    for name, operand, factor in sides:
        scale = operands.get(name)
        extent, k = factor.shape[-2:] if operand == "a" else factor.shape[:-3:-1]
        if scale is None or len(scale.shape) != len(factor.shape):
            continue
        shapes = {
            lines: (*factor.shape[:-2], *scale_shape(operand, BlockScale(lines=lines, k=SCALED_K), extent, k)) for lines in SCALED_LINES
        }
        known = next((lines for lines, shape in shapes.items() if shape == scale.shape), None)
        along_k = scale.shape[-1 if operand == "a" else -2]
        if along_k == 1 and scale.type == "f32" and known != 128:
            continue  # a scale for each line, or one for all
        floats = {a.type, b.type} <= {"e4m3", "e5m2"}
        if known is None and floats and (along_k > 1 or scale.type != "f32"):
            need = " or ".join(map(str, dict.fromkeys(shapes.values())))
            raise LaunchError(f"{operation}: {name} has shape {scale.shape}, need {need} for a scale of each {SCALED_K} values of k")
        if known is None or (prod(scale.shape) == 1 and scale.type == "f32"):
            continue
        _check_type(name, scale, ("f32", "ue8m0"), operation=operation)
        if not floats:
            raise LaunchError(
                f"{operation}: {name} has scales for blocks of k, which are for 8-bit floats; these are {a.type} and {b.type}"
            )
        if not (is_stored(scale, True) or is_stored(scale, False)):
            raise LaunchError(f"{operation}: {name} has strides {scale.strides} (elements); its rows or columns must be contiguous")
        block = BlockScale.model_validate({"lines": known, "k": SCALED_K, "type": scale.type})
        scales[name] = ScaledBy(block, scale, name)
    return scales


def _amax(operands: Mapping[str, Layout], operation: str) -> Literal["none", "stored", "unscaled"]:
    """Stage of the results whose largest absolute value is wanted, if any."""
    amax = operands.get("amax")
    if amax is None:
        return "none"
    _check_type("amax", amax, ("f32",), operation=operation)
    if prod(amax.shape) != 1:
        raise LaunchError(f"{operation}: amax has shape {amax.shape}, need one element")
    return "stored" if operands.get("scale_out") is None else "unscaled"


def _named(
    epilogue: Sequence[Operation],
    operands: Mapping[str, Layout],
    shape: tuple[int, ...],
    batch: tuple[int, ...] = (),
    groups: int | None = None,
    operation: str = "matmul",
) -> tuple[NamedOperand, ...]:
    """Operands and further outputs of formulas, by the shapes that they need; ``shape``: the result's, with axes of a ``batch`` before
    rows and columns."""
    named: list[NamedOperand] = []
    for one in epilogue:
        wanted = [(operand.name, operand.per, operand.stored or "f32") for operand in one.operands()]
        reductions = {name for name, output in one.extra_outputs.items() if output.reduce is not None}
        for name, output in one.extra_outputs.items():
            reduced: dict[str | None, Axis] = {"row": "row", "column": "column"}
            wanted.append((name, "result" if output.reduce is None else reduced.get(output.per, "memory"), output.type))
        if wanted and len(shape) != len(batch) + 2:
            raise LaunchError(f"{operation}: an epilogue with operands for a result of shape {shape}, need matrices")
        for name, per, kind in wanted:
            if per == "all":
                named.append(NamedOperand(name, per, None))
                continue
            layout = operands[name]
            if kind == "bool" and layout.type in ("u8", "s8"):  # calls see arrays of truth values as bytes
                layout = replace(layout, type="bool")
            _check_type(name, layout, (kind,), "as the epilogue says", operation)
            (m, n), one_element = shape[-2:], all(extent == 1 for extent in layout.shape)
            columns: tuple[tuple[int, ...], ...] = ((n,), (1, n)) if groups is None else ((groups, n),)
            if name in reductions and per in ("row", "column"):
                named.append(NamedOperand(name, per, _of_lines(name, layout, (*batch, m if per == "row" else n), operation), True))
                continue
            shapes = {"result": (shape,), "row": ((m,), (m, 1)), "column": columns, "group": ((groups or 0,),), "memory": ()}.get(per, ())
            if layout.shape not in shapes and not (per == "memory" and one_element):
                need = " or ".join(map(str, shapes)) or "one element"
                raise LaunchError(f"{operation}: {name} has shape {layout.shape}, need {need}, for an operand per {per}")
            if per != "result" and not (is_packed(layout) if len(layout.shape) == 2 and groups is not None else _is_contiguous(layout)):
                raise LaunchError(f"{operation}: {name} has strides {layout.strides}, need values without gaps")
            if per == "result" and batch:
                if _one_axis(layout, batch) is None:
                    raise LaunchError(f"{operation}: {name} has strides {layout.strides}, need axes of the batch that count as one")
                layout = _batch_axis(layout, batch)
            named.append(NamedOperand(name, per, layout))
    return tuple(named)


def _of_lines(name: str, layout: Layout, shape: tuple[int, ...], operation: str) -> Layout:
    """A reduction of rows or columns, with one axis for a batch. Raises ``LaunchError``."""
    if layout.shape not in (shape, (*shape, 1)) or not is_packed(layout):
        batch = ", a line for each product of the batch" if len(shape) > 1 else ""
        raise LaunchError(f"{operation}: {name} has shape {layout.shape}, need {shape}{batch}, without gaps")
    whole = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else shape
    return replace(Layout.packed(whole, layout.type), alignment=layout.alignment)


def _tells_rows_apart(operation: Operation) -> bool:
    """True if rows of a batch cannot be those of one tall matrix: operands and outputs belong to them, or their numbers are looked at."""
    names = {name for assignment in operation.assignments for name in assignment.node.names}
    return bool(operation.operands() or operation.extra_outputs or names & set(COORDINATES))


def _without_batch(a: Layout, b: Layout, c: Layout, z: Layout | None, per_row: bool) -> tuple[Layout, Layout, Layout, Layout | None] | None:
    """The product without a batch: there is none, or all of it shares b and its rows lie as those of one tall matrix do."""
    if len(c.shape) == 2:
        return a, b, c, z
    if per_row or prod(b.shape[:-2]) != 1:
        return None

    def tall(layout: Layout) -> Layout | None:
        rows = merged(layout.shape[:-1], layout.strides[:-1])
        if rows is None or prod(layout.shape[:-1]) != prod(c.shape[:-1]):
            return None
        return Layout((prod(c.shape[:-1]), layout.shape[-1]), (rows[1], layout.strides[-1]), layout.type, layout.alignment)

    tall_a, tall_c, tall_z = tall(a), tall(c), z and tall(z)
    if tall_a is None or tall_c is None or (z is not None and tall_z is None):
        return None
    if not is_stored(tall_a, True) or not is_stored(tall_c, True):
        return None
    return tall_a, Layout(b.shape[-2:], b.strides[-2:], b.type, b.alignment), tall_c, tall_z


def _readable(name: str, layout: Layout, batch: tuple[int, ...], operands: Mapping[str, Layout], copies: dict[str, Copy]) -> Layout:
    """The matrix or batch as kernels read it: itself, or a row-major copy, which is put down in ``copies``."""
    merges = _one_axis(layout, batch) is not None
    if merges and (is_stored(layout, True) or is_stored(layout, False)):
        return layout
    own = operands[name].shape
    copies[name] = Copy(name, own if merges else (*batch, *own[-2:]))
    return _packed(layout.shape if merges else (*batch, *layout.shape[-2:]), layout.type)


def _packed(shape: tuple[int, ...], kind: str, by_columns: bool = False) -> Layout:
    """An array without gaps, the last two axes stored by rows or by columns."""
    if not by_columns:
        return Layout.packed(shape, kind)
    transposed = Layout.packed((*shape[:-2], shape[-1], shape[-2]), kind)
    return Layout(shape, (*transposed.strides[:-2], transposed.strides[-1], transposed.strides[-2]), kind, transposed.alignment)


def _is_contiguous(vector: Layout) -> bool:
    """True if all axes but one have one element, and those of that one follow each other."""
    return all(stride == 1 for extent, stride in zip(vector.shape, vector.strides, strict=True) if extent > 1)


def _one_axis(layout: Layout, batch: tuple[int, ...]) -> int | None:
    """Stride of the batch axes as one, 0 for an operand that has none of them; None if they are not one."""
    own, count = layout.shape[:-2], prod(batch)
    if prod(own) == 1:
        return 0
    one = merged(own, layout.strides[:-2]) if prod(own) == count else None
    return None if one is None or one[1] < 0 else one[1]


def _batch_axis(layout: Layout, batch: tuple[int, ...]) -> Layout:
    """All batch axes, of which ``_one_axis`` has found the stride, as one."""
    stride = _one_axis(layout, batch)
    assert stride is not None
    return Layout((prod(batch), *layout.shape[-2:]), (stride, *layout.strides[-2:]), layout.type, layout.alignment)
