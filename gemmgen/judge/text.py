"""Findings in a kernel's text that no run shows: clocks, processor ids, decisions by addresses, and builds that differ."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from gemmgen.core.errors import GemmgenError
from gemmgen.emulator.data_flow import flow_of, instructions_of
from gemmgen.emulator.program import Program
from gemmgen.emulator.ptx.syntax import (
    Address,
    Instruction,
    Integer,
    Operand,
    Symbol,
    registers_of,
    source_registers,
    written_by,
)
from gemmgen.sanitizer.comments import without_comments
from gemmgen.sanitizer.source import KernelCode, load_kernel

_CLOCKS = re.compile(r"%(clock|clock64|clock_hi|globaltimer|globaltimer_lo|globaltimer_hi|pm[0-9]|pm[0-9]_64|envreg[0-9]+)\b")
_PROCESSOR = re.compile(r"%(smid|nsmid|warpid|nwarpid|gridid|total_smem_size|aggr_smem_size|current_graph_exec)\b")
_DATES = re.compile(r"\b__(?:TIME|DATE|TIMESTAMP)__\b")
_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"')
_BUILD = re.compile(r"\b__CUDA_ARCH(?:_LIST|_FEAT_\w+|_SPECIFIC|_FAMILY_SPECIFIC)?__\b|\b__CUDA_ARCH_FEAT_\w+\b")
_COMPILER = re.compile(r"\b(?:__CUDACC_RTC__|__NVCC__|__CUDACC_VER_\w+__)\b")
_HOST_COMPILER = re.compile(
    r"\b(?:__GNUC__|__GNUC_MINOR__|__VERSION__|__linux__|__linux|__unix__|__x86_64__|__ELF__|__OPTIMIZE__|__GLIBC__)\b"
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*\n", re.MULTILINE)
_OTHER_ARCHITECTURES = ("sm_80", "sm_90a", "sm_120a")
_FLOATS = (("f32",), ("f64",), ("f16",))
_ALIGNMENT_MASK = 0xFF
"""Bits of an address that its alignment decides."""
_PASSES = (
    *("mov", "cvta", "cvt", "add", "sub", "shl", "shr", "and", "or", "xor", "mad", "selp", "mul", "bfe", "prmt", "not", "lop3"),
    *("shfl", "min", "max", "div", "rem", "neg", "abs", "popc", "clz", "brev", "shf", "bfind", "bfi", "mul24", "mad24", "sad", "dp4a"),
    *("fma", "rcp", "sqrt", "ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "slct", "mma"),
)
_KEEPS_PLACES = ("mov", "cvta", "cvt", "add", "sub", "shl", "and", "or", "xor", "selp", "not", "neg", "shfl", "min", "max")
"""Instructions after which an address's lowest bits are the lowest ones still."""
_ANY_PLACE = 64


_ARRIVALS = ("arrive", "arrive_drop")
_APPROXIMATE = ("ex2", "lg2", "sin", "cos", "tanh", "rsqrt")
_ON_BITS = ("add", "sub", "mul", "mad", "and", "or", "xor", "not", "shl", "shr", "min", "max", "lop3", "prmt", "bfe", "popc", "clz", "shf")


def marks(text: str) -> Iterator[tuple[str, str]]:
    """Kinds of failures in a kernel's PTX, with messages."""
    if match := _CLOCKS.search(text):
        yield "reads-clock", f"PTX reads {match[0]}"
    if identity := _PROCESSOR.search(text):
        yield "reads-processor", f"PTX reads {identity[0]}"
    called = re.search(r"\b(malloc|vprintf|cudaMalloc|free)\b", text)
    if called and f" {called[1]}" in text and "call" in text:
        yield "allocates", f"PTX calls {called[1]}"


def bits_of_approximation(program: Program) -> Instruction | None:
    """An instruction that compares, or computes with the bits of, an approximate function of numbers that are no inputs. The last bits of
    such functions differ between processors."""
    everything = list(instructions_of(program))
    flow = flow_of(program)
    loads = {id(inst) for inst in everything if inst.opcode in ("ld", "ldu", "ldmatrix", "tex", "atom") and not inst.has("param")}
    approximate = {
        id(inst)
        for inst, tainted in flow.spread_from(loads)
        if (inst.opcode in _APPROXIMATE or inst.has("approx")) and not tainted.any_of(source_registers(inst))
    }
    if not approximate:
        return None
    of_inputs = [tainted.any_of(source_registers(inst)) for inst, tainted in flow.spread_from(loads)]
    for (inst, tainted), is_of_inputs in zip(flow.spread_from(approximate), of_inputs, strict=True):
        on_bits = inst.opcode in _ON_BITS and bool(inst.types) and inst.types[-1] not in ("pred", "f32", "f64", "f16", "bf16")
        if (inst.opcode in ("setp", "set", "testp", "slct") or on_bits) and not is_of_inputs and tainted.any_of(source_registers(inst)):
            return inst
    return None


