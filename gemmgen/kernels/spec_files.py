"""Reading specs: YAML or mappings in, checked models out, every mistake a readable message."""

from __future__ import annotations

import itertools
import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pydantic

from gemmgen.core import yaml_text
from gemmgen.core.editor_schema import chosen_by, for_editors
from gemmgen.core.errors import Mismatch, Reason, SpecError
from gemmgen.core.schema_fields import field_values, sibling_fields
from gemmgen.core.text import printable
from gemmgen.kernels import FAMILIES, family
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.shipped import spec_path
from gemmgen.kernels.variants import VARIANTS, Row, VariantTable, split_variant
from gemmgen.kernels.yaml_files import parse_yaml, positions, read_text, read_yaml

_SHOWN_CHARACTERS = 60
"""Characters of a user's name that messages show."""
_SHOWN_MESSAGE = 600
"""Longest message quoted from Pydantic, whose messages contain values."""
_SHOWN_MISTAKES = 20
"""Mistakes of one file that are reported one by one; the others are counted."""
_LISTED_FIELDS = 16
"""Fields of one place that are all named where none is like the one that was asked for."""


_DEFAULT: Any = object()
"""Value of a field that a variant leaves at its default."""

Places = Mapping[tuple[str, ...], tuple[str, ...]]
"""For paths of fields that a row of a table sets, where the row has them in the YAML."""
_NO_PLACES: Places = MappingProxyType({})


