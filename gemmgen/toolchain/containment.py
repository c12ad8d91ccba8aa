"""Work in a child process, so that a crash there is an error here."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

from gemmgen.core.errors import CompileError, GemmgenError

T = TypeVar("T")


def contained(work: Callable[[], T], label: str, seconds: float | None = None) -> T:
    """The result of `work`, done by a fork of this process; its GemmgenError is raised here. Where there is no fork, `work` is called.

    Raises CompileError if the child dies, or takes more processor time than `seconds`.
    """
    if not hasattr(os, "fork"):
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Other threads are NumPy's, which hold no lock that the child needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        if seconds is not None:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the child even within a library that knows no interrupts
            signal.setitimer(signal.ITIMER_PROF, seconds)
        _answer(work, reading, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        try:
            answer = pipe.read()
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        raise CompileError(f"{label}, took more than {seconds:g} s of processor time")
    if os.WIFSIGNALED(status):
        raise CompileError(f"{label}, crashed ({signal.Signals(os.WTERMSIG(status)).name})")
    if not answer:
        raise CompileError(f"{label}, ended without an answer (status {os.waitstatus_to_exitcode(status)})")
    succeeded, value = pickle.loads(answer)  # written by this program's own fork
    if not succeeded:
        raise value
    result: T = value
    return result


def _answer(work: Callable[[], object], reading: int, writing: int) -> None:
    """The child's part: it never returns."""
    code = 1
    try:
        os.close(reading)
        try:
            answer: tuple[bool, object] = (True, work())
        except GemmgenError as error:
            answer = (False, error)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