def bits_of_state(program: Program) -> Instruction | None:
    """An instruction that computes with the state of a barrier in shared memory, whose bits mean something to the device alone."""
    everything = list(instructions_of(program))
    arrivals = [inst for inst in everything if inst.opcode == "mbarrier" and inst.modifiers[0] in _ARRIVALS]
    states = {name for inst in arrivals for name in written_by(inst)}
    copies = [inst for inst in everything if inst.opcode == "mov" and len(written_by(inst)) == 1] if states else []
    known = 0
    while len(states) > known:
        known = len(states)
        states |= {name for inst in copies if states.intersection(source_registers(inst)) for name in written_by(inst)}
    for inst in everything if states else ():
        takes = inst.opcode in (*_ON_BITS, "setp", "set", "cvt") or (inst.opcode == "mov" and len(written_by(inst)) > 1)
        if takes and states.intersection(source_registers(inst)):
            return inst
    return None


def date_of_build(code: KernelCode) -> str:
    """The macro with a time or a date that a source uses; empty if there is none."""
    for text in code.project_texts():
        if match := _DATES.search(_LITERALS.sub('""', without_comments(text))):
            return match[0]
    return ""


def takes_alignment(program: Program) -> bool:
    """True if a kernel takes the lowest bits of an address, by which arrays may be aligned to a few bytes or to many."""
    everything, holds, _, _ = _addresses(program)
    taken = (inst for inst in everything if inst.opcode == "and" and inst.type != "pred" and isinstance(inst.operands[2], Integer))
    return any(
        0 < inst.operands[2].value <= _ALIGNMENT_MASK and any(register.name in holds for register in registers_of(inst.operands[1]))
        for inst in taken
        if isinstance(inst.operands[2], Integer)
    )


def _addresses(program: Program) -> tuple[list[Instruction], set[str], set[str], dict[str, int]]:
    """All instructions, the registers that hold addresses or what is computed from them, those that hold whole addresses, and by how many
    places the address in a register is shifted to the right at most."""
    pointers = {parameter.name for parameter in program.entry.parameters if parameter.size == 8}
    holds: set[str] = set()
    whole: set[str] = set()
    shifted: dict[str, int] = {}
    everything = list(instructions_of(program))
    sizes = _counted_parameters(everything, pointers)
    variables = frozenset(program.symbols)
    changed = True
    while changed:
        changed = False
        for inst in everything:
            if not (_names_variable(inst, variables) or _gives_address(inst, holds, pointers - sizes, shifted)):
                continue
            names = written_by(inst)
            places = _places(inst, len(names), shifted)
            if _is_negative(inst, holds):
                names = (*names, *[f"-{name}" for name in names])
                places = [*places, *places]
            if not holds.issuperset(names) or any(shifted.get(name, 0) < place for name, place in zip(names, places, strict=True)):
                holds.update(names)
                whole.update(names if inst.opcode in ("ld", "mov", "cvta") and len(names) == 1 else ())
                shifted |= {name: max(place, shifted.get(name, 0)) for name, place in zip(names, places, strict=True)}
                changed = True
    return everything, holds, whole, shifted


def _names_variable(inst: Instruction, variables: Collection[str]) -> bool:
    """True for the address of a variable of the module or of shared memory, which the driver and the compiler choose."""
    return inst.opcode == "mov" and any(isinstance(operand, Symbol) and operand.name in variables for operand in inst.operands[1:])


def _is_negative(inst: Instruction, holds: set[str]) -> bool:
    """True for the negative of an address, to which a number may have been added."""
    first, *rest = [[register.name for register in registers_of(operand)] for operand in inst.operands[1:]] or [[]]
    if inst.opcode == "sub":
        return not holds.intersection(first) and any(holds.intersection(names) for names in rest)
    negative = any(f"-{name}" in holds for names in (first, *rest) for name in names)
    return negative if inst.opcode in ("add", "mov", "cvt") else inst.opcode == "neg"


