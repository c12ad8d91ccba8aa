"""Compiles CUDA source to PTX and cubin with NVRTC: on any machine, without a driver or a GPU, through a disk cache.

CUDA libraries are loaded by the first compilation, not by importing this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.errors import CompileError, EnvironmentMissing
from gemmgen.toolchain.cubin import EntryAttributes, read_entries
from gemmgen.toolchain.diagnostics import Spills, explain_errors, read_spills, warnings_of

# `--no-source-include` keeps the folder of the source, which does not exist, out of the search path. `--no-cache` turns off
# the cache in the driver's folder: a hit there skips ptxas, and with it the report on spills.
BASE_OPTIONS = (
    "--std=c++17",
    "--generate-line-info",
    "--no-source-include",
    "--no-cache",
    "--ptxas-options=-v",
)
OLDEST_NVRTC = (12, 9)
SPLIT_COMPILE = "--split-compile=0"
"""Optimizes functions at the same time, on all processors, with the same instructions as the result; for sources of several kernels."""
SPLITTING_NVRTC = (13, 0)

_HOW_TO_GET_NVRTC = "install it with: pip install 'nvidia-cuda-nvrtc>=13,<14' (or a CUDA 13 toolkit)"
_ARCHITECTURE = re.compile(r"sm_(\d+)[af]?")


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resources of one kernel, per thread or block; bytes, except for registers and max_threads.

    `spill_stores` and `spill_loads` are the bytes that the kernel's own instructions move, as ptxas reports them; `local_bytes`
    is the stack of a thread with all calls, `stack_bytes` the kernel's own frame; `constant_bytes` the size of constant
    bank 0, of which its parameters are `parameter_bytes`; `max_threads` the limit from __launch_bounds__ or None.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack_bytes: int
    local_bytes: int
    static_shared_bytes: int
    constant_bytes: int
    parameter_bytes: int
    max_threads: int | None


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled source. `options` are all that NVRTC was given besides the architecture; `log` holds its warnings.

    `digest` identifies the inputs (source, name, options, architecture, NVRTC version), not the output bytes:
    ptxas may allocate registers differently from run to run.
    """

    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    architecture: str
    options: tuple[str, ...]
    nvrtc_version: tuple[int, int]
    log: str
    digest: str
    resources: dict[str, KernelResources]


@dataclass(frozen=True, slots=True)
class CompileJob:
    """The arguments of one `compile_source`, for `compile_many`."""

    source: str
    architecture: str
    options: tuple[str, ...] = ()
    name: str = "kernel.cu"
    line_info: bool = True


def compile_source(
    source: str,
    *,
    architecture: str,
    options: Sequence[str] = (),
    name: str = "kernel.cu",
    line_info: bool = True,
    cache: Cache | None = None,
) -> Binary:
    """Compiles one self-contained source for one architecture, "sm_90a" say, to PTX and cubin.

    `options` are NVRTC's, added to BASE_OPTIONS; a `--std` among them replaces the default. `name` stands for the
    file in messages and line information; characters other than letters, digits, dot, dash and underscore are replaced
    in the latter. Without `line_info` the binary does not say which instruction comes from which line, and is about a third as large.
    With `cache=None` nothing is read from or written to disk.

    Raises CompileError with the compiler's errors and the lines they are about, EnvironmentMissing without NVRTC.
    """
    _check_arguments(source, architecture, options)
    version = nvrtc_version()
    file_name = _file_name(name)
    all_options = _all_options(options, line_info)
    key = _cache_key(source, file_name, all_options, architecture, version)
    binary = _cached(cache, key)
    if binary is None:
        binary = _compile(source, architecture, all_options, file_name, version, key)
        if cache is not None:
            cache.store(key, _to_files(binary))
    return binary


def cached_source(source: str, *, architecture: str, options: Sequence[str], name: str, cache: Cache) -> Binary | None:
    """The binary that ``compile_source`` gives, if the cache has it."""
    file_name = _file_name(name)
    return _cached(cache, _cache_key(source, file_name, _all_options(options, True), architecture, nvrtc_version()))


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[-100:] or "kernel.cu"


