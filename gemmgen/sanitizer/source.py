"""A user's own kernel: CUDA or PTX, the entry that a name means in it, and what its parameters are called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from gemmgen.core.errors import CompileError, GemmgenError
from gemmgen.core.files import MAXIMUM_BYTES, read_plain, read_plain_text
from gemmgen.emulator.demangling import demangled, plain_name, qualified_name
from gemmgen.sanitizer.headers import PRE_INCLUDED, WITH_CUDA_STD, found_in, header_folders, host_algorithms, host_libraries, stand_ins
from gemmgen.sanitizer.host_code import device_part, has_host_code, without_refused_items

if TYPE_CHECKING:
    from gemmgen.emulator.ptx.syntax import Variable
    from gemmgen.toolchain.nvrtc import DeviceCode, KernelResources

DEFAULT_ARCHITECTURE = "sm_80"
"""Architecture that CUDA is compiled for: the oldest with asynchronous copies, whose instructions the emulator knows best."""


class UnusableInput(GemmgenError):
    """A file, a name or an argument with which nothing can be launched."""


@dataclass(frozen=True)
class CompileOptions:
    """Compilation of CUDA to PTX. `options` are NVRTC's own; `debug` compiles without optimisation, as nvcc -G does; `assemble` goes on
    to machine code, for the architecture."""

    architecture: str | None = None
    include_directories: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    debug: bool = False
    assemble: bool = False


@dataclass(frozen=True)
class KernelCode:
    """PTX, and the CUDA text that it was compiled from if there was one."""

    name: str
    """The file as messages call it."""
    ptx: str = field(repr=False)
    source: str | None = field(repr=False)
    architecture: str
    options: CompileOptions = CompileOptions()
    folder: Path = Path()
    symbols: tuple[tuple[str, str], ...] = ()
    """C++ names that were asked for, and what they are in PTX."""
    cubin: bytes = field(repr=False, default=b"")
    """Machine code, if it was asked for; PTX that was given is not assembled."""
    resources: Mapping[str, KernelResources] = field(default_factory=dict)
    """Resources of the machine code's kernels, by their names in PTX."""

    def text_of(self, file: str) -> str | None:
        """The text of a CUDA file that the PTX refers to; None if it cannot be read."""
        if file == self.name:
            return self.source
        if file.startswith("<"):
            file = next((str(found) for folder in header_folders() if (found := Path(folder) / file[1:-1]).is_file()), file)
        try:
            return read_plain(file, MAXIMUM_BYTES).decode("utf-8", "replace")
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


