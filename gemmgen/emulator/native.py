"""Inner loops of memory accesses in C (native.c), compiled once by the system's C compiler and kept in the user's compile cache.

Without a compiler, or with ``GEMMGEN_NATIVE=0``, the emulator computes the same results by NumPy, more slowly.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np

from gemmgen.core.cache import Cache, cache_key
from gemmgen.core.files import read_plain
from gemmgen.core.process_limits import limited

_SOURCE = Path(__file__).with_name("native.c")
_SECONDS = 180
"""Limit of the compiler's time; one that hangs is no compiler."""
_LARGEST = 1 << 24
"""Bytes of a library that is read."""
_OPTIONS = ("-O3", "-fPIC", "-shared")
_MIN_LANES = 2048
"""Lanes from which a wave of blocks is worth the time to load the library."""
REMEMBER, LOST, SETTLE, UNSEEN, ORDINARY = 1, 2, 3, 4, 5
"""Answers of `access_memory`: the work that it leaves to its caller, as native.c describes; 0 if none is left."""
IS_STORE, IS_PRIVATE, MAY_BE_OWN, HAS_PENDING, IS_SIGNED = 1, 2, 4, 8, 16
"""Bits of `AccessPlan.kind`."""
_libraries = itertools.count()
MAX_ELEMENTS = 8
"""Most elements of a vector access."""


class AccessPlan(ctypes.Structure):
    """`struct Access` of native.c."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("start", "first", "last", "mask")),
        *((name, ctypes.c_void_p) for name in ("data", "state", "writers", "readers", "many_readers", "threads", "looked", "touched")),
        ("touched_start", ctypes.c_uint64),
        ("rows", ctypes.c_void_p * MAX_ELEMENTS),
        *(
            (name, ctypes.c_int32)
            for name in (
                "granule_shift",
                "granules",
                "page_shift",
                "touched_shift",
                "touched_units",
                "element",
                "elements",
                "kind",
                "register_bytes",
            )
        ),
        *((name, ctypes.c_uint8) for name in ("matters", "watched", "keep", "mark")),
    ]


Loops = ctypes.CDLL


def is_possible() -> bool:
    """False beyond little-endian Linux, and with ``GEMMGEN_NATIVE=0``."""
    return sys.platform == "linux" and sys.byteorder == "little" and os.environ.get("GEMMGEN_NATIVE", "") != "0"


@cache
def loops() -> Loops | None:
    """The library, compiled if the cache lacks it; None without a compiler, beyond little-endian Linux, and with ``GEMMGEN_NATIVE=0``."""
    if not is_possible():
        return None
    opened = library("emulator loops", _SOURCE.read_bytes(), _OPTIONS, ("access_memory", "note_accesses"))
    if opened is None:
        return None
    word, place, whole = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    opened.access_memory.argtypes = (ctypes.POINTER(AccessPlan), place, whole, word, place, word, place)
    opened.note_accesses.argtypes = (place, place, place, whole, whole, whole, word, place, place, word, place, place)
    opened.note_accesses.restype = word
    opened.lowest_key.argtypes = (place, word, ctypes.c_int32, place, place, place)
    opened.lowest_key.restype = word
    opened.part_lanes.argtypes = (place, word, place, place, ctypes.c_int32, ctypes.c_int32)
    opened.part_lanes.restype = word
    return opened


def library(title: str, source: bytes, options: tuple[str, ...], functions: tuple[str, ...]) -> ctypes.CDLL | None:
    """The library of a C file with these functions, compiled if the cache lacks it; None without a compiler that can."""
    import platform  # imported here, as in _compiled, so that small launches start faster

    key = cache_key(title, source, platform.machine(), " ".join(options), _processor() if "-march=native" in options else "")
    store = Cache(quiet=True)
    files = store.load(key)
    opened = _opened(files["loops.so"], functions) if files and "loops.so" in files else None
    if opened is None:
        built = _compiled(source, options)
        opened = None if built is None else _opened(built, functions)
        if built is not None and opened is not None:
            store.store(key, {"loops.so": built})
    return opened


def _opened(built: bytes, functions: tuple[str, ...]) -> ctypes.CDLL | None:
    """A library; None if this process cannot load it, or if it lacks one of the functions."""
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.memfd_create("gemmgen-loops")
        with open(descriptor, "wb") as file:
            file.write(built)
            file.flush()
            # The loader knows libraries by their paths, and descriptors are used again: no path is written twice.
            opened = ctypes.CDLL(f"/proc/self/fd/{'./' * next(_libraries)}{descriptor}")
        if all(getattr(opened, name) for name in functions):
            return opened
    return None


@cache
def _processor() -> str:
    """The processor's instruction sets."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return ""


def _compiled(source: bytes, options: tuple[str, ...]) -> bytes | None:
    import shutil
    import subprocess
    import tempfile

    compiler = next((path for name in ("cc", "gcc", "clang", "g++") if (path := shutil.which(name))), None)
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="gemmgen-loops-") as folder:
            target = Path(folder) / "loops.so"
            command = limited([compiler, *options, "-x", "c", "-", "-o", str(target), "-lm"], _SECONDS)
            done = subprocess.run(command, input=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_SECONDS)
            built = read_plain(target, _LARGEST) if done.returncode == 0 else b""
    except (OSError, subprocess.TimeoutExpired):
        return None
    return built if 0 < len(built) <= _LARGEST else None


def loops_for(lanes: int) -> Loops | None:
    """The library for a wave of blocks with ``lanes`` lanes; None for waves that NumPy finishes sooner than the library loads."""
    return loops() if lanes >= _MIN_LANES else None


def pointer(array: np.ndarray | None) -> int | None:
    """The address of an array's first byte; None without an array."""
    return None if array is None else array.ctypes.data


def fits(addresses: np.ndarray, lanes: np.ndarray | None) -> bool:
    """True if the loops can read both arrays: contiguous unsigned addresses of 32 or 64 bits, and an index of lanes (None: all lanes)."""
    return addresses.dtype.kind == "u" and addresses.itemsize >= 4 and addresses.flags.c_contiguous and is_index(lanes)


def is_index(index: np.ndarray | None) -> bool:
    """True for a contiguous int64 array, and for None."""
    return index is None or (index.dtype == np.int64 and index.flags.c_contiguous)
