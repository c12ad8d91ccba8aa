"""Meaning of an access in the memory model: plain or strong, at which scope, releasing or acquiring."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.emulator.memory import Access
from gemmgen.emulator.program import Program
from gemmgen.emulator.program_properties import of_program
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction, Integer

_MEMORY_OPCODES = {"ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "wmma"}
_STRONG_WORDS = ("volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio")


@dataclass(frozen=True, slots=True)
class Site:
    """One access instruction. PTX ISA: `atom`, `red`, volatile, relaxed, acquire and release operations are strong."""

    access: Access
    reads: bool
    writes: bool
    strong: bool
    acquires: bool
    releases: bool
    device: bool
    """True if the scope reaches beyond the block."""
    observes: bool
    """True if reads can be part of an acquire pattern; those of `red` cannot."""
    exchanges: bool = False
    """A strong load that nobody waits with, or a strong store. Between lanes of a warp these move data only in lockstep."""
    volatile: bool = False
    """True if it exchanges data through a volatile variable, which C++ leaves unordered."""

    read_only: bool = False
    """A load through the read-only path, which may not see the launch's writes."""

    @property
    def narrow(self) -> bool:
        """True if it is strong only for the threads of the same block."""
        return self.strong and not self.device

    @property
    def leaves_data(self) -> bool:
        """True for stores and for atomic operations that exchange values or add floats. Others count, or look for an extremum, and a load
        beside them may well see an earlier value."""
        inst = self.instruction
        floats = inst.has("add") and any(word.startswith(("f", "bf")) for word in inst.modifiers)
        return self.access.kind == "store" or (self.access.kind == "atomic" and (inst.has("exch") or floats))

    @property
    def instruction(self) -> Instruction:
        return self.access.instruction


def site_of(access: Access, waits: bool = False, guesses: bool = False) -> Site:
    """The meaning of an access. `waits`: it is a load whose value decides on another iteration of its loop; `guesses`: one whose
    value a compare-and-swap checks."""
    inst = access.instruction
    atomic = access.kind == "atomic"
    ordering = inst.opcode in ("ld", "st", "atom", "red")
    strong = atomic or guesses or (ordering and any(inst.has(word) for word in _STRONG_WORDS))
    return Site(
        access,
        reads=access.kind != "store",
        writes=access.kind != "load",
        strong=strong,
        acquires=ordering and inst.opcode != "red" and (inst.has("acquire") or inst.has("acq_rel")),
        releases=ordering and (inst.has("release") or inst.has("acq_rel")),
        device=not inst.has("cta"),
        observes=inst.opcode != "red",
        exchanges=strong and not atomic and not waits and not guesses,
        volatile=ordering and inst.has("volatile") and not waits,
        read_only=inst.opcode == "ld" and inst.has("nc"),
    )


@of_program
def granules(program: Program) -> dict[str, int]:
    """The bytes that shadow memory tells apart in each space: the smallest element that any instruction moves there.

    Accesses are aligned to their width, so that each covers whole granules and nothing is lost.
    """
    smallest = {"global": 16, "shared": 16, "local": 16}
    for block in program.blocks:
        for inst in block.body:
            if inst.opcode in _MEMORY_OPCODES:
                named = [word.split("::")[0] for word in inst.modifiers if word.split("::")[0] in (*smallest, "param", "const")]
                for space in smallest:
                    if not named or space in named or (space != "shared" and named[0] in ("param", "const")):
                        smallest[space] = min(smallest[space], _element_bytes(inst, space))
    return smallest


def _element_bytes(inst: Instruction, space: str) -> int:
    if inst.opcode == "cp" and inst.has("bulk"):
        # Boxes begin at any element; the detector knows the tensor maps.
        return 1 if inst.has("cp_mask") else 16
    if inst.opcode == "cp":
        size = inst.operands[2] if len(inst.operands) > 2 else None
        # The source of a partial copy may end at any byte.
        partial = space != "shared" and len(inst.operands) > 3
        return 1 if partial else size.value if isinstance(size, Integer) else 16
    if inst.opcode in ("ldmatrix", "stmatrix"):
        return 16
    types = [TYPE_BYTES[word] for word in inst.modifiers if word in TYPE_BYTES]
    return min(types, default=1)


@of_program
def has_parts_of_blocks(program: Program) -> bool:
    """True if a barrier of the program can be met by a part of a block."""
    for block in program.blocks:
        inst = block.terminator
        if inst is not None and inst.opcode in ("bar", "barrier"):
            count = len(inst.operands) - (2 if inst.has("red") else 0)
            if inst.has("arrive") or count > 1:
                return True
    return False
