"""One certificate for all architectures of an instance: common parts stand once, the rest in sections.

The key of a section lists the architectures that it is about, ``sm_80,sm_90``; together with the fields above the sections, those of one
architecture equal a certificate for it alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECTIONS = "architectures"
OWN = (
    *("binary", "occupancy", "numeric_class", "predicted", "proved", "verification", "device_evidence", "bits_not_confirmed"),
    *("sanitizer", "benchmarks"),
)
"""Fields that may differ between architectures; of the digests, those in ``OWN_DIGESTS``."""
OWN_DIGESTS = ("program", "code")

Certificate = Mapping[str, Any]


def joined(certificates: Mapping[str, Certificate]) -> dict[str, Any]:
    """One certificate from those for single architectures, which are in the order of the list."""
    first = next(iter(certificates.values()))
    common = {name: value for name, value in first.items() if name not in ("architecture", *OWN)}
    common["digests"] = {name: value for name, value in first["digests"].items() if name not in OWN_DIGESTS}
    sections: dict[str, dict[str, Any]] = {}
    for name in ("digests", *OWN):
        values: list[tuple[Any, list[str]]] = []
        for architecture, certificate in certificates.items():
            value = certificate[name]
            if name == "digests":
                value = {digest: value[digest] for digest in OWN_DIGESTS}
            alike = next((known for known in values if known[0] == value), None)
            if alike is None:
                values.append((value, [architecture]))
            else:
                alike[1].append(architecture)
        for value, architectures in values:
            if value not in (None, []):
                sections.setdefault(",".join(architectures), {})[name] = value
    return common | {SECTIONS: dict(sorted(sections.items(), key=lambda item: (-item[0].count(","), item[0])))}


def separated(certificate: Any) -> dict[str, dict[str, Any]]:
    """The certificate as it would be for each of its architectures alone. Empty for anything that is no certificate."""
    try:
        common = {name: value for name, value in certificate.items() if name != SECTIONS}
        sections: dict[str, dict[str, Any]] = {}
        for key, section in certificate[SECTIONS].items():
            for architecture in key.split(","):
                own = sections.setdefault(architecture, _empty(common, architecture))
                for name, value in section.items():
                    own[name] = {**common["digests"], **value} if name == "digests" else value
        return sections
    except (AttributeError, KeyError, TypeError):
        return {}


def _empty(common: Mapping[str, object], architecture: str) -> dict[str, object]:
    return {
        **common,
        "architecture": architecture,
        "numeric_class": None,
        "predicted": None,
        "proved": None,
        "verification": [],
        "device_evidence": None,
        "bits_not_confirmed": [],
        "sanitizer": [],
        "benchmarks": [],
    }
