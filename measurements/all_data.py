"""Runs for all data, and summation trees: slips in indices, every listed instance over the field, and classes against trees.

``python -m measurements.all_data slips|library|classes|times [--jobs J] [--seconds S] [--journal FILE]`` writes a line of JSON for each
item as it is done, and leaves out those that the journal has. ``python -m measurements.all_data report FILE ...`` sums journals up;
``evidence FILE ...`` prints the library's records of the field from them, of each instance that of the first file;
``table FILE ...`` prints the times, of each instance those of the first file that has them, ``classes-table FILE ...`` the classes.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gemmgen
from gemmgen.core.errors import GemmgenError, PlanError
from gemmgen.kernels import family_module
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.kernels.gemm.numeric_class import numeric_class, without_tree
from gemmgen.kernels.gemm.oracle import promised
from gemmgen.kernels.gemm.plan import GemmPlan, packed
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.digests import program_digests
from gemmgen.library.listing import read_listing
from gemmgen.library.over_field import FIRST_PAIRED, field_architecture, field_evidence, record_of, run_over_field
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import Binary, compile_source
from gemmgen.verification.field import FieldReport, verify_field
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case
from gemmgen.verification.summation_tree import summation_tree

DEPTHS = (256, 272)
"""k of the trees: a multiple of all tiles along k, and one that is a multiple of few."""
SLIPS = Path("measurements/slips.journal")
"""Sources with one index changed, where ``tests/verification/field_mutants.py`` is not at hand."""
Item = tuple[str, ...]
Record = dict[str, Any]


def _planned(name: str) -> KernelPlan:
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, KernelPlan)
    return plan


# -- slips -----------------------------------------------------------------------------------------------------------


def slips() -> list[Item]:
    """Kernel, name and source of every slip."""
    if SLIPS.exists():
        return [tuple(json.loads(line)) for line in SLIPS.read_text().splitlines()]
    sys.path[:0] = ["tests", "tests/verification"]
    from field_mutants import narrow_slips, wide_slips

    def source_of(name: str) -> str:
        return gemmgen.render(_planned(name)).text

    found = [("wide", slip) for slip in wide_slips(source_of)] + [("narrow", slip) for slip in narrow_slips(source_of)]
    return [(f"{kind} {number}", slip.spec, slip.name, slip.text) for number, (kind, slip) in enumerate(found)]


def slip(item: Item) -> Record:
    """Outcome of the field for a kernel with a slip."""
    _, spec, name, text = item
    plan = _planned(spec)
    known = {"spec": spec, "slip": name}
    try:
        binary = compile_source(text, architecture=plan.architecture.name, options=COMPILE_OPTIONS, name="slip.cu")
    except GemmgenError:
        return known | {"outcome": "does not compile"}
    if program_digests(binary.ptx, plan.name)["code"] == program_digests(compile_plan(plan).ptx, plan.name)["code"]:
        return known | {"outcome": "the same code"}
    report = verify_field(plan, binary, bits=1)
    return known | {"outcome": report.outcome, "reason": report.reason[:200]}


# -- the library -----------------------------------------------------------------------------------------------------


def listed() -> list[Item]:
    """Every instance of the library, with the architecture whose code is run."""
    return [(instance.label, field_architecture(instance.plans), str(instance.path)) for instance in read_listing().instances]


def over_field(item: Item) -> Record:
    """The record of an instance, as ``generated/evidence/field.json`` keeps it."""
    _, architecture, path = item
    record = run_over_field(Path(path), architecture)
    return {"outcome": record["field"]["outcome"], "claim": record["field"]["claim"][:300], "record": record}


# -- classes ---------------------------------------------------------------------------------------------------------


def depths() -> list[Item]:
    """Every shipped GEMM at both depths."""
    return [(name, str(k)) for name in shipped_specs() if name.startswith("gemm/") for k in DEPTHS]


def classified(item: Item) -> Record:
    """The class of an instance by the function, and the hash of its tree."""
    name, k = item[0], int(item[1])
    spec = _planned(name).spec
    if spec.batch == "grouped" or spec.mainloop.strategy == "narrow_weights":
        return {"skipped": "grouped, or weights made by arithmetic on pairs"}
    if getattr(spec.mainloop, "sparse", "none") != "none":
        return {"skipped": "metadata of a sparse A, which random codes are not"}
    fields = spec.model_dump(mode="json", exclude_unset=True)
    fields.pop("amax", None)
    plan = gemmgen.plan(fields | {"alpha": "one", "beta": "zero", "epilogue": [], "batch": "none"})
    assert isinstance(plan, GemmPlan)
    if plan.matrix_a.type in ("s8", "u8") and not plan.packed_factors:
        return {"skipped": "sums of integers are exact in every order"}
    own = numeric_class(plan, k)
    if isinstance(own, str):
        return {"skipped": f"no class: {own}"}
    if reason := without_tree(plan):
        return {"skipped": f"no tree: {reason}"}
    sizes = promised(plan, (3, 16, k))
    if sizes[2] != k:
        return {"skipped": f"k is promised to be a multiple: {sizes[2]}"}
    tree = summation_tree(plan, packed(plan, sizes, batch=1))
    return {"class": own.text, "types": f"{plan.matrix_a.type} {plan.matrix_b.type}", "tree": tree}


def classes_table(journals: list[Path]) -> str:
    """Every class with its number of instances and its tree, at each depth, as the file of a measurement."""
    own = [record for record in records(journals) if record["run"] == "classes"]
    compared = [record for record in own if "tree" in record]
    trees: dict[str, dict[str, set[str]]] = {str(k): defaultdict(set) for k in DEPTHS}
    members: Counter[tuple[str, str]] = Counter()
    for record in compared:
        trees[record["item"][1]][record["class"]].add(record["tree"])
        members[record["item"][1], record["class"]] += 1
    depths = {
        k: {text: {"instances": members[k, text], "trees": sorted(found)} for text, found in sorted(classes.items())}
        for k, classes in trees.items()
    }
    found = {
        "measured": "The class of every listed GEMM, and the hash of its summation tree on the emulator, at two depths k.",
        "compared": len(compared),
        "instances": len({record["item"][0] for record in compared}),
        "classes_with_several_trees": sum(len(found) > 1 for classes in trees.values() for found in classes.values()),
        "left_out": dict(Counter(record["skipped"] for record in own if "skipped" in record)),
        "failed": [record["item"] for record in own if "failed" in record],
        "depths": depths,
    }
    return json.dumps(found, indent=1) + "\n"


# -- times -----------------------------------------------------------------------------------------------------------

REPEATS, ENOUGH_SECONDS = 3, 0.8
"""Least number of repetitions, of which the fastest counts, and the time from which on there are no more of them."""


def timed(item: Item) -> Record:
    """Processor time of an instance's verification over the field, all of its runs, beside one ordinary case of the same problem (of two
    problems, the slower one), and beside the ordinary case of several whole tiles (for a GEMM 2 x 3 tiles, else the same problem); and of
    each run beside the cases of the same problems.

    Hazards are checked in ordinary cases alone, as in `gemmgen verify`; compilation and the analysis of a program, which happen once, are
    left out."""
    _, architecture, path = item
    listed_plan = plan = gemmgen.plan(Path(path), architecture)
    assert isinstance(listed_plan, KernelPlan)
    if plan.architecture.compute_capability < FIRST_PAIRED.compute_capability:
        plan = gemmgen.plan(Path(path), FIRST_PAIRED.name)
    assert isinstance(plan, KernelPlan)
    binary = compile_plan(plan)
    cases = family_module(plan.spec.kind, "field").field_cases(plan)
    reports: list[FieldReport] = []

    def over_the_field() -> None:
        reports.append(verify_field(plan, binary))

    ordinary = [_case(plan, binary, case) for case in cases]
    over_the_field()
    report = reports[0]
    record = record_of(listed_plan, compile_plan(listed_plan), report)
    if report.outcome != "passed":
        return {"skipped": report.text[:200], "record": record}
    if plan.spec.kind == "gemm":
        ordinary.append(_case(plan, binary, _several_tiles(plan)))
    whole, *each = _least_seconds([over_the_field, *ordinary])
    largest = each[-1] if plan.spec.kind == "gemm" else max(each)
    each = each[: len(cases)]
    usual, slowest = sum(each) / len(each), max(each)
    times = {
        "case_seconds": round(usual, 4),
        "largest_case_seconds": round(largest, 4),
        "field_seconds": round(whole, 4),
        "runs": report.runs,
    }
    ratios = {"ratio": round(whole / report.runs / usual, 2), "all_runs_ratio": round(whole / usual, 2)}
    ratios["all_runs_over_slowest"] = round(whole / slowest, 2)
    ratios["all_runs_over_largest"] = round(whole / largest, 2)
    return {**times, "kind": _unit(plan, item[0]), **ratios, "record": record}


def _several_tiles(plan: KernelPlan) -> Case:
    """The ordinary case of several whole tiles."""
    return next(case for case in oracle_of("gemm").cases(plan) if case.name == "2 x 3 tiles")


def _case(plan: KernelPlan, binary: Binary, case: Case) -> Callable[[], None]:
    """The run of an ordinary case."""
    backend = EmulatorBackend(hazards=True)

    def ordinary() -> None:
        result = verify_case(plan, binary, backend, case)
        assert result.passed, result.failure

    return ordinary


def _unit(plan: KernelPlan, label: str) -> str:
    """The unit that multiplies."""
    if plan.spec.kind not in ("gemm", "conv2d"):
        return str(plan.spec.kind)
    folders = {"mma_sync", "wgmma", "tcgen05", "split_precision"}
    return "tensor core" if folders & set(label.split("/")) else "FFMA"


def _least_seconds(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Processor time of the fastest repetition of each run. They take turns, so that other work on the machine disturbs all alike; first
    ones prepare what later ones share."""
    times: list[list[float]] = [[] for _ in runs]
    while any(len(own) < REPEATS or sum(own) < ENOUGH_SECONDS for own in times):
        for own, run in zip(times, runs, strict=True):
            if len(own) < REPEATS or sum(own) < ENOUGH_SECONDS:
                started = time.process_time()
                run()
                own.append(time.process_time() - started)
    return [min(own) for own in times]


