"""Mistakes planted in the PTX of small kernels: no property is proved of which the emulator shows a violation."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel, read_foreign
from gemmgen.proof.prover import prove_sequence
from tests.proof.test_files import KERNELS

MUTANTS_OF_A_KERNEL = 24
PARTS = 8
SECONDS = 20.0
PROBLEMS = (0, 1, 2, 3, 5, 16, 17, 33, 64, 65, 130)
"""Sizes that mutants are run on; a kernel's dimensions are drawn from them."""
RUNS = 6
VIOLATES = {
    "memory": ("out-of-bounds", "misaligned", "read-only"),
    "races": ("shared-race", "in-flight"),
    "progress": ("divergent-barrier", "deadlock", "divergent-warp"),
}
"""Beginnings of the codes of findings that contradict a property."""

Change = Callable[[re.Match[str]], str]
KINDS: dict[str, tuple[str, Change]] = {
    "no barrier": (r"bar\.sync[^;]*;", lambda found: ""),
    "no barrier of the warp": (r"bar\.warp\.sync[^;]*;", lambda found: ""),
    "no wait": (r"cp\.async\.wait_group[^;]*;", lambda found: ""),
    "waits for one group less": (r"cp\.async\.wait_group +(\d+);", lambda found: f"cp.async.wait_group {int(found[1]) + 1};"),
    "no end of a group": (r"cp\.async\.commit_group;", lambda found: ""),
    "one more": (r"setp\.(lt|gt)\.", lambda found: f"setp.{found[1][0]}e."),
    "one less": (r"setp\.(le|ge)\.", lambda found: f"setp.{found[1][0]}t."),
    "other comparison": (r"setp\.(eq|ne)\.", lambda found: f"setp.{'ne' if found[1] == 'eq' else 'eq'}."),
    "no guard": (r"@!?%p\d+ +(bra|st|ld)", lambda found: found[1]),
    "guard inverted": (r"@%p", lambda found: "@!%p"),
    "constant one more": (r"(add\.[su](?:32|64)[^;]*, )(-?\d+);", lambda found: f"{found[1]}{int(found[2]) + 1};"),
    "constant four more": (r"(add\.[su](?:32|64)[^;]*, )(-?\d+);", lambda found: f"{found[1]}{int(found[2]) + 4};"),
    "shift by one more": (r"(sh[lr]\.[bsu](?:32|64)[^;]*, )(\d+);", lambda found: f"{found[1]}{int(found[2]) + 1};"),
    "factor one more": (r"(mul\.[^;]*, )(\d+);", lambda found: f"{found[1]}{int(found[2]) + 1};"),
    "mask of one bit less": (r"(and\.b32[^;]*, )(\d+);", lambda found: f"{found[1]}{int(found[2]) >> 1};"),
    "swapped operands": (r"(sub\.s(?:32|64)\s+\S+, )(%\w+), (%\w+);", lambda found: f"{found[1]}{found[3]}, {found[2]};"),
    "start one later": (r"(mov\.u32 \s*%r\d+, )(\d+);", lambda found: f"{found[1]}{int(found[2]) + 1};"),
    "offset one element more": (r"\[(%rd?\d+)\+(\d+)\]", lambda found: f"[{found[1]}+{int(found[2]) + 4}]"),
}


def mutants(ptx: str, name: str) -> Iterator[tuple[str, str]]:
    """Changed texts, each with the kind of its mistake, drawn from all places of all kinds."""
    places = [(kind, found) for kind, (pattern, _) in KINDS.items() for found in re.finditer(pattern, ptx)]
    chosen = random.Random(name)
    for kind, found in chosen.sample(places, min(MUTANTS_OF_A_KERNEL, len(places))):
        yield kind, ptx[: found.start()] + KINDS[kind][1](found) + ptx[found.end() :]


def read(tmp_path: Path, name: str) -> ForeignKernel:
    source, launch = KERNELS[name]
    file = tmp_path / "kernel.cu"
    file.write_text(source)
    options = list(zip(launch[::2], launch[1::2], strict=True))
    given = {option: [value for each, value in options if each == option] for option, _ in options}
    block = [int(extent) for extent in given["--block"][0].split(",")]
    return read_foreign(
        file,
        entry_name=None,
        architecture=None,
        block=block,
        grid=given["--grid"][0],
        arrays=given["--array"],
        expects=given.get("--expects", []),
        shared="0",
        seconds=60,
    )


def contradictions(kernel: ForeignKernel, numbers: random.Random) -> set[str]:
    """Properties that runs on the emulator contradict."""
    found: set[str] = set()
    for _ in range(RUNS):
        problem = {dimension.name: numbers.choice(PROBLEMS) for dimension in kernel.sequence.dimensions}
        if all(constraint.condition.evaluate(problem) for constraint in kernel.sequence.constraints):
            codes = [finding.code for finding in kernel.faults(problem)]
            found |= {name for name, starts in VIOLATES.items() if any(code.startswith(starts) for code in codes)}
    return found


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", KERNELS)
def test_no_property_is_proved_that_a_run_contradicts(tmp_path: Path, name: str, part: int) -> None:
    kernel = read(tmp_path, name)
    for number, (kind, ptx) in enumerate(mutants(kernel.code.ptx, name)):
        if number % PARTS != part:
            continue
        mutant = replace(kernel, code=replace(kernel.code, ptx=ptx, source=None))
        if wrong := contradictions(mutant, random.Random(number)):
            (proof,) = prove_sequence(mutant.sequence, ptx, SECONDS)
            assert not wrong & set(proof.proved), f"{kind}: {wrong} proved"


def test_runs_contradict_many_mutants(tmp_path: Path) -> None:
    kernel = read(tmp_path, "saxpy")
    changed = [replace(kernel, code=replace(kernel.code, ptx=ptx, source=None)) for _, ptx in mutants(kernel.code.ptx, "saxpy")]
    wrong = [contradictions(mutant, random.Random(number)) for number, mutant in enumerate(changed)]
    assert sum(map(bool, wrong)) > len(wrong) // 6
