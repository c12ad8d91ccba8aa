"""Launches cases of one instance on the GPU, in this process and without any comparison: for a tool that watches.

    python -m gemmgen.library.single_run SPEC ARCHITECTURE counted|sampled

The last line of its output is the number of cases that were launched.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gemmgen.core.formulas import round_up
from gemmgen.verification.oracle import oracle_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.family import Case, KernelPlan
    from gemmgen.runtime.cuda.driver import LoadedBinary

_MAX_ACCESS_LENGTH = 16
SAMPLE_EVERY = 4
"""Every fourth case of an instance is in the sample."""


def launch_case(planned: KernelPlan, loaded: LoadedBinary, case: Case) -> None:
    """Launches one case on device 0 and waits for it. Raises ``LaunchError`` if it cannot be launched or faults."""
    import numpy as np

    from gemmgen.runtime.cuda.driver import call, current_device, release
    from gemmgen.runtime.cuda.launcher import Launcher
    from gemmgen.verification.case_arrays import prepare_case

    sequence = planned.sequence
    launcher = Launcher(loaded, sequence.resolve(case.dimensions), case.dimensions)
    workspace_bytes = sequence.workspace_bytes.evaluate(case.dimensions)
    owned: list[int] = []
    with current_device(0):
        try:
            pointers: dict[str, int] = {}
            for name, piece in prepare_case(planned, case).items():
                owned.append(_upload(piece.buffer.storage.view(np.uint8), piece.buffer.offset_bytes))
                pointers[name] = owned[-1] + piece.buffer.offset_bytes + piece.buffer.origin_bytes
            if workspace_bytes and not launcher.is_empty:
                # Allocated here and filled by a copy, because a memset of the driver could be a separate kernel.
                owned.append(_upload(np.zeros(workspace_bytes, np.uint8), 0))
                pointers |= dict.fromkeys(sequence.workspace_names, owned[-1])
            launcher.launch(0, *launcher.values(pointers, sequence.default_scalars | dict(case.scalars)))
            call("cuCtxSynchronize")
        finally:
            for address in owned:
                release("cuMemFree", address)


def chosen_cases(planned: KernelPlan, which: str) -> Sequence[Case]:
    """``counted``: the case that stands for the instance; ``sampled``: every fourth case."""
    oracle = oracle_of(planned.spec.kind)
    return [oracle.counted_case(planned)] if which == "counted" else oracle.cases(planned)[::SAMPLE_EVERY]


def main(arguments: Sequence[str]) -> None:
    """Launches the cases that the command line names."""
    from gemmgen.kernels.planning import plan
    from gemmgen.runtime.cuda.driver import LoadedBinary
    from gemmgen.toolchain.compilation import compile_plan

    path, architecture, which = arguments
    planned = plan(path, architecture)
    binary = compile_plan(planned)
    loaded = LoadedBinary(binary.cubin, binary.architecture, 0)
    cases = chosen_cases(planned, which)
    for case in cases:
        launch_case(planned, loaded, case)
    print(len(cases))


def _upload(content: npt.NDArray[np.uint8], offset: int) -> int:
    """Device memory whose bytes from ``offset`` on are ``content``; it begins at a multiple of 256 and ends at one of 16.

    A cp.async of 16 bytes that fills up with zeros has the number of bytes it reads in the low bits of its address (LDGSTS.ZFILL),
    which memcheck does not look at: it takes the read for one of 16 bytes. The emulator counts them one by one.
    """
    from gemmgen.runtime.cuda.driver import call

    address = int(call("cuMemAlloc", round_up(max(content.nbytes + offset, 1), _MAX_ACCESS_LENGTH)))
    if content.nbytes:
        call("cuMemcpyHtoD", address + offset, content.ctypes.data, content.nbytes)
    return address


if __name__ == "__main__":
    main(sys.argv[1:])
