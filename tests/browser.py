"""Pages in a real browser: Chromium, driven by Playwright. Tests of it are skipped where one of the two is missing, or fail there if
GEMMGEN_BROWSER is ``required``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def _missing(told: str) -> NoReturn:
    if os.environ.get("GEMMGEN_BROWSER") == "required":
        pytest.fail(told)
    pytest.skip(told)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; skips the test if Playwright is not installed, or neither its own Chromium nor the system's."""
    try:
        from playwright import sync_api as playwright
    except ImportError:
        _missing("Playwright drives the browser: pip install '.[browser]'")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    with playwright.sync_playwright() as driver:
        path = found or driver.chromium.executable_path
        if not Path(path).exists():
            _missing("there is no Chromium here: playwright install chromium")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page in a window of some width, and the messages of its console."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = context.new_page()
        self.messages: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(path.absolute().as_uri())
        self.page.wait_for_load_state("load")

    @property
    def overflow(self) -> int:
        """Pixels that the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def colour(self, selector: str) -> tuple[float, ...]:
        """The colour of an element's text, red, green and blue from 0 to 255."""
        text = self.page.eval_on_selector(selector, "element => getComputedStyle(element).color")
        return tuple(float(part) for part in text[text.index("(") + 1 : -1].split(",")[:3])
