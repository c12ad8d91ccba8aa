"""Pages of the site that are made from the project itself: the gallery of all shipped specs, the fields of specs, measurements.

mkdocs calls ``on_config``, ``on_files`` and ``on_page_markdown``.
"""

from __future__ import annotations

import inspect
import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import playground  # noqa: E402
from gallery import gallery_pages, plain  # noqa: E402

_LINK = re.compile(r"(!?\[[^\]]*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Turns the examples in the help of commands into code, before mkdocs-click takes them for prose."""
    from gemmgen.cli import cli

    _fence_examples(cli)
    return config


def _fence_examples(command: click.Command) -> None:
    if command.help:
        command.help = re.sub(r"\x08\n(.*?)(?=\n\s*\n|\Z)", r"```console\n\1\n```", inspect.cleandoc(command.help), flags=re.DOTALL)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            _fence_examples(below)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages that are generated or lie elsewhere in the repository."""
    for name, content in _generated():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links into measurements/ to their pages; a link to a file that the site lacks becomes the file's name."""
    here = posixpath.dirname(page.file.src_uri)
    source = "measurements" if page.file.src_uri.startswith("measurements/") else posixpath.join("docs", here)

    def rewritten(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        in_repository = posixpath.normpath(posixpath.join(source, target))
        on_site = in_repository.removeprefix("docs/")
        if on_site == "measurements/README.md":
            on_site = "measurements/index.md"
        if files.get_file_from_path(on_site) is not None:
            return f"{match[1]}({posixpath.relpath(on_site, here or '.')}{anchor})"
        if (ROOT / in_repository).exists() and not match[1].startswith("!"):
            return f"{match[1][1:-1]} (`{in_repository}`)" if f"`{in_repository}`" not in match[1] else match[1][1:-1]
        if source == "measurements" and not (ROOT / in_repository).exists():  # a table whose program has not run yet
            return match[1][1:-1]
        return match[0]

    # Links within fenced code stay as they are.
    pieces = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if place % 2 else _LINK.sub(rewritten, piece) for place, piece in enumerate(pieces))


def _generated() -> Iterator[tuple[str, str]]:
    yield from _measurements()
    yield "reference/fields.md", _fields()
    yield "playground.md", playground.page()
    yield from gallery_pages()


def _measurements() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "measurements").glob("*.md")):
        yield f"measurements/{'index' if path.stem == 'README' else path.stem}.md", path.read_text()
    for path in sorted((ROOT / "measurements").glob("*.svg")):
        yield f"measurements/{path.name}", path.read_text()


def _fields() -> str:
    """Every field of specs, by kind: its type, its default, and its description."""
    from gemmgen.kernels.spec_files import json_schema

    schema = json_schema()
    lines = [
        "# Fields of specs",
        "",
        "From the JSON Schema, which `gemmgen schema` prints for editors; `--set PATH=VALUE` takes these paths.",
        "",
    ]
    for variant in schema["anyOf"]:
        model = schema["$defs"][variant["$ref"].rpartition("/")[2]]
        lines += [f"## {model['properties']['kind']['const']}", "", *_table(model), ""]
    lines += ["## Parts", ""]
    roots = {variant["$ref"].rpartition("/")[2] for variant in schema["anyOf"]}
    for name, model in sorted(schema["$defs"].items()):
        if name not in roots and "properties" in model:
            lines += [f"### {name}", "", plain(model.get("description", "")), "", *_table(model), ""]
    return "\n".join(lines)


def _table(model: dict[str, Any]) -> list[str]:
    rows = ['<div class="fields" markdown="1">', "", "| field | values | default | meaning |", "|---|---|---|---|"]
    for name, field in model["properties"].items():
        default = json.dumps(field["default"]) if "default" in field else "needed" if name in model.get("required", ()) else ""
        shown = default if default in ("", "needed") else f"`{default}`"
        rows.append(f"| `{name}` | {_values(field)} | {shown} | {plain(field.get('description', ''))} |")
    return [*rows, "", "</div>"]


def _values(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(_values(one) for one in field[key])
    if field.get("type") == "array":
        return f"list of {_values(field['items'])}" if isinstance(field.get("items"), dict) else "list"
    limits = [f"≥ {field['minimum']}" if "minimum" in field else "", f"≤ {field['maximum']}" if "maximum" in field else ""]
    return " ".join([str(field.get("type", "any")), *filter(None, limits)])


__all__ = ["on_config", "on_files", "on_page_markdown"]
