"""``gemmgen explain``: a plan in words, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.certified import certified_proof
from gemmgen.cli.options import architecture_option, complete_device, complete_spec, json_option, parse_size, set_option
from gemmgen.cli.output import count, operation_unit, print_json, rate
from gemmgen.cli.sections import print_sections
from gemmgen.cli.selection import find_specs, plan_specs
from gemmgen.core.errors import SpecError
from gemmgen.kernels.family import Section

if TYPE_CHECKING:
    from gemmgen.hardware.target import Device
    from gemmgen.kernels.family import KernelPlan


@click.command("explain")
@click.argument("spec", required=False, shell_complete=complete_spec)
@click.option(
    "problem_text",
    "--problem",
    metavar="KIND:SIZES",
    help="Instead of a SPEC: explain the choice of gemmgen.ops for a problem, such as gemm:m,n,k (and nt, f16, unaligned, batch=8 ...).",
)
@click.option(
    "device_name",
    "--device",
    shell_complete=complete_device,
    help="GPU whose roofs to compare with; else one of --arch, or an H200. With --problem, this machine's GPU if there is one.",
)
@click.option("--size", metavar="M,N,K", help="Sizes of the problem, in the family's order; else a typical one.")
@architecture_option("Architecture to plan for; else the spec's own.")
@set_option
@json_option
def command(
    spec: str | None,
    problem_text: str | None,
    device_name: str | None,
    size: str | None,
    architecture: str | None,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Explain the plan of SPEC: tiles, copies, shared memory, launch, and the roof of a device that binds; or, with --problem, the
    kernel chosen for a problem on a device, and the reasons."""
    from gemmgen.cli.analysis import foreign_device
    from gemmgen.dispatch.prediction import device_for
    from gemmgen.hardware.target import architecture as find_architecture
    from gemmgen.hardware.target import device as find_device
    from gemmgen.kernels import family_of
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.present.explanation import explanation_of

    if spec is not None and problem_text is not None:
        raise click.UsageError("--problem asks which instance a problem gets, and takes no SPEC; a SPEC on a problem: --size M,N,K")
    if spec is None and problem_text is None:
        raise click.UsageError("expected a SPEC, or --problem for the choice of one: --problem gemm:512,512,512,nt")
    if problem_text is not None:
        if size or overrides:
            raise click.UsageError("--size and --set say more about a SPEC; with --problem there is none")
        from gemmgen.cli.choice import explain_choice
        from gemmgen.dispatch.devices import problem_device
        from gemmgen.dispatch.problems import read_problem

        if read_problem(problem_text).for_processor:
            _explain_for_processor(problem_text, device_name or architecture, as_json)
            return
        target = find_architecture(architecture) if architecture else None
        explain_choice(problem_text, find_device(device_name) if device_name else problem_device(target), as_json, target)
        return
    assert spec is not None
    files = find_specs([spec])
    if len(files) != 1:
        raise SpecError(f"{spec} holds {len(files)} specs; explain takes one")
    (planned,) = plan_specs(files, overrides, find_architecture(architecture) if architecture else None)
    plan, family = planned.plan, family_of(planned.plan.spec)
    device = find_device(device_name) if device_name else device_for(plan.architecture if architecture else None)
    typical = family.instance_sizes(plan)
    sizes = parse_size(size) if size else tuple(typical.values())
    if len(sizes) != len(typical):
        raise click.UsageError(f"--size {size}: {planned.file.label} needs {len(typical)} numbers: {','.join(typical)}")
    problem = family.problem(plan, sizes)
    explained = explanation_of(plan.spec.kind).explain(plan)
    if plan.warnings:
        explained = [*explained, Section("Warnings", tuple((warning.code, str(warning)) for warning in plan.warnings))]
    if not isinstance(plan, KernelPlan):
        if as_json:
            print_json({"name": plan.name, "sections": [{"title": s.title, "lines": [list(line) for line in s.lines]} for s in explained]})
        else:
            print_sections(plan.name, explained)
        return
    notes = foreign_device(plan.architecture, device) if architecture else []
    sections = [*explained, _launch_section(plan, problem, device), *_proof_sections(plan), _roof_section(plan, problem, device, notes)]
    if as_json:
        print_json(_to_json(plan, problem, device, sections))
    else:
        print_sections(plan.name, sections)


def _explain_for_processor(problem_text: str, target: str | None, as_json: bool) -> None:
    """The kernel that this machine's processor gets for a problem. Raises ``GemmgenError``."""
    from gemmgen.api import choose
    from gemmgen.present.explanation import explanation_of

    if target is not None:
        raise click.UsageError("a problem of cpu: is for this machine's processor, without --device and --arch")
    plan = choose(problem_text).plan
    chosen = Section("Choice", (("problem", problem_text), ("takes", "the kernel that operations use on this machine for such shapes")))
    sections = [chosen, *explanation_of(plan.spec.kind).explain(plan)]
    if as_json:
        print_json({"name": plan.name, "sections": [{"title": s.title, "lines": [list(line) for line in s.lines]} for s in sections]})
    else:
        print_sections(plan.name, sections)


