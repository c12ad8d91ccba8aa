"""Requests for a computation, whichever instance does it, and their fit to an instance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import Device
from gemmgen.kernels.family import KernelSpec

Spec = TypeVar("Spec", bound=KernelSpec)

MAX_ALIGNMENT = 16
"""Bytes of the widest access: no alignment beyond it matters to a kernel's arrays."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of an array in memory, wherever that is."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    type: str
    """Type of the elements, as in ``launch.DataType``."""
    alignment: int = MAX_ALIGNMENT
    """Bytes, a power of two up to 16, that its address is a multiple of."""

    @classmethod
    def packed(cls, shape: tuple[int, ...], type: str, alignment: int = MAX_ALIGNMENT) -> Layout:
        """A row-major array without gaps."""
        strides, step = [], 1
        for extent in reversed(shape):
            strides.append(step)
            step *= max(extent, 1)
        return cls(shape, tuple(reversed(strides)), type, alignment)

    @property
    def element_bytes(self) -> int:
        return ELEMENTS[self.type].bytes if self.type in ELEMENTS else 1

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape


@dataclass(frozen=True)
class Request(ABC):
    """A problem, free of addresses and of instances: layouts and operations. Families add theirs."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The extents in the order of the family's ``size_names``."""

    @property
    @abstractmethod
    def traits(self) -> tuple[str, ...]:
        """Traits that decide, beside its sizes, how fast an instance is on it: layouts, types, alignment. Always the same positions."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if the result has no element, so that nothing is launched."""

    @property
    def adds(self) -> bool:
        """True if an array of the result's shape is added to it."""
        return False

    @property
    def companions(self) -> tuple[Request, ...]:
        """Requests that stand for all those that one instance has to serve alike; none if each may have its own."""
        return ()

    @property
    def unpromised(self) -> Request:
        """The request without promises of the caller that change when a kernel may start, and not which one is the fastest."""
        return self

    def on(self, device: Device) -> Request:
        """The request with the device's properties that decide how to serve it; for most requests, none."""
        return self

    @property
    def text(self) -> str:
        """The request as the family's ``parse_request`` reads it; the operations at the end, which cost next to nothing, are left out."""
        return ",".join([*map(str, self.sizes), *(trait for trait in self.traits if trait)])


@dataclass(frozen=True)
class Result:
    """An array that an operation makes where the caller gives none."""

    name: str
    shape: tuple[int, ...]
    type: str
    truth: bool = False
    """True if its bytes are truth values."""


@dataclass(frozen=True)
class NoClass:
    """Statement that an instance belongs to no class of instances that give a row the same bits."""

    reason: str


@dataclass(frozen=True)
class Fit:
    """An instance's way to serve a request."""

    spec: KernelSpec
    arrays: Mapping[str, tuple[str, Layout]]
    """For each array argument of the kernel, the request's operand that it is and how the kernel sees it."""
    scalars: Mapping[str, str] = field(default_factory=dict)
    """For each scalar argument of the kernel, the operation's number that it is."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Integers of the problem that no array shows."""
    derived: tuple[str, ...] = ()
    """Fields in which the spec differs from the instance's; empty if the instance serves as it is."""
    margin: float = 1.0
    """Estimated time of others, over this one's, from which on this one is taken."""


@dataclass(frozen=True)
class Copy:
    """Copy of an operand, made before each launch, because no instance reads the operand with the strides that it has."""

    operand: str
    shape: tuple[int, ...]
    """Shape of the copy, to which the operand is broadcast."""
    by_columns: bool = False
    """True if the copy's last two axes change places in memory; else it is row-major. There are no gaps."""


@dataclass(frozen=True)
class Interpretation:
    """The arguments of an operation, understood."""

    request: Request
    """The request, with copies in place of their operands."""
    results: tuple[Result, ...]
    """Results of the operation, in order, whether the caller gave the arrays or not."""
    copies: tuple[Copy, ...] = ()


def changed_fields(before: KernelSpec, after: KernelSpec) -> tuple[str, ...]:
    """Names of the fields in which two specs differ, their names for people aside."""
    ignored = {"label", "description"}
    return tuple(name for name in type(before).model_fields if name not in ignored and getattr(before, name) != getattr(after, name))


def widest(promise: int, values: tuple[int, ...]) -> int:
    """The largest power of two, no more than ``promise``, that all ``values`` are multiples of."""
    while promise > 1 and any(value % promise for value in values):
        promise //= 2
    return promise


def replaced(spec: Spec, changes: Mapping[str, object]) -> Spec:
    """The spec with other values, without its name and its description if that changes anything."""
    different = {name: value for name, value in changes.items() if getattr(spec, name) != value}
    return spec if not different else spec.model_copy(update={**different, "label": None, "description": ""})


def merged(extents: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Several axes as one, in their order: its extent and its stride; None if no single stride walks through them."""
    axes = [(extent, stride) for extent, stride in zip(extents, strides, strict=True) if extent != 1]
    if any(extent == 0 for extent, _ in axes):
        return 0, 0
    if not axes:
        return 1, 0
    count, step = axes[-1]
    for extent, stride in reversed(axes[:-1]):
        if stride != step * count:
            return None
        count *= extent
    return count, step


def say_once(said: dict[str, str], what: str, option: str) -> None:
    """Notes that a problem's ``option`` sets ``what``. Raises ``SpecError`` if another one has said it already."""
    if said.setdefault(what, option) != option:
        raise SpecError(f"a problem has one {what}, got {said[what]} and {option}")
