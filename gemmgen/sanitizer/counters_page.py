"""Counters beside the source, as one HTML page without scripts or other files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmgen.emulator.counters import Counters, Tally

_COLUMNS = (
    ("instructions", "instructions, executed by warps"),
    ("shared ld", "wavefronts of loads from shared memory"),
    ("shared st", "wavefronts of stores to shared memory"),
    ("conflicts", "wavefronts that banks add"),
    ("ideal", "the fewest wavefronts for as many words"),
    ("sectors", "pieces of 32 bytes of global memory"),
    ("used", "the part of these bytes that was asked for"),
)
_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px system-ui, sans-serif; margin: 2em; }
table { border-collapse: collapse; font: 12px ui-monospace, monospace; }
th { position: sticky; top: 0; background: Canvas; text-align: right; padding: .3em .8em; }
td { padding: 0 .8em; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.source { text-align: left; white-space: pre; border-left: 1px solid color-mix(in srgb, CanvasText 25%, Canvas); }
td.line { color: color-mix(in srgb, CanvasText 55%, Canvas); }
tr.total td { border-top: 1px solid; font-weight: bold; }
tr:hover td { background: color-mix(in srgb, CanvasText 8%, Canvas); }
.bad { color: #c62828; font-weight: bold; }
"""


def counters_page(counters: Counters, text_of: Callable[[str], str | None], title: str) -> str:
    """The page: every line of every file that was executed, its counts to the left. Bars show a line's part of the instructions."""
    parts = [f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{escape(title)}</title>\n<style>{_STYLE}</style>"]
    parts.append(f"<h1>{escape(title)}</h1>")
    most = max((line.tally.total_instructions for line in counters.lines), default=0)
    for file in dict.fromkeys(line.file for line in counters.lines):
        tallies = {line.line: line.tally for line in counters.lines if line.file == file}
        texts = ((text_of(file) if file else None) or "").splitlines()
        parts.append(f"<h2>{escape(file or 'without a line of the source')}</h2>\n<table>{_head()}")
        for number in range(1, len(texts) + 1) if texts else sorted(tallies):
            source = texts[number - 1] if texts else ""
            parts.append(_row(str(number or ""), source, tallies.get(number), most))
        if texts and 0 in tallies:
            parts.append(_row("", "(no line)", tallies[0], most))
        parts.append("</table>")
    parts.append(f"<h2>All lines</h2>\n<table>{_head()}{_row('', '', counters.total, 0, 'total')}</table>")
    parts.append("<ul>" + "".join(f"<li>{escape(name)}: {escape(meaning)}</li>" for name, meaning in _COLUMNS) + "</ul>")
    return "\n".join(parts) + "\n</html>\n"


def _head() -> str:
    return (
        "<tr>" + "".join(f'<th title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in _COLUMNS) + "<th>line</th><th></th></tr>"
    )


def _row(line: str, source: str, tally: Tally | None, most: int, kind: str = "") -> str:
    cells = list(_cells(tally)) if tally is not None else [""] * len(_COLUMNS)
    share = tally.total_instructions / most if tally is not None and most else 0
    bar = f' style="background: linear-gradient(to left, #1e88e544 {share:.1%}, transparent {share:.1%})"' if share else ""
    shown = [f"<td{bar if index == 0 else ''}>{cell}</td>" for index, cell in enumerate(cells)]
    return f"<tr{f' class={kind}' if kind else ''}>{''.join(shown)}<td class=line>{line}</td><td class=source>{escape(source)}</td></tr>"


def _cells(tally: Tally) -> Iterator[str]:
    traffic, total = tally.global_total, tally.shared_total
    yield _number(tally.total_instructions)
    yield _number(tally.shared_loads)
    yield _number(tally.shared_stores)
    yield f"<span class=bad>{total.conflicts:,}</span>" if total.conflicts else ""
    yield _number(total.ideal)
    yield _number(traffic.sectors)
    used = traffic.efficiency if traffic.sectors else None
    yield "" if used is None else f"<span class=bad>{used:.0%}</span>" if used < 0.5 else f"{used:.0%}"


def _number(value: int) -> str:
    return f"{value:,}" if value else ""
