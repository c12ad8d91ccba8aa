"""Launches the counted case of each spec once on the GPU, and nothing else: for a profiler to watch.

    python -m measurements.run_one_case gemm/v1_tiled [SPEC...] [--log FILE]

The log gets one JSON line a spec: the names of its kernels in the order of their launches, or the error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.api import compile_plan, plan
from gemmgen.case_memory import prepare_case
from gemmgen.cli.selection import find_specs
from gemmgen.errors import GemmgenError
from gemmgen.families import family_of
from gemmgen.gpu.driver import LoadedBinary, call, current_device, gpu
from gemmgen.gpu.launching import PreparedCall


def run(spec: Path) -> list[str]:
    """Launches the case; returns the kernels' names, in order."""
    device = gpu(0)
    planned = plan(spec, device.architecture)
    sequence, case = planned.sequence, family_of(planned.spec).counted_case(planned)
    binary = compile_plan(planned)
    loaded = LoadedBinary(binary.cubin, binary.architecture, 0)
    prepared = PreparedCall(loaded, sequence, case.dimensions)
    entries = [launch.entry for launch in sequence.resolve(case.dimensions)]
    given = sequence.default_scalars | dict(case.scalars)
    kinds = {scalar.name: scalar.type for scalar in sequence.scalars}
    scalars = {name: float(value) if kinds.get(name, "f32")[0] == "f" else int(value) for name, value in given.items()}
    with current_device(0):
        pointers: dict[str, int] = {}
        owned = []
        for name, piece in prepare_case(planned, case).items():
            address = _upload(piece.buffer.storage.view(np.uint8), piece.buffer.offset_bytes)
            owned.append(address)
            pointers[name] = address + piece.buffer.offset_bytes
        if prepared.workspace_bytes:
            # Allocated here and filled by a copy, because a memset of the driver's could be a kernel of its own.
            address = _upload(np.zeros(prepared.workspace_bytes, np.uint8), 0)
            owned.append(address)
            pointers |= {array.name: address for array in sequence.arrays if array.role == "workspace"}
        prepared.enqueue(0, pointers, scalars)
        call("cuCtxSynchronize")
        for address in owned:
            call("cuMemFree", address)
    return entries


def _upload(content: np.ndarray[Any, np.dtype[np.uint8]], offset: int) -> int:
    """Device memory whose bytes from ``offset`` on are ``content``; it begins at a multiple of 256."""
    address = int(call("cuMemAlloc", max(content.nbytes + offset, 1)))
    if content.nbytes:
        call("cuMemcpyHtoD", address + offset, content.ctypes.data, content.nbytes)
    return address


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
