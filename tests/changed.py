"""Verifies changed specs on the emulator, on every case: python tests/changed.py [--list]

Specs whose files differ from those of the main branch, and instances of the library whose source is another than that in generated/.
"""

from __future__ import annotations

import subprocess
import sys

from tiers import changed_specs

from gemmgen.kernels import PROCESSOR_KINDS
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import load_spec
from gemmgen.library.folder import shipped_folder
from gemmgen.library.listing import read_listing


def changed() -> list[str]:
    """Names of the specs to verify."""
    files = changed_specs()
    names = [name for name in shipped_specs() if any(name == file or name.startswith(f"{file}/") for file in files)]
    folder = shipped_folder()
    names += [one.label for one in read_listing().instances if folder.text(one.source_file) != one.source.text]
    return [name for name in dict.fromkeys(names) if load_spec(name).kind not in PROCESSOR_KINDS]


def main(arguments: list[str]) -> int:
    names = changed()
    print(f"{len(names)} specs or kernels changed" + (f": {', '.join(names)}" if names else ""))
    if not names or "--list" in arguments:
        return 0
    return subprocess.run([sys.executable, "-m", "gemmgen", "verify", "--backend", "emulator", *names], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
