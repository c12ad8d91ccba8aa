"""``gemmgen export`` of several problems, and of launches as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_launches_are_exported_as_json_beside_their_binaries(run: Run) -> None:
    run("export", "--problem", "elementwise:1,1,1,4096,silu", "--device", "A100", "--bake", "d0", "--format", "launch", "-o", "out/")
    (file,) = Path("out").glob("*.json")
    data = json.loads(file.read_text())
    assert data["sizes"] == {"d0": 4096} and "d0" not in data["launches"][0]["arguments"]
    assert all((Path("out") / image["file"]).stat().st_size > 100 for image in data["images"])
    assert {image["kind"] for image in data["images"]} == {"cubin", "ptx"}


def test_a_bundle_of_a_list_is_written_with_its_choices(run: Run) -> None:
    Path("net.txt").write_text("elementwise:1,1,64,128,silu\nelementwise:1,1,1,4096,abs  # count=3\n")
    told = run("export", "--problems", "net.txt", "--format", "bundle", "--device", "A100", "-o", "out").err
    assert "elementwise:D0,1,1,8192,silu: d0 from 1 to" in told
    assert "net_elementwise_1_1_4096_abs(" in Path("out/net.h").read_text()


def test_lists_and_formats_that_do_not_go_together_are_refused(run: Run) -> None:
    Path("net.txt").write_text("reduction:8,8,1\n")
    assert "goes with --format bundle, torch or jax" in run("export", "--problems", "net.txt", "--format", "header", code=2).err
    assert "takes problems" in run("export", "gemm/v0_naive", "--format", "bundle", "-o", "out", code=2).err
    assert "-o DIR" in run("export", "--problems", "net.txt", "--format", "bundle", code=2).err
    error = run("export", "--problems", "net.txt", "--format", "torch", "--device", "A100", "-o", "out", code=2).err
    assert "a torch package holds products" in error
