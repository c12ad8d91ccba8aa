"""The worker process of a sweep: a crash, or a fault of the GPU, ends with it.

It answers requests over a connection until that is closed. When the process that started it is gone, it ends at once, with all
that it has started itself, even in the midst of work.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.core.process_limits import lower
from gemmgen.sweep.records import Stage, SweepError


def main() -> None:
    """Serves the connection whose file descriptor is the first argument.

    The second is the descriptor of a pipe that nobody writes to: its end says that the parent is gone. The third limits the
    memory in bytes; 0: no limit.
    """
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(int(sys.argv[2]),), daemon=True).start()
    _limit_harm(int(sys.argv[3]))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        while True:
            name, payload = connection.recv()
            connection.send(_answer(connection, name, payload))


def _answer(connection: Connection[Any, Any], name: str, payload: object) -> tuple[str, Any]:
    """Result of one request: calls the function ``module:name`` and tells the parent of every stage that begins."""
    module, _, function = name.partition(":")

    def enter(stage: Stage) -> None:
        connection.send(("stage", stage))

    try:
        return "done", getattr(import_module(module), function)(payload, enter)
    except EnvironmentMissing as error:
        return "missing", str(error)
    except SweepError as error:
        return "mistake", str(error)
    except MemoryError:
        return "memory", "the process ran out of memory"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "raised", f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"


def _limit_harm(memory_bytes: int) -> None:
    """No core dumps; a limit on memory; and if the machine runs out of it, this process is ended rather than the sweep."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        # The limit on data, not on addresses: of those a CUDA context reserves far more than there is memory.
        lower(resource.RLIMIT_DATA, memory_bytes, memory_bytes)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("800")


def _end_with_parent(lifeline: int) -> None:
    with contextlib.suppress(OSError):
        os.read(lifeline, 1)
    kill_tree(os.getpid())


def kill_tree(process: int) -> None:
    """Kills a process and all that it has started, itself last, at once."""
    for descendant in reversed(_descendants(process)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(descendant, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    """Children before grandchildren; unreadable entries of /proc count as none."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat", "rb") as file:
                # proc(5): the name, in parentheses, may hold anything; the parent is the second field after it.
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(entry))
    processes = [process]
    for parent in processes:
        processes += children.get(parent, [])
    return processes[1:]
