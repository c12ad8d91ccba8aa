"""Exported headers as functions of Python: compiled with a C compiler against a driver that only takes notes."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import PATIENCE

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import GemmgenError
from gemmgen.core.formulas import FormulaError
from gemmgen.export.header import model, render_header
from gemmgen.export.images import Bundle, Image
from gemmgen.hardware.target import ARCHITECTURES
from gemmgen.hardware.tensor_map import MAP_BYTES
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import ArrayArgument, HostArgument, LaunchSequence, ResolvedMap, TensorMapArgument
from gemmgen.runtime.arrays.binding import bind_dimensions
from gemmgen.runtime.arrays.views import overlaps_itself
from gemmgen.runtime.cuda import abi

FAKE_SOURCE = Path(__file__).parent / "fake_libcuda.c"
DEFAULT = -(2**63)
STREAM = 0x5EA
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")
FORMATS = {"f32": "f", "f64": "d", "s8": "b", "u8": "B", "s32": "i", "s64": "q"}


def cuda_include() -> Path:
    """The folder of ``cuda.h``: from the development wheels, else a CUDA toolkit."""
    folders = [folder for entry in sys.path for folder in Path(entry or ".").glob("nvidia/*/include")]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        folders += [Path(os.environ[variable]) / "include"] if variable in os.environ else []
    if (nvcc := shutil.which("nvcc")) is not None:
        folders += [Path(nvcc).resolve().parent.parent / "include"]
    folders += sorted(Path("/usr/local").glob("cuda*/include"))
    for folder in folders:
        if (folder / "cuda.h").is_file():
            return folder
    raise AssertionError("cuda.h was not found; pip install nvidia-cuda-runtime")


def driver_library() -> str:
    """The path of this machine's CUDA driver."""
    ctypes.CDLL("libcuda.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "/libcuda.so" in line)


def compiler(name: str) -> str:
    """The path of a C or C++ compiler; skips the test if this machine has none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"this machine has no {name}")
    return found


def build(command: Sequence[str | Path]) -> None:
    """Runs a compiler; its messages are the failure."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}"


def build_fake_driver(folder: Path) -> Path:
    """The driver that only takes notes, as a shared library in ``folder``."""
    library = folder / "libcuda.so"
    build([compiler("gcc"), "-shared", "-fPIC", "-isystem", cuda_include(), FAKE_SOURCE, "-o", library])
    return library


def dummy_bundle(plan: KernelPlan, architectures: Sequence[str] = ("sm_90", "sm_80")) -> Bundle:
    """An instance with a few bytes in the place of each cubin, and of PTX."""
    images = [Image("cubin", ARCHITECTURES[name], f"cubin {name}".ljust(20).encode()) for name in architectures]
    images.append(Image("ptx", ARCHITECTURES[architectures[0]], f"ptx {architectures[0]}".ljust(20).encode()))
    return Bundle(plan, tuple(images), (13, 0))


class Event(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_char * 16),
        ("entry", ctypes.c_char * 256),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("programmatic", ctypes.c_int),
        ("stream", ctypes.c_ulonglong),
        ("address", ctypes.c_ulonglong),
        ("bytes", ctypes.c_ulonglong),
        ("argument_bytes", ctypes.c_int),
        ("arguments", ctypes.c_ubyte * 4096),
    )


@dataclass(frozen=True)
class Memset:
    address: int
    bytes: int


@dataclass(frozen=True)
class Launched:
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    programmatic: bool
    arguments: bytes


@dataclass(frozen=True)
class Result:
    """Outcome of a launch: the work in order, or that it was refused."""

    refused: bool
    work: tuple[Memset | Launched, ...] = ()
    workspace_bytes: int = 0
    dimensions: tuple[int, ...] = ()


WRAPPER = """
int test_{p}(const int64_t *dimensions, void **pointers, const double *scalars, void *workspace, uint64_t stream, int again,
    const char **why, uint64_t *workspace_bytes, int64_t *completed);
int test_{p}(const int64_t *dimensions, void **pointers, const double *scalars, void *workspace, uint64_t stream, int again,
    const char **why, uint64_t *workspace_bytes, int64_t *completed)
{{
    static {p}_t kernel;
    {p}_problem_t problem = {p}_problem({required});
    CUresult result = kernel.module != NULL ? CUDA_SUCCESS : {p}_load(&kernel);
    if (result != CUDA_SUCCESS) return (int)result;
    {fields}
    (void)pointers, (void)scalars, (void)workspace, (void)again;
    *workspace_bytes = {p}_workspace_bytes(&problem);
    *why = {p}_why({why});
    result = {launch};
    {complete}
    return (int)result;
}}
"""


