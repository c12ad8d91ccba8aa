"""Compilation of users' CUDA files to PTX: files that were written for nvcc, with their host code, on NVRTC or on nvcc itself.

NVRTC gets the project's files from a mirror folder in which host code is blanked; CUDA's headers stay where they are, and headers of the
host are replaced by stand-ins. Compilation runs in a child process, so that a crash of the compiler is an error like others, and the
PTX is cached.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.errors import CompileError, EnvironmentMissing
from gemmgen.core.files import MAX_BYTES, read_plain
from gemmgen.core.version import __version__
from gemmgen.emulator.demangling import demangled, plain_name
from gemmgen.sanitizer.headers import PRE_INCLUDED, WITH_CUDA_STD, found_in, header_folders, host_algorithms, host_libraries, stand_ins
from gemmgen.sanitizer.host_code import device_macros, device_parts, has_host_code, lines_by_file, without_refused_items
from gemmgen.toolchain.containment import contained
from gemmgen.toolchain.nvcc import Nvcc, find_nvcc
from gemmgen.toolchain.nvrtc import DeviceCode, KernelResources, compile_file, nvrtc_release

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_MAX_FILES = 4000
"""Files of a project that includes are followed into."""
_MAX_REMOVALS = 12
"""Rounds in which items that the compiler refused are removed."""


DEFAULT_ARCHITECTURE = "sm_80"
"""Architecture that CUDA is compiled for: the oldest with asynchronous copies, whose instructions the emulator knows best."""
COMPILERS = ("auto", "nvrtc", "nvcc")


@dataclass(frozen=True)
class CompileOptions:
    """Compilation of CUDA to PTX. `options` are the compiler's own; `debug` compiles without optimisation, as nvcc -G does; `assemble`
    continues to machine code for the architecture. `compiler` is one of COMPILERS: auto is NVRTC, then nvcc for files that NVRTC
    rejects."""

    architecture: str | None = None
    include_directories: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    debug: bool = False
    assemble: bool = False
    compiler: str = "auto"


DEFAULT_OPTIONS = CompileOptions()


@dataclass(frozen=True)
class Request:
    """A file to compile. `name` is its name in messages; `expressions` are templates of kernels with their arguments."""

    text: str
    name: str
    folder: Path
    compiling: CompileOptions = DEFAULT_OPTIONS
    expressions: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """Architecture to compile for."""
        return self.compiling.architecture or DEFAULT_ARCHITECTURE

    @property
    def path(self) -> str:
        """Place of the file, with which headers beside it are found."""
        return str(self.folder / Path(self.name).name)


def compile_request(request: Request) -> DeviceCode:
    """PTX of a file, from the cache if it is there. Raises CompileError with the errors of the attempt that is closest to nvcc's."""
    files = project_files(request)
    cache = Cache(quiet=True)
    # Code that NVRTC alone made is looked for first: asking nvcc for its release takes two processes.
    if request.compiling.compiler != "nvcc" and (code := _stored(cache, _key(request, files, None))) is not None:
        return code
    nvcc = find_nvcc() if request.compiling.compiler != "nvrtc" else None
    if nvcc is not None and (code := _stored(cache, _key(request, files, nvcc))) is not None:
        return code
    compiled, by_nvcc = contained(partial(_compile, request, files), f"the compiler, on {request.name}")
    cache.store(_key(request, files, nvcc if by_nvcc else None), _to_files(compiled))
    return compiled


def _stored(cache: Cache, key: str) -> DeviceCode | None:
    """Code of an earlier compilation."""
    stored = cache.load(key)
    return None if stored is None else _from_files(stored)


def project_files(request: Request) -> dict[str, str]:
    """Texts of the file and of all headers that it includes from its own and the given folders, by absolute path."""
    main = os.path.normpath(request.path)
    folders = [os.path.abspath(folder) for folder in request.compiling.include_directories]
    files = {main: request.text}
    waiting = [main]
    while waiting and len(files) < _MAX_FILES:
        path = waiting.pop()
        for name in _INCLUDE.findall(files[path]):
            for folder in (os.path.dirname(path), os.path.dirname(main), *folders):
                candidate = os.path.normpath(os.path.join(folder, name))
                if candidate in files:
                    break
                if os.path.isfile(candidate):
                    try:
                        files[candidate] = read_plain(candidate, MAX_BYTES).decode("utf-8", "replace")
                    except (OSError, ValueError):
                        continue
                    waiting.append(candidate)
                    break
    return files


