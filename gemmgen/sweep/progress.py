"""Progress of a sweep: a bar on a terminal, a line now and then elsewhere; on standard error."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gemmgen.core.text import printable
from gemmgen.sweep.records import PointResult, Status

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 15.0
"""Seconds between lines where there is no terminal."""
RATE_SECONDS = 60.0
"""The rate is that of the last minute."""

_ORDER = (Status.CORRECT, Status.CORRECTNESS, Status.RUNTIME, Status.TIMEOUT, Status.COMPILE, Status.INVALID, Status.CONSTRAINTS)


class Progress:
    """Counts results as they come; an engine's listener. A context manager: its end takes the bar away."""

    def __init__(self, name: str, total: int, console: Console | None = None) -> None:
        """``total`` points are expected; the console is standard error if not given."""
        from rich.console import Console

        self.counts: Counter[Status] = Counter()
        self._name = name
        self._expected: Callable[[], int] = lambda: total
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._done = self._known = 0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])
        self._last_line = time.monotonic()
        self._bar, self._task = self._make_bar(total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def watch(self, expected: Callable[[], int]) -> None:
        """Takes the number of points from ``expected`` from now on, as it may turn out smaller."""
        self._expected = expected

    @property
    def total(self) -> int:
        """Number of points that are expected."""
        return self._expected()

    def __call__(self, result: PointResult, known: bool) -> None:
        """Counts a result; one that failed is printed at once."""
        self.counts[result.status] += 1
        self._known += known
        if result.failed and not known:
            where = ", ".join(f"{path}={value}" for path, value in result.axes.items())
            sizes = ",".join(map(str, result.problem.values()))
            point = " ".join(part for part in (result.instance or where, sizes) if part)
            first = result.reason.split("\n", 1)[0]
            self._console.print(printable(f"{result.status} at {result.stage}: {point}: {first}"), markup=False, style="red")
        self._done += 1
        now = time.monotonic()
        self._recent.append((now, self._done - self._known))
        while now - self._recent[0][0] > RATE_SECONDS and len(self._recent) > 2:
            self._recent.popleft()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self.total, about=self._about(now))
        elif now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            self._console.print(f"{self._name}: {self._done:,} of {self.total:,} points, {self._about(now)}", markup=False)

    def _about(self, now: float) -> str:
        """Rate, time left, and how the points ended."""
        (since, before), (_, done) = self._recent[0], self._recent[-1]
        parts = []
        if done > before and now > since:
            rate = (done - before) / (now - since)
            parts.append(f"{rate:.1f}/s" if rate >= 0.1 else f"{rate * 60:.1f}/min")
            left = max(0, self.total - self._done)
            if left:
                parts.append(f"{clock(left / rate)} left")
        parts += [f"{self.counts[status]:,} {status}" for status in _ORDER if self.counts[status]]
        return ", ".join(parts)

    def _make_bar(self, total: int) -> tuple[Any, Any]:
        if not self._console.is_terminal:
            return None, None
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[about]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        bar = Bar(*columns, console=self._console, transient=True)
        return bar, bar.add_task(self._name, total=total, about="")


def clock(seconds: float) -> str:
    """A time for people: ``45 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.0f} days"
