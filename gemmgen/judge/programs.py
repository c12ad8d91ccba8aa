"""Candidates with host code: whole programs, and torch extensions from source.

Their host code runs natively in a separate process with limits on time and memory. With Landlock, it can change only files of its folder.
Their kernels run on the emulator.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np

from gemmgen.core.errors import SpecError
from gemmgen.core.files import read_plain
from gemmgen.core.text import printable
from gemmgen.emulator import EmulatorError, RandomWarps
from gemmgen.emulator.demangling import qualified_name
from gemmgen.emulator.program import Program, link
from gemmgen.emulator.ptx import parse
from gemmgen.judge.candidates import Called, CandidateFailed, Conditions, kind_of, poisoned
from gemmgen.judge.devices import devices_for
from gemmgen.judge.reference import Arrays
from gemmgen.judge.task import Argument, Task, evaluate
from gemmgen.sanitizer.findings import Finding, code_of
from gemmgen.sanitizer.programs.building import Toolkit, build_program, make_toolkit
from gemmgen.sanitizer.programs.running import landlock_version, run_program
from gemmgen.sanitizer.programs.session import DeviceAnswers, Report, RunSettings

_SURROUNDINGS = frozenset(
    b"getenv secure_getenv environ __environ getauxval gethostname uname sysinfo ptrace dlsym dlopen readlink gnu_get_libc_version "
    b"getcwd get_current_dir_name getwd realpath canonicalize_file_name syscall dl_iterate_phdr dladdr getpid getppid".split()
)
"""Functions and variables that tell a program about its surroundings."""
_COUNTERS = re.compile(r":\s+(rdtscp?|rdpmc|syscall|sysenter|int\s+\$0x80)\b")
"""Instructions by which a program learns of them without a library."""
_SYSTEM_FILES = re.compile(rb"/proc/|(?<![\x21-\x7e])/(?:sys|etc|dev/(?!null\b|std|shm))")
"""Files that tell the same."""
_DYNAMIC_SYMBOLS = 11
"""Type of an ELF section with the symbols that the dynamic linker resolves."""
SECONDS, DEVICE_SECONDS = 60, 10
"""Limits of one run of a program, and of one on another device."""
MEMORY_BYTES = 1 << 30
"""Device memory that a program sees."""
FAILED = 70
"""Exit status of an extension's program if the extension raised an error."""
_MAX_CALLS = 60
"""Calls of an extension before the last of many."""
HEADERS = Path(__file__).with_name("torch_include")
_SCALAR_TYPES = {"f32": "Float", "f16": "Half", "bf16": "BFloat16", "s32": "Int", "s8": "Char", "u8": "Byte"}
_WORD = re.compile(r"\{(\w+)\}")
_HOST_KINDS = {
    "copy-out-of-bounds": "out-of-bounds",
    "library-out-of-bounds": "out-of-bounds",
    "unwritten-copy": "unwritten-output",
    "stream-race": "race",
    "host-race": "race",
    "host-access": "fails",
    "copy-direction": "fails",
    "too-much-shared-memory": "fails",
    "double-free": "fails",
    "invalid-free": "fails",
}
"""Kinds of failures by the codes of findings that the runtime makes, not the emulator."""


def _kinds_by_code() -> dict[str, str]:
    kinds: dict[str, str] = {}
    open_classes: list[type[EmulatorError]] = [EmulatorError]
    while open_classes:
        one = open_classes.pop()
        kinds[code_of(one)] = kind_of(one)
        open_classes += one.__subclasses__()
    return kinds | _HOST_KINDS


