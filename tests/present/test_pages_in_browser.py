"""Pages of one kernel and of two compared, in a browser: lines that belong together are marked, nothing is cut off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Opened, chromium
from click.testing import CliRunner

from gemmgen.cli import cli

ROOT = Path(__file__).resolve().parents[2]


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


PAGE = """<!doctype html><html><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"></head>
<body style="background: white; color: black"><article>{}</article></body></html>"""
MISTAKES = {
    "wider than the window": '<p style="width: 3000px">wide</p>',
    "picture does not load": '<img src="nothing.svg" alt="a picture">',
    "picture without a text": '<img src="good.svg">',
    "link to nothing": '<a href="nowhere/">nowhere</a>',
    "anchor that is not there": '<a href="#nowhere">nowhere</a>',
    "contrast": '<p style="color: #bbb">pale</p>',
    "console": "<script>console.error('wrong')</script>",
}
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="60">{}</svg>'


def audited(site: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "audit.py"), str(site)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_an_audit_of_a_site_finds_each_mistake(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(PAGE.format("".join(MISTAKES.values())))
    (tmp_path / "good.svg").write_text(PICTURE.format('<text x="10" y="30">whole</text>'))
    (tmp_path / "bad.svg").write_text(PICTURE.format('<text x="180" y="20">cut off here</text><text x="9" y="50">on</text>' * 2))
    code, told = audited(tmp_path)
    assert code == 1
    assert [mistake for mistake in [*MISTAKES, "text is cut", "texts overlap"] if f": {mistake}" not in told] == []


def test_an_audit_of_a_good_site_finds_nothing(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(PAGE.format('<h1 id="top">Title</h1><a href="#top">up</a><img src="good.svg" alt="a picture">'))
    (tmp_path / "good.svg").write_text(PICTURE.format('<text x="10" y="30">whole</text>'))
    assert audited(tmp_path) == (0, "1 pages in 4 windows and 1 pictures: 0 findings\n")