def _cache_key(source: str, file_name: str, options: Sequence[str], architecture: str, version: tuple[int, int]) -> str:
    # The name is part of the key because it is part of the line information.
    return cache_key("compile", source, file_name, "\0".join(options), architecture, f"{version[0]}.{version[1]}")


def _cached(cache: Cache | None, key: str) -> Binary | None:
    stored = cache.load(key) if cache is not None else None
    return _from_files(stored, key) if stored is not None else None


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """PTX of a user's file, for execution without a GPU. `symbols` are the names in PTX of the C++ names that were asked for;
    `cubin` and `resources`, by entry, are empty where the PTX was not assembled."""

    ptx: str = field(repr=False)
    symbols: dict[str, str]
    cubin: bytes = field(repr=False, default=b"")
    resources: dict[str, KernelResources] = field(default_factory=dict)


def compile_file(
    source: str,
    *,
    path: str,
    architecture: str,
    options: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    expressions: Sequence[str] = (),
    shown_as: str = "",
    assemble: bool = False,
) -> DeviceCode:
    """Compiles a user's file to PTX. It is assembled only on request, because kernels that ptxas rejects for a lack of registers can still
    run on the emulator.

    Includes are searched in the folder of `path` too. `headers` are texts by the name that they are included with;
    `expressions` are C++ names of kernels, templates with their arguments, which are instantiated. Messages call the file
    `shown_as`.

    Raises CompileError with the compiler's errors and the lines they are about, EnvironmentMissing without NVRTC.
    """
    _check_arguments(source, architecture, options)
    nvrtc_version()
    nvrtc = _load_nvrtc()
    given = headers or {}
    texts, names = [text.encode() for text in given.values()], [name.encode() for name in given]
    result, program = nvrtc.nvrtcCreateProgram(source.encode(errors="replace"), os.fsencode(path), len(given), texts, names)
    _check(nvrtc, result, "nvrtcCreateProgram")
    try:
        for expression in expressions:
            (result,) = nvrtc.nvrtcAddNameExpression(program, os.fsencode(expression))
            _check(nvrtc, result, f"nvrtcAddNameExpression({expression})")
        standard = () if any(re.match(r"--?std\b", option) for option in options) else ("--std=c++17",)
        target = architecture if assemble else architecture.replace("sm_", "compute_")
        arguments = [f"--gpu-architecture={target}", *standard, *options, *(["--ptxas-options=-v"] if assemble else [])]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [os.fsencode(argument) for argument in arguments])
        log = _fetch(nvrtc, program, "ProgramLog").decode(errors="replace")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            shown = shown_as or path
            raise _compile_error(source, "", architecture, shown, log.replace(path, shown), str(result))
        ptx = _fetch(nvrtc, program, "PTX").decode(errors="replace")
        symbols = {}
        for expression in expressions:
            result, lowered = nvrtc.nvrtcGetLoweredName(program, os.fsencode(expression))
            _check(nvrtc, result, f"nvrtcGetLoweredName({expression})")
            symbols[expression] = lowered.decode()
        cubin = _fetch(nvrtc, program, "CUBIN", text=False) if assemble else b""
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    resources = _resources(read_entries(cubin), read_spills(log.replace("\0", "\n"))) if assemble else {}
    return DeviceCode(ptx, symbols, cubin, resources)


def compile_many(
    jobs: Iterable[CompileJob], *, cache: Cache | None = None, workers: int | None = None, on_finished: Callable[[], None] | None = None
) -> list[Binary | CompileError]:
    """Compiles jobs in parallel threads; the results are in the order of the jobs, a failed one's error in its place.

    NVRTC compiles concurrently and without Python's lock. ``workers`` defaults to the CPUs this process may use; ``on_finished`` is called
    after each job, by the thread that compiled it.
    """
    from concurrent.futures import ThreadPoolExecutor

    nvrtc_version()  # loads the library once, before the threads

    def compile_one(job: CompileJob) -> Binary | CompileError:
        try:
            return compile_source(
                job.source, architecture=job.architecture, options=job.options, name=job.name, line_info=job.line_info, cache=cache
            )
        except CompileError as error:
            return error
        finally:
            if on_finished is not None:
                on_finished()

    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(compile_one, jobs))


