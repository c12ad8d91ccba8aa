"""Specs that leave the kernel to the choice: ``mainloop: auto`` with the problem that it is chosen for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels import PROCESSOR
from gemmgen.kernels.family import KernelSpec, SpecModel
from gemmgen.kernels.spec_files import load_spec, spec_fields, validated
from gemmgen.kernels.variants import split_variant
from gemmgen.kernels.yaml_files import read_text

if TYPE_CHECKING:
    from gemmgen.dispatch.chosen import ChosenKernel


class AutoSpec(SpecModel):
    """A problem, its device, and fields of the kernel that are set whatever is chosen."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(max_length=40)
    """The kind of the problem."""
    mainloop: Literal["auto"]
    problem: str = Field(max_length=4096)
    """Sizes and words, as behind the colon of ``--problem``: ``4096,11008,4096,nt,bf16,silu``."""
    device: str = Field("H200", max_length=400)
    """The device that the kernel is chosen for: not that of the machine that reads the spec, so that it means the same everywhere."""


def is_auto(fields: Mapping[str, object]) -> bool:
    """True if a spec leaves its kernel to the choice."""
    return fields.get("mainloop") == "auto"


def chosen_spec(fields: Mapping[str, object], name: str, text: bytes | None = None) -> tuple[KernelSpec, ChosenKernel]:
    """The spec of the kernel that is chosen for the problem, with the other fields set as ``fields`` has them.

    ``name`` begins messages; ``text`` is the YAML that the fields are from. Raises ``SpecError`` and ``LaunchError``.
    """
    # Specs that name their kernel, as most do, need neither the instances to choose from nor a model of time.
    from gemmgen.dispatch.chosen import choose_kernel
    from gemmgen.dispatch.problems import read_problem

    if fields.get("kind") == PROCESSOR:
        raise SpecError(f"{name}: kind: a spec for a processor has no mainloop to leave open; gemmgen render --problem cpu:... chooses one")
    asked: AutoSpec = validated(AutoSpec, fields, name, "not a valid spec with mainloop: auto", text)
    try:
        problem = read_problem(f"{asked.kind}:{asked.problem}")
        device = find_device(asked.device)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None
    chosen = choose_kernel(problem, device)
    more = asked.model_extra or {}
    if not more:
        return chosen.plan.spec, chosen
    return load_spec({**chosen.plan.spec.model_dump(mode="json"), **more}), chosen


def auto_spec_in(source: Path | Mapping[str, Any]) -> tuple[KernelSpec, ChosenKernel] | None:
    """The chosen spec of a file or of fields that leave the kernel to the choice; None if they name a kernel themselves."""
    if isinstance(source, Mapping):
        return chosen_spec(source, "spec") if is_auto(source) else None
    fields = spec_fields(source)
    return chosen_spec(fields, str(source), read_text(split_variant(source)[0])) if is_auto(fields) else None
