"""Bounds of accesses to a flat array that holds rows within planes, such as the partial sums of slices of k.

An index ``(s M + r) P + c`` is proved to lie in ``S M P`` elements from the inside out: ``0 <= c < P``, ``0 <= r < M`` and ``0 <= s < S``.
The numbers P and M are factors of the array's size; each of these facts is a small query, while a product of unknown numbers is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd, lcm

import z3

from gemmgen.proof.contract import Array
from gemmgen.proof.knowledge import Knowledge
from gemmgen.proof.polynomials import Monomial, plus, product
from gemmgen.proof.terms import node_of
from gemmgen.proof.values import Condition, Term, as_term

MAX_FACTORS = 6


def within_rows(known: Knowledge, offset: z3.ArithRef, array: Array, count: int, width: int, premises: Sequence[Condition]) -> bool:
    """True if ``count`` elements from an offset in bytes lie within a flat array of rows, and the offset is a multiple of ``width``."""
    if len(array.shape) != 1 or array.strides != (1,):
        return False
    extent = _factors(known, array.shape[0])
    if extent is None:
        return False
    number, factors = extent
    if len(factors) < 2:
        return False
    if _in_plane(known, offset, array, count, number, factors, max(1, width // array.element_bytes), premises):
        return True
    index = _divided(offset, array.element_bytes)
    return index is not None and _inside(known, index, count, number, factors, max(1, width // array.element_bytes), premises)


def is_dense(known: Knowledge, array: Array) -> bool:
    """True for an array of two or more axes whose elements fill it, with a stride that is no dimension: tiles of scales, for instance."""
    strides = [known.polynomials.of(as_term(stride)) for stride in array.strides]
    sizes = [known.polynomials.of(as_term(extent) * as_term(stride)) for extent, stride in zip(array.shape, array.strides, strict=True)]
    return len(strides) > 1 and array.strides[-1] == 1 and strides[:-1] == sizes[1:] and isinstance(array.shape[-1], int)


def within_dense(known: Knowledge, offset: z3.ArithRef, array: Array, count: int, width: int, premises: Sequence[Condition]) -> bool:
    """True if ``count`` elements from an offset in bytes lie in one row of a dense array, and the offset is a multiple of ``width``."""
    form = dict(known.polynomials.of(offset))
    if any(times % array.element_bytes for times in form.values()):
        return False
    form = {monomial: times // array.element_bytes for monomial, times in form.items()}
    multiple = max(1, width // array.element_bytes)

    def proves(goal: Condition) -> bool:
        return known.solver.proves(premises, goal)

    for extent in array.shape[:0:-1]:
        parts = _split(known, form, extent, proves)
        if parts is None:
            return False
        inner, form = parts
        index = _sum(known, inner)
        if not proves(index >= 0) or not proves(index + count <= as_term(extent)):
            return False
        if multiple > 1 and (not isinstance(extent, int) or extent % multiple or not proves(index % multiple == 0)):
            return False
        count = multiple = 1
    index = _sum(known, form)
    return proves(index >= 0) and proves(index < as_term(array.shape[0]))


def split_into_rows(
    known: Knowledge, indices: Sequence[z3.ArithRef], counts: Sequence[z3.ArithRef], paths: Sequence[Sequence[Condition]]
) -> Iterator[list[list[z3.ArithRef]]]:
    """Indices of runs of elements in a flat array as places in rows: ``s + r P + c`` is row r, column c, as ``0 <= c`` and runs end by P.

    The start s and the width P are numbers of the problem, which all runs share, so that runs meet only in one row. Rows are split again,
    into planes for instance.
    """
    forms = [known.polynomials.of(index) for index in indices]
    start = {monomial: times for monomial, times in forms[0].items() if _of_problem(known, monomial)}
    for without in ({}, start) if start else ({},):
        yield from _rows(known, [plus(form, without, -1) for form in forms], counts, paths)


def _rows(
    known: Knowledge, forms: Sequence[Mapping[Monomial, int]], counts: Sequence[z3.ArithRef], paths: Sequence[Sequence[Condition]]
) -> Iterator[list[list[z3.ArithRef]]]:
    yield [[_sum(known, form)] for form in forms]
    for width in _widths(known, forms):
        rows = [_multiples(form, width) for form in forms]
        columns = [_sum(known, plus(form, product(row, width), -1)) for form, row in zip(forms, rows, strict=True)]
        end = _sum(known, width)
        if all(
            known.proves(path, z3.And(column >= 0, column + count <= end))
            for column, count, path in zip(columns, counts, paths, strict=True)
        ):
            for outer in _rows(known, rows, [z3.IntVal(1)] * len(rows), paths):
                yield [[*row, column] for row, column in zip(outer, columns, strict=True)]


def _widths(known: Knowledge, forms: Sequence[Mapping[Monomial, int]]) -> Iterator[dict[Monomial, int]]:
    """Numbers of the problem that many parts of some sums are multiples of: a factor times a number, or this plus others."""
    for factor in sorted({factor for form in forms for monomial in form if len(monomial) > 1 for factor in monomial}):
        if not _of_problem(known, (factor,)):
            continue
        width: dict[Monomial, int] = {(factor,): gcd(*(form[monomial] for form in forms for monomial in form if factor in monomial))}
        longest, row, form = max(
            ((max(row, key=len, default=()), row, form) for form in forms if (row := _multiples(form, width))),
            key=lambda each: len(each[0]),
        )
        rest = _multiples(plus(form, product(row, width), -1), {longest: row[longest]})
        more = {monomial: times for monomial, times in rest.items() if _of_problem(known, monomial)}
        if longest and more:
            yield plus(width, more)
        yield width


def _of_problem(known: Knowledge, monomial: Monomial) -> bool:
    """True for a product that all threads of the grid share."""
    shared = {symbol.get_id() for symbol in known.contract.symbols.values()}
    return all(node_of(known.polynomials.term(factor)).symbols <= shared for factor in monomial)


def _multiples(form: Mapping[Monomial, int], width: Mapping[Monomial, int]) -> dict[Monomial, int]:
    """The quotients of those monomials of a sum that are multiples of the first monomial of a width."""
    leading, number = next(iter(width.items()))
    quotients: dict[Monomial, int] = {}
    for monomial, times in form.items():
        left = list(monomial)
        if times % number == 0 and all(left.count(factor) >= leading.count(factor) for factor in leading):
            for factor in leading:
                left.remove(factor)
            quotients[tuple(left)] = times // number
    return quotients


def _split(
    known: Knowledge, form: Mapping[Monomial, int], extent: Term, proves: Callable[[Condition], bool]
) -> tuple[dict[Monomial, int], dict[Monomial, int]] | None:
    """A sum as a remainder and a quotient by an extent; None if it has no such form."""
    if isinstance(extent, int):
        quotient = {monomial: times // extent for monomial, times in form.items() if not times % extent}
        return {monomial: times for monomial, times in form.items() if times % extent}, quotient
    candidates = sorted({factor for monomial in form if len(monomial) > 1 for factor in monomial})
    equal = {factor for factor in candidates if proves(known.polynomials.term(factor) == extent)}
    inner: dict[Monomial, int] = {}
    outer: dict[Monomial, int] = {}
    for monomial, times in form.items():
        factor = next((each for each in monomial if each in equal), None)
        if factor is None:
            inner[monomial] = times
        else:
            place = monomial.index(factor)
            outer[monomial[:place] + monomial[place + 1 :]] = outer.get(monomial[:place] + monomial[place + 1 :], 0) + times
    return inner, outer


def _in_plane(
    known: Knowledge,
    offset: z3.ArithRef,
    array: Array,
    count: int,
    number: int,
    factors: Sequence[z3.ArithRef],
    multiple: int,
    premises: Sequence[Condition],
) -> bool:
    """True if an offset is ``s E + e`` with ``0 <= s < S`` and ``0 <= e < E``, in S planes of E elements, where E and e are multiples of
    ``count``, and of the alignment."""
    if number % count or number % multiple:
        return False
    names: dict[object, int] = {}
    whole = _alike(known, known.polynomials.of(offset), names)
    several: list[tuple[Term, int, list[z3.ArithRef]]] = [
        (planes, number, [factor for other, factor in enumerate(factors) if other != place]) for place, planes in enumerate(factors)
    ]
    unit = lcm(count, multiple)
    several += [(number // size, size, [*factors]) for size in range(unit, number, unit) if not number % size]
    for planes, size, rest in several:
        for plane in _sizes(size, rest):
            parts = _quotient(known, whole, _alike(known, known.polynomials.of(plane), names), array.element_bytes)
            if parts is None:
                continue
            plane_number, inner = parts

            def proves(goal: Condition) -> bool:
                return known.solver.proves(premises, goal)

            return (
                proves(z3.And(plane_number >= 0, plane_number < as_term(planes)))
                and proves(inner >= 0)
                and proves(inner < plane)
                and (count == 1 or proves(inner % count == 0))
                and (multiple == 1 or proves(inner % multiple == 0))
            )
    return False


def _sizes(number: int, factors: Sequence[z3.ArithRef]) -> list[z3.ArithRef]:
    """A product, and its form in which a multiple of a quotient is a dividend without its remainder."""
    sizes = [z3.Product(z3.IntVal(number), *factors)]
    for place, factor in enumerate(factors):
        if factor.decl().kind() == z3.Z3_OP_IDIV and z3.is_int_value(factor.arg(1)) and not number % factor.arg(1).as_long():
            dividend, divisor = factor.children()
            others = [other for at, other in enumerate(factors) if at != place]
            sizes.append(z3.Product(z3.IntVal(number // divisor.as_long()), *others, dividend - dividend % divisor))
    return sizes


def _alike(known: Knowledge, form: Mapping[Monomial, int], names: dict[object, int]) -> dict[Monomial, int]:
    """A sum in which equal remainders, of sums in another order, have one number."""

    def name(factor: int) -> int:
        term = known.polynomials.term(factor)
        if term.decl().kind() != z3.Z3_OP_MOD:
            return factor
        dividend, divisor = (tuple(sorted(known.polynomials.of(part).items())) for part in term.children())
        return names.setdefault((dividend, divisor), factor)

    merged: dict[Monomial, int] = {}
    for monomial, times in form.items():
        alike = tuple(sorted(map(name, monomial)))
        merged[alike] = merged.get(alike, 0) + times
    return {monomial: times for monomial, times in merged.items() if times}


def _quotient(
    known: Knowledge, whole: Mapping[Monomial, int], plane: Mapping[Monomial, int], size: int
) -> tuple[z3.ArithRef, z3.ArithRef] | None:
    """Quotient and remainder of a sum, in units of some bytes, by the size of a plane; the remainder has no product of unknowns."""
    leading = max(plane, key=len)
    if len(leading) < 2:
        return None
    quotient: dict[Monomial, int] = {}
    for monomial, times in whole.items():
        left = list(monomial)
        if all(left.count(factor) >= leading.count(factor) for factor in leading):
            for factor in leading:
                left.remove(factor)
            if times % (plane[leading] * size):
                return None
            quotient[tuple(left)] = times // (plane[leading] * size)
    if not quotient:
        return None
    rest = dict(whole)
    for one, times in quotient.items():
        for other, more in plane.items():
            monomial = tuple(sorted((*one, *other)))
            rest[monomial] = rest.get(monomial, 0) - times * more * size
    rest = {monomial: times for monomial, times in rest.items() if times}
    if any(times % size or len(monomial) > 1 for monomial, times in rest.items()):
        return None
    inner = {monomial: times // size for monomial, times in rest.items()}
    return _sum(known, quotient), _sum(known, inner)


def _sum(known: Knowledge, form: Mapping[Monomial, int]) -> z3.ArithRef:
    total: z3.ArithRef = z3.IntVal(0)
    for monomial, times in form.items():
        total = total + z3.Product(z3.IntVal(times), *map(known.polynomials.term, monomial))
    return total


def _factors(known: Knowledge, extent: Term) -> tuple[int, list[z3.ArithRef]] | None:
    """The number and the factors of a size that is a product."""
    term, divisor = as_term(extent), 1
    if term.decl().kind() == z3.Z3_OP_IDIV and z3.is_int_value(term.arg(1)) and term.arg(1).as_long() > 0:
        term, divisor = term.arg(0), term.arg(1).as_long()
    monomials = known.polynomials.monomials(term)
    if len(monomials) != 1:
        return None
    number, factors = monomials[0]
    if number <= 0 or number % divisor or len(factors) > MAX_FACTORS:
        return None
    return number // divisor, list(factors)


def _divided(term: z3.ArithRef, size: int) -> list[z3.ArithRef] | None:
    """The parts of a sum, each divided by a number that all of them are multiples of."""
    quotients: list[z3.ArithRef] = []
    for part in _summands(term):
        number = 1
        rest: list[z3.ArithRef] = []
        for factor in part.children() if part.decl().kind() == z3.Z3_OP_MUL else [part]:
            if z3.is_int_value(factor):
                number *= factor.as_long()
            else:
                rest.append(factor)
        if number % size:
            return None
        left = number // size
        if len(rest) == 1 and left == 1:
            quotients += _summands(rest[0])
        elif rest:
            quotients.append(z3.Product(*([z3.IntVal(left)] if left != 1 else []), *rest))
        else:
            quotients.append(z3.IntVal(left))
    return quotients


def _summands(term: z3.ArithRef) -> list[z3.ArithRef]:
    if term.decl().kind() != z3.Z3_OP_ADD:
        return [term]
    return [part for child in term.children() for part in _summands(child)]


def _inside(
    known: Knowledge,
    index: Sequence[z3.ArithRef],
    count: int,
    number: int,
    factors: Sequence[z3.ArithRef],
    multiple: int,
    premises: Sequence[Condition],
) -> bool:
    """True if ``count`` elements from the sum of some parts lie below a product, and the sum is a multiple of a number."""

    def proves(goal: Condition) -> bool:
        return known.solver.proves(premises, goal)

    total = z3.Sum(*index) if index else z3.IntVal(0)
    if len(factors) == 1:
        if multiple > 1 and not proves(total % multiple == 0):
            return False
        limit = factors[0] * number
        return proves(z3.And(total >= 0, total + count <= limit)) or (count == 1 and _quotient_below(known, total, limit, premises))
    for place, part in enumerate(index):
        if part.decl().kind() != z3.Z3_OP_MUL or z3.is_int_value(part):
            continue
        children = part.children()
        for which, row in enumerate(children):
            if z3.is_int_value(row):
                continue
            for chosen, factor in enumerate(factors):
                times = next((each for each in {number, 1} if not number % each and proves(row == factor * each)), 0)
                if not times:
                    continue
                rest = [*index[:place], *index[place + 1 :]]
                inner = z3.Sum(*rest) if rest else z3.IntVal(0)
                if not proves(z3.And(inner >= 0, inner + count <= row)):
                    return False
                if multiple > 1 and not proves(z3.And(inner % multiple == 0, row % multiple == 0)):
                    return False
                others = [child for position, child in enumerate(children) if position != which]
                outer = others[0] if len(others) == 1 else z3.Product(*others)
                left = [each for position, each in enumerate(factors) if position != chosen]
                return _inside(known, _summands(outer), 1, number // times, left, 1, premises)
    return False


def _quotient_below(known: Knowledge, total: z3.ArithRef, limit: z3.ArithRef, premises: Sequence[Condition]) -> bool:
    """True if a quotient lies below a limit, as its dividend lies below the divisor times the limit."""
    quotient = z3.simplify(total)
    if quotient.get_id() not in known.quotients:
        return False
    dividend, divisor = known.quotients[quotient.get_id()]
    is_quotient = any(one.z3.get_id() == quotient.get_id() for one, _ in known.divided)
    goal = z3.And(quotient >= 0, dividend >= 0, divisor >= 1)
    return is_quotient and known.solver.proves(premises, goal) and known.solver.proves(premises, dividend < divisor * limit)
