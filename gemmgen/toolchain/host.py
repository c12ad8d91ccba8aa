"""C source to a shared library: the system's compiler, or Zig's from PyPI where there is none."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.errors import CompileError, EnvironmentMissing
from gemmgen.core.extras import install_command
from gemmgen.core.files import MAX_BYTES, read_plain
from gemmgen.core.process_limits import limited
from gemmgen.hardware.cpu import CpuArchitecture

COMPILER_VARIABLE = "GEMMGEN_CC"
"""Names the C compiler to use, with options if need be; else ``CC``, then ``cc``, ``gcc``, ``clang``, then Zig's."""
SANITIZER_OPTIONS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")
LIBRARY_OPTIONS = ("-fPIC", "-shared", "-pthread")
SECONDS = 300


@dataclass(frozen=True)
class HostCompiler:
    """A C compiler: its command and its version text."""

    command: tuple[str, ...]
    version: str
    kind: Literal["cc", "zig"]

    def options_for(self, architecture: CpuArchitecture, options: Sequence[str]) -> tuple[str, ...]:
        """``options`` as this compiler wants them: Zig names processors in its own way."""
        if self.kind == "cc":
            return tuple(options)
        own = [option for option in options if option not in architecture.compiler_flags]
        return (*own, "-target", architecture.zig_target, *architecture.zig_flags)


@dataclass(frozen=True)
class HostBinary:
    """A shared library."""

    name: str
    architecture: str
    library: bytes
    compiler: str
    options: tuple[str, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the library, in hex."""
        return hashlib.sha256(self.library).hexdigest()


def find_compiler(architecture: CpuArchitecture | None = None) -> HostCompiler:
    """The compiler for ``architecture``: a cross compiler if the machine is of another kind.

    Raises ``EnvironmentMissing`` that says how to get one.
    """
    import platform

    if architecture is not None and architecture.machine != platform.machine():
        return _cross_compiler(architecture)
    given = os.environ.get(COMPILER_VARIABLE)
    if given:
        compiler = _compiler(_words(given))
        if compiler is None:
            raise EnvironmentMissing(f"{COMPILER_VARIABLE}={given!r} is no C compiler that runs here")
        return compiler
    return _default_compiler(os.environ.get("CC", ""))


def _words(command: str) -> tuple[str, ...]:
    """A command as the shell splits it; none if it has an open quote."""
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()


@cache
def _default_compiler(preferred: str) -> HostCompiler:
    for command in (_words(preferred), ("cc",), ("gcc",), ("clang",)):
        compiler = _compiler(command)
        if compiler is not None:
            return compiler
    zig = _zig()
    if zig is not None:
        return zig
    raise EnvironmentMissing(
        "there is no C compiler: cc, gcc and clang are not on the PATH; install one (Debian: apt install gcc), "
        f"or Zig's from PyPI: {install_command('cpu')}"
    )


@cache
def _cross_compiler(architecture: CpuArchitecture) -> HostCompiler:
    compiler = _compiler((f"{architecture.machine}-linux-gnu-gcc",)) or _zig()
    if compiler is None:
        raise EnvironmentMissing(
            f"there is no compiler for {architecture.name} here: install {architecture.machine}-linux-gnu-gcc "
            f"(Debian: apt install gcc-{architecture.machine}-linux-gnu), or Zig's from PyPI: {install_command('cpu')}"
        )
    return compiler


@cache
def _compiler(command: tuple[str, ...]) -> HostCompiler | None:
    if not command or shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return HostCompiler(command, next(iter(done.stdout.splitlines()), command[0]), "cc")


@cache
def _zig() -> HostCompiler | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    command = (sys.executable, "-m", "ziglang", "cc")
    compiler = _compiler(command)
    return None if compiler is None else HostCompiler(command, f"zig cc, {compiler.version}", "zig")


def _library_key(compiler: HostCompiler, wanted: Sequence[str], libraries: Sequence[str], source: str) -> str:
    return cache_key("host", compiler.version, *compiler.command, *wanted, *libraries, source)


def has_compiled_c(
    source: str, *, architecture: CpuArchitecture, options: Sequence[str], cache: Cache, libraries: Sequence[str] = ("-lm",)
) -> bool:
    """True if the cache has the result of ``compile_c``. Raises ``EnvironmentMissing`` without a compiler."""
    compiler = find_compiler(architecture)
    wanted = (*compiler.options_for(architecture, options), *LIBRARY_OPTIONS)
    return cache.load(_library_key(compiler, wanted, libraries, source)) is not None


def compile_c(
    source: str,
    *,
    name: str,
    architecture: CpuArchitecture,
    options: Sequence[str],
    sanitize: bool = False,
    cache: Cache | None = None,
    compiler: HostCompiler | None = None,
    libraries: Sequence[str] = ("-lm",),
) -> HostBinary:
    """The shared library of one C file. ``sanitize``: with AddressSanitizer and UndefinedBehaviorSanitizer, which end the process.

    Raises ``CompileError`` with the compiler's words, ``EnvironmentMissing`` without a compiler.
    """
    compiler = compiler or find_compiler(architecture)
    wanted = (*compiler.options_for(architecture, options), *LIBRARY_OPTIONS, *(SANITIZER_OPTIONS if sanitize else ()))
    key = _library_key(compiler, wanted, libraries, source)
    stored = cache.load(key) if cache is not None else None
    if stored is not None and "library.so" in stored:
        return HostBinary(name, architecture.name, stored["library.so"], compiler.version, wanted)
    with tempfile.TemporaryDirectory(prefix="gemmgen-") as folder:
        file, library = Path(folder, f"{name}.c"), Path(folder, "library.so")
        file.write_text(source)
        command = limited([*compiler.command, *wanted, file.name, "-o", library.name, *libraries], SECONDS)
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise CompileError(f"{name}: {compiler.version} could not be run: {error}") from None
        if done.returncode != 0 or not library.exists():
            first = next((line for line in done.stderr.splitlines() if "error" in line), "it said nothing")
            raise CompileError(f"{name}: {compiler.version} rejected the source: {first}", done.stderr)
        try:
            data = read_plain(library, MAX_BYTES)
        except OSError as error:
            raise CompileError(f"{name}: the library of {compiler.version} cannot be read: {error.strerror or error}") from None
    if cache is not None:
        cache.store(key, {"library.so": data})
    return HostBinary(name, architecture.name, data, compiler.version, wanted)
