"""The order in which lanes run. A schedule is asked whenever the machine has to choose among lanes at different places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.geometry import WARP, Lanes

BLOCKED = 1 << 30
"""Keys from here on are not runnable: the lane waits or has exited. Below, a key is the lane's next basic block."""
_LANDS = 0.125
"""Probability that a random schedule lets an asynchronous copy land between two turns."""
_PARTED = 0.125
"""Probability that a random schedule advances only some lanes of a warp, as hardware may: they do not run in lockstep."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Lanes that stand at the same basic block. They may run on without asking while their next block is below `until`."""

    block: int
    lanes: Lanes
    until: int


class Schedule(Protocol):
    """Chooses lanes. `key` has one entry a lane (see BLOCKED); a turn's lanes must share their key."""

    def start(self, lanes: int) -> None:
        """Beginning of a wave with its number of lanes."""

    def pick(self, key: np.ndarray) -> Turn | None:
        """The next lanes to run; None if no lane is runnable."""

    def overtake(self, count: int) -> int | None:
        """The one of the asynchronous copies under way, oldest first, that lands before the next turn; None: not one."""

    def keep(self, polling: bool) -> bool:
        """Asked after each block that a part of the lanes executed, if it polls or the turn could continue: False ends the turn."""


class MinimumBlock:
    """The lanes furthest behind in program order run first, so that diverged lanes meet again.

    Lanes that poll memory in a loop would then starve those they wait for: after `patience` polling blocks they step
    back until all others have stepped back too.
    """

    def __init__(self, patience: int = 32) -> None:
        self.patience = patience
        self._polls = 0
        self._stepped_back = np.zeros(0, np.bool_)
        self._any_stepped_back = False

    def start(self, lanes: int) -> None:
        self._polls = 0
        self._stepped_back = np.zeros(lanes, np.bool_)
        self._any_stepped_back = False

    def pick(self, key: np.ndarray) -> Turn | None:
        eligible = key
        if self._any_stepped_back:
            eligible = np.where(self._stepped_back, BLOCKED, key)
            if int(eligible.min()) >= BLOCKED:
                self._return_all()
                eligible = key
        turn = _lowest(eligible)
        if turn is not None and self._polls >= self.patience:
            self._polls = 0
            if turn.until < BLOCKED or self._any_stepped_back:
                self._stepped_back[turn.lanes] = True
                self._any_stepped_back = True
                if turn.until >= BLOCKED:
                    self._return_all()
                    self._stepped_back[turn.lanes] = self._any_stepped_back = True
                return _lowest(np.where(self._stepped_back, BLOCKED, key)) or turn
        return turn

    def overtake(self, count: int) -> int | None:
        # As late as may be: when nothing else can run.
        return None

    def keep(self, polling: bool) -> bool:
        if polling:
            self._polls += 1
        return self._polls < self.patience

    def _return_all(self) -> None:
        self._stepped_back[:] = False
        self._any_stepped_back = False


class RandomWarps:
    """One warp at a time, chosen at random, for a random number of blocks: another order on each seed. Now and then only a
    part of its lanes."""

    def __init__(self, seed: int, stay: float = 0.9) -> None:
        self.random = np.random.default_rng(seed)
        self.stay = stay

    def start(self, lanes: int) -> None:
        pass

    def pick(self, key: np.ndarray) -> Turn | None:
        by_warp = key.reshape(-1, WARP)
        runnable = np.flatnonzero(by_warp.min(axis=1) < BLOCKED)
        if not len(runnable):
            return None
        warp = int(runnable[self.random.integers(len(runnable))])
        turn = _lowest(by_warp[warp])
        assert turn is not None
        lanes = turn.lanes + warp * WARP
        if len(lanes) > 1 and self.random.random() < _PARTED:
            part = self.random.permutation(lanes)[: self.random.integers(1, len(lanes))]
            return Turn(turn.block, np.sort(part), turn.block)
        return Turn(turn.block, lanes, turn.until)

    def overtake(self, count: int) -> int | None:
        return _any_copy(self.random, count)

    def keep(self, polling: bool) -> bool:
        return bool(self.random.random() < self.stay)


class FirstWarp:
    """Always the first warp that can run, or always the last one, so that a thread that polls starves all others behind it."""

    def __init__(self, *, last: bool = False) -> None:
        self.last = last

    def start(self, lanes: int) -> None:
        pass

    def pick(self, key: np.ndarray) -> Turn | None:
        by_warp = key.reshape(-1, WARP)
        runnable = np.flatnonzero(by_warp.min(axis=1) < BLOCKED)
        if not len(runnable):
            return None
        first = int(runnable[-1 if self.last else 0])
        turn = _lowest(by_warp[first])
        assert turn is not None
        return Turn(turn.block, turn.lanes + first * WARP, turn.until)

    def overtake(self, count: int) -> int | None:
        return None

    def keep(self, polling: bool) -> bool:
        return True


class RandomCrowds:
    """A random part of the warps that stand at one place, for a random number of blocks: fast enough for whole kernels. Now and
    then only a part of their lanes."""

    def __init__(self, seed: int, stay: float = 0.7) -> None:
        self.random = np.random.default_rng(seed)
        self.stay = stay

    def start(self, lanes: int) -> None:
        pass

    def pick(self, key: np.ndarray) -> Turn | None:
        by_warp = key.reshape(-1, WARP)
        places = by_warp.min(axis=1)
        runnable = np.flatnonzero(places < BLOCKED)
        if not len(runnable):
            return None
        leader = int(runnable[self.random.integers(len(runnable))])
        block = int(places[leader])
        chosen = (places == block) & (self.random.random(len(places)) < self.random.random())
        chosen[leader] = True
        if len(places) > 1 and chosen.all():
            chosen[leader - 1] = False
        there = (by_warp == block) & chosen[:, None]
        if self.random.random() < _PARTED:
            part = there & (self.random.random(WARP) < self.random.random())
            there = part if part.any() else there
        elsewhere = by_warp[chosen][~there[chosen]]
        until = int(elsewhere.min()) if len(elsewhere) else BLOCKED
        return Turn(block, there.ravel().nonzero()[0], until)

    def overtake(self, count: int) -> int | None:
        return _any_copy(self.random, count)

    def keep(self, polling: bool) -> bool:
        return bool(self.random.random() < self.stay)


def _any_copy(random: np.random.Generator, count: int) -> int | None:
    return int(random.integers(count)) if random.random() < _LANDS else None


def _lowest(key: np.ndarray) -> Turn | None:
    loops = native.loops_for(len(key))
    if loops is not None and key.dtype == np.int32 and key.flags.c_contiguous:
        room, ends = np.empty(len(key), np.int64), np.empty(2, np.int32)
        place = ends.ctypes.data
        count = loops.lowest_key(key.ctypes.data, len(key), BLOCKED, room.ctypes.data, place, place + 4)
        return Turn(int(ends[0]), room[:count], int(ends[1])) if count else None
    block = int(key.min())
    if block >= BLOCKED:
        return None
    there = key == block
    lanes = there.nonzero()[0]
    until = BLOCKED
    if len(lanes) < len(key):
        until = int(key[~there].min())
    return Turn(block, lanes, until)
