"""Specs that come with gemmgen, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gemmgen.core.errors import SpecError
from gemmgen.core.resources import resource_directory
from gemmgen.core.text import close_paths
from gemmgen.kernels.variants import expanded, split_variant
from gemmgen.kernels.yaml_files import read_yaml


def shipped_specs() -> dict[str, Path]:
    """The specs that come with gemmgen, by name: ``gemm/v3_double_buffer``, or ``gemm/wgmma/bf16/128x256`` for a variant of a file.

    They lie in a folder for each kind; the list of the library and the sweeps beside these folders are something else."""
    return _expanded(_spec_files())


def _spec_files() -> dict[Path, str]:
    """The files of shipped specs, each with its name."""
    root = resource_directory("specs")
    files = (path for path in sorted(root.glob("*/**/*.yaml")) if path.relative_to(root).parts[0] != "sweeps")
    return {file: file.relative_to(root).with_suffix("").as_posix() for file in files}


def _expanded(files: Mapping[Path, str]) -> dict[str, Path]:
    """The specs of files, by name."""
    return {stem if spec == file else f"{stem}/{spec.name}": spec for file, stem in files.items() for spec in expanded(file)}


def find_shipped(argument: str) -> dict[str, Path]:
    """The shipped specs that a name or a folder of names means. Raises ``SpecError`` that suggests others if it means none."""
    name = argument.removeprefix("specs/").removesuffix(".yaml").strip("/")
    files = _spec_files()
    if argument and name in ("", "specs"):
        return _expanded(files)
    near = {file: stem for file, stem in files.items() if stem == name or stem.startswith(f"{name}/") or name.startswith(f"{stem}/")}
    chosen = {known: path for known, path in _expanded(near).items() if known == name or known.startswith(f"{name}/")}
    if argument and chosen:
        return chosen
    if argument.startswith(("/", "./", "../", "~")):
        raise SpecError(f"{argument!r}: no such file or directory")
    shipped = _expanded(files)
    if (file := name.rpartition("/")[0]) in shipped:  # a file without variants, or one that says itself why they cannot be read
        read_yaml(shipped[file])
    folders = sorted({known.rpartition("/")[0] for known in shipped})
    close = _begun(name, shipped) or _ended(name, shipped) or close_paths(name, [*shipped, *folders])
    stem = name
    while not close and "_" in stem.rpartition("/")[2]:  # gemm/v2_vectorized: the one that begins with gemm/v2_
        stem = stem.rpartition("_")[0]
        close = _begun(f"{stem}_", shipped)
    count = f"there are {len(shipped)} specs, such as {min(shipped, key=len)}, in the groups {', '.join(_groups(shipped))}"
    hint = f"did you mean {' or '.join(close)}?" if close else count
    raise SpecError(f"{argument!r} is no file, no directory and no spec that ships with gemmgen; {hint}")


def _groups(shipped: Mapping[str, Path]) -> list[str]:
    """The folders of shipped specs, down to the second level."""
    return sorted({"/".join(known.split("/")[:-1][:2]) for known in shipped})


def _begun(name: str, shipped: Mapping[str, Path]) -> list[str]:
    """The shortest three names that begin so, with their folder or without."""
    begun = (known for known in shipped if name and (known.startswith(name) or known.rpartition("/")[2].startswith(name)))
    return sorted(begun, key=len)[:3]


def _ended(name: str, shipped: Mapping[str, Path]) -> list[str]:
    """The shortest three names that end so, however their parts are joined: ``bf16_128x256``, ``bf16[128x256]``."""
    end = re.sub(r"\W+", "_", f"_{name.rpartition('/')[2]}").rstrip("_")
    ended = (known for known in shipped if len(end) > 1 and f"_{known.replace('/', '_')}".endswith(end))
    return sorted(ended, key=len)[:3]


def spec_path(source: str | Path) -> Path:
    """The path of a spec, through its file to a variant if it is one, for a path or the name of a shipped spec.

    Text that names neither is taken for a path."""
    path = Path(source)
    if isinstance(source, str) and not path.suffix and not path.exists() and split_variant(path)[1] is None:
        specs = find_shipped(source)
        if len(specs) > 1:
            raise SpecError(f"{source!r} names {len(specs)} specs; name one of them: {', '.join(list(specs)[:5])}, ...")
        return next(iter(specs.values()))
    return path
