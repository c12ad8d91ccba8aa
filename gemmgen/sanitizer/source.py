"""A user's own kernel: CUDA or PTX, the entry that a name selects, and the names of its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import MAX_BYTES, read_plain, read_plain_text
from gemmgen.emulator.demangling import demangled, plain_name, qualified_name
from gemmgen.sanitizer.comments import without_comments
from gemmgen.sanitizer.front_end import DEFAULT_ARCHITECTURE, DEFAULT_OPTIONS, CompileOptions, Request, compile_request, project_files
from gemmgen.sanitizer.headers import header_folders

if TYPE_CHECKING:
    from gemmgen.emulator.ptx.syntax import Variable
    from gemmgen.toolchain.nvrtc import KernelResources


class UnusableInput(GemmgenError):
    """A file, a name or an argument with which nothing can be launched."""


@dataclass(frozen=True)
class KernelCode:
    """PTX, and the CUDA text that it was compiled from if there was one."""

    name: str
    """The file as messages call it."""
    ptx: str = field(repr=False)
    source: str | None = field(repr=False)
    architecture: str
    options: CompileOptions = DEFAULT_OPTIONS
    folder: Path = Path()
    symbols: tuple[tuple[str, str], ...] = ()
    """Requested C++ names, and their names in PTX."""
    cubin: bytes = field(repr=False, default=b"")
    """Machine code, if it was asked for; PTX that was given is not assembled."""
    resources: Mapping[str, KernelResources] = field(default_factory=dict)
    """Resources of the machine code's kernels, by their names in PTX."""

    def project_texts(self) -> list[str]:
        """Texts of the file and of the headers of its project; none of PTX."""
        if self.source is None:
            return []
        return list(project_files(Request(self.source, self.name, self.folder, self.options)).values())

    def text_of(self, file: str) -> str | None:
        """The text of a CUDA file that the PTX refers to; None if it cannot be read."""
        if file == self.name:
            return self.source
        if file.startswith("<"):
            file = next((str(path) for folder in header_folders() if (path := Path(folder) / file[1:-1]).is_file()), file)
        try:
            return read_plain(file, MAX_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class Entry:
    """One kernel: its name in PTX, its name for people, and its parameters with their names and C++ types, if known."""

    symbol: str
    name: str
    parameters: tuple[Variable, ...]
    parameter_names: tuple[str, ...]
    parameter_types: tuple[str, ...]


MAX_CUDA = 16 << 20
"""The most characters of a CUDA file: with more, separation and compilation take minutes."""


def read_kernel_file(path: Path, options: CompileOptions = DEFAULT_OPTIONS, *entries: str | None) -> KernelCode:
    """Reads PTX, or compiles CUDA; `entries` with template arguments are instantiated.

    Raises ``GemmgenError``; ``CompileError`` with the compiler's errors.
    """
    try:
        text = read_plain_text(path)
    except OSError as error:
        raise UnusableInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnusableInput(f"{path} is not text; expected CUDA (.cu) or PTX (.ptx)") from None
    if path.suffix != ".ptx" and len(text) > MAX_CUDA:
        raise UnusableInput(f"{path} has {len(text):,} characters, the most of a CUDA file are {MAX_CUDA:,}")
    return load_kernel(text, str(path), path.resolve().parent, options, *entries, is_ptx=path.suffix == ".ptx")


def load_kernel(
    text: str, name: str, folder: Path, options: CompileOptions = DEFAULT_OPTIONS, *entries: str | None, is_ptx: bool | None = None
) -> KernelCode:
    """The source from a text; `is_ptx` None looks for PTX's first directive."""
    text = text.removeprefix("\ufeff")
    if is_ptx is None:
        is_ptx = re.search(r"^[^\S\n]*\.version\s", text, re.MULTILINE) is not None
    if is_ptx:
        if options.include_directories or options.definitions or options.options or options.debug:
            raise UnusableInput(f"includes, definitions and options are for CUDA; {name} is PTX")
        target = re.search(r"^[^\S\n]*\.target\s+(sm_\w+)", text, re.MULTILINE)
        return KernelCode(name, text, None, options.architecture or (target[1] if target else DEFAULT_ARCHITECTURE))
    wanted = tuple(dict.fromkeys(entry for entry in entries if entry is not None and "<" in entry))
    request = Request(text, name, folder, options, wanted)
    code = compile_request(request)
    symbols = tuple(code.symbols.items())
    return KernelCode(name, code.ptx, text, request.architecture, options, folder, symbols, code.cubin, code.resources)


_MAX_PIECE_LENGTH = 2000
"""Characters of a declaration, or of a part of one, that are looked at."""
_MAX_PIECES = 100


def _kernel_templates(source: str) -> list[str]:
    """Names of the templates of kernels in a source."""
    templates = []
    for statement in re.split(r"[;{}]", without_comments(source)):
        head, marked, tail = statement[: 2 * _MAX_PIECE_LENGTH].partition("__global__")
        if marked and re.search(r"\btemplate\s{0,9}<", head):
            tail = re.sub(r"__launch_bounds__\s{0,9}\([^)]*\)", "", tail[:_MAX_PIECE_LENGTH])
            if name := re.search(r"\b(\w+)\s{0,9}\(", tail):
                templates.append(name[1])
    return templates


def find_entry(code: KernelCode, name: str | None) -> Entry:
    """The kernel called ``name``, as in the source or as in PTX; the only one if None. Raises ``UnusableInput``."""
    from gemmgen.emulator import ParseError
    from gemmgen.emulator.ptx import parse

    try:
        functions = {symbol: function for symbol, function in parse(code.ptx).functions.items() if function.is_entry}
    except ParseError as error:
        raise UnusableInput(f"{code.name}: {error}") from None
    names = {symbol: qualified_name(symbol) for symbol in functions}
    there = "\n".join(f"  {symbol}" + (f" ({names[symbol]})" if names[symbol] != symbol else "") for symbol in functions)
    if not functions:
        templates = _kernel_templates(code.source or "")
        named = f" except the template {templates[0]}" if templates else ""
        called = templates[0] if templates else "kernel"
        launched = re.search(rf"\b{called}\s{{0,9}}<[^;{{}}]{{0,200}}?>(?=\s{{0,9}}<<<)", code.source or "")
        example = f"--entry '{launched[0] if launched else f'{called}<float>'}'"
        raise UnusableInput(f"{code.name} has no kernel{named}; name an instance of a template, for example {example}")
    if name is None:
        if len(functions) > 1:
            raise UnusableInput(f"{code.name} has {len(functions)} kernels; choose one with --entry:\n{there}")
        (symbol,) = functions
    else:
        symbol = _matching(name, code, names, there)
    parameters = functions[symbol].parameters
    texts = (text for text in (code.source, *code.project_texts()) if text)
    declared = next(filter(None, (_declared_parameters(text, plain_name(symbol), names[symbol]) for text in texts)), [])
    if len(declared) != len(parameters):
        declared = [("", parameter.name) for parameter in parameters]
    types, own_names = zip(*declared, strict=True) if declared else ((), ())
    return Entry(symbol, names[symbol], parameters, tuple(own_names), tuple(types))


def _matching(name: str, code: KernelCode, names: dict[str, str], there: str) -> str:
    if name in names:
        return name
    for expression, symbol in code.symbols:
        if expression == name and symbol in names:
            return symbol
    spelled = "".join(name.split())
    matches = [s for s in names if spelled in ("".join(names[s].split()), "".join(demangled(s).split()), plain_name(s))]
    matches = matches or [s for s in names if "".join(names[s].split()).split("::")[-1] == spelled]
    if len(matches) > 1:
        listed = "\n".join(f"  {symbol} ({names[symbol]})" for symbol in matches)
        raise UnusableInput(f"--entry {name}: {len(matches)} kernels of {code.name} have this name:\n{listed}")
    if not matches:
        close = get_close_matches(name, [*names, *names.values()], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UnusableInput(f"--entry {name}: {code.name} has no such kernel; {hint}it has:\n{there}")
    return matches[0]


def _declared_parameters(source: str, function: str, instance: str = "") -> list[tuple[str, str]]:
    """Types and names of a kernel's parameters in the source; a guess that holds where there is one plain definition. The template's
    parameters are those of `instance`, `scale<float, 4>`."""
    plain = without_comments(source)
    for match in re.finditer(rf"\b{re.escape(function)}\s{{0,99}}\(", plain):
        before = plain[max(0, match.start() - 400) : match.start()]
        if "__global__" not in re.split(r"[;}]", before)[-1]:
            continue
        depth, pieces, piece = 1, [], ""
        for character in plain[match.end() : match.end() + _MAX_PIECE_LENGTH * _MAX_PIECES]:
            depth += (character in "(<[{") - (character in ")>]}")
            if depth == 0:
                break
            if character == "," and depth == 1:
                pieces.append(piece)
                piece = ""
            else:
                piece += character
        short = [text for text in [*pieces, piece] if len(text) <= _MAX_PIECE_LENGTH]
        named = [(text, re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", text, re.DOTALL)) for text in short]
        values = _template_values(re.split(r"[;}]", before)[-1], instance)
        return [
            (_type_of(_with_values(text[: declaration.start()], values)), declaration[1])
            for text, declaration in named
            if declaration is not None
        ]
    return []


def _template_values(head: str, instance: str) -> dict[str, str]:
    """Values of a template's parameters in one of its instances, as far as both list them plainly."""
    declared, given = re.search(r"\btemplate\s*<([^<>]*)>", head), re.search(r"<([^<>()]*)>$", instance)
    if declared is None or given is None:
        return {}
    parameters = [re.search(r"(\w+)\s*(?:=.*)?$", piece.strip()) for piece in declared[1].split(",")]
    return {match[1]: value.strip() for match, value in zip(parameters, given[1].split(","), strict=False) if match is not None}


def _with_values(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\b\w+\b", lambda word: values.get(word[0], word[0]), text)


def _type_of(text: str) -> str:
    words = re.sub(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__|struct)\b", " ", text)
    return " ".join(words.split()).replace(" *", "*")
