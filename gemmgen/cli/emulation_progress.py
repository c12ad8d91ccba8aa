"""Progress of a long emulation on standard error, with an estimate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from gemmgen.cli.output import count

_FIRST_SECONDS = 2.0
"""Shorter launches print no progress."""
_LINE_SECONDS = 10.0
"""Between two lines where there is no terminal to write over the last one."""
_TERMINAL_SECONDS = 0.25


@dataclass
class EmulationProgress:
    """Callable with the number of blocks that have run, and of all. Silent unless `stream` is a terminal or `always` is set."""

    always: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _began: float = field(default_factory=time.perf_counter)
    _told: float = 0.0
    _width: int = 0

    def __call__(self, done: int, total: int) -> None:
        terminal = self.stream.isatty()
        now = time.perf_counter()
        pause = _TERMINAL_SECONDS if terminal else _LINE_SECONDS
        if not (terminal or self.always) or done == 0 or now - self._began < _FIRST_SECONDS or now - self._told < pause:
            return
        self._told = now
        if done >= total:
            # The next launch is timed separately.
            self._began = now
        text = describe(done, total, now - self._began)
        if terminal:
            self.stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self.stream.write(text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Takes the last line off a terminal."""
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()
            self._width = 0


@dataclass
class LaunchProgress:
    """Callable with the number of blocks that have run, and of all: passes an estimate to ``show`` for launches that take long."""

    show: Callable[[str], object] = lambda text: None
    _began: float = 0.0
    _first: int = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if done >= total:
            self._began = 0.0
        elif not self._began or done < self._first:
            self._began, self._first = now, done
        elif done > self._first and now - self._began >= _FIRST_SECONDS:
            self.show(describe(done, total, (now - self._began) * done / (done - self._first)))


def describe(done: int, total: int, seconds: float) -> str:
    """`emulated 1,024 of 4,096 blocks (25%), about 30 s left`."""
    left = seconds * (total - done) / done
    minutes, rest = divmod(round(left), 60)
    time_left = f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"emulated {count(done)} of {count(total)} blocks ({done / total:.0%}), about {time_left} left"
