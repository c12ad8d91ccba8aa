"""Disassembles cubins with nvdisasm, and reads the text into instructions to count and inspect."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.core.extras import install_command

_TIMEOUT_SECONDS = 120

_SECTION = re.compile(r"^\s*\.section\s+\.text\.(?P<name>[^,]+)")
_OTHER_SECTION = re.compile(r"^\s*\.section\s+(?!\.text\.)")
_LABEL = re.compile(r"^(?P<name>(?:\.L|\$)[\w$.]*):")
_TARGET = re.compile(r"`\((?P<label>[^()\s]+)\)|\b0x(?P<address>[0-9a-f]+)\b")
_REGISTER = re.compile(r"[-~|!]*R(?P<number>\d+)\b(?P<modifiers>[.\w]*)")
_SOURCE_LINE = re.compile(r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)')
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+"
    r"(?:@(?P<predicate>!?U?P[T\d]+)\s+)?"
    r"(?P<opcode>[A-Z][\w.]*)"
    r"(?:\s+(?P<operands>[^;]*?))?"
    r"\s*(?P<notes>(?:\(\*.*?\*\)\s*)*)"
    r"(?:&(?P<control>[^;]*))?;"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction as nvdisasm prints it.

    `opcode` carries its modifiers (LDG.E.128), `predicate` is "P0", "!UP1" or empty, `operands` keep their `.reuse`
    flags, `notes` are the compiler's marks such as SpillRefill. `source_line` is the CUDA line it was generated from
    where the cubin has line information, `labels` the branch targets that stand before it.
    """

    function: str
    address: int
    opcode: str
    operands: tuple[str, ...]
    predicate: str
    notes: tuple[str, ...]
    source_line: int | None
    labels: tuple[str, ...] = ()

    @property
    def mnemonic(self) -> str:
        """The opcode without its modifiers: LDG."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """Modifiers after the mnemonic: E and 128 of LDG.E.128."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def conditional(self) -> bool:
        """True if lanes may pass it by: it has a predicate other than the one that is always true."""
        return self.predicate not in ("", "PT", "UPT")

    @property
    def target(self) -> str | int | None:
        """Target of a branch: a label, or an address as disassemblers print it that set no labels; None: it names neither."""
        match = _TARGET.search(self.operands[-1]) if self.operands else None
        if match is None:
            return None
        return match["label"] or int(match["address"], 16)

    @property
    def reused_operands(self) -> int:
        """Number of source operands that are kept in the operand reuse cache for the next instruction."""
        return sum(operand.count(".reuse") for operand in self.operands)

    def is_a(self, opcode: str) -> bool:
        """True if this is `opcode` with any further modifiers: LDS.128 is a LDS, and a LDS.128."""
        wanted = opcode.split(".")
        own = self.opcode.split(".")
        return own[0] == wanted[0] and all(modifier in own[1:] for modifier in wanted[1:])

    def register(self, position: int) -> tuple[int, bool] | None:
        """The number of the general register that is operand ``position``, and whether it is marked `.reuse`.

        None where the operand is something else: a constant, a literal, RZ, a predicate, a uniform register, an address.
        """
        match = _REGISTER.match(self.operands[position]) if position < len(self.operands) else None
        return (int(match["number"]), ".reuse" in match["modifiers"]) if match else None


def find_nvdisasm() -> Path | None:
    """The disassembler from the nvidia-cuda-nvdisasm wheel of this Python, else from PATH, else None."""
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *filter(None, sys.path)}
    for root in sorted(roots):
        for candidate in sorted(Path(root, "nvidia").glob("*/bin/nvdisasm*"), reverse=True):
            if candidate.stem == "nvdisasm":
                return candidate
    on_path = shutil.which("nvdisasm")
    return Path(on_path) if on_path else None


def disassemble(cubin: bytes, *, line_info: bool = True) -> str:
    """The text of all functions in a cubin, with the CUDA lines in between if the cubin knows them.

    Raises EnvironmentMissing without nvdisasm, GemmgenError if it rejects the cubin.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise EnvironmentMissing(f"nvdisasm was not found; install it with: {install_command('sass')}")
    with tempfile.TemporaryDirectory(prefix="gemmgen-") as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [str(tool), "--print-code", *(["--print-line-info"] if line_info else []), str(file)]
        try:
            run = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GemmgenError(f"{tool} could not be run: {error}") from error
    if run.returncode != 0:
        message = run.stderr.decode(errors="replace").replace(str(file), "the cubin").strip()
        raise GemmgenError(f"nvdisasm cannot disassemble the cubin: {message or f'exit code {run.returncode}'}")
    return run.stdout.decode(errors="replace")


def parse(text: str) -> list[Instruction]:
    """The instructions of a disassembly in order."""
    instructions: list[Instruction] = []
    function, source_line = "", None
    labels: list[str] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            instructions.append(_instruction(match, function, tuple(labels), source_line))
            labels = []
        elif match := _SECTION.match(line):
            function, source_line, labels = match["name"], None, []
        elif _OTHER_SECTION.match(line):
            function = ""
        elif match := _LABEL.match(line):
            labels.append(match["name"])
        elif match := _SOURCE_LINE.match(line):
            source_line = int(match["line"])
    return instructions


def count_opcodes(instructions: Iterable[Instruction]) -> Counter[str]:
    """Count of each opcode, with its modifiers, in the code (not how often it runs)."""
    return Counter(instruction.opcode for instruction in instructions)


def _instruction(match: re.Match[str], function: str, labels: tuple[str, ...], source_line: int | None) -> Instruction:
    return Instruction(
        function=function,
        address=int(match["address"], 16),
        opcode=match["opcode"],
        operands=tuple(part.strip() for part in (match["operands"] or "").split(",") if part.strip()),
        predicate=match["predicate"] or "",
        notes=tuple(re.findall(r'\(\*"?(.*?)"?\*\)', match["notes"] or "")),
        source_line=source_line,
        labels=labels,
    )
