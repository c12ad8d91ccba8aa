"""Mutants of CUDA and launch files end in a verdict or a message, within limits of memory and processor time.

GEMMGEN_FUZZ_FILES=2000 tries so many.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COUNT = int(os.environ.get("GEMMGEN_FUZZ_FILES", "9"))


def test_mutants_of_files_end_in_a_verdict_or_a_message() -> None:
    program = Path(__file__).with_name("mutated_files.py")
    result = subprocess.run([sys.executable, program, "--count", str(COUNT)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    *bad, last = [json.loads(line) for line in result.stdout.splitlines()]
    assert bad == [] and sum(last["counts"].values()) == COUNT
