"""One kernel on one page: CUDA, PTX and machine code side by side, with the cost of each line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmgen.codegen.rendering import render
from gemmgen.core.errors import EnvironmentMissing
from gemmgen.perf.analysis.listing import ListedInstruction, listing
from gemmgen.perf.analysis.why_slow import causes
from gemmgen.present.drawing import draw
from gemmgen.present.launch_pictures import all_pictures
from gemmgen.present.web.colours import coloured_lines
from gemmgen.present.web.pages import page

if TYPE_CHECKING:
    from gemmgen.perf.analysis.report import Analysis
    from gemmgen.toolchain.nvrtc import Binary

_LOCATION = re.compile(r"\s*\.loc\s+\d+\s+(?P<line>\d+)")
_NO_CODE = re.compile(r"\s*(?:\.loc\b.*|\.file\b.*|//.*)?$")


@dataclass(frozen=True)
class _CudaLine:
    number: int
    html: str
    instructions: str
    wavefronts: str
    conflicts: int
    sectors: str


@dataclass(frozen=True)
class _PtxLine:
    number: int
    source: int
    html: str


@dataclass(frozen=True)
class _SassLine:
    address: str
    source: int
    html: str
    control: str
    live: str
    banks: str
    conflict: bool
    loop: bool


def view(analysis: Analysis, binary: Binary, proved: Sequence[str] = ()) -> str:
    """The page of an instance that was analysed, and its binary; ``proved``: names of properties that hold for all sizes."""
    plan = analysis.plan
    try:
        sass, missing = _sass_lines(listing(binary)), ""
    except EnvironmentMissing as error:
        sass, missing = [], str(error)
    pictures = all_pictures(plan, analysis.device, compiled=analysis.resources)
    roofs, main = analysis.roofs, analysis.main_kernel
    case = analysis.traffic.case if analysis.traffic else None
    return page(
        "view.html.j2",
        title=plan.name,
        summary=f"{analysis.architecture}: {main.resources.registers} registers, {main.shared_bytes:,} bytes of shared memory, "
        f"{main.occupancy.blocks_per_sm} blocks and {main.occupancy.warps} warps on an SM",
        proved=", ".join(proved),
        causes=causes(analysis),
        bound="arithmetic" if roofs.binding == "compute" else "memory",
        least=f"{roofs.least_seconds * 1e6:,.4g} µs",
        device=analysis.device.name,
        case="" if case is None else ", ".join(f"{name}={value}" for name, value in case.dimensions.items()),
        cuda=_cuda_lines(analysis),
        ptx=_ptx_lines(binary.ptx),
        sass=sass,
        sass_missing=missing,
        pictures=[{"title": picture.title, "svg": draw(plan.name, [picture])} for picture in pictures],
    )


def _cuda_lines(analysis: Analysis) -> list[_CudaLine]:
    tallies = {line.line: line.tally for line in analysis.traffic.counters.lines} if analysis.traffic else {}
    lines = []
    for number, html in enumerate(coloured_lines(render(analysis.plan).text, "cuda"), 1):
        tally = tallies.get(number)
        shared = tally.shared_total if tally else None
        wavefronts = "" if shared is None or not shared.wavefronts else f"{shared.wavefronts:,}"
        if shared is not None and shared.conflicts:
            wavefronts += f" ({shared.conflicts:,})"
        lines.append(
            _CudaLine(
                number,
                html,
                f"{tally.total_instructions:,}" if tally else "",
                wavefronts,
                shared.conflicts if shared else 0,
                f"{tally.global_total.sectors:,}" if tally and tally.global_total.sectors else "",
            )
        )
    return lines


def _ptx_lines(ptx: str) -> list[_PtxLine]:
    """The lines of PTX without those that only say where they come from."""
    source, lines = 0, []
    for number, line in enumerate(ptx.splitlines(), 1):
        if match := _LOCATION.match(line):
            source = int(match["line"])
        elif line.startswith("}"):
            lines.append((number, 0, line))
            source = 0
        elif not _NO_CODE.fullmatch(line):
            lines.append((number, source, line))
    html = coloured_lines("\n".join(line.rstrip().replace("\t", "  ") for _, _, line in lines), "ptx")
    return [_PtxLine(number, source, text) for (number, source, _), text in zip(lines, html, strict=True)]


def _sass_lines(listed: list[ListedInstruction]) -> list[_SassLine]:
    html = coloured_lines("\n".join(one.text for one in listed), "sass")
    return [
        _SassLine(
            f"{one.instruction.address:04x}",
            one.instruction.source_line or 0,
            text,
            str(one.annotation.control) if one.annotation else "",
            str(one.annotation.live_registers) if one.annotation and one.annotation.live_registers is not None else "",
            "".join("r" if read.reused else "EO"[read.bank] for read in one.reads),
            one.bank_conflict,
            one.in_main_loop,
        )
        for one, text in zip(listed, html, strict=True)
    ]
