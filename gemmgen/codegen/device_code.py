"""Device functions that are the same in every kernel: files of CUDA below ``templates/device``; a kernel includes the functions that it
uses.

A kernel's template has a line with ``MARK`` where they go. The files are plain CUDA, each of which compiles alone. A definition is
a block of lines without an empty one: a comment, then a function, a struct or a constant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gemmgen.core.resources import resource_directory
from gemmgen.hardware.target import Architecture

MARK = "//@device"
"""The line of a rendered kernel where the functions go that it uses."""

_AMPERE = (8, 0)
_HEAD = r"struct (?:alignas\(\d+\) )?(\w+)|^constexpr \w+ (k\w+) =|(\w+)\("
"""The beginning of a definition, with its name."""


@dataclass(frozen=True)
class Definition:
    """A function, a struct or a constant of a device file, with the comment above it."""

    name: str
    text: str
    uses: frozenset[str]
    """Identifiers in it."""


def with_device_code(source: str, architecture: Architecture) -> str:
    """The source with the definitions that it uses, in the order of their files, in place of the mark.

    Definitions in ``templates/device/turing`` take the place of those of the same name on architectures before sm_80.
    """
    if MARK not in source:
        return source
    known = definitions(architecture.compute_capability < _AMPERE)
    wanted: set[int] = set()
    pending = _identifiers(source)
    while pending:
        needed = {index for index, definition in enumerate(known) if definition.name in pending} - wanted
        wanted |= needed
        pending = set().union(*(known[index].uses for index in needed))
    return source.replace(MARK, "\n\n".join(known[index].text for index in sorted(wanted)))


@lru_cache(maxsize=2)
def definitions(turing: bool = False) -> tuple[Definition, ...]:
    """All definitions, file by file; with those for Turing in place of others of the same name."""
    root = resource_directory("templates").joinpath("device")
    special = {definition.name: definition for path in sorted((root / "turing").glob("*.cuh")) for definition in parse(path.read_text())}
    known = [definition for path in sorted(root.glob("*.cuh")) for definition in parse(path.read_text())]
    return tuple(special.get(definition.name, definition) if turing else definition for definition in known)


def parse(text: str) -> list[Definition]:
    """The definitions of one file. Raises ``ValueError`` for a block that defines nothing with a name."""
    definitions = []
    for block in re.split(r"\n{2,}", text.strip()):
        code = [line for line in block.splitlines() if not line.startswith("//")]
        if not code:
            continue
        head = re.search(_HEAD, "\n".join(line for line in code if not line.startswith("template")))
        if head is None:
            raise ValueError(f"no name in {code[0]!r}")
        name = head[head.lastindex or 0]
        definitions.append(Definition(name, block, frozenset(_identifiers(block)) - {name}))
    return definitions


def _identifiers(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*", "", text)))
