from __future__ import annotations

import os
import warnings
from pathlib import Path

import jinja2
import pytest

from gemmgen.codegen.compiled_templates import FOLDER
from gemmgen.codegen.templates import environment


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "templates"
    (folder / "gemm").mkdir(parents=True)
    (folder / "gemm" / "kernel.cu.j2").write_text("{{ value }}\n{{ block_of.text() }}\n")
    (folder / "gemm" / "other.cu.j2").write_text("{% macro text() %}first{% endmacro %}\n")
    return folder


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the templates that Jinja compiles from here on."""
    compiled: list[str] = []
    compile = jinja2.Environment.compile

    def counting(self: jinja2.Environment, source: str, name: str | None = None, *rest: object, **more: object) -> object:
        compiled.append(str(name))
        return compile(self, source, name, *rest, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(jinja2.Environment, "compile", counting)
    return compiled


def rendered(root: Path) -> str:
    """By an environment of its own, as in a new process."""
    (root / "gemm" / "kernel.cu.j2").touch()
    return environment(root).get_template("gemm/kernel.cu.j2").render(value=7, block_of=type("Text", (), {"text": lambda self: "x"})())


def test_a_template_is_compiled_once(cache: Path, root: Path, compilations: list[str]) -> None:
    assert rendered(root) == rendered(root) == "7\nx\n"
    assert compilations == ["gemm/kernel.cu.j2"]


def test_a_changed_template_is_compiled_anew(cache: Path, root: Path, compilations: list[str]) -> None:
    rendered(root)
    (root / "gemm" / "kernel.cu.j2").write_text("{{ value + 1 }}\n")
    assert rendered(root) == "8\n"
    assert len(compilations) == 2


def test_a_building_block_that_comes_to_be_is_found(cache: Path, root: Path) -> None:
    (root / "gemm" / "kernel.cu.j2").write_text("{{ other.text() }}\n")
    (root / "gemm" / "other.cu.j2").rename(root / "gemm" / "later.cu.j2")
    with pytest.raises(jinja2.UndefinedError):
        rendered(root)
    (root / "gemm" / "later.cu.j2").rename(root / "gemm" / "other.cu.j2")
    assert rendered(root) == "first\n"


@pytest.mark.parametrize("data", [b"", b"j2", b"\0" * 4096], ids=["empty", "short", "zeros"])
def test_a_damaged_entry_is_compiled_anew(cache: Path, root: Path, compilations: list[str], data: bytes) -> None:
    rendered(root)
    (file,) = cache.glob("v1/*/bytecode")
    file.chmod(0o600)
    file.write_bytes(data)
    assert rendered(root) == "7\nx\n"
    assert len(compilations) == 2


def test_a_folder_that_others_may_write_is_left_alone(cache: Path, root: Path, compilations: list[str]) -> None:
    rendered(root)
    os.chmod(cache, 0o777)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rendered(root) == "7\nx\n"
    assert len(compilations) == 2
