"""Compilers' part of `gemmgen run`: the replacement of the CUDA runtime, programs from source, and builds of other people's projects."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.errors import CompileError, EnvironmentMissing, GemmgenError
from gemmgen.sanitizer.front_end import CompileOptions, Request, project_files
from gemmgen.toolchain.nvcc import Nvcc, find_nvcc, in_packages

LIBRARY = "libcudart.so"
NVRTC = "real_nvrtc"
"""Link to the real NVRTC in the folder of the replacement, if it was found."""
_SOURCES = tuple(Path(__file__).with_name(name) for name in ("runtime.cpp", "blas.cpp", "driver.cpp", "nvrtc.cpp"))
_HEADERS = Path(__file__).with_name("include")
"""Headers of libraries that the replacement has a part of, for toolkits without them, and calls of older toolkits."""
_LINKED = "linked"
"""Folder of the libraries that programs are linked with."""
_MAX_SECONDS = 900
_DEFINED = re.compile(r"\b(?:API\s[\w\s*]*?|^)(cu\w+|__cuda\w+)\(", re.MULTILINE)
_DRIVER_CALL = re.compile(r"^CUresult\s+CUDAAPI\s+(cu\w+)\(", re.MULTILINE)
_VERSION = re.compile(r"_v\d+$|_ptsz$|_ptds$")
"""Ends of the names of earlier forms of a call, and of forms for another default stream."""
_WRAPPER = """#!{python}
# nvcc for gemmgen run: the call with the architecture, the kind of PTX and the runtime that the emulator needs.
import os, sys
passed, words = [], sys.argv[1:]
skipped = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code", "-cudart", "--cudart")
while words:
    word = words.pop(0)
    if word in skipped:
        words = words[1:]
    elif not word.startswith(tuple(name + "=" for name in skipped)) and not word.startswith(("-arch=", "-gencode=")):
        passed.append(word)
query = not passed or any(word in ("--version", "-V", "--help", "-h", "--dryrun", "-dryrun") for word in passed)
os.execv({nvcc!r}, [{nvcc!r}, *passed, *([] if query else {options!r})])
"""


@dataclass(frozen=True)
class Toolkit:
    """nvcc and its arguments. `libraries` is the folder of the replacement runtime, `architecture` that of the kernels: "90a"."""

    nvcc: Nvcc
    libraries: Path
    architecture: str

    @property
    def compute_capability(self) -> int:
        """The architecture's number: 90 for "90a"."""
        return int(self.architecture.rstrip("af"))

    @property
    def options(self) -> tuple[str, ...]:
        """Options with which a program's kernels can be read and its calls reach the replacement."""
        target = f"arch=compute_{self.architecture},code=compute_{self.architecture}"
        older = ("-include", str(_HEADERS / "removed_calls.h"))
        headers = () if (Path(self.nvcc.include) / "cublas_v2.h").exists() else (f"-I{_HEADERS}",)
        if (nvrtc := self.libraries / _LINKED / "nvrtc.h").exists():
            headers = (*headers, f"-I{nvrtc.parent}")
        return (
            "-gencode",
            target,
            "-lineinfo",
            "--no-compress",
            "-cudart",
            "shared",
            f"-L{self.libraries / _LINKED}",
            "-Xcompiler",
            "-g",
            *older,
            *headers,
        )


