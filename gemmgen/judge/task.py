"""A task: a candidate's launch on any shape, and its arrays."""

from __future__ import annotations

import re
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gemmgen.core.errors import GemmgenError, SpecError
from gemmgen.core.files import read_plain_text
from gemmgen.core.formulas import Formula, round_up
from gemmgen.core.text import printable
from gemmgen.core.yaml_text import YamlTextError, parse

Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,63}$")]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Size = int | Text
"""An integer, or a formula over the sizes of a problem."""
ElementType = Literal["f32", "f16", "bf16", "e4m3", "e5m2", "s32", "s8", "u8"]
MAX_ELEMENTS = 1 << 20
"""Elements of one array in a run."""
MAX_THREADS = 1 << 24
"""Threads of one run."""
WIDE = 66_001
"""A size beyond the numbers of 16 bits, tried where each thread has a few elements."""
FAR = 1037
"""A size larger than the room that a kernel for small problems may have."""
DEEP, BESIDE = 4099, 9
"""A size that threads loop over, and the others beside it."""
POWER = 1024
SQUARE = 64
"""Powers of two, as sizes that benchmarks have: alone, and of all extents."""
PAIRED = 257
"""Two sizes whose product is larger than 16 bits can count."""
MAX_SIZES = 16
"""Sizes of a problem; shapes are drawn around the tile in each of them."""


class Argument(BaseModel):
    """A parameter of the kernel: an array, or an integer of the problem where it has no shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    type: ElementType = "f32"
    shape: tuple[Size, ...] | None = None
    role: Literal["input", "output"] = "input"
    value: Size | None = None
    """The integer, as a formula; by default the size of the argument's name."""


class Task(BaseModel):
    """The launch of a candidate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entry: Name | None = None
    """The kernel; by default the only one."""
    grid: Annotated[tuple[Size, ...], Field(max_length=3)] = ()
    block: Annotated[tuple[Size, ...], Field(max_length=3)] = ()
    shared_bytes: Size = 0
    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=64)] | None = None
    """Words of a program's command line: ``{m}`` stands for a size, ``{A}`` for the file of an array."""
    function: Name | None = None
    """The C++ function of a torch extension, which takes the arguments in their order."""
    returns: Annotated[tuple[Name, ...], Field(max_length=16)] = ()
    """Outputs that the extension's function returns; it is passed the others."""
    constants: dict[Name, int | float | bool | str] = {}
    """Values of the ``tl.constexpr`` parameters of a Triton kernel."""
    warps: Annotated[int, Field(ge=1, le=32)] = 4
    """Warps of a block of a Triton kernel."""
    arguments: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=64)]
    tile: dict[Name, Annotated[int, Field(ge=1, le=4096)]] = {}
    """Sizes of the candidate's tile, around which shapes are drawn."""
    multiples: dict[Name, Annotated[int, Field(ge=1, le=4096)]] = {}
    """Numbers that sizes are promised to be multiples of."""
    architecture: Text = "sm_80"
    special_values: Literal["propagate", "ignore"] = "propagate"
    """``propagate``: NaN and infinities come out where the reference has them; ``ignore``: inputs never hold any."""
    order: Literal["fixed", "any"] = "fixed"
    """``fixed``: the same bits under every order of warps; ``any``: within the error bound, for sums by atomics."""

    @model_validator(mode="after")
    def _names_differ(self) -> Task:
        names = [argument.name for argument in self.arguments]
        if len(set(names)) < len(names):
            raise ValueError("two arguments have one name")
        outputs = {argument.name for argument in self.arguments if argument.role == "output"}
        if unknown := set(self.returns) - outputs:
            raise ValueError(f"returns: {sorted(unknown)[0]} is no output among the arguments")
        if self.command is not None and self.function is not None:
            raise ValueError("command is for a program, function for a torch extension; need one of them")
        if self.command is None and self.function is None and not self.grid:
            raise ValueError("a kernel needs a grid; command is for a program, function for a torch extension")
        return self

    @property
    def names(self) -> frozenset[str]:
        """Sizes that the task mentions."""
        sizes = [*self.grid, *self.block, self.shared_bytes, *(extent for argument in self.arrays for extent in argument.shape or ())]
        sizes += [each.name if each.value is None else each.value for each in self.arguments if each.shape is None]
        words = {name for word in self.command or () for name in re.findall(r"\{(\w+)\}", word)} - {each.name for each in self.arrays}
        return frozenset(words).union(*(Formula(size).names for size in sizes if isinstance(size, str)))

    @property
    def arrays(self) -> tuple[Argument, ...]:
        """Arguments with a shape."""
        return tuple(argument for argument in self.arguments if argument.shape is not None)


