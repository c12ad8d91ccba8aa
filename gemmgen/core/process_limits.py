"""Limits of processes below those that they were started with."""

from __future__ import annotations

import resource


def lower(kind: int, soft: int, hard: int) -> None:
    """Lowers a limit of this process (``resource.RLIMIT_AS``, ...) to these values, or leaves it where it is lower already: nobody may
    raise it again."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
