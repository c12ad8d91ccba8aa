"""Each hazard of the asynchronous machine: a kernel that has it is told, with both lines of CUDA; its twin is clean."""

from __future__ import annotations

import re

import pytest

from gemmgen import emulator

from ..wgmma import HELPERS
from .hazard_pairs import PAIRS, launch
from .prelude import PRELUDE


@pytest.mark.parametrize("name", PAIRS)
def test_is_told(name: str) -> None:
    pair = PAIRS[name]
    with pytest.raises(pair.error) as raised:
        launch(pair, pair.mistaken, strict=True)
    message = str(raised.value)
    assert [words for words in pair.says if words not in message and not _names_line(message, pair.mistaken, words)] == [], message


def _names_line(message: str, body: str, words: str) -> bool:
    """True if the message names a line of the kernel that has these words."""
    before = 0 if HELPERS in body else PRELUDE.count("\n")
    numbers = [number for number, line in enumerate(body.splitlines(), before + 1) if words in line]
    return any(re.search(rf"kernel\.cu:{number}\b", message) for number in numbers)


@pytest.mark.parametrize("name", PAIRS)
def test_twin_is_clean(name: str) -> None:
    pair = PAIRS[name]
    assert not launch(pair, pair.twin, strict=True).findings


def test_a_barrier_left_early_is_a_warning() -> None:
    pair = PAIRS["threads that have left before a barrier"]
    (found,) = launch(pair, pair.mistaken, strict=False).findings
    assert isinstance(found, emulator.MissedBarrier) and found.severity == "warning"


def test_a_copy_without_a_proxy_fence_is_a_warning() -> None:
    pair = PAIRS["cp.async writes, a bulk store reads"]
    (found,) = launch(pair, pair.mistaken, strict=False).findings
    assert isinstance(found, emulator.CopyWithoutProxyFence) and found.severity == "warning"
