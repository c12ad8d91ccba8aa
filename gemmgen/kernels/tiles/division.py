"""Divisions by numbers that the host prepares: a multiplication and a shift in the kernel."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import HostArgument, HostField


def divisors_argument(divisors: Mapping[str, str], may_be_zero: bool = False) -> HostArgument:
    """The kernel argument ``divisors``: for each number by name, the factor and the shift that replace a division by it:
    (high half of n * multiplier + n) >> shift, for 0 <= n < 2^31.

    T. Granlund and P. L. Montgomery, "Division by invariant integers using multiplication", PLDI 1994, figure 4.1; the sum
    does not overflow because n has 31 bits. ``may_be_zero``: kernels behind the one that divides run for empty results, too, whose extents
    are divisors; 1 takes the place of 0 then.
    """
    one = Formula("1")
    fields: list[HostField] = []
    for name, number in divisors.items():
        divisor = f"max({number}, 1)" if may_be_zero else number
        multiplier = Formula(f"(1 << 32) * ((1 << ceil_log2({divisor})) - {divisor}) // ({divisor}) + 1")
        fields.append(HostField(f"{name}.multiplier", "u32", 1, one, multiplier, f"divides by {divisor}"))
        fields.append(HostField(f"{name}.shift", "u32", 1, one, Formula(f"ceil_log2({divisor})"), f"divides by {divisor}"))
    return HostArgument("divisors", "Divisors", tuple(fields), "the numbers that the kernel divides by, prepared")