def make_toolkit(folder: Path, architecture: str) -> Toolkit:
    """The replacement runtime in a folder, compiled if the cache does not have it. Raises GemmgenError."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise EnvironmentMissing("nvcc was not found; install it with: pip install 'gemmgen[run]' (or a CUDA toolkit)")
    compiler = host_compiler()
    source = "".join(f'#line 1 "{file}"\n{file.read_text()}\n' for file in _SOURCES)
    stubs = _stubs(source, nvcc)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    headers = [file.read_text() for file in sorted(_HEADERS.rglob("*.h"))]
    key = cache_key("CUDA runtime", source, *headers, stubs, version, nvcc.release, nvcc.include)
    cache = Cache(quiet=True)
    library = folder / LIBRARY
    if (stored := cache.load(key)) is not None and LIBRARY in stored:
        library.write_bytes(stored[LIBRARY])
    else:
        whole = folder / "runtime.cpp"
        whole.write_text(f"{source}\n{stubs}")
        command = [
            compiler,
            "-std=c++17",
            "-O1",
            "-g1",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-w",
            # Python packages contain a separate CUDA runtime, whose names must not stand for ours.
            "-Wl,-Bsymbolic",
            f"-I{_HEADERS}",
            f"-I{nvcc.include}",
        ]
        _run([*command, str(whole), "-o", str(library), "-ldl", "-Wl,-soname,libcudart.so.13"], "the CUDA runtime of gemmgen run")
        cache.store(key, {LIBRARY: library.read_bytes()})
    library.chmod(0o755)
    for release in (11, 12, 13):
        (folder / f"{LIBRARY}.{release}").symlink_to(LIBRARY)
    # The driver is the same library: programs load it by this name.
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / name).symlink_to(LIBRARY)
    # Libraries that projects link by name; all are this one. Host code of kernels needs libstdc++, which C projects do not name.
    linked = folder / _LINKED
    linked.mkdir()
    shared = (f"lib{name}.so" for name in ("cudart", "cuda", "cublas", "nvrtc", "nvToolsExt"))
    for name in (*shared, "libcudart_static.a", "libcublas_static.a"):
        (linked / name).write_text(f'INPUT("{library}" AS_NEEDED(-lstdc++))\n')
    packaged = in_packages("include/nvrtc.h")
    if packaged and not (Path(nvcc.include) / "nvrtc.h").exists():
        (linked / "nvrtc.h").symlink_to(packaged[0])
    beside = [str(file) for name in ("lib64", "lib") for file in sorted((Path(nvcc.include).parent / name).glob("libnvrtc.so*"))]
    for real in [*beside, *in_packages("lib/libnvrtc.so.*")][:1]:
        (folder / NVRTC).symlink_to(real)
    for release in (11, 12, 13):
        (folder / f"libcublas.so.{release}").symlink_to(LIBRARY)
    return Toolkit(nvcc, folder, architecture)


def host_compiler() -> str:
    """The system's C++ compiler. Raises EnvironmentMissing."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise EnvironmentMissing("gemmgen run needs a C++ compiler: install g++")
    return compiler


def _stubs(source: str, nvcc: Nvcc) -> str:
    """Functions of the real runtime and of the driver that the replacement does not have: each says so and fails."""
    include = Path(nvcc.include)
    places = [include.parent / name for name in ("lib64", "lib")]
    library = next((path for place in places for path in sorted(place.glob("libcudart.so*"))), None)
    tool = shutil.which("nm")
    if library is None or tool is None:
        return ""
    symbols = subprocess.run([tool, "-D", "--defined-only", str(library)], capture_output=True, text=True, check=False).stdout
    names = {line.split()[-1].split("@")[0] for line in symbols.splitlines() if len(line.split()) == 3}
    written = set(_DEFINED.findall(source))
    missing = sorted(name for name in names - written if re.fullmatch(r"(?:__)?cuda\w+", name))
    header = (include / "cuda.h").read_text(errors="replace")
    missing += sorted(name for name in set(_DRIVER_CALL.findall(header)) - written if not _VERSION.search(name))
    return "".join(
        f'API cudaError_t {name}() __asm__("{name}");\n'.replace(f" {name}()", f" gemmgen_stub_{name}()") for name in missing
    ) + "".join(f'API cudaError_t gemmgen_stub_{name}() {{ return gemmgen_unsupported("{name}"); }}\n' for name in missing)


