"""The process that imports a candidate's Python and compiles its Triton kernel: ``python -m gemmgen.judge.triton_child FOLDER``.

The question arrives on standard input as JSON; the answer is a file in the folder. With Landlock, the process can change only files of that
folder.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.process_limits import lower
from gemmgen.judge.triton import ANSWER
from gemmgen.sanitizer.programs.running import fence, landlock_version
from gemmgen.sanitizer.triton_kernels import compile_triton


def kernel_of(file: str, name: str | None) -> Any:
    """The ``@triton.jit`` function ``name`` of a file, or the only one if no name is given. Raises ``GemmgenError``."""
    spec = importlib.util.spec_from_file_location("candidate", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    kernels = {own: value for own, value in vars(module).items() if hasattr(value, "arg_names") and hasattr(value, "fn")}
    if name is not None and name not in kernels:
        raise GemmgenError(f"it has no Triton kernel {name}; there are {', '.join(kernels) or 'none'}")
    if name is None and len(kernels) != 1:
        raise GemmgenError(f"it has {len(kernels)} Triton kernels; the task's entry names one")
    return kernels[name] if name is not None else next(iter(kernels.values()))


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The compiled kernel as plain data. Raises ``GemmgenError``."""
    kernel = kernel_of(question["file"], question["kernel"])
    types, constants = question["types"], question["constants"]
    missing = [name for name in kernel.arg_names if name not in types and name not in constants]
    if missing:
        raise GemmgenError(f"{missing[0]} is neither an argument nor a constant of the task")
    # Without contraction, copies of a sum that lanes of a warp store to one place of shared memory agree.
    code = compile_triton(kernel, types, constants, question["warps"], question["architecture"], {"enable_fp_fusion": False})
    names = [name for name in kernel.arg_names if name not in constants]
    scratch = [size for _, size in code.scratch]
    return {"ptx": code.ptx, "symbol": code.symbol, "shared_bytes": code.shared_bytes, "scratch": scratch, "names": names}


def main(folder: Path) -> None:
    """Answers the question on standard input."""
    question = json.load(sys.stdin)
    lower(resource.RLIMIT_CPU, question["seconds"], question["seconds"] + 1)
    lower(resource.RLIMIT_AS, question["memory"], question["memory"])
    lower(resource.RLIMIT_FSIZE, 1 << 30, 1 << 30)
    if version := landlock_version():
        fence([str(folder), "/dev/null", "/dev/shm"], version)
    try:
        reply = answer(question)
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    (folder / ANSWER).write_text(json.dumps(reply))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
