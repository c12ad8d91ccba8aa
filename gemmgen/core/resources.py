"""Places of templates, ready-made specs, the library and the pages of findings: in the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def resource_directory(name: str) -> Path:
    """The directory ``templates``, ``specs``, ``generated`` or ``docs``; ``FileNotFoundError`` if the installation lacks it."""
    for parent in (_PACKAGE / "_resources", _PACKAGE.parent):
        if (parent / name).is_dir():
            return parent / name
    raise FileNotFoundError(f"gemmgen's {name} are missing from its installation at {_PACKAGE}")
