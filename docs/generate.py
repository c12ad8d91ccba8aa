"""Fills the pages of the documentation with the text and pictures that commands make: python docs/generate.py [--check] [PAGE ...]

A page keeps its prose; the part after one of these comments is made anew:

    <!-- run [from=REGEX] [match=REGEX] [first=N] [last=N] [exit=N] -->
                                                   and a fenced block whose first line is `$ gemmgen ...`: the command's output
    <!-- diff SPEC SPEC [from=FIELD=VALUE] [set=FIELD=VALUE] [context=N] [first=N] -->
                                                   and a fenced block: the difference of the two rendered kernels, the first (from) or
                                                   the second (set) with a field changed
    <!-- code SPEC from=REGEX lines=N -->           and a fenced block: a piece of a rendered kernel
    <!-- draw SPEC options of gemmgen draw -->      and an image: the picture is written where the image says
    <!-- chart CHAPTER -->                         and an image: bars of a chapter's figures in measurements/stories.json
    <!-- times CHAPTER -->                         and a table: the same in numbers
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
COLUMNS = "140"

_FENCED = re.compile(
    r"<!-- (?P<kind>run|diff|code)(?P<options>[^>]*?) ?-->\n(?P<fence>```)(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_TABLE = re.compile(r"<!-- times (?P<chapter>\w+) -->\n(?:\|.*\n)+")
_IMAGE = re.compile(r"<!-- (?P<kind>draw|chart) (?P<options>[^>]*?) ?-->\n!\[(?P<alt>[^\]]*)\]\((?P<file>[^)]+)\)")


def pages() -> list[Path]:
    """The pages that have something to fill."""
    return [path for path in sorted(DOCS.rglob("*.md")) if any(kind.search(path.read_text()) for kind in (_FENCED, _TABLE, _IMAGE))]


def filled(path: Path) -> tuple[str, dict[Path, str]]:
    """A page as it must be, and the pictures that it shows."""
    text = path.read_text()
    text = _FENCED.sub(lambda match: _fenced(match), text)
    text = _TABLE.sub(_times, text)
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
        shown = _command_lines(match["body"].splitlines())
        command = " ".join(line.removesuffix("\\").strip() for line in shown)
        lines = run(command.removeprefix("$ "), int(options.get("exit", 0))).rstrip().splitlines()
        if "from" in options:
            lines = lines[_matching(lines, options["from"], command) :]
        if "match" in options:
            lines = [line for entry in _entries(lines) if re.search(options["match"], entry[0]) for line in entry]
        lines = [*shown, *(part for line in _selected(lines, options) for part in _wrapped(line))]
    elif kind == "diff":
        kernels = (words[0], options.get("from")), (words[1], options.get("set"))
        lines = _selected(_diff(*kernels, context=int(options.get("context", 2))), options)
    else:
        lines = _code(words[0], options)
    body = "\n".join(line.rstrip() for line in lines)
    comment = f"<!-- {kind}{match['options']} -->"
    return f"{comment}\n```{match['language']}\n{body}\n```"


def _command_lines(lines: list[str]) -> list[str]:
    """The lines of a block's command: the first one, and the next one after each line that ends with a backslash."""
    last = next(place for place, line in enumerate(lines) if not line.endswith("\\"))
    return lines[: last + 1]


def _wrapped(line: str) -> list[str]:
    """A line of output, folded with a hanging indentation if it is wider than the pages show."""
    if len(line) <= int(COLUMNS):
        return [line]
    indentation = line[: len(line) - len(line.lstrip())] + "    "
    return textwrap.wrap(line, int(COLUMNS), subsequent_indent=indentation, drop_whitespace=True, break_on_hyphens=False)


def _matching(lines: list[str], pattern: str, source: str) -> int:
    """The place of the first line that a pattern matches; the program ends with a message that names the source if there is none."""
    found = next((place for place, line in enumerate(lines) if re.search(pattern, line)), None)
    if found is None:
        raise SystemExit(f"{source}: no line matches {pattern!r}")
    return found


def _entries(lines: list[str]) -> list[list[str]]:
    """Lines with those that continue them: more than eight columns farther in than the line that they belong to."""
    found: list[list[str]] = []
    for line in lines:
        indentation = len(line) - len(line.lstrip())
        if found and line.strip() and found[-1][0].strip() and indentation > 8 + len(found[-1][0]) - len(found[-1][0].lstrip()):
            found[-1].append(line)
        else:
            found.append([line])
    return found


def _selected(lines: list[str], options: dict[str, str]) -> list[str]:
    first, last = int(options.get("first", len(lines))), int(options.get("last", 0))
    if first + last >= len(lines):
        return lines
    return [*lines[:first], "...", *(lines[-last:] if last else [])]


def _diff(*kernels: tuple[str, str | None], context: int) -> list[str]:
    """The difference of two rendered kernels, each a spec and a change of one of its fields."""
    from gemmgen.present.comparison import source_diff

    first, second = (run(f"gemmgen render {spec} -o -" + (f" --set {change}" if change else "")) for spec, change in kernels)
    one, other = (f"{spec} {change}" if change else spec for spec, change in kernels)
    return list(source_diff(first, second, (one, other), context))


