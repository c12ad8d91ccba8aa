from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmgen.library.building import build
from gemmgen.library.folder import LibraryFolder
from gemmgen.library.listing import Instance, Listing, read_listing

LIST = """\
compiler: "13.0"
architectures: [sm_80, sm_90]
groups:
  - title: products
    specs: [gemm/*]
    sizes: [[64, 64, 64], [33, 32, 31]]
  - title: sums
    specs: [reduction/rows]
"""
GEMM = """\
kind: gemm
description: A small product.
alpha: one
beta: zero
mainloop:
  strategy: tiled
  tile:
    threadblock: {m: 16, n: 32, k: 8}
    warp: {m: 16, n: 32}
    thread: {m: 4, n: 4}
"""
HOPPER = GEMM.replace("small", "newer").replace("alpha: one", "architecture: sm_90\nalpha: one")
ROWS = """\
kind: reduction
description: Sums of rows.
operation: sum
shape: rows
typical: {outer: 64, reduced: 64}
"""


def write_specs(folder: Path) -> Path:
    """A list of three instances, for one of which there is one architecture; returns the list."""
    for name, text in {"gemm/small": GEMM, "gemm/hopper": HOPPER, "reduction/rows": ROWS}.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "library.yaml").write_text(LIST)
    return folder / "library.yaml"


@pytest.fixture(scope="session")
def template(run_folder: Path) -> Path:
    """Specs and a library that was built from them, once for all processes of a run."""
    root = run_folder / "library"
    with (run_folder / "library.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "generated" / "manifest.json").exists():
            build(read_listing(write_specs(root / "specs")), LibraryFolder(root / "generated"), jobs=1)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    """A copy of that, for one test."""
    return Path(shutil.copytree(template, tmp_path / "copy"))


@pytest.fixture
def listing(root: Path) -> Listing:
    return read_listing(root / "specs" / "library.yaml")


@pytest.fixture
def folder(root: Path) -> LibraryFolder:
    return LibraryFolder(root / "generated")


@pytest.fixture
def relist(root: Path) -> Callable[[str, str], Listing]:
    """Changes the list or a spec, ``relist("gemm/small.yaml", "k: 8 -> k: 16")``, and reads the list again."""

    def change(name: str, replacement: str) -> Listing:
        path = root / "specs" / name
        old, new = replacement.split(" -> ")
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        return read_listing(root / "specs" / "library.yaml")

    return change


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever compiles or verifies fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("nothing should have been run")

    monkeypatch.setattr("gemmgen.library.building.prove", refuse)
    monkeypatch.setattr("gemmgen.library.building.run_over_field", refuse)
    monkeypatch.setattr("gemmgen.toolchain.compilation.compile_plan", refuse)


@pytest.fixture
def other_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose compiler is of another release than the lists name."""
    monkeypatch.setattr("gemmgen.toolchain.nvrtc.nvrtc_version", lambda: (13, 4))


def section(folder: LibraryFolder, instance: Instance, architecture: str = "sm_90") -> dict[str, Any]:
    """The certificate of an instance as it is for one architecture."""
    found = folder.section(instance, architecture)
    assert found is not None
    return found
