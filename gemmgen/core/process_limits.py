"""Limits of processes below those that they were started with."""

from __future__ import annotations

import resource
from collections.abc import Sequence


def lower(kind: int, soft: int, hard: int) -> None:
    """Lowers a limit of this process (``resource.RLIMIT_AS``, ...) to these values, or leaves it where it is lower already: nobody may
    raise it again."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def limited(command: Sequence[str], seconds: int) -> list[str]:
    """A command whose processes take at most ``seconds`` of processor time each.

    A compiler is a driver that starts other processes. When ``subprocess.run`` ends the driver after a timeout, these would go on
    without a limit.
    """
    return ["/bin/sh", "-c", f'ulimit -t {seconds} 2>/dev/null; exec "$@"', "sh", *command]
