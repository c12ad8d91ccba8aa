"""Reads a kernel's resources from a cubin: registers, stack, shared and constant memory. Plain ELF parsing, no CUDA.

A cubin is a 64-bit little-endian ELF file. Each kernel has a section `.text.<entry>`; its attributes are records in
`.nv.info` (those that name their function by symbol) and `.nv.info.<entry>`. The attribute names in the comments are
the ones nvdisasm prints. Spills are not among the attributes: only the compiler's log tells them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.core.errors import GemmgenError

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_MACHINE_CUDA = 190
_TYPE_SYMTAB = 2
_TYPE_NOBITS = 8
_SYMBOL_FUNCTION = 2
_ENTRY_FLAG = 0x10  # STO_CUDA_ENTRY in a symbol's st_other

# Formats of a record: how its two bytes of length or value are to be read.
_FORMAT_VALUE = 0x03
_FORMAT_SIZED = 0x04

_MAX_THREADS = 0x05  # EIATTR_MAX_THREADS: three limits of the block, from __launch_bounds__
_PARAMETER_BYTES = 0x19  # EIATTR_CBANK_PARAM_SIZE
_FRAME_BYTES = 0x11  # EIATTR_FRAME_SIZE: symbol, bytes
_STACK_BYTES = 0x12  # EIATTR_MIN_STACK_SIZE: symbol, bytes, callees included
_REGISTERS = 0x2F  # EIATTR_REGCOUNT: symbol, registers

# From compute capability 9.0 on, `.nv.shared.<entry>` begins with the bytes that the system reserves in each block.
_RESERVED_SHARED_SECTION = ".nv.shared.reserved."
_RESERVED_SHARED_BYTES = 1024


class CubinError(GemmgenError):
    """The bytes are not a cubin, or a damaged one."""


@dataclass(frozen=True, slots=True)
class EntryAttributes:
    """Resources of one kernel of a cubin, per thread or block; bytes unless a name says otherwise.

    `local_bytes` is the stack a thread needs with all calls, `stack_bytes` the kernel's own frame; `constant_bytes`
    the size of constant bank 0, of which the kernel's parameters are `parameter_bytes`; `max_threads` the block size
    limit compiled in, None without one. `static_shared_bytes` excludes the bytes that the system reserves.
    """

    registers: int
    stack_bytes: int
    local_bytes: int
    static_shared_bytes: int
    constant_bytes: int
    parameter_bytes: int
    max_threads: int | None


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    type: int
    link: int
    size: int
    data: bytes


def read_entries(cubin: bytes) -> dict[str, EntryAttributes]:
    """The kernels in a cubin by entry name, in symbol table order. Raises CubinError if it is damaged."""
    try:
        return _read_entries(cubin)
    except CubinError:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise CubinError(f"damaged cubin: {error}") from error


def text_sections(cubin: bytes) -> dict[str, bytes]:
    """The machine code of each function by name. Raises CubinError if the cubin is damaged."""
    try:
        sections = _sections(cubin)
    except (struct.error, ValueError) as error:
        raise CubinError(f"damaged cubin: {error}") from error
    return {section.name.removeprefix(".text."): section.data for section in sections if section.name[:6] == ".text."}


def _read_entries(cubin: bytes) -> dict[str, EntryAttributes]:
    sections = _sections(cubin)
    by_name = {section.name: section for section in sections}
    reserved = any(section.name.startswith(_RESERVED_SHARED_SECTION) for section in sections)
    functions, entries = _functions(sections)
    registers, frame, stack = (
        _by_function(by_name.get(".nv.info"), attribute, functions) for attribute in (_REGISTERS, _FRAME_BYTES, _STACK_BYTES)
    )
    by_entry = {}
    for name in entries:
        if f".text.{name}" not in by_name or name not in registers:
            raise CubinError(f"damaged cubin: no code or no register count for kernel {name!r}")
        own = dict(_records(by_name.get(f".nv.info.{name}")))
        shared, constant = by_name.get(f".nv.shared.{name}"), by_name.get(f".nv.constant0.{name}")
        shared_bytes = shared.size - (_RESERVED_SHARED_BYTES if reserved else 0) if shared else 0
        if shared_bytes < 0:
            raise CubinError(f"damaged cubin: impossible shared memory size for kernel {name!r}")
        by_entry[name] = EntryAttributes(
            registers=registers[name],
            stack_bytes=frame.get(name, 0),
            local_bytes=stack.get(name, frame.get(name, 0)),
            static_shared_bytes=shared_bytes,
            constant_bytes=constant.size if constant else 0,
            parameter_bytes=int.from_bytes(own.get(_PARAMETER_BYTES, b""), "little"),
            max_threads=_product_of_three(own.get(_MAX_THREADS)),
        )
    return by_entry


def _header(cubin: bytes) -> tuple[int, ...]:
    if len(cubin) < _ELF_HEADER.size or cubin[:4] != b"\x7fELF":
        raise CubinError("not a cubin: no ELF header")
    if cubin[4:6] != b"\x02\x01":
        raise CubinError("not a cubin: not a 64-bit little-endian ELF file")
    header = _ELF_HEADER.unpack_from(cubin)
    if header[2] != _MACHINE_CUDA:
        raise CubinError(f"not a cubin: the ELF file is for machine {header[2]}, not CUDA ({_MACHINE_CUDA})")
    return header


def _sections(cubin: bytes) -> list[_Section]:
    header = _header(cubin)
    table, entry_bytes, count, names_index = header[6], header[11], header[12], header[13]
    if entry_bytes != _SECTION_HEADER.size or names_index >= count:
        raise CubinError("damaged cubin: section table")
    _slice(cubin, header[5], header[9] * header[10])  # the program headers, which stand at the end
    raw = [_SECTION_HEADER.unpack_from(_slice(cubin, table + i * entry_bytes, entry_bytes)) for i in range(count)]
    names = _slice(cubin, raw[names_index][4], raw[names_index][5])
    return [
        _Section(_string(names, name), kind, link, size, b"" if kind in (0, _TYPE_NOBITS) else _slice(cubin, offset, size))
        for name, kind, _, _, offset, size, link, _, _, _ in raw
    ]


def _functions(sections: list[_Section]) -> tuple[dict[int, str], list[str]]:
    """The function symbols by index, and the names of those that are kernels."""
    functions: dict[int, str] = {}
    entries: list[str] = []
    for section in sections:
        if section.type != _TYPE_SYMTAB:
            continue
        if section.link >= len(sections):
            raise CubinError("damaged cubin: symbol table")
        names = sections[section.link].data
        for index, (name, info, other, _, _, _) in enumerate(_SYMBOL.iter_unpack(section.data)):
            if info & 0xF == _SYMBOL_FUNCTION:
                functions[index] = _string(names, name)
                if other & _ENTRY_FLAG:
                    entries.append(functions[index])
    return functions, entries


def _records(section: _Section | None) -> Iterator[tuple[int, bytes]]:
    """The attributes of one `.nv.info` section: attribute number and value."""
    data, at = (section.data, 0) if section else (b"", 0)
    while at < len(data):
        layout, attribute, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if layout == _FORMAT_SIZED:
            yield attribute, _slice(data, at, length)
            at += length
        elif layout <= _FORMAT_VALUE:
            yield attribute, data[at - 2 : at]
        else:
            raise CubinError(f"damaged cubin: unknown attribute format {layout:#x}")


def _by_function(section: _Section | None, wanted: int, functions: dict[int, str]) -> dict[str, int]:
    values: dict[str, int] = {}
    for attribute, value in _records(section):
        if attribute == wanted:
            symbol, number = struct.unpack("<II", value)
            if symbol in functions:
                values[functions[symbol]] = number
    return values


def _product_of_three(value: bytes | None) -> int | None:
    if value is None:
        return None
    x, y, z = struct.unpack("<III", value)
    return int(x * y * z)


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise CubinError(f"damaged cubin: {size} bytes at {offset} reach beyond its end at {len(data)}")
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset >= len(table) or end < 0:
        raise CubinError("damaged cubin: string table")
    return table[offset:end].decode("utf-8", "replace")
