"""``--problem`` of commands: the kernel that operations would launch for a problem, in the place of a spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.options import NAMED_PATH, Decorator, complete_device
from gemmgen.cli.output import duration
from gemmgen.cli.selection import SpecFile, find_specs, tell_written, write_output
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.dispatch.chosen import ChosenKernel
    from gemmgen.hardware.target import Architecture, Device

SHOWN_RUNNERS_UP = 3


@dataclass(frozen=True)
class AskedProblems:
    """Problems that a command line names in the place of specs, and where the specs that they get are written to."""

    texts: tuple[str, ...]
    spec_output: Path | None
    baked: str | None = None
    """Names of dimensions that become constants of the kernels, or ``all``."""
    device_name: str | None = None
    """The device that ``--device`` names, of commands that need one for nothing else."""

    def files(
        self, names: Sequence[str], device: str | Device | None = None, architecture: str | Architecture | None = None
    ) -> list[SpecFile]:
        """The specs that ``names`` and the problems mean. Raises ``UsageError`` if there is neither."""
        if not names and not self.texts:
            raise click.UsageError("Missing argument 'SPEC...'. Name a spec, or a problem: --problem gemm:512,512,512,nt")
        given = {"--spec": self.spec_output, "--bake": self.baked, "--device": self.device_name}
        if not self.texts and (alone := [name for name, value in given.items() if value is not None]):
            raise click.UsageError(f"{alone[0]} goes with --problem")
        if self.spec_output is not None and len(self.texts) > 1:
            raise click.UsageError(f"--spec is the file of one spec, and {len(self.texts)} problems are named")
        files = find_specs(names) if names else []
        from gemmgen.api import choose
        from gemmgen.dispatch.chosen import self_contained

        for text in dict.fromkeys(self.texts):
            chosen = self_contained(choose(text, device or self.device_name, architecture))
            chosen = chosen if self.baked is None else _baked(chosen, self.baked)
            click.echo(printable(choice_line(chosen)), err=True)
            if self.spec_output is not None:
                tell_written(self.spec_output, write_output(self.spec_output, spec_text(chosen)), err=True)
            files.append(
                SpecFile(
                    chosen.problem.text,
                    self.spec_output or Path(chosen.problem.text),
                    chosen.plan.spec,
                    chosen.plan.architecture.name,
                    dict(chosen.dimensions),
                )
            )
        return files


def problem_options(*, device: bool = False) -> Decorator[Any]:
    """``--problem`` and ``--spec``, and ``--device`` where a command needs a device for nothing else, as the parameter ``asked``."""

    def decorated(function: Callable[..., object]) -> Callable[..., Any]:
        @wraps(function)
        def with_problems(
            *arguments: object,
            problem_texts: Sequence[str],
            spec_output: Path | None,
            baked: str | None,
            choice_device: str | None = None,
            **more: object,
        ) -> Any:
            return function(*arguments, asked=AskedProblems(tuple(problem_texts), spec_output, baked, choice_device), **more)

        options = [
            click.option(
                "problem_texts",
                "--problem",
                metavar="KIND:SIZES",
                multiple=True,
                help="Instead of a SPEC: use the kernel that operations launch for this problem, such as gemm:m,n,k "
                "(and nt, bf16, silu, batch=8 ...).",
            ),
            click.option(
                "spec_output",
                "--spec",
                type=NAMED_PATH,
                metavar="FILE",
                help="Write the spec chosen for --problem; it renders the same on every machine.",
            ),
        ]
        options.append(
            click.option(
                "baked",
                "--bake",
                metavar="NAMES",
                help="Compile these sizes of --problem into the kernel as constants: n,k, or strides such as ldb, or all.",
            )
        )
        if device:
            options.append(
                click.option(
                    "choice_device",
                    "--device",
                    metavar="DEVICE",
                    shell_complete=complete_device,
                    help="GPU to choose the kernel for; else this machine's, or an H200.",
                )
            )
        result: Any = with_problems
        for option in reversed(options):
            result = option(result)
        return result  # type: ignore[no-any-return]

    return decorated


def _baked(chosen: ChosenKernel, names: str) -> ChosenKernel:
    """The kernel made for these dimensions of its problem. Raises ``UsageError`` for names that are none."""
    from gemmgen.kernels.planning import plan

    known = chosen.dimensions
    wanted = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise click.UsageError(f"--bake: {unknown[0]!r} is not a dimension of {chosen.plan.name}; need {', '.join(known)} or all")
    spec = chosen.plan.spec.model_copy(update={"sizes": tuple((name, known[name]) for name in wanted)})
    return replace(chosen, plan=plan(spec, chosen.plan.architecture))


def choice_line(chosen: ChosenKernel) -> str:
    """The choice and the runners-up, in a line."""
    choice = chosen.choice
    if choice is None:
        return f"{chosen.problem.text}: chosen {chosen.plan.name}, the kernel that operations use on this machine for this class of shapes"
    option = choice.chosen
    changed = f", with other values of {', '.join(option.fit.derived)}" if option.fit.derived else ""
    others = [f"{other.candidate.label} {duration(other.seconds)}" for other in choice.options if other is not option]
    behind = f"; next {', '.join(others[:SHOWN_RUNNERS_UP])}" if others else "; no other kernel qualifies"
    taken = f"chosen {option.candidate.label}{changed}, {option.source} {duration(option.seconds)}"
    return f"{chosen.problem.text} on the {choice.device.name}: {taken}{behind}"


def spec_text(chosen: ChosenKernel) -> str:
    """The spec of a chosen kernel as YAML."""
    from gemmgen.codegen.rendering import spec_lines

    where = f" on the {chosen.choice.device.name}" if chosen.choice is not None else ""
    return "\n".join([f"# Chosen for {chosen.problem.text}{where}.", *spec_lines(chosen.plan.spec)]) + "\n"
