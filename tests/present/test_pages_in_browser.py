"""Pages of one kernel and of two compared, in a browser: lines that belong together are marked, nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Opened, chromium
from click.testing import CliRunner

from gemmgen.cli import cli


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    commands = {"view": ["view", "gemm/v1_tiled"], "diff": ["diff", "gemm/v0_naive", "gemm/v1_tiled"]}
    for name, command in commands.items():
        result = CliRunner().invoke(cli, [*command, "-o", str(folder / f"{name}.html")], prog_name="gemmgen")
        assert result.exit_code == 0, result.output
    return {name: folder / f"{name}.html" for name in commands}


@pytest.mark.parametrize("name", ["view", "diff"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_is_no_wider_than_its_window(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    opened = Opened(browser, pages[name], width)
    assert opened.overflow <= 0
    assert opened.messages == []


def test_lines_that_belong_together_are_marked(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["view"])
    line = opened.page.evaluate(
        """() => [...document.querySelectorAll("#sass [data-line]")].map(row => row.dataset.line)
             .find(line => line !== "0" && document.querySelector(`#ptx [data-line="${line}"]`))"""
    )
    opened.page.hover(f"#cuda [data-line='{line}']")
    for pane in ("cuda", "ptx", "sass"):
        assert opened.page.locator(f"#{pane} .hot").count() == opened.page.locator(f"#{pane} [data-line='{line}']").count() > 0


def test_a_click_scrolls_the_other_panes(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["view"])
    line = opened.page.evaluate("[...document.querySelectorAll('#sass [data-line]')].map(row => row.dataset.line).filter(Number).at(-1)")
    opened.page.click(f"#cuda [data-line='{line}']")
    assert opened.page.locator("#sass .picked").count() > 0
    assert opened.page.evaluate(
        """() => { const row = document.querySelector("#sass .picked").getBoundingClientRect();
                   const box = document.querySelector("#sass .code").getBoundingClientRect();
                   return row.top >= box.top && row.bottom <= box.bottom; }"""
    )


@pytest.mark.parametrize("name", ["view", "diff"])
def test_pictures_are_shown(browser: Any, pages: dict[str, Path], name: str) -> None:
    opened = Opened(browser, pages[name])
    sizes = opened.page.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert sizes and min(sizes) > 0


def test_code_can_be_read_in_the_dark(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["view"], scheme="dark")
    assert all(part > 190 for part in opened.colour("#cuda .code"))


def test_words_of_code_stand_where_they_are_written(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["view"])
    assert (
        opened.page.evaluate(
            """() => [...document.querySelectorAll("#cuda .code span:not(.number):not(.figure)")]
             .filter(word => getComputedStyle(word).display !== "inline").map(word => word.className)"""
        )
        == []
    )


def test_a_view_begins_with_a_line_that_is_executed(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["view"])
    assert all(opened.page.evaluate("[...document.querySelectorAll('.pane .code')].map(box => box.scrollTop > 0)")[:2])
