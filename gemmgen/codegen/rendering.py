"""From a plan to source: Jinja arranges text, nothing is computed here or there."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import yaml

from gemmgen.codegen.device_code import with_device_code
from gemmgen.codegen.summary import summary
from gemmgen.core.elements import ELEMENTS
from gemmgen.core.literals import float_literal
from gemmgen.core.resources import resource_directory
from gemmgen.core.version import __version__
from gemmgen.kernels.family import InstancePlan, KernelPlan, KernelSpec
from gemmgen.kernels.launch import Argument, ArrayArgument, HostArgument, TensorMapArgument

_DUMPER: type[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Source:
    """One self-contained file of CUDA, or of C for a processor."""

    name: str
    text: str
    suffix: str = ".cu"

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        return f"{self.name}{self.suffix}"


def render(plan: InstancePlan) -> Source:
    """The source of the kernels in ``plan``, whose template is looked up below ``templates/``."""
    text = (
        _environment()
        .get_template(plan.template)
        .render(
            plan=plan,
            version=__version__,
            summary=summary(plan),
            spec_lines=spec_lines(plan.spec),
        )
    )
    if isinstance(plan, KernelPlan):
        text = with_device_code(text, plan.architecture)
    return Source(plan.name, _tidy(text), Path(plan.template.removesuffix(".j2")).suffix)


def spec_lines(spec: KernelSpec) -> list[str]:
    """The spec as lines of YAML, without its description; defaults are left out."""
    fields = spec.model_dump(mode="json", exclude={"description"}, exclude_defaults=True)
    fields = {"schema_version": spec.schema_version, "kind": spec.kind, **fields}
    return str(yaml.dump(fields, Dumper=_DUMPER, sort_keys=False, default_flow_style=None, width=110)).splitlines()


def parameter(argument: Argument) -> str:
    """The declaration of a kernel parameter."""
    if isinstance(argument, HostArgument):
        return f"const __grid_constant__ {argument.struct} {argument.name}"
    if isinstance(argument, TensorMapArgument):
        return f"const __grid_constant__ TensorMap {argument.name}"
    kind = ELEMENTS[argument.type].c_type
    if not isinstance(argument, ArrayArgument):
        return f"{kind} {argument.name}"
    const = "const " if not argument.writes else ""
    return f"{const}{kind}* __restrict__ {argument.name}"


def parameters(arguments: Sequence[Argument]) -> str:
    """The declarations of all parameters, in lines of a readable width."""
    lines = [""]
    for argument in arguments:
        declaration = parameter(argument)
        if len(lines[-1]) + len(declaration) > 110:
            lines.append("")
        lines[-1] += f"{declaration}, "
    return "\n".join(line.rstrip() for line in lines).rstrip(", ")


@lru_cache(maxsize=1)
def template_digest() -> str:
    """SHA-256, in hex, over the names and texts of all templates."""
    root = resource_directory("templates")
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".j2", ".cuh", ".c")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    root: Path = resource_directory("templates")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(root),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        cache_size=-1,
    )
    environment.filters["parameter"] = parameter
    environment.filters["parameters"] = parameters
    environment.filters["float_literal"] = float_literal
    return environment


WIDTH = 120
"""Columns after which a line of generated code is folded."""


def _tidy(text: str) -> str:
    """No trailing spaces, no runs of blank lines, none beside a brace, no overlong lines, and one line break at the end."""
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = re.sub(r"\{\n\n", "{\n", text)
    text = re.sub(r"\n\n( *\})", r"\n\1", text)
    lines = [part for line in text.strip("\n").splitlines() for part in _folded(line)]
    return "\n".join(lines) + "\n"


def _folded(line: str) -> list[str]:
    """``line`` as lines of at most ``WIDTH`` columns where it can be broken: comments between words, code between arguments or
    before an operator, never within quotes; a comment behind code goes above it. The specs in headers stay as they are."""
    if len(line) <= WIDTH or line.startswith("//   "):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if line.lstrip().startswith("//"):
        start = f"{indent}// "
        return textwrap.wrap(line.lstrip()[2:].strip(), WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False)
    code, mark, comment = line.partition("  // ")
    if mark:
        return [*_folded(f"{indent}// {comment}"), *_folded(code)]
    # The continuation of an aligned statement keeps its place.
    deeper = indent if len(indent) % 4 else f"{indent}    "
    parts: list[str] = []
    while len(line) > WIDTH and (at := _break(line)):
        parts.append(line[:at].rstrip())
        line = f"{deeper}{line[at:]}"
    return [*parts, line]


_OPERATORS = (("?", ":"), ("||",), ("&&",), ("=",), ("+", "-"), ("*", "/", "%"))
"""Binary operators from the loosest to the tightest."""


def _break(line: str) -> int:
    """Place to break a line of code, 0 for nowhere: outside as many brackets as possible; there, after the last argument that fits,
    else after an assignment whose right side fits on a line of its own, else before the last of the loosest operators."""
    first = len(line) - len(line.lstrip()) + 8
    found: list[tuple[int, int, int]] = []
    for at, depth in _depths(line):
        if not first < at <= WIDTH or line[at - 1] != " ":
            continue
        before, word = line[: at - 1], line[at:].split(" ", 1)[0]
        if before.endswith((",", ";")):
            found.append((depth, 0, -at))
        elif before.endswith(" =") and len(line) - at + first - 4 <= WIDTH:
            found.append((depth, 1, -at))
        else:
            rank = next((rank for rank, words in enumerate(_OPERATORS, 2) if word in words), None)
            if rank is not None and word != "=":
                found.append((depth, rank, -at))
    return -min(found)[2] if found else 0


def _depths(line: str) -> Iterator[tuple[int, int]]:
    """Every position of a line of code outside string literals, with the number of brackets around it.

    ``<`` right behind a name opens template arguments; a comparison has spaces around it.
    """
    depth, templates, quoted, escaped = 0, 0, False, False
    for at, letter in enumerate(line):
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
            continue
        yield at, depth
        if letter == '"':
            quoted = True
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "<" and at and (line[at - 1].isalnum() or line[at - 1] == "_"):
            depth, templates = depth + 1, templates + 1
        elif letter == ">" and templates and line[at - 1] != " ":
            depth, templates = depth - 1, templates - 1