def _key(request: Request, files: Mapping[str, str], nvcc: Nvcc | None) -> str:
    parts = [__version__, repr(replace(request, text="")), nvrtc_release(), "" if nvcc is None else f"{nvcc.path} {nvcc.release}"]
    for folder in header_folders():
        version = Path(folder) / "cuda.h"
        parts += [folder, version.read_text(errors="replace") if version.is_file() else ""]
    return cache_key("front end", *parts, *(part for item in sorted(files.items()) for part in item), str(Path.cwd()))


def _to_files(code: DeviceCode) -> dict[str, bytes]:
    facts = {"symbols": code.symbols, "resources": {name: asdict(each) for name, each in code.resources.items()}}
    return {"code.ptx": code.ptx.encode(), "code.cubin": code.cubin, "facts.json": json.dumps(facts).encode()}


def _from_files(stored: Mapping[str, bytes]) -> DeviceCode | None:
    try:
        facts = json.loads(stored["facts.json"])
        resources = {name: KernelResources(**each) for name, each in facts["resources"].items()}
        return DeviceCode(stored["code.ptx"].decode(), facts["symbols"], stored["code.cubin"], resources)
    except (KeyError, ValueError, TypeError):
        return None


def _compile(request: Request, files: Mapping[str, str]) -> tuple[DeviceCode, bool]:
    """Code of a file, and whether it is nvcc's."""
    nvcc = find_nvcc() if request.compiling.compiler != "nvrtc" else None
    if request.compiling.compiler == "nvcc":
        if nvcc is None:
            raise EnvironmentMissing("nvcc was not found; install it with: pip install 'gemmgen[run]' (or a CUDA toolkit)")
        return _by_nvcc(request, files, nvcc), True
    try:
        return _by_nvrtc(request, files), False
    except CompileError as error:
        # nvcc knows more of host code and of the host's headers than NVRTC with stand-ins.
        if nvcc is None or request.compiling.options or request.compiling.assemble:
            raise
        try:
            return _by_nvcc(request, files, nvcc), True
        except (CompileError, EnvironmentMissing):
            raise error from None


def _by_nvcc(request: Request, files: Mapping[str, str], nvcc: Nvcc) -> DeviceCode:
    folders = [*request.compiling.include_directories, str(request.folder)]
    try:
        return _nvcc_code(request, nvcc, request.text, request.path, folders, request.compiling.options)
    except CompileError as error:
        # Headers of the host's libraries that are not installed: device code alone, with stand-ins.
        if "No such file or directory" not in error.log:
            raise
        with tempfile.TemporaryDirectory(prefix="gemmgen-front-end-") as mirror:
            attempt = _Attempt(request, files, mirror)
            attempt.separate(given_folders=False)
            try:
                return attempt.compiled_by_nvcc(nvcc)
            except CompileError:
                raise error from None


def _nvcc_code(request: Request, nvcc: Nvcc, text: str, path: str, folders: Sequence[str], options: Sequence[str]) -> DeviceCode:
    instances = "".join(
        f"\nstatic void (*const gemmgen_instance_{index})() __attribute__((used)) = (void (*)()) &{expression};"
        for index, expression in enumerate(request.expressions)
    )
    ptx = nvcc.compile_ptx(
        text + (f"\n{instances}\n" if instances else ""),
        path,
        request.architecture,
        includes=(*folders, *_folders_with_random_numbers()),
        definitions=request.compiling.definitions,
        options=options,
        debug=request.compiling.debug,
        shown_as=request.name,
    )
    entries = re.findall(r"\.entry\s+([\w$]+)", ptx)
    symbols = {}
    for expression in request.expressions:
        spelled = re.sub(r"\s+", "", expression)
        ending = [entry for entry in entries if _same_instance(re.sub(r"\s+", "", demangled(entry)), spelled)]
        named = [entry for entry in entries if plain_name(entry) == spelled.split("<")[0].split("::")[-1]]
        if chosen := ending or named[-1:]:
            symbols[expression] = chosen[0]
    return DeviceCode(_with_names_of_files(ptx, {path: request.name}), symbols)


def _same_instance(full: str, spelled: str) -> bool:
    head = full.removeprefix("void").split("(")[0]
    return head == spelled or head.endswith(f"::{spelled}")


def _folders_with_random_numbers() -> list[str]:
    return [folder for folder in header_folders() if found_in("curand_kernel.h", [folder]) and not found_in("cuda_runtime.h", [folder])]


