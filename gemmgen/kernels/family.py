"""Contents of a kernel family, and the parts of specs, plans and cases that every family shares."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints, WithJsonSchema
from typing_extensions import TypeVar

from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.field_docstrings import field_docstrings
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.baking import baked
from gemmgen.kernels.launch import LaunchSequence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

    from gemmgen.emulator.comparators import Order
    from gemmgen.hardware.cpu import CpuArchitecture

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
"""A name that may become part of a C identifier and of a file name."""

PlainText = Annotated[str, StringConstraints(max_length=2000)]
"""Prose for people; it never reaches generated code."""


class SpecModel(BaseModel):
    """Base of every part of a spec: immutable; a field nobody knows is an error, and so is a value of another type than the field's:
    YAML has its own types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema, with the docstring of each field as its description."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, words in field_docstrings(cls).items():
            if name in properties:
                properties[name].setdefault("description", words)
        return schema


class Later:
    """Mark of a field that is younger than the first names: where it has its default, ``identity`` leaves it out."""


LATER = Later()


def _without_later(model: BaseModel, fields: dict[str, Any]) -> None:
    """Removes from the dump of ``model`` the fields marked ``LATER`` that have their defaults, in its parts too."""
    later = _later_defaults(type(model))
    for name, value in model:
        if name in later and value == later[name]:
            fields.pop(name, None)
        elif isinstance(value, BaseModel):
            _without_later(value, fields[name])


@cache
def _later_defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Defaults of the fields marked ``LATER``: a class's are copied each time that it is asked for them."""
    return {name: info.get_default(call_default_factory=True) for name, info in model.model_fields.items() if LATER in info.metadata}


MAX_SIZES = 64


def _as_sizes(value: object) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value


Sizes = Annotated[
    tuple[tuple[Identifier, Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]], ...],
    Field(max_length=MAX_SIZES),
    BeforeValidator(_as_sizes),
    PlainSerializer(dict),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
            "maxProperties": MAX_SIZES,
            "default": {},
        }
    ),
]
"""Values of dimensions by name: a mapping in YAML, pairs in the model, so that specs can be looked up."""


class KernelSpec(SpecModel):
    """The fields that every kind of kernel has."""

    mainloop_field: ClassVar[str] = ""
    """Field in which a row of variants may leave out the first part of a path; none if empty."""

    schema_version: Literal[1] = 1
    """Version of this format."""
    kind: str
    """The kernel family."""
    label: Identifier | None = None
    """Replaces the family's prefix in the instance's name: lower-case letters, digits and underscores."""
    description: PlainText = ""
    """Purpose of the instance, in words. It does not change the kernel or its name."""
    architecture: Literal["sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"] = (
        "sm_75"
    )
    """Oldest architecture that the kernel is written for; it compiles for this one and newer."""

    sizes: Annotated[Sizes, LATER] = ()
    """Dimensions that the kernel is compiled for, ``{n: 11008, k: 4096}`` say: they become constants of its source, and problems of other
    sizes are refused. ``gemmgen explain`` lists a kernel's dimensions."""

    @classmethod
    def with_current_names(cls, fields: dict[str, object]) -> dict[str, Any]:
        """The fields of a spec, former names in them replaced by those of today."""
        return fields

    def identity(self) -> dict[str, Any]:
        """The spec without its prose, with every default but those of fields marked ``LATER``: these determine the kernel and its name."""
        fields = self.model_dump(mode="json", exclude={"description"})
        _without_later(self, fields)
        return fields


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

    @property
    def described(self) -> tuple[str, str]:
        """Name of the array, and its place and meaning in words."""
        extents = "".join(f"[{extent}]" for extent in self.shape)
        return self.name, f"bytes {self.offset} to {self.offset + self.bytes - 1}: {self.type}{extents}, {self.meaning}"


SpecT = TypeVar("SpecT", bound=KernelSpec, default=KernelSpec, covariant=True)


@dataclass(frozen=True)
class InstancePlan(Generic[SpecT]):
    """Fields that every plan has, for any target."""

    name: str
    """The instance's name and the stem of its files: prefix, readable parameters, short digest of the whole spec."""
    spec_digest: str
    """SHA-256 of the spec's identity, in hex."""
    architecture: Architecture | CpuArchitecture
    """Target of the plan: an ``Architecture`` of GPUs, or one of processors."""
    sequence: LaunchSequence
    spec: SpecT
    """The spec, of the family's own type."""
    template: str
    """Path of the template below ``templates/``."""

    @property
    def usage(self) -> list[str]:
        """Lines for people that say how the source is compiled, or how its kernels are launched."""
        return []

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """Estimates that speak against the plan. They refuse nothing: only the compiler knows."""
        return ()


