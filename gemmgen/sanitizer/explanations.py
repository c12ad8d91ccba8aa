"""Pages on the findings, from ``docs/findings.md``: the meaning, a minimal example, and the fix of each."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from gemmgen.core.resources import resource_directory
from gemmgen.sanitizer.findings import code_of
from gemmgen.sanitizer.source import UnusableInput

PAGE_COLUMNS = 100
"""Width of the prose of a page that is printed."""


@dataclass(frozen=True)
class Explanation:
    """The page of one code. The example consists of statements that have the finding; `fixed` is their fix."""

    code: str
    title: str
    meaning: str
    example: str
    remedy: str
    fixed: str

    def __str__(self) -> str:
        indented = ("\n".join(f"    {line}" for line in text.strip().splitlines()) for text in (self.example, self.fixed))
        wrong, right = indented
        meaning, remedy = (textwrap.fill(text, PAGE_COLUMNS, break_on_hyphens=False) for text in (self.meaning, self.remedy))
        return f"{self.title} [{self.code}]\n\n{meaning}\n\n{wrong}\n\n{remedy}\n\n{right}\n"


_PAGE = re.compile(
    r"^## (?P<title>.+)\n\n`(?P<code>[\w-]+)`\. (?P<meaning>.+)\n\n```cuda\n(?P<example>[^`]+)\n```\n\n(?P<remedy>.+)\n\n"
    r"```cuda\n(?P<fixed>[^`]+)\n```$",
    re.MULTILINE,
)
_DOCUMENT = resource_directory("docs") / "findings.md"
EXPLANATIONS = {page["code"]: Explanation(**page.groupdict()) for page in _PAGE.finditer(_DOCUMENT.read_text(encoding="utf-8"))}
"""The pages by code, in the order of the document."""


def explain(code: str) -> str:
    """The page of a code; of all codes that contain the word; all of them for `all`. Raises ``UnusableInput``.

    A finding without a separate page is explained by the description of its kind.
    """
    wanted = code.lower().replace("_", "-").replace(" ", "-")
    if wanted in EXPLANATIONS:
        return str(EXPLANATIONS[wanted])
    short = _short_pages()
    pages = [
        str(page) for page in EXPLANATIONS.values() if wanted == "all" or wanted in page.code or wanted in page.title.replace(" ", "-")
    ]
    pages += [text for name, text in short.items() if wanted == "all" or wanted in name]
    if not pages:
        raise UnusableInput(f"--explain {code}: no finding has this name; the names are {', '.join([*EXPLANATIONS, *short])}")
    return "\n".join(pages).rstrip("\n")


def codes_of_findings() -> list[str]:
    """The codes that findings may have."""
    return [*EXPLANATIONS, *_short_pages()]


def _short_pages() -> dict[str, str]:
    """Descriptions of the kinds of findings that have no page."""
    from gemmgen import emulator

    pages = {}
    for name in emulator.__all__:
        kind = getattr(emulator, name)
        if isinstance(kind, type) and issubclass(kind, emulator.EmulatorError) and code_of(kind) not in EXPLANATIONS:
            meaning = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
            hint = getattr(kind, "hint", "")
            remedy = f"\n\n{hint[:1].upper()}{hint[1:]}." if hint else ""
            pages[code_of(kind)] = f"{kind.title} [{code_of(kind)}]\n\n{meaning}{remedy}\n"
    return pages
