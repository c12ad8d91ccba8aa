"""Form of the tests themselves: direct assertions, short names; docstrings everywhere that are no questions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PACKAGE = sorted((ROOT / "gemmgen").rglob("*.py"))
MEASUREMENTS = sorted((ROOT / "measurements").glob("*.py"))
MAX_NAME_LENGTH = 60
MAX_UNTYPED = 30
"""Lines of the package that the type checker passes over. Their number only ever falls."""
CHECKS = ("pytest.raises", "pytest.warns", "pytest.fail", "np.testing.", "torch.testing.", "jsonschema.validate")
QUESTIONS = ("What ", "Which ", "Whether ", "How ")


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    """The tests of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def asserts_directly(test: ast.FunctionDef) -> bool:
    """True if a statement of the test itself can fail it."""
    calls = (ast.unparse(node.func) for node in ast.walk(test) if isinstance(node, ast.Call))
    return any(isinstance(node, ast.Assert) for node in ast.walk(test)) or any(call.startswith(CHECKS) for call in calls)


def questions(path: Path) -> Iterator[str]:
    """Docstrings, also of attributes, that open like a question."""
    for node in ast.walk(ast.parse(path.read_text())):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
                text = statement.value.value
                if text.lstrip().startswith(QUESTIONS):
                    yield f"{path.relative_to(ROOT)}:{statement.lineno}: {text.splitlines()[0]}"


@pytest.mark.parametrize("folder", sorted({path.parent for path in TESTS}), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_test_asserts_directly(folder: Path) -> None:
    indirect = [
        f"{path.name}: {test.name}" for path in sorted(folder.glob("*.py")) for test in functions(path) if not asserts_directly(test)
    ]
    assert not indirect


def test_names_of_tests_are_short() -> None:
    assert not [test.name for path in TESTS for test in functions(path) if len(test.name) > MAX_NAME_LENGTH]


def test_few_lines_are_hidden_from_the_type_checker() -> None:
    assert sum(path.read_text().count("# type: ignore") for path in PACKAGE) <= MAX_UNTYPED


def test_docstrings_open_with_noun_phrases() -> None:
    assert not [found for path in [*PACKAGE, *MEASUREMENTS, *TESTS] for found in questions(path)]


def test_what_hypothesis_draws_depends_on_no_import() -> None:
    assert len(providers._get_local_constants()) == 0


CLOCK = re.compile(r"time\.(monotonic|perf_counter|time)\(\)|timeout=\d|\.(wait|join)\(\d")
OWN_TIME = ("robustness/test_fuzz.py", "core/test_of_tests.py", "ops/test_torch.py", "runtime/test_kernel.py")
"""Where time is the subject: on a GPU, or asked for."""


def test_no_test_depends_on_how_fast_a_machine_is() -> None:
    files = [path for path in TESTS if path.relative_to(ROOT / "tests").as_posix() not in OWN_TIME]
    assert not [
        f"{path.relative_to(ROOT)}: {line.strip()}" for path in files for line in path.read_text().splitlines() if CLOCK.search(line)
    ]