class ProgramCandidate:
    """A program that reads its inputs from files and writes its outputs to files."""

    def __init__(self, name: str, program: Path, task: Task, toolkit: Toolkit, hidden: Sequence[str]) -> None:
        self.name, self.program, self.task, self.toolkit, self.hidden = name, program, task, toolkit, tuple(hidden)
        self._modules: dict[str, None] = {}
        self._launched: set[str] = set()
        self._kinds = _kinds_by_code()

    # -- calls of the referee -----------------------------------------------------------------------------------------

    def call(self, sizes: dict[str, int], inputs: Arrays, conditions: Conditions = Conditions()) -> Called:  # noqa: B008
        """Outputs of one run."""
        return self._run(sizes, [inputs], conditions)

    def later_call(self, sizes: dict[str, int], first: Arrays, last: Arrays, more: int = 0) -> Called | None:
        """None: every run is a new process."""
        return None

    @cached_property
    def asks_for(self) -> str:
        """The function by which host code asks for its surroundings; empty if there is none."""
        image = self.program.read_bytes()
        asked = next((name.decode() for name in linked_names(image) if name in _SURROUNDINGS), "")
        file = _SYSTEM_FILES.search(image)
        return asked or (file[0].decode() if file else "") or own_counter(self.program)

    @cached_property
    def devices(self) -> list[DeviceAnswers]:
        """The devices that runs report to the program, if it asks for its device or the time."""
        image = self.program.read_bytes()
        return devices_for(self.toolkit.compute_capability, image, linked_names(image))

    def texts(self) -> Sequence[str]:
        """PTX of the modules that runs have loaded."""
        return tuple(self._modules)

    def programs(self) -> Sequence[Program]:
        """The kernels that runs have launched."""
        return tuple(
            link(text, symbol)
            for text in self._modules
            for symbol, function in parse(text).functions.items()
            if function.is_entry and qualified_name(symbol) in self._launched
        )

    # -- one run -----------------------------------------------------------------------------------------------------

    def words(self, sizes: Mapping[str, int], calls: int) -> list[str]:
        """The command line."""
        names = {argument.name for argument in self.task.arrays}

        def value(match: re.Match[str]) -> str:
            name = match[1]
            return self.file(name, 0) if name in names else str(evaluate(name, dict(sizes)))

        return [_WORD.sub(value, word) for word in self.task.command or ()]

    def file(self, name: str, turn: int) -> str:
        """The file of an array in the program's folder."""
        return f"{name}.bin"

    def _run(self, sizes: dict[str, int], inputs: Sequence[Arrays], conditions: Conditions) -> Called:
        with tempfile.TemporaryDirectory(prefix="run-") as name:
            folder = Path(name)
            for turn, arrays in enumerate(inputs):
                for own, array in arrays.items():
                    (folder / self.file(own, turn)).write_bytes(array.tobytes())
            settings = RunSettings(
                architecture=self.toolkit.compute_capability,
                seconds=SECONDS if conditions.device is None else DEVICE_SECONDS,
                sandbox=landlock_version() > 0,
                memory_bytes=MEMORY_BYTES,
                arithmetic=conditions.arithmetic,
                schedule=None if conditions.warp_order is None else RandomWarps(conditions.warp_order),
                folder=folder,
                keeps_copies=True,
                silent=True,
                answers=conditions.device,
                hides=True,
            )
            command = [str(self.program), *self.words(sizes, len(inputs))]
            report = run_program(command, self.toolkit.libraries, settings, self.hidden, quiet=True)
            self._modules |= dict.fromkeys(report.modules)
            self._launched |= set(report.kernels)
            self._check(report, folder)
            return self._results(sizes, inputs, folder, report)

    def _check(self, report: Report, folder: Path) -> None:
        """Raises ``CandidateFailed`` if the run failed."""
        errors = [finding for finding in report.findings if self._fails(finding)]
        if errors:
            raise CandidateFailed(self._kinds.get(errors[0].code, "fails"), errors[0].message, errors)
        if report.refused or report.unsupported:
            problems = [f"{kernel}: {why}" for kernel, why in report.refused.items()] or list(report.unsupported)
            raise CandidateFailed("unknown", problems[0])
        if report.ended_early:
            raise CandidateFailed("hangs", report.ended_early)
        if report.status:
            text = self._message(folder) if report.status == FAILED else ""
            ending = f"exit status {report.status}" if report.status > 0 else f"signal {-report.status}"
            raise CandidateFailed("fails", text or f"the program ended with {ending}")

    def _fails(self, finding: Finding) -> bool:
        return finding.severity == "error" or finding.code in ("unwritten-copy", "unfinished-copy")

    def _message(self, folder: Path) -> str:
        try:
            return printable(read_plain(folder / "failure", 1000).decode(errors="replace"), 300)
        except OSError:
            return ""

    def _results(self, sizes: dict[str, int], inputs: Sequence[Arrays], folder: Path, report: Report) -> Called:
        outputs: Arrays = {}
        written: Arrays = {}
        last = len(inputs) - 1
        moved = set()
        for turn, arrays in enumerate(inputs):
            for name, array in arrays.items():
                moved.add(sha256(array.tobytes()).digest())
                if self._bytes(folder / self.changed(name, turn), array.nbytes) != array.tobytes():
                    raise CandidateFailed("writes-input", f"{name} is another array after the call")
        for argument in self.task.arrays:
            if argument.role != "output":
                continue
            shape = tuple(evaluate(extent, sizes) for extent in argument.shape or ())
            result = poisoned(shape, argument.type)
            flags = np.zeros(result.nbytes, np.bool_)
            for turn in range(len(inputs)):
                data = self._bytes(folder / self.file(argument.name, turn), result.nbytes)
                if any(data):
                    moved.add(sha256(data).digest())
            if len(data) > result.nbytes:
                raise CandidateFailed("fails", f"the file of {argument.name} has more than {result.nbytes} bytes")
            result.reshape(-1).view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
            flags[: len(data)] = True
            outputs[argument.name], written[argument.name] = result, flags
        own = report.copied_to_device | report.copied_to_host <= moved
        launches = sum(totals.launches for totals in report.kernels.values())
        own &= not report.host_memory and not report.library_calls and last >= 0
        return Called(outputs, written, own, launches=launches + report.library_calls)

    def changed(self, name: str, turn: int) -> str:
        """The file that holds an input after the run."""
        return self.file(name, turn)

    def _bytes(self, file: Path, limit: int) -> bytes:
        try:
            return read_plain(file, limit)
        except OSError:
            return b""


