"""Optional parts of gemmgen: how they are installed."""

from __future__ import annotations

import re
from importlib import metadata

_REQUIREMENT = re.compile(r"""(?P<package>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[^'"]+)['"]""")


def install_command(extra: str) -> str:
    """The command that installs the packages of one of gemmgen's extras by their own names.

    It is right however gemmgen got here: from an index, a wheel or a checkout.
    """
    try:
        requirements = metadata.requires("gemmgen") or []
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        requirements = []
    packages = [match["package"] for text in requirements if (match := _REQUIREMENT.fullmatch(text)) and match["extra"] == extra]
    return (
        "pip install " + " ".join(f"'{package}'" for package in packages) if packages else f"pip install '.[{extra}]' in gemmgen's checkout"
    )
