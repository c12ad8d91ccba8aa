"""A verdict as a standalone HTML page."""

from __future__ import annotations

from html import escape

from gemmgen.judge.referee import KINDS, Verdict

_STYLE = "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}code{background:#eee}.no{color:#a00}.yes{color:#070}"


def verdict_page(verdict: Verdict) -> str:
    """The page; names and messages are escaped."""
    word, mark = ("accepted", "yes") if verdict.accepted else ("refused", "no")
    parts = [f"<h1>{escape(verdict.candidate)}: <span class={mark}>{word}</span></h1>"]
    for failure in verdict.failures:
        where = ", ".join(f"{name}={value}" for name, value in failure.shape.items())
        parts.append(f"<h2>{escape(failure.kind)}</h2><p>It {escape(KINDS[failure.kind])}.</p>")
        parts.append(f"<p>{escape(where)}</p><pre>{escape(failure.message)}</pre>")
    shapes = ", ".join(" ".join(f"{name}={value}" for name, value in shape.items()) for shape in verdict.shapes)
    parts += [f"<p>Note: {escape(note)}.</p>" for note in verdict.notes]
    parts.append("<h2>Checks</h2><ul>" + "".join(f"<li>{escape(check)}</li>" for check in verdict.checks) + "</ul>")
    parts.append(f"<p>Shapes: {escape(shapes)}. Largest error over its bound: {verdict.worst_ratio:.3g}. Seed: {verdict.seed}.</p>")
    if (times := verdict.times) is not None:
        beside = f", {times.peer} {times.peer_us:.2f} us" if times.peer_us is not None else f" ({times.peer})"
        parts.append(f"<h2>Time</h2><p>{escape(f'{times.device}: {times.candidate_us:.2f} us{beside}')}</p>")
    return f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(verdict.candidate)}</title><style>{_STYLE}</style>" + "".join(
        parts
    )
