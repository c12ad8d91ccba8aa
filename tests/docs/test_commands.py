"""The documents work: every command is run as it stands, and every block of code is checked or run."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from sampling import sampled

import gemmgen
from gemmgen.cli import cli
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import spec_fields

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "measurements/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"<!-- (?:run|diff|code)[^>]*-->\n```\w*\n.*?^```", re.MULTILINE | re.DOTALL)
"""Blocks that docs/generate.py makes; test_pages.py compares them with its present output."""

ELSEWHERE = {
    r"library (build|check)\b": "tests/library/test_command.py",
    r"sweep ci_gemm --export": "tests/sweep",
    r"sweep .*--scheduler": "tests/sweep",
    r"sweep --results": "tests/sweep",
    r"sweep tune_.* --search": "tests/sweep/test_search.py",
    r"emulate kernels?\.": "tests/cli/test_emulate.py",
    r"emulate product\.cu .*--field": "tests/sanitizer/test_field.py",
    r"gemmgen run ": "tests/sanitizer/test_run.py",
    r"draw .* -o docs/": "tests/present/drawing/test_documents.py",
    r"op: threshold": "tests/kernels/test_new_operation.py",
    r"yours?[./]|your/": "tests/cli/test_compare_and_see.py",
    r"sweep tiles\.yaml(?! .*(--dry-run|--sample))": "tests/cli/test_sweep.py",
    r"tune --cpu": "tests/cli/test_host.py",
    r"verify cpu/.* --sanitize": "tests/kernels/cpu_gemm",
}
"""Commands that take files of the reader's, a cluster or an hour, and the tests that run the like of them."""

WRITTEN = (
    ("saxpy.cu", "docs/emulate.md", "cuda", "// saxpy.cu"),
    ("tiles.yaml", "docs/sweeps.md", "yaml", "name: tiles"),
    ("fused.yaml", "README.md", "yaml", "kind: gemm"),
    ("swiglu_gate.yaml", "docs/epilogues.md", "yaml", "kind: gemm\nlabel: swiglu_gate"),
    ("candidate.cu", "docs/judge.md", "cuda", "// candidate.cu"),
    ("task.yaml", "docs/judge.md", "yaml", "grid:"),
    ("reference.py", "docs/judge.md", "python", '"""The outputs'),
)
"""Files of the reader's that documents show: name, page, language, how they begin."""

