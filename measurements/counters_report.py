"""The table of predicted and measured counters, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """# Predicted and measured memory traffic

Counters that `gemmgen verify --counters` predicts from the PTX, beside those of Nsight Compute on the GPU, for one case of every
spec, launched once ([Cases](#cases)). A single number is both; where they differ, a table has
*predicted → measured*. Empty cells are zero. `python -m measurements.counters` makes this file.
"""

_REASONS = """
## Where the two can differ

The emulator executes PTX; the GPU executes ptxas's output.

- **Code**: merged and removed accesses. ptxas may join neighbouring accesses into a wider one, keep in a register a value that was loaded
  before, and drop loads whose result nothing uses. Then the instructions differ as well: the number of shared and global
  instructions is listed below for each difference, so that it shows whether the code or the rule is the cause.
- **Code**: moved accesses. ptxas may load early, under a weaker condition than the source's, and may turn a branch into predicated
  instructions. Requests change only where a warp has no lane that needs the access.
- **Code**: divergence. The parts of a diverged warp each make their own request. The emulator lets parts meet again as early as the
  program's order allows; the GPU lets them meet where ptxas placed the reconvergence.
- **Spills.** Values that do not fit into registers go to local memory, which PTX does not show; local sectors are listed below.
- **Arbitration.** `l1tex__data_bank_conflicts_…` counts cycles that an access lost at the data banks, whatever the competing access was:
  data of global accesses passes through the same banks as shared memory. With many warps it can exceed the conflicts of the
  addresses alone. The wavefronts of instrumented code ("by sass") have no such part.
- **Copies** (`cp.async`). Banks count on both sides: the destination's, and the source's (byte address / 4 mod 32); equal words are not
  merged. Rows of 32 bytes 128 bytes apart cost four times as much as 96 bytes apart. Of `.ca`, each bank of the source offers in
  every wavefront the first lane that waits for it, and of these the last lane gets its banks of the destination: where one side is regular
  that is the larger degree. `.cg` costs the degree of the destination in a warp that only fills with zeros; the arrivals, if that
  is more, in one that only reads; else both sides' degrees and the arrivals: data that eight lanes get from one line of 128 bytes for one
  line of shared memory arrives at once, as long as whole sectors move and keep their parity, or all change it. Sectors of `.cg` are merged
  among those eight lanes only, so that a row that begins in the midst of a sector costs one more for every 128 bytes. Instruction by
  instruction (`tests/data/async_copy_wavefronts_h200.json`, `copy_wavefronts_h200.json`, `copy_predicates_h200.json`) and over the kernels
  below this is exact; where both sides are random it is up to 25% low.
- **Profiler**: copies of `cp.async`. The counters of instrumented code take a condition in predicate register P0 for none, and show
  the cost of such a copy if every lane read, or, without a number of bytes, if none did; conditions in P1 to P6 they see.
  Which register it is is ptxas's choice. And sectors of `.cg` they merge between two neighbouring lanes only; the hardware's own counter,
  which adds loads and copies, does so among eight. With both the number is exact.
- **Profiler**: TMA boxes. Its load sectors are those that come to shared memory: of the whole box, filled elements
  included, in each block of the cluster that it goes to, and once more a sector that lies in the array in part only. The prediction is
  the sectors that a box reads from memory. Its store sectors are counted row by row of a box. With both the number is exact.
- **Two counters**: the sectors of copies by instrumented code, where the hardware's own counter of loads and copies is equal to the
  prediction. The two are read in different passes, and differ by at most 1%.
- `wgmma` reads its operands from shared memory in rows of 128 bytes, one wavefront each. Accesses through `.shared::cluster` are no
  shared loads and stores, here as there.
- **Code**: polling. A block that waits for another one reads its flag as often as it takes, which is not the same number twice (serial
  split-K, stream-K, sums in one pass).
- **Atomics.** Wavefronts of atomics on shared memory are not predicted, and no metric above contains them.
- **Sectors.** A request counts each sector that its warp touches once, also for 8 and 16 bytes a lane. Parameters and constants
  are read through the constant cache and are no global accesses.
"""


def markdown(about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], must_agree: Sequence[str]) -> str:
    """The whole file."""
    measured = [row for row in rows if "measured" in row]
    used = [name for name in must_agree if any(row.get("predicted", {}).get(name) or _measured(row, name) for row in rows)]
    lines = [_INTRODUCTION, _about(about, rows, measured, used), ""]
    predicted = [row for row in rows if "predicted" in row]
    for title, names in _tables(used):
        lines += [f"## {title}", "", "| " + " | ".join(["spec", *names]) + " |", "| --- |" + " ---: |" * len(names)]
        for row in predicted:
            cells = [_cell(row, name) for name in names]
            if any(cells):
                lines.append(f"| {_name(row)} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Cases", "", "| spec | case | sizes |", "| --- | --- | --- |"]
    for row in predicted:
        sizes = " ".join(f"{name}={value}" for name, value in row["dimensions"].items())
        lines.append(f"| {_name(row)} | {row['case']} | {sizes} |")
    lines += _differences(measured, used)
    failed = [row for row in rows if "error" in row]
    if failed:
        lines += ["", "## Not measured", "", *(f"- {row['spec']}: {' '.join(row['error'].split())[:300]}" for row in failed)]
    lines.append(_REASONS)
    if "metrics" in about:
        lines += ["## Metrics", "", *(f"- {name}: {' + '.join(f'`{m}`' for m in metrics)}" for name, metrics in about["metrics"].items())]
    return "\n".join(lines).rstrip() + "\n"


_TITLES = {"shared": "Shared memory", "global": "Global memory", "copy": "Copies"}
"""The table of a quantity, by its first word; ``ldmatrix`` reads shared memory."""


def _tables(used: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The tables, each with its quantities."""
    titles = {name: _TITLES.get(name.split()[0], _TITLES["shared"]) for name in used}
    return [(title, [name for name in used if titles[name] == title]) for title in dict.fromkeys(titles.values())]


def _name(row: Mapping[str, Any]) -> str:
    return str(row["spec"]).removeprefix("specs/").replace(".yaml", "")


def _about(about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]], used: Sequence[str]) -> str:
    device, profiler = about.get("device", "Not measured"), about.get("ncu", "no profiler")
    where = f"{device}; {profiler}; NVRTC {about['nvrtc']}, {about['architecture']}; {about['date']}."
    if not measured:
        return f"{where}\n\nPredictions of {len(rows)} specs, none measured."
    pairs = [(row, name) for row in measured for name in used if _measured(row, name) is not None]
    equal = sum(row["predicted"][name] == _measured(row, name) for row, name in pairs)
    whole = sum(not _unequal(row, used) for row in measured)
    counts = Counter(rule_of(row, name) for row in measured for name in _unequal(row, used))
    others = ", ".join(f"{count} by {rule}" if rule != "open" else f"{count} are open" for rule, count in counts.most_common())
    left = sum("predicted" in row and "measured" not in row for row in rows)
    unmeasured = f" {left} specs were not measured, for lack of time; every family and feature has some that were." if left else ""
    return (
        f"{where}\n\n{whole} of {len(measured)} specs agree in everything, {equal} of {len(pairs)} numbers are equal; of the others,"
        f" {others or 'none'}.{unmeasured}"
    )