class CHost:
    """The headers of several instances, compiled into one library on some driver."""

    def __init__(self, bundles: Sequence[Bundle], folder: Path, driver: str | Path, language: str = "c") -> None:
        self.plans = {f"k{index}": bundle.plan for index, bundle in enumerate(bundles)}
        include = ("-isystem", cuda_include())
        parts = []
        for (prefix, plan), bundle in zip(self.plans.items(), bundles, strict=True):
            (folder / f"{prefix}.h").write_text(render_header(bundle, prefix))
            parts += [f'#include "{prefix}.h"', self._wrapper(prefix, plan)]
        source = folder / f"host.{'c' if language == 'c' else 'cpp'}"
        source.write_text("\n".join(['extern "C" {' if language != "c" else "", *parts, "}" if language != "c" else ""]))
        library = folder / "libhost.so"
        standard = ["gcc", "-std=c99"] if language == "c" else ["g++", "-std=c++11"]
        build(
            [
                compiler(standard[0]),
                standard[1],
                *WARNINGS,
                "-shared",
                "-fPIC",
                "-fsanitize=undefined",
                "-fno-sanitize-recover=all",
                *include,
                f"-I{folder}",
                source,
                "-o",
                library,
                driver,
            ]
        )
        self.library = ctypes.CDLL(str(library))

    @staticmethod
    def _wrapper(prefix: str, plan: KernelPlan) -> str:
        header = model(dummy_bundle(plan), prefix)
        names = [dimension.name for dimension in plan.sequence.dimensions]
        pointers = [f"({pointer.declaration.removesuffix(pointer.name).strip()})pointers[{i}]" for i, pointer in enumerate(header.pointers)]
        types = {"f32": "float", "f64": "double", "s8": "int8_t", "u8": "uint8_t", "s32": "int32_t", "s64": "int64_t"}
        scalars = [f"({types[scalar.type]})scalars[{i}]" for i, scalar in enumerate(header.scalars)]
        workspace = ["workspace"] if header.workspace else []
        arguments = ", ".join(["&kernel", "(CUstream)(size_t)stream", "&problem", *pointers, *scalars, *workspace])
        launch = f"{prefix}_launch({arguments})"
        if header.zeroes:
            launch = f"again ? {prefix}_launch_again({arguments}) : {launch}"
        completed = "".join(f"completed[{i}] = problem.{header.names[name]};" for i, name in enumerate(names))
        return WRAPPER.format(
            p=prefix,
            required=", ".join(f"dimensions[{names.index(name)}]" for name in header.required),
            fields="\n    ".join(f"problem.{header.names[name]} = dimensions[{i}];" for i, name in enumerate(names)),
            why=", ".join(["&problem", *pointers, *workspace]),
            launch=launch,
            complete=f"if ({prefix}_complete(&problem) == NULL) {{ {completed} }}",
        )

    def call(
        self,
        prefix: str,
        dimensions: Mapping[str, int],
        pointers: Sequence[int],
        scalars: Sequence[float],
        workspace: int,
        stream: int,
        again: bool = False,
    ) -> tuple[int, str | None, int, tuple[int, ...]]:
        """Launches an instance. Returns the CUresult, the reason if it was refused, the size of the workspace, the problem."""
        values = [dimensions.get(d.name, DEFAULT) for d in self.plans[prefix].sequence.dimensions]
        why, workspace_bytes = ctypes.c_char_p(), ctypes.c_uint64()
        completed = (ctypes.c_int64 * len(values))()
        code = getattr(self.library, f"test_{prefix}")(
            (ctypes.c_int64 * len(values))(*values),
            (ctypes.c_void_p * max(len(pointers), 1))(*pointers),
            (ctypes.c_double * max(len(scalars), 1))(*scalars),
            ctypes.c_void_p(workspace),
            ctypes.c_uint64(stream),
            int(again),
            ctypes.byref(why),
            ctypes.byref(workspace_bytes),
            completed,
        )
        return code, None if why.value is None else why.value.decode(), workspace_bytes.value, tuple(completed)


class NotingHost(CHost):
    """Headers on the driver that only takes notes."""

    def __init__(self, plans: Sequence[KernelPlan], folder: Path, language: str = "c") -> None:
        fake = build_fake_driver(folder)
        super().__init__([dummy_bundle(plan) for plan in plans], folder, fake, language)
        self.driver = ctypes.CDLL(str(fake))
        self.events = (Event * 64).in_dll(self.driver, "fake_events")
        self.event_count = ctypes.c_int.in_dll(self.driver, "fake_event_count")
        assert self.driver.fake_event_size() == ctypes.sizeof(Event)
        for plan in self.plans.values():
            for index, launch in enumerate(plan.sequence.launches):
                sizes = [_parameter_bytes(argument) for argument in plan.sequence.parameters_of(index)]
                self.driver.fake_add_entry(launch.entry.encode(), len(sizes), (ctypes.c_int * len(sizes))(*sizes))

    def launch(
        self,
        prefix: str,
        dimensions: Mapping[str, int],
        pointers: Sequence[int],
        scalars: Sequence[float],
        workspace: int,
        again: bool = False,
    ) -> tuple[Result, str | None]:
        """Outcome of the header for one problem, and its reason if it refuses."""
        self.event_count.value = 0
        code, reason, workspace_bytes, completed = self.call(prefix, dimensions, pointers, scalars, workspace, STREAM, again)
        assert code in (0, 1), code
        assert (code == 1) == (reason is not None)
        events = [event for event in self.events[: self.event_count.value] if event.kind in (b"launch", b"memset")]
        if reason is not None:
            assert not events
            return Result(True), reason
        assert all(event.stream == STREAM for event in events)
        return Result(False, tuple(_work(event) for event in events), workspace_bytes, completed), None


