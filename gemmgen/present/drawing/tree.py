"""Draws how the threads of a block combine their results, a step at a time."""

from __future__ import annotations

from collections.abc import Iterable

from gemmgen.hardware.shared_memory import WARP, shared_access_cost
from gemmgen.kernels.pictures import Tree, TreeStep, runs
from gemmgen.present.drawing.svg import WIDTH, Canvas, number

LINE = 16
LEFT, RIGHT = 150.0, 200.0
BAR = 11.0
STEP = 36.0
SHOWN = 16
"""States whose ways are drawn one by one."""


def draw_tree(canvas: Canvas, picture: Tree, top: float) -> float:
    """Draws from ``top`` on; returns where the picture ends."""
    y = top + 12
    for note in picture.notes:
        y = canvas.paragraph(0, y, note, "note", WIDTH, LINE)
    y = _legend(canvas, y + 8) + 14
    with canvas.group(threads=picture.threads, steps=len(picture.steps)):
        for place, step in enumerate(picture.steps):
            _draw_step(canvas, step, place + 1, picture.threads, y)
            y += STEP
    close = _steps_among_first(picture)
    if close:
        y = _draw_ways(canvas, close, y + 20)
    return y + 4


def _steps_among_first(picture: Tree) -> list[TreeStep]:
    """The first steps in a row that combine some of the states shown with one another."""
    steps: list[TreeStep] = []
    for step in picture.steps:
        if any(into != origin and max(into, origin) < SHOWN for into, origin in step.pairs):
            steps.append(step)
        elif steps:
            break
    return steps


def _legend(canvas: Canvas, y: float) -> float:
    x = LEFT
    for kind, text in (("into", "state combined into"), ("origin", "state combined from"), ("worker", "thread at work")):
        canvas.rect(x, y - 10, 14, 11, kind)
        canvas.text(x + 20, y, text, "note")
        x += 170
    return y


def _draw_step(canvas: Canvas, step: TreeStep, place: int, threads: int, y: float) -> None:
    room = WIDTH - LEFT - RIGHT
    scale = room / threads
    data = {"step": place, "pairs": len(step.pairs), "workers": len(step.workers)}
    if step.access is not None:
        data["wavefronts"] = shared_access_cost(step.access.offsets, step.access.width, store=False).wavefronts
    with canvas.group(**data):
        canvas.text(0, y + 9, f"{place}. {step.title}", "text strong")
        if step.barrier:
            canvas.text(0, y + 23, step.barrier, "tiny")
        canvas.rect(LEFT, y, room, BAR, "plain thin")
        _ticks(canvas, [into for into, _ in step.pairs], "into", y, scale)
        _ticks(canvas, [origin for _, origin in step.pairs], "origin", y, scale)
        canvas.rect(LEFT, y + BAR + 1, room, BAR, "plain thin")
        _ticks(canvas, step.workers, "worker", y + BAR + 1, scale)
        for warp in range(1, -(-threads // WARP)):
            canvas.line(LEFT + warp * WARP * scale, y - 1, LEFT + warp * WARP * scale, y + 2 * BAR + 2, "edge")
        warps = len({worker // WARP for worker in step.workers})
        text = f"{len(step.workers)} thread{'s' if len(step.workers) > 1 else ''} of {warps} warp{'s' if warps > 1 else ''}"
        canvas.text(WIDTH - RIGHT + 10, y + 9, text, "note")
        if step.access is not None:
            cost = shared_access_cost(step.access.offsets, step.access.width, store=False)
            verdict = f"{cost.wavefronts} wavefront{'s' if cost.wavefronts > 1 else ''} for the first warp"
            canvas.text(WIDTH - RIGHT + 10, y + 23, verdict, "cell bad" if cost.conflicts else "cell")


def _ticks(canvas: Canvas, positions: Iterable[int], kind: str, y: float, scale: float) -> None:
    steps = []
    for first, count in runs(set(positions)):
        wide = number(count * scale)
        steps.append(f"M{number(LEFT + first * scale)} {number(y)}h{wide}v{number(BAR)}h-{wide}z")
    canvas.path("".join(steps), kind)


def _draw_ways(canvas: Canvas, steps: list[TreeStep], top: float) -> float:
    """The first states, a row for each step, with lines from the operands to the result."""
    canvas.text(0, top, f"The first {SHOWN} states, and the steps that stay among them", "head")
    across, down = (WIDTH - LEFT) / SHOWN, 46.0
    y = top + 14

    def draw_row(y: float, full: set[int]) -> None:
        for state in range(SHOWN):
            x = LEFT + state * across
            canvas.rect(x + 4, y, across - 12, 20, "c1 edge" if state in full else "plain thin")
            canvas.text(x + across / 2 - 2, y + 14, str(state), "cell mid")

    draw_row(y, set())
    for step in steps:
        inside = [(into, origin) for into, origin in step.pairs if max(into, origin) < SHOWN]
        for into, origin in inside:
            end = LEFT + (into + 0.5) * across - 2
            for begin in (into, origin):
                canvas.line(LEFT + (begin + 0.5) * across - 2, y + 20, end, y + down, "wire")
        y += down
        canvas.text(0, y + 14, step.title, "note")
        draw_row(y, {into for into, _ in inside})
    return y + 30
