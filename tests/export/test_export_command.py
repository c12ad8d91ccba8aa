"""``gemmgen export``: its files, that it writes the same again, and its messages about bad input."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli.conftest import Run, run, spec
from conftest import SPECS
from waiting import PATIENCE

from export.c_host import dummy_bundle
from gemmgen import api
from gemmgen.cli.compilation import compile_plans
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.export import fatbin
from gemmgen.export.header import render_header
from gemmgen.export.images import allowed_architectures, portable_architectures
from gemmgen.export.python_module import render_module
from gemmgen.hardware.target import ARCHITECTURES
from gemmgen.kernels import GPU_KINDS
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.cubin import read_entries, text_sections

__all__ = ["run", "spec"]


@pytest.mark.parametrize(("kind", "suffix"), [("cubin", ".sm_80.cubin"), ("fatbin", ".fatbin"), ("header", ".h"), ("python", ".py")])
def test_file_is_named_after_instance_and_left_alone_second_time(run: Run, spec: Path, kind: str, suffix: str) -> None:
    first = run("export", spec, "--format", kind, "--arch", "sm_80", "-o", "out/")
    (file,) = Path("out").iterdir()
    assert file.name == api.plan(spec).name + suffix
    assert first.out == f"written    {file}\n"
    assert run("export", spec, "--format", kind, "--arch", "sm_80", "-o", "out").out == f"unchanged  {file}\n"


def test_cubins_are_one_for_each_architecture(run: Run, spec: Path) -> None:
    run("export", spec, "--format", "cubin", "--arch", "sm_80", "--arch", "sm_90", "-o", "out/")
    name = api.plan(spec).name
    assert sorted(path.name for path in Path("out").iterdir()) == [f"{name}.sm_80.cubin", f"{name}.sm_90.cubin"]
    code = text_sections(compile_plan(api.plan(spec, "sm_90")).cubin)
    assert text_sections((Path("out") / f"{name}.sm_90.cubin").read_bytes()) == code


@pytest.mark.parametrize("name", ["gemm/v3_double_buffer", "reduction/sum_last_block", "conv2d/mma_sync/same_3x3"])
def test_binaries_hold_certified_code_without_lines_of_source(run: Run, name: str) -> None:
    run("export", name, "--format", "cubin", "--arch", "sm_90", "-o", "small.cubin")
    run("export", name, "--format", "cubin", "--arch", "sm_90", "--line-info", "-o", "large.cubin")
    small, large = Path("small.cubin").read_bytes(), Path("large.cubin").read_bytes()
    certified = compile_plan(api.plan(name, "sm_90"))
    assert large == certified.cubin
    assert text_sections(small) == text_sections(large)
    assert read_entries(small) == read_entries(large)
    assert len(small) < len(large) / 2


def test_the_ptx_of_an_export_is_the_certified_program(run: Run) -> None:
    plan = api.plan(SPECS / "gemm/v3_double_buffer.yaml", "sm_90")
    small, large = (compile_plans([plan], line_info=lines)[0].ptx for lines in (False, True))
    assert len(small) < len(large)
    assert _statements(small) == _statements(large)


def _statements(ptx: str) -> list[str]:
    """The lines of the program, without those that say where in the source they come from."""
    text = re.sub(r"^\s*\.section\b[^{]*\{[^}]*\}", "", ptx, flags=re.MULTILINE)
    return [line for line in text.splitlines() if line.strip() and not re.match(r"\s*(\.loc|\.file|//)", line)]


def test_a_binary_whose_code_comes_out_otherwise_keeps_its_lines(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.export.images.same_machine_code", lambda one, other: False)
    run("export", "gemm/v3_double_buffer", "--format", "cubin", "--arch", "sm_90", "-o", "kept.cubin")
    assert Path("kept.cubin").read_bytes() == compile_plan(api.plan(SPECS / "gemm/v3_double_buffer.yaml", "sm_90")).cubin


def test_functions_of_header_have_short_name_of_their_own(run: Run) -> None:
    names = [
        "gemm/v3_double_buffer",
        "gemm/simt/split_k_serial",
        "conv2d/mma_sync/int8/pixels_128x128x64",
        "reduction/argmax_vocabulary_bf16",
    ]
    plans = [api.plan(name) for name in names]
    for plan in plans:
        text = render_header(dummy_bundle(plan))
        prefix = f"{plan.spec.label or plan.spec.kind}_{plan.spec_digest[:8]}"
        assert f"static inline CUresult {prefix}_launch(" in text
        assert max(len(line) for line in text.splitlines()) < 150


def test_a_header_goes_to_standard_output_under_the_chosen_name(run: Run, spec: Path) -> None:
    text = run("export", spec, "--format", "header", "--arch", "sm_80", "--prefix", "my_gemm").out
    assert "static inline CUresult my_gemm_launch(" in text
    assert text.endswith("#endif /* MY_GEMM_H */\n")


def test_a_module_is_python_and_names_itself_as_its_file(run: Run, spec: Path) -> None:
    run("export", spec, "--format", "python", "--arch", "sm_80", "-o", "mine.py")
    text = Path("mine.py").read_text()
    ast.parse(text)
    assert "from mine import launch" in text
    assert "import gemmgen" not in text


@pytest.mark.parametrize("name", ["conv2d/mma_sync/same_3x3", "reduction/sum_last_block"])
def test_instances_of_other_families(run: Run, name: str) -> None:
    assert "_launch(" in run("export", name, "--format", "header", "--arch", "sm_80").out


def test_files_as_json(run: Run, spec: Path) -> None:
    (entry,) = run("export", spec, "--format", "cubin", "-o", "a.cubin", "--json").json
    assert entry == {"spec": "small.yaml", "name": api.plan(spec).name, "format": "cubin", "file": "a.cubin", "changed": True}


def test_an_instance_of_the_library_is_found_by_its_name(run: Run) -> None:
    name = api.plan("gemm/simt/linear/bias_relu").name
    assert name in run("export", name, "--format", "header", "--arch", "sm_80").out


def test_the_default_covers_every_generation_with_one_cubin_each() -> None:
    plan = api.plan("gemm/simt/swizzled_cp_async")
    assert [a.name for a in portable_architectures(allowed_architectures(plan))] == ["sm_80", "sm_90", "sm_100", "sm_120"]
    assert [a.name for a in portable_architectures([ARCHITECTURES["sm_90a"]])] == ["sm_90a"]


BAD = {
    "an unknown name": (["nothing_like_it", "--format", "header"], "'nothing_like_it' is no file, no directory and no spec"),
    "the beginning of many names": (["sgemm_", "--format", "header"], "is the beginning of"),
    "an unknown format": (["small.yaml", "--format", "elf"], "'elf' is not one of"),
    "an unknown architecture": (["small.yaml", "--format", "cubin", "--arch", "sm_1"], "unknown architecture 'sm_1'; known: sm_75"),
    "an architecture that is too old": (
        ["gemm/simt/swizzled_cp_async", "--format", "header", "--arch", "sm_75"],
        "architecture: got sm_75, need sm_80 or newer",
    ),
    "a prefix that is no identifier": (["small.yaml", "--format", "header", "--prefix", "a b"], "need a C identifier"),
    "a prefix that is a keyword": (["small.yaml", "--format", "header", "--prefix", "while"], "need a C identifier"),
    "a prefix in Greek": (["small.yaml", "--format", "header", "--prefix", "α"], "need a C identifier"),
    "a prefix for a cubin": (["small.yaml", "--format", "cubin", "--prefix", "x"], "--prefix names the functions of a header"),
    "a prefix for many": (["gemm", "--format", "header", "--prefix", "x"], "name one"),
    "many for one output": (["small.yaml", "--format", "cubin", "--arch", "all"], "do not fit into one output"),
    "many for one file": (["small.yaml", "--format", "cubin", "--arch", "all", "-o", "small.yaml"], "small.yaml would be one file"),
    "several kernels for the name of one file": (
        ["small.yaml", "gemm/simt/skinny", "--format", "header", "-o", "x.h"],
        "name a directory, x/",
    ),
    "an output without a name": (["small.yaml", "--format", "header", "-o", ""], "-o needs the name"),
    "a prefix that makes a type of C": (["small.yaml", "--format", "header", "--prefix", "uint8"], "uint8_t is a type of C already"),
    "a file that cannot be written": (["small.yaml", "--format", "cubin", "-o", "/proc/none/x"], "cannot be written"),
    "JSON to standard output": (["small.yaml", "--format", "cubin", "--json"], "needs -o"),
    "a wrong field": (["small.yaml", "--format", "cubin", "--set", "colour=red"], "colour"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_writes_nothing(run: Run, spec: Path, case: str) -> None:
    arguments, message = BAD[case]
    failed = run("export", *arguments, code=2)
    assert message in failed.err
    assert failed.out == ""
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_a_fat_binary_holds_the_cubins_and_ptx_of_the_newest(run: Run, spec: Path) -> None:
    run("export", spec, "--format", "fatbin", "--arch", "sm_80", "--arch", "sm_90", "-o", "x.fatbin")
    assert contents("x.fatbin") == ["sm_80.cubin", "sm_90.cubin", "sm_90.ptx"]


def test_toolkit_makes_fat_binaries_where_library_is_missing(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("fatbinary") is None:
        pytest.skip("this machine has no fatbinary")
    monkeypatch.setattr(fatbin, "loaded_library", lambda: None)
    run("export", spec, "--format", "fatbin", "--arch", "sm_80", "-o", "x.fatbin")
    assert contents("x.fatbin") == ["sm_80.cubin", "sm_80.ptx"]


def contents(file: str) -> list[str]:
    """Entries of a fat binary by cuobjdump."""
    tools = [tool for entry in sys.path for tool in Path(entry or ".").glob("nvidia/*/bin/cuobjdump")]
    found = tools[0] if tools else shutil.which("cuobjdump")
    assert found, "pip install nvidia-cuda-cuobjdump"
    listing = subprocess.run([found, "-lelf", "-lptx", file], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    return sorted(".".join(line.split(".")[-2:]) for line in listing.splitlines() if " file " in line)


def test_without_makers_of_fat_binaries_one_is_recommended(run: Run, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbin, "loaded_library", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    failed = run("export", spec, "--format", "fatbin", "-o", "x.fatbin", code=2)
    assert "pip install 'nvidia-nvfatbin" in failed.err
    assert not Path("x.fatbin").exists()
    assert issubclass(EnvironmentMissing, Exception)


@pytest.mark.parametrize("kind", GPU_KINDS)
def test_the_same_instance_gives_the_same_bytes(kind: str) -> None:
    plan = api.plan(min(name for name in shipped_specs() if name.startswith(f"{kind}/")))
    assert render_header(dummy_bundle(plan)) == render_header(dummy_bundle(plan))
    assert render_module(dummy_bundle(plan)) == render_module(dummy_bundle(plan))


def test_templates_are_part_of_the_package() -> None:
    found = importlib.util.find_spec("gemmgen.export")
    assert found is not None and found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0]) / "templates"
    names = {path.name for path in (Path(__file__).parents[2] / "gemmgen" / "export" / "templates").iterdir()}
    assert {path.name for path in folder.iterdir()} == names >= {"bundle.h.j2", "header.h.j2", "jax_package.py.j2"}
