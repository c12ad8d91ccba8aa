"""Text of others made fit to be shown: no character in it moves the cursor or recolours the terminal, no line of it commands a service of
continuous integration that reads the log, and it has an end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MAX_CHARACTERS = 20_000
"""Limit of one message, in characters."""

_ALIKE, _BEHIND = 0.65, 0.12
"""Least likeness of a name that is suggested, and how much less alike than the best it may be."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""All but tab and line feed: controls of C0 and C1, and characters that reverse the direction of writing (unicode.org, UAX #9)."""
_LOG_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|##(?=\[|vso\[|teamcity\[)", re.MULTILINE)
"""Beginnings of commands in logs: ``::stop-commands::`` of GitHub, which looks at the start of lines, ``##[error]`` and ``##vso[...]`` of
Azure and ``##teamcity[...]``, which are found anywhere. Sections of GitLab need a control character."""
_NO_XML = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Characters that XML 1.0 does not have, not even escaped (w3.org/TR/xml, 2.2); compiled when it is needed, which takes 5 ms."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean X?)`` with the known word that is most like ``word``; empty if none is."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def close_paths(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known paths, such as gemm/v1_tiled, that ``word`` may mean: their last parts are alike, and none much less than the best."""
    folder, _, last = word.rpartition("/")
    likeness = {path: (_likeness(last, path.rpartition("/")[2]), _likeness(word, path)) for path in known}
    possible = {path: ratios for path, ratios in likeness.items() if not folder or ratios[1] >= _ALIKE}
    best = max((of_last for of_last, _ in possible.values()), default=0.0)
    close = [path for path, (of_last, _) in possible.items() if of_last >= max(_ALIKE, best - _BEHIND)]
    return sorted(close, key=possible.__getitem__, reverse=True)[:most]


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def printable(text: str, limit: int = MAX_CHARACTERS) -> str:
    """``text`` with control characters written as escapes, with a space inserted into log commands (``: :error``), and with its middle
    left out where it is longer than ``limit``."""
    if len(text) > limit:
        left_out = len(text) - limit
        text = f"{text[: limit - limit // 4]} ... ({left_out} characters left out) ... {text[len(text) - limit // 4 :]}"
    text = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return _LOG_COMMAND.sub(lambda match: "# #" if match[1] is None else f"{match[1]}: ", text)


def xml_text(text: str) -> str:
    """``text`` with a replacement character for each that XML cannot hold."""
    return re.sub(_NO_XML, "\ufffd", text)
