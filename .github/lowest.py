"""Lowest release of each dependency that pyproject.toml allows, one requirement a line: python .github/lowest.py > lowest.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def lowest(requirements: list[str]) -> list[str]:
    """``name==version`` for each ``name>=version``. Raises ``ValueError`` for a requirement without a lower bound."""
    pinned = []
    for requirement in requirements:
        found = re.match(r"([A-Za-z0-9._-]+(?:\[[^\]]*\])?)>=([0-9][0-9.]*)", requirement)
        if found is None:
            raise ValueError(f"{requirement}: no lower bound")
        pinned.append(f"{found[1]}=={found[2]}")
    return pinned


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    print("\n".join(lowest(project["dependencies"])))
