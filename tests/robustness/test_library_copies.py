"""A copy of the library from a stranger: whatever is in its files, they are shown, or called damaged in one message."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gemmgen.cli import cli
from gemmgen.kernels.manifest import read_manifest
from gemmgen.library.folder import shipped_folder
from gemmgen.library.shapes import CERTIFICATE, fits

from . import mutated_files

COPIES = int(os.environ.get("GEMMGEN_FUZZ_TEXTS", "25"))
NAME = "gemm/v0_naive"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name, text in mutated_files.copy_of_the_library().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(copy: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["library", *arguments, "--library", str(copy)], prog_name="gemmgen")


def change(file: Path, edit: Callable[[Any], object]) -> None:
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))


def certificate_of(copy: Path) -> Path:
    entries = {entry["spec_name"]: entry for entry in read_manifest(copy)["instances"]}
    return copy / str(entries[NAME]["certificate"])


ENTRIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no kind": lambda entry: entry.pop("kind"),
    "a number for a name": lambda entry: entry.update(name=7),
    "a certificate elsewhere": lambda entry: entry.update(certificate="../../secret.json"),
    "a certificate with a whole path": lambda entry: entry.update(certificate="/etc/hostname"),
    "no architecture": lambda entry: entry.update(architectures=[]),
    "a text for architectures": lambda entry: entry.update(architectures="sm_80"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_damaged_entry_of_a_manifest_is_a_message(name: str, copy: Path) -> None:
    change(copy / "manifest.json", lambda manifest: ENTRIES[name](manifest["instances"][0]))
    for arguments in (("list",), ("show", NAME), ("list", "--json")):
        result = run(copy, *arguments)
        assert result.exit_code == 2 and "manifest.json: instance 0 is damaged" in result.output


CERTIFICATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a launch that is a number": lambda one: one.update(launch=3),
    "an argument without a kind": lambda one: one["launch"]["arguments"][0].pop("kind"),
    "no binary": lambda one: [section.pop("binary", None) for section in one["architectures"].values()],
    "an occupancy of another kernel": lambda one: [
        section.update(occupancy={"other": next(iter(section["occupancy"].values()))})
        for section in one["architectures"].values()
        if "occupancy" in section
    ],
    "a proof of nothing": lambda one: [section.update(proved={}) for section in one["architectures"].values()],
    "a number of unconfirmed bits": lambda one: [section.update(bits_not_confirmed=5) for section in one["architectures"].values()],
    "an endless time": lambda one: one["architectures"]["sm_80"].update(benchmarks=[{"median_us": float("inf")}]),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_damaged_certificate_is_a_message(name: str, copy: Path) -> None:
    change(certificate_of(copy), lambda one: one["architectures"].setdefault("sm_80", {}))
    assert run(copy, "show", NAME).exit_code == 0
    change(certificate_of(copy), CERTIFICATES[name])
    result = run(copy, "show", NAME)
    assert result.exit_code == 2 and "is missing or damaged" in result.output
    assert run(copy, "list").exit_code == 0


def test_certificates_that_come_with_gemmgen_have_the_shape() -> None:
    folder = shipped_folder()
    for entry in read_manifest(folder.path)["instances"]:
        assert set(folder.certificates(entry)) == set(entry["architectures"]), entry["name"]


@pytest.mark.parametrize(
    ("value", "does"),
    [({"architecture": "sm_80"}, False), (None, False), ([], False), ({name.rstrip("?"): None for name in CERTIFICATE}, False)],  # type: ignore[union-attr]
)
def test_what_is_no_certificate_does_not_fit(value: object, does: bool) -> None:
    assert fits(value, CERTIFICATE) == does


def test_mutants_of_a_copy_end_in_a_table_or_a_message(copy: Path) -> None:
    whole, certificate = mutated_files.copy_of_the_library(), certificate_of(copy)
    ends = set()
    for seed in range(COPIES):
        rng = random.Random(seed)
        file = copy / "manifest.json" if seed % 2 else certificate
        name = str(file.relative_to(copy))
        file.write_text(mutated_files.changed(whole[name], rng))
        for arguments in (("list",), ("show", NAME), ("show", "reduction/s7_shuffle", "--json")):
            result = run(copy, *arguments)
            assert result.exit_code in (0, 2) and "\x1b[2J" not in result.output, f"seed {seed}: {result.output[-500:]}"
            ends.add(result.exit_code)
        file.write_text(whole[name])
    assert ends == {0, 2}