ON_SOME_MACHINES = r"gemmgen (bench|tune|verify --backend gpu|judge .*--time)"
"""Commands that name the missing part where there is no GPU, or a processor of another kind."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[tuple[str, str]]:
    """The fenced blocks that were written by hand: language and text."""
    text = MADE.sub("", path.read_text())
    return [(match["language"], re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)) for match in BLOCK.finditer(text)]


def lines_of_commands(path: Path) -> list[str]:
    """The command lines of blocks without a language, and of those that begin with a prompt, each with its continuations."""
    found = []
    for language, body in blocks(path):
        if language not in ("", "console", "sh", "bash") or "──" in body:
            continue
        body = re.sub(r"\\\n\s*", " ", body)
        prompted = re.findall(r"^\$ (.*)$", body, re.MULTILINE)
        found += prompted if language == "console" else body.splitlines()
    return [re.split(r"\s+#", line)[0].strip() for line in found if line.strip()]


def told(path: Path) -> list[str]:
    """Complete commands of gemmgen within the text; one that lacks an argument is a mention."""
    text = BLOCK.sub("", path.read_text())
    found = [" ".join(words.split()) for words in re.findall(r"`(gemmgen [a-z][^`]+)`", text)]
    return [
        command
        for command in found
        if not re.search(r"\b[A-Z]{2,}\b(?!=)|…|[<>|]| [A-Z]\b", re.sub(r"'[^']*'", "", command)) and complete(command)
    ]


def complete(command: str) -> bool:
    name, *arguments = shlex.split(command)[1:]
    found = cli.get_command(click.Context(cli), name)
    if found is None:
        return True  # and it fails when it is run
    if not arguments:
        return name in ("doctor", "schema")
    if "--explain" in arguments:
        return True
    try:
        found.make_context(name, arguments, resilient_parsing=False)
    except (click.MissingParameter, click.BadOptionUsage):
        return False
    except (click.ClickException, click.exceptions.Exit, GemmgenError):
        return True
    return True


LINES = [(path, line) for path in DOCUMENTS for line in lines_of_commands(path)]
COMMANDS = list(
    dict.fromkeys(
        part.strip().removeprefix("python -m ")
        for line in [line for _, line in LINES] + [command for path in DOCUMENTS for command in told(path)]
        for part in re.split(r" && | > (?=[\w./-]+$)", line)
        if part.strip().removeprefix("python -m ").startswith("gemmgen ")
    )
)
RUN = [command for command in COMMANDS if not any(re.search(pattern, command) for pattern in ELSEWHERE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder: the files that documents tell to write, beside those that come with gemmgen."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("specs", "generated", "measurements"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs" / "tutorials", folder / "docs" / "tutorials")
    shutil.copy(ROOT / "docs" / "stories" / "no_barrier.cu", folder / "docs")
    for file, page, language, begins in WRITTEN:
        found = (body for known, body in blocks(ROOT / page) if known == language and body.startswith(begins))
        (folder / file).write_text(next(found))
    return folder


@pytest.mark.parametrize("command", sampled(RUN, 4, str, lambda command: command.split()[1]))
def test_a_command_of_a_document_runs(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--search" in command:
        pytest.importorskip("optuna", reason="searches are Optuna's")
    monkeypatch.chdir(folder)
    arguments = shlex.split(command)[1:]
    if re.search("gemmgen sweep", command) and not re.search("--dry-run|--stages compile|--backend emulator", command):
        arguments.append("--dry-run")
    result = CliRunner().invoke(cli, arguments, prog_name="gemmgen")
    if re.search(ON_SOME_MACHINES, command):
        assert result.exit_code == 0 or re.search("GPU|AVX|avx512", result.output + result.stderr), result.output
    else:
        finding = re.search(" (emulate|judge) ", command) and "--explain" not in command
        assert result.exit_code == (1 if finding else 0), result.output + result.stderr
        assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("pattern", ELSEWHERE)
def test_what_is_run_elsewhere_is_still_told_and_still_run(pattern: str) -> None:
    assert any(re.search(pattern, command) for command in COMMANDS)
    assert (ROOT / ELSEWHERE[pattern]).exists()


@pytest.mark.parametrize(("path", "line"), LINES, ids=[f"{name_of(path)}: {line[:50]}" for path, line in LINES])
def test_every_line_of_a_block_of_commands_is_one_that_is_known(path: Path, line: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for part in re.split(r" && ", line):
        words = shlex.split(re.sub(r"^(\w+=\S+ )+", "", part))
        if words[0] == "make":
            assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in words[1:])
        elif words[:2] == ["pip", "install"]:
            assert set(re.findall(r"\.\[(\w+)\]", part)) <= set(extras)
        elif words[0] in ("python", "python3") and words[1:2] == ["-m"]:
            assert words[2] in ("venv", "gemmgen") or (ROOT / f"{words[2].replace('.', '/')}.py").exists()
        elif words[0] in ("python", "pytest", "g++"):
            assert all((ROOT / word).exists() for word in words[1:] if "/" in word and not word.startswith(".venv/"))
        else:
            assert words[0] in ("gemmgen", "dask", ".", "git"), part


README_PROBLEM = "gemm:4096,11008,4096,nt,bf16,silu"


def test_the_readme_shows_the_spec_and_kernel_of_its_problem() -> None:
    page = (ROOT / "README.md").read_text()
    planned = gemmgen.for_problem(README_PROBLEM, "H200")
    assert f"--problem {README_PROBLEM} --device H200" in page
    spec = yaml.safe_load(next(body for language, body in blocks(ROOT / "README.md") if language == "yaml"))
    assert gemmgen.plan(spec).spec == planned.spec
    kernel = next(body for language, body in blocks(ROOT / "README.md") if language == "cuda")
    assert kernel in gemmgen.render(planned).text


def test_the_tutorial_shows_the_spec_that_it_names() -> None:
    spec = yaml.safe_load(next(body for language, body in blocks(ROOT / "docs/tutorials/fused_linear.md") if language == "yaml"))
    shipped = spec_fields(shipped_specs()["gemm/simt/linear/bias_relu"])
    named = ("label", "description", "schema_version", "architecture")
    assert {name: value for name, value in shipped.items() if name not in named} == spec


def test_the_sweep_of_the_tutorial_is_the_file_beside_it() -> None:
    sweep = next(body for language, body in blocks(ROOT / "docs/tutorials/sweep.md") if language == "yaml")
    assert yaml.safe_load(sweep) == yaml.safe_load((ROOT / "docs/tutorials/stages.yaml").read_text())


def test_the_kernel_of_the_readme_is_called_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    example = next(body for language, body in blocks(ROOT / "README.md") if language == "python")
    (tmp_path / "example.py").write_text(example)
    names = runpy.run_path(str(tmp_path / "example.py"))
    expected = np.maximum(names["x"].astype("d") @ names["w"].T, 0)
    np.testing.assert_allclose(names["y"], expected, rtol=1e-5)


def operands(document: str) -> dict[str, object]:
    """Arrays of the names that a document's calls take."""
    random = np.random.default_rng(0)
    small = {name: random.standard_normal(shape, np.float32) for name, shape in (("a", (24, 16)), ("b", (16, 40)), ("bias", (40,)))}
    if document == "docs/float32.md":
        return small | {"x": random.standard_normal((24, 16), np.float32), "weight": random.standard_normal((40, 16), np.float32)}
    whole = {name: random.integers(-9, 9, shape, np.int8) for name, shape in (("q", (32, 64)), ("w", (64, 48)))}
    scales = {"row_scales": np.ones((32, 1), np.float32), "column_scales": np.ones((1, 48), np.float32)}
    groups = {
        "tokens": random.standard_normal((32, 64)).astype(np.float16),
        "experts": random.standard_normal((2, 64, 32)).astype(np.float16),
    }
    if document == "docs/classes.md":
        weight = random.standard_normal((64, 48)).astype(np.float16)
        return {"x": groups["tokens"], "w": weight, "experts": groups["experts"], "offsets": np.array([16, 32], np.int32)}
    weights: dict[str, object] = {
        "codes": random.integers(0, 16, (128, 48), np.uint8),
        "scales": random.standard_normal((1, 48)).astype(np.float16),
        "zeros": random.integers(0, 16, (1, 48), np.int32),
        "x": random.standard_normal((8, 128)).astype(np.float16),
    }
    if document == "docs/stories/quantised_weights.md":
        return weights | {"bias": random.standard_normal(48).astype(np.float16)}
    return small | whole | scales | groups | weights | {"offsets": np.array([16, 32], np.int32)}


