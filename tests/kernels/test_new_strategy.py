"""The tile and the strategy of CONTRIBUTING.md, added as described to a copy of gemmgen: both are found, explained and verified."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
SIZE = ("--backend", "emulator", "--size", "5,9,7")
SPEC = """kind: gemm
mainloop: {strategy: plain, threadblock: {m: 4, n: 32}}
"""
MAINLOOP = """class PlainMainloop(SpecModel):
    \"\"\"A copy of the naive mainloop.\"\"\"

    strategy: Literal["plain"]
    threadblock: Extents2
    unroll: Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=64, strict=True)], LATER] = "auto"


"""


def section(title: str) -> str:
    """A section of the guide."""
    return GUIDE.split(f"### {title}\n")[1].split("\n### ")[0]


def replaced(path: Path, before: str, after: str) -> None:
    """Replaces a text that a file has once."""
    text = path.read_text()
    assert text.count(before) == 1, (path, before)
    path.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of gemmgen with the guide's line of a tile, and with a strategy that copies ``naive`` under another name."""
    root = tmp_path_factory.mktemp("extended")
    for folder in ("gemmgen", "templates", "specs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    tile = section("A tile size")
    (line,) = re.findall(r"```yaml\n(.*?)```", tile, re.DOTALL)
    (spec_file,) = re.findall(r"`(specs/[^`]+)`", tile)
    replaced(root / spec_file, "variants:\n", f"variants:\n{line}")

    package, strategies = root / "gemmgen/kernels/gemm", re.findall(r"\| `([^`]+)` \|", section("A strategy of GEMM"))
    assert [path.replace("<strategy>", "naive").startswith(("gemmgen/", "templates/", "specs/")) for path in strategies] == [True] * 5
    shutil.copytree(package / "naive", package / "plain")
    for module in (package / "plain").glob("*.py"):
        text = module.read_text().replace("kernels.gemm.naive", "kernels.gemm.plain").replace("NaiveMainloop", "PlainMainloop")
        module.write_text(text.replace("gemm/naive.cu.j2", "gemm/plain.cu.j2"))
    shutil.copy(root / "templates/gemm/naive.cu.j2", root / "templates/gemm/plain.cu.j2")
    replaced(package / "spec.py", "class TiledMainloop(SpecModel):", f"{MAINLOOP}class TiledMainloop(SpecModel):")
    replaced(package / "spec.py", "        NaiveMainloop | ", "        NaiveMainloop | PlainMainloop | ")
    replaced(package / "strategies.py", "STRATEGIES = {\n", 'STRATEGIES = {\n    "plain": "gemmgen.kernels.gemm.plain",\n')
    (root / "specs/gemm/plain.yaml").write_text(SPEC)
    return root


def gemmgen(root: Path, *arguments: str) -> str:
    """Output of a command of the copy."""
    done = subprocess.run(
        [sys.executable, "-m", "gemmgen", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tile_of_the_guide_is_verified(extended: Path) -> None:
    assert "verified" in gemmgen(extended, "verify", "gemm/simt/blocked/32x64x8", *SIZE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "gemm/plain", *SIZE), "verified"),
        (("render", "gemm/plain", "-o", "-"), "templates/gemm/plain.cu.j2"),
        (("explain", "gemm/plain"), "bound by"),
        (("draw", "gemm/plain", "-o", "-"), "<svg"),
        (("schema",), '"plain"'),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands_serve_the_strategy_of_the_guide(extended: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in gemmgen(extended, *arguments)
