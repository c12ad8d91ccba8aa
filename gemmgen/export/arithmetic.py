"""Formulas as C over ``int64_t``: plain operators where no value can leave its type, checked functions where one could.

Python's integers have no end, C's have. The range of each name is known (``Facts``), so for most formulas it follows that no
intermediate result overflows, that no divisor is zero, and that ``/`` and ``%`` round as in Python; those become ordinary C.
Every other operation becomes a call that sets ``overflow`` instead, upon which the host refuses the problem.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as product_of_choices
from math import prod

from gemmgen.core.expressions import SYMBOLS
from gemmgen.core.formulas import Formula, ceil_div, ceil_log2, round_up

Range = tuple[int, int]

INT32: Range = (-(2**31), 2**31 - 1)
INT64: Range = (-(2**63), 2**63 - 1)
_ANYTHING: Range = (-(2**1000), 2**1000)

_ATOM, _MULTIPLY, _ADD, _SHIFT, _RELATION, _SELECT = 10, 8, 7, 6, 5, 1
"""Precedence of the parts of an expression, as in C."""

_CONTRARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


class Facts:
    """Knowledge of the values of names and of whole expressions, at one place in a program."""

    def __init__(self, names: Mapping[str, Range]) -> None:
        """``names``: the least and the largest value of each name, both within ``int64_t``."""
        self._ranges: dict[str, Range] = {ast.dump(ast.Name(name, ast.Load())): limits for name, limits in names.items()}
        self._products: list[tuple[Counter[str], int]] = []

    def copy(self) -> Facts:
        """A copy of the facts, to which others can be added."""
        other = Facts({})
        other._ranges = dict(self._ranges)
        other._products = list(self._products)
        return other

    @staticmethod
    def of_either(alternatives: Sequence[Facts]) -> Facts:
        """Facts that hold if one of the ``alternatives`` does."""
        common = Facts({})
        for key in set.intersection(*(set(facts._ranges) for facts in alternatives)):
            ranges = [facts._ranges[key] for facts in alternatives]
            common._ranges[key] = min(low for low, _ in ranges), max(high for _, high in ranges)
        common._products = [product for product in alternatives[0]._products if all(product in facts._products for facts in alternatives)]
        return common

    def assume(self, condition: Formula) -> None:
        """From here on ``condition`` holds."""
        self.assume_node(condition.tree)

    def assume_positive(self, formula: Formula) -> None:
        """From here on ``formula`` is at least 1, and so is every factor of it that cannot be negative."""
        self._positive(formula.tree)

    def assume_at_most(self, formula: Formula, limit: int) -> None:
        """From here on ``formula`` is not above ``limit``."""
        self._narrow(formula.tree, (INT64[0], limit))

    def assume_node(self, condition: ast.expr) -> None:
        if not isinstance(condition, ast.Compare):
            return
        left, right = condition.left, condition.comparators[0]
        (left_low, left_high), (right_low, right_high) = self.range_of(left), self.range_of(right)
        match condition.ops[0]:
            case ast.Lt():
                self._narrow(left, (INT64[0], right_high - 1))
                self._narrow(right, (left_low + 1, INT64[1]))
            case ast.LtE():
                self._narrow(left, (INT64[0], right_high))
                self._narrow(right, (left_low, INT64[1]))
            case ast.Gt():
                self._narrow(left, (right_low + 1, INT64[1]))
                self._narrow(right, (INT64[0], left_high - 1))
            case ast.GtE():
                self._narrow(left, (right_low, INT64[1]))
                self._narrow(right, (INT64[0], left_high))
            case ast.Eq():
                self._narrow(left, (right_low, right_high))
                self._narrow(right, (left_low, left_high))

    def range_of(self, node: ast.expr) -> Range:
        """The least and the largest value of an expression that did not overflow."""
        return _Printer(self, {}).term(node).limits

    def known(self, node: ast.expr) -> Range:
        """Assumption about an expression as a whole."""
        low, high = self._ranges.get(ast.dump(node), _ANYTHING)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            high = min([high, *self._product_limits(_factors(node))])
        return low, high

    def _product_limits(self, factors: Sequence[ast.expr]) -> Iterator[int]:
        """Upper limits of a product that follow from those of products with some of the same factors."""
        ranges = {ast.dump(factor): self.range_of(factor) for factor in factors}
        own = Counter(ast.dump(factor) for factor in factors)
        if any(low < 0 for low, _ in ranges.values()):
            return
        for product, limit in self._products:
            missing = [self._ranges.get(factor, _ANYTHING)[0] for factor in (product - own).elements()]
            if product & own and all(low >= 1 for low in missing):
                yield limit // prod(missing) * prod(ranges[factor][1] for factor in (own - product).elements())

    def _narrow(self, node: ast.expr, limits: Range) -> None:
        if isinstance(node, ast.Constant):
            return
        low, high = self._ranges.get(ast.dump(node), _ANYTHING)
        self._ranges[ast.dump(node)] = max(low, limits[0]), min(high, limits[1])
        if limits[1] < high:
            self._narrow_parts(node, limits[1])

    def _narrow_parts(self, node: ast.expr, limit: int) -> None:
        """Facts about the parts of ``node``, given that it is not above ``limit``."""
        match node:
            case ast.BinOp(op=ast.Mult()):
                factors = _factors(node)
                if all(self.range_of(factor)[0] >= 0 for factor in factors):
                    # A sum of numbers that are not negative is at least each of them: (a + b) * c <= limit, hence a * c <= limit.
                    for choice in product_of_choices(*(self._parts_of_sum(factor) for factor in factors)):
                        self._products.append((Counter(ast.dump(f) for part in choice for f in _factors(part)), limit))
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=ast.Constant(value=int() as divisor)) if divisor > 0:
                self._narrow(left, (INT64[0], limit * divisor + divisor - 1))
            case ast.Call(func=ast.Name(id="ceil_div"), args=[left, ast.Constant(value=int() as divisor)]) if divisor > 0:
                self._narrow(left, (INT64[0], limit * divisor))

    def _parts_of_sum(self, node: ast.expr) -> list[ast.expr]:
        terms = _terms(node)
        return [node, *terms] if len(terms) > 1 and all(self.range_of(term)[0] >= 0 for term in terms) else [node]

    def _positive(self, node: ast.expr) -> None:
        self._narrow(node, (1, INT64[1]))
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right) | ast.Call(func=ast.Name(id="min"), args=[left, right]):
                parts = [left, right]
            case ast.BinOp(left=left, op=ast.FloorDiv()) | ast.Call(func=ast.Name(id="ceil_div"), args=[left, _]):
                parts = [left]
            case _:
                parts = []
        for part in parts:
            if all(self.range_of(other)[0] >= 0 for other in parts):
                self._positive(part)


@dataclass(frozen=True)
class Expression:
    """A formula in C. If it is ``checked``, evaluating it may set the variable ``overflow``, and its value then means nothing."""

    text: str
    checked: bool
    limits: Range
    """The least and the largest value."""

    @property
    def constant(self) -> int | None:
        """The value, if the text is nothing but a number."""
        return int(self.text) if self.text.isdecimal() else None


def to_c(formula: Formula, facts: Facts, names: Mapping[str, str] | None = None, negated: bool = False) -> Expression:
    """``formula`` as a C expression of type ``int`` or ``int64_t``; ``names``: the names that differ in C; ``negated``: the
    condition that it does not hold."""
    tree = formula.tree
    if negated:
        if isinstance(tree, ast.Compare):
            tree = ast.Compare(tree.left, [_CONTRARY[type(tree.ops[0])]()], tree.comparators)
        else:
            tree = ast.Compare(tree, [ast.Eq()], [ast.Constant(0)])
    term = _Printer(facts, names or {}).term(tree)
    return Expression(term.text, term.checked, term.limits)


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


@dataclass(frozen=True)
class _Term:
    text: str
    binds: int
    limits: Range
    wide: bool = True
    """True if its type is ``int64_t`` rather than ``int``."""
    checked: bool = False
    literal: bool = False

    def within(self, binds: int) -> str:
        """The text as an operand of something that binds so tightly."""
        return self.text if self.binds >= binds else f"({self.text})"


def _fits(limits: Range, type_limits: Range = INT64) -> bool:
    return type_limits[0] <= limits[0] and limits[1] <= type_limits[1]


def _intersection(one: Range, other: Range) -> Range:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low <= high else one


def _literal(value: int) -> _Term:
    wide = not _fits((value, value), INT32)
    return _Term(f"INT64_C({value})" if wide else str(value), _ATOM, (value, value), wide, literal=True)


def _checked(name: str, operands: Sequence[str], limits: Range) -> _Term:
    """A call that sets ``overflow`` where there is no result, and then returns 1: the rest is computed all the same."""
    low, high = _intersection(limits, INT64)
    return _Term(f"gemmgen_checked_{name}({', '.join([*operands, '&overflow'])})", _ATOM, (min(low, 1), max(high, 1)), True, True)


@dataclass(frozen=True)
class _Printer:
    facts: Facts
    names: Mapping[str, str]

    def term(self, node: ast.expr) -> _Term:
        term = self._term(node)
        if term.checked:  # known bounds hold only if nothing overflowed
            return term
        limits = _intersection(_intersection(term.limits, INT64), self.facts.known(node))
        return replace(term, limits=limits)

    def _term(self, node: ast.expr) -> _Term:
        match node:
            case ast.Name(id=name):
                return _Term(self.names.get(name, name), _ATOM, INT64)
            case ast.Constant(value=int() as value):
                return _literal(value)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, op, self.term(left), self.term(right))
            case ast.Compare(left=left, ops=[relation], comparators=[right]):
                one, other = self.term(left), self.term(right)
                text = f"{one.within(_ADD)} {SYMBOLS[type(relation)]} {other.within(_ADD)}"
                return _Term(text, _RELATION, (0, 1), False, one.checked or other.checked)
            case ast.Call(func=ast.Name(id="select"), args=[condition, yes, no]):
                return self._select(condition, yes, no)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, [self.term(argument) for argument in arguments])
        raise AssertionError("a formula was parsed, but has a part that is not in its grammar")

    def _binary(self, node: ast.BinOp, op: ast.operator, left: _Term, right: _Term) -> _Term:
        (left_low, left_high), (right_low, right_high) = left.limits, right.limits
        natural = left_low >= 0 and right_low >= 1
        match op:
            case ast.Add():
                name, sign, binds, limits = "add", "+", _ADD, (left_low + right_low, left_high + right_high)
            case ast.Sub():
                name, sign, binds, limits = "sub", "-", _ADD, (left_low - right_high, left_high - right_low)
                if _is_power_above(node):  # the least power of two that is at least x, less x, is below x
                    limits = (0, max(right_high - 1, 0))
            case ast.Mult():
                corners = [a * b for a in left.limits for b in right.limits]
                name, sign, binds, limits = "mul", "*", _MULTIPLY, (min(corners), max(corners))
            case ast.FloorDiv():
                largest = max(abs(left_low), abs(left_high))
                limits = (left_low // right_high, left_high // right_low) if natural else (-largest - 1, largest)
                if natural and (quotient := _quotient_of_remainder(node)) is not None:
                    limits = (limits[0], min(limits[1], self.term(quotient).limits[1] - 1))
                name, sign, binds = "div", "/", _MULTIPLY
            case ast.Mod():
                limits = (0, min(left_high, right_high - 1)) if natural else (min(right_low + 1, 0), max(right_high - 1, 0))
                name, sign, binds = "mod", "%", _MULTIPLY
            case ast.LShift():
                limits = (0 if left_low >= 0 else INT64[0] - 1, INT64[1] + 1)
                if left_low >= 0 and right_low >= 0 and right_high < 63:
                    limits = (left_low << right_low, left_high << right_high)
                name, sign, binds = "shl", "<<", _SHIFT
            case _:
                raise AssertionError("a formula was parsed, but has an operator that is not in its grammar")
        checked = left.checked or right.checked
        if not checked:
            limits = _intersection(limits, self.facts.known(node))
        divides_by_zero = name in ("div", "mod") and right_low <= 0 <= right_high
        if left.literal and right.literal and not divides_by_zero and 0 <= limits[0] == limits[1] <= INT64[1]:
            return _literal(limits[0])
        if not _fits(limits) or (name in ("div", "mod") and not natural):
            return _checked(name, [left.text, right.text], limits)
        # A shift has the type of its left operand; other operations that of the wider one.
        wide = left.wide or (right.wide and name != "shl")
        first = left.within(_ATOM if name == "shl" else binds)
        if not wide and (not _fits(limits, INT32) or (name == "shl" and right_high > 30)):
            first, wide = (f"INT64_C({left.text})" if left.literal else f"(int64_t){left.within(_ATOM)}"), True
        second = right.within(_ATOM if name in ("shl", "div", "mod") else binds + 1)
        return _Term(f"{first} {sign} {second}", binds, limits, wide, checked)

    def _select(self, condition: ast.expr, yes: ast.expr, no: ast.expr) -> _Term:
        test = self.term(condition)
        facts = self.facts.copy()
        facts.assume_node(condition)
        first, second = _Printer(facts, self.names).term(yes), self.term(no)
        limits = min(first.limits[0], second.limits[0]), max(first.limits[1], second.limits[1])
        text = f"{test.within(_RELATION)} ? {first.within(_RELATION)} : {second.within(_RELATION)}"
        checked = test.checked or first.checked or second.checked
        return _Term(text, _SELECT, limits, first.wide or second.wide, checked)

    def _call(self, name: str, arguments: list[_Term]) -> _Term:
        first, last = arguments[0], arguments[-1]
        (low, high), (last_low, last_high) = first.limits, last.limits
        safe = True
        match name:
            case "min":
                limits = min(low, last_low), min(high, last_high)
            case "max":
                limits = max(low, last_low), max(high, last_high)
            case "ceil_log2":
                safe = low >= 1
                limits = (ceil_log2(low), ceil_log2(high)) if safe else (0, 63)
            case "ceil_div":
                safe = low >= 0 and last_low >= 1
                limits = (ceil_div(low, last_high), ceil_div(high, last_low)) if safe else INT64
            case _:
                safe = low >= 0 and last_low >= 1 and _fits((0, high + last_high))
                limits = (low, high + last_high - 1) if safe else INT64
                if safe and last_low == last_high:
                    limits = round_up(low, last_low), round_up(high, last_low)
        texts = [argument.text for argument in arguments]
        checked = any(argument.checked for argument in arguments)
        if safe:
            return _Term(f"gemmgen_{name}({', '.join(texts)})", _ATOM, limits, True, checked)
        return _checked(name, texts, limits)


def _is_power_above(node: ast.BinOp) -> bool:
    """True if this is ``(1 << ceil_log2(x)) - x``."""
    match node.left:
        case ast.BinOp(left=ast.Constant(value=1), op=ast.LShift(), right=ast.Call(func=ast.Name(id="ceil_log2"), args=[value])):
            return ast.dump(value) == ast.dump(node.right)
    return False


def _quotient_of_remainder(node: ast.BinOp) -> ast.expr | None:
    """``a`` if this is ``x % (a * b) // b``, which is below it."""
    match node.left:
        case ast.BinOp(op=ast.Mod(), right=ast.BinOp(left=limit, op=ast.Mult(), right=divisor)):
            return limit if ast.dump(divisor) == ast.dump(node.right) else None
    return None