class ExtensionCandidate(ProgramCandidate):
    """A function of a torch extension, called by a generated program."""

    def later_call(self, sizes: dict[str, int], first: Arrays, last: Arrays, more: int = 0) -> Called | None:
        """Outputs of the last of several calls in one process."""
        return self._run(sizes, [first] * (1 + min(more, _MAX_CALLS)) + [last], Conditions())

    def words(self, sizes: Mapping[str, int], calls: int) -> list[str]:
        """The number of calls, all extents of arrays, and all integers."""
        return [str(calls), *(str(evaluate(value, dict(sizes))) for value in _numbers(self.task))]

    def file(self, name: str, turn: int) -> str:
        return f"{name}.{turn}"

    def changed(self, name: str, turn: int) -> str:
        return f"{name}.{turn}.after"


def _numbers(task: Task) -> list[int | str]:
    numbers: list[int | str] = []
    for argument in task.arguments:
        numbers += argument.shape if argument.shape is not None else [argument.value if argument.value is not None else argument.name]
    return numbers


def extension_program(source: Path, task: Task) -> str:
    """The source of a program that calls the extension's function on tensors in files. Raises ``SpecError``."""
    lines: list[str] = []
    passed: list[str] = []
    place = 2

    def shape_of(argument: Argument) -> str:
        nonlocal place
        count = len(argument.shape or ())
        words = ", ".join(f"number({place + axis})" for axis in range(count))
        place += count
        return f"std::vector<int64_t>{{{words}}}, at::ScalarType::{_SCALAR_TYPES[argument.type]}"

    ends: list[str] = []
    for argument in task.arguments:
        name = argument.name
        if argument.shape is None:
            lines.append(f"const int64_t {name} = number({place});")
            place += 1
            passed.append(name)
            continue
        if argument.type not in _SCALAR_TYPES:
            raise SpecError(
                f"{name}: elements of type {argument.type} are not taken from torch extensions; need {', '.join(_SCALAR_TYPES)}"
            )
        shape = shape_of(argument)
        if argument.role == "input":
            lines.append(f'at::Tensor {name} = tensor_in("{name}." + turn, {shape});')
            ends.append(f'write_tensor({name}, "{name}." + turn + ".after");')
            passed.append(name)
        elif name in task.returns:
            at = task.returns.index(name)
            ends.append(
                f'if (found.size() <= {at}) c10::fail("the function returns no {name}");\n      '
                f'expect(found[{at}], "{name}", {shape}); write_tensor(found[{at}], "{name}." + turn);'
            )
        else:
            lines.append(f"at::Tensor {name}({shape});")
            ends.append(f'write_tensor({name}, "{name}." + turn);')
            passed.append(name)
    call = f"{task.function}({', '.join(passed)})"
    called = f"std::vector<at::Tensor> found = results({call});" if task.returns else f"{call};"
    quoted = str(source.resolve()).replace("\\", "\\\\").replace('"', '\\"')
    body = "\n      ".join([*lines, called, "C10_CUDA_CHECK(cudaStreamSynchronize(at::cuda::getCurrentCUDAStream()));", *ends])
    return f"""#include "torch_call.h"
#include "{quoted}"

int main(int, char** words) {{
  using namespace gemmgen_call;
  auto number = [&](int place) -> int64_t {{ return std::atoll(words[place]); }};
  try {{
    for (int64_t call = 0; call < number(1); ++call) {{
      const std::string turn = std::to_string(call);
      {body}
    }}
  }} catch (const std::exception& error) {{
    if (FILE* file = std::fopen("failure", "w")) {{
      std::fputs(error.what(), file);
      std::fclose(file);
    }}
    return {FAILED};
  }}
  return 0;
}}
"""


