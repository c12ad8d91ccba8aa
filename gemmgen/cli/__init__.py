"""The command line. Each command is imported when it is used, so that help and version answer at once."""

from __future__ import annotations

import click

from gemmgen.cli.application import Application
from gemmgen.core.version import __version__

COMMANDS = {
    "render": "Write the CUDA source of specs.",
    "check": "Check specs, and list every reason why one cannot work.",
    "compile": "Compile specs to PTX, cubin or SASS, and show their registers and memory.",
    "verify": "Run specs on every edge case and compare with a reference.",
    "emulate": "Run any CUDA or PTX kernel without a GPU, and report its errors.",
    "judge": "Judge an untrusted kernel: it must compute the reference function, without tricks.",
    "run": "Run a whole CUDA program, host code included, without a GPU.",
    "bench": "Time specs on a GPU beside the vendor's library.",
    "sweep": "Check, compile, verify and time every point of a parameter space, each in a separate process.",
    "tune": "Time instances on this GPU, so that operations choose by measured times.",
    "warm": "Compile the kernels of given problems ahead of their first use.",
    "trace": "List the problems of a model, from a torch script or a profile.",
    "plan-model": "Choose the kernels of a model's problems, and predict their time.",
    "library": "The pregenerated library: build it, check that it is current, show its certificates.",
    "export": "Write instances for programs without gemmgen: cubin, fat binary, C header, Python module.",
    "explain": "Explain the plan of a spec in words, with the resource that bounds it.",
    "analyze": "Analyse compiled specs: occupancy, machine code, traffic, roofs.",
    "view": "Write one HTML page of a kernel: CUDA, PTX and machine code side by side, and its bottlenecks.",
    "diff": "Compare two kernels: spec, plan, source, machine code, counters, predicted time.",
    "banks": "Show the cost of an access to shared memory, and the effect of a padding or a swizzle.",
    "prove": "Prove properties of kernels for all sizes of their problems.",
    "draw": "Draw a spec's tiles, lanes and banks of shared memory.",
    "schema": "Print the JSON Schema of specs.",
    "doctor": "Show the tools and devices of this machine, and the effect of each missing one.",
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
