"""``gemmgen draw`` on the command line: where pictures go, and the message if there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli.conftest import SPEC, Run, run, spec

from present.drawing.reading import SVG, parse

__all__ = ["run", "spec"]


def pictures_in(text: str) -> list[str]:
    return [group.attrib["data-picture"] for group in parse(text).findall(f"{SVG}g")]


def test_all_pictures_go_into_one_file(run: Run, spec: Path) -> None:
    assert "written    out.svg" in run("draw", spec, "-o", "out.svg").out
    assert pictures_in(Path("out.svg").read_text()) == ["tiles", "pipeline", "fragments", "lanes", "shared", "waves", "occupancy", "roofs"]
    assert "unchanged  out.svg" in run("draw", spec, "-o", "out.svg").out


def test_each_picture_gets_a_file_in_a_directory(run: Run, spec: Path) -> None:
    run("draw", spec, "-o", "pictures/")
    files = sorted(path.name.split(".", 1)[1] for path in Path("pictures").iterdir())
    assert files == ["fragments.svg", "lanes.svg", "occupancy.svg", "pipeline.svg", "roofs.svg", "shared.svg", "tiles.svg", "waves.svg"]
    Path("there").mkdir()
    run("draw", spec, "--picture", "tiles", "-o", "there")
    assert [pictures_in(path.read_text()) for path in Path("there").iterdir()] == [["tiles"]]


def test_drawn_registers_are_the_compilers(run: Run, spec: Path) -> None:
    (compiled,) = run("compile", spec, "--json").json
    run("draw", spec, "--picture", "occupancy", "-o", "out.svg")
    drawn = " ".join(Path("out.svg").read_text().split())
    assert f"{compiled['kernels'][0]['registers']} registers a thread" in drawn and "about" not in drawn


def test_standard_output(run: Run, spec: Path) -> None:
    assert pictures_in(run("draw", spec, "--picture", "lanes", "-o", "-").out) == ["lanes"]


def test_some_pictures(run: Run, spec: Path) -> None:
    assert pictures_in(run("draw", spec, "--picture", "shared", "--picture", "tiles", "-o", "-").out) == ["tiles", "shared"]


def test_one_access(run: Run, spec: Path) -> None:
    drawn = run("draw", spec, "--picture", "shared", "--access", "load-b", "-o", "-").out
    assert {group.attrib["data-access"] for group in parse(drawn).iter(f"{SVG}g") if "data-access" in group.attrib} == {"load-b"}


def test_an_access_implies_its_picture(run: Run, spec: Path) -> None:
    assert pictures_in(run("draw", spec, "--access", "load-b", "-o", "-").out) == ["shared"]


def test_without_a_file_the_pictures_are_listed(run: Run, spec: Path) -> None:
    listed = run("draw", spec).out
    for name in ("tiles", "fragments", "lanes", "shared", "load-a"):
        assert name in listed
    entries = run("draw", spec, "--json").json
    assert [entry["picture"] for entry in entries] == ["tiles", "pipeline", "fragments", "lanes", "shared", "waves", "occupancy", "roofs"]
    assert {access["access"] for access in entries[4]["accesses"]} == {"store-a", "load-a", "store-b", "load-b"}


def test_json_and_a_file_do_not_go_together(run: Run, spec: Path) -> None:
    assert "--json" in run("draw", spec, "--json", "-o", "out.svg", code=2).err


def test_an_empty_name_of_a_file(run: Run, spec: Path) -> None:
    assert "-o needs the name" in run("draw", spec, "-o", "", code=2).err
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


def test_fields_can_be_set(run: Run, spec: Path) -> None:
    run("draw", spec, "--set", "mainloop.lanes=z_order", "--picture", "lanes", "-o", "out.svg")
    assert "z-order, as here" in Path("out.svg").read_text()


def test_a_picture_that_there_is_not(run: Run, spec: Path) -> None:
    failed = run("draw", spec, "--picture", "portrait", "-o", "out.svg", code=2)
    told = "there are: tiles, pipeline, fragments, lanes, shared, waves, occupancy, roofs and all"
    assert f"--picture 'portrait': small.yaml has no such picture; {told}" in failed.err
    assert not Path("out.svg").exists()


def test_an_access_that_there_is_not(run: Run, spec: Path) -> None:
    failed = run("draw", spec, "--access", "load-c", "-o", "out.svg", code=2)
    assert "--access 'load-c': small.yaml has no such access; there are: store-a, load-a, store-b, load-b" in failed.err


def test_an_access_of_another_picture(run: Run, spec: Path) -> None:
    assert "--picture shared" in run("draw", spec, "--picture", "tiles", "--access", "load-a", "-o", "out.svg", code=2).err


def test_pictures_of_a_kernel_for_processors(run: Run) -> None:
    assert pictures_in(run("draw", "cpu/c5_threaded", "-o", "-").out) == ["loops", "fragments", "peak", "packing"]
    assert pictures_in(run("draw", "cpu/c0_naive", "-o", "-").out) == ["loops"]
    for name in ("registers", "code"):
        assert "shows kernels of GPUs" in run("draw", "cpu/c0_naive", "--picture", name, "-o", "-", code=2).err


def test_a_kernel_without_a_loop_has_no_picture_of_it(run: Run) -> None:
    assert "the kernel has no loop" in run("draw", "elementwise/relu", "--picture", "code", "-o", "-", code=2).err


def test_an_access_of_a_kernel_without_shared_memory(run: Run) -> None:
    assert "no access to shared memory" in run("draw", "gemm/v0_naive", "--access", "load-a", "-o", "-", code=2).err


def test_several_specs(run: Run) -> None:
    assert "draw takes one" in run("draw", "gemm", "-o", "out.svg", code=2).err


def test_a_spec_that_cannot_be_planned(run: Run) -> None:
    Path("bad.yaml").write_text(SPEC.replace("m: 8, n: 4", "m: 8, n: 5"))
    assert "[thread_tile]" in run("draw", "bad.yaml", "-o", "out.svg", code=2).err
    assert not Path("out.svg").exists()


@pytest.mark.parametrize("output", ["file/out.svg", "a\0b.svg", "x" * 5000])
def test_a_path_that_cannot_be_written(run: Run, spec: Path, output: str) -> None:
    Path("file").write_text("")
    assert "cannot be written" in run("draw", spec, "-o", output, code=2).err


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_directory_without_permission(run: Run, spec: Path) -> None:
    Path("locked").mkdir(mode=0o500)
    assert "cannot be written" in run("draw", spec, "-o", "locked/out.svg", code=2).err
