"""Kernels of the user's own for ``gemmgen prove``: their launch from options, and counterexamples run on the emulator."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gemmgen.core.elements import DataType, numpy_type, to_elements
from gemmgen.core.errors import GemmgenError
from gemmgen.core.formulas import Formula
from gemmgen.core.text import printable
from gemmgen.emulator.launch import MAX_THREADS
from gemmgen.emulator.ptx.parser import parse
from gemmgen.kernels.launch import Argument, ArrayArgument, ArrayRole, Constraint, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.sanitizer.findings import Finding, findings_of
from gemmgen.sanitizer.front_end import CompileOptions
from gemmgen.sanitizer.source import Entry, KernelCode, find_entry, read_kernel_file
from gemmgen.verification.replay import confirms

MAX_BYTES = 1 << 40
MAX_WATCHED_BYTES = 1 << 30
"""Bytes of all arrays up to which a counterexample is run, without and with a search for hazards, which notes of every element whether it
is written."""
MAX_FILLED = 1 << 20
"""Elements of an array that get values; the others are 0."""
MAX_LAUNCH_THREADS = 1 << 20
MAX_BYTES_A_SECOND = 400_000
"""Bytes of PTX for each second of a proof; they are read in less than half of it, twice."""
_ARRAY = re.compile(r"(\w+)\s*=\s*(in|out|inout)\s+(\w+)\s*\[([^\[\]:]+)(?::([^\[\]:]+))?\]\s*(?:@\s*([1-9][0-9]{0,8}))?")
_ROLES: Mapping[str, ArrayRole] = {"in": "input", "out": "output", "inout": "inout"}
_SCALAR_TYPES: Mapping[tuple[bool, int], DataType] = {(True, 4): "f32", (True, 8): "f64", (False, 4): "s32", (False, 8): "s64"}


@dataclass(frozen=True)
class ForeignKernel:
    """A kernel of a file, and the launch that was described."""

    code: KernelCode
    entry: Entry
    sequence: LaunchSequence

    def replay(self, property_: str, example: Mapping[str, Any]) -> str:
        """The fault of a property that the emulator finds on a counterexample; empty if it finds none, or if the problem is too large."""
        problem, launch = example["problem"], self.sequence.launches[0]
        x, y, _ = launch.grid_of(problem)
        index = [example["thread"].get(f"ctaid.{axis}", 0) for axis in "xyz"]
        faults = self.faults(problem, index[0] + x * (index[1] + y * index[2]), hazards=property_ not in ("memory", "progress"))
        faults = [finding for finding in faults if confirms(property_, f"{finding.title}: {finding.message}")]
        faults.sort(key=lambda finding: all(place.ptx.strip().rstrip(";") != example.get("statement", "") for place in finding.places))
        return faults[0].message if faults else ""

    def faults(self, problem: Mapping[str, int], block: int = 0, hazards: bool = True) -> list[Finding]:
        """All errors that the emulator finds on a problem, of which only one block runs if the grid is large; none if it is too large.

        Without ``hazards``, memory is taken for the pages alone that the run touches.
        """
        from gemmgen import emulator

        launch = self.sequence.launches[0]
        try:
            grid = launch.grid_of(problem)
            is_large = prod(grid) * launch.threads > MAX_LAUNCH_THREADS
            if 0 in grid or (is_large and prod(launch.cluster) > 1):
                return []
            arguments = [_value(argument, problem) for argument in self.sequence.arguments]
            if sum(each.array.nbytes for each in arguments if isinstance(each, emulator.Buffer)) > (
                MAX_WATCHED_BYTES if hazards else MAX_BYTES
            ):
                return []
            result = emulator.launch(
                self.code.ptx,
                launch.entry,
                grid=grid,
                block=launch.block,
                shared_bytes=launch.dynamic_shared_bytes.evaluate(problem),
                args=arguments,
                hazards=hazards,
                cluster=launch.cluster if prod(launch.cluster) > 1 else None,
                only=(block, block + 1) if is_large else None,
            )
        except emulator.EmulatorError as error:
            findings = findings_of(error, (), self.code.text_of)
            return [finding for finding in findings if finding.severity == "error"]
        except (GemmgenError, MemoryError, OSError):  # the system may refuse to map arrays
            return []
        return [finding for finding in findings_of(None, result.findings, self.code.text_of) if finding.severity == "error"]


def _value(argument: Argument, problem: Mapping[str, int]) -> Any:
    """A size, 1 for other numbers, or an array: its first elements hold ones if the kernel may read them, or nothing."""
    from gemmgen.emulator import Buffer
    from gemmgen.emulator.pages import zeros

    if isinstance(argument, ScalarArgument):
        return numpy_type(argument.type).type(problem.get(argument.name, 1))
    assert isinstance(argument, ArrayArgument)
    array = zeros(_length(argument, problem), numpy_type(argument.type))
    written = None
    if argument.reads:
        array[:MAX_FILLED] = to_elements(argument.type, np.ones(1))[0]
    else:
        written = zeros(array.nbytes, np.bool_)
    parts = ((0, MAX_FILLED * array.itemsize),) if len(array) > MAX_FILLED else ()
    return Buffer(array, offset_bytes=0, name=argument.name, writable=argument.writes, written=written, parts=parts)


def _length(argument: ArrayArgument, problem: Mapping[str, int]) -> int:
    """Elements from the first to the last of an array."""
    extents = [extent.evaluate(problem) for extent in argument.shape]
    if min(extents) < 1:
        return 0
    return 1 + sum((extent - 1) * stride.evaluate(problem) for extent, stride in zip(extents, argument.strides, strict=True))


def read_foreign(
    path: Path,
    *,
    entry_name: str | None,
    architecture: str | None,
    block: Sequence[int],
    grid: str,
    arrays: Sequence[str],
    expects: Sequence[str],
    shared: str,
    seconds: float,
) -> ForeignKernel:
    """Compiles a file and describes its launch. Raises ``GemmgenError`` for a text that cannot be read, or not in time."""
    code = read_kernel_file(path, CompileOptions(architecture), entry_name)
    if len(code.ptx) > seconds * MAX_BYTES_A_SECOND:
        needed = ceil(len(code.ptx) / MAX_BYTES_A_SECOND)
        raise GemmgenError(f"{path}: {len(code.ptx) / 1e6:.1f} MB of PTX need --seconds {needed} or more, got {seconds:g}")
    entry = find_entry(code, entry_name)
    described = {argument.name: argument for argument in map(_array, arrays)}
    unknown = [name for name in described if name not in entry.parameter_names]
    if unknown:
        raise GemmgenError(f"--array {unknown[0]}: {entry.name} has the parameters {', '.join(entry.parameter_names)}")
    arguments: list[Argument] = []
    for index, (name, parameter) in enumerate(zip(entry.parameter_names, entry.parameters, strict=True)):
        is_pointer = entry.parameter_types[index].rstrip().endswith("*") if index < len(entry.parameter_types) else False
        if name in described:
            arguments.append(described[name])
        elif is_pointer:
            raise GemmgenError(f"pointer parameter {name} needs an array: --array '{name}=in f32[...]', with out or inout if it is written")
        elif parameter.count > 1 or parameter.type not in ("u32", "s32", "b32", "u64", "s64", "b64", "f32", "f64"):
            raise GemmgenError(f"the parameter {name} is no pointer, integer or float: proofs of such kernels are not supported")
        else:
            arguments.append(ScalarArgument(name, _SCALAR_TYPES[parameter.type[0] == "f", parameter.size], name))
    names = [argument.name for argument in arguments if isinstance(argument, ScalarArgument) and argument.type in ("s32", "s64")]
    extents = _parts(grid)
    if not 1 <= len(extents) <= 3:
        raise GemmgenError(f"--grid {_shown(grid)}: expected one to three formulas separated by commas")
    x, y, z = (*extents, Formula("1"), Formula("1"))[:3]
    width, height, depth = (*block, 1, 1)[:3]
    if min(width, height, depth) < 1 or width * height * depth > MAX_THREADS:
        raise GemmgenError(f"--block {printable(','.join(map(str, block)), 60)}: a block has 1 to {MAX_THREADS} threads")
    launch = KernelLaunch(entry.symbol, (x, y, z), (width, height, depth), tuple(entry.parameter_names), Formula(shared))
    along, down, deep = (*parse(code.ptx).functions[entry.symbol].directives.get("reqnctapercluster", ()), 1, 1, 1)[:3]
    launch = replace(launch, cluster=(along, down, deep))
    constraints = tuple(Constraint(Formula(text), text) for text in expects)
    dimensions = tuple(Dimension(name, name) for name in names)
    sequence = LaunchSequence(entry.symbol, dimensions, tuple(arguments), (launch,), constraints)
    formulas = [x, y, z, launch.dynamic_shared_bytes, *(constraint.condition for constraint in constraints)]
    formulas += [formula for argument in described.values() for formula in (*argument.shape, *argument.strides)]
    for formula in formulas:
        for node in ast.walk(formula.tree):
            by = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("ceil_div", "round_up"):
                by = node.args[1]
            if by is not None and not Formula(ast.unparse(by)).names and Formula(ast.unparse(by)).evaluate({}) == 0:
                raise GemmgenError(f"{_shown(str(formula))} divides by zero")
        if missing := formula.names - set(names):
            raise GemmgenError(f"{formula}: {min(missing)} is no integer parameter of {entry.name}; it has {', '.join(names) or 'none'}")
    return ForeignKernel(code, entry, sequence)


def _array(text: str) -> ArrayArgument:
    """``A=in f32[m, k : lda, 1] @16``: role, type, extents, strides in elements and alignment in bytes."""
    match = _ARRAY.fullmatch(text.strip())
    if match is None or match[3] not in get_args(DataType):
        raise GemmgenError(
            f"--array {_shown(text)}: expected NAME=in|out|inout TYPE[EXTENTS : STRIDES] @ALIGNMENT, such as 'A=in f32[m, k : lda, 1]'"
        )
    from gemmgen.core.elements import ELEMENTS

    shape = _parts(match[4])
    strides = _parts(match[5]) if match[5] else [*shape[1:], Formula("1")]
    if len(strides) != len(shape) or (match[5] is None and len(shape) > 2):
        raise GemmgenError(
            f"--array {_shown(text)}: expected as many strides as extents; they may only be left out of vectors and matrices"
        )
    element = next(name for name in get_args(DataType) if name == match[3])
    alignment = int(match[6]) if match[6] else ELEMENTS[element].bytes
    return ArrayArgument(match[1], element, _ROLES[match[2]], tuple(shape), tuple(strides), alignment, match[1])


def _shown(text: str) -> str:
    return repr(printable(text, 300))


def _parts(text: str) -> list[Formula]:
    """Formulas separated by commas. Raises ``GemmgenError``."""
    try:
        tree = ast.parse(f"({text.strip()},)", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise GemmgenError(f"{_shown(text)}: expected formulas separated by commas") from None
    if not isinstance(tree, ast.Tuple) or not tree.elts:
        raise GemmgenError(f"{_shown(text)}: expected formulas separated by commas")
    try:
        return [Formula(ast.unparse(element)) for element in tree.elts]
    except RecursionError:
        raise GemmgenError(f"{printable(text, 60)!r}: this formula is nested too deeply") from None
