"""Contents of an export: an instance compiled for several architectures, and the PTX that later ones translate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gemmgen.core.errors import PlanError
from gemmgen.hardware.target import ARCHITECTURES, Architecture
from gemmgen.kernels.family import KernelPlan
from gemmgen.toolchain.cubin import text_sections
from gemmgen.toolchain.nvrtc import Binary


@dataclass(frozen=True)
class Image:
    """One binary that the driver loads."""

    kind: Literal["cubin", "ptx"]
    architecture: Architecture
    data: bytes
    """The cubin, or the PTX as text without a terminator."""

    @property
    def compute_capability(self) -> tuple[int, int]:
        return self.architecture.compute_capability

    @property
    def runs_on(self) -> Literal["same", "family", "later"]:
        """Devices that it runs on: those of exactly its compute capability, also those of later minor versions, or also
        those of later major ones."""
        if self.kind == "ptx":
            return "later"
        return "same" if self.architecture.name.endswith("a") else "family"

    @property
    def label(self) -> str:
        """``sm_80``; PTX is named after the virtual architecture, ``compute_80``."""
        return self.architecture.name if self.kind == "cubin" else self.architecture.name.replace("sm_", "compute_")


@dataclass(frozen=True)
class Bundle:
    """An instance and its images, the best first: a device takes the first that runs on it."""

    plan: KernelPlan
    images: tuple[Image, ...]
    nvrtc_version: tuple[int, int]
    standing: str = "not certified: nobody has asked"
    """Relation to the certificates of a library, in words."""

    @property
    def cubins(self) -> tuple[Image, ...]:
        return tuple(image for image in self.images if image.kind == "cubin")


def bundle(plan: KernelPlan, binaries: Sequence[Binary], standing: str = Bundle.standing) -> Bundle:
    """The cubins of ``binaries``, and the PTX of the newest whose PTX later devices accept. ``standing``: as in ``Bundle``."""
    cubins = [Image("cubin", ARCHITECTURES[binary.architecture], binary.cubin) for binary in binaries]
    cubins.sort(key=lambda image: (image.compute_capability, image.architecture.name), reverse=True)
    # PTX for an architecture-specific target, sm_90a say, is accepted by that architecture alone.
    texts = {binary.architecture: binary.ptx for binary in binaries if not binary.architecture.endswith("a")}
    newest = max(texts, key=lambda name: ARCHITECTURES[name].compute_capability, default=None)
    ptx = [] if newest is None else [Image("ptx", ARCHITECTURES[newest], texts[newest].encode())]
    return Bundle(plan, (*cubins, *ptx), binaries[0].nvrtc_version, standing)


def same_machine_code(one: Binary, other: Binary) -> bool:
    """True if two binaries hold the same instructions and use the same resources, regardless of their line information."""
    return text_sections(one.cubin) == text_sections(other.cubin) and one.resources == other.resources


def portable_architectures(allowed: Sequence[Architecture]) -> list[Architecture]:
    """Enough of the ``allowed`` architectures to run wherever all of them would: the oldest of each major version, whose cubins
    its later minor versions run, and architecture-specific ones only where there are no others. PTX serves the remaining versions."""
    chosen: dict[int, Architecture] = {}
    portable = [architecture for architecture in allowed if not architecture.name.endswith("a")]
    for architecture in sorted(portable or allowed, key=lambda entry: entry.compute_capability):
        chosen.setdefault(architecture.compute_capability[0], architecture)
    return sorted(chosen.values(), key=lambda entry: entry.compute_capability)


def plans_for(plan: KernelPlan, architectures: Sequence[Architecture]) -> list[KernelPlan]:
    """The plan of the same instance on each architecture.

    Raises ``PlanError`` with all reasons if it cannot work on one of them.
    """
    from gemmgen.kernels.planning import plan as plan_for

    planned, errors = [], []
    for architecture in architectures:
        try:
            planned.append(plan_for(plan, architecture))
        except PlanError as error:
            errors.append(str(error))
    if errors:
        raise PlanError("\n".join(errors))
    different = [other.architecture.name for other in planned if other.sequence != planned[0].sequence]
    if different:
        raise PlanError(
            f"{plan.name} is launched differently on {', '.join(different)} than on {planned[0].architecture.name}; "
            "export each architecture by itself"
        )
    return planned


def allowed_architectures(plan: KernelPlan) -> list[Architecture]:
    """The architectures on which the instance can work."""
    from gemmgen.kernels.planning import plan as plan_for

    allowed = []
    for architecture in ARCHITECTURES.values():
        try:
            plan_for(plan, architecture)
        except PlanError:
            continue
        allowed.append(architecture)
    return allowed
