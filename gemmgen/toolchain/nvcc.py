"""nvcc: of an installed CUDA toolkit, or of NVIDIA's Python packages (the extra `gemmgen[run]`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from gemmgen.core.errors import CompileError, EnvironmentMissing
from gemmgen.core.process_limits import limited

VARIABLE = "GEMMGEN_NVCC"
"""Environment variable that names the nvcc to use; empty to use none."""
MAX_SECONDS = 900
_ERROR = re.compile(r"^.*(?:error|fatal)\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class Nvcc:
    """An nvcc: its path, its folder of headers, and its release as it tells it."""

    path: str
    include: str
    release: str

    def command(self, architecture: str, *, debug: bool = False) -> list[str]:
        """The call with which PTX is made for an architecture, without inputs and outputs."""
        return [self.path, "-w", f"-arch={architecture.replace('sm_', 'compute_')}", *(["-G"] if debug else ["-lineinfo"])]

    def compile_ptx(
        self,
        text: str,
        path: str,
        architecture: str,
        *,
        includes: Sequence[str] = (),
        definitions: Sequence[str] = (),
        options: Sequence[str] = (),
        debug: bool = False,
        shown_as: str = "",
    ) -> str:
        """PTX of a text that stands for the file at `path`. Raises CompileError."""
        if shutil.which("g++") is None and shutil.which("c++") is None:
            raise EnvironmentMissing("nvcc needs a host compiler: install g++")
        with tempfile.TemporaryDirectory(prefix="gemmgen-nvcc-") as folder:
            source, output = Path(folder) / "kernel.cu", Path(folder) / "kernel.ptx"
            source.write_text(f'#line 1 "{path}"\n{text}', errors="replace")
            standard = [] if any(re.match(r"--?std\b", option) for option in options) else ["-std=c++17"]
            command = [*self.command(architecture, debug=debug), *standard, "-ptx", "-o", str(output)]
            command += [f"-I{place}" for place in dict.fromkeys((os.path.dirname(path), *includes))]
            command += [f"-D{definition}" for definition in definitions] + list(options) + [str(source)]
            try:
                done = subprocess.run(limited(command, MAX_SECONDS), capture_output=True, text=True, errors="replace", timeout=MAX_SECONDS)
            except subprocess.TimeoutExpired:
                raise CompileError(f"nvcc took more than {MAX_SECONDS} s for {shown_as or path}") from None
            if done.returncode:
                log = (done.stderr or done.stdout).replace(str(source), path).replace(path, shown_as or path)
                errors = _ERROR.findall(log)[:10] or [log.strip()]
                raise CompileError("\n".join([f"{shown_as or path} does not compile for {architecture} with nvcc", *errors]), log)
            return output.read_text(errors="replace").replace(f'"{source}"', f'"{path}"')


def find_nvcc() -> Nvcc | None:
    """The nvcc that GEMMGEN_NVCC names, that is installed, or that NVIDIA's Python packages bring; None if there is none that works."""
    return _find(os.environ.get(VARIABLE))


@lru_cache(maxsize=4)
def _find(named: str | None) -> Nvcc | None:
    if named == "":
        return None
    candidates = [named] if named is not None else [shutil.which("nvcc"), *in_packages("bin/nvcc"), "/usr/local/cuda/bin/nvcc"]
    for candidate in candidates:
        if candidate is None or not os.access(candidate, os.X_OK):
            continue
        try:
            version, dry = (
                subprocess.run([candidate, *words], capture_output=True, text=True, timeout=30, check=False)
                for words in (["--version"], ["--dryrun", "-x", "cu", "-c", os.devnull])
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        release = re.search(r"release ([\d.]+)", version.stdout)
        include = next((place for place in re.findall(r'"?-I([^"\s]+)"?', dry.stderr) if Path(place, "cuda_runtime.h").is_file()), None)
        if release is not None and include is not None:
            return Nvcc(candidate, os.path.normpath(include), release[1])
    return None


def in_packages(pattern: str) -> list[str]:
    """Files of NVIDIA's Python packages below the folder of a toolkit: "bin/nvcc", "lib/libnvrtc.so.*"."""
    package = find_spec("nvidia")
    places = (package.submodule_search_locations or []) if package is not None else []
    return [str(path) for place in places for path in sorted(Path(place).glob(f"*/{pattern}"))]
