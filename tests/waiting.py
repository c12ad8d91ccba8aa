"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 600.0
"""Seconds after which a process that should have ended hangs: far more than any needs, on a machine however busy."""


def eventually(holds: Callable[[], bool]) -> bool:
    """True as soon as ``holds`` is; False after 12,000 looks, at least two minutes.

    Looks are counted, not seconds: the clock goes on while a virtual machine stands still.
    """
    for _ in range(12_000):
        if holds():
            return True
        time.sleep(0.01)
    return holds()
