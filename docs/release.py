"""Checks of a release: python docs/release.py vX.Y.Z prints its section of the changelog.

The tag must be the version of the package and of CITATION.cff, and CHANGELOG.md must have a section for it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """The section of the changelog of a tag. Raises ``SystemExit`` with a list of every mismatch with the tag."""
    version = tag.removeprefix("v")
    wrong = []
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        wrong.append(f"{tag}: a tag is vX.Y.Z")
    for name, pattern in (("gemmgen/core/version.py", r'__version__ = "(.*)"'), ("CITATION.cff", r"(?m)^version: (.*)$")):
        found = re.search(pattern, (root / name).read_text())
        if found is None or found[1].strip('"') != version:
            wrong.append(f"{name} has {found[1] if found else 'no version'}, the tag is {tag}")
    changelog = (root / "CHANGELOG.md").read_text()
    section = re.search(rf"(?ms)^## \[?{re.escape(version)}\]?[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if section is None:
        wrong.append(f"CHANGELOG.md has no section {version}")
    if wrong or section is None:
        raise SystemExit("\n".join(wrong))
    return section[1].strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python docs/release.py vX.Y.Z")
    print(notes(sys.argv[1]))