def _run(command: Sequence[str], what: str, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_MAX_SECONDS, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise CompileError(f"{what} took more than {_MAX_SECONDS} s to compile") from None
    except OSError as error:
        raise EnvironmentMissing(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        log = (done.stderr + done.stdout).strip()
        errors = [line for line in log.splitlines() if re.search(r"\b(?:error|fatal|undefined reference|cannot find)\b", line)][:12]
        raise CompileError("\n".join([f"{what} does not compile", *(errors or log.splitlines()[-12:])]), log)


def build_program(
    toolkit: Toolkit, sources: Sequence[Path], output: Path, includes: Sequence[str], definitions: Sequence[str], options: Sequence[str]
) -> None:
    """Compiles a program from its sources, or takes it from the cache. Raises CompileError."""
    cache, key = Cache(quiet=True), _program_key(toolkit, sources, includes, definitions, options)
    if (stored := cache.load(key)) is not None and "program" in stored:
        output.write_bytes(stored["program"])
        output.chmod(0o755)
        return
    standard = [] if any(re.match(r"--?std\b", option) for option in options) else ["-std=c++17"]
    command = [toolkit.nvcc.path, "-w", "-O2", *standard, *toolkit.options, *(f"-I{place}" for place in includes)]
    command += [f"-D{definition}" for definition in definitions]
    _run([*command, *(str(source) for source in sources), *options, "-o", str(output)], " ".join(str(source) for source in sources))
    cache.store(key, {"program": output.read_bytes()})


def _program_key(
    toolkit: Toolkit, sources: Sequence[Path], includes: Sequence[str], definitions: Sequence[str], options: Sequence[str]
) -> str:
    """A key of the texts of all files of the project, and of all that they are compiled with."""
    parts = [toolkit.nvcc.path, toolkit.nvcc.release, toolkit.architecture, os.getcwd(), *includes, "", *definitions, "", *options, ""]
    for source in sources:
        request = Request(source.read_text(errors="replace"), str(source), source.resolve().parent, CompileOptions(None, tuple(includes)))
        parts += [part for item in sorted(project_files(request).items()) for part in item]
    return cache_key("program", *parts)


def build_environment(toolkit: Toolkit, folder: Path) -> dict[str, str]:
    """An environment in which a project's own build finds the wrapper of nvcc first, in PATH and as a CUDA toolkit."""
    tree = folder / "cuda"
    (tree / "bin").mkdir(parents=True)
    wrapper = tree / "bin" / "nvcc"
    wrapper.write_text(_WRAPPER.format(python=sys.executable, nvcc=toolkit.nvcc.path, options=list(toolkit.options)))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    (tree / "include").symlink_to(toolkit.nvcc.include)
    for name in ("lib64", "lib"):
        (tree / name).symlink_to(toolkit.libraries / _LINKED)
    environment = dict(os.environ)
    environment["PATH"] = f"{tree / 'bin'}:{environment.get('PATH', '')}"
    folders = {name: str(tree) for name in ("CUDA_PATH", "CUDA_HOME", "CUDA_DIR", "CUDA_ROOT", "CUDA_INSTALL_PATH", "CUDAToolkit_ROOT")}
    environment |= folders
    # Makefiles often set these themselves, and call nvcc by them: definitions in MAKEFLAGS count for more.
    defined = " ".join(f"{name}={value}".replace("\\", "\\\\").replace(" ", "\\ ") for name, value in folders.items())
    environment["MAKEFLAGS"] = f"{environment.get('MAKEFLAGS', '')} -- {defined}".strip()
    environment |= {"NVCC": str(wrapper), "CUDACXX": str(wrapper), "LIBRARY_PATH": str(toolkit.libraries / _LINKED)}
    return environment


def run_build(command: str, environment: Mapping[str, str], prepare: Callable[[], None] | None = None) -> None:
    """Runs a project's build in the current folder, with its output on standard error; ``prepare`` is called in its process first.
    Raises GemmgenError."""
    build = subprocess.Popen(command, shell=True, env=environment, stdout=2, start_new_session=True, preexec_fn=prepare)
    try:
        status = build.wait(_MAX_SECONDS)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(build.pid, signal.SIGKILL)
        build.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise GemmgenError(f"the build {command!r} took more than {_MAX_SECONDS} s") from None
        raise
    if status:
        raise GemmgenError(f"the build {command!r} failed (status {status})")
