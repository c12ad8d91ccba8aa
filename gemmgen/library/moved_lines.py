"""Evidence of a source of which comments changed: what was seen of the same machine code, told by the lines where it is now."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Any

from gemmgen.library.compiled import Facts
from gemmgen.library.digests import text_digest
from gemmgen.library.evidence import Record


def moved_record(records: Iterable[Record], facts: Facts, cases: str, options: str, old: str, new: str) -> Record | None:
    """The record of a run of the same code on the same cases, from the source text ``old``, with the lines of ``new``.

    None if there is no such record, or if a line that it names has changed.
    """
    about = text_digest(old)
    for record in records:
        if (record["code"], record["cases"], record["options"], record["source"]) == (facts.code, cases, options, about):
            sites = _moved_sites(record["traffic"]["sites"], old, new)
            if sites is not None:
                traffic = {**record["traffic"], "sites": sites}
                return {**record, "program": facts.program, "source": text_digest(new), "traffic": traffic}
    return None


def _moved_sites(sites: list[dict[str, Any]], old: str, new: str) -> list[dict[str, Any]] | None:
    matcher = SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    place = {block.a + i + 1: block.b + i + 1 for block in matcher.get_matching_blocks() for i in range(block.size)}
    if any(site["line"] not in place for site in sites):
        return None
    return [{**site, "line": place[site["line"]]} for site in sites]
