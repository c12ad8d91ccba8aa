"""Output of an analysis: sections for one instance, and a table that compares several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gemmgen.cli.output import Column, count, counted, duration, operation_unit, rate
from gemmgen.kernels.family import Section

if TYPE_CHECKING:
    from gemmgen.hardware.target import Architecture, Device, Figure
    from gemmgen.kernels.family import Cost, Fetch
    from gemmgen.perf.analysis.machine_code import KernelCode, MainLoop
    from gemmgen.perf.analysis.report import Analysis
    from gemmgen.perf.analysis.residency import MoreBlocks, Residency
    from gemmgen.perf.analysis.roofline import Roofline

Lines = list[tuple[str, str]]

_RESOURCES = {
    "registers": "registers a thread",
    "shared": "bytes of shared memory a block",
    "threads": "threads a block",
    "warps": "warps of an SM",
    "blocks": "blocks of an SM",
}

CREDIBLE = 1.05
"""Part of a roof that a kernel may seem to reach, because roofs are measured themselves, to a few percent."""


def sections_of(analysis: Analysis) -> list[Section]:
    """All but memory traffic, whose table follows."""
    sections = []
    numbers = _numbers(analysis)
    if len(numbers) > 1:
        sections.append(Section("Kernels", tuple((number, entry) for entry, number in numbers.items())))
    for kernel in analysis.kernels:
        suffix = f" of kernel {numbers[kernel.entry]}" if len(numbers) > 1 else ""
        occupancy = _occupancy(analysis, kernel, analysis.more_blocks[kernel.entry])
        sections.append(Section(f"Occupancy{suffix}", tuple(occupancy)))
        if analysis.code is not None:
            code = analysis.code[kernel.entry]
            sections.append(Section(f"Machine code{suffix}", tuple(_machine_code(code))))
            if code.main_loop is not None:
                sections.append(Section(f"Main loop{suffix}", tuple(_main_loop(analysis, kernel, code, code.main_loop))))
    if analysis.code is None:
        sections.append(Section("Machine code", (("", f"not looked at: {analysis.code_missing}"),)))
    sections.append(Section(f"Filling the {analysis.device.name}", tuple(_filling(analysis))))
    sections.append(Section(f"Roofs of the {analysis.device.name}", tuple(_roofs(analysis))))
    return sections


def saved_section(analysis: Analysis, general: Analysis) -> Section:
    """Savings of the sizes that a kernel is made for, beside the same kernel for all sizes on the same problem."""
    from gemmgen.dispatch.model import model_seconds
    from gemmgen.perf.cost_model import cost_model_of

    lines = [("made for", " ".join(f"{name}={size}" for name, size in analysis.plan.spec.sizes))]
    for kernel, other in zip(analysis.kernels, general.kernels, strict=True):
        of = f" of {kernel.entry}" if len(analysis.kernels) > 1 else ""
        lines.append((f"registers{of}", f"{kernel.resources.registers} a thread, {other.resources.registers} for all sizes"))
        if analysis.code is not None and general.code is not None:
            before, after = (side.code[entry].mix.total for side, entry in ((general, other.entry), (analysis, kernel.entry)) if side.code)
            lines.append((f"instructions{of}", f"{after}, {before} for all sizes: {after / before - 1:+.0%}"))
            loops = [side.code[entry].main_loop for side, entry in ((general, other.entry), (analysis, kernel.entry)) if side.code]
            if all(loops):
                inner = [len(loop.loop.instructions) for loop in loops if loop is not None]
                lines.append((f"main loop{of}", f"{inner[1]} instructions, {inner[0]} for all sizes"))
    times = [model_seconds(cost_model_of(one.plan.spec.kind).work(one.plan, analysis.problem), one.device) for one in (general, analysis)]
    lines.append(("predicted", f"{duration(times[1])}, {duration(times[0])} for all sizes, by the model, which does not see instructions"))
    known = "" if analysis.timing is None else f"{duration(analysis.timing.seconds)}, as given; "
    lines.append(("measured", f"{known}gemmgen bench with the same --problem and --bake, or this spec, times both on a GPU"))
    return Section("Saved by the sizes", tuple(lines))


def _numbers(analysis: Analysis) -> dict[str, str]:
    """Short name of each kernel, by its entry, whose name is long."""
    return {kernel.entry: str(number) for number, kernel in enumerate(analysis.kernels, 1)}


def _occupancy(analysis: Analysis, kernel: Residency, more: MoreBlocks) -> Lines:
    used, fits = kernel.resources, kernel.occupancy
    spills = f"{used.spill_stores} bytes of spill stores, {used.spill_loads} of spill loads"
    lines = [
        ("architecture", analysis.architecture),
        ("threads", f"{kernel.threads} a block"),
        ("registers", f"{used.registers} a thread; {spills if used.spill_stores or used.spill_loads else 'no spills'}"),
        ("shared memory", f"{count(used.static_shared_bytes)} bytes static, {count(kernel.dynamic_shared_bytes)} dynamic, a block"),
    ]
    if not fits.blocks_per_sm:
        return [*lines, ("resident", f"none: too many {' and '.join(_RESOURCES[name] for name in fits.limited_by)}")]
    limits = " and ".join(_RESOURCES[name] for name in fits.limited_by)
    resident = f"{counted(fits.blocks_per_sm, 'block')} on an SM, {fits.warps} of its {analysis.plan.architecture.warps_per_sm} warps"
    lines.append(("resident", f"{resident} ({fits.fraction:.0%})"))
    lines.append(("limited by", limits))
    needs = " and ".join(f"at most {count(n.most)} {_RESOURCES[n.resource]} ({count(n.now - n.most)} fewer)" for n in more.needs)
    lines.append((f"{more.blocks_per_sm} blocks", f"would need {needs}" if needs else "never fit on an SM"))
    return lines


def _machine_code(code: KernelCode) -> Lines:
    lines = [("instructions", f"{count(code.mix.total)}: {_classes(code.mix.classes)}")]
    if code.spilled:
        lines.append(("spills", f"{counted(code.spilled, 'instruction')} to store or load a spilled register"))
    if not code.loops:
        return [*lines, ("loops", "none")]
    for loop in code.loops:
        main = code.main_loop is not None and loop is code.main_loop.loop
        depth = f", {counted(loop.depth - 1, 'loop')} around it" if loop.depth > 1 else ""
        place = f"{loop.first_address:#06x} to {loop.last_address:#06x}: {counted(len(loop.instructions), 'instruction')}{depth}"
        lines.append(("loop", f"{place}{'; the main loop' if main else ''}"))
    return lines


def _classes(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{count(number)} {name}" for name, number in classes.items())


def _main_loop(analysis: Analysis, kernel: Residency, code: KernelCode, main: MainLoop) -> Lines:
    from gemmgen.perf.analysis.control_flow import INSTRUCTION_BYTES
    from gemmgen.perf.analysis.machine_code import INSTRUCTION_CACHE_BYTES

    mix = main.mix
    lines = [("instructions", f"{count(mix.total)}: {_classes(mix.classes)}")]
    size = mix.total * INSTRUCTION_BYTES
    fits = "fits" if size <= INSTRUCTION_CACHE_BYTES else "does not fit"
    lines.append(
        ("size", f"{count(size)} bytes, which {fits} a first-level instruction cache of {count(INSTRUCTION_CACHE_BYTES)} (Volta's)")
    )
    for name, share in (("FFMA", mix.share("fma float32")), ("MMA", mix.share("mma"))):
        if share:
            lines.append((f"share of {name}", f"{share:.1%}"))
    for name, widths in mix.accesses.items():
        lines.append((name, ", ".join(f"{number} of {counted(width, 'byte')} a lane" for width, number in widths.items())))
    for name, distance in main.distances.items():
        warps = f"; {distance * _warps_of_scheduler(kernel):,} with those of the other warps" if kernel.occupancy.blocks_per_sm else ""
        text = f"{counted(distance, 'instruction')} at least between a load and the first use of the loaded value"
        lines.append((f"latency of {name}", f"{text}{warps}"))
    barriers = mix.classes.get("barrier", 0)
    lines.append(("barriers", str(barriers) if barriers else "none"))
    lines += _banks(analysis, code, main)
    if main.ffma_ceiling is not None:
        what = "issue slots and register banks" if main.banks else "issue slots"
        lines.append(("ceiling", f"{main.ffma_ceiling:.1%} of the FP32 units' rate, by {what}, however well latency is hidden"))
    return lines


def _warps_of_scheduler(kernel: Residency) -> int:
    """Warps among which one of an SM's four schedulers chooses, on average."""
    return max(1, kernel.occupancy.warps // 4)


def _banks(analysis: Analysis, code: KernelCode, main: MainLoop) -> Lines:
    if not main.mix.classes.get("fma float32"):
        reason = "not predicted for MMA" if main.mix.classes.get("mma") else "no FFMA"
        return [("register banks", f"{reason}; {counted(main.mix.reused_operands, 'operand')} marked .reuse")]
    if not code.banks_known or main.banks is None:
        marks = f"{counted(main.mix.reused_operands, 'operand')} marked .reuse"
        return [("register banks", f"the rule for {analysis.architecture} is not known; {marks}")]
    banks = main.banks
    rate_text = f"an FFMA is issued every {'cycle' if banks.ffma_cycles == 1 else f'{banks.ffma_cycles} cycles'}"
    reuse = f"{banks.marked} of {banks.operands} operands of FFMAs are marked; {banks.reused} ({banks.reused_share:.0%}) are found in place"
    reads = f"{banks.reads[0]} of the even registers, {banks.reads[1]} of the odd ones, for {counted(banks.ffmas, 'FFMA')}"
    conflicts = f"{banks.conflicts} FFMAs need one bank more often than it can be read in their time ({rate_text})"
    lost = f"{counted(banks.lost_cycles, 'cycle')} lost to them, where neighbours do not make up for it"
    return [(".reuse", reuse), ("bank reads", reads), ("bank conflicts", f"{conflicts}; {lost}")]


def _filling(analysis: Analysis) -> Lines:
    numbers = _numbers(analysis)
    lines = [("problem", _problem(analysis))]
    padding = "all of them on the problem itself" if analysis.tile_efficiency > 0.99995 else "the rest on padding of tiles"
    unit = operation_unit(analysis.roofs.cost.unit)
    lines.append(("operations", f"{rate(analysis.executed_operations, unit)} executed, {analysis.tile_efficiency:.1%} useful: {padding}"))
    for waves in analysis.waves:
        label = "blocks" if len(analysis.waves) == 1 else f"blocks of kernel {numbers[waves.entry]}"
        if not waves.blocks_per_wave:
            lines.append((label, f"{count(waves.blocks)}: none fits on an SM"))
            continue
        text = f"{count(waves.blocks)}, {count(waves.blocks_per_wave)} at a time: {waves.waves:.2f} waves"
        lines.append((label, f"{text}, {waves.efficiency:.1%} of the places in {waves.whole_waves} taken"))
    if not analysis.waves:
        lines.append(("blocks", "none: there is nothing to launch"))
    return lines + foreign_device(analysis.plan.architecture, analysis.device)


def _problem(analysis: Analysis) -> str:
    from gemmgen.kernels import family_of

    names = family_of(analysis.plan.spec).instance_sizes(analysis.plan)
    return " ".join(f"{name}={analysis.problem[name]}" for name in names)


def fetch_lines(fetched: Sequence[Fetch], operations: float, unit: str, l2: Figure) -> Lines:
    """Times that tiles bring each array from the L2 or memory, the operations for each of these bytes, and the time that these take at
    the L2's roof; nothing where all come once."""
    if all(fetch.times <= 1 for fetch in fetched):
        return []
    each = ", ".join(f"{fetch.name} {fetch.times:.4g} times" if fetch.times != 1 else f"{fetch.name} once" for fetch in fetched)
    total = sum(fetch.moved for fetch in fetched)
    return [
        ("tiles fetch", f"{each}: {rate(total, 'B')} from L2 and memory, {operations / total if total else 0:.1f} {unit} a byte"),
        (
            "L2",
            f"{duration(total / l2.value)} for that at {rate(l2.value, 'B/s')} ({l2.origin}{', at most' if l2.origin == 'theory' else ''})",
        ),
    ]


def _fetch_rate(fetched: Sequence[Fetch], seconds: float, memory: Figure | None) -> str:
    """Rate at which tiles were fed, as a fraction of the memory bandwidth; the L2 served any excess."""
    achieved = sum(fetch.moved for fetch in fetched) / seconds
    text = f"{rate(achieved, 'B/s')} including data that tiles fetch again"
    if memory is None:
        return text
    part = achieved / memory.value
    return f"{text}, {part:.1%} of memory's bandwidth" + (": the L2 served some" if part > 1 else "")


def foreign_device(architecture: Architecture, device: Device) -> Lines:
    """A note that figures are those of a device on which binaries for ``architecture`` do not run, if so."""
    from gemmgen.hardware.target import DEVICES

    if device.architecture.runs_cubins_of(architecture):
        return []
    reason = f"the {device.name} is {device.architecture.name}"
    if not any(known.architecture.runs_cubins_of(architecture) for known in DEVICES.values()):
        reason = f"no device of {architecture.name} is known, and these are another one's figures"
    return [("note", f"a binary for {architecture.name} does not run on it: {reason}")]


def bound_lines(roofs: Roofline, unit: str) -> Lines:
    """The time that a problem takes at least by each roof, and the one that binds. ``unit``: of operations."""
    special = roofs.cost.special
    roofed = [("arithmetic", roofs.compute_roof, roofs.compute_seconds, f"{unit}/s")]
    roofed += [("special", roofs.special_roof, roofs.special_seconds, "functions/s")] if special else []
    roofed += [("memory", roofs.memory_roof, roofs.memory_seconds, "B/s")]
    lines = []
    for name, figure, seconds, per_second in roofed:
        known = f"{duration(seconds)} at {rate(figure.value, per_second)} ({figure.origin})" if figure else "the device's rate is not known"
        if name == "special":
            known += f": {rate(special, 'functions')} of e^x, roots and reciprocals, on units that work in parallel with the others"
        lines.append((name, known))
    binding, _ = binding_roof(roofs, unit)
    return [*lines, ("bound by", f"{binding}: at least {duration(roofs.least_seconds)}")]


def binding_roof(roofs: Roofline, unit: str) -> tuple[str, str]:
    """The roof that binds, and its rate in words; nothing for a rate that is not known."""
    name, figure, per_second = "memory", roofs.memory_roof, "B/s"
    if roofs.binding == "compute":
        name, figure, per_second = "arithmetic", roofs.compute_roof, f"{unit}/s"
        if roofs.special_seconds > roofs.compute_seconds:
            name, figure, per_second = "special functions", roofs.special_roof, "functions/s"
    return name, f"{rate(figure.value, per_second)} ({figure.origin})" if figure is not None else ""


def needs(cost: Cost, unit: str) -> str:
    """Operations and memory traffic of a problem in words, and their ratio."""
    if not cost.bytes:
        return "nothing: no element is read or written"
    return f"{rate(cost.operations, unit)} and {rate(cost.bytes, 'B')} of memory traffic: {cost.intensity:.1f} {unit} a byte"


def _roofs(analysis: Analysis) -> Lines:
    from gemmgen.perf.cost_model import cost_model_of

    roofs, cost = analysis.roofs, analysis.roofs.cost
    fetched = cost_model_of(analysis.plan.spec.kind).fetches(analysis.plan, analysis.problem)
    unit = operation_unit(cost.unit)
    lines = foreign_device(analysis.plan.architecture, analysis.device)
    lines.append(("needs", needs(cost, unit)))
    if not cost.bytes:
        return lines
    lines += fetch_lines(fetched, cost.operations, unit, analysis.device.l2_roof)
    if roofs.ridge is not None:
        lines.append(("ridge", f"{roofs.ridge:.1f} {unit} a byte: above it arithmetic binds, below it memory"))
    lines += bound_lines(roofs, unit)
    if analysis.timing is not None:
        timing = analysis.timing
        doubt = ""
        if timing.of_least_time > 1:
            doubt = "; the roof is no exact limit: it was measured or is a nominal figure"
        if timing.of_least_time > CREDIBLE:
            doubt = "; no kernel that reads and writes device memory can: is the time that of this size?"
        lines.append(("measured", f"{duration(timing.seconds)}: {timing.of_least_time:.1%} of the roof that binds{doubt}"))
        for name, achieved, per_second, part in (
            ("arithmetic used", timing.operations_per_second, f"{unit}/s", timing.compute_utilisation),
            ("memory used", timing.bytes_per_second, "B/s", timing.memory_utilisation),
        ):
            lines.append((name, rate(achieved, per_second) + (f", {part:.1%} of the device's" if part is not None else "")))
        if any(fetch.times > 1 for fetch in fetched):
            lines.append(("fetches used", _fetch_rate(fetched, timing.seconds, roofs.memory_roof)))
    return lines


COLUMNS = (
    Column("spec", folds=True),
    Column("regs", "right"),
    Column("spill B", "right"),
    Column("blocks/SM", "right"),
    Column("warps", "right"),
    Column("limited by"),
    Column("loop", "right"),
    Column("FFMA", "right"),
    Column("MMA", "right"),
    Column("wide", "right"),
    Column("reused", "right"),
    Column("lost", "right"),
    Column("ceiling", "right"),
    Column("wavefronts/ideal", "right"),
    Column("conflicts", "right"),
    Column("sectors used", "right"),
    Column("filled", "right"),
    Column("of roof", "right"),
)

COLUMN_NOTES = (
    "loop: instructions in the main loop; FFMA, MMA: their share of it; wide: shared and global accesses in it of 16 bytes a lane.",
    "reused: operands of FFMAs that no register bank had to deliver; lost: cycles in which banks hold up issue, of all;",
    "ceiling: the part of the FP32 rate that issue slots and register banks allow.",
    "wavefronts/ideal, conflicts: of shared memory in one case; sectors used: the part of global memory's sectors asked for.",
    "filled: the part of the device's work that is neither padding nor empty places in the last wave.",
)


def comparison_rows(analyses: Mapping[str, Analysis]) -> tuple[list[Column], list[list[str]]]:
    """The table's columns, without those that say nothing about any of the instances, and its rows."""
    rows = [_row(label, analysis) for label, analysis in analyses.items()]
    used = [index for index in range(len(COLUMNS)) if any(row[index] for row in rows)]
    return [COLUMNS[index] for index in used], [[row[index] or "–" for index in used] for row in rows]


def _row(label: str, analysis: Analysis) -> list[str]:
    kernel = analysis.main_kernel
    used, fits = kernel.resources, kernel.occupancy
    row = [
        label,
        str(used.registers),
        count(used.spill_stores + used.spill_loads),
        str(fits.blocks_per_sm),
        str(fits.warps),
        ", ".join(fits.limited_by),
    ]
    main = analysis.code[kernel.entry].main_loop if analysis.code else None
    row += _loop_cells(main) if main else [""] * 7
    total = analysis.traffic.counters.total if analysis.traffic else None
    shared = total.shared_total if total else None
    row.append(f"{shared.wavefronts / shared.ideal:.2f}" if shared and shared.ideal else "")
    row.append(count(shared.conflicts) if shared and shared.ideal else "")
    row.append(f"{total.global_total.efficiency:.0%}" if total and total.global_total.sectors else "")
    row.append(f"{_filled(analysis):.0%}" if analysis.waves else "")
    row.append(f"{analysis.timing.of_least_time:.1%}" if analysis.timing else "")
    return row


def _loop_cells(main: MainLoop) -> list[str]:
    mix, banks = main.mix, main.banks
    accesses = mix.wide + mix.narrow
    return [
        str(mix.total),
        f"{mix.share('fma float32'):.1%}" if mix.share("fma float32") else "",
        f"{mix.share('mma'):.1%}" if mix.share("mma") else "",
        f"{mix.wide} of {accesses}" if accesses else "",
        f"{banks.reused_share:.0%}" if banks else "",
        f"{banks.lost_cycles / (mix.total + banks.lost_cycles):.1%}" if banks else "",
        f"{main.ffma_ceiling:.1%}" if main.ffma_ceiling is not None else "",
    ]


def _filled(analysis: Analysis) -> float:
    main = analysis.main_kernel.entry
    own: Iterable[float] = (waves.efficiency for waves in analysis.waves if waves.entry == main)
    return analysis.tile_efficiency * next(iter(own), 1.0)
