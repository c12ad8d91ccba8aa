"""What a kernel family provides, and the parts of specs, plans and cases that every family shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from gemmgen.hardware.target import Architecture
from gemmgen.kernels.launch import LaunchSequence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.pictures import Picture
    from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request
    from gemmgen.kernels.work import Work

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
"""A name that may become part of a C identifier and of a file name."""

PlainText = Annotated[str, StringConstraints(max_length=2000)]
"""Prose for people; it never reaches generated code."""


class SpecModel(BaseModel):
    """Base of every part of a spec: immutable, and a field nobody knows is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, use_attribute_docstrings=True)


class KernelSpec(SpecModel):
    """The fields that every kind of kernel has."""

    schema_version: Literal[1] = 1
    """Version of this format."""
    kind: str
    """The kernel family."""
    label: Identifier | None = None
    """Replaces the family's prefix in the instance's name: lower-case letters, digits and underscores."""
    description: PlainText = ""
    """What the instance is for, in words. It does not change the kernel or its name."""
    architecture: Literal["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100"] = "sm_75"
    """Oldest architecture that the kernel is written for; it compiles for this one and newer."""

    def identity(self) -> dict[str, Any]:
        """The spec without its prose, every default written out: what decides the kernel and its name."""
        return self.model_dump(mode="json", exclude={"description"})


@dataclass(frozen=True)
class SharedRegion:
    """One array in shared memory."""

    name: str
    type: str
    shape: tuple[int, ...]
    """Extents in elements, slowest first, padding included."""
    offset: int
    """Byte offset from the start of the block's shared memory."""
    bytes: int
    meaning: str


@dataclass(frozen=True)
class InstancePlan:
    """What every plan has, whatever it is compiled for."""

    name: str
    """The instance's name and the stem of its files: prefix, readable parameters, short digest of the whole spec."""
    spec_digest: str
    """SHA-256 of the spec's identity, in hex."""
    architecture: Any
    """What it is planned for: an ``Architecture`` of GPUs, or one of processors."""
    sequence: LaunchSequence
    spec: Any
    """The spec, of the family's own type."""
    template: str
    """Path of the template below ``templates/``."""


@dataclass(frozen=True)
class KernelPlan(InstancePlan):
    """All derived numbers of one spec on one architecture of GPUs. Families add theirs."""

    architecture: Architecture
    shared_memory: tuple[SharedRegion, ...]
    dynamic_shared_bytes: int
    """Shared memory that the launch has to ask for; 0 if all of it is declared statically."""

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that one block uses, static or dynamic."""
        return max((region.offset + region.bytes for region in self.shared_memory), default=0)


@dataclass(frozen=True)
class Case:
    """One problem that an instance is checked on."""

    name: str
    dimensions: Mapping[str, int]
    """A value for every dimension of the launch sequence."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Values for scalars such as alpha."""
    data: Literal["integers", "reals", "nonfinite", "extremes"] = "integers"
    """Small integers, compared for equality; reals over several magnitudes, compared under a bound; integers with NaN and
    infinities strewn in, compared for equality, NaN with NaN; the whole range of an integer type, its ends included."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Elements by which an array starts past a 256-byte boundary."""
    seed: int = 0


@dataclass(frozen=True)
class Expected:
    """What an output must be: ``value`` exactly, or within ``bound`` of it, element by element."""

    value: npt.NDArray[Any]
    """Float64; or integers, which are then compared as such, so that those beyond 2**53 stay exact."""
    bound: npt.NDArray[np.float64] | None = None
    """Infinite where nothing is known, since it is open whether a step before overflowed."""
    signed_zeros: bool = False
    """Whether +0 and -0 count as different."""


@dataclass(frozen=True)
class Cost:
    """What a problem needs at least: arithmetic operations, and bytes if each array crosses the memory bus once."""

    operations: float
    bytes: float
    unit: str
    """Which peak of a device the operations run at: the name of a rate field of ``Device``."""

    @property
    def intensity(self) -> float:
        """Operations per byte; infinite where nothing has to be moved."""
        return self.operations / self.bytes if self.bytes else float("inf")


