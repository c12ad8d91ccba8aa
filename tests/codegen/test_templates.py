"""Layout of the templates themselves, and the conventions that they are written in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes

from gemmgen.codegen.rendering import WIDTH
from gemmgen.codegen.templates import building_blocks, environment, referenced, without_empty_lines
from gemmgen.core.resources import resource_directory

ROOT = resource_directory("templates")
TEMPLATES = sorted(path for path in ROOT.rglob("*") if path.is_file())
JINJA = [path for path in TEMPLATES if path.suffix == ".j2"]
WIDEST = 160


def too_long(path: Path, limit: int) -> list[int]:
    """Numbers of the lines of a file that are longer than so many columns."""
    return [number for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > limit]


def calculations(source: str) -> Iterator[int]:
    """Numbers of the lines of a template that compute with numbers; joined texts and lists do not count."""
    for node in (
        environment(ROOT).parse(source).find_all((nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow))
    ):
        lists = [child for child in node.iter_child_nodes() if isinstance(child, (nodes.List, nodes.CondExpr, nodes.Add))]
        if not (isinstance(node, nodes.Add) and lists):
            yield node.lineno


def chains(source: str) -> list[int]:
    """Numbers of the lines of a template with an expression that chooses among three texts or more: a plan can name the choice."""
    found = environment(ROOT).parse(source).find_all(nodes.CondExpr)
    return [node.lineno for node in found if isinstance(node.expr1, nodes.CondExpr) or isinstance(node.expr2, nodes.CondExpr)]


@pytest.fixture
def write(tmp_path: Path) -> jinja2.Environment:
    """Templates of a folder of their own."""
    (tmp_path / "common").mkdir()
    (tmp_path / "gemm").mkdir()
    (tmp_path / "common" / "copy.cu.j2").write_text("{% macro load() %}\nint a;\nint b;\n{% endmacro %}\n")
    (tmp_path / "common" / "half.cu.j2").write_text("{% macro load() %}common{% endmacro %}\n")
    (tmp_path / "gemm" / "half.cu.j2").write_text("{% macro load() %}own{% endmacro %}\n")
    return environment(tmp_path)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_line_of_a_template_is_too_long(path: Path) -> None:
    assert too_long(path, WIDEST) == []


@pytest.mark.parametrize("path", sorted((ROOT / "device").rglob("*.cuh")), ids=lambda path: path.stem)
def test_device_code_fits_a_line_of_generated_code(path: Path) -> None:
    assert too_long(path, WIDTH) == []


@pytest.mark.parametrize("path", JINJA, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_expression_chooses_between_two_texts(path: Path) -> None:
    assert chains(path.read_text()) == []


def test_chains_of_choices_in_templates_are_found() -> None:
    assert chains("{{ a if b else c }}\n{{ a if b else c if d else e }}\n{% set f = (a if b else c) if d else e %}") == [2, 3]


@pytest.mark.parametrize("path", JINJA, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_template_computes_nothing(path: Path) -> None:
    assert sorted(calculations(path.read_text())) == []


def test_calculations_in_templates_are_found() -> None:
    assert list(calculations("{{ a }}\n{{ a * 2 }}\n{% set b = (a + 1) // 2 %}\n{{ a ~ ' + 1' }}{{ [a] + b }}")) == [2, 3, 3]


def test_a_lone_expression_takes_its_indentation(write: jinja2.Environment) -> None:
    assert write.from_string("x\n    {{ 'a\\nb' }}\ny\n").render() == "x\n    a\n    b\ny\n"


def test_a_lone_expression_without_text_leaves_no_line(write: jinja2.Environment) -> None:
    assert without_empty_lines(write.from_string("x\n    {{ 'a' if wanted }}\ny\n").render(wanted=False)) == "x\ny\n"


def test_shared_building_blocks_are_found_by_their_files(write: jinja2.Environment) -> None:
    assert building_blocks(write.list_templates(), "gemm/tiled.cu.j2")["copy"] == "common/copy.cu.j2"


def test_building_blocks_of_the_own_folder_come_first(write: jinja2.Environment) -> None:
    assert building_blocks(write.list_templates(), "gemm/tiled.cu.j2")["half"] == "gemm/half.cu.j2"


def test_a_template_imports_the_blocks_that_it_names(tmp_path: Path, write: jinja2.Environment) -> None:
    (tmp_path / "gemm" / "tiled.cu.j2").write_text("{\n    {{ copy.load() }}\n}\n")
    assert write.get_template("gemm/tiled.cu.j2").render() == "{\n    int a;\n    int b;\n}\n"


def test_a_value_hides_the_building_block_of_its_name(tmp_path: Path, write: jinja2.Environment) -> None:
    (tmp_path / "gemm" / "tiled.cu.j2").write_text("{% set copy = 'text' %}{{ copy.upper() }}\n")
    assert write.get_template("gemm/tiled.cu.j2").render() == "TEXT\n"


def test_a_block_of_which_nothing_is_called_is_not_read(tmp_path: Path, write: jinja2.Environment) -> None:
    (tmp_path / "common" / "copy.cu.j2").write_text("{% no template %}\n")
    (tmp_path / "gemm" / "tiled.cu.j2").write_text("x{{ copy.load() if wanted }}\n")
    assert write.get_template("gemm/tiled.cu.j2").render(wanted=False) == "x\n"


def test_a_macro_that_a_block_lacks_is_an_error(tmp_path: Path, write: jinja2.Environment) -> None:
    (tmp_path / "gemm" / "tiled.cu.j2").write_text("{{ copy.store() }}\n")
    with pytest.raises(jinja2.UndefinedError, match="store"):
        write.get_template("gemm/tiled.cu.j2").render()


def test_building_blocks_count_as_referenced(write: jinja2.Environment) -> None:
    found = referenced(write, '{{ copy.load() }}{% include "common/half.cu.j2" %}', "gemm/a.cu.j2")
    assert found == ["common/copy.cu.j2", "common/half.cu.j2"]


def test_no_template_has_two_macros_of_a_name():
    twice = {}
    for path in JINJA:
        names = [node.name for node in environment(ROOT).parse(path.read_text()).body if isinstance(node, nodes.Macro)]
        twice[path.name] = {name for name in names if names.count(name) > 1}
    assert not {name: macros for name, macros in twice.items() if macros}
