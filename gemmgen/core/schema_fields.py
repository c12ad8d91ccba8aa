"""Fields that a JSON Schema allows: their paths, and those of one place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_MAX_DEPTH = 8
"""Levels of fields in one another; a schema that refers to itself has no end."""


def field_paths(schema: Schema, kinds: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    """The path of every field, in the schema's order, with its values where it lists them; the first position of a list stands for all.

    ``kinds`` picks among alternatives that a field ``kind`` tells apart; without any, all of them are meant.
    """
    wanted = set(kinds)
    paths: dict[str, dict[str, None]] = {}
    for variant in _variants(schema, schema):
        if not wanted or variant.get("properties", {}).get("kind", {}).get("const") in wanted:
            for path, values in _fields(variant, schema, "", 0):
                paths.setdefault(path, {}).update(dict.fromkeys(values))
    return {path: tuple(values) for path, values in paths.items()}


def sibling_fields(schema: Schema, data: object, path: Sequence[str]) -> list[str]:
    """Names of the fields that may stand where the last part of ``path`` does, in the place of ``data`` that it leads to."""
    return list({name: None for node in _place(schema, data, path) for name in node.get("properties", {})})


def field_values(schema: Schema, data: object, path: Sequence[str]) -> list[str]:
    """Values that the last part of ``path`` may have in the place of ``data`` that it leads to, where the schema lists them."""
    fields = (node.get("properties", {}).get(path[-1], {}) for node in _place(schema, data, path))
    return list({str(value): None for field in fields for variant in _variants(field, schema) for value in _values(variant)})


def _place(schema: Schema, data: object, path: Sequence[str]) -> list[Schema]:
    """The alternatives of the schema in the place of ``data`` whose field is the last part of ``path``."""
    nodes, here = [schema], data
    for part in path[:-1]:
        nodes = [below for node in _matching(nodes, schema, here) if (below := _below(node, part)) is not None]
        here = here[int(part)] if isinstance(here, list) else here.get(part) if isinstance(here, dict) else None
    return _matching(nodes, schema, here)


def _matching(nodes: Iterable[Schema], root: Schema, data: object) -> list[Schema]:
    """The alternatives of ``nodes`` whose constant fields have the values that ``data`` gives them; all, where none has."""
    variants = [one for node in nodes for one in _variants(node, root)]
    if not isinstance(data, dict):
        return variants
    fitting = [
        one
        for one in variants
        if all(data.get(name, below["const"]) == below["const"] for name, below in one.get("properties", {}).items() if "const" in below)
    ]
    return fitting or variants


def _below(node: Schema, part: str) -> Schema | None:
    items = node.get("items")
    below: Schema | None = items if isinstance(items, dict) and part.isdecimal() else node.get("properties", {}).get(part)
    return below


def _variants(node: Schema, root: Schema) -> Iterator[Schema]:
    """The alternatives of a schema that are not unions or references themselves."""
    if "$ref" in node:
        yield from _variants(root["$defs"][node["$ref"].rpartition("/")[2]], root)
    elif "anyOf" in node or "oneOf" in node:
        for one in node.get("anyOf", node.get("oneOf", ())):
            yield from _variants(one, root)
    else:
        yield node


def _fields(node: Schema, root: Schema, prefix: str, depth: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    if depth > _MAX_DEPTH:
        return
    for name, below in node.get("properties", {}).items():
        path = f"{prefix}{name}"
        variants = list(_variants(below, root))
        yield path, tuple(str(value) for one in variants for value in _values(one))
        for one in variants:
            yield from _fields(one, root, f"{path}.", depth + 1)
            items = one.get("items")
            if isinstance(items, dict):
                for item in _variants(items, root):
                    yield from _fields(item, root, f"{path}.0.", depth + 1)


def _values(node: Schema) -> list[object]:
    if node.get("type") == "boolean":
        return ["true", "false"]
    values: list[Any] = node.get("enum", [node["const"]] if "const" in node else [])
    return values
