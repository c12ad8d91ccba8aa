"""Writes the table of hazards in docs/emulator.md: each with the test of a kernel that has it, and of its twin without it.

python docs/hazards.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "emulator.md"
BEGIN, END = "<!-- hazards: written by docs/hazards.py -->", "<!-- end of hazards -->"
TITLES = {
    "proxies": "Threads and engines",
    "copies": "Copies in flight",
    "wgmma": "Tensor cores",
    "barriers": "Barriers in memory",
    "clusters": "Clusters",
    "operands": "Operands and registers",
    "races": "Races and launches",
    "any kernel": "Any kernel",
}


def table() -> str:
    """The table, a section for each part of the machine."""
    from emulator.engines.hazard_pairs import PAIRS

    from gemmgen.sanitizer.findings import code_of

    lines = []
    for group, title in TITLES.items():
        lines += ["", f"**{title}**", "", "| hazard | finding | severity | kernel that has it | its twin |", "|---|---|---|---|---|"]
        severity = {name: getattr(pair.error, "severity", "error") for name, pair in PAIRS.items()}
        lines += [
            f"| {pair.sentence} | `{code_of(pair.error)}` | {severity[name]} | `test_is_told[{name}]` | `test_twin_is_clean[{name}]` |"
            for name, pair in PAIRS.items()
            if pair.group == group
        ]
    return "\n".join([*lines, ""])


def page(text: str) -> str:
    """The page with the table of today."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
