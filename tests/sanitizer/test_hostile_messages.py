"""A program under `gemmgen run` is not trusted: whatever it sends ends in an answer or in its end, within limits of time and memory.

``GEMMGEN_FUZZ_MESSAGES=5000`` attacks so many sessions.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from gemmgen.emulator.errors import BadLaunch, ParseError
from gemmgen.emulator.ptx import parse
from gemmgen.sanitizer.programs import repeats
from gemmgen.sanitizer.programs import session as sessions
from gemmgen.sanitizer.programs.blas import Memory, Refusal
from gemmgen.sanitizer.programs.messages import BadMessage, Body, Operation
from gemmgen.sanitizer.programs.running import run_program
from gemmgen.sanitizer.programs.session import RunSettings

from .hostile_messages import Attacker, attack, ptx, text

SESSIONS = int(os.environ.get("GEMMGEN_FUZZ_MESSAGES", "40"))


@pytest.fixture
def attacker() -> Attacker:
    found = Attacker(1)
    found.begin()
    return found


def test_messages_of_no_runtime_end_in_an_answer() -> None:
    reports = [attack(seed, 60) for seed in range(SESSIONS)]
    assert any("'k'" in report for report in reports) and not any("\x1b" in report for report in reports)


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 2.0**63])
def test_a_factor_of_integers_that_is_none_is_refused(attacker: Attacker, factor: float) -> None:
    numbers = [5, 1, 10, attacker.addresses[1], 1, 0, 1, 10]
    body = text("cublasScalEx") + struct.pack("<III", 0, 0, len(numbers)) + struct.pack("<I8q2d", 2, *numbers, factor, 0.0)
    assert b"no integer of 64 bits" in (attacker.send(Operation.BLAS, body) or b"")
    (finding,) = attacker.session.report.unsupported
    assert "no integer of 64 bits" in finding


def test_a_vector_of_step_0_takes_no_more_memory_than_others(attacker: Attacker) -> None:
    memory = Memory(attacker.session.device.memory, attacker.session.device.region_of)
    with pytest.raises(Refusal, match="more than 268,435,456 elements"):
        memory.vector("x", attacker.addresses[1], 1 << 32, 0, 0, writes=False)


def test_a_texture_of_floats_of_8_bits_is_refused(attacker: Attacker) -> None:
    body = struct.pack("<5Q8I", attacker.addresses[1], 4, 4, 0, 0, 8, 1, 2, 0, 0, 0, 0, 0)
    assert attacker.send(Operation.TEXTURE, body) == b"a texture of a kind that the emulator does not have"


def test_a_cluster_of_no_blocks_is_refused(attacker: Attacker) -> None:
    shape = (1, 1, 1, 32, 1, 1, 0, 1, 1, 0, 0, 0)
    body = struct.pack("<Q12I", 0, *shape) + text("k") + struct.pack("<Qi", attacker.addresses[1], 1)
    with pytest.raises(BadLaunch, match="every dimension must be at least 1"):
        attacker.session._answers[Operation.LAUNCH](Body(body))


@pytest.mark.parametrize("end", [".file", ".file 1", ".file " + "9" * 5000])
def test_a_list_of_files_that_is_cut_off_is_a_message(end: str) -> None:
    with pytest.raises(ParseError):
        parse(f".version 8.0\n.target sm_80\n.address_size 64\n{end}")


def test_what_a_session_remembers_is_bounded(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_MAX_LAUNCHES", 5)
    for name in ("_MAX_KERNELS", "_MAX_NAMES", "_MAX_STACKS"):
        monkeypatch.setattr(sessions, name, 5)
    for number in range(9):
        shape = struct.pack("<Q12I", 0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0, 0)
        attacker.send(Operation.LAUNCH, shape + text("k") + struct.pack("<Qi", attacker.addresses[1], number))
        attacker.send(Operation.LAUNCH, shape + text(f"k{number}") + struct.pack("<Qi", 0, 0))
        attacker.send(Operation.UNSUPPORTED, text(f"call{number}") + struct.pack("<I", 0))
        where = struct.pack("<IQ", 1, number) + text("/nowhere")
        attacker.send(Operation.ALLOCATE, struct.pack("<QI", 64, 0) + text("cudaMalloc") + where)
    session = attacker.session
    assert [len(found) for found in (session.report.kernels, session._known._launches, session.report.unsupported, session._stacks)] == [
        5
    ] * 4


def test_modules_are_bounded_together(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MAX_MODULE_BYTES", 3 * len(ptx()))
    assert [attacker.send(Operation.LOAD_MODULE, ptx()) for _ in range(2)] == [struct.pack("<Q", number) for number in (1, 2)]
    with pytest.raises(BadMessage, match="too many modules"):
        attacker.session._answers[Operation.LOAD_MODULE](Body(ptx()))


LEFT_BEHIND = {
    "in the program's group": "import os, time\nif not os.fork(): time.sleep(60)",
    "in a group apart": "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(60)",
}


@pytest.mark.skipif(sys.platform != "linux", reason="programs run on Linux only")
@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_a_process_that_is_left_behind_is_not_waited_for(name: str, tmp_path: Path) -> None:
    report = run_program([sys.executable, "-c", LEFT_BEHIND[name]], tmp_path, RunSettings(seconds=2, memory_bytes=1 << 26), ())
    assert "after 2 s" in report.ended_early
