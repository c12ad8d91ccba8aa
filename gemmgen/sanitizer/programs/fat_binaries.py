"""PTX in the fat binaries that nvcc puts into programs.

A fat binary is a header of 16 bytes and entries; an entry is a header (kind, its own size, size of the content, architecture) and the
content. Kind 1 is PTX; compressed text is refused. A program of relocatable device code (`-rdc=true`) registers one binary a source
file; their texts are linked by name.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence

from gemmgen.emulator.errors import BadLaunch

_MAGIC = b"\x50\xed\x55\xba"
_PTX = 1
_BINARY_HEADER_BYTES = 16
_HEADER_BYTES = 64
_COMPRESSED = 0xA000
_MAX_HEAD_LENGTH = 1 << 16
"""Bytes of comments that PTX may begin with."""


_LOCAL = re.compile(r"^\.(?:func|global|const|shared)\b[^;{=]*?(?:\)\s*)?([\w$]+)\s*(?:\[[\d\s]*\]|\(|=|;|$)", re.MULTILINE)
_LABELS = re.compile(r"\$L__info_string")


class _Compressed(Exception):
    """A fat binary whose text cannot be read."""


def ptx_of(fat_binaries: bytes, architecture: int) -> str:
    """The PTX for the newest architecture up to the one that runs. Raises BadLaunch if there is none that can be read.

    Of several fat binaries, behind each other, the texts are linked. PTX itself, which the driver takes too, stays as it is.
    """
    if fat_binaries[:4] != _MAGIC and b".version" in fat_binaries[:_MAX_HEAD_LENGTH]:
        return fat_binaries.split(b"\0")[0].decode(errors="replace")
    texts: list[str] = []
    images, compressed = 0, False
    for binary in _split(fat_binaries):
        try:
            text, count = _newest(binary, architecture)
        except _Compressed:
            compressed = True
            continue
        images += count
        texts += [text] if text is not None else []
    if not texts and compressed:
        raise BadLaunch("the program's PTX is compressed: compile it with --no-compress, or give gemmgen run its sources")
    if not texts:
        raise BadLaunch(
            f"the program holds no PTX for sm_{architecture} ({images} entries): compile it with -gencode "
            f"arch=compute_{architecture},code=compute_{architecture}, or give gemmgen run its sources"
        )
    return linked(texts)


def linked(texts: Sequence[str]) -> str:
    """One module of several whose external names refer to each other. Names that are local to a module stay apart."""
    if len(texts) == 1:
        return texts[0]
    names = Counter(name for text in texts for name in set(_LOCAL.findall(text)))
    parts = []
    for number, text in enumerate(texts):
        for name in sorted({name for name in _LOCAL.findall(text) if names[name] > 1}):
            text = re.sub(rf"(?<![\w$]){re.escape(name)}(?![\w$])", f"{name}$m{number}", text)
        parts.append(_LABELS.sub(f"$L__info_string_m{number}_", text))
    return "\n".join(parts)


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        if data[at : at + 4] != _MAGIC or at + _BINARY_HEADER_BYTES > len(data):
            raise BadLaunch("the program's device code is no fat binary that gemmgen reads")
        (header,) = struct.unpack_from("<H", data, at + 6)
        (size,) = struct.unpack_from("<Q", data, at + 8)
        if header < _BINARY_HEADER_BYTES or at + header > len(data):
            raise BadLaunch("the program's device code is no fat binary that gemmgen reads")
        yield data[at : at + header + size]
        at += header + size


def _newest(fat_binary: bytes, architecture: int) -> tuple[str | None, int]:
    """The PTX of one fat binary, and the number of its entries."""
    best: tuple[int, bytes] | None = None
    (at,) = struct.unpack_from("<H", fat_binary, 6)
    newest = 0
    while at + _HEADER_BYTES <= len(fat_binary):
        kind, _, header = struct.unpack_from("<HHI", fat_binary, at)
        size, packed, _, _, _, target = struct.unpack_from("<QIIHHI", fat_binary, at + 8)
        (flags,) = struct.unpack_from("<Q", fat_binary, at + 40)
        if header < _HEADER_BYTES or at + header + size > len(fat_binary):
            break
        newest += 1
        if kind == _PTX:
            if packed or flags & _COMPRESSED:
                raise _Compressed
            if target <= architecture and (best is None or target > best[0]):
                best = target, fat_binary[at + header : at + header + size]
        at += header + size
    return (best[1].split(b"\0")[0].decode(errors="replace") if best is not None else None), newest