def load_spec(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> KernelSpec:
    """A checked spec from a YAML file, from the name of one that ships with gemmgen (``gemm/v0_naive``), or from a mapping.

    ``overrides`` are ``path=value`` texts such as ``mainloop.tile.threadblock.k=16``, the value in YAML. Raises ``SpecError`` with
    every mistake that was found.
    """
    if isinstance(source, Mapping):
        name, fields, text, places = "spec", dict(source), None, _NO_PLACES
        if VARIANTS in fields:
            raise SpecError(f"{name}: {VARIANTS}: only a file has a table of variants; pass the fields of one variant")
    else:
        path = spec_path(source)
        file, variant = split_variant(path)
        text = read_text(file)
        name = str(source)
        fields, places = _with_variant(read_yaml(file, text=text), file, variant, name, text)
    overrides = tuple(overrides)
    for override in overrides:
        fields = overridden(fields, override)
    return _validated(fields, name, text, overrides, places)


def spec_fields(path: Path) -> dict[str, Any]:
    """The fields of one spec as its file writes them, a variant's row applied. Raises ``SpecError``."""
    file, variant = split_variant(path)
    text = read_text(file)
    return _with_variant(read_yaml(file, text=text), file, variant, str(path), text)[0]


def _with_variant(fields: dict[str, object], file: Path, variant: str | None, name: str, text: bytes) -> tuple[dict[str, Any], Places]:
    """The fields of one variant of a spec file. Raises ``SpecError`` if the file has no such variant, or several and none is named."""
    if VARIANTS not in fields:
        if variant is not None:
            raise SpecError(f"{name}: {file} has no table of variants, so {reprlib.repr(variant)} names nothing in it")
        return fields, _NO_PLACES
    rows: dict[str, Row] = _checked_table(text, str(file)).variants
    if variant is None:
        shown = ", ".join(f"{name}/{known}" for known in list(rows)[:3])
        raise SpecError(f"{name} describes {len(rows)} kernels; name one of them: {shown}{', ...' if len(rows) > 3 else ''}")
    if variant not in rows:
        near = get_close_matches(variant, rows, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(list(rows)[:_LISTED_FIELDS])}"
        raise SpecError(f"{file}: there is no variant {reprlib.repr(variant)}; {hint}")
    return _with_row({key: value for key, value in fields.items() if key != VARIANTS}, variant, rows[variant], name)


def _with_row(fields: dict[str, Any], variant: str, row: Row, name: str) -> tuple[dict[str, Any], Places]:
    kind = fields.get("kind")
    model = family(kind).spec if isinstance(kind, str) and kind in FAMILIES else KernelSpec
    for field in ("label", "description"):
        if isinstance(fields.get(field), str):
            fields[field] = fields[field].replace("{variant}", variant)
    places: dict[tuple[str, ...], tuple[str, ...]] = {}
    for key, value in row.items():
        path = key if key.partition(".")[0] in model.model_fields else f"{model.mainloop_field}.{key}".removeprefix(".")
        fields = with_field(fields, path, _DEFAULT if value is None else value, f"{name}: {VARIANTS}.{variant}")
        places[tuple(path.split("."))] = (VARIANTS, variant, key)
    return fields, places


@lru_cache(maxsize=64)
def _checked_table(text: bytes, name: str) -> Any:
    fields = read_yaml(Path(name), text=text)
    return validated(VariantTable, {VARIANTS: fields[VARIANTS]}, name, "not a valid spec", text)


def json_schema() -> dict[str, Any]:
    """JSON Schema of all specs, for editors that complete YAML."""
    schema: dict[str, Any] = _adapter().json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gemmgen kernel spec", **schema}


def file_schema() -> dict[str, Any]:
    """JSON Schema of spec files: that of specs, and of their tables of variants."""
    schema = json_schema()
    table = VariantTable.model_json_schema()["properties"][VARIANTS]
    definitions, references = schema["$defs"], [kind["$ref"] for kind in schema.pop("anyOf")]
    for reference in references:
        properties = definitions[reference.rpartition("/")[2]]["properties"]
        properties[VARIANTS] = table
        properties["label"] = {"type": "string", "description": "A short name; {variant} stands for the name of the variant."}
    kinds = {definitions[reference.rpartition("/")[2]]["properties"]["kind"]["const"]: reference for reference in references}
    return for_editors({**schema, **chosen_by("kind", kinds, definitions)})


def overridden(fields: dict[str, object], override: str) -> dict[str, Any]:
    """A copy of ``fields`` with one ``path=value`` applied. Raises ``SpecError``."""
    path, separator, text = override.partition("=")
    if not separator or not all(path.split(".")):
        raise SpecError(f"--set {reprlib.repr(override)}: expected path=value, for example mainloop.tile.threadblock.k=16")
    return with_field(fields, path, parse_yaml(text, f"--set {printable(path, _SHOWN_CHARACTERS)}"), f"--set {reprlib.repr(override)}")


def with_field(fields: dict[str, object], path: str, value: object, name: str) -> dict[str, Any]:
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
            if value is not _DEFAULT:
                here[slot] = value
            elif isinstance(here, dict):
                here.pop(slot, None)
            break
        below = here[slot] if isinstance(here, list) else here.get(slot, {})
        if not isinstance(below, dict | list):
            raise SpecError(f"{name}: {reprlib.repr(key)} is {reprlib.repr(below)} and has no field {reprlib.repr(following)}")
        here[slot] = below.copy()
        here = here[slot]
    return result


@lru_cache(maxsize=1)
def _adapter() -> pydantic.TypeAdapter[Any]:
    kinds = [family(kind).spec for kind in FAMILIES]
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return pydantic.TypeAdapter(union)


def _validated(fields: dict[str, object], name: str, text: bytes | None, overrides: Sequence[str], places: Places) -> KernelSpec:
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in FAMILIES:
        if "kind" not in fields and {"base", "axes"} <= fields.keys():
            raise SpecError(f"{name}: this is a sweep, not a spec; gemmgen sweep runs it")
        kinds = list(FAMILIES)
        got = "it has none" if "kind" not in fields else f"got {reprlib.repr(kind)}"
        near = get_close_matches(kind if isinstance(kind, str) else "", kinds, n=1)
        message = f"{name}: kind: {got}, need one of: {', '.join(kinds)}" + (f" (did you mean {near[0]}?)" if near else "")
        raise SpecError("\n".join([message, *_Excerpts(text, overrides, places).of(["kind"])]))
    model = family(kind).spec
    checked: KernelSpec = validated(model, model.with_current_names(fields), name, "not a valid spec", text, overrides, places)
    return checked


def validated(
    model: type[pydantic.BaseModel],
    fields: Mapping[str, object],
    name: str,
    wrong: str,
    text: bytes | None = None,
    overrides: Sequence[str] = (),
    places: Places = _NO_PLACES,
) -> Any:
    """``fields`` as an instance of a Pydantic ``model``. Raises ``SpecError``: ``name``, ``wrong``, and all mistakes.

    With the YAML ``text`` that the fields are from, each mistake is shown in its line; with ``overrides`` applied to them since, by
    the one that made it. ``places`` says where the row of a variant has its fields.
    """
    try:
        # As JSON, lists become tuples and mappings parts of a spec while numbers, truth values and text stay apart.
        return model.model_validate_json(json.dumps(fields, default=_as_data))
    except pydantic.ValidationError as error:
        mistakes = error.errors(include_url=False)
    except (RecursionError, ValueError):  # too deep, or a YAML alias within its own anchor
        raise SpecError(f"{name}: nested too deeply") from None
    schema = _schema(model)
    lines = [f"{name}: {wrong}:"]
    merged = _told_once(mistakes, fields)
    excerpts = _Excerpts(text, overrides, places)
    for item, path, number in merged[:_SHOWN_MISTAKES]:
        reason = _reason(item, path, fields, schema)
        if number is not None:
            reason = replace(reason, need=f"{reason.need}, or {_reason(number, path, fields, schema).need}")
        lines.append(f"  - {reason}")
        lines += excerpts.of(path)
    if len(merged) > _SHOWN_MISTAKES:
        lines.append(f"  and {len(merged) - _SHOWN_MISTAKES:,} more, {len(merged):,} in all")
    raise SpecError("\n".join(lines))


@lru_cache(maxsize=32)
def _schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = model.model_json_schema()
    return schema


def _told_once(mistakes: Sequence[Any], fields: object) -> list[tuple[Any, list[str], Any]]:
    """Mistakes with their paths. Where a field takes values of several forms, each form has its own complaint: the first is reported, or
    that about a part of the value. Where the first is about words and another about whole numbers, that comes third, else None."""
    complaints: dict[tuple[str, ...], list[Any]] = {}
    for item in mistakes:
        complaints.setdefault(tuple(_path(item["loc"], fields)), []).append(item)
    wholes = {path[:length] for path in complaints for length in range(len(path))}
    merged = []
    for path, (item, *others) in complaints.items():
        if path not in wholes:
            number = next((other for other in others if other["type"].startswith(("int_", "greater", "less"))), None)
            merged.append((item, list(path), number if item["type"] == "literal_error" else None))
    return merged


class _Excerpts:
    """Lines of a YAML text that mistakes are in, and the overrides that made others. The text is read once, regardless of their number."""

    def __init__(self, text: bytes | None, overrides: Sequence[str], places: Places) -> None:
        self._text = text
        self._overrides = overrides
        self._places = places

    @cached_property
    def _positions(self) -> Mapping[tuple[str | int, ...], tuple[int, int]]:
        return {} if self._text is None else positions(self._text)

    @cached_property
    def _lines(self) -> list[str]:
        return [] if self._text is None else self._text.decode("utf-8", "replace").splitlines()

    def of(self, path: Sequence[str]) -> list[str]:
        """The override that a path is from; else the line of the text that it leads to, or that of the part of a spec in which it is
        missing, and a caret below."""
        for override in reversed(self._overrides):
            keys = override.partition("=")[0].split(".")
            if list(path[: len(keys)]) == keys:
                return [f"      by --set {printable(override, _SHOWN_CHARACTERS)}"]
        known = self._positions
        in_row = next((length for length in range(len(path), 0, -1) if tuple(path[:length]) in self._places), 0)
        whole = [*self._places.get(tuple(path[:in_row]), path[:in_row]), *path[in_row:]]
        keyed = [tuple(int(part) if part.isdecimal() and as_index else part for part in whole) for as_index in (True, False)]
        begun = [override for override in self._overrides if override.partition("=")[0].split(".")[: len(path)] == list(path)]
        if begun and not any(key in known for key in keyed):  # a part that only an override names
            return [f"      by --set {printable(begun[-1], _SHOWN_CHARACTERS)}"]
        spot = next((known[key[:length]] for length in range(len(whole), 0, -1) for key in keyed if key[:length] in known), None)
        if spot is None:
            return []
        return yaml_text.excerpt(self._lines[spot[0] - 1], *spot)


def _as_data(value: object) -> Any:
    """Parts of specs as data. Other YAML values, such as dates, become text that no field mistakes for another type."""
    return value.model_dump(mode="json") if isinstance(value, pydantic.BaseModel) else str(value)


def _path(location: tuple[Any, ...], fields: Any) -> list[str]:
    """Path in the YAML of a mistake: Pydantic's location without the tags of unions, which are no level of the YAML."""
    parts: list[str] = []
    absent = object()
    here = fields
    for part, following in itertools.zip_longest(location, location[1:]):
        if isinstance(here, dict) and part not in here and following is not None:
            continue
        if parts and here is not absent and not isinstance(here, dict) and not (isinstance(here, list) and isinstance(part, int)):
            continue
        parts.append(printable(str(part), _SHOWN_CHARACTERS))
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = absent
    return parts


def _shown(value: object) -> str:
    """A value as YAML has it, cut where it is long."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else reprlib.repr(value)


_NEEDS = {
    "int": ("wrong_type", "a whole number"),
    "float": ("wrong_type", "a number"),
    "bool": ("wrong_type", "true or false"),
    "string": ("wrong_type", "text"),
    "list": ("wrong_type", "a list"),
    "tuple": ("wrong_type", "a list"),
    "dict": ("wrong_type", "a mapping of fields"),
    "model": ("wrong_type", "a mapping of fields"),
    "dataclass": ("wrong_type", "a mapping of fields"),
}
"""Code and requirement of a mistake, by the prefix of Pydantic's name for it."""


_LENGTHS = {
    "too_short": "a length of at least {}",
    "too_long": "a length of at most {}",
    "string_too_short": "at least {} characters",
    "string_too_long": "at most {} characters",
}
_MISSING = "required field is missing"
_BOUNDS = {"less than or equal to": "at most", "greater than or equal to": "at least"}
_AT_LEAST_OR_MOST = re.compile("|".join(_BOUNDS))


def _missing_tag(name: str, given: object, fields: object, path: Sequence[str], schema: Mapping[str, object]) -> str:
    """A hint for a part of a spec that lacks the field by which alternatives are chosen: a misspelled name, or the possible values."""
    names = list(map(str, given)) if isinstance(given, dict) else []
    joined = next((one for one in names if one.startswith(f"{name}:")), None)
    if joined is not None:
        word = printable(joined, _SHOWN_CHARACTERS)
        return f"YAML takes {word} for one word: write {word.replace(':', ': ', 1)} with a space"
    if near := get_close_matches(name, names, n=1):
        return f"no field is called {printable(near[0], _SHOWN_CHARACTERS)}"
    values = field_values(schema, fields, [*path, name])
    return f"one of {', '.join(values)}" if values else ""


def _reason(item: Any, path: Sequence[str], fields: Any, schema: Mapping[str, Any]) -> Reason:
    field, kind, context = ".".join(path), str(item["type"]), item.get("ctx", {})
    got, hint = _shown(item["input"]), yaml_text.hint(item["input"])
    if kind == "extra_forbidden":
        there_are = sibling_fields(schema, fields, path)
        near = get_close_matches(path[-1], there_are, n=1, cutoff=0.6)
        hint = f"there are {', '.join(there_are)}" if 0 < len(there_are) <= _LISTED_FIELDS else "gemmgen schema lists the fields"
        below = [name for name in fields if path[-1] in sibling_fields(schema, fields, [str(name), path[-1]])] if len(path) == 1 else []
        meant = f"{below[0]}.{path[-1]}" if below else near[0] if near else ""
        return Reason("unknown_field", field, "", "", f"did you mean {meant}?" if meant else hint, "no such field")
    if kind == "missing":
        return Reason("missing_field", field, "", "", fault=_MISSING)
    if kind == "string_pattern_mismatch" and path[-1] == "[key]":
        need = f"a name of ASCII letters, digits and _ that matches {context['pattern']}"
        return Reason("wrong_value", ".".join(path[:-2]), got, need, hint)
    if kind == "union_tag_not_found":
        name = str(context.get("discriminator", "")).strip("'")
        return Reason("missing_field", ".".join([field, name]), "", "", _missing_tag(name, item["input"], fields, path, schema), _MISSING)
    if isinstance(error := context.get("error"), Mismatch):
        got = f"{error.got} at {error.where}" if error.where else error.got
        return Reason(
            "wrong_value", field, printable(got, _SHOWN_MESSAGE), printable(error.need.removeprefix("need "), _SHOWN_MESSAGE), hint
        )
    message = printable(str(item["msg"]), _SHOWN_MESSAGE)
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        choices = str(context.get("expected", context.get("expected_tags", "")))
        value = item["input"]
        if kind == "union_tag_invalid":
            value = context["tag"]
            field, got = ".".join([field, str(context["discriminator"]).strip("'")]), reprlib.repr(value)
        close = get_close_matches(str(value), re.findall(r"'([^']*)'", choices), n=1)
        need = choices if " or " in choices or "," not in choices else f"one of {choices}"
        return Reason("not_a_choice", field, got, need, f"did you mean {close[0]}?" if close else "")
    code, need = _NEEDS.get(kind.partition("_")[0], ("wrong_value", ""))
    if kind.endswith(("_type", "_parsing", "_from_float")) and need:
        return Reason(code, field, got, need, hint)
    if kind.startswith(("greater", "less")):
        bound = message.removeprefix("Input should be ")
        return Reason("out_of_range", field, got, _AT_LEAST_OR_MOST.sub(lambda match: _BOUNDS[match[0]], bound), hint)
    if kind in _LENGTHS:
        limit = next(context[name] for name in ("min_length", "max_length") if name in context)
        return Reason("out_of_range", field, got, _LENGTHS[kind].format(limit), hint)
    need = message.removeprefix("Input should be ").removeprefix("Value error, ")
    return Reason("wrong_value", field, got, need, hint)
