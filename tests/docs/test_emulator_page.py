"""docs/emulator.md: its tables of instructions and hazards are those of the registry and of the tests."""

import importlib.util
import re
from pathlib import Path

from emulator.engines import test_hazard_pairs
from emulator.engines.hazard_pairs import PAIRS

import gemmgen.emulator.interleavings
from gemmgen import emulator
from gemmgen.emulator.errors import BadLaunch, EmulatorError, NoFieldMeaning, ParseError, UnknownInstruction
from gemmgen.emulator.hazards.report import HazardError
from gemmgen.emulator.instructions import forms, opcodes

ROOT = Path(__file__).resolve().parents[2]


def program(name):
    """A program of the documentation as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_table", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator, hazards = program("instructions"), program("hazards")
NO_HAZARDS = {HazardError, ParseError, UnknownInstruction, BadLaunch, NoFieldMeaning}
"""Errors of programs and launches themselves."""
_TENSOR_MEMORY = (
    *(emulator.LanesOfFirstWarp, emulator.MissingTensorFence, emulator.TensorRace, emulator.TensorLoadInFlight),
    *(emulator.TensorMemoryInFlight, emulator.TensorMemoryMisuse, emulator.UnfinishedTensorOperation),
)
ELSEWHERE = {
    gemmgen.emulator.interleavings.ScheduleDependent: "tests/emulator/hazards/test_schedules.py",
    **dict.fromkeys(_TENSOR_MEMORY, "tests/emulator/hazards/test_tensor_memory.py"),
}
"""Kinds that several launches together find, and those of tensor memory."""


def test_the_table_of_instructions_is_current():
    text = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")
    assert generator.page(text) == text, "python docs/instructions.py writes it anew"


def test_every_instruction_with_modifiers_is_in_the_table():
    listed = {*opcodes(), *" ".join(generator.CONTROL).split()}
    assert set(forms._ALLOWED) <= listed


def test_the_paths_that_the_page_names_exist():
    text = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(gemmgen/[\w/.]+)`", text))
    assert named and all((ROOT / name).exists() for name in named)


def test_the_table_of_hazards_is_current():
    text = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")
    assert hazards.page(text) == text, "python docs/hazards.py writes it anew"


def kinds(of):
    """All kinds of an error."""
    return {below for kind in of.__subclasses__() for below in {kind, *kinds(kind)} if below.__module__.startswith("gemmgen.emulator")}


def test_every_kind_of_finding_has_a_kernel_and_a_twin():
    told = {pair.error for pair in PAIRS.values()}
    # A launch continues behind findings that are a kind of an error, whose kernel is among the pairs.
    errors = {kind for kind in told if not issubclass(kind, HazardError)}
    continued = {kind for kind in kinds(HazardError) if errors & {*kind.__bases__}}
    assert kinds(EmulatorError) - continued == told - continued | NO_HAZARDS | ELSEWHERE.keys()
    assert all(kind.__name__ in (ROOT / file).read_text(encoding="utf-8") for kind, file in ELSEWHERE.items())


def test_every_row_of_hazards_names_two_tests_that_run():
    rows = re.findall(r"\| `(test_\w+)\[(.+?)\]` \| `(test_\w+)\[(.+?)\]` \|", hazards.table())
    assert [row[1] for row in rows] and {row[1] for row in rows} == {row[3] for row in rows} == set(PAIRS)
    for told, name, clean, _ in rows:
        for test in (told, clean):
            (mark,) = getattr(test_hazard_pairs, test).pytestmark
            assert mark.name == "parametrize" and name in mark.args[1]
