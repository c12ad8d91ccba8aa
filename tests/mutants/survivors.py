"""Mutants that verification does not catch, each with the reason why it changes nothing that can be observed.

A reason holds for exactly the changes that are listed under it in ``survivors.json``: of one kernel, on one line after one other.
Where a template changes, its mutants have to be argued anew.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from .operators import Mutant

FILE = Path(__file__).with_name("survivors.json")
Key = tuple[str, str, str, str, str]


def key_of(subject: str, mutant: Mutant) -> Key:
    """Identity of a mutant: its kernel, its kind, the line before, and the line before and after the change."""
    return subject, mutant.kind, mutant.previous, mutant.before, mutant.after


@cache
def reasons() -> dict[Key, str]:
    """The reason for each survivor."""
    found: dict[Key, str] = {}
    for entry in json.loads(FILE.read_text()):
        for subject, kind, previous, before, after in entry["mutants"]:
            found[subject, kind, previous, before, after] = entry["why"]
    return found


def explanation(subject: str, mutant: Mutant) -> str | None:
    """Why a mutant survives; None if that is not known."""
    return reasons().get(key_of(subject, mutant))
