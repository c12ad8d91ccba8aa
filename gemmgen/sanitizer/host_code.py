"""Separation of host code from device code in CUDA text, on the syntax tree of tree-sitter's CUDA grammar.

NVRTC compiles device code only. At namespace scope, a function that is neither marked for the device nor `constexpr` belongs to the
host, and so do its prototypes and variables that device code cannot read. They are blanked in place, so lines and columns of the rest
stay. The parser needs no included file and recovers from unknown types and macros, so headers of missing frameworks do not stop it.

On some texts that are no C++, its recovery takes time that grows with the square of their length, and nothing interrupts it. Therefore it
works in a child process with a limit on processor time, which raises CompileError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.sanitizer.comments import without_comments
from gemmgen.toolchain.containment import contained

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_DEVICE_WORDS = ("__global__", "__device__", "__constant__", "constexpr", "consteval", "__managed__", "__shared__")
_HOST_INCLUDES = re.compile(
    rb"^[ \t]*#[ \t]*include[ \t]*[<\"](?:iostream|fstream|sstream|vector|string|map|chrono|random|memory|thread|c?stdlib(?:\.h)?"
    rb"|stdio\.h|cstdio|cublas\w*\.h|cudnn\.h|cufft\.h|curand\.h|cusparse\.h|mpi\.h|helper_\w+\.h|torch/|ATen/|c10/|pybind11/|thrust/)",
    re.MULTILINE,
)
_HOST_SIGN = re.compile(rb"<<<|\bint\s+main\s*\(|\bstd::\w|\bcuda[A-Z]\w+\s*\(|\bPYBIND11_MODULE\b|\bTORCH_LIBRARY")
_DIRECTIVE = re.compile(rb"^[ \t]*#[ \t]*(if|elif|else|endif)\w*\b(?:\\\r?\n|[^\n])*", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\\\n]|\\\r?\n|\\.)*)", re.MULTILINE)
_KEPT_OR_BLANK = re.compile(rb"((?<=\n)[ \t]*#[ \t]*(?:if|el|endif|define|undef)(?:\\\r?\n|[^\n])*|\n)|.", re.DOTALL)
_SCOPES = {"namespace_definition", "linkage_specification"}
_CONDITIONS = {"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_elifdef"}
_CLASSES = {"struct_specifier", "class_specifier", "union_specifier"}
_KEPT_CONSTANTS = {"primitive_type", "sized_type_specifier", "type_identifier", "enum_specifier"}
_MAX_BRANCHES = 4
"""Branches of one condition that are looked into; each costs a parse of the file."""
_SECONDS_PER_MEGABYTE = 1.5
"""Processor time for parsing, of which less than a megabyte gets as much; C++ takes a third of it a branch."""
T = TypeVar("T")


def _in_time(work: Callable[[], T], texts: Iterable[str]) -> T:
    """The result of ``work``, which parses these texts. Raises CompileError if that takes too long."""
    megabytes = sum(map(len, texts)) / 1e6
    return contained(work, "the parser that separates host code from device code", _SECONDS_PER_MEGABYTE * max(1.0, megabytes))


def has_host_code(text: str) -> bool:
    """True if a file shows signs of host code: launches, host headers, calls of the runtime."""
    encoded = text.encode(errors="replace")
    return _HOST_SIGN.search(encoded) is not None or _HOST_INCLUDES.search(encoded) is not None


def device_macros(texts: Iterable[str]) -> frozenset[str]:
    """Macros that stand for a word that marks device code, over all files of a project."""
    definitions = [match.groups() for text in texts for match in _MACRO.finditer(text)]
    words = set(_DEVICE_WORDS)
    while more := {name for name, value in definitions if name not in words and not words.isdisjoint(re.findall(r"\w+", value))}:
        words |= more
    return frozenset(words)


def device_parts(texts: Mapping[str, str], marks: Collection[str]) -> dict[str, str]:
    """The texts with the host's functions and variables blanked. `marks` are the project's device macros."""
    return _in_time(lambda: {name: _device_part(text, marks) for name, text in texts.items()}, texts.values())


def _device_part(text: str, marks: Collection[str]) -> str:
    source = text.encode(errors="replace")
    parts = [(item.start_byte, _end(source, item)) for root in _trees(source) for item in _items(root) if _is_host(item, marks)]
    return _blanked(source, parts)


def without_refused_items(text: str, lines: Collection[int], marks: Collection[str]) -> str | None:
    """The text without the items of namespace scope that the compiler refused in these lines: types with members of the host's, variables
    that the host's functions initialise. None if one of the lines is in something else, such as code for the device."""
    return _in_time(partial(_without_refused_items, text, lines, marks), [text])


