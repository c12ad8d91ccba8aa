"""Random specs out of the JSON Schema: mostly of the right shape, now and then hostile, the same for the same seed."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kernels.epilogue.drawn_formulas import SPACES, drawn

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
_LARGE_ONE_IN = 10
"""One number in so many is as large as the schema allows, where moderate ones are asked for."""
_MODERATE = 512
_FORMULA_ONE_IN = 4
_SHARES = {"gemm": 52, "reduction": 16, "conv2d": 12, "elementwise": 5, "cpu_gemm": 5, "quantise": 4, "rows": 6}
"""Percentages in which the kinds are drawn."""
_SIZES = (
    "m",
    "n",
    "k",
    "p",
    "q",
    "stages",
    "slices",
    "persistent_blocks",
    "unroll",
    "threads",
    "columns",
    "rows",
    "lanes",
    "group",
    "consumers",
)
"""Fields of which a kernel's length and work depend."""


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


def mechanism(spec: dict[str, Any]) -> str:
    """The kind of a spec and the way in which it computes: ``gemm tiled``, ``gemm mma_sync, block scales``."""
    ways = [spec.get(field) or {} for field in ("mainloop", "strategy", "loops")]
    found = [way.get("strategy") or way.get("name") for way in ways if isinstance(way, dict)]
    arithmetic = spec.get("arithmetic") or {}
    words = [spec["kind"], *(str(word) for word in found if word)]
    marks = ["block scales"] if spec.get("scales") and spec["kind"] == "gemm" else []
    marks += ["split precision"] if isinstance(arithmetic, dict) and arithmetic.get("f32_by") else []
    mainloop, decomposition = spec.get("mainloop"), spec.get("decomposition")
    marks += ["sparse"] if isinstance(mainloop, dict) and mainloop.get("sparse") else []
    marks += ["two products"] if spec.get("dual") else []
    marks += [str(decomposition["scheme"])] if isinstance(decomposition, dict) and "scheme" in decomposition else []
    marks += [str(spec["batch"])] if isinstance(spec.get("batch"), str) and spec["batch"] != "none" else []
    return ", ".join([" ".join(words), *marks])


@cache
def _mechanisms() -> dict[str, dict[str, list[str]]]:
    """Names of the shipped specs, by kind and mechanism."""
    found: dict[str, dict[str, list[str]]] = {kind: {} for kind in _SHARES}
    for name, spec in _shipped().items():
        found[spec["kind"]].setdefault(mechanism(spec), []).append(name)
    return found


def _sizes(fields: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Numbers of a spec on which the length and the work of its kernel depend, as objects and names in them."""
    for name, value in fields.items():
        if isinstance(value, dict):
            if name not in ("epilogue", "operations", "multiple_of"):
                yield from _sizes(value)
        elif name in _SIZES and isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield fields, name


class SpecMaker:
    """Makes specs from one seed."""

    def __init__(self, seed: int, hostility: float = 0.03, moderate: bool = False) -> None:
        """``hostility`` is the share of values that are replaced by something that nobody should write; ``moderate`` makes large numbers
        rare."""
        self.rng = random.Random(seed)
        self.hostility = hostility
        self.moderate = moderate
        self._schema = _schema()
        self._shipped = _shipped()

    def whole(self) -> Any:
        """A spec of which every field is random."""
        return self.value(self._schema, 0)

    def varied(self, changes: int = 3) -> dict[str, Any]:
        """A shipped spec with a few fields changed to other values that the schema allows."""
        return self._changed(copy.deepcopy(self._shipped[self.rng.choice(sorted(self._shipped))]), changes)

    def spread(self, accepted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """A varied spec of a mechanism drawn from all alike of its kind, one in four with a drawn formula as its epilogue if its kind takes
        one. Three in four are made small: their sizes are halved as long as ``accepted`` takes the result."""
        (kind,) = self.rng.choices(list(_SHARES), list(_SHARES.values()))
        alike = _mechanisms()[kind]
        spec = copy.deepcopy(self._shipped[self.rng.choice(alike[self.rng.choice(sorted(alike))])])
        if spec["kind"] in SPACES and self.rng.randrange(_FORMULA_ONE_IN) == 0:
            field = "operations" if spec["kind"] == "elementwise" else "epilogue"
            spec[field] = drawn(self.rng, SPACES[spec["kind"]])
        if self.rng.randrange(4):
            spec = self._smaller(spec, accepted)
        return self._changed(spec, 3)

    def _smaller(self, spec: dict[str, Any], accepted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The spec with sizes halved, some together: a tile has to remain a multiple of those within."""
        for _ in range(self.rng.randint(4, 12)):
            tried = copy.deepcopy(spec)
            sizes = list(_sizes(tried))
            if not sizes:
                break
            name = self.rng.choice(sizes)[1]
            chosen = [place for place in sizes if place[1] == name]
            for fields, field in chosen if self.rng.random() < 0.6 else [self.rng.choice(chosen)]:
                fields[field] //= 2
            if accepted(tried):
                spec = tried
        return spec

    def _changed(self, spec: dict[str, Any], changes: int) -> dict[str, Any]:
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
        if self.moderate and low <= _MODERATE and self.rng.randrange(_LARGE_ONE_IN):
            high = min(high, _MODERATE)
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
