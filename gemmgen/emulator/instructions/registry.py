"""The table of instructions: opcode to handler."""

from __future__ import annotations

from collections.abc import Callable

from gemmgen.emulator.arithmetic import Arithmetic
from gemmgen.emulator.binding import Binder
from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.forms import check_form
from gemmgen.emulator.operation import Operation
from gemmgen.emulator.ptx.syntax import Float, Instruction

MISUSE = (IndexError, KeyError, ValueError, TypeError, AttributeError, AssertionError)
"""Exceptions that Python raises when a handler meets operands or modifiers of a kind that it did not expect."""

Handler = Callable[[Instruction, Binder], Operation]

_Table = dict[str, list[tuple[Callable[[Instruction], bool], Handler]]]
_TABLES: dict[str, _Table] = {"real": {}, "field": {}, "joined": {}, "tree": {}}
_VIDEO = [f"{stem}{parts}" for stem in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax") for parts in (2, 4)]
LATER: dict[str, tuple[str, ...]] = {
    "mma": ("multiply", "double_product"),
    **dict.fromkeys(("ldmatrix", "stmatrix", "movmatrix"), ("matrix",)),
    **dict.fromkeys(("tex", "tld4", "suld", "sust"), ("texture",)),
    **dict.fromkeys(_VIDEO, ("video",)),
    "tensormap": ("tensor_maps",),
    "tcgen05": ("tensor_memory", "tensor_product"),
    "wgmma": ("wgmma",),
    "wmma": ("wmma",),
    "clusterlaunchcontrol": ("launch_control",),
}
"""The files of opcodes that most kernels lack: they are imported with the first such instruction."""


def _too_early(file: str) -> None:
    raise AssertionError(f"{file} is asked for before the package is imported")


_load: Callable[[str], None] = _too_early
"""Imports a file of this package by its name."""


def instruction(*opcodes: str, when: Callable[[Instruction], bool] | None = None, table: str = "real") -> Callable[[Handler], Handler]:
    """Registers a handler for opcodes, perhaps only for forms that `when` accepts; the last registered wins.

    `table` names the meaning of arithmetic that the handler is for (`gemmgen.emulator.arithmetic`).
    """

    def register(handler: Handler) -> Handler:
        for opcode in opcodes:
            _TABLES[table].setdefault(opcode, []).insert(0, (when or (lambda inst: True), handler))
        return handler

    return register


def bind(inst: Instruction, binder: Binder) -> Operation:
    """The operation of an instruction, guard not included. Raises UnknownInstruction."""
    check_form(inst)
    _complete(inst.opcode)
    if not binder.arithmetic.is_real:
        _load("over_field")
    try:
        for table in binder.arithmetic.tables:
            for accepts, handler in _TABLES[table].get(inst.opcode, ()):
                if accepts(inst):
                    return handler(inst, binder)
    except MISUSE as error:
        raise misunderstood(inst, error) from error
    raise UnknownInstruction(f"{'.'.join((inst.opcode, *inst.modifiers))} is not implemented", instruction=inst)


def means_the_same(inst: Instruction, arithmetic: Arithmetic) -> bool:
    """True for instructions on bits and integers that another meaning of arithmetic leaves as they are, and moves between registers."""
    if any(isinstance(operand, Float) for operand in inst.operands):
        return False
    if inst.opcode != "mov" and any("f" in type_name for type_name in inst.types):
        return False
    _load("over_field")
    others = (entry for table in arithmetic.tables if table != "real" for entry in _TABLES[table].get(inst.opcode, ()))
    return not any(accepts(inst) for accepts, _ in others)


def load_later(load: Callable[[str], None]) -> None:
    """Sets the function that imports a file of this package by its name."""
    global _load
    _load = load


def _complete(opcode: str) -> None:
    for file in LATER.get(opcode, ()):
        _load(file)


def misunderstood(inst: Instruction, error: Exception) -> UnknownInstruction:
    """The error for an instruction whose operands or modifiers a handler could not make sense of."""
    why = f" ({error})" if isinstance(error, ValueError | TypeError) else ""
    return UnknownInstruction(f"{inst.opcode} in a form that is not understood{why}", instruction=inst)


def handlers(opcode: str) -> list[Handler]:
    """The handlers of an opcode, those of special forms first."""
    _complete(opcode)
    return [handler for _, handler in _TABLES["real"].get(opcode, ())]


def opcodes() -> list[str]:
    """All opcodes of PTX that have a handler; those of the emulator's own are no identifiers."""
    return sorted(opcode for opcode in {*_TABLES["real"], *LATER} if opcode.isidentifier())
