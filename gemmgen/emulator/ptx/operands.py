"""Operands of instructions, and the scopes in which their registers are declared."""

from __future__ import annotations

import struct

from gemmgen.emulator.ptx.lexer import Tokens
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Float,
    Group,
    Integer,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

_SPECIALS = (
    *("%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%lanemask_", "%clock", "%globaltimer", "%smid"),
    *("%nsmid", "%gridid", "%dynamic_smem_size", "%total_smem_size", "%cluster", "%nclusterid", "%is_explicit_cluster", "%envreg"),
    *("%pm", "%aggr_smem_size", "%reserved_smem", "%current_graph_exec"),
)


class Scopes:
    """Nested blocks of declarations, innermost last. `parents` tells for every scope ever opened which one encloses it."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.open: list[int] = []
        self._registers: list[dict[str, Register]] = []
        self._ranges: list[dict[str, tuple[int, str, int]]] = []

    @property
    def current(self) -> int:
        """The number of the innermost scope."""
        return self.open[-1]

    def push(self) -> None:
        """Enters a block."""
        self.parents.append(self.open[-1] if self.open else 0)
        self.open.append(len(self.parents) - 1)
        self._registers.append({})
        self._ranges.append({})

    def pop(self) -> None:
        """Leaves a block."""
        self.open.pop()
        self._registers.pop()
        self._ranges.pop()

    def declare(self, tokens: Tokens) -> None:
        """`.reg .type name, name<count>;`, the cursor at `.reg`."""
        tokens.next()
        type_name = tokens.next()[1:]
        if type_name not in TYPE_BYTES:
            raise tokens.error(f"registers of type .{type_name} are not supported")
        scope = self.current
        suffix = f"@{scope}" if scope else ""
        while True:
            name = tokens.next()
            if tokens.accept("<"):
                self._ranges[-1][name] = (tokens.integer(), type_name, scope)
                tokens.expect(">")
            else:
                self._registers[-1][name] = Register(name + suffix, type_name)
            if not tokens.accept(","):
                break
        tokens.expect(";")

    def find(self, name: str) -> Register | None:
        """The register of this name, seen from the innermost scope."""
        for depth in range(len(self._registers) - 1, -1, -1):
            scope = self._registers[depth]
            register = scope.get(name)
            if register is not None:
                return register
            ranges = self._ranges[depth]
            if ranges:
                stem = name.rstrip("0123456789")
                declared = ranges.get(stem)
                if declared is not None and stem != name and int(name[len(stem) :]) < declared[0]:
                    suffix = f"@{declared[2]}" if declared[2] else ""
                    register = scope[name] = Register(name + suffix, declared[1])
                    return register
        return None


def parse_operand(tokens: Tokens, scopes: Scopes) -> Operand:
    """The operand at the cursor."""
    kind, word = tokens.kind, tokens.word
    if kind == "word":
        tokens.next()
        operand = _named(tokens, scopes, word)
        if tokens.accept("|"):
            return Pair(operand, parse_operand(tokens, scopes))
        if isinstance(operand, Symbol) and tokens.word in ("+", "-"):
            sign = 1 if tokens.next() == "+" else -1
            operand = Symbol(operand.name, sign * tokens.integer())
        return operand
    if kind == "int":
        return Integer(tokens.integer())
    if kind == "float":
        return _float_literal(tokens.next())
    if word == "-":
        tokens.next()
        if tokens.kind == "float":
            literal = _float_literal(tokens.next())
            return Float(literal.bits ^ (1 << (literal.width - 1)), literal.width)
        return Integer(-tokens.integer())
    if word == "!":
        tokens.next()
        register = scopes.find(name := tokens.next())
        if register is None:
            raise tokens.error(f"{name} is no declared register")
        return Negated(register)
    if word == "{":
        return Vector(_list(tokens, scopes, "{", "}"))
    if word == "(":
        return Group(_list(tokens, scopes, "(", ")"))
    if word == "[":
        return _address(tokens, scopes)
    raise tokens.error(f"unexpected {word!r} in an operand")


def _named(tokens: Tokens, scopes: Scopes, word: str) -> Operand:
    if word == "_":
        return Sink()
    register = scopes.find(word)
    if register is not None:
        return register
    if word.startswith("%"):
        if word.startswith(_SPECIALS):
            return Special(word)
        raise tokens.error(f"register {word} is not declared")
    if word == "WARP_SZ":
        return Integer(32)
    return Symbol(word)


def _list(tokens: Tokens, scopes: Scopes, opening: str, closing: str) -> tuple[Operand, ...]:
    tokens.expect(opening)
    elements: list[Operand] = []
    while not tokens.accept(closing):
        elements.append(parse_operand(tokens, scopes))
        if not tokens.accept(","):
            tokens.expect(closing)
            break
    return tuple(elements)


def _address(tokens: Tokens, scopes: Scopes) -> Address:
    tokens.expect("[")
    base = parse_operand(tokens, scopes)
    offset = 0
    if isinstance(base, Symbol):
        base, offset = Symbol(base.name), base.offset
    while tokens.word in ("+", "-"):
        sign = 1 if tokens.next() == "+" else -1
        offset += sign * tokens.integer()
    extra: list[Operand] = []
    while tokens.accept(","):
        extra.append(parse_operand(tokens, scopes))
    tokens.expect("]")
    return Address(base, offset, tuple(extra))


def _float_literal(word: str) -> Float:
    lowered = word.lower()
    if lowered.startswith("0f"):
        return Float(int(word[2:], 16), 32)
    if lowered.startswith("0d"):
        return Float(int(word[2:], 16), 64)
    return Float(int.from_bytes(struct.pack("<d", float(word)), "little"), 64)
