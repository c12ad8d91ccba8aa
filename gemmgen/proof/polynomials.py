"""Integer terms as sums of monomials, which settle without a solver whether two addresses differ by a constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import z3

from gemmgen.proof.terms import Node, compute, node_of, term_of

Monomial = tuple[int, ...]
"""Numbers of the factors' terms, sorted; empty for the constant."""
MAX_MONOMIALS = 400
"""Larger products stay factors as they are."""


_COMBINED = (z3.Z3_OP_ADD, z3.Z3_OP_MUL, z3.Z3_OP_SUB, z3.Z3_OP_UMINUS)


class Polynomials:
    """Normal forms of terms, each computed once. A factor is any term that is no sum, product or number."""

    def __init__(self) -> None:
        self._forms: dict[int, dict[Monomial, int]] = {}

    def of(self, term: z3.ArithRef) -> dict[Monomial, int]:
        """The coefficients of a term's monomials, none of them 0; not to be changed."""
        return compute(node_of(term), self._forms, self._combined, lambda part: part.children if part.kind in _COMBINED else ())

    def _combined(self, part: Node, forms: Sequence[dict[Monomial, int]]) -> dict[Monomial, int]:
        kind = part.kind
        if z3.is_int_value(part.term):
            value = part.term.as_long()
            return {(): value} if value else {}
        if kind == z3.Z3_OP_UMINUS:
            return {monomial: -number for monomial, number in forms[0].items()}
        if kind in (z3.Z3_OP_ADD, z3.Z3_OP_SUB):
            total = dict(forms[0])
            for form in forms[1:]:
                for monomial, number in form.items():
                    total[monomial] = total.get(monomial, 0) + (number if kind == z3.Z3_OP_ADD else -number)
            return {monomial: number for monomial, number in total.items() if number}
        if kind == z3.Z3_OP_MUL:
            product: dict[Monomial, int] = {(): 1}
            for form in forms:
                if len(product) * len(form) > MAX_MONOMIALS:
                    return {(part.number,): 1}
                following: dict[Monomial, int] = {}
                for one, number in product.items():
                    for two, number_ in form.items():
                        monomial = tuple(sorted((*one, *two)))
                        following[monomial] = following.get(monomial, 0) + number * number_
                product = {monomial: number for monomial, number in following.items() if number}
            return product
        return {(part.number,): 1}

    def monomials(self, term: z3.ArithRef) -> list[tuple[int, list[z3.ArithRef]]]:
        """The coefficients and factors of a term's monomials."""
        return self.factors(tuple(self.of(term).items()))

    def factors(self, form: Sequence[tuple[Monomial, int]]) -> list[tuple[int, list[z3.ArithRef]]]:
        """The coefficients and factors of monomials."""
        return [(number, [term_of(factor) for factor in monomial]) for monomial, number in form]

    def term(self, factor: int) -> z3.ArithRef:
        """The term with a number that a monomial names."""
        return term_of(factor)

    def split(self, term: z3.ArithRef) -> tuple[tuple[tuple[Monomial, int], ...], int]:
        """The part of a term that is not constant, in an order that is the same for equal parts, and the constant."""
        form = self.of(term)
        return tuple(sorted((monomial, number) for monomial, number in form.items() if monomial)), form.get((), 0)


def product(one: Mapping[Monomial, int], two: Mapping[Monomial, int]) -> dict[Monomial, int]:
    """The product of two sums."""
    total: dict[Monomial, int] = {}
    for a, number in one.items():
        for b, number_ in two.items():
            monomial = tuple(sorted((*a, *b)))
            total[monomial] = total.get(monomial, 0) + number * number_
    return {monomial: number for monomial, number in total.items() if number}


def plus(one: Mapping[Monomial, int], two: Mapping[Monomial, int], times: int = 1) -> dict[Monomial, int]:
    """A sum and so many times another."""
    total = {monomial: one.get(monomial, 0) + times * two.get(monomial, 0) for monomial in (*one, *two)}
    return {monomial: number for monomial, number in total.items() if number}