ON_A_GPU = {"docs/formats.md": "tests/docs/test_formats_page.py"}
"""Documents whose examples make arrays of torch on a GPU, and the tests that run them whole."""

CALLS = [
    (path, line)
    for path in DOCUMENTS
    if name_of(path) not in ON_A_GPU
    for language, body in blocks(path)
    if language == "python" and "from gemmgen import ops" in body
    for line in body.splitlines()
    if re.match(r"[\w, ]+ = ops\.", line)
]
MADE_HERE = {line: body for path in DOCUMENTS for _, body in blocks(path) if "import numpy" in body for line in body.splitlines()}
"""Blocks that make their arrays, by each of their lines."""


@pytest.mark.parametrize(("path", "line"), CALLS, ids=[line.split("#")[0].strip() for _, line in CALLS])
def test_a_call_of_a_document_works_on_arrays_of_numpy(path: Path, line: str) -> None:
    from gemmgen import ops

    names: dict[str, object] = {"ops": ops, **operands(name_of(path))}
    exec(MADE_HERE.get(line, ""), names)
    wanted = set(re.findall(r"\w+", line.partition(" = ")[2])) - set(names)
    for page, other in CALLS:
        if page == path and other.partition(" = ")[0] in wanted:
            exec(other.split("#")[0], names)
    exec(line.split("#")[0], names)
    assert all(name in names for name in line.partition(" = ")[0].split(", "))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_blocks_of_python_parse(path: Path) -> None:
    for body in (body for language, body in blocks(path) if language == "python"):
        assert compile(body, name_of(path), "exec")
