"""Writes the table of instructions in docs/emulator.md: the contents of the emulator's registry, with the first sentence of each handler.

python docs/instructions.py
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "emulator.md"
BEGIN, END = "<!-- instructions: written by docs/instructions.py -->", "<!-- end of instructions -->"
CONTROL = {
    "bra": "Goes on elsewhere; lanes of a warp may part.",
    "brx": "Goes on at one of several places, by a register.",
    "bar barrier": "Barriers of the block and of parts of it: `.sync`, `.arrive`, `.red`, with numbers and counts.",
    "exit ret": "The end of a thread or of a function.",
    "trap": "Ends the launch with an error; a failed assertion too.",
}
"""Instructions that end a basic block; they have no handler in the registry."""


def table() -> str:
    """The table, a section for each module of the registry."""
    from gemmgen.emulator.instructions import registry

    sections: dict[str, dict[str, list[str]]] = {}
    for opcode in registry.opcodes():
        for handler in registry.handlers(opcode):
            sentence = " ".join((handler.__doc__ or "").split("\n\n")[0].split())
            sections.setdefault(handler.__module__, {}).setdefault(sentence, []).append(opcode)
    lines = []
    for module in sorted(sections):
        title = (import_module(module).__doc__ or "").strip().splitlines()[0].rstrip(".")
        lines += ["", f"**{title}**", "", "| instructions | |", "|---|---|"]
        lines += [f"| {_codes(opcodes)} | {_cell(sentence)} |" for sentence, opcodes in sections[module].items()]
    lines += ["", "**Where lanes go next**", "", "| instructions | |", "|---|---|"]
    lines += [f"| {_codes(opcodes.split())} | {_cell(sentence)} |" for opcodes, sentence in CONTROL.items()]
    return "\n".join([*lines, ""])


def _codes(opcodes: list[str]) -> str:
    return " ".join(f"`{opcode}`" for opcode in dict.fromkeys(opcodes))


def _cell(sentence: str) -> str:
    return sentence.replace("|", "\\|")


def page(text: str) -> str:
    """The page with the table of today."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    sys.path.insert(0, str(PAGE.parents[1]))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
