"""Every family has the modules that stations ask it for, with the functions and parameters of their protocols."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gemmgen
from gemmgen import ops
from gemmgen.codegen.summary import Summary
from gemmgen.core.resources import resource_directory
from gemmgen.dispatch.matcher import Matcher
from gemmgen.kernels import EXTRA_OPERATIONS, FAMILIES, GPU_KINDS, OPERATIONS, family, family_module
from gemmgen.ops.operators import Operator
from gemmgen.ops.torch_operators import declaration_of
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
    for kind in GPU_KINDS
    for module, protocol in [*PROTOCOLS.items(), ("explain", Summary)]
    for member in members(protocol)
]


@pytest.mark.parametrize(("kind", "module", "protocol", "member"), DEMANDS)
def test_a_family_has_what_a_station_asks_for(kind: str, module: str, protocol: Any, member: str) -> None:
    given = getattr(family_module(kind, module), member)
    wanted = list(inspect.signature(getattr(protocol, member)).parameters)[1:]
    assert list(inspect.signature(given).parameters) == wanted


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_declared_in_the_same_way_as_the_others(name: str) -> None:
    assert OPERATIONS[name] in FAMILIES
    function = getattr(ops, name)
    operator = import_module(f"gemmgen.ops.functions.{name}").OPERATOR
    arguments = inspect.signature(function).parameters
    assert operator.name == function.__name__ == name
    assert {*operator.operands[:1], *operator.results} <= arguments.keys()
    declared = declaration_of(name)
    of_schema = re.findall(r"(\w+)(?:=[^,]*)?(?=[,)])", declared.schema.partition(" -> ")[0])
    assert of_schema == list(inspect.signature(declared.call).parameters) == list(inspect.signature(declared.result).parameters)
    assert set(of_schema) <= arguments.keys()


def test_every_family_has_an_operation() -> None:
    assert {*OPERATIONS.values(), *EXTRA_OPERATIONS.values()} == set(GPU_KINDS)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_called_by_its_kind(kind: str) -> None:
    assert family(kind).kind == kind


COMMON_WORDS = ("rows",)
"""Kinds that are words of many files, where only an import names the family."""


def names_a_family(path: Path, kind: str) -> bool:
    """True if a module imports a family or has its kind as a text."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words |= {node.value} - {*COMMON_WORDS}
        elif isinstance(node, ast.ImportFrom) and node.module:
            words |= set(re.findall(r"^gemmgen\.kernels\.(\w+)", node.module))
    return kind in words


OUTSIDE: dict[str, dict[str, str]] = {
    "gemm": {
        "dispatch/problems.py": "words that users write for its kind of problems",
        "api.py": "the type of its plans",
        "dispatch/profiles.py": "operators of torch that are its products",
        "ops/block_formats.py": "block scales of factors, in a product's formats",
        "ops/doubles.py": "float64 products of slices of int8",
        "ops/functions/pointer_matmul.py": "the function",
        "ops/native.py": "a product's request, for processors",
        "ops/sparse.py": "factors of 2:4 sparsity, an object of the user's",
        "ops/weight_forms.py": "forms of kernels for packed weights",
        "ops/weight_kernels.py": "kernels for packed weights",
        "ops/weights.py": "packed weights, an object of the user's",
        "ops/planes.py": "planes of matrices, an object of the user's",
        "ops/torch_operators/matmul.py": "the type of a product's result",
    },
    "reduction": {
        "dispatch/problems.py": "words that users write for its kind of problems",
        "api.py": "the type of its plans",
        "dispatch/profiles.py": "operators of torch that are reductions",
    },
    "conv2d": {
        "dispatch/problems.py": "words that users write for its kind of problems",
        "api.py": "the type of its plans",
        "layouts.py": "functions for users that reorder images and filters",
        "ops/__init__.py": "the function",
        "ops/filters.py": "reordered filters, kept",
        "ops/functions/conv2d.py": "the function",
        "ops/functions/convolution_gradients.py": "gradients by its kernels",
        "verification/field.py": "layouts of images in a reference over a field",
    },
    "elementwise": {
        "dispatch/problems.py": "words that users write for its kind of problems",
        "api.py": "the type of its plans",
        "dispatch/profiles.py": "operators of torch that are chains of operations",
        "kernels/cpu_gemm/plan.py": "the code of a reason against operations",
        "kernels/epilogue/steps.py": "the same",
        "kernels/reduction/arithmetic.py": "the code of a reason against operations",
        "ops/__init__.py": "the function",
        "ops/functions/elementwise.py": "the function",
    },
    "quantise": {
        "dispatch/problems.py": "words that users write for its kind of problems",
        "ops/quantising.py": "the call, for arrays of every library",
    },
    "rows": {},
    "cpu_gemm": {
        "api.py": "the type of its plans",
        "export/blas.py": "the interface of BLAS, which a product alone has",
        "ops/host_tuning.py": "candidates for a product",
        "ops/native.py": "the instance for a product",
        "perf/host/benchmark.py": "a product beside libraries of BLAS",
        "perf/host/rates.py": "the folder of the program that measures rates",
    },
}
"""Files of gemmgen outside a family's folder that name it, and why; the registry in ``kernels/__init__.py`` names all."""


@pytest.mark.parametrize("kind", OUTSIDE)
def test_few_files_outside_its_folder_name_a_family(kind: str) -> None:
    root = Path(gemmgen.__file__).parent
    outside = [path.relative_to(root) for path in sorted(root.rglob("*.py")) if kind not in path.relative_to(root).parts]
    found = {path.as_posix() for path in outside if names_a_family(root / path, kind)}
    registry = set() if kind in COMMON_WORDS else {"kernels/__init__.py"}
    assert found == registry | set(OUTSIDE[kind])


def test_every_family_is_looked_for() -> None:
    assert set(OUTSIDE) == set(FAMILIES)


@pytest.mark.parametrize("kind", FAMILIES)
def test_templates_of_a_family_name_no_other(kind: str) -> None:
    root = resource_directory("templates")
    others = [other for other in FAMILIES if other != kind]
    texts = {path: path.read_text() for folder in (kind, "common", "device") for path in (root / folder).rglob("*.*")}
    assert [(path.name, other) for path, text in texts.items() for other in others if re.search(rf"(?<!\w){other}/", text)] == []
