"""Machine code for tests, written as nvdisasm prints it but without addresses."""

from __future__ import annotations

from gemmgen.toolchain.sass import Instruction, parse


def assemble(text: str, function: str = "k") -> list[Instruction]:
    """The instructions of a listing: one a line, labels on lines of their own."""
    lines = [f'\t.section\t.text.{function},"ax",@progbits']
    address = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            lines.append(line)
        else:
            lines.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    return parse("\n".join(lines))
