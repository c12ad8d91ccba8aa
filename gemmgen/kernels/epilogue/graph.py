"""Typed expression graphs: checks, evaluation with derived error bounds, CUDA text, cost and derivatives.

A graph is a list of assignments. Each has a typed tree, whose names are inputs or earlier assignments. References, bounds, text and
derivatives all come from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType
from gemmgen.core.literals import literal
from gemmgen.kernels.epilogue.expression import OPERATORS, FormulaError, Node, nearest, parse, place, written
from gemmgen.kernels.epilogue.extensions import extension_names, macro_of
from gemmgen.kernels.epilogue.functions import CASTS, FUNCTIONS, MACROS, Approximation, Function, constants_of
from gemmgen.kernels.epilogue.numbers import Tracked, to_type, wide_type

CALL_LEVEL = 8
"""Precedence of calls, names and expressions in brackets."""
MAX_NODES = 2000
"""Limit of nodes of one expression, with abbreviating functions expanded."""

Accuracy = Literal["full", "halves", "bfloat16", "in_turn"]
"""Accuracy that functions are computed with. ``full``: of float32; ``halves``: enough for a float16 and all narrower types;
``bfloat16``: enough for a bfloat16 and 8-bit types; ``in_turn``: the same, beside another group that multiplies."""

_STRICTNESS: tuple[Accuracy, ...] = ("in_turn", "bfloat16", "halves", "full")


def accuracy_of(types: Set[str], in_turn: bool = False) -> Accuracy:
    """The accuracy that results of these types can show; ``in_turn``: beside another group that multiplies."""
    if types & {"f32", "f64", "s32"}:
        return "full"
    if types <= {"bf16", "e4m3", "e5m2"}:
        return "in_turn" if in_turn else "bfloat16"
    return "halves"


def strictest(first: Accuracy, second: Accuracy) -> Accuracy:
    """The more accurate of two."""
    return max(first, second, key=_STRICTNESS.index)


_CAST_TYPES: Mapping[str, DataType] = {**CASTS, **{kind: kind for kind in CASTS.values()}}


@dataclass(frozen=True)
class Typed:
    """A node with its type: a number, a name, a cast, or a function of other nodes."""

    kind: DataType
    function: Function | None = None
    arguments: tuple[Typed, ...] = ()
    name: str = ""
    number: float | None = None
    cast: DataType | None = None
    """The type that the argument is rounded to; the node's own type holds it."""
    size: int = field(init=False, compare=False)
    """Nodes of the tree."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + sum(argument.size for argument in self.arguments))

    def walk(self) -> list[Typed]:
        """The node and all nodes below it."""
        nodes, pending = [], [self]
        while pending:
            node = pending.pop()
            nodes.append(node)
            pending += node.arguments
        return nodes

    def approximation(self, accuracy: Accuracy) -> Approximation | None:
        """The form of the function on approximate instructions; None if it is computed with full accuracy."""
        function = self.function
        if function is None or accuracy == "full" or self.kind != "f32":
            return None
        if accuracy == "in_turn" and function.in_turn is not None:
            return function.in_turn
        return function.quick if accuracy == "halves" else function.coarse or function.quick


@dataclass
class _Typer:
    text: str
    kinds: Mapping[str, DataType]
    default: DataType
    count: int = 0

    def error(self, got: str, need: str, node: Node) -> FormulaError:
        return FormulaError(got, need, place(self.text, node.at))

    def typed(self, node: Node, wanted: DataType | None, bound: Mapping[str, Typed]) -> Typed:
        """The node with types; ``wanted``: the type of numbers."""
        self.count += 1
        if self.count > MAX_NODES:
            raise self.too_long()
        if node.number is not None:
            return self.literal(node, wanted or self.default)
        if node.name:
            if node.name in bound:
                return bound[node.name]
            if node.name not in self.kinds:
                raise self.error(
                    f"the unknown name {node.name!r}", f"need one of {', '.join(self.kinds)}{nearest(node.name, self.kinds)}", node
                )
            return Typed(self.kinds[node.name], name=node.name)
        if macro_of(node.function) is not None:
            return self.macro(node, wanted, bound)
        if node.function in _CAST_TYPES:
            return self.cast(node, bound)
        return self.function(node, wanted, bound)

    def literal(self, node: Node, kind: DataType) -> Typed:
        assert node.number is not None
        if kind == "bool":
            raise self.error(f"{written(node)} as a truth value", "need a comparison", node)
        if kind in FLOATS and not math.isfinite(node.number):
            return Typed(kind, number=node.number)
        if kind not in FLOATS and not float(node.number).is_integer():
            raise self.error(f"{written(node)} beside an integer value", "need an integer, or a cast to float32 before it", node)
        if abs(node.number) > ELEMENTS[kind].limits[1]:
            word, largest = ELEMENTS[kind].word, ELEMENTS[kind].limits[1]
            raise self.error(f"{node.number:g} beside a {word} value", f"need at most {largest:.7e}, the largest {word}", node)
        return Typed(kind, number=node.number)

    def arity(self, node: Node, wanted: int) -> None:
        if len(node.arguments) != wanted:
            raise self.error(f"{node.function} of {len(node.arguments)} values", f"need {wanted}", node)

    def macro(self, node: Node, wanted: DataType | None, bound: Mapping[str, Typed]) -> Typed:
        macro = macro_of(node.function)
        assert macro is not None
        parameters, body = macro
        self.arity(node, len(parameters))
        given = self.alike(node, wanted, bound)
        written_out = self.typed(body, given[0].kind, dict(zip(parameters, given, strict=True)))
        if written_out.size > MAX_NODES:
            raise self.too_long()
        return written_out

    def too_long(self) -> FormulaError:
        return FormulaError("a long expression", f"need at most {MAX_NODES} parts; name some under let", repr(self.text[:40]))

    def cast(self, node: Node, bound: Mapping[str, Typed]) -> Typed:
        self.arity(node, 1)
        to = _CAST_TYPES[node.function]
        (argument,) = (self.typed(argument, None, bound) for argument in node.arguments)
        if argument.kind == "bool":
            one, zero = (Typed(ELEMENTS[to].computed_in, number=value) for value in (1.0, 0.0))
            return Typed(one.kind, FUNCTIONS["select"], (argument, one, zero))
        return Typed(ELEMENTS[to].computed_in, arguments=(argument,), cast=to)

    def alike(self, node: Node, wanted: DataType | None, bound: Mapping[str, Typed]) -> list[Typed]:
        """The arguments, which have one type; numbers take it from the others."""
        others = [argument for argument in node.arguments if argument.number is None]
        known = {id(argument): self.typed(argument, wanted, bound) for argument in others}
        kinds = list(dict.fromkeys(typed.kind for typed in known.values()))
        if len(kinds) > 1:
            words = " and ".join(ELEMENTS[kind].word for kind in kinds)
            raise self.error(f"{node.function} of {words}", "need one type: cast one of them, with float32(...) for example", node)
        kind = kinds[0] if kinds else wanted or self.default
        return [known[id(argument)] if id(argument) in known else self.typed(argument, kind, bound) for argument in node.arguments]

    def function(self, node: Node, wanted: DataType | None, bound: Mapping[str, Typed]) -> Typed:
        function = FUNCTIONS.get(node.function)
        if function is None:
            known = [*(word for word in FUNCTIONS if word not in OPERATORS), *MACROS, *extension_names(), *_CAST_TYPES]
            raise self.error(
                f"the unknown function {node.function!r}", f"need one of {', '.join(known)}{nearest(node.function, known)}", node
            )
        self.arity(node, function.arity)
        if function.takes == "integers":
            return Typed("f32", function, tuple(self.integer(argument, node, bound) for argument in node.arguments))
        if function.name == "select":
            condition = self.typed(node.arguments[0], None, bound)
            if condition.kind != "bool":
                raise self.error(f"a condition of type {ELEMENTS[condition.kind].word}", "need a comparison", node.arguments[0])
            chosen = self.alike(Node(node.at, node.function, node.arguments[1:]), wanted, bound)
            return Typed(chosen[0].kind, function, (condition, *chosen))
        arguments = self.alike(node, wanted if function.gives == "same" else None, bound)
        kind = arguments[0].kind
        problem = type_problem(function, kind)
        if problem is not None:
            raise self.error(f"{function.name} of {problem[0]}", problem[1], node)
        if function.takes == "divided" and (arguments[1].number is None or arguments[1].number <= 0):
            raise self.error(f"{function.name} by {written(node.arguments[1])}", "need a positive whole number", node.arguments[1])
        return Typed("bool" if function.gives == "truth" else kind, function, tuple(arguments))

    def integer(self, argument: Node, node: Node, bound: Mapping[str, Typed]) -> Typed:
        """An argument as an int64."""
        typed = self.typed(argument, "s64", bound)
        if typed.kind not in ("s32", "s64"):
            raise self.error(
                f"{node.function} of {ELEMENTS[typed.kind].word}", "need integers: row, column, or inputs of type s64", argument
            )
        return typed if typed.kind == "s64" else Typed("s64", arguments=(typed,), cast="s64")


def type_problem(function: Function, kind: DataType) -> tuple[str, str] | None:
    """The reason against arguments of a type: the type found, and the type needed; None if there is none."""
    word = ELEMENTS[kind].word
    if function.takes == "any":
        return None
    if function.takes == "truth":
        return None if kind == "bool" else (f"a value of type {word}", "need a comparison")
    if kind == "bool":
        return "a truth value", "need a number: select(condition, 1, 0) makes one"
    if function.takes == "float32" and kind != "f32":
        return f"a value of type {word}", "need a float32 value: cast to float32 before it"
    if function.takes == "divided" and kind in FLOATS:
        return f"a value of type {word}", "need integers: row, column, inputs of type s32 or s64, or a cast to int32"
    if function.takes == "float" and kind not in FLOATS:
        return "an integer value", "need a floating-point value: cast to float32 or float64 before it"
    return None


def typed(text: str, kinds: Mapping[str, DataType], default: DataType) -> Typed:
    """The typed tree of an expression; ``kinds``: types of the names in it; ``default``: the type of numbers. Raises ``FormulaError``."""
    return typed_node(parse(text), text, kinds, default)


def typed_node(node: Node, text: str, kinds: Mapping[str, DataType], default: DataType) -> Typed:
    """The graph of a tree that was parsed before."""
    return _Typer(text, kinds, default).typed(node, default, {})


# ---- evaluation ----


def held(value: float, kind: DataType) -> float:
    """A constant as values of ``kind`` hold it."""
    import numpy as np

    return float(np.float32(value)) if kind == "f32" else value


def evaluate(node: Typed, names: Mapping[str, Tracked], accuracy: Accuracy = "full") -> Tracked:
    """The value of a tree with its derived error bound."""
    import numpy as np

    if node.number is not None:
        value = np.asarray(held(node.number, node.kind) if node.kind in FLOATS else int(node.number)).astype(wide_type(node.kind))
        return Tracked(value, np.zeros(value.shape), node.kind)
    if node.name:
        return names[node.name]
    arguments = [evaluate(argument, names, accuracy) for argument in node.arguments]
    if node.cast is not None:
        return to_type(arguments[0], node.cast)
    assert node.function is not None
    return (node.approximation(accuracy) or node.function).reference(*arguments)


# ---- CUDA text ----


@dataclass
class Writer:
    """CUDA statements of assignments, with a variable for each part that a statement needs twice."""

    accuracy: Accuracy = "full"
    texts: Mapping[str, str] = field(default_factory=dict)
    """CUDA expressions of the names that are no variables."""
    lines: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    """Names that variables must not have."""
    convert: Callable[[str, DataType, DataType], str] = lambda text, kind, to: text

    def assign(self, target: str, node: Typed, declared: str = "") -> None:
        """Adds the statement that gives ``target`` a value; ``declared``: ``const`` or nothing before the type of a new variable, which
        a space follows; empty for a variable that changes."""
        text = self.text(node) if declared else self._changed(target, node)
        if declared:
            self.lines.append(f"{declared}{target} = {text};")
        elif text and text != target:
            self.lines.append(f"{target} = {text};")

    def _changed(self, target: str, node: Typed) -> str:
        """The new value of a variable; empty if a shorter statement was added."""
        function = node.function
        if function is None or node.arguments[0].name != target:
            return self.text(node)
        signs = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
        if node.kind in FLOATS and function.name in signs:
            self.lines.append(f"{target} {signs[function.name]}= {self.text(node.arguments[1])};")
        elif node.kind in FLOATS and function.name == "square":
            self.lines.append(f"{target} *= {target};")
        elif node.kind not in FLOATS and function.name == "abs":
            element = ELEMENTS[node.kind]
            bits = f"static_cast<{element.unsigned_c_type}>(0) - static_cast<{element.unsigned_c_type}>({target})"
            self.lines += [f"if ({target} < 0)", f"    {target} = static_cast<{element.c_type}>({bits});"]
        else:
            return self.text(node)
        return ""

    def text(self, node: Typed, level: int = 0) -> str:
        """The CUDA expression of a tree; ``level``: the precedence that it needs."""
        if node.number is not None:
            text = literal(node.kind, held(node.number, node.kind))
            return f"({text})" if text.startswith("-") and level > 6 else text
        if node.name:
            return self.texts.get(node.name, node.name)
        if node.cast is not None:
            return self.cast(node, level)
        function = node.function
        assert function is not None
        first = node.arguments[0].kind
        template, own, inner = function.code, function.level, function.inner
        extremum = self._extremum(node)
        approximation = node.approximation(self.accuracy)
        if approximation is not None:
            template, own, inner = approximation.code, CALL_LEVEL, ()
        elif extremum:
            template, own, inner = extremum, 0, (5, 5)
        elif function.integer and first not in FLOATS:
            template = function.integer
            own, inner = (0, (CALL_LEVEL,)) if "?" in template else (CALL_LEVEL, ())
        repeats = template.count("{0}") > 1
        texts = []
        for index, argument in enumerate(node.arguments):
            text = self.text(argument, inner[index] if index < len(inner) else 0)
            if argument.kind == "s64" and argument.number is not None and function.name in ("min", "max"):
                text += "LL"  # CUDA has these functions for two values of one type
            simple = argument.number is not None or bool(argument.name)
            texts.append(self.variable(argument.kind, self.text(argument)) if index == 0 and repeats and not simple else text)
        result = template.format(*texts, **constants_of(first))
        return f"({result})" if own < level else result

    def _extremum(self, node: Typed) -> str:
        """The text of a limit by a constant that comparisons tell from all other numbers, as they do not tell +0 and -0; empty if the node
        is none, or one instruction."""
        assert node.function is not None
        limit = node.arguments[-1].number
        if node.function.name not in ("min", "max") or node.kind != "f64" or not limit or math.isnan(limit):
            return ""
        sign = ">" if node.function.name == "min" else "<"
        return "{0} " + sign + " {1} ? {1} : {0}"

    def variable(self, kind: DataType, text: str) -> str:
        """A new variable for a part."""
        count = 1
        while f"part{count}" in self.taken:
            count += 1
        self.taken.add(f"part{count}")
        self.lines.append(f"const {ELEMENTS[kind].c_type} part{count} = {text};")
        return f"part{count}"

    def cast(self, node: Typed, level: int) -> str:
        (argument,) = node.arguments
        assert node.cast is not None
        text = self.text(argument)
        if argument.kind in FLOATS and node.cast not in FLOATS and not argument.name:
            text = self.variable(argument.kind, text)  # the conversion tells NaN by a comparison with itself
        return self.convert(self.convert(text, argument.kind, node.cast), node.cast, node.kind)
