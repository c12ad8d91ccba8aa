"""The call graph of a module: recursive functions, and those whose address is taken."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.core.graphs import cycles
from gemmgen.emulator.ptx.syntax import Function, Group, Instruction, Module, Symbol, Variable

RUNTIME_CALLS = ("vprintf", "malloc", "free")
"""Functions of the CUDA runtime that the emulator executes itself."""
DEVICE_LAUNCHES = ("__cudaCDP2", "cudaLaunchDevice", "cudaGetParameterBuffer", "cudaDeviceSynchronize", "cudaStreamCreateWithFlags")
"""Beginnings of the names of the runtime's functions by which a kernel launches another one."""
FUNCTION_ADDRESSES = 0x7E00_0000_0000
"""Addresses of functions, 16 bytes apart: code has an address, but nobody can read it."""


def callee_of(call: Instruction) -> str | None:
    """The function that a call names; None if it is called by its address."""
    operand = next((operand for operand in call.operands if not isinstance(operand, Group)), None)
    return operand.name if isinstance(operand, Symbol) else None


def function_address(module: Module, name: str) -> int | None:
    """The address of a function; None if there is no such function."""
    if name not in module.functions:
        return None
    return FUNCTION_ADDRESSES + 16 * (1 + list(module.functions).index(name))


def candidates(module: Module, results: tuple[Variable, ...], parameters: tuple[Variable, ...]) -> list[Function]:
    """The functions that a call by address can mean: those that take and give as much, and whose address somebody takes."""
    sizes = ([variable.size for variable in results], [variable.size for variable in parameters])
    taken = set(_taken(module))
    return [
        function
        for function in module.functions.values()
        if function.defined
        and not function.is_entry
        and function.name in taken
        and ([v.size for v in function.results], [v.size for v in function.parameters]) == sizes
    ]


def _taken(module: Module) -> Iterator[str]:
    for variable in module.variables.values():
        for value in variable.initial:
            if isinstance(value, Symbol) and value.name in module.functions:
                yield value.name
    for function in module.functions.values():
        for inst in function.body:
            if inst.opcode != "call":
                for operand in inst.operands:
                    if isinstance(operand, Symbol) and operand.name in module.functions:
                        yield operand.name


def recursive_groups(module: Module) -> dict[str, int]:
    """The functions that can call themselves, by name, and the number of the group of functions that call each other."""
    taken = list(dict.fromkeys(_taken(module)))
    calls: dict[str, set[str]] = {}
    for function in module.functions.values():
        called: set[str] = set()
        for inst in function.body:
            if inst.opcode == "call":
                name = callee_of(inst)
                called.update(taken if name is None else [name])
        calls[function.name] = called & module.functions.keys()
    return {name: number for number, group in enumerate(cycles(calls, lambda name: sorted(calls[name]))) for name in group}
