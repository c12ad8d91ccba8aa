"""Cost of multiply-adds by the place of their operands: banks of the register file, and operands kept for reuse.

Since Volta, a quarter of an SM has its registers in two banks, even and odd numbers (Jia, Maggioni, Staiger, Scarpazza: Dissecting
the NVIDIA Volta GPU Architecture via Microbenchmarking, arXiv:1804.06826; the same of Turing in arXiv:1903.07486). A bank has one
port, through which one register of a warp is read a cycle (Huerta, Abaie Shoushtary, Cruz, Gonzalez: Analyzing Modern NVIDIA GPU
cores, arXiv:2503.20481, for Ampere). The FFMA of a chip with 64 FP32 lanes an SM takes its unit two cycles, in which a bank can
deliver two operands: the "64 bits" of the papers on Volta and Turing, where only three operands in one bank conflict. With 128
lanes an FFMA is issued every cycle, and two operands in one bank are one too many.

An operand that is marked `.reuse` stays at its place, first, second or third, for the next instruction of the warp that reads that
place; if that needs the same register there, it reads no bank (Gray: maxas, wiki, SGEMM). It is assumed that no other warp is
issued in between, as the compiler arranges.

Reads of an instruction may be spread over two cycles, so that one that needs a bank twice does not delay its neighbours if these
spare that bank. So taken, the rates of outer products in all orders come out within 7% of those measured on an H200: 65.4 to 66.4
TFLOP/s for serpentine rows (measured: 65.0 to 65.6), 61.2 to 64.1 for plain rows (60.6 to 62.0), 55.6 to 56.6 for serpentine
columns of 8 x 8, 8 x 12 and 8 x 16 (51 to 55).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gemmgen.hardware.target import Architecture
from gemmgen.perf.analysis.instruction_mix import instruction_class
from gemmgen.toolchain.sass import Instruction

BANKS = 2
READ_CYCLES = 2
"""Cycles over which the reads of one instruction may be spread before it delays the next."""
_KNOWN_CAPABILITIES = {(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0)}
_QUARTERS = 4
_WARP = 32
_SOURCES = (1, 2, 3)
_ARITHMETIC = ("fma float32", "float32", "float16", "float64", "integer", "move", "compare and select", "conversion")
_PASSES = 3
"""The loop is gone round so often: first to fill the reuse cache, the last time to be counted."""


@dataclass(frozen=True, slots=True)
class BankReport:
    """The FFMAs of a loop's body, one time round."""

    ffmas: int
    conflicts: int
    """FFMAs that need more operands of one bank than it delivers in the time that an FFMA takes."""
    operands: int
    """Register operands of all FFMAs."""
    marked: int
    """Operands marked `.reuse`."""
    reused: int
    """Operands found in the reuse cache, so that no bank is read."""
    reads: tuple[int, int]
    """Reads of the even and of the odd bank by FFMAs."""
    lost_cycles: int
    """Cycles in which nothing of the warp can be issued because FFMAs wait for a bank."""
    ffma_cycles: int
    """Cycles that an FFMA takes a quarter's FP32 unit."""

    @property
    def reused_share(self) -> float:
        """The part of the operands that no bank had to deliver."""
        return self.reused / self.operands if self.operands else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "ffmas": self.ffmas,
            "conflicts": self.conflicts,
            "operands": self.operands,
            "operands_marked_reuse": self.marked,
            "operands_reused": self.reused,
            "reads_even_bank": self.reads[0],
            "reads_odd_bank": self.reads[1],
            "lost_cycles": self.lost_cycles,
            "ffma_cycles": self.ffma_cycles,
        }


def rule_is_known(architecture: Architecture) -> bool:
    """True if sources say how the register file of this architecture is banked."""
    return architecture.compute_capability in _KNOWN_CAPABILITIES


def ffma_cycles(architecture: Architecture) -> int:
    """Cycles for which one warp's FFMA takes the FP32 unit of a quarter of an SM."""
    return _WARP * _QUARTERS // architecture.fp32_lanes_per_sm


