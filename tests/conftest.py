from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmgen.kernels.shipped import shipped_specs

SPECS = Path(__file__).resolve().parent.parent / "specs"
SHIPPED = sorted(shipped_specs().values())
"""The specs among the files in it."""
SHIPPED_KERNELS = [path for path in SHIPPED if path.parent.name != "cpu"]
"""Those of kernels for GPUs."""


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests neither use nor change the cache of the person who runs them."""
    os.environ["GEMMGEN_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["GEMMGEN_CACHE_KEY"] = str(tmp_path_factory.mktemp("secret") / "cache.key")


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as their content, whatever the terminal of the person who runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)
