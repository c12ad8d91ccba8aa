"""Every choice between words that a GEMM on tensor cores has stands in a shipped spec, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop, WgmmaMainloop
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import load_spec

MAINLOOPS: dict[str, type[BaseModel]] = {"wgmma": WgmmaMainloop, "mma_sync": MmaSyncMainloop}
SAMPLES = {"wgmma": "gemm/wgmma/tour/f16_64x64", "mma_sync": "gemm/mma_sync/f16/64x64"}
"""A spec of each strategy that takes most changes of one field."""
REFUSED = {
    "wgmma": (
        "decomposition.scheme=split_k_serial",
        "decomposition.scheme=split_k_last",
        "grouping.depth=offsets",
        "storage.a=f64",
        "storage.c=f64",
    ),
    "mma_sync": (
        "store=tma",
        "decomposition.scheme=split_k_serial",
        "decomposition.scheme=split_k_last",
        "decomposition.scheme=split_k_cluster",
    ),
}
"""Words of fields that other strategies have, too."""
WITH = {
    "decomposition.scheme=split_k_serial": ("decomposition.slices=2",),
    "decomposition.scheme=split_k_cluster": ("decomposition.slices=2",),
    "decomposition.slices=launch": ("decomposition.scheme=split_k_parallel",),
}
"""Other fields that a choice wants beside it."""
ELSEWHERE = (
    "accuracy",
    "cache",
    "arithmetic",
    "constant",
    "architecture",
    "kind",
    "strategy",
    "multiple_of",
    "alignment",
    "epilogue",
    "scales",
    "constant",
    "schema_version",
    "finish",
    "scalars",
    "places",
    "triangles",
    "depth",
)
"""Fields of which these strategies take nothing, or whose choices are tested for themselves."""


def choices(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """The words, and numbers of groups and buffers, that the fields of a model may have: ``field=word``."""
    for name, field in model.model_fields.items():
        path = before + name
        if name in ELSEWHERE or path == "mainloop":
            continue
        if field.annotation is bool:
            yield from (f"{path}={word}" for word in (True, False))
        for part in (field.annotation, *get_args(field.annotation)):
            if get_origin(part) is Literal:
                words = [word for word in get_args(part) if isinstance(word, str) or name in ("consumers", "fragment_buffers")]
                yield from (f"{path}={word}" for word in words)
            elif isinstance(part, type) and issubclass(part, BaseModel):
                yield from choices(part, f"{path}.")


@cache
def shipped(strategy: str) -> frozenset[str]:
    """The choices of all specs of a strategy."""

    def leaves(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from leaves(inner, f"{path}.{name}" if path else name)
        else:
            yield f"{path}={value}"

    specs = (load_spec(path) for name, path in shipped_specs().items() if name.startswith("gemm/"))
    loops = [spec for spec in specs if isinstance(spec, GemmSpec) and spec.mainloop.strategy == strategy]
    return frozenset(choice for spec in loops for choice in leaves(spec.model_dump(), ""))


def wanted(strategy: str) -> list[str]:
    found = [*choices(GemmSpec), *choices(MAINLOOPS[strategy], "mainloop.")]
    return [choice for choice in found if choice not in REFUSED[strategy]]


@pytest.mark.parametrize("strategy", MAINLOOPS)
def test_every_choice_stands_in_a_spec(strategy: str) -> None:
    names = [choice for choice in wanted(strategy) if not choice.startswith("storage.b")]
    assert {"transpose=tt", "storage.a=e5m2", "storage.c=s8", "batch=grouped", "amax=unscaled", "batch_invariant=True"} <= set(names)
    assert [choice for choice in names if choice not in shipped(strategy)] == []


@pytest.mark.parametrize(("strategy", "choice"), [(strategy, choice) for strategy, found in REFUSED.items() for choice in found])
def test_a_choice_that_no_spec_makes_is_refused_in_words(strategy: str, choice: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(SAMPLES[strategy], overrides=(choice, *WITH.get(choice, ())))
    field = choice.split("=", 1)[0]
    assert field in [reason.field for reason in raised.value.reasons]