def read_kernel_file(path: Path, options: CompileOptions = CompileOptions(), *entries: str | None) -> KernelCode:
    """Reads PTX, or compiles CUDA; `entries` with template arguments are instantiated.

    Raises ``GemmgenError``; ``CompileError`` with the compiler's errors.
    """
    try:
        text = read_plain_text(path)
    except OSError as error:
        raise UnusableInput(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnusableInput(f"{path} is not text; expected CUDA (.cu) or PTX (.ptx)") from None
    return load_kernel(text, str(path), path.resolve().parent, options, *entries, is_ptx=path.suffix == ".ptx")


def load_kernel(
    text: str, name: str, folder: Path, options: CompileOptions = CompileOptions(), *entries: str | None, is_ptx: bool | None = None
) -> KernelCode:
    """The same from a text; `is_ptx` None looks for PTX's first directive."""
    text = text.removeprefix("\ufeff")
    if is_ptx is None:
        is_ptx = re.search(r"^\s*\.version\s", text, re.MULTILINE) is not None
    if is_ptx:
        if options.include_directories or options.definitions or options.options or options.debug:
            raise UnusableInput(f"includes, definitions and options are for CUDA; {name} is PTX")
        target = re.search(r"^\s*\.target\s+(sm_\w+)", text, re.MULTILINE)
        return KernelCode(name, text, None, options.architecture or (target[1] if target else DEFAULT_ARCHITECTURE))
    wanted = tuple(dict.fromkeys(entry for entry in entries if entry is not None and "<" in entry))
    code = _compile(text, name, folder, options, wanted)
    architecture, symbols = options.architecture or DEFAULT_ARCHITECTURE, tuple(code.symbols.items())
    return KernelCode(name, code.ptx, text, architecture, options, folder, symbols, code.cubin, code.resources)


def _compile(text: str, name: str, folder: Path, options: CompileOptions, expressions: Sequence[str]) -> DeviceCode:
    from gemmgen.toolchain.nvrtc import compile_file

    folders = [*options.include_directories, str(folder), *header_folders()]
    arguments = [f"--include-path={directory}" for directory in folders]
    arguments += [f"--define-macro={definition}" for definition in options.definitions]
    arguments += ["--device-debug"] if options.debug else ["--generate-line-info"]
    # Methods without an execution space would be host functions, which NVRTC refuses.
    arguments.append("--device-as-default-execution-space")
    arguments += options.options
    own_folders = [*options.include_directories, str(folder)]
    with_random_numbers = [directory for directory in folders if found_in("curand_kernel.h", [directory])]
    for_device = device_part(text) if has_host_code(text) else text
    known = host_algorithms(for_device) | stand_ins() | host_libraries(for_device)
    headers = {header: content for header, content in known.items() if not found_in(header, [*own_folders, *with_random_numbers])}
    # The compiler gets the whole path: headers beside the file are found, and every message names the file that it is about.
    path = str(folder / Path(name).name)

    def compiled(text: str, *more: str) -> DeviceCode:
        return compile_file(
            text,
            path=path,
            architecture=options.architecture or DEFAULT_ARCHITECTURE,
            options=[*arguments, *more],
            headers=headers,
            expressions=expressions,
            shown_as=name,
            assemble=options.assemble,
        )

    first: CompileError | None = None
    while True:
        refused = []
        try:
            code = compiled(for_device)
            break
        except CompileError as error:
            first = first or error
            if "device-side kernel launch" in str(error):
                # The kernels that launch none can run, so the file is compiled.
                code = compiled(for_device, "--pre-include=cuda_device_runtime_api.h", "--relocatable-device-code=true")
                break
            if 'cannot open source file "curand_kernel.h"' in str(error):
                raise CompileError(f"{error}\nNVIDIA's package nvidia-curand has this header", error.log) from None
            refused.append(error)
        if "#error directive" in str(refused[0]) and "--define-macro=__NVCC__" not in arguments:
            # The file may want to be compiled by nvcc; CUDA's own headers take that name for another compiler, so it is a second try.
            arguments.append("--define-macro=__NVCC__")
            continue
        # nvcc includes headers of the host that NVRTC does not. What a file defines by itself must not meet them, so they come second.
        if re.search(r"is undefined|has no member", str(refused[0])):
            library = [f"--define-macro={WITH_CUDA_STD}"] if 'namespace "std" has no member' in str(refused[0]) else []
            try:
                code = compiled(for_device, f"--pre-include={PRE_INCLUDED}", *library)
                break
            except CompileError as error:
                refused.insert(0, error)
        # Types and variables of the host are taken out once the compiler has refused them; kernels that need them end in the first error.
        texts = (without_refused_items(for_device, _lines_with_errors(error, name)) for error in refused)
        smaller = next((text for text in texts if text is not None), None)
        if smaller is None:
            told = _advice(first, text)
            raise CompileError(f"{first}\n{told}", first.log) if told else first
        for_device = smaller
    return replace(code, ptx=_with_names_of_files(code.ptx, path, name))


def _advice(error: CompileError, text: str) -> str:
    """A way out, where a name is unknown because of how the file was compiled; empty if none is known."""
    unknown = dict.fromkeys(re.findall(r'identifier "(\w+)" is undefined', str(error)))
    if {"concept", "requires"} & unknown.keys():
        return "C++20 needs --option=--std=c++20"
    of_host = [name for name in unknown if re.search(rf"^[^\n#;]*[\w*&>]\s+[*&]*{name}\s*\([^;{{}}]*\)\s*{{", text, re.MULTILINE)]
    return "\n".join(f"{name} is a function of the host: kernels call what is marked __device__" for name in of_host)


def _lines_with_errors(error: CompileError, name: str) -> set[int]:
    """Lines of a file that the compiler found errors in; 0, which is none of them, stands for errors elsewhere."""
    found = re.findall(r"^(.*)\((\d+)\): (?:catastrophic )?error", error.log, re.MULTILINE)
    return {int(line) if file == name else 0 for file, line in found} or {0}


def _with_names_of_files(ptx: str, path: str, name: str) -> str:
    """The PTX with the file at `path` called `name`, CUDA's headers as includes name them, and files below the current folder by their
    relative names."""
    ptx = ptx.replace(f'"{path}"', f'"{name}"')
    for directory in sorted(header_folders(), key=len, reverse=True):
        ptx = re.sub(rf'^(\s*\.file\s+\d+\s+"){re.escape(directory)}/([^"\n]*)', r"\1<\2>", ptx, flags=re.MULTILINE)
    here = f"{Path.cwd()}/"
    return re.sub(rf'^(\s*\.file\s+\d+\s+"){re.escape(here)}', r"\1", ptx, flags=re.MULTILINE)


_TEMPLATE = re.compile(r"\btemplate\s*<[^;{}]*?\b__global__\b[^;{}()]*?(?:__launch_bounds__\s*\([^)]*\)\s*\w*\s*)?\b(\w+)\s*\(")
"""A template of a kernel, and its name."""


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
        templates = _TEMPLATE.findall(code.source or "")
        named = f" but the template {templates[0]}" if templates else ""
        counts = "it counts" if templates else "a template counts"
        called = templates[0] if templates else "kernel"
        launched = re.search(rf"\b{called}\s*<[^;{{}}]*?>(?=\s*<<<)", code.source or "")
        example = f"--entry '{launched[0] if launched else f'{called}<float>'}'"
        raise UnusableInput(f"{code.name} has no kernel{named}; {counts} with its arguments, such as {example}")
    if name is None:
        if len(functions) > 1:
            raise UnusableInput(f"{code.name} has {len(functions)} kernels; choose one with --entry:\n{there}")
        (symbol,) = functions
    else:
        symbol = _matching(name, code, names, there)
    parameters = functions[symbol].parameters
    declared = _declared_parameters(code.source or "", plain_name(symbol), names[symbol])
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
    found = [s for s in names if spelled in ("".join(names[s].split()), "".join(demangled(s).split()), plain_name(s))]
    found = found or [s for s in names if "".join(names[s].split()).split("::")[-1] == spelled]
    if len(found) > 1:
        listed = "\n".join(f"  {symbol} ({names[symbol]})" for symbol in found)
        raise UnusableInput(f"--entry {name}: {len(found)} kernels of {code.name} have this name:\n{listed}")
    if not found:
        close = get_close_matches(name, [*names, *names.values()], n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UnusableInput(f"--entry {name}: {code.name} has no such kernel; {hint}it has:\n{there}")
    return found[0]


def _declared_parameters(source: str, function: str, instance: str = "") -> list[tuple[str, str]]:
    """Types and names of a kernel's parameters in the source; a guess that holds where there is one plain definition. The template's
    parameters are those of `instance`, `scale<float, 4>`."""
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
        named = [(text, re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", text, re.DOTALL)) for text in [*pieces, piece]]
        values = _template_values(re.split(r"[;}]", before)[-1], instance)
        return [(_type_of(_with_values(text[: found.start()], values)), found[1]) for text, found in named if found is not None]
    return []


def _template_values(head: str, instance: str) -> dict[str, str]:
    """Values of a template's parameters in one of its instances, as far as both list them plainly."""
    declared, given = re.search(r"\btemplate\s*<([^<>]*)>", head), re.search(r"<([^<>()]*)>$", instance)
    if declared is None or given is None:
        return {}
    parameters = [re.search(r"(\w+)\s*(?:=.*)?$", piece.strip()) for piece in declared[1].split(",")]
    return {found[1]: value.strip() for found, value in zip(parameters, given[1].split(","), strict=False) if found is not None}


def _with_values(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\b\w+\b", lambda word: values.get(word[0], word[0]), text)


def _type_of(text: str) -> str:
    words = re.sub(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__|struct)\b", " ", text)
    return " ".join(words.split()).replace(" *", "*")
