"""Several launches on the same arrays, as YAML describes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gemmgen.core import yaml_text
from gemmgen.core.files import read_plain
from gemmgen.core.text import printable
from gemmgen.sanitizer.arguments import KernelArgument, argument_of, check_arguments, check_count, parse_argument, within_memory
from gemmgen.sanitizer.launches import Launch
from gemmgen.sanitizer.source import KernelCode, UnusableInput, find_entry
from gemmgen.sanitizer.structures import find_layout

_SHOWN = 20
"""Maximum number of mistakes reported for a launch file."""


def _sizes(value: object) -> Any:
    return (value,) if isinstance(value, int) else value


Sizes = Annotated[tuple[Annotated[int, Field(ge=1, strict=True)], ...], BeforeValidator(_sizes), Field(min_length=1, max_length=3)]


class LaunchSpec(BaseModel):
    """One launch: arguments are names of arrays and tensor maps, lists and mappings of those, numbers, or texts as for ``--arg``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entry: str | None = None
    grid: Sizes
    block: Sizes
    cluster: Sizes | None = None
    shared: Annotated[int, Field(ge=0, strict=True)] = 0
    early: Annotated[bool, Field(strict=True)] = False
    args: tuple[Any, ...] = ()


class LaunchFile(BaseModel):
    """Arrays by name, as for ``--arg``, and the launches that run on them in order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arrays: dict[str, str] = {}
    launches: Annotated[tuple[LaunchSpec, ...], Field(min_length=1)]


def read_launch_file(path: Path) -> LaunchFile:
    """Contents of a launch file. Raises ``UnusableInput``."""
    try:
        return LaunchFile.model_validate(yaml_text.parse(read_plain(path, yaml_text.MAX_BYTES)))
    except OSError as error:
        raise UnusableInput(f"{path}: {error.strerror or error}") from None
    except yaml_text.YamlTextError as error:
        raise UnusableInput(f"{path}: {error}") from None
    except ValidationError as error:
        problems = error.errors()
        reasons = [f"  - {printable('.'.join(map(str, item['loc'])) or 'the file', 100)}: {item['msg']}" for item in problems[:_SHOWN]]
        more = [f"  and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise UnusableInput("\n".join([f"{path} describes no launches:", *reasons, *more])) from None


def _with_arrays(value: object, given: dict[str, KernelArgument]) -> Any:
    """Lists and mappings with the arrays and tensor maps that they name."""
    match value:
        case list():
            return [_with_arrays(part, given) for part in value]
        case dict():
            return {name: _with_arrays(part, given) for name, part in value.items()}
        case str():
            return given.get(value, value)
    return value


def bind_launches(spec: LaunchFile, code: KernelCode, entry: str | None) -> tuple[list[Launch], dict[str, KernelArgument]]:
    """The launches of a file, and all their arguments by name. Raises ``UnusableInput``."""
    for launch in spec.launches:
        kernel = find_entry(code, launch.entry or entry)
        check_count(kernel.name, kernel.parameters, kernel.parameter_names, len(launch.args))
    arrays = within_memory(parse_argument(text, index) for index, text in enumerate(spec.arrays.values()))
    given = dict(zip(spec.arrays, arrays, strict=True))
    if spec.launches[0].early:
        raise UnusableInput("launches.0.early: there is no launch in front of it")
    launches = []
    for number, launch in enumerate(spec.launches):
        kernel = find_entry(code, launch.entry or entry)
        names = []
        for index, value in enumerate(launch.args):
            if isinstance(value, str) and value in given:
                names.append(value)
                continue
            c_type = kernel.parameter_types[index] if index < len(kernel.parameter_types) else ""
            name = f"launches[{number}].{kernel.parameter_names[index] if index < len(kernel.parameter_names) else index}"
            given[name] = argument_of(_with_arrays(value, given), index, c_type, partial(find_layout, code, c_type))
            if given[name].array_bytes:
                within_memory(given.values())
            names.append(name)
        check_arguments(kernel.name, kernel.parameters, kernel.parameter_names, [given[name] for name in names])
        launches.append(Launch(kernel, launch.grid, launch.block, launch.shared, tuple(names), launch.cluster, launch.early))
    return launches, given
