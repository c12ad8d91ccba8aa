"""Tokens to a `Module`. Registers are resolved through nested scopes here; everything else stays by name."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gemmgen.emulator.errors import ParseError
from gemmgen.emulator.ptx.lexer import Tokens, parse_integer
from gemmgen.emulator.ptx.operands import Scopes, parse_operand
from gemmgen.emulator.ptx.syntax import (
    TYPE_BYTES,
    Function,
    Instruction,
    Location,
    Module,
    Operand,
    Pair,
    Symbol,
    Variable,
)

_LINKAGES = {".visible", ".extern", ".weak", ".common"}
_STATE_SPACES = {".global", ".const", ".shared", ".local", ".param"}
_LIST_DIRECTIVES = {
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnreg",
    ".maxnctapersm",
    ".reqnctapercluster",
    ".maxclusterrank",
}
_FLAG_DIRECTIVES = {".noreturn", ".explicitcluster", ".blocksareclusters", ".noinline", ".abi_preserve", ".unified"}


@lru_cache(maxsize=8)
def parse(text: str) -> Module:
    """Parses PTX; the result is cached by text. Raises ParseError with the line."""
    tokens = Tokens(text)
    try:
        return _Parser(tokens).module()
    except (ValueError, IndexError, OverflowError, RecursionError) as error:
        raise tokens.error(f"a number or a nesting beyond all bounds ({type(error).__name__})") from error


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.files = _file_table(self.tokens)
        self.strings = _debug_strings(self.tokens)
        self.location: Location | None = None
        self._called_from: dict[tuple[str, int, int], Location] = {}
        """Places in functions that were inlined themselves, with where that was."""
        self.scopes = Scopes()

    # -- module level ------------------------------------------------------------------------------------------

    def module(self) -> Module:
        tokens = self.tokens
        version, target = "", ""
        variables: dict[str, Variable] = {}
        functions: dict[str, Function] = {}
        while tokens.kind != "end":
            word = tokens.word
            if word == ".version":
                tokens.next()
                version = tokens.next()
            elif word == ".target":
                tokens.next()
                target = tokens.next()
                while tokens.accept(","):
                    tokens.next()
            elif word == ".address_size":
                tokens.next()
                if tokens.integer() != 64:
                    raise tokens.error("only 64-bit addresses are supported")
            elif word == ".file":
                self._file()
            elif word == ".section":
                self._skip_section()
            elif word == ".loc":
                self._loc()
            elif word == ".pragma":
                self._skip_statement()
            elif word == ".alias":
                raise tokens.error(".alias is not supported")
            else:
                external = False
                while tokens.word in _LINKAGES:
                    external |= tokens.next() == ".extern"
                word = tokens.word
                if word in (".entry", ".func"):
                    function = self._function()
                    if function.defined or function.name not in functions:
                        functions[function.name] = function
                elif word in _STATE_SPACES:
                    for variable in self._variables(external):
                        if not (variable.external and variable.name in variables):
                            variables[variable.name] = variable
                else:
                    raise tokens.error(f"unexpected {word!r} at module level")
        if not version:
            raise ParseError("no .version directive: this is not a PTX module", ptx_line=1)
        return Module(version, target, variables, functions, self.files)

    def _file(self) -> None:
        tokens = self.tokens
        tokens.next()
        tokens.integer()
        while tokens.kind == "string":
            tokens.next()
        while tokens.accept(","):
            tokens.integer()

    def _skip_section(self) -> None:
        tokens = self.tokens
        while not tokens.accept("{"):
            tokens.next()
        while not tokens.accept("}"):
            tokens.next()

    def _skip_statement(self) -> None:
        while not self.tokens.accept(";"):
            self.tokens.next()

    def _loc(self) -> None:
        tokens = self.tokens
        tokens.next()
        file = self.files.get(index := tokens.integer(), f"file {index}")
        line, column = tokens.integer(), tokens.integer()
        function, inlined_at = None, None
        while tokens.accept(","):
            word = tokens.next()
            if word == "function_name":
                label = tokens.next()
                function = self.strings.get(label, label)
                if tokens.accept("+"):
                    tokens.integer()
            elif word == "inlined_at":
                at = self.files.get(index := tokens.integer(), f"file {index}")
                caller = (at, tokens.integer(), tokens.integer())
                inlined_at = self._called_from.get(caller, Location(*caller))
                if any((at.file, at.line, at.column) == (file, line, column) for at in inlined_at.chain()):
                    # A function that is inlined into itself: one round tells enough.
                    inlined_at = Location(*caller)
            else:
                raise tokens.error(f"unexpected {word!r} in .loc")
        # A line 0 means that the compiler knows no place: the previous one stays the best guess.
        if line:
            self.location = Location(file, line, column, function, inlined_at)
            if inlined_at is not None:
                self._called_from[file, line, column] = self.location

    # -- variables ---------------------------------------------------------------------------------------------

    def _variables(self, external: bool = False) -> list[Variable]:
        """`.space [.align N] .type name[count] = {...}, name2 ...;`"""
        variables = []
        space, type_name, alignment = self._variable_head()
        while True:
            variables.append(self._variable_tail(space, type_name, alignment, external))
            if not self.tokens.accept(","):
                break
        self.tokens.expect(";")
        return variables

    def _variable_head(self) -> tuple[str, str, int]:
        tokens = self.tokens
        space = tokens.next()[1:].split("::")[0]
        type_name, alignment, vector = "", 0, 1
        while tokens.word.startswith("."):
            word = tokens.next()
            if word == ".align":
                alignment = tokens.integer()
            elif word[1:] in TYPE_BYTES:
                type_name = word[1:]
            elif word in (".v2", ".v4"):
                vector = int(word[2:])
            elif word == ".ptr":
                # `.ptr .global .align 16` describes the memory that the pointer points to, not the parameter.
                while tokens.word in _STATE_SPACES:
                    tokens.next()
                if tokens.accept(".align"):
                    tokens.integer()
            elif word in (".texref", ".surfref", ".samplerref"):
                raise tokens.error(f"{word} is not supported")
            elif word not in (".managed", ".attribute"):
                raise tokens.error(f"unexpected {word!r} in a declaration")
            elif word == ".attribute":
                while not tokens.accept(")"):
                    tokens.next()
        if not type_name:
            raise tokens.error("a declaration without a type")
        if vector != 1:
            raise tokens.error("vector variables are not supported")
        return space, type_name, alignment or TYPE_BYTES[type_name]

    def _variable_tail(self, space: str, type_name: str, alignment: int, external: bool) -> Variable:
        tokens = self.tokens
        line = tokens.line
        name = tokens.next()
        count, is_array = 1, False
        while tokens.accept("["):
            is_array = True
            count *= 0 if tokens.word == "]" else tokens.integer()
            tokens.expect("]")
        initial: tuple[Operand, ...] = ()
        if tokens.accept("="):
            initial = tuple(self._initial_values())
            if is_array and count == 0:
                count = len(initial)
        return Variable(name, space, type_name, alignment, TYPE_BYTES[type_name], count, initial, external, line)

    def _initial_values(self) -> list[Operand]:
        tokens = self.tokens
        if tokens.accept("{"):
            values: list[Operand] = []
            while not tokens.accept("}"):
                values.extend(self._initial_values())
                tokens.accept(",")
            return values
        if tokens.word == "generic":
            tokens.next()
            tokens.expect("(")
            value = parse_operand(tokens, self.scopes)
            tokens.expect(")")
            if tokens.accept("+") and isinstance(value, Symbol):
                value = Symbol(value.name, value.offset + tokens.integer())
            return [value]
        return [parse_operand(tokens, self.scopes)]

    # -- functions ---------------------------------------------------------------------------------------------

    def _parameters(self) -> tuple[Variable, ...]:
        tokens = self.tokens
        parameters = []
        tokens.expect("(")
        while not tokens.accept(")"):
            if tokens.word == ".reg":
                raise tokens.error("register parameters are not supported")
            if tokens.word.split("::")[0] != ".param":
                raise tokens.error(f"expected .param, got {tokens.word!r}")
            parameters.append(self._variable_tail(*self._variable_head(), False))
            tokens.accept(",")
        return tuple(parameters)

    def _function(self) -> Function:
        tokens = self.tokens
        line = tokens.line
        is_entry = tokens.next() == ".entry"
        results: tuple[Variable, ...] = ()
        if not is_entry and tokens.word == "(":
            results = self._parameters()
        name = tokens.next()
        parameters = self._parameters() if tokens.word == "(" else ()
        directives: dict[str, tuple[int, ...]] = {}
        while tokens.word.startswith("."):
            word = tokens.next()
            if word in _LIST_DIRECTIVES:
                values = [tokens.integer()]
                while tokens.accept(","):
                    values.append(tokens.integer())
                directives[word[1:]] = tuple(values)
            elif word in _FLAG_DIRECTIVES:
                directives[word[1:]] = ()
            elif word == ".pragma":
                self._skip_statement()
            else:
                raise tokens.error(f"unexpected directive {word!r}")
        if tokens.accept(";"):
            return Function(name, is_entry, parameters, results, (), (), {}, (0,), {}, directives, False, line)
        start = tokens.index
        try:
            return self._body(name, is_entry, parameters, results, directives, line)
        except ParseError as problem:
            tokens.index = start
            if not self._skip_body():
                raise
            return Function(name, is_entry, parameters, results, (), (), {}, (0,), {}, directives, True, line, problem)

    def _skip_body(self) -> bool:
        """Moves past a body that cannot be parsed; False if no end of it is found."""
        tokens, depth = self.tokens, 0
        while tokens.kind != "end":
            word = tokens.next()
            depth += (word == "{") - (word == "}")
            if depth == 0:
                return word == "}"
        return False

    def _body(
        self,
        name: str,
        is_entry: bool,
        parameters: tuple[Variable, ...],
        results: tuple[Variable, ...],
        directives: dict[str, tuple[int, ...]],
        line: int,
    ) -> Function:
        tokens = self.tokens
        body: list[Instruction] = []
        variables: list[Variable] = []
        labels: dict[tuple[int, str], int] = {}
        targets: dict[tuple[int, str], tuple[str, ...]] = {}
        self.scopes = Scopes()
        self.location = None
        self._called_from.clear()
        tokens.expect("{")
        self.scopes.push()
        while self.scopes.open:
            word = tokens.word
            if word == "{":
                tokens.next()
                self.scopes.push()
            elif word == "}":
                tokens.next()
                self.scopes.pop()
            elif word == ".reg":
                self.scopes.declare(tokens)
            elif word in _STATE_SPACES or word.startswith(".shared::"):
                variables.extend(replace(variable, scope=self.scopes.current) for variable in self._variables())
            elif word == ".loc":
                self._loc()
            elif word == ".pragma":
                self._skip_statement()
            elif word.startswith("."):
                raise tokens.error(f"{word} is not supported in a function")
            elif tokens.kind == "word" and tokens.words[tokens.index + 1] == ":":
                label = (self.scopes.current, tokens.next())
                tokens.next()
                if tokens.accept(".branchtargets"):
                    names = [tokens.next()]
                    while tokens.accept(","):
                        names.append(tokens.next())
                    tokens.expect(";")
                    targets[label] = tuple(names)
                elif tokens.word in (".callprototype", ".calltargets"):
                    self._skip_statement()
                else:
                    if label in labels:
                        raise tokens.error(f"label {label[1]} is defined twice")
                    labels[label] = len(body)
            else:
                body.append(self._instruction())
        return Function(
            name,
            is_entry,
            parameters,
            results,
            tuple(variables),
            tuple(body),
            labels,
            tuple(self.scopes.parents),
            targets,
            directives,
            True,
            line,
        )

    def _instruction(self) -> Instruction:
        tokens = self.tokens
        start = tokens.positions[tokens.index]
        guard, negated = None, False
        if tokens.accept("@"):
            negated = tokens.accept("!")
            guard = self.scopes.find(word := tokens.next())
            if guard is None or guard.type != "pred":
                raise tokens.error(f"{word} is no declared predicate")
        if tokens.kind == "end":
            raise tokens.error("the text ends in the middle of a function")
        if tokens.kind != "word":
            raise tokens.error(f"expected an instruction, got {tokens.word!r}")
        opcode, *modifiers = tokens.next().split(".")
        operands: list[Operand] = []
        if tokens.word != ";":
            operands.append(parse_operand(tokens, self.scopes))
            while tokens.accept(","):
                operands.append(parse_operand(tokens, self.scopes))
        tokens.expect(";")
        if opcode == "tcgen05" and modifiers[:2] == ["ld", "red"] and len(operands) > 2:
            operands[:2] = [Pair(operands[0], operands[1])]  # two destinations, which this instruction writes as two operands
        text = " ".join(tokens.text[start : tokens.positions[tokens.index - 1] + 1].split())
        return Instruction(
            opcode,
            tuple(modifiers),
            tuple(operands),
            guard,
            negated,
            tokens.line_at(start),
            text,
            self.location,
            self.scopes.current,
        )


def _file_table(tokens: Tokens) -> dict[int, str]:
    """The `.file` directives; they often stand after the code that refers to them."""
    words, kinds = tokens.words, tokens.kinds
    files = {}
    for index, word in enumerate(words):
        if word == ".file" and kinds[index + 1] == "int":
            parts = [words[index + 2].strip('"')]
            if kinds[index + 3] == "string":
                # LLVM gives the folder and the file apart.
                parts.append(words[index + 3].strip('"'))
            files[parse_integer(words[index + 1])] = "/".join(parts)
    return files


def _debug_strings(tokens: Tokens) -> dict[str, str]:
    """The labelled byte strings of `.section .debug_str`: `.loc` names functions by them."""
    strings: dict[str, str] = {}
    if ".debug_str" not in tokens.words:
        return strings
    index = tokens.words.index(".debug_str") + 2
    words = tokens.words
    label, content = "", bytearray()
    while index + 1 < len(words) and words[index] != "}":
        word = words[index]
        if words[index + 1] == ":":
            label, content = word, bytearray()
            index += 1
        elif tokens.kinds[index] == "int":
            try:
                byte = parse_integer(word) & 0xFF
            except ValueError:
                # These names are for messages only.
                break
            if byte:
                content.append(byte)
            elif label:
                strings[label] = content.decode("utf-8", "replace")
                label = ""
        index += 1
    return strings
