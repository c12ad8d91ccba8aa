"""Launches that are known already: same kernel, same arguments, same memory."""

from __future__ import annotations

import numpy as np
import pytest

from gemmgen.emulator import Device
from gemmgen.emulator.device import Touched
from gemmgen.emulator.memory import GLOBAL_BASE
from gemmgen.sanitizer.programs import repeats
from gemmgen.sanitizer.programs.repeats import KnownLaunches, size_on


class Machine:
    """A device with allocations of 256 bytes, and launches that are functions of their contents."""

    def __init__(self, count: int = 3, size: int = 256) -> None:
        self.device = Device(1 << 28)
        self.starts = [self.device.allocate(size, f"x{number}") - GLOBAL_BASE for number in range(count)]
        self.size = size
        self.known = KnownLaunches(self.device, size_on(self.device))
        self.runs = 0

    def content(self, number: int) -> np.ndarray:
        return self.device.memory[self.starts[number] :][: self.size]

    def copy(self, number: int, value: int) -> None:
        self.known.place_contents()
        self.content(number)[:] = value
        self.known.change(self.starts[number])

    def add(self, target: int, source: int, key: bytes = b"add", textures: tuple[int, ...] = (), repeatable: bool = True) -> None:
        """target += source, byte by byte."""
        if self.known.put_in_place(key):
            return
        self.runs += 1
        self.content(target)[:] += self.content(source)
        touched = [self.touched(target, changes=True, reads=True)] + ([] if textures else [self.touched(source)])
        self.known.note(key, touched, [self.starts[each] for each in textures], repeatable, True)

    def fill(self, target: int, value: int, key: bytes, parts: int = 1) -> None:
        """Writes the first of so many parts of the target without reading it."""
        if self.known.put_in_place(key):
            return
        self.runs += 1
        written = self.size // parts
        had = self.content(target).tobytes()
        self.content(target)[:written] = value
        touched = self.touched(target, changes=True)
        touched.written[written // touched.unit :] = False
        self.known.note(key, [touched], (), True, had != self.content(target).tobytes())

    def touched(self, number: int, changes: bool = False, reads: bool = False) -> Touched:
        region = self.device.region_of(self.starts[number] + GLOBAL_BASE)
        assert region is not None
        touched = Touched.nothing_of(region)
        touched.written[:] = changes
        touched.read[:] = reads or not changes
        return touched

    def seen(self, number: int) -> int:
        self.known.place_contents()
        (value,) = set(self.content(number).tolist())
        return value


def test_a_loop_over_several_states_is_run_once() -> None:
    machine = Machine()
    sums = []
    for _ in range(20):
        machine.copy(0, 0)
        machine.copy(1, 3)
        for _ in range(5):
            machine.add(0, 1)
        sums.append(machine.seen(0))
    assert sums == [15] * 20 and machine.runs <= 6


def test_results_move_when_somebody_looks() -> None:
    machine = Machine()
    for _ in range(3):
        machine.copy(0, 0)
        machine.copy(1, 3)
        machine.add(0, 1)
    assert machine.known.is_pending and machine.content(0)[0] == 0
    assert machine.seen(0) == 3 and not machine.known.is_pending


def test_a_launch_on_other_data_runs() -> None:
    machine = Machine()
    for value in (1, 2, 1, 2, 5):
        machine.copy(0, 0)
        machine.copy(1, value)
        machine.add(0, 1)
        assert machine.seen(0) == value
    assert 3 <= machine.runs <= 4


@pytest.mark.parametrize("parts", [1, 2])
def test_an_overwritten_target_may_hold_anything(parts: int) -> None:
    machine = Machine()
    for value in range(1, 9):
        machine.copy(0, value)
        machine.fill(0, 77, b"fill", parts)
        machine.known.place_contents()
        assert machine.content(0).tolist() == [77] * (256 // parts) + [value] * (256 - 256 // parts)
    assert machine.runs == (1 if parts == 1 else 8)


def test_flags_of_several_bytes_do_not_show_that_all_are_written() -> None:
    machine = Machine(1, 8 << 20)
    for value in range(1, 4):
        machine.copy(0, value)
        machine.fill(0, 77, b"fill")
    assert machine.runs == 3


def test_a_large_result_that_stays_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_MAX_CONTENT_BYTES", 0)
    monkeypatch.setattr(repeats, "_FIRST_CONTENT_BYTES", 0)
    machine = Machine(1, 8 << 20)
    for _ in range(5):
        machine.fill(0, 7, b"fill")
        machine.known.put_in_place(b"another")
    assert machine.runs == 1
    machine.copy(0, 7)
    machine.fill(0, 7, b"fill")
    assert machine.runs == 2


def test_launches_that_write_the_same_values_again_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kernels in turn fill parts of a result of which no contents are kept."""
    monkeypatch.setattr(repeats, "_MAX_CONTENT_BYTES", 0)
    monkeypatch.setattr(repeats, "_FIRST_CONTENT_BYTES", 0)
    machine = Machine(1, 8 << 20)
    for _ in range(5):
        machine.fill(0, 7, b"whole")
        machine.fill(0, 7, b"half", parts=2)
    assert machine.runs == 2


def test_an_allocation_with_the_same_bytes_is_another_one() -> None:
    machine = Machine()
    for _ in range(3):
        machine.known.renew(machine.starts[0])
        machine.known.renew(machine.starts[1])
        machine.content(0)[:] = 0
        machine.content(1)[:] = 3
        machine.add(0, 1)
    assert machine.runs == 3


def test_memory_behind_textures_is_an_input() -> None:
    machine = Machine()
    for value in (3, 3, 3, 4, 5):
        machine.copy(0, 0)
        machine.copy(2, value)
        machine.add(0, 2, textures=(2,))
        assert machine.seen(0) == value


def test_a_launch_with_other_effects_runs_each_time() -> None:
    machine = Machine()
    for _ in range(4):
        machine.copy(0, 0)
        machine.copy(1, 3)
        machine.add(0, 1, repeatable=False)
    assert machine.runs == 4


def test_old_contents_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_MAX_KEPT_BYTES", 1024)
    machine = Machine()
    for round_number in range(2):
        for value in range(1, 20):
            machine.copy(0, 0)
            machine.copy(1, value)
            machine.add(0, 1)
            assert machine.seen(0) == value, round_number
    assert machine.known._kept_bytes <= 1024 and len(machine.known._kept) == 4
