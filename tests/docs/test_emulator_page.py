"""docs/emulator.md: its table of instructions is that of the registry."""

import importlib.util
import re
from pathlib import Path

from gemmgen.emulator.instructions import forms, opcodes

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("instructions_table", ROOT / "docs" / "instructions.py")
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)


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
