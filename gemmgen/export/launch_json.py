"""Binaries with their launch as JSON: for hosts in any language that load cubins or PTX themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gemmgen.codegen.rendering import spec_lines
from gemmgen.core.version import __version__
from gemmgen.export.images import Bundle, Image

SCHEMA_VERSION = 1


def launch_files(bundle: Bundle) -> dict[str, Callable[[], str | bytes]]:
    """A cubin or PTX for each image of an instance, and ``NAME.json``, by their names."""
    name = bundle.plan.name
    files: dict[str, Callable[[], str | bytes]] = {_file(name, image): _content(image.data) for image in bundle.images}
    return files | {f"{name}.json": lambda: launch_json(bundle)}


def launch_json(bundle: Bundle) -> str:
    """The launch sequence of an instance, and which binary runs where, as JSON.

    Sizes are formulas over the names of the problem's dimensions: integers, ``+ - * // %``, comparisons that are 1 or 0, ``min``, ``max``,
    ``ceil_div``, ``round_up``, ``ceil_log2`` and ``select(condition, yes, no)``. Blocks of a grid that takes tiles in turn also follow from
    ``multiprocessors``, those of the device (``blocks_of_device``).
    """
    plan = bundle.plan
    images = [
        {
            "file": _file(plan.name, image),
            "kind": image.kind,
            "compute_capability": list(image.compute_capability),
            "runs_on": image.runs_on,
        }
        for image in bundle.images
    ]
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "gemmgen": __version__,
        "nvrtc": ".".join(map(str, bundle.nvrtc_version)),
        "standing": bundle.standing,
        "spec": spec_lines(plan.spec),
        "sizes": dict(plan.spec.sizes),
        "images": images,
        **plan.sequence.to_json(),
    }
    for fields, launch in zip(data["launches"], plan.sequence.launches, strict=True):
        if launch.blocks_of_device is not None:
            fields["blocks_of_device"] = str(launch.blocks_of_device)
    return json.dumps(data, indent=1) + "\n"


def _file(name: str, image: Image) -> str:
    return f"{name}.{image.label}.{image.kind}"


def _content(data: bytes) -> Callable[[], bytes]:
    return lambda: data
