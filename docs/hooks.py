"""Pages of the site that are made from the project itself: the gallery of all shipped specs, the fields of specs, measurements.

mkdocs calls ``on_files`` and ``on_page_markdown``. GEMMGEN_SITE_GALLERY limits the number of specs in the gallery, for quick builds.
"""

from __future__ import annotations

import html
import json
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

_LINK = re.compile(r"(!?\[[^\]]*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)]*)?\)")
_KINDS = {
    "gemm": "Products of matrices",
    "conv2d": "Convolutions",
    "reduction": "Reductions",
    "elementwise": "Elementwise",
    "cpu": "Processors",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what is made or lies elsewhere in the repository."""
    for name, content in _generated():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links into measurements/ to their pages; what the site does not have becomes its name."""
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
    yield from _gallery()


def _measurements() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "measurements").glob("*.md")):
        yield f"measurements/{'index' if path.stem == 'README' else path.stem}.md", path.read_text()
    for path in sorted((ROOT / "measurements").glob("*.svg")):
        yield f"measurements/{path.name}", path.read_text()


def _fields() -> str:
    """Every field of specs, by kind: its type, its default, and what it says of itself."""
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
            lines += [f"### {name}", "", _plain(model.get("description", "")), "", *_table(model), ""]
    return "\n".join(lines)


def _table(model: dict[str, Any]) -> list[str]:
    rows = ["| field | values | default | meaning |", "|---|---|---|---|"]
    for name, field in model["properties"].items():
        default = json.dumps(field["default"]) if "default" in field else "needed" if name in model.get("required", ()) else ""
        shown = default if default in ("", "needed") else f"`{default}`"
        rows.append(f"| `{name}` | {_values(field)} | {shown} | {_plain(field.get('description', ''))} |")
    return rows


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


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _cell(text: str) -> str:
    """A text in a table, of which nothing is a link or markup."""
    return _plain(html.escape(text)).replace("[", "&#91;").replace("*", "&#42;").replace("_", "&#95;")


def _gallery() -> Iterator[tuple[str, str]]:
    """A page for every shipped spec, and one that lists them."""
    from gemmgen.kernels.shipped import shipped_specs

    limit = int(os.environ.get("GEMMGEN_SITE_GALLERY", "100000"))
    specs = list(shipped_specs().items())
    chosen = specs if len(specs) <= limit else specs[:: max(1, len(specs) // limit)]
    manifest = {
        entry["spec_file"].removesuffix(".yaml"): entry
        for entry in json.loads((ROOT / "generated" / "manifest.json").read_text())["instances"]
    }
    told = f"All {len(specs)} specs that ship with gemmgen, each with its pictures, its kernel, its certificates and its counters."
    lines = ["# Gallery", "", told, ""]
    groups: dict[str, list[str]] = {}
    for name, path in chosen:
        made = _gallery_page(name, path, manifest.get(name))
        if made is None:
            continue
        page, picture, summary = made
        yield f"gallery/{name}.md", page
        if picture:
            yield f"gallery/{name}.svg", picture
        groups.setdefault(name.partition("/")[0], []).append(f"| [`{name}`]({name}.md) | {summary} |")
    for kind, rows in groups.items():
        lines += [f"## {_KINDS.get(kind, kind)}", "", "| spec | for |", "|---|---|", *rows, ""]
    yield "gallery/index.md", "\n".join(lines)


def _gallery_page(name: str, path: Path, entry: dict[str, Any] | None) -> tuple[str, str, str] | None:
    import gemmgen
    from gemmgen.core.errors import GemmgenError
    from gemmgen.dispatch.prediction import device_for
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.present.drawing import draw
    from gemmgen.present.explanation import explanation_of
    from gemmgen.present.launch_pictures import all_pictures

    try:
        plan = gemmgen.plan(path)
    except GemmgenError:  # a spec that another machine is needed for
        return None
    for_gpu = isinstance(plan, KernelPlan)
    pictures = all_pictures(plan, device_for(plan.architecture if for_gpu else None))
    description = _plain(str(plan.spec.description or ""))
    lines = [f"# {name}", "", description, "", f"`{plan.name}`", ""]
    svg = draw(plan.name, pictures) if pictures else ""
    if svg:
        lines += [f"![Pictures of {name}]({path.stem}.svg)", ""]
    lines += ["## The spec", "", "```yaml", path.read_text().rstrip(), "```", "", "## The plan", ""]
    for section in explanation_of(plan.spec.kind).explain(plan):
        lines += [f"**{section.title}**", "", "| | |", "|---|---|"]
        lines += [f"| {_cell(label)} | {_cell(text)} |" for label, text in section.lines] + [""]
    if entry is not None:
        lines += _evidence(entry)
    lines += ["## The kernel", "", "```" + ("cuda" if for_gpu else "c"), gemmgen.render(plan).text.rstrip(), "```", ""]
    return "\n".join(lines), svg, description


def _evidence(entry: dict[str, Any]) -> list[str]:
    """The certificates of an instance of the library, and the counters of one case."""
    lines = ["## Certificates", "", "| architecture | registers | spills, bytes | blocks on an SM | verified on | cases | error / bound |"]
    lines.append("|---|---:|---:|---:|---|---:|---:|")
    predicted: dict[str, Any] = {}
    for architecture, file in entry["certificates"].items():
        certificate = json.loads((ROOT / "generated" / file).read_text())
        kernels = certificate["binary"].values()
        spills = max(kernel["spill_stores"] + kernel["spill_loads"] for kernel in kernels)
        blocks = min(found["blocks_per_sm"] for found in certificate["occupancy"].values())
        runs = certificate["verification"]
        told = ", ".join(dict.fromkeys(run["device"] for run in runs))
        lines.append(
            f"| {architecture} | {max(kernel['registers'] for kernel in kernels)} | {spills} | {blocks} | {told} | "
            f"{sum(run['cases'] for run in runs)} | {max((run['worst_ratio'] for run in runs), default=0):.3g} |"
        )
        predicted = certificate["predicted"] or predicted
    if predicted:
        sizes = " ".join(f"{name}={value}" for name, value in predicted["problem"].items())
        counters = f"{predicted['wavefronts']:,} wavefronts of shared memory, {predicted['bank_conflicts']:,} of them conflicts; "
        counters += f"{predicted['sectors']:,} sectors of global memory; {predicted['barriers']:,} barriers"
        lines += ["", "## Counters", "", f"Of the case *{predicted['case']}* ({sizes}): {counters}."]
    return [*lines, ""]


__all__ = ["on_files", "on_page_markdown"]
