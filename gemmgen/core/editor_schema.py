"""JSON Schemas in a form from which editors report the field that is wrong.

Pydantic describes a choice of models by ``oneOf`` and an OpenAPI keyword, ``discriminator``, which JSON Schema does not define. A validator
then reports that no alternative matches. Here such a choice becomes one condition per value of its tag: a misspelt field is reported by its
name, and a wrong tag by the values that are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]


def for_editors(schema: Schema) -> Schema:
    """A copy of a schema that Pydantic made, with conditions in place of choices by a tag, and a description of every property."""
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    converted: Schema = _converted(schema, definitions)
    return converted


def chosen_by(tag: str, alternatives: Mapping[str, str], definitions: Mapping[str, Schema]) -> Schema:
    """Schema of an object whose field ``tag`` selects one of the alternatives: values of the tag, each with a reference."""
    meanings = [f"{value}: {_first_sentence(_target(reference, definitions))}" for value, reference in alternatives.items()]
    return {
        "type": "object",
        "required": [tag],
        "properties": {tag: {"enum": list(alternatives), "description": "One of:\n\n" + "\n".join(f"- {line}" for line in meanings)}},
        "allOf": [
            {"if": {"required": [tag], "properties": {tag: {"const": value}}}, "then": {"$ref": reference}}
            for value, reference in alternatives.items()
        ],
    }


def _converted(value: object, definitions: Mapping[str, Schema]) -> Any:
    if isinstance(value, list):
        return [_converted(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {
        name: {field: _described(field, _converted(item, definitions), value, definitions) for field, item in part.items()}
        if name == "properties"
        else _converted(part, definitions)
        for name, part in value.items()
    }
    discriminator = schema.pop("discriminator", None)
    if discriminator is not None:
        schema.pop("oneOf", None)
        schema |= chosen_by(discriminator["propertyName"], discriminator["mapping"], definitions)
    either = {part.get("type"): part for part in schema.get("anyOf", ()) if isinstance(part, dict)}
    if either.keys() == {"array", "object"}:  # so that a mistake within a list is reported where it stands
        del schema["anyOf"]
        schema |= {"if": {"type": "object"}, "then": either["object"], "else": either["array"]}
    return schema


def _described(field: str, part: object, owner: Schema, definitions: Mapping[str, Schema]) -> Any:
    """A property with a description: its own, that of the model it holds, or, for a tag, that of its owner."""
    if not isinstance(part, dict) or part.get("description"):
        return part
    if "const" in part:
        text = f"{part['const']}: {_first_sentence(owner)}"
    else:
        references = [part, *part.get("anyOf", ()), *([part["items"]] if isinstance(part.get("items"), dict) else [])]
        texts = [_first_sentence(_target(one["$ref"], definitions)) for one in references if "$ref" in one]
        text = next((description for description in texts if description), "")
    return {**part, "description": text or f"{field}: {_first_sentence(owner)}"}


def _target(reference: str, definitions: Mapping[str, Schema]) -> Schema:
    return definitions.get(reference.rpartition("/")[2], {})


def _first_sentence(schema: Schema) -> str:
    text = " ".join(str(schema.get("description", "")).split())
    return text.partition(". ")[0].rstrip(".:") + "." if text else ""