@dataclass(frozen=True)
class KernelPlan(InstancePlan[SpecT]):
    """All derived numbers of one spec on one architecture of GPUs. Families add theirs."""

    architecture: Architecture
    shared_memory: tuple[SharedRegion, ...]
    dynamic_shared_bytes: int
    """Shared memory that the launch has to ask for; 0 if all of it is declared statically."""

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that one block uses, static or dynamic."""
        return max((region.offset + region.bytes for region in self.shared_memory), default=0)

    @property
    def bits_not_confirmed(self) -> tuple[str, ...]:
        """Kinds of products among its instructions whose bits neither a device nor a published model confirms."""
        return ()

    @property
    def usage(self) -> list[str]:
        lines = [
            f"Launch:  grid {', '.join(map(str, launch.grid))}; block {', '.join(map(str, launch.block))}; "
            f"dynamic shared memory {launch.dynamic_shared_bytes} bytes."
            for launch in self.sequence.launches
        ]
        if self.sequence.workspace_bytes.text != "0":
            lines.append(f"Workspace: {self.sequence.workspace_bytes} bytes of device memory.")
            if (zero := self.sequence.workspace_zero_bytes).text != "0":
                part = "All" if zero == self.sequence.workspace_bytes else f"The first {zero}"
                lines.append(f"{part} of them must be zero before the first launch; every run leaves them zero.")
        if any("select(" in line for line in lines):
            lines.append("There, select(condition, a, b) is a if the condition holds, else b.")
        return lines


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

    def generator(self, index: int) -> np.random.Generator:
        """Random numbers for the array at that place among those that the caller passes; always the same."""
        import numpy as np

        return np.random.default_rng([self.seed, index, zlib.crc32(self.name.encode())])


@dataclass(frozen=True)
class Extremum:
    """An extremum of the lines of an array X, or its place, as Y."""

    order: Order
    axes: tuple[int, ...]
    """Axes of X that are reduced; places count along them, the last one fastest."""


@dataclass(frozen=True)
class FieldPart:
    """A problem of the plain kernel that an instance is held against over a finite field."""

    sizes: Mapping[str, int]
    """Values for the sizes of the plain kernel's problem, by name."""
    chosen: Mapping[str, Any]
    """The part of each of the instance's arrays that belongs to it, as an index; the whole of those that are not named."""
    given: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Residues of its arrays that are not the instance's."""
    scalars: Mapping[str, int] = field(default_factory=dict)
    """Residues of its scalars that are not the instance's."""
    arrange: Callable[[str, npt.NDArray[Any]], npt.NDArray[Any]] | None = None
    """Arranges a result as the instance does, from the result's name and elements."""
    stored: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None
    """The elements that the instance stores, from residues of its result; None if the plain kernel stores them likewise."""
    whole: bool = False
    """True if ``sizes`` are all dimensions of its problem, not only those that ``--size`` sets."""
    results: Mapping[str, npt.NDArray[Any]] | None = None
    """Its results in float32, where the plain kernel would only copy them; they are ``stored`` as its own."""


@dataclass(frozen=True)
class Expected:
    """Expected output: ``value`` exactly, or within ``bound`` of it, element by element."""

    value: npt.NDArray[Any]
    """Float64; or integers, which are then compared as such, so that those beyond 2**53 stay exact."""
    bound: npt.NDArray[np.float64] | None = None
    """Infinite where nothing is known, since it is open whether a step before overflowed."""
    signed_zeros: bool = False
    """True if +0 and -0 count as different."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Traffic of one array between the multiprocessors and the L2 or memory, which grows with the times that tiles bring it again."""

    name: str
    bytes: float
    """Bytes of the array, each element once."""
    times: float
    """Times that an element is brought, on average."""

    @property
    def moved(self) -> float:
        """Bytes that are brought."""
        return self.bytes * self.times


@dataclass(frozen=True)
class Cost:
    """Least cost of a problem: arithmetic operations, and bytes if each array crosses the memory bus once."""

    operations: float
    bytes: float
    unit: str
    """Peak of a device that the operations run at: the name of a rate field of ``Device``."""
    special: float = 0.0
    """Special functions, at least: reciprocals, square roots, 2^x. They run beside the operations, on separate units."""

    @property
    def intensity(self) -> float:
        """Operations per byte; infinite where nothing has to be moved."""
        return self.operations / self.bytes if self.bytes else float("inf")

    @property
    def weight(self) -> tuple[float, float]:
        """Order of problems: operations, then bytes."""
        return self.operations, self.bytes


@dataclass(frozen=True)
class Costs:
    """Time of a kind of kernel over that which its counted work comes to, as far as counts do not tell: calibrated on measurements."""

    arithmetic: float = 1.0
    shared: float = 1.0
    """Factor of accesses to shared memory."""
    loads: float = 1.0
    latency: float = 1.0
    """Factor of the latency of loads that a step waits for."""
    barriers: float = 1.0
    """Factor of a step's barrier and the loop around it."""
    stores: float = 1.0
    memory: float = 1.0
    begin: float = 1.0
    """Factor of the start of a further wave on tensor cores; 0 where blocks wait for their own loads alone, so that waves overlap."""
    idle: float = 0.0
    """Latencies of memory that a block spends beside its steps, before the first and after the last."""
    pause: float = 0.0
    """Latencies of memory between one result of a block and its next."""
    draw: float = 1.0
    """SMs that draw all that the memory gives."""
    hide: float = 1.0
    """Warps of a scheduler at which it reaches half of the peak."""
    crowd: float = 0.0
    """Part of the time of loads that grows with the SMs which load at the same time: 0 if an SM's own share of the L2's rate bounds them,
    1 if the rate of all does."""


