"""The documents are true: their blocks equal the output of commands, their commands exist, and their links work."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from waiting import PATIENCE

from gemmgen.cli import cli
from gemmgen.cli.selection import find_specs, plan_specs

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("generate_pages", ROOT / "docs" / "generate.py")
assert spec is not None and spec.loader is not None
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)

MEANT_TO_FAIL = {
    "gemmgen check gemm/v3_double_buffer --set cache.l2_policy_a=evict_last",  # shows why
    "gemmgen explain gemm/wgmma/tour/a_from_registers --set mainloop.unroll=2",
    "gemmgen check gemm/wgmma/bf16/128x128 --set mainloop.stages=7",  # shows the sum
    "gemmgen render docs/tutorials/misspelt.yaml",
    "gemmgen verify gemm/v3_double_buffer --set 'epilogue=[{op: threshold, limit: 2.5}]'",  # the operation is the reader's to add
}

PAGES = generator.pages()
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "measurements/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
READ_ONLY = ("render", "check", "explain", "draw", "verify", "compile", "analyze", "bench", "view")
"""Commands whose arguments are specs that have to be planned."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_what_its_commands_say(page: Path) -> None:
    text, pictures = generator.filled(page)
    assert page.read_text() == text, "python docs/generate.py writes it anew"
    for path, picture in pictures.items():
        assert path.read_text() == picture, "python docs/generate.py draws it anew"


def commands_of(path: Path) -> list[str]:
    """Commands in fenced blocks and between backquotes; those with a placeholder are left out."""
    text = path.read_text()
    blocks = "\n".join(re.findall(r"^\s*```\w*\n(.*?)^\s*```", text, re.MULTILINE | re.DOTALL))
    joined = re.sub(r"\\\n\s*", " ", blocks)
    found = re.findall(r"^\s*(?:\$ |- run: )?((?:python -m )?gemmgen [a-z].*)$", joined, re.MULTILINE) + re.findall(
        r"`(gemmgen [a-z][^`]+)`", text
    )
    found = [re.sub(r" > [\w./-]+$", "", re.split(r"\s#", command)[0]) for command in found]
    found = [re.split(r""" && (?=(?:[^"]*"[^"]*")*[^"]*$)""", command)[0].strip() for command in found]
    return [
        command
        for command in dict.fromkeys(found)
        if not re.search(r"\b[A-Z]{2,}\b(?!=)|…|\.\.\.|[<>|]| [A-Z]\b", re.sub(r"'[^']*'", "", command))
    ]


COMMANDS = [(path, command) for path in DOCUMENTS for command in commands_of(path)]


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[f"{name_of(path)}: {command[:50]}" for path, command in COMMANDS])
def test_a_command_of_a_document_exists(path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(command.removeprefix("python -m "))
    context = click.Context(cli, info_name="gemmgen")
    found = cli.get_command(context, name)
    assert found is not None, f"there is no command {name}"
    while isinstance(found, click.Group) and arguments:
        found = found.get_command(context, arguments.pop(0))
        assert found is not None
    options = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help", "-h"}
    used = [argument.partition("=")[0] for argument in arguments if re.match(r"--?[a-z]", argument)]
    assert set(used) <= options, f"{name} has no {set(used) - options}"
    if name not in READ_ONLY or "--help" in arguments or command in MEANT_TO_FAIL:
        return
    values = found.make_context(name, list(arguments), parent=context, resilient_parsing=True).params
    names = [each for each in (values.get("specs") or [values.get("spec")]) if each]
    if all("/" in each and not each.startswith("your") for each in names) and not values.get("schedules", 1) > 1:
        architecture = values.get("architecture") or next(iter(values.get("architectures") or ()), None)
        plan_specs(find_specs(names), values.get("overrides") or (), architecture if architecture != "all" else None)


def test_instances_that_documents_show_are_in_the_library() -> None:
    instances = json.loads((ROOT / "generated" / "manifest.json").read_text())["instances"]
    labels = {instance["spec_name"] for instance in instances}
    shown = {command.split()[3] for _, command in COMMANDS if command.startswith("gemmgen library show ")}
    assert shown and shown <= labels


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.parent.name != "measurements"], ids=name_of)
def test_the_links_of_a_document_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = {target for target in re.findall(r"\]\(([^)\s#]+)", text) if not re.match(r"[a-z]+:", target)}
    made = {"reference/fields.md", "gallery/index.md"}
    missing = [target for target in targets if not (path.parent / target).exists() and target.removeprefix("../") not in made]
    assert not missing


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.is_relative_to(ROOT / "docs")], ids=name_of)
def test_links_lead_to_headings(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    missing = []
    for target, anchor in re.findall(r"\]\(([^)\s#]*\.md|)#([^)\s]+)\)", text):
        page = path.parent / target if target else path
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE) if page.exists() else []
        if page.exists() and anchor not in {
            re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings
        }:
            missing.append(f"{target}#{anchor}")
    assert not missing


def test_every_technique_has_its_places() -> None:
    rows = [line for line in (ROOT / "docs/stories/techniques.md").read_text().splitlines() if line.startswith("| ") and "---" not in line]
    rows = [row for row in rows if not row.startswith("| technique")]
    assert len(rows) > 25
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 5 and all(cells), row
        for template in re.findall(r"`(templates/[^`]+)`", cells[2]):
            assert (ROOT / template).exists(), template


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material makes the site")
    environment = {**os.environ, "GEMMGEN_SITE_GALLERY": "2", "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert all(
        (tmp_path / page).exists()
        for page in ("index.html", "gallery/index.html", "reference/commands/index.html", "stories/gemm/index.html")
    )


def test_importing_costs_nothing() -> None:
    program = "import time; t = time.process_time(); import gemmgen; print(time.process_time() - t)"
    times = [float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    assert min(times) < 0.5
