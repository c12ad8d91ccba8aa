"""The page of choices: its data is whole, and the page works in a browser."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import gemmgen
from gemmgen.hardware.target import device
from tests.browser import chromium

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def playground(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    import playground as module

    yield module
    sys.modules.pop("playground", None)


def test_every_spec_on_the_page_is_valid(playground: ModuleType) -> None:
    found = json.loads(playground.RECORDED.read_text())
    assert found
    for key, entry in found.items():
        plan = gemmgen.plan(yaml.safe_load(entry["spec"]), device(key.split("|")[0]).architecture)
        assert str(entry["stages"]) in entry["other_stages"] or not entry["other_stages"] or entry["stages"] > max(playground.STAGES), key
        assert entry["kernel"] and entry["time_us"] > 0 and plan.name


def test_the_page_shows_another_kernel_for_another_choice(playground: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    markup = "".join(line for line in playground.page().splitlines(keepends=True) if not line.startswith("# "))
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{markup}</body>")
    found = json.loads(playground.RECORDED.read_text())
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 390, "height": 800})
        errors: list[str] = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(page.as_uri())
        first = next(iter(found))
        assert found[first]["kernel"] in tab.inner_text("#numbers")
        for select, value in zip(tab.query_selector_all("#choices > label select"), list(found)[-1].split("|"), strict=True):
            select.select_option(value)
        assert tab.inner_text("#spec").strip() == found[list(found)[-1]]["spec"].strip()
        assert errors == []
