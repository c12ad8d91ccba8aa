"""Binaries are called certified only where source, compiler and architecture are those of a certificate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gemmgen
from gemmgen.library import certification as module
from gemmgen.library.certification import standing


@pytest.fixture
def manifest(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    plan = gemmgen.plan("gemm/v0_naive")
    instance = {"name": plan.name, "digests": {"source": gemmgen.render(plan).digest}, "architectures": ["sm_80"]}
    found: dict[str, Any] = {"instances": [instance], "compiler": {"release": "13.0"}}
    monkeypatch.setattr(module, "read_manifest", lambda folder: found)
    monkeypatch.setattr(module, "shipped_folder", lambda: SimpleNamespace(path=Path()))
    return found


def test_what_the_certificates_speak_of_is_certified(manifest: dict[str, Any]) -> None:
    assert standing(gemmgen.plan("gemm/v0_naive"), ["sm_80"], (13, 0)).certified


@pytest.mark.parametrize(
    ("architecture", "version", "source", "why"),
    [
        ("sm_90", (13, 0), None, "there is no certificate for sm_90"),
        ("sm_80", (13, 1), None, "of NVRTC 13.0, these are of 13.1"),
        ("sm_80", (13, 0), "another", "another source"),
    ],
)
def test_anything_else_is_not(manifest: dict[str, Any], architecture: str, version: tuple[int, int], source: str | None, why: str) -> None:
    if source:
        manifest["instances"][0]["digests"]["source"] = source
    found = standing(gemmgen.plan("gemm/v0_naive"), [architecture], version)
    assert not found.certified and why in str(found)


def test_an_instance_of_nobody_is_not(manifest: dict[str, Any]) -> None:
    assert "no such instance" in str(standing(gemmgen.plan("gemm/v1_tiled"), ["sm_80"], (13, 0)))
