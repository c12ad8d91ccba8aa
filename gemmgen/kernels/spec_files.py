"""Reading specs: YAML or mappings in, checked models out, every mistake a readable message."""

from __future__ import annotations

import itertools
import json
import reprlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pydantic

from gemmgen.core import yaml_text
from gemmgen.core.errors import Reason, SpecError
from gemmgen.core.files import read_plain
from gemmgen.core.text import printable
from gemmgen.kernels import FAMILIES, HOST_FAMILIES, family
from gemmgen.kernels.family import KernelSpec

_SHOWN_CHARACTERS = 60
"""Of a name that a user chose."""
_SHOWN_MESSAGE = 600
"""Of what Pydantic says, which quotes values."""


def load_spec(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> KernelSpec:
    """A checked spec from a YAML file or from a mapping.

    ``overrides`` are ``path=value`` texts such as ``mainloop.tile.threadblock.k=16``, the value in YAML. Raises ``SpecError`` with
    every mistake that was found.
    """
    if isinstance(source, Mapping):
        name, fields = "spec", dict(source)
    else:
        name, fields = str(source), read_yaml(Path(source))
    for override in overrides:
        fields = overridden(fields, override)
    return _validated(fields, name)


def read_yaml(path: Path, expected: str = "a spec is a YAML mapping (kind: gemm, ...)") -> dict[str, Any]:
    """The mapping that a YAML file holds; ``expected`` tells the user what should be in it.

    Raises ``SpecError`` if the file cannot be read or holds something else.
    """
    try:
        if path.is_dir():
            raise SpecError(f"{path}: is a directory; name the YAML files in it")
        data = read_plain(path, yaml_text.MAXIMUM_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(f"{path}: cannot be read: {reason}") from None
    if len(data) > yaml_text.MAXIMUM_BYTES:
        raise SpecError(f"{path}: larger than {yaml_text.MAXIMUM_BYTES} bytes, which no spec is")
    loaded = parse_yaml(data, str(path))
    if not isinstance(loaded, dict):
        kind = "nothing" if loaded is None else f"a {type(loaded).__name__}"
        raise SpecError(f"{path}: {expected}, this file holds {kind}")
    return loaded


def json_schema() -> dict[str, Any]:
    """JSON Schema of all specs, for editors that complete YAML."""
    schema: dict[str, Any] = _adapter().json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gemmgen kernel spec", **schema}


def parse_yaml(data: bytes | str, name: str) -> Any:
    """Contents of a YAML text. Raises ``SpecError`` that begins with ``name`` if it is not valid, or has keys twice or aliases."""
    try:
        return yaml_text.parse(data)
    except yaml_text.YamlTextError as error:
        raise SpecError(f"{name}: {error}") from None


def overridden(fields: dict[str, Any], override: str) -> dict[str, Any]:
    """A copy of ``fields`` with one ``path=value`` applied. Raises ``SpecError``."""
    path, separator, text = override.partition("=")
    if not separator or not all(path.split(".")):
        raise SpecError(f"--set {reprlib.repr(override)}: expected path=value, for example mainloop.tile.threadblock.k=16")
    return with_field(fields, path, parse_yaml(text, f"--set {printable(path, _SHOWN_CHARACTERS)}"), f"--set {reprlib.repr(override)}")


def with_field(fields: dict[str, Any], path: str, value: Any, name: str) -> dict[str, Any]:
    """A copy of ``fields`` in which the field that ``path`` leads to, ``mainloop.tile.threadblock.k`` say, is ``value``.

    Raises ``SpecError`` that begins with ``name`` if the path leads nowhere.
    """
    keys = path.split(".")
    result = dict(fields)
    here: Any = result
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        if isinstance(here, list):
            if not key.isdecimal() or int(key) > len(here) or (int(key) == len(here) and following is not None):
                raise SpecError(f"{name}: {reprlib.repr(key)} is not a position in a list of {len(here)}")
            if int(key) == len(here):
                here.append(None)
            slot: Any = int(key)
        elif isinstance(here, dict):
            slot = key
        else:
            raise SpecError(f"{name}: {reprlib.repr(path)} leads through a value that has no fields")
        if following is None:
            here[slot] = value
            break
        below = here[slot] if isinstance(here, list) else here.get(slot, {})
        if not isinstance(below, dict | list):
            raise SpecError(f"{name}: {reprlib.repr(key)} is {reprlib.repr(below)} and has no field {reprlib.repr(following)}")
        here[slot] = below.copy()
        here = here[slot]
    return result


@lru_cache(maxsize=1)
def _adapter() -> pydantic.TypeAdapter[Any]:
    kinds = [family(kind).spec for kind in (*FAMILIES, *HOST_FAMILIES)]
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return pydantic.TypeAdapter(union)


def _validated(fields: dict[str, Any], name: str) -> KernelSpec:
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in FAMILIES | HOST_FAMILIES:
        got = "it has none" if "kind" not in fields else f"got {reprlib.repr(kind)}"
        raise SpecError(f"{name}: kind: {got}, need one of: {', '.join(FAMILIES | HOST_FAMILIES)}")
    checked: KernelSpec = validated(family(kind).spec, fields, name, "not a valid spec")
    return checked


def validated(model: type[Any], fields: Mapping[str, Any], name: str, wrong: str) -> Any:
    """``fields`` as an instance of a Pydantic ``model``. Raises ``SpecError``: ``name``, ``wrong``, and all mistakes."""
    try:
        # As JSON, lists become tuples and mappings parts of a spec while numbers, truth values and text stay apart.
        return model.model_validate_json(json.dumps(fields, default=_as_data))
    except pydantic.ValidationError as error:
        reasons = [_reason(item, fields) for item in error.errors(include_url=False, include_context=False)]
    except (RecursionError, ValueError):  # too deep, or a YAML alias within what it stands for
        raise SpecError(f"{name}: nested too deeply") from None
    raise SpecError("\n".join([f"{name}: {wrong}:", *(f"  - {reason}" for reason in reasons)]))


def _as_data(value: Any) -> Any:
    """Parts of specs as data; what else YAML may hold, such as dates, as text, which no field takes for something else."""
    return value.model_dump(mode="json") if isinstance(value, pydantic.BaseModel) else str(value)


def _path(location: tuple[Any, ...], fields: Any) -> str:
    """Path in the YAML of a mistake: pydantic's location without the tags of unions, which are no level of the YAML."""
    parts = []
    here = fields
    for part, following in itertools.zip_longest(location, location[1:]):
        if isinstance(here, dict) and part not in here and following is not None:
            continue
        parts.append(printable(str(part), _SHOWN_CHARACTERS))
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = None
    return ".".join(parts)


def _shown(value: Any) -> str:
    """A value as YAML has it, cut where it is long."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else reprlib.repr(value)


def _reason(item: Any, fields: Any) -> Reason:
    path = _path(item["loc"], fields)
    kind = str(item["type"])
    message = printable(str(item["msg"]), _SHOWN_MESSAGE)
    if kind == "extra_forbidden":
        return Reason("unknown_field", path, _shown(item["input"]), "no such field", "gemmgen schema lists the fields")
    if kind == "missing":
        return Reason("missing_field", path, "", "a value, which is missing")
    need = message.removeprefix("Input should be ").removeprefix("Value error, ")
    return Reason(kind, path, _shown(item["input"]), need, yaml_text.hint(item["input"]))
