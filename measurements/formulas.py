"""Drawn epilogue formulas, verified on the emulator, the processor or a GPU: as many as asked for of each family, with a journal.

    python -m measurements.formulas --count 500 --journal formulas.journal --jobs 4
    python -m measurements.formulas --count 8 --journal formulas_gpu.journal --backend gpu --jobs 12      the same on this machine's GPU

The draws are those of ``tests/kernels/epilogue/test_formulas.py``. GEMM's formulas go to its strategies in turn. Each result is a line of
the journal, and formulas that have one are not run again, so that the command can be stopped and restarted. ``--seconds``: stop after so
long. ``--report`` prints a journal; ``--check`` drops the lines whose kernel has another source now. On the emulator, GEMMGEN_NATIVE=0
saves half of the time: no kernel is translated to C.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.runtime.backends import BackendName
from tests.kernels.epilogue import test_formulas as drawing

KINDS = (*drawing.STRATEGIES, *drawing.FAMILIES)
"""Strategies of GEMM, and the other families."""
FAMILIES = ("gemm", *drawing.FAMILIES)


def fields_of(kind: str, number: int) -> dict[str, object]:
    """The spec with the formula of this number."""
    return drawing.drawn_spec(kind, Random(f"{kind} {number}"))


def digest_of(entry: tuple[str, int]) -> str:
    """The beginning of the SHA-256 of the formula's kernel for the emulator or the processor, or the reason why there is none."""
    try:
        return hashlib.sha256(gemmgen.render(gemmgen.plan(fields_of(*entry))).text.encode()).hexdigest()[:16]
    except GemmgenError as error:
        return f"{type(error).__name__}: {error}"


def outcome(entry: tuple[str, int], backend: BackendName) -> dict[str, object]:
    """One formula, verified: a line of the journal."""
    kind, number = entry
    before = time.monotonic()
    try:
        failures = drawing.verified(fields_of(kind, number), backend)
    except Exception as error:  # a formula that has no plan is a finding, too
        failures = [f"{type(error).__name__}: {error}"]
    spent = round(time.monotonic() - before, 2)
    return {"kind": kind, "number": number, "seconds": spent, "source": digest_of(entry), "failures": failures}


def of_this_code(line: dict[str, object]) -> bool:
    """True if the kernel of a line of the journal has the same source now."""
    return line.get("source") == digest_of((str(line["kind"]), int(str(line["number"]))))


def entries(count: int, families: Sequence[str]) -> Iterator[tuple[str, int]]:
    """``count`` formulas of each family, in turns: those of GEMM go to one strategy after the other."""
    strategies = [*drawing.STRATEGIES]
    for number in range(count):
        for family in families:
            yield (strategies[number % len(strategies)], number // len(strategies)) if family == "gemm" else (family, number)


def report(lines: list[dict[str, object]]) -> str:
    """The number of formulas and of failures by kind."""
    total = collections.Counter(str(line["kind"]) for line in lines)
    wrong = collections.Counter(str(line["kind"]) for line in lines if line["failures"])
    rows = [f"{kind}: {total[kind]} formulas, {wrong[kind]} wrong" for kind in KINDS if total[kind]]
    products = sum(total[kind] for kind in drawing.STRATEGIES)
    return "\n".join([*rows, f"products of all strategies: {products}; altogether {sum(total.values())}, {sum(wrong.values())} wrong"])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES, metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--backend", default="emulator", choices=("emulator", "gpu"))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--report", action="store_true", help="print the journal")
    parser.add_argument("--check", action="store_true", help="drop lines of kernels whose source has changed, and print the journal")
    given = parser.parse_args()
    journal: Path = given.journal
    found = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()] if journal.exists() else []
    if given.check:
        with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
            same = pool.map(of_this_code, found, chunksize=50)
        print(f"{same.count(False)} of {len(found)} kernels have another source now")
        found = [line for line, one in zip(found, same, strict=True) if one]
        write_atomically(journal, "".join(json.dumps(line) + "\n" for line in found).encode())
    if given.report or given.check:
        print(report(found))
        return
    known = {(one["kind"], one["number"]) for one in found}
    start = time.monotonic()
    one = partial(outcome, backend=given.backend)
    pending = [entry for entry in entries(given.count, given.families) if entry not in known]
    with journal.open("a", encoding="utf-8") as lines, multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for result in pool.imap_unordered(one, pending):
            lines.write(json.dumps(result) + "\n")
            lines.flush()
            if time.monotonic() - start > given.seconds:
                pool.terminate()
                return


if __name__ == "__main__":
    main()
