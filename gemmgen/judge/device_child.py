"""The process that times a kernel on a GPU: ``python -m gemmgen.judge.device_child FOLDER``, with the question in the folder.

The timed launches are CUDA graphs that rotate among sets of arrays which together exceed the L2, alternating with the peer's. Afterwards
the process reads their results, and launches the kernel once more on inputs that no launch has seen.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from gemmgen.core.elements import numpy_type
from gemmgen.core.errors import GemmgenError
from gemmgen.judge.candidates import POISON
from gemmgen.judge.device import packed_array
from gemmgen.kernels.launch import ArrayArgument, ResolvedLaunch
from gemmgen.perf.contestants import Contestant, measure_in_turns, torch_contestant
from gemmgen.perf.rotation import Rotation
from gemmgen.perf.timing import capture, new_stream
from gemmgen.runtime.cuda.driver import CudaError, LoadedBinary, call, current_device
from gemmgen.runtime.cuda.launcher import Launcher

ROUNDS = 20
GRAPH_SECONDS = 1e-3
ROTATE_BYTES = 160 << 20
"""Bytes of the inputs of all sets: beyond the L2 of every GPU so far."""


def measure(folder: Path) -> dict[str, Any]:
    """Answers the question and writes outputs to the folder. Raises ``GemmgenError``."""
    asked = json.loads((folder / "question.json").read_text())
    arrays = [packed_array(*one) for one in asked["arrays"]]
    types = {one.name: "pointer" for one in arrays}
    parameters = tuple((name, types.get(name, "s32")) for name in asked["parameters"])
    grid, block = tuple(asked["grid"]), tuple(asked["block"])
    launch = ResolvedLaunch(asked["entry"], grid, block, (1, 1, 1), asked["shared_bytes"], parameters)
    numbers = asked["numbers"]
    with ExitStack() as cleanup:
        cleanup.enter_context(current_device(asked["ordinal"]))
        rotation = Rotation(cleanup, arrays, {}, asked["ordinal"], ROTATE_BYTES)
        loaded = LoadedBinary((folder / "image").read_bytes(), asked["architecture"], asked["ordinal"])
        cleanup.callback(loaded.unload)
        launcher = Launcher(loaded, [launch], {})
        for index in range(rotation.count):
            _fill(rotation, index, arrays, folder, "seen")
        # Other streams do not wait for fills of memory, which may still run.
        call("cuCtxSynchronize")
        torch = _torch() if asked["peer"] else None
        torch_stream = torch.cuda.Stream() if torch is not None else None
        stream = int(torch_stream.cuda_stream) if torch_stream is not None else new_stream(cleanup)
        values = [launcher.values(rotation.pointers(index), numbers) for index in range(rotation.count)]
        own = Contestant(
            "candidate", "candidate", lambda index: launcher.launch(stream, *values[index]), lambda work: capture(cleanup, stream, work)
        )
        contestants = [own]
        answer: dict[str, Any] = {"peer": "no peer was named" if not asked["peer"] else "no peer: torch is not installed or sees no GPU"}
        if torch is not None:
            peer = _peer(*asked["peer"])
            inputs = {one.name for one in arrays if one.role == "input"}
            every = [rotation.torch_tensors(index, torch) for index in range(rotation.count)]
            tensors = [{name: tensor for name, tensor in one.items() if name in inputs} for one in every]
            with torch.cuda.stream(torch_stream):
                contestants.append(
                    torch_contestant(cleanup, torch, torch_stream, "peer", lambda index: peer(torch, asked["sizes"], tensors[index]))
                )
            answer["peer"] = asked["peer"][1]
        for contestant in contestants:
            contestant.enqueue(0)
        call("cuCtxSynchronize")
        samples, launches = measure_in_turns(stream, contestants, rotation.count, ROUNDS, graph_seconds=GRAPH_SECONDS)
        call("cuCtxSynchronize")
        answer["candidate_us"] = median(samples[0]) / launches[0] * 1e6
        if len(contestants) > 1:
            answer["peer_us"] = median(samples[1]) / launches[1] * 1e6
        _keep(rotation, rotation.count - 1, arrays, folder, "timed")
        _fill(rotation, 0, arrays, folder, "unseen")
        call("cuCtxSynchronize")
        launcher.launch(stream, *values[0])
        call("cuCtxSynchronize")
        _keep(rotation, 0, arrays, folder, "after")
    return answer


def _fill(rotation: Rotation, index: int, arrays: list[ArrayArgument], folder: Path, label: str) -> None:
    """Fills inputs from the folder, outputs with poison, and other arrays with zeros."""
    for one in arrays:
        pointer = rotation.pointers(index)[one.name]
        size = int(np.prod([extent.evaluate({}) for extent in one.shape], dtype=np.int64)) * numpy_type(one.type).itemsize
        if not size:
            continue
        if one.role == "input":
            data = np.fromfile(folder / f"{label}.{one.name}", np.uint8)
            call("cuMemcpyHtoD", pointer, data.ctypes.data, data.size)
        else:
            call("cuMemsetD8", pointer, POISON if one.role == "output" else 0, size)


def _keep(rotation: Rotation, index: int, arrays: list[ArrayArgument], folder: Path, label: str) -> None:
    for one in arrays:
        if one.role == "output":
            size = int(np.prod([extent.evaluate({}) for extent in one.shape], dtype=np.int64)) * numpy_type(one.type).itemsize
            data = np.empty(size, np.uint8)
            if size:
                call("cuMemcpyDtoH", data.ctypes.data, rotation.pointers(index)[one.name], size)
            data.tofile(folder / f"{label}.{one.name}")


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _peer(file: str, function: str) -> Any:
    spec = importlib.util.spec_from_file_location("peer", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def main(folder: Path) -> None:
    """Answers the question in the folder."""
    try:
        answer = measure(folder)
    except CudaError as error:
        answer = {"fault": str(error)}
    except GemmgenError as error:
        sys.exit(str(error))
    (folder / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