@dataclass(frozen=True)
class Section:
    """A titled piece of an explanation; each line is a (label, text) pair."""

    title: str
    lines: tuple[tuple[str, str], ...]


class Family(ABC):
    """A kernel family: how its specs become plans, what its kernels must compute, and what that costs."""

    kind: ClassVar[str]
    """The value of ``kind`` in a spec, and the name of the family's folders."""
    spec: ClassVar[type[KernelSpec]]
    size_names: ClassVar[tuple[str, ...]]
    """The dimensions that ``--size`` sets, in order; the others follow from them."""
    typical_sizes: ClassVar[tuple[int, ...]]
    """Values for ``size_names`` with which an instance is explained where the user gives none."""
    operator: ClassVar[str]
    """The function of ``gemmgen.ops`` that its instances serve."""

    @abstractmethod
    def plan(self, spec: Any, architecture: Architecture) -> KernelPlan:
        """Every number of the kernel; raises ``PlanError`` with all reasons if the spec cannot work there."""

    @abstractmethod
    def problem(self, plan: Any, sizes: Sequence[int]) -> dict[str, int]:
        """All dimensions of a packed problem of ``sizes`` (in the order of ``instance_sizes``)."""

    def instance_sizes(self, plan: Any) -> dict[str, int]:
        """The dimensions that ``--size`` sets for one instance, in order, each with a typical value; the family's own, unless
        not all of its instances have the same."""
        return dict(zip(self.size_names, self.typical_sizes, strict=True))

    @abstractmethod
    def cases(self, plan: Any) -> list[Case]:
        """The problems that a verification runs, small enough for the emulator."""

    def counted_case(self, plan: Any) -> Case:
        """The problem whose memory traffic and instructions stand for the instance; unless a family knows better, the case
        with most operations."""

        def size(case: Case) -> tuple[float, float]:
            cost = self.cost(plan, case.dimensions)
            return cost.operations, cost.bytes

        return max(self.cases(plan), key=size)

    @abstractmethod
    def fill(self, plan: Any, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Values for the array argument ``name`` before the launch, as float64 or integers of ``shape``."""

    @abstractmethod
    def reference(self, plan: Any, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
        """What each written array must hold afterwards, from the arrays as they are before the launch."""

    @abstractmethod
    def cost(self, plan: Any, problem: Mapping[str, int]) -> Cost:
        """Least operations and bytes of one problem."""

    def executed_operations(self, plan: Any, problem: Mapping[str, int]) -> float:
        """The operations of ``cost`` with those on padding, where tiles that reach beyond the problem are computed whole."""
        return self.cost(plan, problem).operations

    @abstractmethod
    def summary(self, plan: Any) -> list[str]:
        """What the kernel computes, in a few lines for the top of its source."""

    @abstractmethod
    def explain(self, plan: Any) -> list[Section]:
        """The plan in words."""

    @abstractmethod
    def pictures(self, plan: Any) -> list[Picture]:
        """What there is to draw of the plan, as plain data: at least its tiles."""

    def peer(self, plan: Any, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[str, Any] | None:
        """A vendor library's name and a callable that does the same work on torch tensors; None if there is none."""
        return None

    @abstractmethod
    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
        """The request that a call of the family's operator makes, and what it returns; raises ``LaunchError``."""

    @abstractmethod
    def parse_request(self, sizes: Sequence[int], options: Sequence[str]) -> Request:
        """A request for packed arrays, from values for ``size_names`` and words such as ``nt``; raises ``SpecError``."""

    @abstractmethod
    def fit(self, spec: Any, request: Any) -> Fit | str:
        """How an instance, its spec changed where the request needs it, does what is requested; or why it cannot."""

    @abstractmethod
    def problem_grid(self, fine: bool) -> list[str]:
        """Problems that instances are timed on to know which is best where, as ``parse_request`` reads them, most useful first."""

    @abstractmethod
    def work(self, plan: Any, problem: Mapping[str, int]) -> tuple[Work, ...]:
        """What the launches of one problem make a device do."""

    def operand_orders(self, plan: Any) -> Mapping[str, str]:
        """For operands that an instance reads in an order of its own, that order, as functions of ``gemmgen.layouts`` know it."""
        return {}
