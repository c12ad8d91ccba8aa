"""The program as a child process: limits, the fence around it, and its end."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.core.process_limits import lower
from gemmgen.sanitizer.programs.building import NVRTC
from gemmgen.sanitizer.programs.messages import BadMessage
from gemmgen.sanitizer.programs.places import Places
from gemmgen.sanitizer.programs.session import ProgramEnded, Report, RunSettings, Session

_NO_RANDOM_ADDRESSES = 0x0040000
_OWN_MEMORY = 8 << 30
"""Bytes of address space of a program beside device memory."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_WRITING = 0b1111111111110  # of LANDLOCK_ACCESS_FS_*: all that writes, creates or removes, up to the first version
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_CHANGES = _WRITING & ~(_READ_FILE | _READ_FOLDER)
_MOVE = 1 << 13
"""Moving a file to another folder, which the first version forbids everywhere."""
_CONNECTIONS = 0b11
_NO_NEW_PRIVILEGES = 38
_PLAIN_NAME = "./program"


class _Attributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """The version of the kernel's Landlock; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    version: int = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1)
    return max(version, 0)


def fence(folders: Sequence[str], version: int) -> None:
    """From here on this process and its children change files below these folders only, and open no TCP connection. ``version``: that of
    the kernel's Landlock, at least 1. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    changes = _CHANGES | (_MOVE if version >= 2 else 0)
    attributes = _Attributes(changes, _CONNECTIONS if version >= 4 else 0)
    size = 16 if version >= 4 else 8
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    if rules < 0:
        raise OSError("landlock_create_ruleset")
    for folder in folders:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        is_folder = os.path.isdir(folder)
        beneath = _Beneath(changes if is_folder else 1 << 1, descriptor)
        if libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(beneath), 0):
            raise OSError("landlock_add_rule")
        os.close(descriptor)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, rules, 0):
        raise OSError("landlock_restrict_self")


def fence_here(folders: Sequence[str]) -> Callable[[], None]:
    """A function that fences the process in that calls it: it changes files of the current folder and of ``folders`` only.

    Raises EnvironmentMissing.
    """
    version = landlock_version()
    if not version:
        raise EnvironmentMissing("--sandbox needs Landlock, which this kernel does not have or does not allow")
    # The current folder is that of the process that is fenced, which may be started in another one.
    return lambda: fence([os.getcwd(), "/dev/null", "/dev/shm", *folders], version)


def run_program(command: Sequence[str], libraries: Path, settings: RunSettings, hidden: Sequence[str], quiet: bool = False) -> Report:
    """Runs a program whose CUDA runtime is the replacement in `libraries`; `quiet` sends its output to standard error.

    Raises GemmgenError if it cannot be started.
    """
    if sys.platform != "linux":
        raise EnvironmentMissing("gemmgen run needs Linux")
    restrict = fence_here([]) if settings.sandbox else None
    places = Places(hidden)
    session = Session(settings, places, places.text_of)
    ours, theirs = socket.socketpair()
    device = session.device
    environment = dict(
        os.environ,
        GEMMGEN_SOCKET=str(theirs.fileno()),
        GEMMGEN_MEMORY=str(device.descriptor),
        GEMMGEN_ARENA=str(device.size_bytes),
        GEMMGEN_ARCHITECTURE=str(settings.architecture),
        GEMMGEN_MULTIPROCESSORS=str(settings.multiprocessors),
        GEMMGEN_NVRTC=os.path.realpath(libraries / NVRTC),
        LD_LIBRARY_PATH=f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    )
    if settings.answers is not None:
        environment |= settings.answers.to_environment()
    if settings.hides:
        environment["GEMMGEN_HIDES"] = "1"
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        # Without random addresses the place of device memory is free.
        libc.personality(_NO_RANDOM_ADDRESSES)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        lower(resource.RLIMIT_CPU, settings.seconds, settings.seconds + 5)
        limit = 2 * device.size_bytes + _OWN_MEMORY
        lower(resource.RLIMIT_AS, limit, limit)
        if restrict is not None:
            restrict()

    began = time.perf_counter()
    try:
        child = subprocess.Popen(
            [_PLAIN_NAME, *command[1:]] if settings.hides else list(command),
            executable=command[0] if settings.hides else None,
            env=environment,
            pass_fds=(theirs.fileno(), device.descriptor),
            preexec_fn=prepare,
            start_new_session=True,
            stdout=subprocess.DEVNULL if settings.silent else 2 if quiet else None,
            stderr=subprocess.DEVNULL if settings.silent else None,
            cwd=settings.folder,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GemmgenError(f"{command[0]} cannot be started: {error}") from None
    theirs.close()
    session.child = child
    ours.settimeout(None)

    def end(number: int, frame: FrameType | None) -> None:
        session.is_over = True
        _kill(child)
        with suppress(OSError):  # a process that the program left behind may hold the other end
            ours.shutdown(socket.SHUT_RDWR)
        if session.running:
            raise ProgramEnded(f"kernel {session.running} was running")

    old = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.seconds, 1.0)  # again every second, so that no handler on the way keeps it
    try:
        session.serve(ours)
    except BadMessage as error:
        session.report.ended_early = f"the program sent a message that its runtime does not send: {error}"
        _kill(child)
    except ProgramEnded as error:
        session.report.ended_early = str(error)
    except BaseException:
        _kill(child)
        session.close()
        raise
    finally:
        ours.close()
        status = child.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    report = session.finish(status)
    session.close()
    report.seconds = time.perf_counter() - began
    if report.seconds >= settings.seconds:
        report.ended_early = f"the program was ended after {settings.seconds} s (--seconds): {report.ended_early}".removesuffix(": ")
    return report


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the program and its children, which form a separate session."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