def evaluate(size: Size, sizes: dict[str, int]) -> int:
    """The value of a formula over the sizes of a problem. Raises ``GemmgenError``."""
    return size if isinstance(size, int) else Formula(size).evaluate(sizes)


def read_task(path: Path) -> Task:
    """The task in a YAML file. Raises ``SpecError``."""
    try:
        fields = parse(read_plain_text(path))
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not text; a task is a file of YAML") from None
    except (OSError, YamlTextError) as error:
        raise SpecError(f"{path}: {error}") from None
    try:
        return Task.model_validate(fields)
    except ValidationError as error:
        if not isinstance(fields, dict):
            raise SpecError(f"{path}: expected fields such as grid, block and arguments") from None
        mistakes = "; ".join(": ".join(filter(None, (".".join(map(str, e["loc"])), e["msg"]))) for e in error.errors()[:5])
        raise SpecError(f"{path}: {mistakes}") from None


def parse_shapes(texts: tuple[str, ...]) -> list[dict[str, int]]:
    """Shapes written ``m=64,n=48,k=32``. Raises ``SpecError``."""
    shapes = []
    for text in texts:
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not equals or not name.strip().isidentifier() or not value.strip().isdecimal() or not value.isascii() or len(value) > 7:
                raise SpecError(f"--shapes {printable(text, 60)!r}: expected sizes such as m=64,n=48,k=32")
            if name.strip() in sizes:
                raise SpecError(f"--shapes {printable(text, 60)!r}: {name.strip()} has two values")
            sizes[name.strip()] = int(value)
        if len(sizes) > MAX_SIZES:
            raise SpecError(f"--shapes {printable(text, 60)!r}: has {len(sizes)} sizes, need at most {MAX_SIZES}")
        shapes.append(sizes)
    return shapes


