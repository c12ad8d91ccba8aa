"""An instruction bound to a machine, as two closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gemmgen.emulator.geometry import Lanes


class Operation(NamedTuple):
    """An instruction bound to a machine: `full()` executes it for all lanes, `some(lanes)` for those."""

    full: Callable[[], None]
    some: Callable[[Lanes], None]
