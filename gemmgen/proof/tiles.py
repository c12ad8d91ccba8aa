"""One iteration of a persistent kernel's loop over tiles, as the whole work of a block in a grid with a block for each tile.

A persistent kernel stores the results of tiles b, b + G, b + 2 G, ... for block b of G. If an iteration of its loop depends on earlier ones
by the number of the tile alone, its accesses are those of block T of a grid with a block for each tile T. ``one_tile`` checks that, and
leaves out the way back. ``ended_early`` leaves out the parts of a kernel that no access of interest follows, such as those of threads that
copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gemmgen.core.graphs import live_at_entry, reached
from gemmgen.emulator.ptx.syntax import (
    Address,
    Function,
    Instruction,
    Register,
    Special,
    registers_of,
    source_registers,
    sources_of,
    writers_of,
    written,
    written_by,
)
from gemmgen.proof.control import ControlFlow, control_flow


def ended_early(function: Function, wanted: Collection[Instruction]) -> Function:
    """The function, except that it returns where none of some statements can follow."""
    flow = control_flow(function)
    numbers = {id(instruction) for instruction in wanted}
    leads = {number for number, statements in enumerate(flow.blocks) if any(id(instruction) in numbers for instruction in statements)}
    leads = set(reached(leads, lambda number: flow.predecessors.get(number, ())))
    starts: dict[int, int] = {}
    body: list[Instruction] = []
    old = 0
    for number, statements in enumerate(flow.blocks):
        starts[old] = len(body)
        old += len(statements)
        leaves = replace(statements[0], opcode="ret", modifiers=(), operands=(), guard=None, guard_negated=False)
        body += statements if number in leads else [leaves]
    starts[old] = len(body)
    return replace(function, body=tuple(body), labels={name: starts[place] for name, place in function.labels.items()})


INDEX, GRID = "%ctaid.x", "%nctaid.x"
OPAQUE = frozenset(("ld", "atom", "ldmatrix", "mbarrier", "tcgen05"))
"""Opcodes whose result is any number here."""


def one_tile(function: Function, direct: Collection[Instruction]) -> Function | None:
    """The function with one iteration of its loop over tiles; None if it has none, or one that depends on more than the tile's number.

    Then the block's index is the number of the tile.
    """
    flow = control_flow(function)
    specials = [(each, operand.name) for each in function.body for operand in each.operands if isinstance(operand, Special)]
    begins = [each for each, name in specials if name.startswith(("%ctaid", "%nctaid"))]
    names = {name: each for each, name in specials}
    if len(begins) != 2 or {INDEX, GRID} - set(names) or any(names[each].opcode != "mov" or names[each].guard for each in (INDEX, GRID)):
        return None
    (index,), (grid,) = written(names[INDEX]), written(names[GRID])
    writers = [each for each in function.body if index.name in {register.name for register in written(each)}]
    uses = [
        each for each in function.body if any(register.name == grid.name for operand in each.operands for register in registers_of(operand))
    ]
    advances = [each for each in uses if each is not names[GRID]]
    if len(advances) != 1 or len(writers) != 2 or {id(each) for each in writers} != {id(names[INDEX]), id(advances[0])}:
        return None
    (advance,) = advances
    if advance.opcode != "add" or advance.type != "s32" or advance.guard or advance.operands != (index, index, grid):
        return None
    here = next(number for number, block in enumerate(flow.blocks) if any(each is advance for each in block))
    header = max((each for each, blocks in flow.loops.items() if here in blocks), key=lambda each: -len(flow.loops[each]), default=None)
    if header is None:
        return None
    loop = flow.loops[header]
    inside = {id(each) for block in loop for each in flow.blocks[block]}
    ways_back = [block for block in flow.predecessors[header] if block in loop]
    if any(id(each) not in inside for each in direct) or ways_back != [here] or id(names[INDEX]) in inside:
        return None
    statements = flow.blocks[here]
    *_, compares, back = statements
    bound = compares.operands[2] if len(compares.operands) == 3 else None
    fine = (
        back.opcode == "bra"
        and back.guard is not None
        and not back.guard_negated
        and flow.successors[here][0] == header
        and compares.opcode == "setp"
        and compares.modifiers == ("lt", "s32")
        and not compares.guard
        and compares.operands[:2] == (back.guard, index)
        and isinstance(bound, Register)
        and all(id(each) not in inside for each in function.body if bound in written(each))
        and any(each is advance for each in statements)
    )
    carried = _live(flow)[header] & {register.name for block in loop for each in flow.blocks[block] for register in written(each)}
    if not fine or carried & _decisive(function, direct) != {index.name}:
        return None
    body = tuple(replace(each, opcode="ret", modifiers=(), operands=(), guard=None) if each is back else each for each in function.body)
    return replace(function, body=body)


def _decisive(function: Function, direct: Collection[Instruction]) -> set[str]:
    """Registers that the addresses of some statements depend on, and what decides whether they are carried out."""
    writers = writers_of(function.body)
    roots = [
        register.name for each in direct for operand in each.operands if isinstance(operand, Address) for register in registers_of(operand)
    ]
    for each in function.body:
        if each.guard is not None and (each.opcode in ("bra", "ret", "exit") or each in direct):
            roots.append(each.guard.name)

    def sources(name: str) -> Iterator[str]:
        for each in writers.get(name, ()):
            if each.guard is not None:
                yield each.guard.name
            if each.opcode not in OPAQUE:
                yield from source_registers(each)

    return set(reached(roots, sources))


def _live(flow: ControlFlow) -> list[frozenset[str]]:
    """Registers that may be read after the start of each basic block before they are written."""
    reads: list[set[str]] = [set() for _ in range(flow.end + 1)]
    kills: list[set[str]] = [set() for _ in range(flow.end + 1)]
    for number, block in enumerate(flow.blocks):
        for each in block:
            targets = set(written_by(each))
            used = {register.name for operand in sources_of(each) for register in registers_of(operand)}
            if each.guard is not None:  # the old content stays where the guard does not hold
                used |= {each.guard.name, *targets}
            reads[number] |= used - kills[number]
            kills[number] |= targets if each.guard is None else set()
    return live_at_entry(flow.successors, reads, kills)
