"""Evidence for a source whose comments or names changed: results for the same machine code, with the new line numbers."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

from gemmgen.library.compiled import Facts
from gemmgen.library.digests import text_digest
from gemmgen.library.evidence import Record

MIN_ALIKE = 0.6
"""Similarity, from 0 to 1, of two spellings of a line of the same machine code."""


def moved_record(
    records: Iterable[Record], facts: Facts, cases: str, options: str, old: str, new: str, program: str | None = None
) -> Record | None:
    """The record of a run of the same code on the same cases, from the source text ``old``, with the lines of ``new``.

    ``program``: the digest of the program that ``old`` is compiled to. A record of the same program from an earlier text, whose lines
    are those of ``old``, holds as well. None if there is no such record, or if a line that it names has no successor.
    """
    about = text_digest(old)
    for record in records:
        if (record["code"], record["cases"], record["options"]) != (facts.code, cases, options):
            continue
        if record["source"] == about or record["program"] == program:
            sites = _moved_sites(record["traffic"]["sites"], old, new)
            if sites is not None:
                traffic = {**record["traffic"], "sites": sites}
                return {**record, "program": facts.program, "source": text_digest(new), "traffic": traffic}
    return None


def _moved_sites(sites: list[dict[str, Any]], old: str, new: str) -> list[dict[str, Any]] | None:
    place = _places(old.splitlines(), new.splitlines())
    if any(site["line"] not in place for site in sites):
        return None
    return [{**site, "line": place[site["line"]]} for site in sites]


def _places(old: list[str], new: list[str]) -> dict[int, int]:
    """New numbers of lines: of those that stand as before, and of those that are written a little differently, one for one."""
    place: dict[int, int] = {}
    for kind, a, a_end, b, b_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and a_end - a == b_end - b and all(map(_alike, old[a:a_end], new[b:b_end]))):
            place |= {a + i + 1: b + i + 1 for i in range(a_end - a)}
    return place


def _alike(old: str, new: str) -> bool:
    """True if a line is another spelling of the other: a number that became a named constant, say."""
    return SequenceMatcher(None, old.strip(), new.strip(), autojunk=False).ratio() >= MIN_ALIKE
