"""The sections of a cubin, which is an ELF file of 64 bits in little endian (System V ABI, Object Files)."""

from __future__ import annotations

import struct

_NO_BITS = 8
"""SHT_NOBITS: a section that takes no room in the file."""


def sections(elf: bytes) -> dict[str, bytes]:
    """The content of every section by its name."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + index * size) for index in range(count)]
    strings = headers[names][4]
    found = {}
    for name, kind, _, _, offset, length in headers:
        text = elf[strings + name : elf.index(b"\0", strings + name)].decode()
        found[text] = b"" if kind == _NO_BITS else elf[offset : offset + length]
    return found
