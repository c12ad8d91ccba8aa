"""PTX in the fat binaries that nvcc puts into programs.

A fat binary is a header of 16 bytes and entries; an entry is a header (kind, its own size, size of the content, architecture) and the
content. Kind 1 is PTX; compressed text is refused.
"""

from __future__ import annotations

import struct

from gemmgen.emulator.errors import BadLaunch

_MAGIC = b"\x50\xed\x55\xba"
_PTX = 1
_HEADER_BYTES = 64
_COMPRESSED = 0xA000


def ptx_of(fat_binary: bytes, architecture: int) -> str:
    """The PTX for the newest architecture up to the one that runs. Raises BadLaunch if there is none that can be read."""
    if fat_binary[:4] != _MAGIC:
        raise BadLaunch("the program's device code is no fat binary that gemmgen reads (relocatable device code?)")
    best: tuple[int, bytes] | None = None
    (at,) = struct.unpack_from("<H", fat_binary, 6)
    found = 0
    while at + _HEADER_BYTES <= len(fat_binary):
        kind, _, header = struct.unpack_from("<HHI", fat_binary, at)
        size, packed, _, _, _, target = struct.unpack_from("<QIIHHI", fat_binary, at + 8)
        (flags,) = struct.unpack_from("<Q", fat_binary, at + 40)
        if header < _HEADER_BYTES or at + header + size > len(fat_binary):
            break
        found += 1
        if kind == _PTX:
            if packed or flags & _COMPRESSED:
                raise BadLaunch("the program's PTX is compressed: compile it with --no-compress, or give gemmgen run its sources")
            if target <= architecture and (best is None or target > best[0]):
                best = target, fat_binary[at + header : at + header + size]
        at += header + size
    if best is None:
        raise BadLaunch(
            f"the program holds no PTX for sm_{architecture} ({found} entries): compile it with -gencode "
            f"arch=compute_{architecture},code=compute_{architecture}, or give gemmgen run its sources"
        )
    return best[1].split(b"\0")[0].decode(errors="replace")
