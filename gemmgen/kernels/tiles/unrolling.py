"""Unrolling of a loop: the line that tells the compiler, and the same in words."""

from __future__ import annotations

from typing import Literal

Fully = Literal["full"] | int
"""A loop whose length is known: wholly, or so many turns at a time."""
Openly = Literal["auto"] | int
"""A loop whose length is not known before the launch: as the compiler likes, or so many turns at a time."""


def unroll_argument(unroll: Fully) -> str:
    """Argument of ``#pragma unroll``: nothing, or a factor after a space."""
    return "" if unroll == "full" else f" {unroll}"


def unroll_pragma(unroll: Openly, pragma: str = "#pragma unroll") -> str:
    """The line before a loop; empty where the compiler decides."""
    return "" if unroll == "auto" else f"{pragma} {unroll}"


def unrolling_text(unroll: Fully | Openly) -> str:
    """Extent of unrolling, in words."""
    return {"full": "fully", "auto": "as the compiler decides"}.get(str(unroll), f"{unroll} at a time")
