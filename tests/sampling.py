"""Samples of many alike, for proofs that are slow: drawn by chance once and for all, and not drawn anew when others come or go.

``GEMMGEN_ALL_CASES=1`` takes everything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import TypeVar

import gemmgen
from gemmgen.kernels.family import InstancePlan
from gemmgen.kernels.shipped import shipped_specs

ALL = bool(os.environ.get("GEMMGEN_ALL_CASES"))
Item = TypeVar("Item")


def sampled(items: Iterable[Item], one_in: int, name: Callable[[Item], str], form: Callable[[Item], object]) -> list[Item]:
    """About one in ``one_in`` items, which their names decide, and at least one of every form."""
    items = list(items)
    if ALL:
        return items
    tickets = {id(item): int(hashlib.sha256(name(item).encode()).hexdigest(), 16) for item in items}
    first: dict[object, int] = {}
    for item in items:
        first[form(item)] = min(first.get(form(item), tickets[id(item)]), tickets[id(item)])
    return [item for item in items if tickets[id(item)] % one_in == 0 or tickets[id(item)] == first[form(item)]]


@cache
def planned(name: str) -> InstancePlan:
    """The plan of a shipped spec, made once for all tests of a process."""
    return gemmgen.plan(shipped_specs()[name])
