"""The forty kernels of tool_comparison.cu, run through the tools that check kernels, with the report of each.

    python measurements/tool_comparison.py                    the tools that need no GPU
    python measurements/tool_comparison.py --sanitizer DIR    reports of compute-sanitizer, from a folder
    python measurements/tool_comparison.py --triton FILE      the output of --python triton on a machine with PyTorch
    python measurements/tool_comparison.py --python TOOL      runs the kernels of numba or triton, and prints their reports
    python measurements/tool_comparison.py --launch NAME      one kernel on the first GPU, to be run under compute-sanitizer

Writes tool_comparison.json beside this file and the table of docs/emulator_comparison.md. compute-sanitizer's reports are called
TOOL.KERNEL.txt and hold its output. The simulator of numba and Triton's interpreter take Python: tool_comparison_numba.py and
tool_comparison_triton.py hold the kernels that their languages can express; each kernel runs in a separate process.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "tool_comparison.cu"
RECORD = HERE / "tool_comparison.json"
PAGE = HERE.parent / "docs" / "emulator_comparison.md"
BEGIN, END = "<!-- table: written by measurements/tool_comparison.py -->", "<!-- end of table -->"
COUNT = 256
SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PYTHON_TOOLS = ("numba", "triton")
SECONDS = 60
_FAILED = "Target application returned an error"
"""Words of tools that ended for another reason than a finding."""


@dataclass(frozen=True)
class Kernel:
    """One kernel and how it is launched, 128 threads a block."""

    name: str
    blocks: int
    shared_bytes: int

    @property
    def right(self) -> bool:
        """True if there is nothing to find."""
        return self.name.startswith("right_")


def kernels() -> Iterator[Kernel]:
    """All kernels, as the source lists them."""
    for name, blocks, shared in re.findall(r"X\((\w+), (\d+), (\d+)\)", SOURCE.read_text(encoding="utf-8")):
        yield Kernel(name, int(blocks), int(shared))


@cache
def compiled() -> tuple[str, dict[str, str]]:
    """PTX of all kernels, and their names in it."""
    from gemmgen.sanitizer.source import CompileOptions, find_entry, read_kernel_file

    code = read_kernel_file(SOURCE, CompileOptions("sm_90", (), (), (), False), None)
    return code.ptx, {kernel.name: find_entry(code, kernel.name).symbol for kernel in kernels()}


def emulated(kernel: Kernel, strict: bool = False) -> str:
    """The codes of the emulator's findings, warnings and notes with their severity."""
    import gemmgen

    ptx, symbols = compiled()
    result = gemmgen.emulate(
        ptx,
        symbols[kernel.name],
        grid=kernel.blocks,
        block=128,
        shared_bytes=kernel.shared_bytes,
        architecture="sm_90",
        args=[f"i32[{COUNT}]=zeros", f"i32[{COUNT}]", COUNT],
        strict=strict,
    )
    told = [finding.code if finding.severity == "error" else f"{finding.severity}: {finding.code}" for finding in result.findings]
    return ", ".join(dict.fromkeys(told))


def sanitized(folder: Path, kernel: Kernel) -> dict[str, str]:
    """Findings of each tool of compute-sanitizer: the first lines that it prints, without their prefix."""
    found = {}
    for tool in SANITIZER_TOOLS:
        report = folder / f"{tool}.{kernel.name}.txt"
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
        lines = [line.removeprefix("========= ").strip() for line in text.splitlines() if line.startswith("========= ")]
        told = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY"))]
        ended = any("SUMMARY" in line for line in lines)
        found[tool] = re.split(r" at | between | encountered", told[0])[0] if told else "" if ended else "did not end"
    return found


def in_python(tool: str, kernel: Kernel) -> str | None:
    """Finding of a tool on the kernel in its language; None if there is none."""
    module = HERE / f"tool_comparison_{tool}.py"
    if f"def {kernel.name}(" not in module.read_text(encoding="utf-8"):
        return None
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1"}
    try:
        done = subprocess.run([sys.executable, module, kernel.name], env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "did not end"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.strip().splitlines() if line]
    return lines[-1].partition(":")[0] if done.returncode > 0 and lines else f"crashed with signal {-done.returncode}"


