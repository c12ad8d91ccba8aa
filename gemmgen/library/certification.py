"""Standing of binaries that are made now: those that the library's certificates speak of, or others of the same spec."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gemmgen.codegen.rendering import render
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.family import InstancePlan
from gemmgen.kernels.manifest import read_manifest
from gemmgen.library.folder import shipped_folder


@dataclass(frozen=True)
class Standing:
    """Relation of binaries to the library's certificates."""

    certified: bool
    why: str
    """The reason that they are not certified; of certified ones, the method."""

    def __str__(self) -> str:
        return f"{'certified' if self.certified else 'not certified'}: {self.why}"


def standing(plan: InstancePlan, architectures: Iterable[str], nvrtc_version: tuple[int, int]) -> Standing:
    """The standing of the binaries that a compiler release makes of a plan for some architectures.

    Certified are binaries of the very source, compiler release and architectures that a certificate of the library names.
    """
    try:
        manifest = read_manifest(shipped_folder().path)
    except GemmgenError:
        return Standing(False, "there is no library of gemmgen's here")
    entry = next((entry for entry in manifest["instances"] if entry["name"] == plan.name), None)
    if entry is None:
        return Standing(False, "the library has no such instance; run gemmgen verify to verify it yourself")
    if entry["digests"]["source"] != render(plan).digest:
        return Standing(False, "the library was built of another source")
    release, here = str(manifest["compiler"]["release"]), "{}.{}".format(*nvrtc_version)
    if release != here:
        return Standing(False, f"the certificates are of binaries of NVRTC {release}, these are of {here}")
    missing = [name for name in architectures if name not in entry["architectures"]]
    if missing:
        return Standing(False, f"there is no certificate for {', '.join(missing)}")
    return Standing(True, f"source, compiler (NVRTC {release}) and architectures are those of the library's certificates")
