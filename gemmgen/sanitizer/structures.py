"""Layouts of structures, as the compiler itself gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gemmgen.core.errors import CompileError
from gemmgen.sanitizer.source import KernelCode, UnusableInput, load_kernel

_POINTER, _FLOAT, _SIGNED, _UNSIGNED, _STRUCT = range(1, 6)
_KINDS = {_POINTER: "pointer", _FLOAT: "f", _SIGNED: "s", _UNSIGNED: "u", _STRUCT: "struct"}
_PROBE = """
namespace gemmgen_layout {
template <class T> struct kind { static constexpr unsigned long long value = 5, size = sizeof(T); };
template <class T> struct kind<T*> { static constexpr unsigned long long value = 1, size = sizeof(T*); };
template <class T> struct kind<const T> : kind<T> {};
template <class T> struct kind<volatile T> : kind<T> {};
template <class T, unsigned long N> struct kind<T[N]> : kind<T> {};
#define GEMMGEN_KIND(type, number) \\
  template <> struct kind<type> { static constexpr unsigned long long value = number, size = sizeof(type); };
GEMMGEN_KIND(float, 2) GEMMGEN_KIND(double, 2) GEMMGEN_KIND(char, 3) GEMMGEN_KIND(signed char, 3) GEMMGEN_KIND(short, 3)
GEMMGEN_KIND(int, 3) GEMMGEN_KIND(long, 3) GEMMGEN_KIND(long long, 3) GEMMGEN_KIND(bool, 4) GEMMGEN_KIND(unsigned char, 4)
GEMMGEN_KIND(unsigned short, 4) GEMMGEN_KIND(unsigned, 4) GEMMGEN_KIND(unsigned long, 4) GEMMGEN_KIND(unsigned long long, 4)
}
"""


@dataclass(frozen=True)
class Field:
    """A member: its byte offset, how many elements of how many bytes, and `pointer`, `f`, `s`, `u` or `struct`."""

    name: str
    offset: int
    count: int
    bytes: int
    kind: str


@dataclass(frozen=True)
class Layout:
    """A structure's size in bytes and its members."""

    name: str
    bytes: int
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        """The member of a name."""
        return next((field for field in self.fields if field.name == name), None)


def find_layout(code: KernelCode, type_name: str) -> Layout:
    """The layout of a structure that the source defines. Raises ``UnusableInput``."""
    if code.source is None:
        raise UnusableInput("PTX does not tell the members of a structure; give its bytes: --arg @file.npy")
    names = _members(code.source, type_name)
    words = [f"sizeof({type_name})"]
    for name in names:
        kind = f"gemmgen_layout::kind<decltype({type_name}::{name})>"
        words += [f"(char*)&it->{name} - (char*)it", f"sizeof(it->{name})", f"{kind}::size", f"{kind}::value"]
    stores = " ".join(f"words[{place}] = {word};" for place, word in enumerate(words))
    kernel = f'extern "C" __global__ void gemmgen_layout_of(unsigned long long* words) {{ {type_name}* it = ({type_name}*)16; {stores} }}'
    text = f"{code.source}\n{_PROBE}{kernel}\n"
    try:
        compiled = load_kernel(text, code.name, code.folder, replace(code.options, architecture=code.architecture), is_ptx=False)
    except CompileError as error:
        raise UnusableInput(f"the members of {type_name} cannot be told: {error}") from None
    import numpy as np

    from gemmgen import emulator

    told = np.zeros(len(words), np.uint64)
    emulator.launch(compiled.ptx, "gemmgen_layout_of", grid=1, block=1, args=[told])
    numbers = told.tolist()
    fields = []
    for index, name in enumerate(names):
        offset, size, element, kind_number = numbers[1 + 4 * index : 5 + 4 * index]
        fields.append(Field(name, offset, size // element, element, _KINDS[kind_number]))
    return Layout(type_name, numbers[0], tuple(fields))


def _members(source: str, type_name: str) -> list[str]:
    """The names of a structure's data members, in order."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    stem = re.sub(r"<.*", "", type_name, flags=re.DOTALL).split("::")[-1]
    match = re.search(rf"\b(?:struct|class)\s+(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\([^)]*\)\s*)?{re.escape(stem)}\b[^;{{(]*{{", plain)
    match = match or re.search(rf"\btypedef\s+struct\s*\w*\s*{{(?=[^{{}}]*}}\s*{re.escape(stem)}\s*;)", plain)
    if match is None:
        raise UnusableInput(f"{type_name} is not defined in this file; give its bytes: --arg @file.npy")
    depth, body = 1, ""
    for character in plain[match.end() :]:
        depth += (character == "{") - (character == "}")
        if depth == 0:
            break
        if depth == 1:
            # What follows the brace of a nested type are its variables; what follows others is another statement.
            body += "" if character == "}" and body.endswith("@ ") else ";" if character == "}" else character
        elif character == "{" and depth == 2:
            before, separator, head = body.rpartition(";")
            if re.match(r"\s*(?:const\s+)?(?:struct|union|class|enum)\b[^()]*$", head):
                body = f"{before}{separator}@ "
            elif body.rstrip().endswith(")") or "operator" in head:
                body += ";"
    names = []
    for statement in body.split(";"):
        words = re.sub(r"\b(?:public|private|protected)\s*:", " ", statement).strip()
        if not words or "(" in words or re.match(r"(?:static|using|typedef|friend|template|enum|struct\s+\w+$)\b", words):
            continue
        words = re.sub(r"<[^<>]*>", " ", re.sub(r"=[^,]*", " ", words))
        for piece in words.split(","):
            found = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?::\s*\d+\s*)?$", piece.strip())
            if found is not None:
                names.append(found[1])
    return names