def _code(spec: str, options: dict[str, str]) -> list[str]:
    import gemmgen

    lines = gemmgen.render(spec).text.splitlines()
    first = _matching(lines, options["from"], f"code {spec}")
    return lines[first : first + int(options["lines"])]


def _picture(match: re.Match[str]) -> str:
    if match["kind"] == "draw":
        return run(f"gemmgen draw {match['options']} -o -")
    return _chart(match["options"].strip(), match["alt"])


def _chapter(name: str) -> dict[str, Any]:
    """Measurements for a chapter of the stories, with the device and the date of the run."""
    measured = json.loads((ROOT / "measurements" / "stories.json").read_text())
    found = next((chapter for chapter in measured["chapters"] if chapter["chapter"] == name), None)
    if found is None:
        raise SystemExit(f"measurements/stories.json has no chapter {name}: python -m measurements.stories {name}")
    return {**found, "device": measured["device"], "date": measured["date"]}


def _rate(chapter: dict[str, Any]) -> tuple[str, float, str]:
    """The rate that a chapter is about: of operations, or of bytes where nearly nothing is computed."""
    first = chapter["steps"][0]
    if first["operations_per_second"] > 4 * first["bytes_per_second"]:
        return "operations_per_second", 1e12, "TFLOP/s" if "conv2d" not in first["spec"] else "TOP/s"
    return "bytes_per_second", 1e9, "GB/s"


def _times(match: re.Match[str]) -> str:
    """A table of a chapter: each step's time, rate and registers, and how it and the vendor's library compare with the first step."""
    chapter = _chapter(match["chapter"])
    key, scale, unit = _rate(chapter)
    lines = [
        f"| kernel | µs | {unit} | registers | spilled bytes | times as fast as the first |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    first = chapter["steps"][0]["median_us"]
    for step in chapter["steps"]:
        spec = f"`{step['spec']}`" + (f" with {', '.join(f'`{change}`' for change in step['changes'])}" if step["changes"] else "")
        used = step["registers"]
        cells = [
            f"{step['name']}: {spec}",
            f"{step['median_us']:,.1f}",
            f"{step[key] / scale:,.1f}",
            used["registers"],
            used["spilled_bytes"],
            f"{first / step['median_us']:.2f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        f"| {peer['name']} | {peer['median_us']:,.1f} | {peer[key] / scale:,.1f} | – | – | {first / peer['median_us']:.2f} |"
        for peer in chapter["peers"]
    ]
    return "\n".join([f"<!-- times {match['chapter']} -->", *lines, ""])


def _chart(name: str, title: str) -> str:
    """Bars of a chapter: one for each step, and for the vendor's library."""
    from gemmgen.present.drawing.svg import MARGIN, WIDTH, Canvas, document, width_of

    chapter = _chapter(name)
    key, scale, unit = _rate(chapter)
    rows = [(row, kind) for kind in ("steps", "peers") for row in chapter[kind]]
    most = max(row[key] for row, _ in rows)
    canvas = Canvas()
    canvas.text(0, 16, title, "title")
    left = max(250.0, *(8 + width_of(row["name"], "text strong" if kind == "peers" else "text") for row, kind in rows))
    y, room = 34.0, WIDTH - left - 150
    for row, kind in rows:
        canvas.text(left - 8, y + 15, row["name"], "text end strong" if kind == "peers" else "text end")
        wide = room * row[key] / most
        canvas.rect(left, y + 2, max(wide, 1), 18, "c1 thin" if kind == "peers" else "c0 thin")
        canvas.text(left + wide + 6, y + 15, f"{row[key] / scale:,.2f} {unit}, {row['median_us']:,.1f} µs", "note")
        y += 25
    problem = " × ".join(map(str, chapter["sizes"]))
    told = f"{problem}; {chapter['device']}, {chapter['clocks']}, {chapter['date']}; inputs {chapter['inputs']}"
    y = canvas.paragraph(0, y + 15, told, "note", WIDTH) - 31
    parts = [f'<g transform="translate({MARGIN} {MARGIN})">', *canvas.parts, "</g>"]
    description = "; ".join(f"{row['name']}: {row['median_us']:.1f} µs" for row, _ in rows)
    return document(parts, y + 20 + 2 * MARGIN, title, description)


def main(arguments: list[str]) -> int:
    """Fills pages; with --check only says which are not current."""
    options = argparse.ArgumentParser(description="Fills the pages of the documentation with the output and pictures of commands.")
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not current")
    options.add_argument("page", nargs="*", type=Path, help="a page in docs/; else all of them")
    asked = options.parse_args(arguments)
    check: bool = asked.check
    chosen = [path.resolve() for path in asked.page] or pages()
    for path in chosen:
        if not path.is_file() or not path.is_relative_to(ROOT):
            options.error(f"no page of the documentation: {path}")
    stale = 0
    for number, path in enumerate(chosen, 1):
        print(f"page {number} of {len(chosen)}: {path.relative_to(ROOT)}", flush=True)
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
