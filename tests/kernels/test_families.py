"""Every family has the modules that stations ask it for, with the functions and parameters of their protocols."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import gemmgen
from gemmgen.codegen.summary import Summary
from gemmgen.dispatch.matcher import Matcher
from gemmgen.kernels import FAMILIES, family, part
from gemmgen.ops.operators import Operator
from gemmgen.perf.cost_model import CostModel
from gemmgen.present.explanation import Explanation, Illustration
from gemmgen.verification.oracle import Oracle


def members(protocol: Any) -> list[str]:
    """Members of a protocol."""
    return sorted(name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_"))


PROTOCOLS = {
    "oracle": Oracle,
    "cost_model": CostModel,
    "matcher": Matcher,
    "operator": Operator,
    "explain": Explanation,
    "pictures": Illustration,
}
DEMANDS = [
    (kind, module, protocol, member)
    for kind in FAMILIES
    for module, protocol in [*PROTOCOLS.items(), ("explain", Summary)]
    for member in members(protocol)
]


@pytest.mark.parametrize(("kind", "module", "protocol", "member"), DEMANDS)
def test_a_family_has_what_a_station_asks_for(kind: str, module: str, protocol: Any, member: str) -> None:
    given = getattr(part(kind, module), member)
    if member == "NAMES":
        assert all(name.isidentifier() for name in given)
        return
    wanted = list(inspect.signature(getattr(protocol, member)).parameters)[1:]
    assert list(inspect.signature(given).parameters) == wanted


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_called_by_its_kind(kind: str) -> None:
    assert family(kind).kind == kind


def names_a_family(path: Path, kind: str) -> bool:
    """True if a module imports a family, or has its kind or its function as a word of its own."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        elif isinstance(node, ast.ImportFrom) and node.module:
            words.add(node.module.removeprefix("gemmgen.kernels."))
        elif isinstance(node, ast.Name):
            words.add(node.id)
    return kind in words


def test_few_files_outside_its_folders_name_a_family() -> None:
    root = Path(gemmgen.__file__).parent
    outside = [path for path in sorted(root.rglob("*.py")) if "elementwise" not in path.relative_to(root).parts]
    found = [path.relative_to(root).as_posix() for path in outside if names_a_family(path, "elementwise")]
    assert found == [
        "kernels/__init__.py",
        "kernels/cpu_gemm/plan.py",  # the code of a reason against operations
        "kernels/epilogue/steps.py",  # the same
        "ops/__init__.py",
        "ops/torch_operators.py",
    ]
