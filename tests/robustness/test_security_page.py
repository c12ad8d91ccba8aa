"""Tests that SECURITY.md names for its promises exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOM = Path(__file__).parent


def test_every_promise_names_tests_that_there_are() -> None:
    text = (ROOM.parents[1] / "SECURITY.md").read_text()
    rows = [line for line in text.partition("| held by |")[2].splitlines() if line.startswith("| ")]
    named = [re.findall(r"`((?:\.\./\w+/)?test_\w+\.py)(?:::(\w+))?`", row) for row in rows]
    assert len(rows) >= 15 and all(named)
    missing = [(file, name) for row in named for file, name in row if f"def {name}" not in (ROOM / file).read_text()]
    assert missing == []