def _places(inst: Instruction, count: int, shifted: Mapping[str, int]) -> list[int]:
    """By how many places the address is shifted to the right in each result of an instruction, at most."""
    if inst.opcode == "ld":
        return [0] * count
    before = max((shifted.get(name, 0) for name in source_registers(inst)), default=0)
    if inst.opcode == "mov" and count > 1:
        return [min(before + number * 64 // count, _ANY_PLACE) for number in range(count)]
    by = inst.operands[2] if inst.opcode == "shr" else None
    if isinstance(by, Integer):
        return [min(before + by.value, _ANY_PLACE)] * count
    added = inst.opcode == "mad" and not any(
        register.name in shifted for operand in inst.operands[1:3] for register in registers_of(operand)
    )
    return [before if added or inst.opcode in _KEEPS_PLACES else _ANY_PLACE] * count


def address_that_decides(program: Program) -> Instruction | None:
    """An instruction that compares an address with a number, converts it to a number, or stores it in global memory. Results may then
    depend on addresses.

    Tests for alignment and for null pointers are allowed, and so are comparisons of two addresses."""
    everything, holds, whole, _ = _addresses(program)

    def of_address(operand: Operand, among: set[str]) -> bool:
        return not isinstance(operand, Address) and any(register.name in among for register in registers_of(operand))

    for inst in everything:
        if inst.opcode in ("setp", "set"):
            first, second = inst.operands[1:3]
            null = Integer(0) in (first, second) and (of_address(first, whole) or of_address(second, whole))
            if of_address(first, holds) != of_address(second, holds) and not null:
                return inst
        else:
            used = (inst.opcode == "cvt" and inst.types[:1] in _FLOATS) or (inst.opcode == "st" and inst.has("global"))
            if used and of_address(inst.operands[1], holds):
                return inst
    return None


def _counted_parameters(everything: list[Instruction], pointers: set[str]) -> set[str]:
    """64-bit parameters that are not converted to an address, such as sizes."""
    loaded: dict[str, str] = {}
    addresses: set[str] = set()
    for inst in everything:
        if inst.opcode == "ld" and inst.has("param") and isinstance(inst.operands[1], Address):
            base = inst.operands[1].base
            if isinstance(base, Symbol) and base.name in pointers:
                loaded.update(dict.fromkeys(written_by(inst), base.name))
        elif inst.opcode == "cvta":
            addresses.update(source_registers(inst))
    return pointers - {name for register, name in loaded.items() if register in addresses}


def _gives_address(inst: Instruction, holds: set[str], pointers: set[str], shifted: Mapping[str, int]) -> bool:
    if inst.opcode == "ld" and inst.has("param"):
        base = inst.operands[1].base if isinstance(inst.operands[1], Address) else None
        return isinstance(base, Symbol) and base.name in pointers
    if inst.opcode == "cvta" and (inst.has("shared") or inst.has("local")):
        # Shared and local memory lie at other addresses on each device, but in the same places of a block's or a thread's memory.
        return not inst.has("to")
    if inst.opcode == "mapa":  # memory of other blocks lies at other addresses on each device
        return True
    if inst.opcode not in _PASSES:
        return False
    read = [operand for operand in inst.operands[1:] if any(register.name in holds for register in registers_of(operand))]
    if inst.opcode in ("and", "or"):
        place = max((shifted.get(name, 0) for name in source_registers(inst)), default=0)
        taken = [each.value if inst.opcode == "and" else ~each.value for each in inst.operands[1:] if isinstance(each, Integer)]
        if any(0 <= mask << place <= _ALIGNMENT_MASK for mask in taken):
            return False
    # The distance of two addresses is no address, nor is a number less an address, added to an address.
    signs = [any(f"-{register.name}" in holds for register in registers_of(operand)) for operand in read]
    return bool(read) and not (
        len(read) == 2 and ((inst.opcode == "sub" and signs[0] == signs[1]) or (inst.opcode == "add" and signs[0] != signs[1]))
    )


def other_builds(code: KernelCode) -> Iterator[tuple[str, KernelCode | None]]:
    """Other builds of a source that tests the architecture or the compiler, each with a description; None if a build does not compile here.
    A source for a single architecture, such as sm_90a, is not built for others."""
    if code.source is None:
        return
    text = "\n".join(without_comments(each) for each in code.project_texts())
    builds: list[tuple[str, str, str]] = []
    if _BUILD.search(text) and code.architecture[-1].isdigit():
        builds += [(f"for {name}", code.source, name) for name in _OTHER_ARCHITECTURES if name != code.architecture]
    if _COMPILER.search(text):
        without = "#undef __CUDACC_RTC__\n#ifndef __NVCC__\n#define __NVCC__ 1\n#endif\n#line 1\n"
        builds.append(("by nvcc", without + code.source, code.architecture))
    if macros := sorted(set(_HOST_COMPILER.findall(text))):
        # Behind the last header, which may not compile with them.
        place = max((match.end() for match in _INCLUDE.finditer(code.source)), default=0)
        values = {name: '"13"' if name == "__VERSION__" else "13" for name in macros}
        defined = "".join(f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in values.items())
        builds.append(("with a host compiler's macros", code.source[:place] + defined + code.source[place:], code.architecture))
    for description, source, architecture in builds:
        try:
            other = load_kernel(source, code.name, code.folder, replace(code.options, architecture=architecture), is_ptx=False)
        except GemmgenError:
            yield description, None
            continue
        if other.ptx != code.ptx:
            yield description, replace(other, source=code.source)