def register_banks(body: Sequence[Instruction], architecture: Architecture) -> BankReport | None:
    """The conflicts of the FFMAs of a loop; None where the architecture's rule is not known, or there is no FFMA.

    ``body``: the loop's instructions in the order in which they run. Only FFMAs read banks here; other instructions take an issue slot and,
    if it is arithmetic, the places of operands kept for reuse."""
    if not rule_is_known(architecture) or not any(instruction.mnemonic == "FFMA" for instruction in body):
        return None
    ports = _Ports(ffma_cycles(architecture))
    cached: dict[int, int] = {}
    report = None
    for _ in range(_PASSES):
        report = _go_round(body, ports, cached)
    return report


@dataclass(frozen=True, slots=True)
class OperandRead:
    """A register operand of an arithmetic instruction."""

    place: int
    """1 to 3: first, second or third source."""
    register: int
    marked: bool
    """True if it is kept for the next instruction that reads this place."""
    reused: bool
    """True if it is found in place, so that no bank is read."""

    @property
    def bank(self) -> int:
        return self.register % BANKS


def operand_reads(body: Sequence[Instruction]) -> list[tuple[OperandRead, ...]]:
    """The register operands of each instruction of a loop's body, once the loop has gone round; none for other instructions."""
    cached: dict[int, int] = {}
    reads: list[tuple[OperandRead, ...]] = []
    for _ in range(_PASSES):
        reads = [tuple(_operand_reads(instruction, cached)) for instruction in body]
    return reads


def _operand_reads(instruction: Instruction, kept: dict[int, int]) -> list[OperandRead]:
    """The operands of one instruction; ``kept`` is the content of each place before the instruction, and afterwards after it."""
    reads = []
    for place in _SOURCES if instruction_class(instruction) in _ARITHMETIC else ():
        register = instruction.register(place)
        if register is None:
            continue
        number, keeps = register
        reads.append(OperandRead(place, number, keeps, kept.get(place) == number))
        if keeps:
            kept[place] = number
        else:
            kept.pop(place, None)
    return reads


class _Ports:
    """The banks' ports and the FP32 unit over time, in cycles of the issue slot."""

    def __init__(self, ffma_interval: int) -> None:
        self.interval = ffma_interval
        self.lost = 0
        self._cycle = 0
        self._unit_free = 0
        self._taken: tuple[set[int], set[int]] = (set(), set())

    def issue(self, reads: tuple[int, int] | None) -> None:
        """Issues one instruction, an FFMA if it ``reads`` so much of each bank."""
        if reads is not None:
            self._cycle = max(self._cycle, self._unit_free)
            span = max(READ_CYCLES, self.interval)
            while any(len(self._free(bank, span, reads[bank])) < reads[bank] for bank in range(BANKS)):
                self._cycle += 1
                self.lost += 1
                span = max(span, *reads)
            for bank in range(BANKS):
                self._taken[bank].update(self._free(bank, span, reads[bank]))
            self._unit_free = self._cycle + self.interval
        self._cycle += 1

    def _free(self, bank: int, span: int, wanted: int) -> list[int]:
        taken = self._taken[bank]
        return [cycle for cycle in range(self._cycle, self._cycle + span) if cycle not in taken][:wanted]


def _go_round(body: Sequence[Instruction], ports: _Ports, kept: dict[int, int]) -> BankReport:
    ffmas = conflicts = operands = marked = reused = 0
    totals = [0] * BANKS
    lost_before = ports.lost
    for instruction in body:
        is_ffma = instruction.mnemonic == "FFMA"
        reads = [0] * BANKS
        for read in _operand_reads(instruction, kept):
            if is_ffma:
                operands, marked, reused = operands + 1, marked + read.marked, reused + read.reused
                reads[read.bank] += not read.reused
        if is_ffma:
            ffmas += 1
            conflicts += max(reads) > ports.interval
            totals = [total + read for total, read in zip(totals, reads, strict=True)]
        ports.issue((reads[0], reads[1]) if is_ffma else None)
    lost = ports.lost - lost_before
    return BankReport(ffmas, conflicts, operands, marked, reused, (totals[0], totals[1]), lost, ports.interval)