def _launch_section(plan: KernelPlan, problem: dict[str, int], device: Device) -> Section:
    lines = []
    for launch in plan.sequence.launches:
        shared = f"; {launch.dynamic_shared_bytes} bytes of dynamic shared memory" if str(launch.dynamic_shared_bytes) != "0" else ""
        lines.append(("grid", " x ".join(str(extent) for extent in launch.grid)))
        lines.append(("block", f"{' x '.join(map(str, launch.block))} = {launch.threads} threads{shared}"))
    for resolved in plan.sequence.resolve(problem):
        blocks = prod(resolved.grid)
        per_sm = f"{blocks / device.sm_count:.2f} for each of the {device.name}'s {device.sm_count} SMs"
        lines.append(("blocks", f"{count(blocks)} for this problem: {per_sm}"))
    lines += [("expects", constraint.explanation) for constraint in plan.sequence.constraints]
    return Section("Launch", tuple(lines))


def _proof_sections(plan: KernelPlan) -> list[Section]:
    """The properties that are proved of this kernel; none for a kernel without proofs."""
    proof = certified_proof(plan)
    if proof is None:
        return []
    return [Section("Proved for all sizes that the launch accepts", (("proved", ", ".join(proof["proved"])), ("date", proof["date"])))]


def _roof_section(plan: KernelPlan, problem: dict[str, int], device: Device, notes: Sequence[tuple[str, str]]) -> Section:
    from gemmgen.cli.analysis import bound_lines, fetch_lines, needs
    from gemmgen.kernels import family_of
    from gemmgen.kernels.naming import architecture_reasons
    from gemmgen.perf.analysis.roofline import roofline
    from gemmgen.perf.cost_model import cost_model_of

    family = family_of(plan.spec)
    roofs = roofline(cost_model_of(plan.spec.kind).cost(plan, problem), device)
    cost = roofs.cost
    unit = operation_unit(cost.unit)
    sizes = " ".join(f"{name}={problem[name]}" for name in family.instance_sizes(plan))
    lines = [*notes, ("problem", sizes)]
    lines.append(("needs", needs(cost, unit)))
    if not cost.bytes:
        return Section(f"Roofs of the {device.name}", tuple(lines))
    lines += fetch_lines(cost_model_of(plan.spec.kind).fetches(plan, problem), cost.operations, unit, device.l2_roof)
    if roofs.ridge is not None:
        lines.append(("ridge", f"{roofs.ridge:.1f} {unit} a byte: above it arithmetic binds, below it memory"))
    lines += bound_lines(roofs, unit)
    if roofs.binding == "compute":
        lines += _demands(plan, problem, device)
    lines += [("but", f"the kernel does not run on it: {reason}") for reason in architecture_reasons(plan.spec, device.architecture)]
    return Section(f"Roofs of the {device.name}", tuple(lines))


def _demands(plan: KernelPlan, problem: dict[str, int], device: Device) -> list[tuple[str, str]]:
    """Rates at which the main kernel's tiles have to be fed while arithmetic runs at its peak, over the whole device: bytes of a step
    from the L2 or memory, and the part of the time in which shared memory is busy (Gray, maxas wiki, SGEMM)."""
    from gemmgen.perf.cost_model import cost_model_of

    works = [work for work in cost_model_of(plan.spec.kind).work(plan, problem) if work.operations]
    if not works:
        return []
    work = max(works, key=lambda one: one.operations * one.steps * one.blocks)
    peak = device.roof(work.unit)
    if peak is None:
        return []
    seconds = work.operations / (peak.value / device.sm_count)
    lines = [
        (
            "tiles demand",
            f"{rate(work.loaded_bytes / seconds * device.sm_count, 'B/s')} from L2 and memory while arithmetic runs at its peak",
        )
    ]
    if work.shared_clocks:
        busy = work.shared_clocks / (seconds * device.clock_hz)
        lines.append(
            ("", f"shared-memory time is {busy:.0%} of arithmetic time: {work.shared_clocks:,.0f} wavefronts of a block in each step")
        )
    return lines


def _to_json(plan: KernelPlan, problem: dict[str, int], device: Device, sections: Sequence[Section]) -> dict[str, Any]:
    from gemmgen.perf.analysis.roofline import roofline
    from gemmgen.perf.cost_model import cost_model_of

    roofs = roofline(cost_model_of(plan.spec.kind).cost(plan, problem), device)
    return {
        "name": plan.name,
        "architecture": plan.architecture.name,
        "sections": [{"title": section.title, "lines": [list(line) for line in section.lines]} for section in sections],
        "launch_sequence": plan.sequence.to_json(),
        "device": device.name,
        "problem": problem,
        "operations": roofs.cost.operations,
        "bytes": roofs.cost.bytes,
        "intensity": roofs.cost.intensity,
        "ridge": roofs.ridge,
        "binding": roofs.binding,
        "least_seconds": roofs.least_seconds,
    }
