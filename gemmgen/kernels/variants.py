"""Tables of variants: a spec file describes a kind of kernel, and each row of its table is one kernel of that kind.

    variants:
      128x256: {tile: {m: 128, n: 256, k: 64}, stages: 4}
      128x128: {tile: {m: 128, n: 128, k: 64}, stages: 6, early_launch: true}

A row sets fields of the spec, by the paths that ``--set`` takes; a path whose first part is no field of the kind starts in its
mainloop. ``null`` gives a field its default. The path of a variant goes through the file: ``bf16.yaml/128x256``, or
``gemm/wgmma/bf16/128x256`` for a spec that comes with gemmgen.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from gemmgen.core.errors import SpecError
from gemmgen.kernels.family import SpecModel
from gemmgen.kernels.yaml_files import read_text, read_yaml

VARIANTS = "variants"
MAX_VARIANTS = 500
MAX_ROW_FIELDS = 40
SUFFIX = ".yaml"


def _no_other_kind(path: str) -> str:
    if path in ("kind", "schema_version", VARIANTS):
        raise ValueError(f"a field that variants differ in; {path} is the file's")
    return path


VariantName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$", max_length=48)]
RowPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.\w+)*$", max_length=200), AfterValidator(_no_other_kind)]
Row = Annotated[dict[RowPath, Any], Field(max_length=MAX_ROW_FIELDS)]


class VariantTable(SpecModel):
    """Table of the variants of a spec file."""

    variants: Annotated[dict[VariantName, Row], Field(min_length=1, max_length=MAX_VARIANTS)]
    """Kernels of this kind, by name: each sets some fields of the spec above to other values."""


def split_variant(path: Path) -> tuple[Path, str | None]:
    """The file of a spec, and the name of the variant if ``path`` goes through the file to one."""
    try:
        through = path.parent.is_file()
    except (OSError, ValueError):
        through = False
    return (path.parent, path.name) if through else (path, None)


def expanded(file: Path) -> list[Path]:
    """The specs in a file: the file itself, or a path for each of its variants.

    A file that cannot be read is returned as it is: loading it reports why.
    """
    try:
        text = read_text(file)
        return [file / name for name in _names(text)] or [file]
    except SpecError:
        return [file]


@lru_cache(maxsize=256)
def _names(text: bytes) -> tuple[str, ...]:
    """Names of the variants in the text of a spec file; empty without a table, or with one that is not valid."""
    if VARIANTS.encode() not in text:
        return ()
    try:
        table = read_yaml(Path(), text=text).get(VARIANTS)
    except SpecError:
        return ()
    return tuple(map(str, table)) if isinstance(table, dict) and len(table) <= MAX_VARIANTS else ()


def spec_name(path: Path, folder: Path) -> str:
    """Name of a spec below a folder, without the suffix of its file: ``gemm/wgmma/bf16/128x256``."""
    file, variant = split_variant(path)
    stem = file.relative_to(folder).with_suffix("").as_posix()
    return stem if variant is None else f"{stem}/{variant}"


def matching(folder: Path, pattern: str) -> list[Path]:
    """The specs below a folder whose names a pattern matches, in order; ``*`` stands for anything but a slash.

    A pattern that matches a file takes all its variants.
    """
    specs = [spec for file in sorted(folder.glob(f"{pattern}{SUFFIX}")) if file.is_file() for spec in expanded(file)]
    head, _, tail = pattern.rpartition("/")
    if head:
        files = (file for file in sorted(folder.glob(f"{head}{SUFFIX}")) if file.is_file())
        specs += [spec for file in files for spec in expanded(file) if spec != file and fnmatchcase(spec.name, tail)]
    return specs
