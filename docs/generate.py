"""Fills the pages of the documentation with what commands really say and draw: python docs/generate.py [--check] [PAGE ...]

A page keeps its words; what lies behind one of these comments is made anew:

    <!-- run [from=REGEX] [match=REGEX] [first=N] [last=N] [exit=N] -->
                                                   and a fenced block whose first line is `$ gemmgen ...`: the command's output
    <!-- diff SPEC SPEC [context=N] [first=N] -->   and a fenced block: the difference of the two rendered kernels
    <!-- code SPEC from=REGEX lines=N -->           and a fenced block: a piece of a rendered kernel
    <!-- draw SPEC options of gemmgen draw -->      and an image: the picture is written where the image says
    <!-- chart FILE problem=N ... -->               and an image: bars of what was measured
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
COLUMNS = "140"

_FENCED = re.compile(
    r"<!-- (?P<kind>run|diff|code)(?P<options>[^>]*?) ?-->\n(?P<fence>```)(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_IMAGE = re.compile(r"<!-- (?P<kind>draw|chart) (?P<options>[^>]*?) ?-->\n!\[(?P<alt>[^\]]*)\]\((?P<file>[^)]+)\)")


def pages() -> list[Path]:
    """The pages that have something to fill."""
    return [path for path in sorted(DOCS.rglob("*.md")) if _FENCED.search(text := path.read_text()) or _IMAGE.search(text)]


def filled(path: Path) -> tuple[str, dict[Path, str]]:
    """A page as it must be, and the pictures that it shows."""
    text = path.read_text()
    text = _FENCED.sub(lambda match: _fenced(match), text)
    pictures = {(path.parent / match["file"]).resolve(): _picture(match) for match in _IMAGE.finditer(text)}
    return text, pictures


def run(command: str, expected: int = 0) -> str:
    """Output of a command, run in this process in the repository's root."""
    from click.testing import CliRunner

    from gemmgen.cli import cli

    name, *arguments = shlex.split(command)
    assert name == "gemmgen", command
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        result = CliRunner().invoke(cli, arguments, prog_name="gemmgen", env={"COLUMNS": COLUMNS, "FORCE_COLOR": None, "NO_COLOR": "1"})
    finally:
        os.chdir(before)
    if result.exit_code != expected:
        raise SystemExit(f"{command}: exit code {result.exit_code}, expected {expected}\n{result.output}")
    return result.stdout + result.stderr if expected else result.stdout


def _options(text: str) -> tuple[list[str], dict[str, str]]:
    words = shlex.split(text)
    named = dict(word.split("=", 1) for word in words if re.match(r"[a-z]+=", word))
    return [word for word in words if not re.match(r"[a-z]+=", word)], named


def _fenced(match: re.Match[str]) -> str:
    words, options = _options(match["options"])
    kind = match["kind"]
    if kind == "run":
        command = match["body"].splitlines()[0]
        lines = run(command.removeprefix("$ "), int(options.get("exit", 0))).rstrip().splitlines()
        if "from" in options:
            found = next((place for place, line in enumerate(lines) if re.search(options["from"], line)), None)
            if found is None:
                raise SystemExit(f"{command}: no line matches {options['from']!r}")
            lines = lines[found:]
        if "match" in options:
            lines = [line for line in lines if re.search(options["match"], line)]
        lines = [command, *_selected(lines, options)]
    elif kind == "diff":
        lines = _selected(_diff(words[0], words[1], int(options.get("context", 2))), options)
    else:
        lines = _code(words[0], options)
    body = "\n".join(line.rstrip() for line in lines)
    comment = f"<!-- {kind}{match['options']} -->"
    return f"{comment}\n```{match['language']}\n{body}\n```"


def _selected(lines: list[str], options: dict[str, str]) -> list[str]:
    first, last = int(options.get("first", len(lines))), int(options.get("last", 0))
    if first + last >= len(lines):
        return lines
    return [*lines[:first], "...", *(lines[-last:] if last else [])]


def _diff(one: str, other: str, context: int) -> list[str]:
    import gemmgen
    from gemmgen.present.comparison import source_diff

    return list(source_diff(gemmgen.render(one).text, gemmgen.render(other).text, (one, other), context))


def _code(spec: str, options: dict[str, str]) -> list[str]:
    import gemmgen

    lines = gemmgen.render(spec).text.splitlines()
    first = next(place for place, line in enumerate(lines) if re.search(options["from"], line))
    return lines[first : first + int(options["lines"])]


def _picture(match: re.Match[str]) -> str:
    if match["kind"] == "draw":
        return run(f"gemmgen draw {match['options']} -o -")
    words, options = _options(match["options"])
    return _chart(ROOT / words[0], options, match["alt"])


def _chart(file: Path, options: dict[str, str], title: str) -> str:
    """Bars of a benchmark's times, as `gemmgen bench --json` writes them."""
    from gemmgen.present.drawing.svg import MARGIN, WIDTH, Canvas, document

    report = json.loads(file.read_text())[int(options.get("problem", 0))]
    rows = [(str(timing["spec"] or timing["name"]), timing) for timing in report["timings"]]
    value = options.get("value", "operations_per_second")
    scale, unit = (1e12, "TFLOP/s") if value == "operations_per_second" else (1e9, "GB/s")
    most = max(timing[value] for _, timing in rows)
    canvas = Canvas()
    canvas.text(0, 16, title, "title")
    y, left, room = 34.0, 250.0, WIDTH - 250 - 150
    for name, timing in rows:
        peer = timing["kind"] == "peer"
        canvas.text(left - 8, y + 15, name, "text end strong" if peer else "text end")
        wide = room * timing[value] / most
        canvas.rect(left, y + 2, max(wide, 1), 18, "c1 thin" if peer else "c0 thin")
        canvas.text(left + wide + 6, y + 15, f"{timing[value] / scale:,.2f} {unit}, {timing['median_us']:,.1f} µs", "note")
        y += 25
    parts = [f'<g transform="translate({MARGIN} {MARGIN})">', *canvas.parts, "</g>"]
    description = "; ".join(f"{name}: {timing['median_us']:.1f} µs" for name, timing in rows)
    return document(parts, y + 2 * MARGIN, title, description)


def main(arguments: list[str]) -> int:
    """Fills pages; with --check only says which are not current."""
    check = "--check" in arguments
    chosen = [Path(name).resolve() for name in arguments if name != "--check"] or pages()
    stale = 0
    for path in chosen:
        for file, text in _files(path):
            if file.exists() and file.read_text() == text:
                continue
            stale += 1
            print(f"{'stale' if check else 'written'}  {file.relative_to(ROOT)}")
            if not check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
    return int(check and stale > 0)


def _files(path: Path) -> Iterator[tuple[Path, str]]:
    text, pictures = filled(path)
    yield path, text
    yield from pictures.items()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