@lru_cache(maxsize=1)
def nvrtc_version() -> tuple[int, int]:
    """The version of the NVRTC that is found. Raises EnvironmentMissing if there is none, or one too old."""
    nvrtc = _load_nvrtc()
    try:
        result, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise EnvironmentMissing(_why_not_loaded(error)) from error
    _check(nvrtc, result, "nvrtcVersion")
    if (major, minor) < OLDEST_NVRTC:
        raise EnvironmentMissing(f"NVRTC {major}.{minor} is too old; {_HOW_TO_GET_NVRTC}")
    return int(major), int(minor)


def _why_not_loaded(error: RuntimeError) -> str:
    """A message for NVRTC that cannot be loaded, which is not the same as one that is not there."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return f"NVRTC, the CUDA compiler library, was not found; {_HOW_TO_GET_NVRTC}"
    said = " ".join(str(error).split())[:300]
    hint = "It takes some 200 MB of address space, which ulimit -v may refuse"
    return f"NVRTC {installed} is installed but cannot be loaded: {said}. {hint}; {_HOW_TO_GET_NVRTC}"


def nvrtc_release() -> str:
    """The release of the NVRTC that is used, as its Python package tells it, without loading the library; else the library's version."""
    # importlib.metadata would parse the package's whole description.
    head, end = "nvidia_cuda_nvrtc-", ".dist-info"
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if name.startswith(head) and name.endswith(end):
                    return name[len(head) : -len(end)]
    return ".".join(map(str, nvrtc_version()))


def supported_architectures() -> tuple[str, ...]:
    """The architectures NVRTC compiles for, without those like sm_90a. Raises EnvironmentMissing."""
    nvrtc_version()
    nvrtc = _load_nvrtc()
    result, numbers = nvrtc.nvrtcGetSupportedArchs()
    _check(nvrtc, result, "nvrtcGetSupportedArchs")
    return tuple(f"sm_{number}" for number in numbers)


def _load_nvrtc() -> ModuleType:
    try:
        return import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise EnvironmentMissing(
            "the Python package cuda.bindings was not found; install it with: pip install 'cuda-python>=13,<14'"
        ) from error


def _check(nvrtc: Any, result: Any, call: str) -> None:
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{call} failed: {result!s}")


def _check_arguments(source: str, architecture: str, options: Sequence[str]) -> None:
    if _ARCHITECTURE.fullmatch(architecture) is None:
        raise CompileError(f"not an architecture: {architecture!r}; need a name like sm_80 or sm_90a")
    if "\0" in source:
        raise CompileError(f"the source has a NUL character in line {source[: source.index(chr(0))].count(chr(10)) + 1}")
    for option in options:
        if "\0" in option or not option.startswith("-"):
            raise CompileError(f"not a compiler option: {option!r}")
        if re.match(r"--?(gpu-architecture|arch)\b", option):
            raise CompileError(f"the architecture is a separate argument, not the option {option!r}")


def _all_options(options: Sequence[str], line_info: bool) -> tuple[str, ...]:
    own_standard = any(re.match(r"--?std\b", option) for option in options)
    left_out = ("--std",) * own_standard + ("--generate-line-info",) * (not line_info)
    base = (option for option in BASE_OPTIONS if not option.startswith(left_out))
    return (*base, *options)


