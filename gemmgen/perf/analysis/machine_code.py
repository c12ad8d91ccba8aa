"""Composition of a kernel's machine code, and its main loop's use of issue slots and register banks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmgen.hardware.target import Architecture
from gemmgen.perf.analysis.control_flow import Loop, find_loops
from gemmgen.perf.analysis.instruction_mix import MULTIPLY_ADD_CLASSES, InstructionMix, count_mix, instruction_class
from gemmgen.perf.analysis.load_distance import load_distances
from gemmgen.perf.analysis.register_banks import BankReport, ffma_cycles, register_banks, rule_is_known
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.toolchain.sass import Instruction, disassemble, parse

_MMA_WEIGHT = 64
"""An MMA is at least this many times the work of another multiply-add; it only has to outweigh address arithmetic."""

INSTRUCTION_CACHE_BYTES = 12 * 1024
"""The L0 instruction cache of a quarter of an SM since Volta (Jia et al., arXiv:1804.06826, table 3.1)."""


@dataclass(frozen=True, slots=True)
class MainLoop:
    """The loop in which a kernel does most of its arithmetic."""

    loop: Loop
    mix: InstructionMix
    banks: BankReport | None
    """None where the architecture's rule is not known, or the loop has no FFMA."""
    ffma_interval: int
    """Cycles for which an FFMA takes the FP32 unit of a quarter of an SM."""
    distances: Mapping[str, int]
    """For LDG and LDS, instructions between a load and the first use of the loaded value: the minimum over all loads."""

    @property
    def issue_cycles(self) -> int:
        """Issue slots for going round once, by one warp."""
        return self.mix.total

    @property
    def lost_cycles(self) -> int:
        return self.banks.lost_cycles if self.banks else 0

    @property
    def ffma_ceiling(self) -> float | None:
        """The most of the FP32 rate that the loop's instructions allow if all latency is hidden: the cycles that the FFMAs
        take the FP32 unit, over those for issuing everything and waiting for register banks. None without FFMAs."""
        ffmas = self.mix.classes.get("fma float32", 0)
        if not ffmas:
            return None
        busy = ffmas * self.ffma_interval
        return busy / max(busy + self.lost_cycles, self.issue_cycles + self.lost_cycles)

    def to_json(self) -> dict[str, Any]:
        return {
            "first_address": self.loop.first_address,
            "last_address": self.loop.last_address,
            "depth": self.loop.depth,
            **self.mix.to_json(),
            "load_distances": dict(self.distances),
            "register_banks": self.banks.to_json() if self.banks else None,
            "ffma_ceiling": None if self.ffma_ceiling is None else round(self.ffma_ceiling, 4),
        }


@dataclass(frozen=True, slots=True)
class KernelCode:
    """One kernel's machine code."""

    entry: str
    mix: InstructionMix
    loops: tuple[Loop, ...]
    main_loop: MainLoop | None
    """None where nothing loops."""
    banks_known: bool
    """True if the architecture's rule for register banks is known."""
    spilled: int
    """Instructions that the compiler marked as storing or loading a spilled register."""

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            **self.mix.to_json(),
            "spill_instructions": self.spilled,
            "loops": [
                {
                    "first_address": loop.first_address,
                    "last_address": loop.last_address,
                    "depth": loop.depth,
                    "instructions": len(loop.instructions),
                    "multiply_adds": _multiply_adds(loop.own),
                }
                for loop in self.loops
            ],
            "main_loop": self.main_loop.to_json() if self.main_loop else None,
            "register_bank_rule_known": self.banks_known,
        }


def machine_code(binary: Binary, architecture: Architecture) -> dict[str, KernelCode]:
    """The code of every kernel of a binary, by entry. Raises ``EnvironmentMissing`` without nvdisasm."""
    return analyse_functions(parse(disassemble(binary.cubin, line_info=False)), architecture)


def analyse_functions(instructions: Sequence[Instruction], architecture: Architecture) -> dict[str, KernelCode]:
    """The code of every function among ``instructions``, by name."""
    functions: dict[str, list[Instruction]] = defaultdict(list)
    for instruction in instructions:
        functions[instruction.function].append(instruction)
    return {name: _kernel_code(name, _without_filling(body), architecture) for name, body in functions.items()}


def _without_filling(body: Sequence[Instruction]) -> list[Instruction]:
    """A function without the NOPs, and the branch to itself before them, that fill the space behind its code."""
    instructions = list(body)
    while instructions and instructions[-1].mnemonic == "NOP":
        instructions.pop()
    if (
        instructions
        and instructions[-1].mnemonic == "BRA"
        and instructions[-1].target in (*instructions[-1].labels, instructions[-1].address)
    ):
        instructions.pop()
    return instructions


def _kernel_code(entry: str, body: Sequence[Instruction], architecture: Architecture) -> KernelCode:
    loops = tuple(find_loops(body))
    chosen = find_main_loop(loops)
    main = None
    if chosen is not None:
        banks = register_banks(chosen.instructions, architecture)
        distances = {name: min(of_name) for name in ("LDG", "LDS") if (of_name := load_distances(chosen.instructions, name))}
        main = MainLoop(chosen, count_mix(chosen.instructions), banks, ffma_cycles(architecture), distances)
    spilled = sum(any("spill" in note.lower() for note in instruction.notes) for instruction in body)
    return KernelCode(entry, count_mix(body), loops, main, rule_is_known(architecture), spilled)


def find_main_loop(loops: Sequence[Loop]) -> Loop | None:
    """The loop with the most multiply-adds, not counting those in inner loops.

    Where no loop has any (reductions without FFMA), that with the most accesses to memory and floating-point operations. Of two
    that tie, as a loop over tiles that has the last step of the loop over k in it does, the inner one; then the shorter one, as that
    over tiles without edges is; then the first. A loop that the compiler unrolled has more multiply-adds than the loop over the
    remainder, and is taken.
    """
    if not loops:
        return None

    def weight(loop: Loop) -> tuple[int, ...]:
        multiply_adds = _multiply_adds(loop.own)
        streaming = sum(instruction_class(i).startswith(("load", "copy", "float", "atomic")) for i in loop.own)
        if multiply_adds:
            return multiply_adds, loop.depth, -len(loop.own), -loop.first_address
        return 0, streaming, loop.depth, -loop.first_address

    return max(loops, key=weight)


def _multiply_adds(instructions: Sequence[Instruction]) -> int:
    classes = [instruction_class(instruction) for instruction in instructions]
    return sum(_MMA_WEIGHT if name == "mma" else name in MULTIPLY_ADD_CLASSES for name in classes)