class _Attempt:
    """Compilation of a project with NVRTC, from a mirror of its files."""

    def __init__(self, request: Request, files: Mapping[str, str], mirror: str) -> None:
        self.request, self.mirror = request, mirror
        self.texts = dict(files)
        own_folders = [*request.compiling.include_directories, str(request.folder)]
        cuda_folders = header_folders()
        mirrored = [self._mirrored(folder) for folder in own_folders]
        folders = [*mirrored, *own_folders, *cuda_folders]
        self.arguments = [f"--include-path={folder}" for folder in folders]
        self.arguments += [f"--define-macro={definition}" for definition in request.compiling.definitions]
        self.arguments += ["--device-debug"] if request.compiling.debug else ["--generate-line-info"]
        # Methods without an execution space would be host functions, which NVRTC refuses.
        self.arguments += ["--device-as-default-execution-space", "--device-int128", *request.compiling.options]
        with_random_numbers = [folder for folder in cuda_folders if found_in("curand_kernel.h", [folder])]
        everything = "\n".join(files.values())
        known = host_algorithms(everything) | stand_ins() | host_libraries(everything)
        searched = [*own_folders, *with_random_numbers, *(os.path.dirname(path) for path in files)]
        self.headers = {header: text for header, text in known.items() if not found_in(header, searched)}
        self.written: dict[str, str] = {}

    def _mirrored(self, path: str) -> str:
        return self.mirror + os.path.abspath(path)

    def compiled(self, *more: str) -> DeviceCode:
        """One call of the compiler. Raises CompileError, whose messages name the project's own files."""
        self._write()
        main = os.path.normpath(self.request.path)
        try:
            code = compile_file(
                self.texts[main],
                path=self._mirrored(main),
                architecture=self.request.architecture,
                options=[*self.arguments, *more],
                headers=self.headers,
                expressions=self.request.expressions,
                shown_as=self.request.name,
                assemble=self.request.compiling.assemble,
            )
        except CompileError as error:
            raise CompileError(str(error).replace(self.mirror, ""), error.log.replace(self.mirror, "")) from None
        return replace(code, ptx=_with_names_of_files(code.ptx.replace(self.mirror, ""), {main: self.request.name}))

    def compiled_by_nvcc(self, nvcc: Nvcc) -> DeviceCode:
        """One call of nvcc, with stand-ins for headers of libraries that are not installed. Raises CompileError."""
        self._write()
        stand_ins_at = Path(self.mirror) / "stand-ins"
        for header, text in self.headers.items():
            (stand_ins_at / header).parent.mkdir(parents=True, exist_ok=True)
            (stand_ins_at / header).write_text(text)
        main = os.path.normpath(self.request.path)
        own_folders = [*self.request.compiling.include_directories, str(self.request.folder)]
        folders = [*(self._mirrored(folder) for folder in own_folders), *own_folders]
        # Searched behind the host compiler's own headers.
        options = (*self.request.compiling.options, "-Xcompiler", f"-idirafter,{stand_ins_at}")
        code = _nvcc_code(self.request, nvcc, self.texts[main], self._mirrored(main), folders, options)
        return replace(code, ptx=code.ptx.replace(self.mirror, ""))

    def _write(self) -> None:
        for path, text in self.texts.items():
            if self.written.get(path) != text:
                place = Path(self._mirrored(path))
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, errors="replace")
                self.written[path] = text

    def separate(self, given_folders: bool) -> bool:
        """Blanks the host code of files, those of the given folders of headers included or not; False if there was none."""
        marks = device_macros(self.texts.values())
        libraries = () if given_folders else tuple(f"{os.path.abspath(each)}/" for each in self.request.compiling.include_directories)
        separated = self.texts | device_parts({path: text for path, text in self.texts.items() if not path.startswith(libraries)}, marks)
        changed = separated != self.texts
        self.texts = separated
        return changed

    def remove_refused(self, error: CompileError) -> bool:
        """Removes the items of the host in which the compiler found errors; False if there are others too."""
        main, marks = os.path.normpath(self.request.path), device_macros(self.texts.values())
        smaller = {}
        for file, lines in lines_by_file(error.log).items():
            path = main if file == self.request.name else os.path.normpath(file)
            text = without_refused_items(self.texts[path], lines, marks) if path in self.texts else None
            if text is None:
                return False
            smaller[path] = text
        self.texts |= smaller
        return bool(smaller)


