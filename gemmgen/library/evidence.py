"""Records of runs: verifications, sanitizer runs and benchmarks, dated, with the device. Certificates quote them.

A file of evidence holds the common fields of its records (``run``) and the records. A record names its subject by digests: results on the
emulator hold for every architecture with the same PTX, and results on a GPU for the code that ran there."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import MAX_BYTES, read_plain
from gemmgen.core.text import printable
from gemmgen.library.json_text import to_text
from gemmgen.library.shapes import RECORDS, fits

SCHEMA_VERSION = 1
FORMAT = "gemmgen evidence"
EMULATOR_FILE = "emulator.json"
PROOFS_FILE = "proofs.json"

Record = Mapping[str, Any]


@dataclass
class Evidence:
    """All records of a folder. Those of the emulator are kept by ``(program, cases)``, proofs by ``(code, launch)``, those of GPUs by
    ``architecture``."""

    emulator: dict[tuple[str, str], Record] = field(default_factory=dict)
    others: dict[str, list[Record]] = field(default_factory=dict)
    over_field: list[Record] = field(default_factory=list)
    """Runs over a finite field, the newest first."""
    proofs: dict[tuple[str, str], Record] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Takes a record up; the newest of one program on the emulator stays. Raises ``ValueError`` for a record of another shape."""
        backend = str(record["backend"])
        if backend not in RECORDS:
            raise ValueError(f"a record's backend is {printable(repr(backend), 80)}, and not {', '.join(RECORDS)}")
        if not fits(record, RECORDS[backend]):
            subject = printable(str(record.get("instance")), 80)
            raise ValueError(f"a field of the record of {subject} ({backend}) is missing or has another type")
        if backend == "proof":
            self.proofs[record["code"], record["launch"]] = record
        elif backend == "emulator":
            key = (record["program"], record["cases"])
            known = self.emulator.get(key)
            if known is None or known["date"] <= record["date"]:
                self.emulator[key] = record
        elif backend == "field":
            self.over_field.insert(0, record)
        else:
            self.others.setdefault(record["architecture"], []).append(record)

    def seen_on_gpus(self, architecture: str, *, codes: Collection[str], source: str, options: str) -> list[Record]:
        """The records of runs on GPUs, the oldest first: of code with one of these digests, or of the same source with the same
        options, from which another build of the compiler's release may have made slightly different code."""

        def same(record: Record) -> bool:
            return bool(record["options"] == options and (record["code"] in codes or record["source"] == source))

        return sorted(filter(same, self.others.get(architecture, ())), key=lambda record: str(record["date"]))


def read_evidence(folder: Path) -> Evidence:
    """The records in all files of a folder, which need not exist. ``GemmgenError`` names a file that is none of evidence."""
    evidence = Evidence()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            data = json.loads(read_plain(path, MAX_BYTES))
            if data["format"] != FORMAT or data["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"its format is not {FORMAT!r}, version {SCHEMA_VERSION}")
            json.dumps(data, ensure_ascii=False, allow_nan=False).encode()  # certificates can hold every number and every text
            for record in data["records"]:
                evidence.add({**data["run"], **record})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            missing = f"it has no {error}" if isinstance(error, KeyError) else printable(str(error), 300)
            raise GemmgenError(f"{path} does not hold evidence: {missing}; restore it, or delete it and run again") from None
    return evidence


def evidence_text(run: Record, records: Iterable[Record]) -> str:
    """A file of evidence; records lose the fields that equal those of ``run`` and come in the order of instance and architecture."""
    own = [{name: value for name, value in record.items() if name not in run or run[name] != value} for record in records]
    own.sort(key=lambda record: (str(record.get("instance")), str(record.get("architecture")), str(record.get("program"))))
    return to_text({"format": FORMAT, "schema_version": SCHEMA_VERSION, "run": dict(run), "records": own})


def emulator_evidence(records: Iterable[Record]) -> str:
    """The file of the emulator's results."""
    return evidence_text({"backend": "emulator", "device": "PTX emulator on the CPU"}, records)
