"""Integer terms as sums of monomials, which settle without a solver whether two addresses differ by a constant."""

from __future__ import annotations

from collections.abc import Sequence

import z3

Monomial = tuple[int, ...]
"""Numbers of the factors' terms, sorted; empty for the constant."""
MAX_MONOMIALS = 400
"""Larger products stay factors as they are."""


class Polynomials:
    """Normal forms of terms, each computed once. A factor is any term that is no sum, product or number."""

    def __init__(self) -> None:
        self._forms: dict[int, dict[Monomial, int]] = {}
        self._terms: dict[int, z3.ArithRef] = {}
        """All terms that were seen, so that their numbers are not given to others."""

    def of(self, term: z3.ArithRef) -> dict[Monomial, int]:
        """The coefficients of a term's monomials, none of them 0; not to be changed."""
        pending = [term]
        while pending:
            part = pending[-1]
            number = part.get_id()
            if number in self._forms:
                pending.pop()
                continue
            kind = part.decl().kind() if not z3.is_int_value(part) else None
            children = part.children() if kind in (z3.Z3_OP_ADD, z3.Z3_OP_MUL, z3.Z3_OP_SUB, z3.Z3_OP_UMINUS) else []
            missing = [child for child in children if child.get_id() not in self._forms]
            if missing:
                pending += missing
                continue
            self._terms[number] = part
            self._forms[number] = self._combined(part, kind, [self._forms[child.get_id()] for child in children])
            pending.pop()
        return self._forms[term.get_id()]

    def _combined(self, part: z3.ArithRef, kind: int | None, forms: Sequence[dict[Monomial, int]]) -> dict[Monomial, int]:
        if kind is None:
            value = part.as_long()
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
                    return {(part.get_id(),): 1}
                following: dict[Monomial, int] = {}
                for one, number in product.items():
                    for two, number_ in form.items():
                        monomial = tuple(sorted((*one, *two)))
                        following[monomial] = following.get(monomial, 0) + number * number_
                product = {monomial: number for monomial, number in following.items() if number}
            return product
        return {(part.get_id(),): 1}

    def monomials(self, term: z3.ArithRef) -> list[tuple[int, list[z3.ArithRef]]]:
        """The coefficients and factors of a term's monomials."""
        return [(number, [self._terms[factor] for factor in monomial]) for monomial, number in self.of(term).items()]

    def term(self, factor: int) -> z3.ArithRef:
        """The term with a number that a monomial names."""
        return self._terms[factor]

    def split(self, term: z3.ArithRef) -> tuple[tuple[tuple[Monomial, int], ...], int]:
        """The part of a term that is not constant, in an order that is the same for equal parts, and the constant."""
        form = self.of(term)
        return tuple(sorted((monomial, number) for monomial, number in form.items() if monomial)), form.get((), 0)