def _compile(source: str, architecture: str, options: tuple[str, ...], file_name: str, version: tuple[int, int], key: str) -> Binary:
    nvrtc = _load_nvrtc()
    # NVRTC prefixes a relative name with the current directory, which must not show in the result.
    path = f"/{file_name}"
    try:
        encoded = source.encode()
    except UnicodeEncodeError as error:
        raise CompileError(f"the source is not Unicode text: {error}") from error
    result, program = nvrtc.nvrtcCreateProgram(encoded, path.encode(), 0, [], [])
    _check(nvrtc, result, "nvrtcCreateProgram")
    try:
        several = (SPLIT_COMPILE,) if version >= SPLITTING_NVRTC and source.count("__global__") > 1 else ()
        arguments = [f"--gpu-architecture={architecture}".encode(), *(option.encode() for option in (*options, *several))]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        # The parts of the log that come from ptxas are set apart by NUL characters.
        log = _fetch(nvrtc, program, "ProgramLog").decode(errors="replace").replace("\0", "\n").replace(path, file_name)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            ptx = _fetch(nvrtc, program, "PTX").decode(errors="replace")
            raise _compile_error(source, ptx, architecture, file_name, log, str(result))
        ptx = _fetch(nvrtc, program, "PTX").decode().replace(f'"{path}"', f'"{file_name}"')
        cubin = _fetch(nvrtc, program, "CUBIN", text=False)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    resources = _resources(read_entries(cubin), read_spills(log))
    return Binary(ptx, cubin, architecture, options, version, warnings_of(log), key, resources)


def _fetch(nvrtc: Any, program: object, what: str, text: bool = True) -> bytes:
    """One of the results of a program; text without its terminating NUL, empty if there is none."""
    result, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS or size == 0:
        return b""
    buffer = bytes(size)
    (result,) = getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    _check(nvrtc, result, f"nvrtcGet{what}")
    return buffer.rstrip(b"\0") if text else buffer


def _compile_error(source: str, ptx: str, architecture: str, file_name: str, log: str, result: str) -> CompileError | EnvironmentMissing:
    if "nvrtc-builtins" in log:
        return EnvironmentMissing(f"NVRTC is incomplete: {log.strip()}; {_HOW_TO_GET_NVRTC}")
    if "--gpu-architecture" in log:
        known = ", ".join(supported_architectures())
        return CompileError(f"NVRTC does not know the architecture {architecture}; it knows {known}", log)
    return CompileError(explain_errors(log, source, ptx, architecture, file_name) or f"NVRTC failed: {result}", log)


def _resources(entries: dict[str, EntryAttributes], spills: dict[str, Spills]) -> dict[str, KernelResources]:
    missing = entries.keys() - spills.keys()
    if missing:
        raise CompileError(f"ptxas did not report the spills of {', '.join(sorted(missing))}")
    return {
        name: KernelResources(spill_stores=spills[name].store_bytes, spill_loads=spills[name].load_bytes, **asdict(attributes))
        for name, attributes in entries.items()
    }


def _to_files(binary: Binary) -> dict[str, bytes]:
    about = {
        "architecture": binary.architecture,
        "options": binary.options,
        "nvrtc_version": binary.nvrtc_version,
        "log": binary.log,
        "resources": {name: asdict(resources) for name, resources in binary.resources.items()},
    }
    return {
        "kernel.ptx": binary.ptx.encode(),
        "kernel.cubin": binary.cubin,
        "binary.json": json.dumps(about, indent=1).encode(),
    }


def _from_files(files: dict[str, bytes], key: str) -> Binary | None:
    """The binary in a cache entry; None if the entry is not of the form that `_to_files` writes."""
    try:
        about = json.loads(files["binary.json"])
        return Binary(
            ptx=files["kernel.ptx"].decode(),
            cubin=files["kernel.cubin"],
            architecture=about["architecture"],
            options=tuple(about["options"]),
            nvrtc_version=(about["nvrtc_version"][0], about["nvrtc_version"][1]),
            log=about["log"],
            digest=key,
            resources={name: KernelResources(**values) for name, values in about["resources"].items()},
        )
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, RecursionError):
        return None