def times_table(journals: list[Path]) -> str:
    """Ratios by unit, and every instance's, as the file of a measurement."""
    newest = {record["item"][0]: record for journal in reversed(journals) for record in records([journal]) if record["run"] == "times"}
    own = list(newest.values())
    done = sorted((record for record in own if "ratio" in record), key=lambda record: -record["ratio"])
    summary = {}
    for kind in sorted({record["kind"] for record in done}):
        ratios = [record["ratio"] for record in done if record["kind"] == kind]
        of_all_runs = [record["ratio"] * record["runs"] for record in done if record["kind"] == kind]
        summary[kind] = {
            "instances": len(ratios),
            "geometric_mean": _mean(ratios),
            "worst": ratios[0],
            "above_bar": [record["item"][0] for record in done if record["kind"] == kind and record["ratio"] > _BARS[kind]],
            "all_runs_mean": _mean(of_all_runs),
            "all_runs_worst": round(max(of_all_runs), 2),
            **{key: _within([record[key] for record in done if record["kind"] == kind and key in record], _BARS[kind]) for key in _WHOLE},
        }
    keys = ("kind", "ratio", "runs", "case_seconds", "field_seconds", "largest_case_seconds", *_WHOLE)
    instances = [{"instance": record["item"][0], **{key: record[key] for key in keys if key in record}} for record in done]
    left_out = {record["item"][0]: record.get("skipped", record.get("failed", "")) for record in own if "ratio" not in record}
    return json.dumps({"measured": timed.__doc__, "summary": summary, "instances": instances, "left_out": left_out}, indent=1) + "\n"


