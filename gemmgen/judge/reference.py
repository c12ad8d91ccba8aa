"""The reference as Python: a stranger's, run in a separate process with limits on time and memory, and without this process's files.

`function(sizes, arrays)` takes a dictionary of integers and one of NumPy arrays (float64, or integers), and returns a dictionary of
output arrays. An output may come with its own bound, as `name_bound`. The process is no sandbox: it runs with the rights of the user.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from gemmgen.core.errors import SpecError
from gemmgen.core.files import read_plain
from gemmgen.core.text import printable

SECONDS = 60
MEMORY_BYTES = 4 << 30
MAX_RESULTS = 1 << 30
"""Bytes of all results together."""
_MAX_ERROR_LENGTH = 4096
Arrays = dict[str, npt.NDArray[Any]]

_CHILD = """
import importlib.util, io, json, resource, sys
import numpy as np
def lower(kind, soft, hard):
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (soft, hard) if most == resource.RLIM_INFINITY else (min(soft, most), min(hard, most)))
seconds, memory = int(sys.argv[3]), int(sys.argv[4])
lower(resource.RLIMIT_CPU, seconds, seconds + 1)
lower(resource.RLIMIT_AS, memory, memory)
lower(resource.RLIMIT_FSIZE, 1 << 30, 1 << 30)
sys.excepthook = lambda kind, error, trace: print(f"{kind.__name__}: {' '.join(str(error).split())}", file=sys.stderr)
spec = importlib.util.spec_from_file_location("reference", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
function = getattr(module, sys.argv[2])
given = np.load("given.npz", allow_pickle=False)
asked = json.loads(bytes(given["asked"]))
results = {}
for number, question in enumerate(asked):
    arrays = {name: given[f"{number}/{name}"] for name in question["arrays"]}
    if question["field"]:
        modulus = question["field"]
        try:
            # A polynomial does not see which of two equal residues it is given; the second call finds out.
            takes = [{name: array.astype(object) - shift for name, array in arrays.items()} for shift in (0, modulus)]
            both = [function(dict(question["sizes"]), take) for take in takes]
            rests = [{name: [int(x) % modulus for x in np.asarray(v, dtype=object).ravel() if isinstance(x, (int, np.integer))]
                     for name, v in each.items() if not name.endswith("_bound")} for each in both]
            returned = {name: np.array(v, dtype=np.uint64) for name, v in rests[0].items()} if rests[0] == rests[1] else {}
        except Exception:
            returned = {}
    else:
        with np.errstate(all="ignore"):
            returned = function(dict(question["sizes"]), arrays)
        if not isinstance(returned, dict):
            raise TypeError(f"it returned {type(returned).__name__}, expected a dictionary of arrays by their names")
    for name, array in returned.items():
        results[f"{number}/{name}"] = np.asarray(array)
np.savez("results.npz", **results)
"""


class Question:
    """Inputs for one call of the reference, as numbers; as residues where ``field`` is the modulus."""

    def __init__(self, sizes: dict[str, int], arrays: Arrays, field: int = 0) -> None:
        self.sizes, self.arrays, self.field = sizes, arrays, field


class Reference(Protocol):
    """A function that computes outputs from inputs."""

    @property
    def any_order(self) -> bool:
        """True if the bounds that come with its outputs hold for one order of additions, so that others are given those of sums too."""

    def answers(self, questions: Sequence[Question]) -> list[Arrays]:
        """The outputs for each question, and bounds of their errors as ``NAME_bound`` where it knows them. Raises ``SpecError``."""


@dataclass(frozen=True)
class PythonReference:
    """A function in a file of Python."""

    file: Path
    function: str
    any_order: bool = False

    def answers(self, questions: Sequence[Question]) -> list[Arrays]:
        """The function's results, from a separate process."""
        return answers(self.file, self.function, questions)


def answers(file: Path, function: str, questions: Sequence[Question], seconds: int = SECONDS) -> list[Arrays]:
    """The reference's results for each question. Raises ``SpecError`` if it fails, takes too long, or returns no arrays."""
    import json

    given: Arrays = {f"{number}/{name}": array for number, question in enumerate(questions) for name, array in question.arrays.items()}
    asked = [{"sizes": question.sizes, "arrays": list(question.arrays), "field": question.field} for question in questions]
    given["asked"] = np.frombuffer(json.dumps(asked).encode(), np.uint8)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:  # a file, of which no more than the end is read
        np.savez(Path(folder) / "given.npz", **cast("dict[str, Any]", given))
        environment = {"PATH": os.environ.get("PATH", ""), "OPENBLAS_NUM_THREADS": "1", "HOME": folder}
        command = [sys.executable, "-I", "-c", _CHILD, str(file.resolve()), function, str(seconds), str(MEMORY_BYTES)]
        nothing = subprocess.DEVNULL
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, stdin=nothing, stdout=nothing, stderr=output, timeout=seconds + 10, check=False
            )
        except subprocess.TimeoutExpired:
            raise SpecError(f"{file}:{function} took more than {seconds} seconds") from None
        if ended.returncode or not (Path(folder) / "results.npz").exists():
            output.seek(max(0, output.seek(0, os.SEEK_END) - _MAX_ERROR_LENGTH))
            last = output.read().decode(errors="replace").strip().splitlines()[-1:] or ["it ended without results"]
            raise SpecError(f"{file}:{function}: {printable(last[0], 300)}")
        try:
            results = _loaded(read_plain(Path(folder) / "results.npz", MAX_RESULTS))
        except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
            raise SpecError(f"{file}:{function} returned no arrays of numbers: {printable(str(error), 300)}") from None
    split: list[Arrays] = [{} for _ in questions]
    for name, array in results.items():
        number, _, own = name.partition("/")
        if number not in map(str, range(len(questions))) or array.dtype.kind not in "biuf":
            raise SpecError(f"{file}:{function} returned no arrays of numbers: {printable(own, 60)!r} has elements of type {array.dtype}")
        split[int(number)][own] = array
    return split


def _loaded(data: bytes) -> Arrays:
    """The arrays of a file that the reference may have written itself. Raises one of several errors for another kind of file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(member.file_size for member in archive.infolist()) > MAX_RESULTS:
            raise ValueError(f"more than {MAX_RESULTS} bytes")
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        return {name: np.asanyarray(loaded[name]) for name in loaded.files}  # bytes, of a member that is no array