def linked_names(image: bytes) -> list[bytes]:
    """Names of the functions and variables that an ELF executable of 64 bits takes from shared libraries."""
    if image[:5] != b"\x7fELF\2":
        return []
    (table,), (size, count) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HH", image, 58)
    # Type, place and size of each section, and the section with its names.
    sections = [struct.unpack_from("<4xI16xQQI", image, table + size * number) for number in range(count)]
    names: list[bytes] = []
    for kind, first, length, strings in sections:
        if kind == _DYNAMIC_SYMBOLS:
            start = sections[strings][1]
            for symbol in range(first, first + length, 24):
                place = start + struct.unpack_from("<I", image, symbol)[0]
                names.append(image[place : image.index(b"\0", place)])
    return names


def own_counter(program: Path) -> str:
    """The first instruction by which machine code reads the processor's counters, or calls the kernel without a library; empty without one,
    and where there is no objdump."""
    tool = shutil.which("objdump")
    if tool is None:
        return ""
    try:
        command = [tool, "-d", "--no-show-raw-insn", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _COUNTERS.search(done.stdout)
    return match[1] if match else ""


@contextmanager
def built(source: Path, task: Task) -> Iterator[ProgramCandidate]:
    """Builds a program, or the function of an extension, as a candidate. Raises ``GemmgenError``."""
    number = task.architecture.removeprefix("sm_").rstrip("af")
    if not number.isdecimal():
        raise SpecError(f"architecture {task.architecture}: expected a name like sm_80")
    with tempfile.TemporaryDirectory(prefix="run-") as name:
        folder = Path(name)
        libraries = folder / "lib"
        libraries.mkdir()
        toolkit = make_toolkit(libraries, task.architecture.removeprefix("sm_"))
        program, includes, text = folder / "program", [str(source.resolve().parent)], source
        if task.function is not None:
            text = folder / "call.cu"
            text.write_text(extension_program(source, task))
            includes = [str(HEADERS), *includes]
        build_program(toolkit, [text], program, includes, (), ())
        hidden = [toolkit.nvcc.include, str(HEADERS), name]
        kind = ExtensionCandidate if task.function is not None else ProgramCandidate
        yield kind(str(source), program, task, toolkit, hidden)
