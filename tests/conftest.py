from __future__ import annotations

import os
from pathlib import Path

import pytest

SPECS = Path(__file__).resolve().parent.parent / "specs"


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests neither use nor change the cache of the person who runs them."""
    os.environ["GEMMGEN_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
