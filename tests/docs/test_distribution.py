"""The wheel works without the repository: unpacked elsewhere, from an empty folder, with nothing of the checkout on the path."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a wheel of the working tree installs."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


COMMANDS = (
    ("render gemm/v0_naive", "__global__"),
    ("explain gemm/v0_naive", "v0_naive"),
    ("library list --json", "gemm/v0_naive"),
    ("verify --backend emulator gemm/v0_naive", "error/bound"),
    ("export gemm/v0_naive --format header -o out", ""),
    ("draw gemm/v0_naive", ""),
    ("doctor", "NVRTC"),
)


@pytest.mark.parametrize(("command", "said"), COMMANDS, ids=[command.split()[0] for command, _ in COMMANDS])
def test_a_command_of_the_wheel_works_cold(unpacked: Path, tmp_path: Path, command: str, said: str) -> None:
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_DATA_HOME": str(tmp_path / "data")}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1", **home}
    (empty := tmp_path / "empty").mkdir()
    origin = [sys.executable, "-c", "import gemmgen; print(gemmgen.__file__)"]
    found = subprocess.run(origin, cwd=empty, env=environment, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(unpacked)
    result = subprocess.run(
        [sys.executable, "-m", "gemmgen", *command.split()], cwd=empty, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0 and said in result.stdout, result.stderr[-2000:]
    assert str(ROOT / "gemmgen") not in result.stdout + result.stderr
