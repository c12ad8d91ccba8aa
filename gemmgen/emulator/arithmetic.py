"""Meanings of arithmetic: the same program computes with real numbers, over a finite field, or with hashes of summation trees.

Over the field of 2^31 - 1 elements, registers and memory keep their bits, and the bits are a residue (`gemmgen.emulator.residues`).
A kernel that is a polynomial of its inputs and agrees with a reference at one random point of the field agrees everywhere, except
with a small probability (Schwartz, Zippel). The tree replaces addition by a hash that commutes but does not associate: equal
results then mean an equal order of additions, and so equal bits for all data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gemmgen.emulator.comparators import Comparator


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A meaning of floating-point instructions. Integer instructions and all instructions that move bits mean the same in all of them."""

    name: str
    tables: tuple[str, ...]
    """Tables of instruction handlers (`gemmgen.emulator.instructions.registry`); the first that has a handler wins."""
    comparators: Mapping[int, Comparator] = field(default_factory=dict, compare=False)
    """Instructions, by identity, that keep the better of two values, where sums stand for the better one."""
    neutral: float = 0.0
    """The number that every element beats; other literals are hashes then, so that none stands for a sum."""

    @property
    def is_real(self) -> bool:
        """True for floating-point numbers as the hardware computes them."""
        return self.name == "real"


REAL = Arithmetic("real", ("real",))
FIELD = Arithmetic("field", ("field", "real"))
TREE = Arithmetic("tree", ("tree", "field", "real"))


def joined(comparators: Mapping[int, Comparator], number: int, neutral: float) -> Arithmetic:
    """The field, with sums in place of the better of two values; `neutral` stands for no value. Each has its own `number`."""
    return Arithmetic(f"joined to {neutral}, {number}", ("joined", "field", "real"), comparators, neutral)