_WHOLE = ("all_runs_over_slowest", "all_runs_over_largest")
"""Ratios of whole verifications."""


def _within(ratios: list[float], bar: float) -> dict[str, object]:
    """A summary of ratios of whole verifications."""
    if not ratios:
        return {}
    return {"mean": _mean(ratios), "worst": max(ratios), "within_bar": sum(ratio <= bar for ratio in ratios), "instances": len(ratios)}


def _mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 2)


_BARS = {"FFMA": 3.5, "tensor core": 1.3, "reduction": 3.5, "elementwise": 3.5}
"""Ratios that verification over the field is meant to stay below."""


# -- runs and reports ------------------------------------------------------------------------------------------------


RUNS: dict[str, tuple[Callable[[], list[Item]], Callable[[Item], Record]]] = {
    "slips": (slips, slip),
    "library": (listed, over_field),
    "classes": (depths, classified),
    "times": (listed, timed),
}


def _one(job: tuple[str, Item]) -> Record:
    run, item = job
    started = time.process_time()
    try:
        found = RUNS[run][1](item)
    except PlanError as error:
        found = {"refused": str(error)[:200]}
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"[:300]}
    # A slip's source is long, and its first three parts name it.
    return {"run": run, "item": list(item[:3]), **found, "cpu_seconds": round(time.process_time() - started, 2)}


