"""Fat binaries: the cubins of several architectures and PTX for later ones, in one file that the driver chooses from.

Made by nvFatbin, else by the tool ``fatbinary`` of a CUDA toolkit. Both compress, which the driver undoes.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.core.extras import install_command
from gemmgen.export.images import Bundle, Image

_TIMEOUT_SECONDS = 120
_HOW_TO_GET_IT = f"install nvFatbin with: {install_command('fatbin')} (or put fatbinary of a CUDA 13 toolkit on PATH)"


def make_fatbin(bundle: Bundle) -> bytes:
    """All images of ``bundle`` as one fat binary, for ``cuModuleLoadData`` and ``cuLibraryLoadData``.

    Raises ``EnvironmentMissing`` if this machine has nothing that makes fat binaries.
    """
    library = loaded_library()
    if library is not None:
        return _by_library(library, bundle)
    tool = shutil.which("fatbinary")
    if tool is None:
        raise EnvironmentMissing(f"a fat binary needs nvFatbin, which was not found; {_HOW_TO_GET_IT}")
    return _by_tool(tool, bundle)


def loaded_library() -> Any:
    """The module ``cuda.bindings.nvfatbin`` with its library loaded; None where one is missing."""
    try:
        library = import_module("cuda.bindings.nvfatbin")
        library.version()
    except (ImportError, RuntimeError):  # no such module; or no library for it, which is reported as one of two errors
        return None
    return library


def _by_library(library: Any, bundle: Bundle) -> bytes:
    options = ["-compress-all"]
    try:
        handle = library.create(options, len(options))
        try:
            for image in bundle.images:
                data, architecture, identifier = _content(image), _number(image), bundle.plan.name
                if image.kind == "cubin":
                    library.add_cubin(handle, data, len(data), architecture, identifier)
                else:
                    library.add_ptx(handle, data, len(data), architecture, identifier, "")
            result = bytearray(library.size(handle))
            library.get(handle, result)
        finally:
            library.destroy(handle)
    except library.nvFatbinError as error:
        raise GemmgenError(f"nvFatbin cannot make a fat binary of {bundle.plan.name}: {error}") from None
    return bytes(result)


def _by_tool(tool: str, bundle: Bundle) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gemmgen-") as name:
        folder = Path(name)
        command = [tool, "--create=all.fatbin", "-64", "--compress-all", f"--ident={bundle.plan.name}"]
        for image in bundle.images:
            file = f"{image.label}.{image.kind}"
            (folder / file).write_bytes(_content(image))
            command.append(f"--image3=kind={'elf' if image.kind == 'cubin' else 'ptx'},sm={_number(image)},file={file}")
        try:
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise EnvironmentMissing(f"{tool} does not run ({error}); {_HOW_TO_GET_IT}") from None
        made = folder / "all.fatbin"
        if result.returncode or not made.is_file():
            raise GemmgenError(f"{tool} failed: {' '.join(result.stderr.split()) or f'exit status {result.returncode}'}")
        return made.read_bytes()


def _content(image: Image) -> bytes:
    return image.data + b"\0" if image.kind == "ptx" else image.data


def _number(image: Image) -> str:
    return image.architecture.name.removeprefix("sm_")
