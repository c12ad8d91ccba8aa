"""The reference as Python: a stranger's, run in a process of its own with limits on time and memory, and no files of this one's.

`function(sizes, arrays)` takes a dictionary of integers and one of NumPy arrays (float64, or integers), and returns a dictionary of
output arrays. An output may come with a bound of its own, as `name_bound`. The process is no sandbox: it runs with the rights of the user.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from gemmgen.core.errors import SpecError

SECONDS = 60
MEMORY_BYTES = 4 << 30
Arrays = dict[str, npt.NDArray[Any]]

_CHILD = """
import importlib.util, io, json, resource, sys
import numpy as np
seconds, memory = int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
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
            found = {name: np.array(v, dtype=np.uint64) for name, v in rests[0].items()} if rests[0] == rests[1] else {}
        except Exception:
            found = {}
    else:
        with np.errstate(all="ignore"):
            found = function(dict(question["sizes"]), arrays)
    for name, array in found.items():
        results[f"{number}/{name}"] = np.asarray(array)
np.savez("found.npz", **results)
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
        """The function's results, from a process of its own."""
        return answers(self.file, self.function, questions)


def answers(file: Path, function: str, questions: Sequence[Question], seconds: int = SECONDS) -> list[Arrays]:
    """The reference's results for each question. Raises ``SpecError`` if it fails, takes too long, or returns no arrays."""
    import json

    given: Arrays = {f"{number}/{name}": array for number, question in enumerate(questions) for name, array in question.arrays.items()}
    asked = [{"sizes": question.sizes, "arrays": list(question.arrays), "field": question.field} for question in questions]
    given["asked"] = np.frombuffer(json.dumps(asked).encode(), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "given.npz", **cast("dict[str, Any]", given))
        environment = {"PATH": os.environ.get("PATH", ""), "OPENBLAS_NUM_THREADS": "1", "HOME": folder}
        command = [sys.executable, "-I", "-c", _CHILD, str(file.resolve()), function, str(seconds), str(MEMORY_BYTES)]
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, timeout=seconds + 10, stdin=subprocess.DEVNULL, check=False
            )
        except subprocess.TimeoutExpired:
            raise SpecError(f"{file}:{function} took more than {seconds} seconds") from None
        found = Path(folder) / "found.npz"
        if ended.returncode or not found.exists():
            last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it ended without results"]
            raise SpecError(f"{file}:{function}: {last[0][:300]}")
        content = io.BytesIO(found.read_bytes())
    try:
        with np.load(content, allow_pickle=False) as loaded:
            results = {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError) as error:
        raise SpecError(f"{file}:{function} returned no arrays of numbers: {error}") from None
    split: list[Arrays] = [{} for _ in questions]
    for name, array in results.items():
        number, _, own = name.partition("/")
        split[int(number)][own] = array
    return split
