"""Random specs out of the JSON Schema: mostly of the right shape, now and then hostile, the same for the same seed."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from functools import cache
from typing import Any

from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import json_schema, spec_fields

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    -(2**63),
    10**40,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x" * 3000,
    "\x1b[2J",
    "\ud800",
    "../../up",
    "{{ 7*7 }}",
    "{% raw %}",
    "'; DROP",
    '"); asm("trap',
    "\\",
    "a\nb",
    [],
    {},
    [[]],
    {"": None},
    [None] * 50,
    "yes",
    "0o17",
    "1:00",
    {"op": "scale"},
)
_DEEPEST = 12


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    return {name: spec_fields(path) for name, path in sorted(shipped_specs().items())}


@cache
def _schema() -> dict[str, Any]:
    return json_schema()


@cache
def sources_digest() -> str:
    """Identity of all that the specs of a seed depend on besides it: the schema and the specs that come with gemmgen."""
    return hashlib.sha256(json.dumps([_schema(), _shipped()], sort_keys=True).encode()).hexdigest()[:16]


class SpecMaker:
    """Makes specs from one seed."""

    def __init__(self, seed: int, hostility: float = 0.03) -> None:
        """``hostility`` is the share of values that are replaced by something that nobody should write."""
        self.rng = random.Random(seed)
        self.hostility = hostility
        self._schema = _schema()
        self._shipped = _shipped()

    def whole(self) -> Any:
        """A spec of which every field is random."""
        return self.value(self._schema, 0)

    def varied(self, changes: int = 3) -> dict[str, Any]:
        """A shipped spec with a few fields changed to other values that the schema allows."""
        spec = copy.deepcopy(self._shipped[self.rng.choice(sorted(self._shipped))])
        for _ in range(self.rng.randint(1, changes)):
            fields = self._properties(self._variant(spec["kind"]))
            here: Any = spec
            name = self.rng.choice(sorted(set(fields) - {"kind", "schema_version", "label", "description"}))
            while True:
                inner = self._resolved(fields[name])
                if isinstance(here.get(name), dict) and self.rng.random() < 0.8 and (below := self._properties(inner, here[name])):
                    here, fields = here[name], below
                    name = self.rng.choice(sorted(below))
                    continue
                here[name] = self.value(fields[name], 1)
                break
        return spec

    def value(self, schema: dict[str, Any], depth: int) -> Any:
        """A value that a schema allows, unless it is hostile."""
        rng = self.rng
        if depth and rng.random() < self.hostility:
            return copy.deepcopy(rng.choice(HOSTILE))
        schema = self._resolved(schema)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self.value(rng.choice(schema[union]), depth)
        if "const" in schema or "enum" in schema:
            return schema["const"] if "const" in schema else rng.choice(schema["enum"])
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                count = rng.randint(0, min(schema.get("maxItems", 4), 4)) if depth < _DEEPEST else 0
                return [self.value(schema.get("items", {}), depth + 1) for _ in range(max(count, schema.get("minItems", 0)))]
            case "integer":
                return self._integer(schema)
            case "number":
                return rng.choice([0.0, 1.0, -2.5, 0.5, 3.0e38, 1e-40, rng.uniform(-10, 10)])
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
        return rng.choice(["x", "two words", "größer"])

    def _integer(self, schema: dict[str, Any]) -> int:
        low, high = schema.get("minimum", -8), schema.get("maximum", 1 << 20)
        usual = [size for size in (1, 2, 3, 4, 8, 16, 32, 64, 128, 256) if low <= size <= high]
        if usual and self.rng.random() < 0.8:
            return self.rng.choice(usual)
        return self.rng.choice([low, high, self.rng.randint(low, high)])

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        required = set(schema.get("required", ()))
        chance = 0.35 if depth < _DEEPEST else 0.0
        chosen = {
            name: self.value(part, depth + 1)
            for name, part in schema.get("properties", {}).items()
            if name in required or self.rng.random() < chance
        }
        if self.rng.random() < self.hostility:
            chosen[self.rng.choice(["colour", "", "\x1b", "x" * 500])] = 1
        return chosen

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self._schema["$defs"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _variant(self, kind: str) -> dict[str, Any]:
        variants = [self._resolved(part) for part in self._schema["anyOf"]]
        return next(part for part in variants if part["properties"]["kind"].get("const") == kind)

    def _properties(self, schema: dict[str, Any], value: Any = None) -> dict[str, Any]:
        """The fields of an object's schema; of a union, those of the first member that has all that ``value`` has."""
        for union in ("anyOf", "oneOf"):
            for part in schema.get(union, ()):
                found = self._properties(self._resolved(part))
                if found and set(value or ()) <= set(found):
                    return found
        return dict(schema.get("properties", {}))
