"""The forty kernels of the page that compares tools: the recorded findings of the emulator are the ones it reports."""

import json

import pytest

from measurements import tool_comparison

RECORD = json.loads(tool_comparison.RECORD.read_text())


@pytest.mark.parametrize("kernel", list(tool_comparison.kernels()), ids=lambda kernel: kernel.name)
def test_the_emulator_tells_what_is_recorded(kernel):
    told = tool_comparison.emulated(kernel)
    assert told == RECORD["kernels"][kernel.name]["emulator"]
    assert kernel.right == (told == "" or told.startswith("note"))


def test_the_page_has_the_recorded_table():
    text = tool_comparison.PAGE.read_text(encoding="utf-8")
    assert tool_comparison.page(text, RECORD) == text
    assert len(RECORD["kernels"]) == 40
