from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from tiers import TIERS, CostRecorder, chosen

from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.variants import spec_name

# Hypothesis draws the same examples for a test every time, and no example fails for being slow. It would also draw constants of the
# modules of the project that happen to be imported, which differ between the workers of pytest-xdist.
# `--hypothesis-profile=default` draws new examples.
hypothesis.settings.register_profile(
    "reproducible",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("reproducible")
providers.is_local_module_file = lambda path: False

# Shells start background processes with interrupts ignored, and processes inherit that (POSIX, Shell Command Language, 2.11).
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPECS = Path(__file__).resolve().parent.parent / "specs"
SHIPPED = sorted(shipped_specs().values())
"""The specs among the files in it."""
SHIPPED_KERNELS = [path for path in SHIPPED if path.parent.name != "cpu"]
"""Those of kernels for GPUs."""


def spec_id(path: Path) -> str:
    """Name of a shipped spec, as the identifier of a test."""
    return spec_name(path, SPECS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, default="all", help="fast: for the edit loop; usual: before a change is taken; all.")
    parser.addoption("--record-costs", type=Path, metavar="FILE", help="Write the costs of expensive tests, for tests/tiers.py.")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("--record-costs")) is not None:
        config.pluginmanager.register(CostRecorder(file))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = chosen(items, config.getoption("--tier"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run, which all its processes share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def private_cache(run_folder: Path) -> None:
    """Tests neither use nor change the cache of the person who runs them; the processes share compiled kernels."""
    os.environ["GEMMGEN_CACHE_DIR"] = str(run_folder / "cache")
    os.environ["GEMMGEN_CACHE_KEY"] = str(run_folder / "secret" / "cache.key")


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as their content, whatever the terminal of the person who runs the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)