def _by_nvrtc(request: Request, files: Mapping[str, str]) -> DeviceCode:
    with tempfile.TemporaryDirectory(prefix="gemmgen-front-end-") as mirror:
        attempt = _Attempt(request, files, mirror)
        # Libraries such as CUTLASS compile with NVRTC as they are, so folders of headers are separated where that has failed.
        left_to_separate = [True] if request.compiling.include_directories else []
        if any(has_host_code(text) for text in files.values()):
            attempt.separate(given_folders=False)
        else:
            left_to_separate.insert(0, False)
        last_error: CompileError | None = None
        for _ in range(_MAX_REMOVALS):
            try:
                return _with_what_nvcc_has(attempt)
            except _Refused as refusal:
                last_error = last_error or refusal.errors[0]
                if any(attempt.separate(given_folders) for given_folders in _taken(left_to_separate)):
                    continue
                # Types and variables of the host go once the compiler has refused them; kernels that need them end in the first error.
                if not any(attempt.remove_refused(error) for error in refusal.errors):
                    break
        assert last_error is not None
        advice = _advice(last_error, request.text)
        raise CompileError(f"{last_error}\n{advice}", last_error.log) if advice else last_error


def _taken(steps: list[bool]) -> Iterator[bool]:
    """Takes the steps off their list, one by one."""
    while steps:
        yield steps.pop(0)


_NEEDS_NEWER_STANDARD = re.compile(r'identifier "(?:concept|requires)" is undefined|C\+\+20|may not appear in a constexpr')


class _Refused(Exception):
    """Errors of all attempts, the one that is closest to nvcc first."""

    def __init__(self, errors: Sequence[CompileError]) -> None:
        super().__init__()
        self.errors = tuple(errors)


def _with_what_nvcc_has(attempt: _Attempt) -> DeviceCode:
    """The code, with as few of nvcc's implicit includes as the file needs: its own definitions must not meet others."""
    refused: list[CompileError] = []
    more: list[str] = []
    for _ in range(6):
        try:
            return attempt.compiled(*more)
        except CompileError as error:
            refused.insert(0, error)
        text, added = str(refused[0]), len(more)
        if "device-side kernel launch" in text and "--relocatable-device-code=true" not in more:
            # The kernels that launch none can run, so the file is compiled.
            more += ["--pre-include=cuda_device_runtime_api.h", "--relocatable-device-code=true"]
        elif "#error directive" in text and "--define-macro=__NVCC__" not in more:
            # The file may want to be compiled by nvcc; CUDA's own headers take that name for another compiler, so it is a second try.
            more.append("--define-macro=__NVCC__")
        elif _NEEDS_NEWER_STANDARD.search(text) and not _names_standard(attempt.request, more):
            more.append("--std=c++20")
        elif re.search(r"is undefined|has no member|is not a template|name must be a namespace", text):
            if f"--pre-include={PRE_INCLUDED}" not in more:
                more.append(f"--pre-include={PRE_INCLUDED}")
            if 'namespace "std" has no member' in text and f"--define-macro={WITH_CUDA_STD}" not in more:
                more.append(f"--define-macro={WITH_CUDA_STD}")
        if len(more) == added:
            break
    raise _Refused(refused)


def _names_standard(request: Request, more: Sequence[str]) -> bool:
    return any(re.match(r"--?std\b", option) for option in (*request.compiling.options, *more))


def _advice(error: CompileError, text: str) -> str:
    """A way out, where a name is unknown because of how the file was compiled; empty if none is known."""
    if 'cannot open source file "curand_kernel.h"' in str(error):
        return "NVIDIA's package nvidia-curand has this header"
    unknown = dict.fromkeys(re.findall(r'identifier "(\w+)" is undefined', str(error)))
    of_host = [name for name in unknown if re.search(rf"^[^\n#;]*[\w*&>]\s+[*&]*{name}\s*\([^;{{}}]*\)\s*{{", text, re.MULTILINE)]
    return "\n".join(f"{name} is a host function: kernels can call functions marked __device__" for name in of_host)


def _with_names_of_files(ptx: str, names: Mapping[str, str]) -> str:
    """The PTX with files called by these names, CUDA's headers as includes name them, and files below the current folder by their
    relative names."""
    for path, name in names.items():
        ptx = ptx.replace(f'"{path}"', f'"{name}"')
    for directory in sorted(header_folders(), key=len, reverse=True):
        ptx = re.sub(rf'^(\s*\.file\s+\d+\s+"){re.escape(directory)}/([^"\n]*)', r"\1<\2>", ptx, flags=re.MULTILINE)
    here = f"{Path.cwd()}/"
    return re.sub(rf'^(\s*\.file\s+\d+\s+"){re.escape(here)}', r"\1", ptx, flags=re.MULTILINE)