def _work(event: Event) -> Memset | Launched:
    if event.kind == b"memset":
        return Memset(event.address, event.bytes)
    return Launched(
        event.entry.decode(),
        tuple(event.grid),
        tuple(event.block),
        tuple(event.cluster),
        event.shared_bytes,
        bool(event.programmatic),
        bytes(event.arguments[: event.argument_bytes]),
    )


def _parameter_bytes(argument: Any) -> int:
    if isinstance(argument, HostArgument):
        return argument.size_bytes
    if isinstance(argument, TensorMapArgument):
        return MAP_BYTES
    return 8 if isinstance(argument, ArrayArgument) else ELEMENTS[argument.type].bytes


def expected(
    sequence: LaunchSequence,
    given: Mapping[str, int],
    pointers: Sequence[int],
    scalars: Sequence[float],
    workspace: int,
    again: bool = False,
) -> Result:
    """Gemmgen's own outcome for that problem."""
    problems: list[str] = []
    dimensions = bind_dimensions(sequence, {}, given, problems)
    arrays = [argument for argument in sequence.arrays if argument.role != "workspace"]
    if problems:
        return Result(True)
    try:
        launches = sequence.resolve(dimensions)
    except (GemmgenError, FormulaError):
        return Result(True)
    for argument, pointer in zip(arrays, pointers, strict=True):
        shape = tuple(extent.evaluate(dimensions) for extent in argument.shape)
        strides = tuple(stride.evaluate(dimensions) for stride in argument.strides)
        view: Any = SimpleNamespace(shape=shape, strides=strides, is_empty=0 in shape)
        if 0 not in shape and (pointer == 0 or pointer % argument.alignment):
            return Result(True)
        if argument.writes and overlaps_itself(view):
            return Result(True)
    workspaces = [argument for argument in sequence.arrays if argument.role == "workspace"]
    workspace_bytes = sequence.workspace_bytes.evaluate(dimensions) if workspaces and launches else 0
    if workspace_bytes and (workspace == 0 or any(workspace % argument.alignment for argument in workspaces)):
        return Result(True)
    values: dict[str, float] = {**dimensions, **{s.name: value for s, value in zip(sequence.scalars, scalars, strict=True)}}
    values |= {argument.name: pointer for argument, pointer in zip(arrays, pointers, strict=True)}
    values |= {argument.name: workspace for argument in workspaces}
    work: list[Memset | Launched] = []
    zero_bytes = sequence.workspace_zero_bytes.evaluate(dimensions) if workspace_bytes else 0
    if zero_bytes and not again:
        work.append(Memset(workspace, zero_bytes))
    for launch in launches:
        structs = dict(launch.structs)
        structs |= {each.name: encoded_map(each, int(values[each.array])) for each in launch.tensor_maps}
        packed = b"".join(_pack(kind, structs.get(name, values.get(name))) for name, kind in launch.parameters)
        work.append(Launched(launch.entry, launch.grid, launch.block, launch.cluster, launch.shared_bytes, launch.programmatic, packed))
    return Result(False, tuple(work), workspace_bytes, tuple(dimensions[d.name] for d in sequence.dimensions))


def _pack(kind: str, value: Any) -> bytes:
    if kind in ("struct", "tensor_map"):
        return bytes(value)
    if kind == "pointer":
        return struct.pack("<Q", value)
    return struct.pack(f"<{FORMATS[kind]}", value if kind in ("f32", "f64") else int(value))


def encoded_map(described: ResolvedMap, pointer: int) -> bytes:
    """A tensor map as the driver that only takes notes encodes it: everything that it was given."""
    m = described.tensor_map
    if m is None or pointer == 0:
        return bytes(MAP_BYTES)
    modes = (
        abi.ELEMENT_NUMBERS[m.element],
        m.rank,
        abi.INTERLEAVE_NUMBERS[m.interleave],
        abi.SWIZZLE_NUMBERS[m.swizzle],
        abi.L2_PROMOTION_NUMBERS[m.l2_promotion],
        abi.FILL_NUMBERS[m.fill],
    )
    walk = [] if m.im2col is None else [*m.im2col.lower, *m.im2col.upper, m.im2col.channels_per_pixel, m.im2col.pixels_per_column]
    return note_map(pointer + described.offset_bytes, modes, m.extents, m.strides, list(m.box or walk), m.steps)


def note_map(
    address: int, modes: Sequence[int], extents: Sequence[int], strides: Sequence[int], walk: Sequence[int], steps: Sequence[int]
) -> bytes:
    """The arguments of an encoding in 128 bytes; element strides have four bits each."""
    packed_steps = sum(step << 4 * axis for axis, step in enumerate(steps))
    wide = [address, *extents, *[0] * (5 - len(extents)), *strides, *[0] * (4 - len(strides))]
    return struct.pack("<10Q8B8iI", *wide, *modes, 0, 0, *walk, *[0] * (8 - len(walk)), packed_steps).ljust(MAP_BYTES, b"\0")