@dataclass(frozen=True)
class Work:
    """Work that one kernel on one problem makes for a device, in the few numbers that a model of its time needs.

    Blocks are alike: each walks through ``steps``, loading, computing, then stores its result.
    """

    blocks: int
    threads: int
    """Threads of a block."""
    registers: int
    """Registers of a thread, an estimate."""
    shared_bytes: int
    """Shared memory of a block, in bytes."""
    steps: float
    """Steps of a block, one after the other."""
    operations: float
    """Operations of a block in one step, those on padding included."""
    unit: str
    """Peak of the device that they run at, as in ``Cost``."""
    issue: float
    """Instructions issued for each one that counts as an operation: at least 1."""
    shared_clocks: float
    """Clock cycles in which a block's accesses keep the shared memory busy in one step."""
    loaded_bytes: float
    """Bytes that a block loads from L2 or memory in one step."""
    in_flight: float
    """Steps whose loads are in flight at the same time."""
    stored_bytes: float
    """Bytes that a block stores at the end, and reads for that."""
    memory_bytes: float
    """Bytes that have to cross the memory bus, of the whole launch: each array once."""
    turns: float = 1.0
    """Blocks that take turns at one result, one after the other."""
    follows: bool = False
    """True if the kernel reads the results of the one before it, which are still in the L2."""
    early: bool = False
    """True if it is launched while the one before it still runs."""
    results: float = 1.0
    """Results of a block, one after the other."""
    finishing_clocks: float = 0.0
    """Clock cycles in which a block's epilogue keeps an SM busy, as far as nothing hides them."""
    costs: Costs = Costs()


@dataclass(frozen=True)
class Peer:
    """A vendor's library that does the work of an instance on the same arrays."""

    name: str
    run: Callable[[], Any]
    deliver: Callable[[], Any] | None = None
    """Brings the results to where the instance's lie, if ``run`` leaves them elsewhere; not timed."""


@dataclass(frozen=True)
class Section:
    """A titled piece of an explanation; each line is a (label, text) pair."""

    title: str
    lines: tuple[tuple[str, str], ...]


def _converting(plan: Any, architecture: Any) -> Any:
    """The plan, whose conversions the architecture has. Raises ``PlanError``."""
    written = [array for array in plan.sequence.arrays if array.role != "input" and array.type in ("e4m3", "e5m2")]
    if written and isinstance(architecture, Architecture) and not architecture.supports("fp8_mma"):
        got = f"8-bit floats in {written[0].name} on {architecture.name}"
        raise PlanError(
            f"no kernel for this spec on {architecture.name}:", [Reason("storage", "storage", got, "sm_89 or newer", "architecture: sm_89")]
        )
    return plan


@dataclass(frozen=True)
class Family:
    """A kernel family: the format of its specs, how they become plans, and how its problems are written.

    Each stage of the pipeline loads the rest from the family's modules when it needs it: see ``gemmgen.kernels.family_module``.
    """

    kind: str
    """The value of ``kind`` in a spec, and the name of the family's folders."""
    spec: type[KernelSpec]
    own_plan: Callable[[Any, Any], Any]
    """Computes every number of the kernel, for any problem size; raises ``PlanError`` with all reasons if the spec cannot work."""
    size_names: tuple[str, ...]
    """The dimensions that ``--size`` sets, in order; the others follow from them."""
    typical_sizes: tuple[int, ...]
    """A value for each of them, as an example."""
    own_problem: Callable[[Any, Sequence[int]], dict[str, int]]
    """All dimensions of a packed problem of an instance, from values for its ``instance_sizes``."""
    own_sizes: Callable[[Any], dict[str, int]]
    """The dimensions that ``--size`` sets for one instance, in order, each with a typical value."""
    promising: Callable[[Any, Mapping[str, int]], Any] = lambda spec, sizes: spec
    """A spec specialised for extents that are multiples of ``sizes``, such as edges that need no checks."""

    def plan(self, spec: Any, architecture: Any) -> Any:
        """Every number of the kernel; raises ``PlanError`` with all reasons if the spec cannot work there."""
        if not spec.sizes:
            return _converting(self.own_plan(spec, architecture), architecture)
        sizes = dict(spec.sizes)
        return baked(_converting(self.own_plan(self.promising(spec, sizes), architecture), architecture), sizes)

    def problem(self, plan: Any, sizes: Sequence[int]) -> dict[str, int]:
        """All dimensions of a packed problem of an instance, from values for its ``instance_sizes``; strides as the spec has them."""
        names = self.own_sizes(plan)
        constant = {name: value for name, value in plan.spec.sizes if name not in names}
        return self.own_problem(plan, sizes) | constant

    def instance_sizes(self, plan: Any) -> dict[str, int]:
        """The dimensions that ``--size`` sets for one instance, in order, each with a typical value, or the one that it is made for."""
        constant = dict(plan.spec.sizes)
        return {name: constant.get(name, typical) for name, typical in self.own_sizes(plan).items()}