def run_all(runs: list[str], jobs: int, seconds: float, journal: Path) -> None:
    """Runs the kernels missing from the journal, in so many processes, until time is up."""
    ends = time.monotonic() + seconds
    journal.parent.mkdir(parents=True, exist_ok=True)
    done = {(record["run"], *record["item"]) for record in records([journal])}
    todo = [(run, item) for run in runs for item in RUNS[run][0]() if (run, *item[:3]) not in done]
    # In an order of no meaning, so that a run that is cut short leaves a sample.
    todo.sort(key=lambda job: zlib.crc32(repr(job[1][:2]).encode()))
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=40) as pool, journal.open("a") as out:
        results = pool.imap_unordered(_one, todo)
        for _ in todo:
            try:
                record = results.next(timeout=max(0.1, ends - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            out.write(json.dumps(record) + "\n")
            out.flush()
        pool.terminate()
    print(f"{len(todo)} to do, {len(records([journal]))} in {journal}")


def records(journals: list[Path]) -> list[Record]:
    """The lines of journals that exist."""
    return [json.loads(line) for journal in journals if journal.exists() for line in journal.read_text().splitlines()]


def summary(found: list[Record]) -> Iterator[str]:
    """Counts, and every item that needs a look."""
    for run in RUNS:
        own = [record for record in found if record["run"] == run]
        if not own:
            continue
        yield f"{run}: {len(own)} items, {sum(record['cpu_seconds'] for record in own):.0f} s of CPU"
        yield from (f"  FAILED {record['item']}: {record['failed']}" for record in own if "failed" in record)
        if run == "slips":
            counts = Counter((record["item"][0].split()[0], record.get("outcome")) for record in own)
            yield from (f"  {kind}: {outcome}: {count}" for (kind, outcome), count in sorted(counts.items(), key=str))
            yield from (f"  passed: {record['item']}" for record in own if record.get("outcome") not in (*_FOUND, None))
        elif run == "library":
            yield f"  {dict(Counter(record.get('outcome') for record in own))}"
            yield from (f"  {record['item'][0]}: {record['claim']}" for record in own if record.get("outcome") in ("wrong", "not claimed"))
        elif run == "classes":
            trees, classes = defaultdict(set), defaultdict(set)
            for record in own:
                if "tree" in record:
                    key = record["item"][1], record["types"]
                    trees[*key, record["class"]].add(record["tree"])
                    classes[*key, record["tree"]].add(record["class"])
            compared = sum("tree" in record for record in own)
            names = {record["item"][0] for record in own if "tree" in record}
            yield f"  {compared} trees of {len(names)} instances in {len(trees)} classes"
            yield from (f"  left out, {reason}: {count}" for reason, count in Counter(r["skipped"] for r in own if "skipped" in r).items())
            yield from (f"  SPLIT {key}: {len(value)} trees" for key, value in trees.items() if len(value) > 1)
            yield from (f"  one tree {key}: {sorted(value)}" for key, value in classes.items() if len(value) > 1)
        else:
            yield from (f"  {record['item'][0]}: {record.get('ratio')}" for record in own)


_FOUND = ("wrong", "the same code", "does not compile")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="slips, library, classes; or report and journals")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--journal", type=Path, default=Path("measurements/all_data.journal"))
    arguments = parser.parse_args()
    if arguments.runs[0] == "report":
        print("\n".join(summary(records([Path(name) for name in arguments.runs[1:]]))))
    elif arguments.runs[0] == "evidence":
        found = records([Path(name) for name in arguments.runs[1:]])
        latest = {record["item"][0]: record["record"] for record in reversed(found) if "record" in record}
        print(field_evidence(latest.values()), end="")
    elif arguments.runs[0] in ("table", "classes-table"):
        table = times_table if arguments.runs[0] == "table" else classes_table
        print(table([Path(name) for name in arguments.runs[1:]]), end="")
    elif arguments.runs[0] == "pack":
        SLIPS.write_text("".join(json.dumps(item) + "\n" for item in slips()))
    else:
        run_all(arguments.runs, arguments.jobs, arguments.seconds, arguments.journal)


if __name__ == "__main__":
    main()