def grid_of_shapes(task: Task, given: list[dict[str, int]]) -> list[dict[str, int]]:
    """The given shapes, and shapes that are derived from them and from the tile.

    One size at a time is 1, and around the tile one below, one above and a prime number, and then all sizes at once, so that the last tile
    is cut on every side. Then one size at a time exceeds the given ones, and is far larger or a large power of two with small other sizes.
    A size that threads loop over is four thousand, and a thousand beside each of the others. Finally all sizes are one power of two, one is
    larger than 16 bits can count while the others are 1, or the product of two is, and all are 1.

    Raises ``GemmgenError`` if a given shape is too large to run. Derived shapes that are too large are left out.
    """
    for shape in given:
        if unknown := (shape.keys() | task.tile.keys() | task.multiples.keys()) - task.names:
            raise SpecError(f"{printable(min(unknown), 60)} is no size of the task; it has {', '.join(sorted(task.names))}")
        if reason := _breaks_promise(task, shape) or _too_large(task, shape):
            raise SpecError(f"{', '.join(f'{name}={value}' for name, value in shape.items())}: {reason}")
    shapes: list[dict[str, int]] = [dict(shape) for shape in given]
    base = given[0]
    for name in base:
        tile = task.tile.get(name, 16)
        beyond = max(shape.get(name, 1) for shape in given) + tile + 1
        for value in (1, tile - 1, tile + 1, 2 * tile + 3, beyond):
            shapes.append({**base, name: max(1, value)})
    tiles = {name: task.tile.get(name, 16) for name in base}
    shapes += [{name: max(1, times * tile + more) for name, tile in tiles.items()} for times, more in ((1, -1), (1, 1), (2, 3))]
    small = {name: min(base[name], tile + 1) for name, tile in tiles.items()}
    shapes.append(dict.fromkeys(base, SQUARE if max(tiles.values(), default=1) <= SQUARE // 2 else 2 * SQUARE))
    shapes += [
        {**small, name: value} for name in base for value in (max(FAR, 2 * base[name] + 1), max(POWER, 1 << base[name].bit_length()))
    ]
    shapes += [{**dict.fromkeys(base, 1), name: WIDE} for name in base if _in_parallel(task, name)]
    serial = [name for name in base if _in_series(task, name)]
    shapes += [{**dict.fromkeys(base, BESIDE), name: DEEP} for name in serial]
    shapes += [{**dict.fromkeys(base, 2), name: FAR, other: SQUARE - 1} for name in serial for other in base if other != name]
    shapes += [{**dict.fromkeys(base, 1), one: PAIRED, other: PAIRED} for one, other in combinations(base, 2)]
    shapes.append(dict.fromkeys(base, 1))
    shapes = [{name: round_up(value, task.multiples.get(name, 1)) for name, value in shape.items()} for shape in shapes]
    unique = {tuple(sorted(shape.items())): shape for shape in shapes}
    return [shape for shape in unique.values() if fits(task, shape)]


def _in_parallel(task: Task, name: str) -> bool:
    """True if the number of threads grows with a size, but not by more than a warp's threads for two."""
    try:
        small, wide = (prod(max(1, evaluate(x, s)) for x in (*task.grid, *task.block)) for s in _alone(task, name))
    except GemmgenError:
        return False
    return small < wide <= 2 * WIDE


def _in_series(task: Task, name: str) -> bool:
    """True if the number of threads does not depend on a size."""
    try:
        small, wide = (prod(max(1, evaluate(x, s)) for x in (*task.grid, *task.block)) for s in _alone(task, name))
    except GemmgenError:
        return False
    return small == wide


def _alone(task: Task, name: str) -> list[dict[str, int]]:
    """Problems in which all sizes are 1, and in which one is large."""
    names = {name} | {part for extent in (*task.grid, *task.block) if not isinstance(extent, int) for part in Formula(extent).names}
    ones = dict.fromkeys(names, 1)
    return [ones, {**ones, name: WIDE}]


def _breaks_promise(task: Task, sizes: dict[str, int]) -> str:
    """The size that is not a multiple as the task promises; empty if there is none."""
    broken = [name for name, value in sizes.items() if value % task.multiples.get(name, 1)]
    return f"{broken[0]} is promised to be a multiple of {task.multiples[broken[0]]}" if broken else ""


def fits(task: Task, sizes: dict[str, int]) -> bool:
    """True if a problem keeps the task's promises and is small enough to run."""
    try:
        return not _breaks_promise(task, sizes) and not _too_large(task, sizes)
    except GemmgenError:
        return False


def _too_large(task: Task, sizes: dict[str, int]) -> str:
    """The reason why a problem cannot run; empty if there is none. Raises ``GemmgenError`` for a formula without a value."""
    for argument in task.arrays:
        extents = [evaluate(extent, sizes) for extent in argument.shape or ()]
        if min(extents, default=0) < 0:
            return f"{argument.name} has a negative extent"
        if prod(extents) > MAX_ELEMENTS:
            return f"{argument.name} has {prod(extents):,} elements, need at most {MAX_ELEMENTS:,}"
    extents = [evaluate(size, sizes) for size in (*task.grid, *task.block)]
    if min(extents, default=0) < 0:
        return f"the launch has a negative extent, {min(extents)}"
    threads = prod(max(1, extent) for extent in extents)
    return f"a launch has {threads:,} threads, need at most {MAX_THREADS:,}" if threads > MAX_THREADS else ""
