"""Files of evidence of strangers: records of another shape are refused when they are read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gemmgen.core.errors import GemmgenError
from gemmgen.library.evidence import FORMAT, read_evidence

SUBJECT = {"instance": "small", "architecture": "sm_90", "code": "1", "source": "2", "options": "3", "date": "2026-01-01", "device": "one"}
PASSED = {"passed": True, "cases": 2, "elements": 9, "worst_ratio": 0.5}
SITE = {"line": 3, "shared": {"load": {"conflicts": 0, "wavefronts": 4, "ideal": 4}}}
TRAFFIC = {"case": "primes", "problem": {"m": 7}, "scalars": {"alpha": 1.0}, "instructions": {"barrier": 1}, "sites": [SITE]}
RECORDS: dict[str, dict[str, Any]] = {
    "proof": {**SUBJECT, "by": "z3", "launch": "4", "proved": ["memory"], "kernels": [["memory"]], "seconds": 1.5},
    "emulator": {**SUBJECT, "program": "5", "cases": "6", "compiler": "13.0", "verification": PASSED, "traffic": TRAFFIC},
    "field": {**SUBJECT, "method": 1, "field": {"claim": "passed", "outcome": "passed", "runs": 1, "dimensions": {"m": 7}}},
    "gpu": {
        **SUBJECT,
        "program": "5",
        "compiler": "13.0",
        "verification": PASSED,
        "sanitizer": [{"tool": "memcheck", "passed": True, "cases": 2}],
        "benchmarks": [{"problem": {"m": 7}, "scalars": {}, "median_us": 3.5, "peer": None}],
    },
}
NO_RECORDS: dict[str, tuple[str, str, Any]] = {
    "no time of a proof": ("proof", "seconds", None),
    "a text for a time": ("proof", "seconds", "long"),
    "a time without end": ("proof", "seconds", 10**400),
    "a text for properties": ("proof", "proved", "memory"),
    "a property that no proof has": ("proof", "proved", ["\x1b[2Jall"]),
    "lists for properties": ("proof", "proved", [["memory"]]),
    "a number for the instance": ("proof", "instance", 7),
    "no kernels": ("proof", "kernels", None),
    "no verification on the emulator": ("emulator", "verification", None),
    "a failure without words": ("emulator", "verification", {**PASSED, "passed": False}),
    "a word for true": ("emulator", "verification", {**PASSED, "passed": "yes"}),
    "a number for a date": ("emulator", "date", 2026),
    "a program that is a list": ("emulator", "program", ["5"]),
    "no sites": ("emulator", "traffic", {**TRAFFIC, "sites": None}),
    "a text for the counts of a line": ("emulator", "traffic", {**TRAFFIC, "sites": [{**SITE, "shared": "many"}]}),
    "an unknown outcome": ("field", "field", {**RECORDS["field"]["field"], "outcome": "perfect"}),
    "wrong without a reason": ("field", "field", {**RECORDS["field"]["field"], "outcome": "wrong"}),
    "a text over the field": ("field", "field", "passed"),
    "a tool without a name": ("gpu", "sanitizer", [{"passed": True, "cases": 2}]),
    "a tool's failure without words": ("gpu", "sanitizer", [{"tool": "memcheck", "passed": False, "cases": 2}]),
    "a benchmark that is a number": ("gpu", "benchmarks", [3.5]),
    "a problem that is a list": ("gpu", "benchmarks", [{**RECORDS["gpu"]["benchmarks"][0], "problem": [7]}]),
    "no architecture": ("gpu", "architecture", None),
    "a list for a device": ("gpu", "device", []),
}


def write(folder: Path, backend: str, record: dict[str, Any]) -> None:
    document = {"format": FORMAT, "schema_version": 1, "run": {"backend": backend}, "records": [record]}
    (folder / "some.json").write_text(json.dumps(document))


@pytest.mark.parametrize("backend", RECORDS)
def test_a_record_of_each_kind_is_read(backend: str, tmp_path: Path) -> None:
    write(tmp_path, backend, RECORDS[backend])
    found = read_evidence(tmp_path)
    on_gpus = [record for records in found.others.values() for record in records]
    read = [*found.proofs.values(), *found.emulator.values(), *found.over_field, *on_gpus]
    assert read == [{"backend": backend, **RECORDS[backend]}]


@pytest.mark.parametrize("name", NO_RECORDS)
def test_a_record_of_another_shape_is_refused(name: str, tmp_path: Path) -> None:
    backend, field, value = NO_RECORDS[name]
    record = copy.deepcopy(RECORDS[backend])
    if value is None:
        del record[field]
    else:
        record[field] = value
    write(tmp_path, backend, record)
    expected = rf"some\.json does not hold evidence: a field of the record of (small|7) \({backend}\) is missing or has another type"
    with pytest.raises(GemmgenError, match=expected):
        read_evidence(tmp_path)


def test_a_record_of_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "\x1b[2Jabacus", SUBJECT)
    with pytest.raises(GemmgenError, match=r"a record's backend is '\\x1b\[2Jabacus', and not proof, emulator, field, gpu"):
        read_evidence(tmp_path)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", '"\\ud800"'])
def test_values_that_no_certificate_can_hold_are_refused(value: str, tmp_path: Path) -> None:
    write(tmp_path, "gpu", {**RECORDS["gpu"], "driver": "HERE"})
    path = tmp_path / "some.json"
    path.write_text(path.read_text().replace('"HERE"', value))
    with pytest.raises(GemmgenError, match=r"some\.json does not hold evidence"):
        read_evidence(tmp_path)
