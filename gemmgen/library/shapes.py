"""The shapes of certificates and of records of evidence, by which files of strangers are checked before they are used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Each:
    """An object whose values all have one shape, under any names."""

    shape: Shape


Shape = type | bool | None | Each | Mapping[str, "Shape"] | Sequence["Shape"]
"""A type; True, False or None; an object with these fields at least, of which those with a ``?`` at the end may be missing; a list
[shape]; or a tuple of shapes, one of which fits."""

_ARGUMENTS: Shape = (
    {
        "kind": "array",
        "name": str,
        "type": str,
        "shape": [str],
        "strides": [str],
        "role": str,
        "alignment": int,
        "meaning": str,
    },
    {"kind": "host", "name": str, "struct": str, "bytes": int, "meaning": str},
    {"kind": "tensor_map", "name": str, "array": str, "element": str, "extents": [str], "meaning": str},
    {"kind": "scalar", "name": str, "type": str, "default": (float, None), "meaning": str},
)
_TRAFFIC: Shape = Each({"ideal": int, "sectors": int})
_WAVEFRONTS: Shape = Each({"conflicts": int, "wavefronts": int, "ideal": int})
_RUN: Mapping[str, Shape] = {"date": str, "device": str, "passed": bool, "failure?": (str, None)}
CERTIFICATE: Shape = {
    "architecture": str,
    "binary": Each({"registers": int, "spill_stores": int, "spill_loads": int}),
    "occupancy": Each({"shared_bytes": int, "fraction": float, "limited_by": [str]}),
    "compiler": {"name": str, "release": str, "options": [str]},
    "launch": {
        "launches": [{"grid": [str], "block": [int], "declaration": str, "dynamic_shared_bytes": str}],
        "arguments": [_ARGUMENTS],
        "constraints": [{"condition": str, "explanation": str}],
        "workspace_bytes": str,
        "workspace_zero_bytes": str,
    },
    "verification": [{**_RUN, "architecture": str, "backend": str, "cases": int, "elements": int, "worst_ratio": float}],
    "proved": ({"date": str, "proved": [str], "kernels": [[str]]}, None),
    "sanitizer": [{**_RUN, "tool": str, "cases": int}],
    "benchmarks": [
        {
            "date": str,
            "device": str,
            "median_us": float,
            "problem": Each((float, str)),
            "peer?": ({"name": str, "median_us": float, "speedup": float}, None),
        }
    ],
    "field?": ({"date": str, "claim": str, "architecture": str, "outcome": str}, None),
    "bits_not_confirmed?": [str],
    "numeric_class?": (
        {"name": (str, None), "terms": int, "reason?": str},
        None,
    ),
    "predicted": (
        {
            "case": str,
            "problem": Each((float, str)),
            "sites": [{"line": int, "source": str, "shared?": _WAVEFRONTS, "global?": _TRAFFIC}],
        },
        None,
    ),
}
"""One architecture's certificate, as far as it is shown."""

_PROPERTIES: Shape = ("memory", "races", "once", "progress", "initialised", "handover", "complete", "coverage")
PROOF: Shape = {
    "date": str,
    "by": str,
    "instance": str,
    "architecture": str,
    "code": str,
    "launch": str,
    "proved": [_PROPERTIES],
    "kernels": [[_PROPERTIES]],
    "seconds": float,
    "obstacles?": [str],
}
"""A record of evidence from the prover."""


def _run(fields: Mapping[str, Shape]) -> Shape:
    """A run that passed, or one that failed and says why."""
    return ({"passed": True, **fields}, {"passed": False, "failure": str, **fields})


_PROBLEM: Shape = Each((float, str))
_SUBJECT: Mapping[str, Shape] = dict.fromkeys(("instance", "architecture", "code", "source", "options", "date", "device"), str)
_VERIFICATION = _run({"cases": int, "elements": int, "worst_ratio": (float, None)})
EMULATED: Shape = {
    **_SUBJECT,
    "program": str,
    "cases": str,
    "compiler": str,
    "formerly?": [str],
    "verification": _VERIFICATION,
    "traffic": {
        "case": str,
        "problem": _PROBLEM,
        "scalars": Each(float),
        "instructions": Each(int),
        "sites": [{"line": int, "shared?": _WAVEFRONTS, "global?": _TRAFFIC}],
    },
}
"""A record of evidence from the emulator."""

OVER_FIELD: Shape = {
    **_SUBJECT,
    "method": int,
    "field": (
        {"claim": str, "outcome": "passed", "runs": int, "dimensions": _PROBLEM},
        {"claim": str, "outcome": ("wrong", "not claimed"), "reason": str, "runs": int, "dimensions": _PROBLEM},
    ),
}
"""A record of evidence from runs over a finite field."""

ON_GPU: Shape = {
    **_SUBJECT,
    "program": str,
    "compiler": str,
    "verification?": _VERIFICATION,
    "sanitizer?": [_run({"tool": str, "cases": int})],
    "benchmarks?": [
        {
            "problem": _PROBLEM,
            "scalars": Each(float),
            "median_us": float,
            "peer": ({"name": str, "median_us": float, "speedup": float}, None),
        }
    ],
}
"""A record of evidence from a GPU."""

RECORDS: Mapping[str, Shape] = {"proof": PROOF, "emulator": EMULATED, "field": OVER_FIELD, "gpu": ON_GPU}
"""The shapes of records of evidence, by their backend."""


def fits(value: object, shape: Shape | str) -> bool:
    """True if plain data has a shape."""
    if isinstance(shape, str) or shape is None:
        return value == shape
    if isinstance(shape, bool):
        return value is shape
    if isinstance(shape, Each):
        return isinstance(value, dict) and all(isinstance(name, str) and fits(inner, shape.shape) for name, inner in value.items())
    if isinstance(shape, Mapping):
        return isinstance(value, dict) and all(
            fits(value[name], inner) if (name := field.removesuffix("?")) in value else field.endswith("?")
            for field, inner in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(inner, shape[0]) for inner in value)
    if isinstance(shape, Sequence):
        return any(fits(value, inner) for inner in shape)
    if shape is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    if shape is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, shape)
