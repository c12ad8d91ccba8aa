"""Two kernels compared, as a page."""

from __future__ import annotations

from gemmgen.hardware.target import Device
from gemmgen.present.comparison import Comparison, Side
from gemmgen.present.drawing import draw
from gemmgen.present.launch_pictures import all_pictures
from gemmgen.present.web.colours import coloured_lines
from gemmgen.present.web.pages import page


def diff_page(comparison: Comparison, device: Device) -> str:
    """The page of a comparison, with the pictures of both plans side by side."""
    sides = [_drawn(side, device) for side in comparison.sides]
    groups = [
        ("Spec", comparison.spec),
        ("Plan", comparison.plan),
        ("Resources and time", comparison.resources),
        ("Machine code, instructions by class", comparison.mix),
        ("Counters of one case on the emulator", comparison.counters),
    ]
    return page(
        "diff.html.j2",
        title=f"{comparison.names[0]} → {comparison.names[1]}",
        comparison=comparison,
        groups=[(name, changes) for name, changes in groups if changes],
        source=coloured_lines("\n".join(comparison.source), "diff"),
        pictures=[(name, sides[0][name], sides[1][name]) for name in sides[0] if name in sides[1] and sides[0][name] != sides[1][name]],
    )


def _drawn(side: Side, device: Device) -> dict[str, str]:
    if side.plan is None:
        return {}
    return {picture.name: draw(side.plan.name, [picture]) for picture in all_pictures(side.plan, device, compiled=side.compiled)}