def _without_refused_items(text: str, lines: Collection[int], marks: Collection[str]) -> str | None:
    source = text.encode(errors="replace")
    refused, left = [], set(lines)
    for item in (item for root in _trees(source) for item in _items(root)):
        inside = left & _lines_of(item)
        # A specialisation stays: without it, another template would be taken in its place.
        if not inside or re.match(rb"template\s*<\s*>", source[item.start_byte : item.end_byte]):
            continue
        # Of a class, functions of the host alone go, if they are all that is refused: others may derive from it.
        members = [member for member in _members(item) if inside & _lines_of(member) and not _is_marked(member, marks)]
        covered = inside & {line for member in members for line in _lines_of(member)}
        if members and (covered == inside or _mentions(item, marks)):
            left -= covered
            refused += [(member.start_byte, member.end_byte) for member in members]
        elif not _mentions(item, marks):
            left -= inside
            refused.append((item.start_byte, _end(source, item)))
    return None if left or not refused else _blanked(source, refused)


def members_of(texts: Iterable[str], type_name: str) -> list[str] | None:
    """Names of the data members of a structure that one of the texts defines, those of its bases first; None if none defines it."""
    known = list(texts)
    return _in_time(partial(_members_of, known, type_name), known)


def _members_of(known: Sequence[str], type_name: str) -> list[str] | None:
    stem = re.sub(r"<.*", "", type_name, flags=re.DOTALL).split("::")[-1].strip()
    for text in known:
        source = text.encode(errors="replace")
        if stem.encode() not in source:
            continue
        for root in _trees(source):
            if (definition := _definition(root, stem)) is not None:
                bases = [base for child in definition.children if child.type == "base_class_clause" for base in child.named_children]
                names: list[str] = []
                for base in bases:
                    names += (_members_of(known, _text(base)) or []) if base.type != "access_specifier" else []
                return names + _data_members(definition)
    return None


def namespaces_of(texts: Iterable[str], type_name: str) -> str | None:
    """The qualified name of the structure that one of the texts defines under an unqualified name."""
    known = list(texts)
    return _in_time(partial(_namespaces_of, known, type_name), known)


def _namespaces_of(texts: Sequence[str], type_name: str) -> str | None:
    stem = re.sub(r"<.*", "", type_name, flags=re.DOTALL).split("::")[-1].strip()
    for text in texts:
        for root in _trees(text.encode(errors="replace")):
            if (definition := _definition(root, stem)) is not None:
                scopes: list[str] = []
                above = definition.parent
                while above is not None:
                    if above.type == "namespace_definition" or above.type in _CLASSES:
                        name = above.child_by_field_name("name")
                        scopes += [_text(name)] if name is not None else []
                    above = above.parent
                return "::".join(reversed(scopes))
    return None


def _definition(root: Node, stem: str) -> Node | None:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type in _CLASSES and node.child_by_field_name("body") is not None:
            name = node.child_by_field_name("name")
            if name is not None and re.sub(r"<.*", "", _text(name), flags=re.DOTALL) == stem:
                return node
            # typedef struct { ... } name;
            if node.parent is not None and node.parent.type == "type_definition":
                declarators = node.parent.children_by_field_name("declarator")
                if any(_text(declarator) == stem for declarator in declarators):
                    return node
        if node.type != "compound_statement":
            waiting += reversed(node.named_children)
    return None


