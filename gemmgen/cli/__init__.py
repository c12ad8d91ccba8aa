"""The command line. Each command is imported when it is used, so that help and version answer at once."""

from __future__ import annotations

import click

from gemmgen.cli.application import Application
from gemmgen.core.version import __version__

COMMANDS = {
    "render": "Write the CUDA source of specs.",
    "check": "Say whether specs can work, and all reasons why not.",
    "compile": "Compile specs to PTX, cubin or SASS, and show what they use.",
    "verify": "Run specs on every edge case and compare with a reference.",
    "emulate": "Run any kernel of your own without a GPU, and report what is wrong with it.",
    "judge": "Judge a kernel that someone wrote: the same function as a reference, without tricks.",
    "run": "Run a whole CUDA program, host code included, without a GPU.",
    "bench": "Time specs on a GPU beside the vendor's library.",
    "sweep": "Take every point of a parameter space through all of this, each in a process of its own.",
    "tune": "Time instances on this GPU, so that operations choose by measured times.",
    "warm": "Compile ahead what operations will be asked for.",
    "trace": "List the problems of a model, from a script of torch or from a profile.",
    "plan-model": "Choose the kernels of a model's problems, and say what time they take.",
    "library": "The pregenerated library: build it, prove that it is current, look at its certificates.",
    "export": "Write instances for programs without gemmgen: cubin, fat binary, C header, Python module.",
    "explain": "Explain the plan of a spec in words, and what bounds it.",
    "analyze": "Analyse what specs compile to: occupancy, machine code, traffic, roofs.",
    "view": "Write one page of a kernel: CUDA, PTX and machine code side by side, and what makes it slow.",
    "diff": "Compare two kernels: spec, plan, source, machine code, counters, predicted time.",
    "banks": "Say what an access to shared memory costs, and what a padding or a swizzle would change.",
    "prove": "Prove properties of kernels for all sizes of their problems.",
    "draw": "Draw a spec's tiles, lanes and banks of shared memory.",
    "schema": "Print the JSON Schema of specs.",
    "doctor": "Show what this machine has, and what each missing piece costs.",
    "cache": "Look at the compile cache, or empty it.",
    "completion": "Print the script that completes commands in a shell.",
}
"""Every command, in the order of the road from a spec to its evidence; each is a module in ``commands``."""


@click.group(
    cls=Application,
    command_summaries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A SPEC is a YAML file, a directory of them, or the name of a spec that comes with gemmgen, such as gemm/v3_double_buffer.",
)
@click.version_option(__version__, prog_name="gemmgen", message="%(prog)s %(version)s")
def cli() -> None:
    """Turn short, checked kernel descriptions into specialised CUDA, and prove that it is right."""


def main() -> None:
    """The entry point of the command ``gemmgen``."""
    cli(prog_name="gemmgen")
