"""Facts about the compiled program of an instance on one architecture: from a binary, or from a certificate that is still true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gemmgen.library.digests import digest, program_digests

if TYPE_CHECKING:
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.toolchain.nvrtc import Binary


@dataclass(frozen=True)
class Facts:
    """The part of a certificate that only the compiler can tell."""

    program: str
    """Digest of the PTX with its line information, without the names of the architecture and the instance."""
    code: str
    """Digest of the program without line information."""
    kernels: Mapping[str, Mapping[str, int | None]]
    """The fields of ``compiler.KernelResources`` of each entry, in the order of the launches."""

    @property
    def spills(self) -> bool:
        """True if a kernel spills registers: ptxas's output for such a kernel may differ from run to run."""
        return any(kernel["spill_stores"] or kernel["spill_loads"] for kernel in self.kernels.values())

    @property
    def digest(self) -> str:
        """Digests that the manifest records, so that a manually changed number is not taken for the compiler's."""
        return digest(self.program, self.code, json.dumps({entry: dict(kernel) for entry, kernel in self.kernels.items()}, sort_keys=True))


def entries(plan: KernelPlan) -> tuple[str, ...]:
    """The kernels of a plan, in the order of their launches."""
    return tuple(dict.fromkeys(launch.entry for launch in plan.sequence.launches))


def facts_of(plan: KernelPlan, binary: Binary) -> Facts:
    """The facts of a plan's binary."""
    kernels = {entry: asdict(binary.resources[entry]) for entry in entries(plan)}
    return Facts(**program_digests(binary.ptx, plan.name), kernels=kernels)


def kept_facts(certificate: Any, source: str | None, options: str, release: str) -> Facts | None:
    """The facts in a certificate, if it is about the source (None: any) and options with these digests and was made by that release."""
    try:
        digests = certificate["digests"]
        about = digests["source"] if source is None else source
        if (digests["source"], digests["options"], certificate["compiler"]["release"]) != (about, options, release):
            return None
        kernels = {str(entry): dict(kernel) for entry, kernel in certificate["binary"].items()}
        if not kernels or not all(isinstance(value, int | None) for kernel in kernels.values() for value in kernel.values()):
            return None
        facts = Facts(str(digests["program"]), str(digests["code"]), kernels)
        return facts if isinstance(facts.spills, bool) else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