def _data_members(definition: Node) -> list[str]:
    body = definition.child_by_field_name("body")
    names: list[str] = []
    waiting = list(reversed(body.named_children)) if body is not None else []
    while waiting:
        member = waiting.pop()
        if member.type in _CONDITIONS:
            waiting += reversed(member.named_children)
        if member.type != "field_declaration" or any(_text(child) in ("static", "typedef", "friend") for child in member.children):
            continue
        declarators = member.children_by_field_name("declarator")
        anonymous = member.child_by_field_name("type")
        if not declarators and anonymous is not None and anonymous.type in _CLASSES and anonymous.child_by_field_name("name") is None:
            names += _data_members(anonymous)
        for declarator in declarators:
            if not _declares_function(declarator):
                names += [name] if (name := _declared_name(declarator)) else []
    return names


def _declared_name(declarator: Node) -> str:
    node: Node | None = declarator
    while node is not None and node.type not in ("field_identifier", "identifier"):
        inner = node.child_by_field_name("declarator")
        node = (
            inner
            if inner is not None
            else next((child for child in node.named_children if "declarator" in child.type), None)
            or next((child for child in node.named_children if child.type in ("field_identifier", "identifier")), None)
        )
    return _text(node) if node is not None else ""


@lru_cache(maxsize=1)
def _parser() -> Parser:
    try:
        import tree_sitter_cuda
        from tree_sitter import Language, Parser
    except ImportError:
        raise EnvironmentMissing(
            "files with host code need the parser tree-sitter-cuda; install it with: pip install tree-sitter tree-sitter-cuda"
        ) from None
    return Parser(Language(tree_sitter_cuda.language()))


@lru_cache(maxsize=256)
def _trees(source: bytes) -> tuple[Node, ...]:
    """A tree for each way through the conditions of a file, so that two heads of one function do not open two braces."""
    variants = dict.fromkeys(_branch(source, index) for index in range(_MAX_BRANCHES))
    return tuple(_parser().parse(variant).root_node for variant in variants)


def _branch(source: bytes, wanted: int) -> bytes:
    """The text with one branch of each condition that has several, the last one if there are fewer; the others are blanked."""
    pieces = bytearray(source)
    open_conditions: list[list[int]] = []
    spans: list[list[int]] = []
    for match in _DIRECTIVE.finditer(source):
        word = match[1]
        if word == b"if":
            open_conditions.append([match.start(), match.end()])
        elif word in (b"elif", b"else") and open_conditions:
            open_conditions[-1] += [match.start(), match.end()]
        elif word == b"endif" and open_conditions:
            spans.append([*open_conditions.pop(), match.start(), match.end()])
    for span in spans:
        branches = len(span) // 2 - 1
        if branches < 2:
            continue
        chosen = min(wanted, branches - 1)
        for index in range(branches + 1):
            _blank(pieces, span[2 * index], span[2 * index + 1])
            if index < branches and index != chosen:
                _blank(pieces, span[2 * index + 1], span[2 * index + 2])
    return bytes(pieces)


def _blank(text: bytearray, start: int, stop: int) -> None:
    text[start:stop] = re.sub(rb"[^\n]", b" ", bytes(text[start:stop]))


def _items(scope: Node) -> Iterator[Node]:
    """Declarations and definitions at namespace scope."""
    for child in scope.named_children:
        if child.type in _SCOPES:
            body = child.child_by_field_name("body")
            if body is not None:
                yield from _items(body) if body.type == "declaration_list" else (child,)
        elif child.type in _CONDITIONS:
            yield from _items(child)
        elif child.type == "ERROR":
            yield from (inner for inner in child.named_children if inner.type == "function_definition" and not inner.has_error)
        elif not child.type.startswith("preproc_") and child.type != "comment":
            yield child


