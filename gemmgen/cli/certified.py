"""Proofs in the certificates of gemmgen's own library."""

from __future__ import annotations

from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.family import KernelPlan


def certified_proof(plan: KernelPlan) -> dict[str, Any] | None:
    """The proof in the certificate of this kernel, with the properties ``proved`` and the ``date``; None where no property is proved."""
    from gemmgen.kernels.manifest import read_manifest
    from gemmgen.library.folder import shipped_folder

    folder = shipped_folder()
    try:
        entries = read_manifest(folder.path)["instances"]
    except GemmgenError:
        return None
    entry = next((entry for entry in entries if entry["name"] == plan.name), None)
    certificate = {} if entry is None else folder.certificates(entry).get(plan.architecture.name, {})
    proved: dict[str, Any] | None = certificate.get("proved")
    return proved if proved and proved["proved"] else None
