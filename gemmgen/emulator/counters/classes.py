"""The classes in which instructions are counted."""

from __future__ import annotations

from gemmgen.emulator.ptx.syntax import Instruction

_BY_OPCODE = {
    "branch": "bra brx ret exit trap call",
    "barrier": "bar barrier",
    "fence": "membar fence",
    "warp exchange": "shfl vote match redux elect activemask",
    "mma": "mma wmma wgmma tcgen05",
    "conversion": "cvt cvt.pack",
    "move": "mov cvta isspacep movmatrix",
    "compare and select": "setp set selp slct testp",
    "special function": "rcp sqrt rsqrt ex2 lg2 sin cos tanh",
    "other": "nanosleep pmevent griddepcontrol setmaxnreg prefetch prefetchu discard applypriority createpolicy mbarrier",
}
_OPCODES = {opcode: name for name, opcodes in _BY_OPCODE.items() for opcode in opcodes.split()}
_MEMORY = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}
_SPACES = ("global", "shared", "local", "param", "const")
_FLOATS = {
    "f32": "float32",
    "f32x2": "float32",
    "f64": "float64",
    "f16": "float16",
    "f16x2": "float16",
    "bf16": "float16",
    "bf16x2": "float16",
}


def instruction_class(inst: Instruction) -> str:
    """The class of one instruction, by the unit that executes it on the GPU rather than by its PTX spelling."""
    if inst.opcode in _MEMORY:
        return f"{_MEMORY[inst.opcode]} {'cluster' if inst.has('shared::cluster') else space_of(inst)}"
    if inst.opcode in ("ldmatrix", "stmatrix"):
        return inst.opcode
    if inst.opcode == "cp":
        name = "bulk copy" if inst.has("bulk") else "cp.async"
        is_copy = any(modifier.split("::")[0] in ("shared", "prefetch") for modifier in inst.modifiers)
        return name if is_copy else f"{name} group"
    if inst.opcode in _OPCODES:
        return _OPCODES[inst.opcode]
    number = _FLOATS.get(inst.type)
    if number is None:
        return "integer"
    return f"fma {number}" if inst.opcode in ("fma", "mad") else number


def space_of(inst: Instruction) -> str:
    """The state space that a memory instruction names, ``generic`` if none."""
    for modifier in inst.modifiers:
        stem = modifier.split("::")[0]
        if stem in _SPACES:
            return stem
    return "generic"
