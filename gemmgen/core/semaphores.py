"""Locks that processes share: pools of processes need them, and some containers and sandboxes have none."""

from __future__ import annotations


def has_semaphores() -> bool:
    """True if this system makes named semaphores; false where /dev/shm is missing or cannot be written, for instance."""
    from multiprocessing import get_context

    try:
        get_context("spawn").Lock()
    except (ImportError, OSError):
        return False
    return True
