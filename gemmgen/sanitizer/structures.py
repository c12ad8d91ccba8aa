"""Layouts of structures, as the compiler itself gives them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmgen.core.errors import CompileError
from gemmgen.sanitizer.host_code import members_of, namespaces_of
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
    texts = code.project_texts()
    names = members_of(texts, type_name)
    if names is None:
        raise UnusableInput(f"{type_name} is not defined in this file or its headers; give its bytes: --arg @file.npy")
    if "::" not in type_name and (scope := namespaces_of(texts, type_name)):
        type_name = f"{scope}::{type_name}"
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
        raise UnusableInput(f"cannot determine the members of {type_name}: {error}") from None
    import numpy as np

    from gemmgen import emulator

    words_of_layout = np.zeros(len(words), np.uint64)
    emulator.launch(compiled.ptx, "gemmgen_layout_of", grid=1, block=1, args=[words_of_layout])
    numbers = words_of_layout.tolist()
    fields = []
    for index, name in enumerate(names):
        offset, size, element, kind_number = numbers[1 + 4 * index : 5 + 4 * index]
        fields.append(Field(name, offset, size // element, element, _KINDS[kind_number]))
    return Layout(type_name, numbers[0], tuple(fields))
