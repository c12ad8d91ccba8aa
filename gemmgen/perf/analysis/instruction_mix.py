"""Purpose of a kernel's machine instructions: classes, and the widths of memory accesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gemmgen.toolchain.sass import Instruction

_BY_MNEMONIC = {
    "fma float32": "FFMA FFMA2 FFMA32I",
    "float32": "FADD FADD2 FADD32I FMUL FMUL2 FMUL32I FMNMX FMNMX3 FSWZADD FCHK",
    "float16": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I HMNMX2 HADD2.F32",
    "float64": "DADD DFMA DMUL DMNMX",
    "mma": "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA",
    "special function": "MUFU",
    "load shared": "LDS LDSM",
    "store shared": "STS STSM",
    "load global": "LDG",
    "store global": "STG",
    "copy global to shared": "LDGSTS UBLKCP UBLKPF UTMALDG UTMASTG UTMAPF UTMAREDG",
    "load or store generic": "LD ST",
    "load local": "LDL",
    "store local": "STL",
    "load constant": "LDC LDCU ULDC",
    "atomic": "ATOM ATOMG ATOMS RED REDG REDAS UBLKRED",
    "warp exchange": "SHFL VOTE VOTEU MATCH REDUX CREDUX MOVM",
    "barrier": "BAR SYNCS UCGABAR_ARV UCGABAR_WAIT B2R R2B",
    "wait for copies": "DEPBAR LDGDEPBAR ARRIVES UTMACMDFLUSH",
    "fence": "MEMBAR ERRBAR CGAERRBAR FENCE CCTL CCTLL CCTLT WARPGROUP",
    "branch": "BRA BRX BRXU JMP JMX EXIT RET CALL BSSY BSYNC BREAK BMOV YIELD WARPSYNC ENDCOLLECTIVE NANOSLEEP KILL BPT RPCMOV PREEXIT "
    "ACQBULK NOP ELECT",
    "compare and select": "ISETP FSETP HSETP2 DSETP FSET FSEL SEL CSET CSETP PLOP3 PSETP P2R R2P UISETP UPLOP3 UP2UR UR2UP UPSETP USEL "
    "FCMP ICMP VOTE_VTG",
    "conversion": "F2F F2I F2FP F2IP I2F I2FP I2I I2IP FRND",
    "move": "MOV MOV32I PRMT CS2R S2R S2UR R2UR R2B UMOV UPRMT CS2UR GETLMEMBASE LEPC PMTRIG",
    "integer": "IADD IADD3 IADD32I IMAD IMUL IMNMX IABS IDP IDP4A IDPA ISCADD ISAD LEA LOP LOP3 LOP32I SHF SHL SHR SGXT BMSK BREV FLO "
    "POPC VABSDIFF VABSDIFF4 VADD VIADD VIADDMNMX VIMNMX VIMNMX3 VHMNMX VSHFR IMMD UIADD3 UIMAD ULEA ULOP ULOP3 USHF USGXT UBMSK UBREV "
    "UFLO UPOPC UIMNMX UIABS UVIADD UVIMNMX USHL USHR",
}
_CLASSES = {mnemonic: name for name, mnemonics in _BY_MNEMONIC.items() for mnemonic in mnemonics.split()}

MULTIPLY_ADD_CLASSES = ("fma float32", "mma", "float64")
WIDE_BYTES = 16
"""The most that one lane moves with one instruction on all architectures here but the newest."""

_ACCESSES = ("LDS", "STS", "LDSM", "STSM", "LDG", "STG", "LDGSTS", "LDL", "STL", "LD", "ST")
_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "96": 96, "128": 128, "256": 256, "ENL2": 256}


def instruction_class(instruction: Instruction) -> str:
    """Class of an instruction. Those that gemmgen does not know are ``other``, never guessed.

    Compilers move numbers with multiply-adds too, to spare the unit that moves: IMAD.MOV, and HFMA2 of -RZ and RZ, are moves.
    """
    mnemonic, modifiers = instruction.mnemonic, instruction.modifiers
    if mnemonic == "IMAD" and ("MOV" in modifiers or ("U32" in modifiers and _adds_to_nothing(instruction))):
        return "move"
    if mnemonic == "HFMA2" and _adds_to_nothing(instruction):
        return "move"
    return _CLASSES.get(mnemonic, "other")


def _adds_to_nothing(instruction: Instruction) -> bool:
    """True if a multiply-add's product is of zeros, so that it only moves its addend."""
    return [operand.lstrip("-").removesuffix(".reuse") for operand in instruction.operands[1:3]] == ["RZ", "RZ"]


def access_bytes(instruction: Instruction) -> int | None:
    """Bytes that each lane moves, for loads, stores and copies of memory; None for all other instructions."""
    if instruction.mnemonic not in _ACCESSES:
        return None
    if instruction.mnemonic in ("LDSM", "STSM"):
        return 4 * next((int(modifier) for modifier in instruction.modifiers if modifier in ("2", "4")), 1)
    return next((_BITS[modifier] for modifier in instruction.modifiers if modifier in _BITS), 32) // 8


@dataclass(frozen=True, slots=True)
class InstructionMix:
    """Instructions of a piece of code, each counted once, however often it runs."""

    classes: Mapping[str, int]
    """By class, the most frequent first."""
    accesses: Mapping[str, Mapping[int, int]]
    """For LDS, LDG, STS and so on, how many move how many bytes a lane, the widest first."""
    reused_operands: int
    """Source operands marked `.reuse`."""

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    def share(self, *classes: str) -> float:
        """The part of all instructions that is in ``classes``; 0 where there are none."""
        return sum(self.classes.get(name, 0) for name in classes) / self.total if self.total else 0.0

    @property
    def wide(self) -> int:
        """Accesses to shared and global memory of 16 bytes a lane or more."""
        return sum(number for widths in self._shared_and_global() for width, number in widths.items() if width >= WIDE_BYTES)

    @property
    def narrow(self) -> int:
        """Accesses to shared and global memory of less."""
        return sum(number for widths in self._shared_and_global() for width, number in widths.items() if width < WIDE_BYTES)

    def _shared_and_global(self) -> list[Mapping[int, int]]:
        return [widths for mnemonic, widths in self.accesses.items() if mnemonic not in ("LDL", "STL")]

    def to_json(self) -> dict[str, Any]:
        return {
            "instructions": self.total,
            "classes": dict(self.classes),
            "fma_share": round(self.share("fma float32"), 4),
            "mma_share": round(self.share("mma"), 4),
            "accesses": {name: {str(width): number for width, number in widths.items()} for name, widths in self.accesses.items()},
            "wide_accesses": self.wide,
            "narrow_accesses": self.narrow,
            "reused_operands": self.reused_operands,
        }


def count_mix(instructions: Iterable[Instruction]) -> InstructionMix:
    """The mix of ``instructions``. NOPs that only fill the space behind the code should be left out before."""
    classes: Counter[str] = Counter()
    accesses: dict[str, Counter[int]] = {}
    reused = 0
    for instruction in instructions:
        classes[instruction_class(instruction)] += 1
        reused += instruction.reused_operands
        width = access_bytes(instruction)
        if width is not None:
            accesses.setdefault(instruction.mnemonic, Counter())[width] += 1
    return InstructionMix(
        classes=dict(classes.most_common()),
        accesses={name: dict(sorted(widths.items(), reverse=True)) for name, widths in sorted(accesses.items())},
        reused_operands=reused,
    )