def launch_on_gpu(name: str) -> None:
    """Launches a kernel on the first GPU."""
    from gemmgen.runtime.cuda import driver

    kernel = next(each for each in kernels() if each.name == name)
    ptx, symbols = compiled()
    with driver.current_device(0):
        module = driver.call("cuModuleLoadData", ptx.encode() + b"\0")
        function = driver.call("cuModuleGetFunction", module, symbols[name].encode())
        zeros = np.zeros(COUNT, np.int32)
        x, y = driver.call("cuMemAlloc", zeros.nbytes), driver.call("cuMemAlloc", zeros.nbytes)
        driver.call("cuMemcpyHtoD", x, zeros.ctypes.data, zeros.nbytes)
        kinds = (np.ctypeslib.ctypes.c_void_p, np.ctypeslib.ctypes.c_void_p, np.ctypeslib.ctypes.c_int)
        values = ((int(x), int(y), COUNT), kinds)
        driver.call("cuLaunchKernel", function, kernel.blocks, 1, 1, 128, 1, 1, kernel.shared_bytes, 0, values, 0)
        driver.call("cuCtxSynchronize")


def table(record: dict[str, Any]) -> str:
    """The record as a table; a dot stands for no report, a dash for a kernel that a tool's language cannot express."""
    lines = ["| kernel | `gemmgen emulate` | compute-sanitizer | numba's simulator | Triton's interpreter |", "|---|---|---|---|---|"]
    for name, told in record["kernels"].items():
        lines.append("| " + " | ".join([name.replace("_", " "), *(_cell(each) for each in _columns(told))]) + " |")
    return "\n".join(lines)


def _columns(told: dict[str, Any]) -> Iterator[str | None]:
    yield told["emulator"]
    sanitizer = told.get("sanitizer")
    yield None if sanitizer is None else "; ".join(f"{tool}: {text}" for tool, text in sanitizer.items() if text and text != _FAILED)
    yield from (told[tool] for tool in PYTHON_TOOLS)


def _cell(text: str | None) -> str:
    if text is None:
        return "–"
    return text.replace("|", "\\|") or "·"


def page(text: str, record: dict[str, Any]) -> str:
    """The page with the table of a record."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table(record)}\n{END}{tail}"


def main() -> None:
    """Runs the tools that can run here, and keeps the rest of the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitizer", type=Path, metavar="DIR", help="reports of compute-sanitizer")
    parser.add_argument("--launch", metavar="NAME", help="launch one kernel on the first GPU")
    parser.add_argument("--python", choices=PYTHON_TOOLS, help="run one tool alone, and print JSON")
    parser.add_argument("--triton", type=Path, metavar="FILE", help="the output of --python triton")
    options = parser.parse_args()
    if options.launch:
        launch_on_gpu(options.launch)
        return
    if options.python:
        print(json.dumps({kernel.name: in_python(options.python, kernel) for kernel in kernels()}, indent=1))
        return
    triton = json.loads(options.triton.read_text(encoding="utf-8")) if options.triton else None
    old = json.loads(RECORD.read_text(encoding="utf-8"))["kernels"] if RECORD.exists() else {}
    versions = {name: importlib.metadata.version(name) for name in ("numba", "triton")}
    found: dict[str, Any] = {"versions": versions, "kernels": {}}
    for kernel in kernels():
        told: dict[str, Any] = {"emulator": emulated(kernel)}
        told["numba"] = in_python("numba", kernel)
        told["triton"] = triton[kernel.name] if triton is not None else old.get(kernel.name, {}).get("triton")
        told["sanitizer"] = sanitized(options.sanitizer, kernel) if options.sanitizer else old.get(kernel.name, {}).get("sanitizer")
        found["kernels"][kernel.name] = told
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
