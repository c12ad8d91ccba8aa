"""Triton kernels as candidates: a separate process imports the file and compiles the kernel, the emulator runs its PTX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.core.files import read_plain
from gemmgen.core.text import printable
from gemmgen.judge.candidates import KernelCandidate
from gemmgen.judge.task import Task
from gemmgen.sanitizer.source import KernelCode

SECONDS = 120
MEMORY_BYTES = 24 << 30
"""Address space of the compiling process; its libraries reserve much more than they use."""
ANSWER = "answer.json"
_MAX_ANSWER = 64 << 20
_TYPES = {"f32": "*fp32", "f16": "*fp16", "bf16": "*bf16", "e4m3": "*fp8e4nv", "e5m2": "*fp8e5", "s32": "*i32", "s8": "*i8", "u8": "*u8"}


def compiled(file: Path, task: Task) -> KernelCandidate:
    """The kernel of a file of Python, compiled for the task's architecture. Raises ``GemmgenError``."""
    types = {argument.name: _TYPES[argument.type] if argument.shape is not None else "i32" for argument in task.arguments}
    question = {
        "file": str(file.resolve()),
        "kernel": task.entry,
        "types": types,
        "constants": task.constants,
        "warps": task.warps,
        "architecture": task.architecture,
        "seconds": SECONDS,
        "memory": MEMORY_BYTES,
    }
    answer = _answer(file, question)
    try:
        code = KernelCode(str(file), str(answer["ptx"]), None, task.architecture)
        names = [str(name) for name in answer["names"]]
        scratch = [int(size) for size in answer["scratch"]]
        fields = {"entry": str(answer["symbol"]), "shared_bytes": int(answer["shared_bytes"]), "block": (32 * task.warps,)}
    except (KeyError, TypeError, ValueError):
        raise GemmgenError(f"{file}: the process that compiles it gave another answer than a kernel") from None
    own = {argument.name: argument for argument in task.arguments}
    if set(names) != set(own):
        raise SpecError(f"{file}: the kernel's arguments are {printable(', '.join(names), 200)}; those of the task are {', '.join(own)}")
    return KernelCandidate(code, task.model_copy(update={**fields, "arguments": tuple(own[name] for name in names)}), scratch)


def _answer(file: Path, question: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="gemmgen-judge-") as name:
        environment = {**os.environ, "TRITON_CACHE_DIR": name, "TMPDIR": name, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "gemmgen.judge.triton_child", name]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(question),
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SpecError(f"{file}: compiling it takes more than {SECONDS} s") from None
        try:
            data = read_plain(Path(name) / ANSWER, _MAX_ANSWER)
            answer = json.loads(data)
        except (OSError, ValueError):
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SpecError(f"{file} cannot be compiled by Triton (status {done.returncode}): {printable(last, 300)}") from None
    if not isinstance(answer, dict):
        raise SpecError(f"{file}: the process that compiles it gave no answer")
    if "error" in answer:
        raise SpecError(f"{file}: {printable(str(answer['error']), 300)}")
    return answer
