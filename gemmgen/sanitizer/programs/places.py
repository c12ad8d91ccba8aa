"""Places of a program's calls in its source, by the debug information that addr2line reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmgen.core.files import MAX_BYTES, read_plain
from gemmgen.sanitizer.programs.messages import Frame

_ADDRESS_LINE = re.compile(r"^(?P<file>.+?):(?P<line>\d+)")
_CAST = r"(?:\(\s*[\w\s:]+\*\s*\*\s*\)|\w+_cast\s*<[^>]*>)"
_VARIABLE = re.compile(rf"\bcuda\w*(?:Malloc|Alloc)\w*\s*\(\s*{_CAST}?[\s(&]*(?:this\s*->\s*)?([A-Za-z_][\w.\[\]>-]*)")
_PYTHON_VARIABLE = re.compile(r"([A-Za-z_]\w*)\s*=(?!=).*\bcu(?:da)?Mem\w*Alloc")
_ALLOCATION = re.compile(r"\ballocation (\d+)\b")
_MAX_KNOWN = 100_000


@dataclass(frozen=True)
class CallPlace:
    """A line of the program's source."""

    file: str
    line: int
    function: str | None


class Places:
    """Finds places, and remembers them."""

    def __init__(self, hidden: Sequence[str]) -> None:
        """`hidden`: folders whose files are not the program's, such as that of the CUDA headers."""
        self._hidden = tuple(f"{os.path.abspath(folder)}/" for folder in hidden)
        self._known: dict[Frame, CallPlace | None] = {}
        self._tool = shutil.which("addr2line")
        self._lines: dict[str, list[str]] = {}

    def first(self, frames: Sequence[Frame]) -> CallPlace | None:
        """The innermost call in the program's own source."""
        return next((place for frame in frames if (place := self._place(frame)) is not None), None)

    def _place(self, frame: Frame) -> CallPlace | None:
        if frame not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                return None
            self._known[frame] = self._look_up(frame)
        return self._known[frame]

    def _look_up(self, frame: Frame) -> CallPlace | None:
        if frame.file.endswith(".py"):
            return CallPlace(_shown(os.path.abspath(frame.file)), frame.offset, None) if os.path.isfile(frame.file) else None
        if self._tool is None or not os.path.isfile(frame.file):
            return None
        # The address behind the call belongs to the next line; one byte before it lies within the call.
        command = [self._tool, "-i", "-f", "-C", "-e", frame.file, hex(max(frame.offset - 1, 0))]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30, check=False).stdout.splitlines()
        except (OSError, subprocess.TimeoutExpired):
            return None
        for function, where in zip(answer[::2], answer[1::2], strict=False):
            match = _ADDRESS_LINE.match(where)
            if match is None or match["line"] == "0" or match["file"].startswith("??"):
                continue
            file = os.path.normpath(match["file"])
            if not file.startswith(self._hidden) and "/include/crt/" not in file:
                return CallPlace(_shown(file), int(match["line"]), function)
        return None

    def line(self, place: CallPlace) -> str:
        """The text of a line; empty if it cannot be read."""
        if place.file not in self._lines:
            self._lines[place.file] = (self.text_of(place.file) or "").splitlines()
        lines = self._lines[place.file]
        return lines[place.line - 1] if 0 < place.line <= len(lines) else ""

    def variable(self, place: CallPlace) -> str | None:
        """The variable that an allocation at a line goes to."""
        match = (_PYTHON_VARIABLE if place.file.endswith(".py") else _VARIABLE).search(self.line(place))
        return match[1] if match is not None else None

    def text_of(self, file: str) -> str | None:
        """The text of a file that a place or PTX names."""
        try:
            return read_plain(file, MAX_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            return None

    def with_names(self, ptx: str) -> str:
        """PTX whose files are named relative to the current folder, as messages show them."""
        return re.sub(r'^(\s*\.file\s+\d+\s+")([^"\n]+)', lambda match: match[1] + _shown(match[2]), ptx, flags=re.MULTILINE)

    def renamed(self, text: str, name: Callable[[int], str | None]) -> str:
        """A text with names for `allocation 3`."""
        return _ALLOCATION.sub(lambda match: name(int(match[1])) or match[0], text)


def _shown(file: str) -> str:
    here = f"{Path.cwd()}/"
    return file.removeprefix(here)
