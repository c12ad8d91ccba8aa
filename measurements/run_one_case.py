"""Launches the counted case of each spec once on the GPU, and nothing else: for a profiler to watch.

    python -m measurements.run_one_case gemm/v1_tiled [SPEC...] [--log FILE]

The log gets one JSON line a spec: the names of its kernels in the order of their launches, or the error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gemmgen.api import plan
from gemmgen.cli.selection import find_specs
from gemmgen.core.errors import GemmgenError
from gemmgen.library.single_run import launch_case
from gemmgen.runtime.cuda.driver import LoadedBinary, gpu
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.oracle import oracle_of


def run(spec: Path) -> list[str]:
    """Launches the case; returns the kernels' names, in order."""
    planned = plan(spec, gpu(0).architecture)
    case = oracle_of(planned.spec.kind).counted_case(planned)
    binary = compile_plan(planned)
    launch_case(planned, LoadedBinary(binary.cubin, binary.architecture, 0), case)
    return [launch.entry for launch in planned.sequence.resolve(case.dimensions)]


def main() -> None:
    """Runs the specs on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("specs", nargs="+")
    parser.add_argument("--log", type=Path)
    arguments = parser.parse_args()
    for file in find_specs(arguments.specs):
        entry: dict[str, Any] = {"spec": file.label}
        try:
            entry["kernels"] = run(file.path)
        except GemmgenError as error:
            entry["error"] = str(error)
        text = json.dumps(entry)
        print(text, flush=True)
        if arguments.log is not None:
            with arguments.log.open("a") as stream:
                stream.write(text + "\n")


if __name__ == "__main__":
    main()
