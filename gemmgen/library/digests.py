"""Identity of the parts of an instance: digests of its templates, its options, its cases and the program that came out."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.verification.oracle import oracle_of

_PROLOGUE = re.compile(r"^\s*\.(?:version|target)\b.*\n|//.*$", re.MULTILINE)
_LINE_INFORMATION = re.compile(r"^\s*\.(?:loc|file)\b.*\n|^\s*\.section\b[^{]*\{[^}]*\}", re.MULTILINE)


def digest(*parts: str) -> str:
    """SHA-256, in hex, of texts, of which none runs into the next."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode()
        hashed.update(f"{len(data)}:".encode())
        hashed.update(data)
    return hashed.hexdigest()


def compile_options() -> tuple[str, ...]:
    """All options that an instance is compiled with, besides the architecture."""
    from gemmgen.toolchain.compilation import COMPILE_OPTIONS
    from gemmgen.toolchain.nvrtc import BASE_OPTIONS

    return (*BASE_OPTIONS, *COMPILE_OPTIONS)


def options_digest() -> str:
    """The digest of ``compile_options``."""
    return digest(*compile_options())


def text_digest(text: str) -> str:
    """The digest of a rendered source's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def program_digests(ptx: str, name: str, formerly: str | None = None) -> dict[str, str]:
    """Two digests of an instance's PTX without the names of the architecture and the instance: ``program`` with its line
    information, so that findings can be reported by source line, and ``code`` without.

    ``formerly``: another name, of which the digests are wanted that the same code had under it. Names of shared arrays hold the length of
    the kernel's.
    """
    program = _PROLOGUE.sub("", ptx)
    if formerly is not None:
        program = program.replace(f"{len(name)}{name}", f"{len(formerly)}instance")
    program = program.replace(name, "instance")
    return {"program": digest(program), "code": digest(_LINE_INFORMATION.sub("", program))}


def launch_digest(sequence: LaunchSequence) -> str:
    """The digest of a proof's assumptions about a launch: dimensions, constraints, arrays and grids, without the instance's name and
    without prose."""
    return digest(json.dumps(_without_prose(sequence.to_json()), sort_keys=True).replace(sequence.name, "instance"))


def _without_prose(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _without_prose(item) for name, item in value.items() if name not in ("meaning", "explanation")}
    return [_without_prose(item) for item in value] if isinstance(value, list) else value


def cases_digest(plan: KernelPlan) -> str:
    """The digest of the cases that an instance is verified on."""
    cases: list[Any] = [
        [case.name, dict(case.dimensions), dict(case.scalars), case.data, dict(case.offsets), case.seed]
        for case in oracle_of(plan.spec.kind).cases(plan)
    ]
    return digest(json.dumps(cases, sort_keys=True))
