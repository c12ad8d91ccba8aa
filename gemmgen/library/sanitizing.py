"""Runs cases of an instance under compute-sanitizer, each tool in a separate process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gemmgen.core.errors import EnvironmentMissing

TOOLS = {"memcheck": "sampled", "racecheck": "counted"}
"""The tools, and which cases each is given: racecheck follows every access, so that one case has to do."""
SECONDS = 180.0
"""A run that takes longer counts as failed."""
_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_MAX_MESSAGE_LENGTH = 400


def find_sanitizer() -> Path:
    """The program ``compute-sanitizer``. Raises ``EnvironmentMissing``."""
    path = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join(_PLACES))
    if path is None:
        raise EnvironmentMissing("compute-sanitizer was not found; it comes with the CUDA toolkit: put its bin folder on PATH")
    return Path(path)


def sanitize(program: Path, tool: str, spec: Path, architecture: str) -> dict[str, Any]:
    """One tool's verdict on an instance, as an item of a record's ``sanitizer``."""
    command = [
        str(program),
        "--tool",
        tool,
        "--print-limit",
        "3",
        sys.executable,
        "-P",
        "-m",
        "gemmgen.library.single_run",
        str(spec),
        architecture,
        TOOLS[tool],
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(tool, f"no result within {SECONDS:g} s")
    except OSError as error:
        return _failed(tool, f"{program} does not run: {error.strerror or error}")
    return read_verdict(tool, done.returncode, done.stdout, done.stderr)


def read_verdict(tool: str, status: int, output: str, errors: str) -> dict[str, object]:
    """Verdict of a tool's output: it passed if the cases were run to the end and its summary counts nothing."""
    summary = _SUMMARY.search(output + errors)
    own = [line for line in output.splitlines() if not line.startswith("=========")]
    cases = next((int(line) for line in reversed(own) if line.strip().isdigit()), None)
    if summary is None or cases is None or status != 0 or int(summary[1] or summary[2]) > 0:
        lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("=========")]
        said = [line for line in lines if line and "COMPUTE-SANITIZER" not in line] or errors.strip().splitlines()[-1:]
        return _failed(tool, "; ".join(said)[:_MAX_MESSAGE_LENGTH] or f"exit status {status} without a word")
    return {"tool": tool, "passed": True, "cases": cases}


def _failed(tool: str, why: str) -> dict[str, object]:
    return {"tool": tool, "passed": False, "cases": 0, "failure": why}
