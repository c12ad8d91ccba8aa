"""The innermost loop of an instance for an x86 processor, from the disassembly of its library."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.toolchain.host import HostBinary

_LINE = re.compile(r"\s*([0-9a-f]+):\s+(.*)")
_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:")
_JUMP = re.compile(r"j\w+\s+([0-9a-f]+)")
_LEAVES = re.compile(r"(ret|jmp)")
_FMA = re.compile(r"vfn?m(add|sub)\w*(ps|ss)\b")
_REGISTER = re.compile(r"%([xyz])mm(\d+)")
_MEMORY = re.compile(r"\(%\w+")
_LANES = {"x": 4, "y": 8, "z": 16}
_FEW_ROWS = ("multiply_unpacked", "multiply_few", "multiply_by_", "multiply_short", "multiply_lines", "multiply_transposed_lines")
"""Beginnings of the names of functions that multiply few rows or columns (templates/cpu_gemm/few.c.j2)."""
NEAR_THE_DENSEST = 0.75


@dataclass(frozen=True)
class InnerLoop:
    """Instructions in one pass of the loop that does the multiplying."""

    function: str
    instructions: int
    fma: int
    """Fused multiply-adds."""
    lanes: int
    """float32 elements of one of them."""
    loads: int
    """Instructions that read memory, multiply-adds with an operand in memory among them; not those of the stack, not prefetches."""
    broadcasts: int
    prefetches: int
    spills: int
    """Vector instructions that read or write the stack."""
    vector_registers: int
    """Different ones that are named."""

    @property
    def fma_share(self) -> float:
        """Part of the instructions that multiply and add."""
        return self.fma / self.instructions

    @property
    def loads_per_fma(self) -> float:
        return self.loads / self.fma

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {**asdict(self), "fma_share": self.fma_share, "loads_per_fma": self.loads_per_fma}


def disassemble(binary: HostBinary) -> str:
    """The library's machine code, as ``objdump`` writes it. Raises ``EnvironmentMissing`` without it."""
    program = shutil.which("objdump")
    if program is None:
        raise EnvironmentMissing("objdump is not on the PATH, so that machine code cannot be looked at (Debian: apt install binutils)")
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        Path(file.name).write_bytes(binary.library)
        done = subprocess.run([program, "-d", "--no-show-raw-insn", file.name], capture_output=True, text=True)
    if done.returncode != 0:
        raise EnvironmentMissing(f"objdump does not read code for {binary.architecture}: {done.stderr.strip()}")
    return done.stdout


def inner_loop(text: str) -> InnerLoop | None:
    """The loop without a loop inside that does the multiplying; None if no loop has multiply-adds.

    Of the loops that come near the most products an instruction, it is the one with most of them in a pass: loops for the remainder of an
    extent have fewer. Loops for few rows count only if there are no others.
    """
    loops: list[InnerLoop] = []
    for name, instructions in _functions(text):
        places = {address: index for index, (address, _) in enumerate(instructions)}
        spans = []
        for index, (_, code) in enumerate(instructions):
            jump = _JUMP.match(code)
            start = places.get(int(jump[1], 16)) if jump else None
            # Code that was moved behind the end of its function also jumps back, over a return or a jump that passes it by.
            if start is not None and start <= index and not any(_LEAVES.match(code) for _, code in instructions[start:index]):
                spans.append((start, index))
        for start, end in spans:
            if any(other != (start, end) and start <= other[0] and other[1] <= end for other in spans):
                continue
            counted = _counted(name, [code for _, code in instructions[start : end + 1]])
            if counted is not None:
                loops.append(counted)
    loops = [loop for loop in loops if not loop.function.startswith(_FEW_ROWS)] or loops
    densest = max((loop.fma_share * loop.lanes for loop in loops), default=0.0)
    dense = [loop for loop in loops if loop.fma_share * loop.lanes >= NEAR_THE_DENSEST * densest]
    return max(dense, key=lambda loop: loop.fma * loop.lanes, default=None)


def _functions(text: str) -> list[tuple[str, list[tuple[int, str]]]]:
    functions: list[tuple[str, list[tuple[int, str]]]] = []
    for line in text.splitlines():
        head = _FUNCTION.match(line)
        if head:
            functions.append((head[1], []))
            continue
        code = _LINE.match(line)
        if code and functions:
            functions[-1][1].append((int(code[1], 16), code[2]))
    return functions


def _counted(name: str, body: list[str]) -> InnerLoop | None:
    fused = [code for code in body if _FMA.match(code)]
    if not fused:
        return None
    registers = {number for code in body for _, number in _REGISTER.findall(code)}
    widest = max((width for code in fused for width, _ in _REGISTER.findall(code)), default="x", key="xyz".index)
    scalar = all(_FMA.match(code)[2] == "ss" for code in fused)  # type: ignore[index]
    stack = [code for code in body if re.search(r"\(%[re]sp|\(%rbp", code) and _REGISTER.search(code)]
    prefetches = [code for code in body if code.startswith("prefetch")]
    # A store names its memory last; other instructions that name memory read it.
    reads = [code for code in body if _MEMORY.search(code) and not code.endswith(")") and not code.startswith(("prefetch", "lea"))]
    loads = [code for code in reads if code not in stack]
    broadcasts = sum("broadcast" in code or "{1to" in code for code in body)
    return InnerLoop(
        name, len(body), len(fused), 1 if scalar else _LANES[widest], len(loads), broadcasts, len(prefetches), len(stack), len(registers)
    )
