"""Bill of materials: python docs/sbom.py NAME prints, as CycloneDX 1.5, the package and its dependencies in this environment.

Run it with the Python of an environment into which the wheel was just installed.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any


def bill(name: str) -> dict[str, Any]:
    """The document for an installed package: its version, and all packages that it leads to, with versions and licences."""
    found: dict[str, dict[str, Any]] = {}
    needs: dict[str, list[str]] = {}
    waiting = [name]
    while waiting:
        wanted = _normalised(waiting.pop())
        if wanted in found:
            continue
        try:
            installed = distribution(wanted)
        except PackageNotFoundError:  # needed on other machines, or for an extra
            continue
        names = [re.split(r"[\s;<>=!~\[(]", text, maxsplit=1)[0] for text in installed.requires or () if "extra ==" not in text]
        metadata = installed.metadata
        licence = metadata.get("License-Expression") or metadata.get("License") or ""
        found[wanted] = {
            "type": "library",
            "bom-ref": _reference(wanted, installed.version),
            "name": wanted,
            "version": installed.version,
            "purl": _reference(wanted, installed.version),
            **({"licenses": [{"license": {"name": licence.splitlines()[0][:100]}}]} if licence else {}),
        }
        needs[wanted] = [_normalised(one) for one in names]
        waiting += names
    own = _normalised(name)
    if own not in found:
        raise SystemExit(f"{name} is not installed here")
    dependencies = [
        {"ref": one["bom-ref"], "dependsOn": [found[other]["bom-ref"] for other in needs[key] if other in found]}
        for key, one in sorted(found.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**found[own], "type": "application"}},
        "components": [one for key, one in sorted(found.items()) if key != own],
        "dependencies": dependencies,
    }


def _normalised(name: str) -> str:
    """A package's name as PyPI compares it (packaging.python.org, name normalization)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _reference(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python docs/sbom.py NAME")
    print(json.dumps(bill(sys.argv[1]), indent=1))