def _measured(row: Mapping[str, Any], name: str) -> int | None:
    value: int | None = row.get("measured", {}).get(name)
    return value


def _cell(row: Mapping[str, Any], name: str) -> str:
    predicted, measured = row["predicted"][name], _measured(row, name)
    if measured is None or measured == predicted:
        return f"{predicted:,}" if predicted else ""
    return f"{predicted:,} → {measured:,} ({_change(predicted, measured)})"


def _change(predicted: int, measured: int) -> str:
    return f"{measured / predicted - 1:+.1%}" if predicted else "new"


def _unequal(row: Mapping[str, Any], used: Sequence[str]) -> list[str]:
    return [name for name in used if _measured(row, name) not in (None, row["predicted"][name])]


_COUNTED_BY = {
    "shared load": ("shared load instructions", "ldmatrix instructions"),
    "ldmatrix": ("ldmatrix instructions",),
    "shared store": ("shared store instructions",),
    "copy": ("copy instructions",),
    "global load": ("global load instructions", "copy instructions"),
    "global store": ("global store instructions",),
}
"""The instructions behind a quantity, by its first words."""


TWO_COUNTERS_APART = 0.01
"""Share by which the two counters of the sectors of copies may differ."""


def rule_of(row: Mapping[str, Any], name: str) -> str:
    """The rule that explains why a number of a spec differs; "open" if none does."""
    predicted, measured = row["predicted"][name], _measured(row, name)
    assert measured is not None
    profiled = row.get("profiled", {}).get(name, predicted)
    if measured == profiled:
        return "profiler"
    if name == "copy sectors" and abs(measured - profiled) <= TWO_COUNTERS_APART * profiled and _same(row, "global load sectors"):
        return "two counters"
    kinds = next((kinds for words, kinds in _COUNTED_BY.items() if name.startswith(words)), ())
    if not all(_same(row, kind) for kind in kinds) and not name.startswith("TMA"):
        return "code"
    if name.startswith("shared ") and name.split()[2] in ("wavefronts", "conflicts") and measured > predicted:
        return "arbitration"
    if _measured(row, "local load sectors"):
        return "spills"
    return "open"


def _same(row: Mapping[str, Any], name: str) -> bool:
    return _measured(row, name) in (None, row["predicted"][name])


def _differences(measured: Sequence[Mapping[str, Any]], used: Sequence[str]) -> list[str]:
    """Each spec that differs, with the rule for each number, and the executed instructions where the code is the reason."""
    lines = []
    for row in measured:
        unequal = _unequal(row, used)
        if not unequal:
            continue
        rules: dict[str, list[str]] = {}
        for name in unequal:
            rules.setdefault(rule_of(row, name), []).append(name)
        clues = [
            f"{name} {row['predicted'][name]:,} in PTX, {_measured(row, name):,} executed"
            for name in row["predicted"]
            if name.endswith(" instructions") and name != "TMA instructions" and not _same(row, name)
        ]
        told = "; ".join(f"{rule}: {', '.join(names)}" for rule, names in rules.items())
        seen = f" ({'; '.join(clues)})" if "code" in rules and clues else ""
        lines.append(f"- **{row['spec']}**: {told}{seen}.")
    return ["", "## Differences", "", "By the rules below.", "", *lines] if lines else []
