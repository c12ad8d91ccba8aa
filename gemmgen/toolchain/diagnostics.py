"""Reads NVRTC's log: errors with their lines, warnings, and ptxas's reports on spills."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemmgen.core.files import MAX_BYTES, read_plain

_SHOWN_ERRORS = 10
_CONTEXT_LIMIT = 160

_SOURCE_ERROR = re.compile(r"^(?P<file>[^\s()]+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$")
_PTX_ERROR = re.compile(r"^ptxas [^,]*, line (?P<line>\d+); (?:error|fatal)\s*: (?P<text>.*)$")
_OTHER_ERROR = re.compile(r"^\s*(?:ptxas|nvrtc:) (?:error|fatal)\s*:\s*(?P<text>.*)$")
_FOLLOWS_FROM_OTHERS = "Ptx assembly aborted"

_INFORMATION = re.compile(r"^\s*ptxas\s*(?:info\s*:|\.)|^\s*\d+ bytes stack frame,")
_FUNCTION = re.compile(r"Function properties for (?P<name>\S+)")
_SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
_LOCATION = re.compile(r"^\s*\.loc\s+\d+\s+(?P<line>\d+)")


@dataclass(frozen=True, slots=True)
class Spills:
    """Bytes that a function's instructions store to and load from spilled registers, counted once per instruction."""

    store_bytes: int
    load_bytes: int


def read_spills(log: str) -> dict[str, Spills]:
    """Spills by function name, from the report of ptxas -v."""
    spills: dict[str, Spills] = {}
    function = None
    for line in log.splitlines():
        if match := _FUNCTION.search(line):
            function = match["name"]
        elif function is not None and (match := _SPILLS.search(line)):
            spills[function] = Spills(int(match["stores"]), int(match["loads"]))
            function = None
    return spills


def warnings_of(log: str) -> str:
    """The log without the report of ptxas -v, whose times differ from run to run."""
    return "\n".join(line for line in log.splitlines() if not _INFORMATION.match(line)).strip()


def explain_errors(log: str, source: str, ptx: str, architecture: str, file_name: str) -> str:
    """A message with each error and the line it is about; the log itself if it holds no error of a known form.

    An error in inline PTX is shown with the PTX line and the CUDA line it was generated from.
    """
    errors = []
    for line in log.splitlines():
        if match := _SOURCE_ERROR.match(line):
            number = int(match["line"])
            quoted = _quote(source if match["file"] == file_name else _text_of(match["file"]), number)
            errors.append(f"{match['file']}:{number}: {match['text']}{quoted}")
        elif match := _PTX_ERROR.match(line):
            if _FOLLOWS_FROM_OTHERS not in match["text"]:
                errors.append(_explain_ptx_error(int(match["line"]), match["text"], source, ptx, file_name))
        elif (match := _OTHER_ERROR.match(line)) and _FOLLOWS_FROM_OTHERS not in match["text"]:
            errors.append(match["text"])
    if not errors:
        return warnings_of(log)
    count = f"{len(errors)} error{'s' if len(errors) > 1 else ''}"
    more = [f"... and {len(errors) - _SHOWN_ERRORS} more"] if len(errors) > _SHOWN_ERRORS else []
    return "\n".join([f"{file_name} does not compile for {architecture}: {count}", *errors[:_SHOWN_ERRORS], *more])


def _explain_ptx_error(number: int, text: str, source: str, ptx: str, file_name: str) -> str:
    above = ptx.splitlines()[:number]
    locations = (match for line in reversed(above) if (match := _LOCATION.match(line)))
    location = next(locations, None)
    if location is None:
        return f"PTX:{number}: {text}{_quote(ptx, number)}"
    cuda_line = int(location["line"])
    return f"{file_name}:{cuda_line}: PTX: {text}{_quote(ptx, number)}{_quote(source, cuda_line)}"


def _text_of(file: str) -> str:
    """A header as it is on disk; empty if it cannot be read."""
    try:
        return read_plain(file, MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _quote(text: str, number: int) -> str:
    """Line `number` of a text, counted from 1, as a line to append to a message; empty if there is no such line."""
    lines = text.split("\n")
    if not 1 <= number <= len(lines):
        return ""
    return f"\n    {number:>5} | {lines[number - 1].rstrip()[:_CONTEXT_LIMIT]}"
