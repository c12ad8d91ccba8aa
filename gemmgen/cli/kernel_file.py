"""A user's own kernel: a CUDA or PTX file, the entry that a name means in it, and what its parameters are called."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import MAXIMUM_BYTES, read_plain

if TYPE_CHECKING:
    from gemmgen.emulator.ptx.syntax import Variable

DEFAULT_ARCHITECTURE = "sm_80"
"""What CUDA is compiled for: the oldest with asynchronous copies, whose instructions the emulator knows best."""


@dataclass(frozen=True)
class KernelFile:
    """PTX, and the CUDA text that it was compiled from if there was one."""

    path: Path
    ptx: str
    source: str | None
    architecture: str


@dataclass(frozen=True)
class Entry:
    """One kernel of a file: its name in PTX, its name for people, and its parameters."""

    symbol: str
    name: str
    parameters: tuple[Variable, ...]
    parameter_names: tuple[str, ...]


def read_kernel_file(path: Path, architecture: str | None, include_directories: Sequence[str], definitions: Sequence[str]) -> KernelFile:
    """Reads PTX, or compiles CUDA with the file's folder and the toolkit's headers in the search path.

    Raises ``GemmgenError``; ``CompileError`` with the compiler's errors.
    """
    try:
        text = read_plain(path, MAXIMUM_BYTES).decode()
    except OSError as error:
        raise GemmgenError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GemmgenError(f"{path} is not text; expected CUDA (.cu) or PTX (.ptx)") from None
    if len(text) > MAXIMUM_BYTES:
        raise GemmgenError(f"{path}: larger than {MAXIMUM_BYTES} bytes, which no kernel is")
    if path.suffix == ".ptx":
        if include_directories or definitions:
            raise click.UsageError(f"--include and --define are for CUDA; {path} is PTX")
        target = re.search(r"^\s*\.target\s+(sm_\w+)", text, re.MULTILINE)
        return KernelFile(path, text, None, architecture or (target[1] if target else DEFAULT_ARCHITECTURE))
    from gemmgen.toolchain.nvrtc import compile_source

    chosen = architecture or DEFAULT_ARCHITECTURE
    directories = [*include_directories, str(path.resolve().parent), *_toolkit_headers()]
    options = [f"--include-path={directory}" for directory in directories]
    options += [f"--define-macro={definition}" for definition in definitions]
    # Without a cache: its key knows the source, not the headers that it includes.
    binary = compile_source(text, architecture=chosen, options=options, name=path.name)
    return KernelFile(path, binary.ptx, text, chosen)


def find_entry(file: KernelFile, name: str | None) -> Entry:
    """The kernel called ``name``, as in the source or as in PTX; the only one if None. Raises ``UsageError``."""
    from gemmgen.emulator.ptx import parse

    functions = {symbol: function for symbol, function in parse(file.ptx).functions.items() if function.is_entry}
    names = {symbol: qualified_name(symbol) for symbol in functions}
    there = "\n".join(f"  {symbol}" + (f" ({names[symbol]})" if names[symbol] != symbol else "") for symbol in functions)
    if not functions:
        raise click.UsageError(f"{file.path} has no kernel; templates count only where they are instantiated")
    if name is None:
        if len(functions) > 1:
            raise click.UsageError(f"{file.path} has {len(functions)} kernels; choose one with --entry:\n{there}")
        (symbol,) = functions
    else:
        found = [name] if name in functions else [s for s in functions if name in (names[s], names[s].split("::")[-1])]
        if len(found) > 1:
            listed = "\n".join(f"  {symbol}" for symbol in found)
            raise click.UsageError(f"--entry {name}: {len(found)} kernels of {file.path} have this name:\n{listed}")
        if not found:
            close = get_close_matches(name, [*functions, *names.values()], n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise click.UsageError(f"--entry {name}: {file.path} has no such kernel; {hint}it has:\n{there}")
        (symbol,) = found
    parameters = functions[symbol].parameters
    readable = names[symbol]
    own_names = _parameter_names(file.source or "", readable.split("::")[-1])
    if len(own_names) != len(parameters):
        own_names = [parameter.name for parameter in parameters]
    return Entry(symbol, readable, parameters, tuple(own_names))


def qualified_name(symbol: str) -> str:
    """``space::name`` of a mangled C++ function (Itanium C++ ABI, section 5.1), without its types; else the symbol itself."""
    if not symbol.startswith("_Z"):
        return symbol
    rest = symbol[2:]
    nested = rest.startswith("N")
    rest = rest[1:] if nested else rest
    parts = []
    while match := re.match(r"L?(\d+)", rest):
        begin = match.end()
        end = begin + int(match[1])
        parts.append("(anonymous)" if rest[begin:end].startswith("_GLOBAL__N_") else rest[begin:end])
        rest = rest[end:]
        if not nested:
            break
    return "::".join(parts) or symbol


def _parameter_names(source: str, function: str) -> list[str]:
    """What the source calls the parameters of a kernel; a guess that holds where there is one plain definition."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    for match in re.finditer(rf"\b{re.escape(function)}\s*\(", plain):
        before = plain[max(0, match.start() - 400) : match.start()]
        if "__global__" not in re.split(r"[;}]", before)[-1]:
            continue
        depth, pieces, piece = 1, [], ""
        for character in plain[match.end() :]:
            depth += (character in "(<[{") - (character in ")>]}")
            if depth == 0:
                break
            if character == "," and depth == 1:
                pieces.append(piece)
                piece = ""
            else:
                piece += character
        named = [re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", text) for text in [*pieces, piece]]
        return [found[1] for found in named if found is not None]
    return []


def _toolkit_headers() -> list[str]:
    """Folders that hold the CUDA headers: of a toolkit, or of NVIDIA's Python packages."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [Path(root) / "include" for root in roots if root]
    package = find_spec("nvidia")
    for location in (package.submodule_search_locations or []) if package is not None else []:
        candidates += sorted(Path(location).glob("*/include"))
    folders = [folder for folder in candidates if (folder / "cuda_fp16.h").is_file()]
    with_cccl = [folder / "cccl" for folder in folders if (folder / "cccl").is_dir()]
    return [str(folder) for folder in [*folders[:1], *with_cccl[:1]]]