def _members(item: Node) -> list[Node]:
    """Member functions of a class, which stay out of its layout."""
    inner = _unwrapped(item)
    if inner.type in ("declaration", "type_definition"):
        inner = inner.child_by_field_name("type") or inner
    body = inner.child_by_field_name("body") if inner.type in _CLASSES else None
    if body is None:
        return []
    members: list[Node] = []
    waiting = list(body.named_children)
    while waiting:
        member = waiting.pop(0)
        if member.type in _CONDITIONS:
            waiting += member.named_children
        declared = _unwrapped(member)
        if declared.type in ("function_definition", "friend_declaration") or any(
            _declares_function(child) for child in declared.children_by_field_name("declarator")
        ):
            members.append(member)
    return members


def _unwrapped(item: Node) -> Node:
    while item.type in ("template_declaration", "linkage_specification") and item.named_children:
        item = item.named_children[-1]
    return item


def _is_host(item: Node, marks: Collection[str]) -> bool:
    inner = _unwrapped(item)
    if inner.type == "function_definition":
        return any(_declares_function(child) for child in inner.named_children) and not _is_marked(item, marks)
    if inner.type == "template_instantiation":
        return b"(" in (item.text or b"") and not _mentions(item, marks)
    if inner.type != "declaration" or _mentions(item, marks):
        return False
    declarators = inner.children_by_field_name("declarator")
    declared = inner.child_by_field_name("type")
    if declared is None or not declarators or (declared.type in _CLASSES and declared.child_by_field_name("body") is not None):
        return False
    if any(_declares_function(declarator) for declarator in declarators):
        return True
    if not any(child.type == "type_qualifier" and child.text == b"const" for child in inner.children):
        return True
    return declared.type not in _KEPT_CONSTANTS or _has(inner, {"call_expression", "new_expression"})


def _declares_function(node: Node | None) -> bool:
    while node is not None and node.type != "function_declarator":
        if "declarator" not in node.type or node.type == "init_declarator":
            return False
        node = next((child for child in node.named_children if "declarator" in child.type), None)
    # A pointer to functions is a variable.
    return node is not None and not any(child.type == "parenthesized_declarator" for child in node.named_children)


def _is_marked(item: Node, marks: Collection[str]) -> bool:
    """True if the head of a function, its template included, has a word that marks device code."""
    inner = _unwrapped(item)
    body = inner.child_by_field_name("body")
    text = item.text or b""
    return _has_word(text if body is None else text[: body.start_byte - item.start_byte], marks)


def _mentions(item: Node, marks: Collection[str]) -> bool:
    return _has_word(item.text or b"", marks)


def _has_word(text: bytes, marks: Collection[str]) -> bool:
    plain = without_comments(text.decode("latin-1"))
    return any(word in marks for word in re.findall(r"\b[A-Za-z_]\w*", plain, re.ASCII))


def _has(node: Node, types: Collection[str]) -> bool:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current.type in types:
            return True
        waiting += current.named_children
    return False


def _end(source: bytes, item: Node) -> int:
    """The end of an item; of a class, behind its semicolon."""
    following = re.compile(rb"\s*;").match(source, item.end_byte)
    return following.end() if following is not None and _unwrapped(item).type in _CLASSES else item.end_byte


def _lines_of(item: Node) -> set[int]:
    return set(range(item.start_point[0] + 1, item.end_point[0] + 2))


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def _blanked(source: bytes, parts: Iterable[tuple[int, int]]) -> str:
    """The text without these parts; conditions and macros in them stay, since later text may belong to them."""
    pieces, position = [], 0
    for start, stop in sorted(set(parts)):
        start = max(start, position)
        if stop > start:
            pieces += [source[position:start], _KEPT_OR_BLANK.sub(lambda match: match[1] or b" ", source[start:stop])]
            position = stop
    return b"".join([*pieces, source[position:]]).decode(errors="replace")


def lines_by_file(log: str) -> Mapping[str, set[int]]:
    """Lines with errors by file, from a compiler's log."""
    lines: dict[str, set[int]] = {}
    for file, line in re.findall(r"^(.*)\((\d+)\): (?:catastrophic )?error", log, re.MULTILINE):
        lines.setdefault(file, set()).add(int(line))
    return lines
