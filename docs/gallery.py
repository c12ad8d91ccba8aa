"""The gallery: a page for every shipped spec, with its pictures, its kernel, its evidence and its counters.

GEMMGEN_SITE_VERIFY=1 verifies specs without a certificate on the emulator while the site is built, in parallel, and keeps their evidence in
build/gallery.json for the next build; all of them take about an hour. GEMMGEN_SITE_GALLERY limits the number of specs, for quick builds.
"""

from __future__ import annotations

import html
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRESS_PAGES = 100
"""Pages of the gallery between two lines of progress."""
log = logging.getLogger("mkdocs.plugins.gallery")

_KINDS = {
    "gemm": "Products of matrices",
    "conv2d": "Convolutions",
    "reduction": "Reductions",
    "elementwise": "Elementwise",
    "cpu": "Processors",
}


UNSEARCHED = "{ data-search-exclude }"
"""Behind a heading: its section is left out of the search, whose index would be several times as large with it."""


def plain(text: str) -> str:
    """A text on one line of a table."""
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _cell(text: str) -> str:
    """A text in a table, of which nothing is a link or markup."""
    return plain(html.escape(text)).replace("[", "&#91;").replace("*", "&#42;").replace("_", "&#95;")


def gallery_pages() -> Iterator[tuple[str, str]]:
    """A page for every shipped spec, and one that lists them."""
    from gemmgen.kernels.shipped import shipped_specs

    limit = int(os.environ.get("GEMMGEN_SITE_GALLERY", "100000"))
    specs = list(shipped_specs().items())
    chosen = specs if len(specs) <= limit else specs[:: max(1, len(specs) // limit)]
    manifest = {entry["spec_name"]: entry for entry in json.loads((ROOT / "generated" / "manifest.json").read_text())["instances"]}
    told = f"All {len(specs)} specs that ship with gemmgen, each with its pictures, its kernel, its certificates and its counters."
    lines = ["# Gallery", "", told, ""]
    groups: dict[str, list[str]] = {}
    proven = _proven({name: path for name, path in chosen if name not in manifest}, chosen == specs)
    for number, (name, path) in enumerate(chosen, 1):
        if number % PROGRESS_PAGES == 0 or number == len(chosen):
            log.info(f"Gallery: page {number} of {len(chosen)}")
        page, picture, summary = _gallery_page(name, path, manifest.get(name), proven.get(name))
        yield f"gallery/{name}.md", page
        yield f"gallery/{name}.svg", picture
        groups.setdefault(name.partition("/")[0], []).append(f"| [`{name}`]({name}.md) | {summary} |")
    for kind, rows in groups.items():
        lines += [f"## {_KINDS.get(kind, kind)}", "", "| spec | for |", "|---|---|", *rows, ""]
    yield "gallery/index.md", "\n".join(lines)


def _gallery_page(name: str, path: Path, entry: dict[str, Any] | None, evidence: list[str] | None) -> tuple[str, str, str]:
    """Page, pictures and description of a spec, with its ``entry`` of the library's manifest or other ``evidence``.

    Without either, nothing is compiled, and the page says how to verify the kernel.
    """
    import gemmgen
    from gemmgen.dispatch.prediction import device_for
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.present.drawing import draw
    from gemmgen.present.explanation import explanation_of
    from gemmgen.present.launch_pictures import all_pictures

    plan = gemmgen.plan(path)
    for_gpu = isinstance(plan, KernelPlan)
    compiled = _resources(plan, entry) if isinstance(plan, KernelPlan) and (entry or evidence) else None
    pictures = all_pictures(plan, device_for(plan.architecture if for_gpu else None), compiled=compiled)
    description = plain(str(plan.spec.description or ""))
    lines = [f"# {name}", "", description, "", f"`{plan.name}`", ""]
    svg = draw(plan.name, pictures)
    lines += [
        f"![Pictures of {name}]({path.stem}.svg)",
        "",
        f"## The spec {UNSEARCHED}",
        "",
        "```yaml",
        _text_of_spec(path),
        "```",
        "",
        "## The plan",
        "",
    ]
    for section in explanation_of(plan.spec.kind).explain(plan):
        lines += [f"**{section.title}**", "", "| | |", "|---|---|"]
        lines += [f"| {_cell(label)} | {_cell(text)} |" for label, text in section.lines] + [""]
    unverified = [
        f"## Evidence {UNSEARCHED}",
        "",
        f"Not in the library, and so without a certificate. `gemmgen verify {name}` verifies it.",
        "",
    ]
    lines += _certified(entry) if entry is not None else evidence or unverified
    lines += [f"## The kernel {UNSEARCHED}", "", "```" + ("cuda" if for_gpu else "c"), gemmgen.render(plan).text.rstrip(), "```", ""]
    return "\n".join(lines), svg, description


def _resources(plan: Any, entry: dict[str, Any] | None) -> Any:
    """Resources of a plan's compiled kernels, from its certificate if it has one."""
    from gemmgen.library.sections import separated
    from gemmgen.toolchain.compilation import compile_plan
    from gemmgen.toolchain.nvrtc import KernelResources

    if entry is None:
        return compile_plan(plan).resources
    certificate = separated(json.loads((ROOT / "generated" / entry["certificate"]).read_text())).get(plan.architecture.name)
    return None if certificate is None else {name: KernelResources(**found) for name, found in certificate["binary"].items()}


def _text_of_spec(path: Path) -> str:
    """The file of a spec; for a variant, the spec with its row applied."""
    from gemmgen.codegen.rendering import spec_lines
    from gemmgen.kernels.spec_files import load_spec
    from gemmgen.kernels.variants import split_variant

    return path.read_text().rstrip() if split_variant(path)[1] is None else "\n".join(spec_lines(load_spec(path)))


_HEADINGS = "| architecture | registers | spills, bytes | blocks on an SM | verified on | cases | error / bound |"


def _certified(entry: dict[str, Any]) -> list[str]:
    """The certificates of an instance of the library, and the counters of one case."""
    from gemmgen.library.sections import separated

    lines = [f"## Certificates {UNSEARCHED}", "", _HEADINGS, "|---|---:|---:|---:|---|---:|---:|"]
    predicted: dict[str, Any] = {}
    proofs: dict[str, list[str]] = {}
    for architecture, certificate in separated(json.loads((ROOT / "generated" / entry["certificate"]).read_text())).items():
        blocks = min(found["blocks_per_sm"] for found in certificate["occupancy"].values())
        lines.append(_evidence_row(architecture, certificate["binary"].values(), blocks, certificate["verification"]))
        predicted = certificate["predicted"] or predicted
        if certificate["proved"] is not None and certificate["proved"]["proved"]:
            proofs.setdefault(", ".join(certificate["proved"]["proved"]), []).append(architecture)
    lines += [line for names, places in proofs.items() for line in ("", f"Proved for all sizes on {', '.join(places)}: {names}.")]
    return [*lines, *(_counters(predicted) if predicted else []), ""]


def _proven(paths: dict[str, Path], whole: bool) -> dict[str, list[str]]:
    """Evidence of specs that the library does not hold: kept by an earlier build, or made now if GEMMGEN_SITE_VERIFY is set.

    ``whole``: these are all such specs, and kept evidence of others is dropped.
    """
    from gemmgen.library.workers import run_tasks

    kept_path = ROOT / "build" / "gallery.json"
    kept = json.loads(kept_path.read_text()) if kept_path.exists() else {}
    keys = {name: _evidence_key(path) for name, path in paths.items()}
    if whole:
        kept = {key: evidence for key, evidence in kept.items() if key in keys.values()}
    proven = {name: kept[key] for name, key in keys.items() if key in kept}
    missing = [name for name in paths if name not in proven] if os.environ.get("GEMMGEN_SITE_VERIFY") else []
    if missing:
        log.info(f"Gallery: verifying {len(missing)} specs on the emulator")
    if (here := str(Path(__file__).parent)) not in sys.path:  # where the processes find this module
        sys.path.insert(0, here)
    for place, found in run_tasks(_prove, [(paths[name],) for name in missing], os.cpu_count() or 1):
        name = missing[place]
        if isinstance(found, Exception):
            raise RuntimeError(f"the gallery has no evidence of {name}: {found}") from found
        proven[name], lasts = found
        if lasts:  # another machine may have instructions that this one lacks
            kept[keys[name]] = proven[name]
            kept_path.parent.mkdir(exist_ok=True)
            kept_path.write_text(json.dumps(kept, indent=1) + "\n")
    return proven


def _evidence_key(path: Path) -> str:
    """Everything that the evidence depends on, but for gemmgen's own code: the kernel, and the cases that it is verified on."""
    import gemmgen
    from gemmgen.core.version import __version__
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.library.digests import cases_digest

    plan = gemmgen.plan(path)
    cases = cases_digest(plan) if isinstance(plan, KernelPlan) else ""
    return " ".join([__version__, gemmgen.render(plan).digest, cases])


def _prove(path: Path) -> tuple[list[str], bool]:
    """Verifies a spec on the emulator, or on this processor, and counts; false if another processor is needed to execute it.

    Raises ``VerificationError`` if a case fails, and ``EnvironmentMissing`` without a compiler: a page without evidence is none.
    """
    import gemmgen
    from gemmgen.kernels.family import KernelPlan

    told = ["Not in the library, and so without a certificate: verified when this page was made.", ""]
    plan = gemmgen.plan(path)
    found, proven = (_proven_on_emulator(path, plan), True) if isinstance(plan, KernelPlan) else _proven_on_processor(path, plan)
    return [f"## Evidence {UNSEARCHED}", "", *(told if proven else ()), *found, ""], proven


def _proven_on_emulator(path: Path, plan: Any) -> list[str]:
    from gemmgen.core.errors import VerificationError
    from gemmgen.hardware.target import occupancy
    from gemmgen.library.compiled import facts_of
    from gemmgen.library.emulator_run import prove
    from gemmgen.toolchain.compilation import compile_plan

    record = prove(path, plan.architecture.name)
    if not record["verification"]["passed"]:
        raise VerificationError(record["verification"]["failure"])
    kernels = facts_of(plan, compile_plan(plan)).kernels
    run = record["verification"] | {"device": record["device"]}
    blocks = []
    for launch in plan.sequence.launches:
        registers, static = (kernels[launch.entry][name] or 0 for name in ("registers", "static_shared_bytes"))
        shared = static + launch.dynamic_shared_bytes.evaluate(record["traffic"]["problem"])
        blocks.append(occupancy(plan.architecture, launch.threads, registers, shared).blocks_per_sm)
    row = _evidence_row(plan.architecture.name, kernels.values(), min(blocks), [run])
    return [_HEADINGS, "|---|---:|---:|---:|---|---:|---:|", row, *_counters(record["traffic"])]


def _proven_on_processor(path: Path, plan: Any) -> tuple[list[str], bool]:
    import gemmgen
    from gemmgen.core.errors import EnvironmentMissing, VerificationError
    from gemmgen.library.emulator_run import failure_text, verification_fields
    from gemmgen.perf.host.machine_code import disassemble, inner_loop
    from gemmgen.runtime.native.library import require_host
    from gemmgen.toolchain.compilation import compile_host_plan

    counters = ["", f"## Counters {UNSEARCHED}", ""]
    if not plan.x86:
        counters.append("Machine code is read for x86 only.")
    elif (loop := inner_loop(disassemble(compile_host_plan(plan)))) is None:
        counters.append("No loop of the machine code multiplies and adds in one instruction.")
    else:
        counted = f"{loop.instructions} instructions, {loop.fma} of them multiply-adds of {loop.lanes} lanes; {loop.loads} loads, "
        counted += f"{loop.broadcasts} of them broadcasts; {loop.vector_registers} vector registers, {loop.spills} spills"
        counters.append(f"The inner loop of the machine code, `{loop.function}`: {counted}.")
    try:
        require_host(plan.name, plan.architecture)
    except EnvironmentMissing as error:
        return [f"Not verified on the machine that made this page: {_cell(str(error))}.", *counters], False
    report = gemmgen.verify(path)
    if not report.passed:
        raise VerificationError(failure_text(report))
    run = verification_fields(report) | {"device": report.device}
    row = f"| {run['device']} | {run['cases']} | {run['worst_ratio']:.3g} |"
    return ["| verified on | cases | error / bound |", "|---|---:|---:|", row, *counters], True


def _evidence_row(architecture: str, kernels: Any, blocks: int, runs: list[dict[str, Any]]) -> str:
    spills = max(kernel["spill_stores"] + kernel["spill_loads"] for kernel in kernels)
    told = ", ".join(dict.fromkeys(run["device"] for run in runs))
    worst = max((run["worst_ratio"] for run in runs), default=0)
    cases = sum(run["cases"] for run in runs)
    registers = max(kernel["registers"] for kernel in kernels)
    return f"| {architecture} | {registers} | {spills} | {blocks} | {told} | {cases} | {worst:.3g} |"


def _counters(traffic: dict[str, Any]) -> list[str]:
    sizes = " ".join(f"{name}={value}" for name, value in traffic["problem"].items())
    counters = f"{traffic['wavefronts']:,} wavefronts of shared memory, {traffic['bank_conflicts']:,} of them conflicts; "
    counters += f"{traffic['sectors']:,} sectors of global memory; {traffic['barriers']:,} barriers"
    return ["", f"## Counters {UNSEARCHED}", "", f"Of the case *{traffic['case']}* ({sizes}): {counters}."]
