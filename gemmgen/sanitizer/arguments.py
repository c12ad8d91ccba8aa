"""Arguments of any kernel as a user writes them: ``f32[1024]=random``, ``f32[4]``, ``i32=7``, ``{p=f32[64]=zeros, n=64}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import ELEMENTS, FLOATS, to_elements, to_numbers
from gemmgen.emulator.textures import Texture
from gemmgen.hardware.tensor_map import MAP_BYTES, TensorMap, problems
from gemmgen.sanitizer.array_files import MAX_ARRAY_BYTES, load_array
from gemmgen.sanitizer.source import UnusableInput
from gemmgen.sanitizer.structures import Field, Layout
from gemmgen.sanitizer.tensor_maps import FORM, PREFIX, parse_tensor_map
from gemmgen.sanitizer.texture_arguments import TEXTURE_FORM, TEXTURE_PREFIX, parse_texture

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.emulator.ptx.syntax import Variable

_MORE_INTEGERS = {"s16": "int16", "u64": "uint64", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
TYPES = {name: element.holder for name, element in ELEMENTS.items()} | _MORE_INTEGERS
"""Each type and the NumPy type that holds it. A kernel from elsewhere may have integer types that gemmgen's kernels lack."""

FILLS = ("zeros", "ones", "random", "range", "@file.npy")
POISON = 0xFF
"""Every byte of an array that starts unwritten; as a float it is a NaN."""

_FORM = re.compile(r"(?P<type>\w+)(?:\[(?P<shape>[^\]]*)\])?(?:=(?P<value>.*))?", re.DOTALL)
_HELP = (
    "an array such as f32[1024]=random or f32[4], a scalar such as i32=7, a structure such as {p=f32[64]=zeros, n=64}, pointers "
    f"such as [f32[64]=zeros, f32[64]=ones], a texture such as {TEXTURE_FORM}, or a tensor map such as {FORM}"
)
_C_TYPES = {
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "unsigned": "uint32",
    "unsigned int": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "size_t": "uint64",
    "short": "int16",
    "unsigned short": "uint16",
    "char": "int8",
    "bool": "uint8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "long": "int64",
    "unsigned long": "uint64",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "uint8_t": "uint8",
    "int8_t": "int8",
    "__half": "float16",
    "half": "float16",
}
_DOUBLE_COMPLEX = ("double2", "cuDoubleComplex", "cuda::std::complex<double>")
_NUMPY_NAMES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "int8": "s8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "s32",
    "uint32": "u32",
    "int64": "s64",
    "uint64": "u64",
    "bool": "u8",
}


@dataclass(frozen=True)
class KernelArgument:
    """One argument: the user's text, and its value: an array, a NumPy scalar, a structure's bytes, or None for a null pointer.

    `pointers` are places in a structure or in an array of pointers, in bytes, with the labels and the arrays that they lead to, or the
    tensor maps that lie there.
    """

    text: str
    type: str
    value: Any
    initialised: bool = True
    """True if an array was filled."""
    pointers: tuple[tuple[int, str, KernelArgument], ...] = ()
    tensor_map: TensorMap | None = None
    """Value that the parameter takes in place of a pointer to the array."""
    texture: Texture | None = None
    """Texture over the array, whose handle the parameter takes."""

    @property
    def is_array(self) -> bool:
        import numpy as np

        return isinstance(self.value, np.ndarray)

    def fresh(self, copies: dict[int, npt.NDArray[Any]]) -> KernelArgument:
        """A copy of the argument in separate memory. `copies` holds the copies so far by the original's identity, so that an array that
        several arguments share stays one array."""
        value = self.value
        if self.is_array and (value := copies.get(id(self.value))) is None:
            value = copies[id(self.value)] = self.value.copy()
        return replace(self, value=value, pointers=tuple((place, label, target.fresh(copies)) for place, label, target in self.pointers))

    @property
    def array_bytes(self) -> int:
        """Bytes of all its arrays."""
        return (self.value.nbytes if self.is_array else 0) + sum(target.array_bytes for _, _, target in self.pointers)

    def numbers(self) -> npt.NDArray[Any]:
        """An array's elements as numbers."""
        return to_numbers(self.type, self.value)

    def arrays(self, name: str) -> Iterator[tuple[str, KernelArgument]]:
        """The arrays that an argument consists of, and their names: `y`, `s.p`, `rows[1]`."""
        if self.is_array and not self.pointers:
            yield name, self
        for _, label, target in self.pointers:
            yield from target.arrays(name + label)

    def launched(self, name: str, written: dict[int, npt.NDArray[np.bool_]]) -> Any:
        """The emulator's form of it. `written` holds the flags of arrays that start unwritten, by the array's identity."""
        from gemmgen.emulator import Buffer, Struct

        pointers: tuple[tuple[int, Any], ...] = tuple(
            (place, target.launched(name + label, written)) for place, label, target in self.pointers
        )
        if self.is_array:
            buffer = Buffer(self.value, offset_bytes=0, name=name, written=self._written(written), pointers=pointers)
            if self.texture is not None:
                return replace(self.texture, array=replace(buffer, writable=False))
            return buffer if self.tensor_map is None else replace(self.tensor_map, base=buffer)
        return Struct(self.value, pointers) if isinstance(self.value, bytes) else self.value

    def _written(self, flags: dict[int, npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_] | None:
        import numpy as np

        return None if self.initialised else flags.setdefault(id(self.value), np.zeros(self.value.nbytes, np.bool_))


MAX_TOTAL_BYTES = 2 << 30
"""Limit for all arrays of a run, and for all variables of a module."""
MAX_AXES = 32
"""Limit of an array's axes; NumPy has 64."""
DEEPEST = 16
"""Structures and arrays of pointers inside each other."""

Layouts = Callable[[], Layout]
"""The layout of the structure that a parameter takes; raises ``UnusableInput`` if it is not known."""


def within_memory(arguments: Iterable[KernelArgument]) -> list[KernelArgument]:
    """All arguments, each made while those before it leave room. Raises ``UnusableInput`` if their arrays are too large together."""
    made: list[KernelArgument] = []
    total = 0
    for argument in arguments:
        made.append(argument)
        total += argument.array_bytes
        if total > MAX_TOTAL_BYTES:
            raise UnusableInput(
                f"the first {len(made)} arrays take {total / 2**30:.3g} GiB together, need at most {MAX_TOTAL_BYTES >> 30} GiB: "
                "the emulator keeps several bytes for each; smaller arrays show the same mistakes"
            )
    return made


def _is_list(text: str) -> bool:
    """True for pointers; ``[4]`` is an array whose type is missing."""
    return text.startswith("[") and text.endswith("]") and len(text) > 2 and not text[1:-1].strip().isdecimal()


def has_parts(text: str) -> bool:
    """True if an argument is a structure, pointers or a file's bytes: its meaning depends on the kernel, or on its own arrays."""
    text = text.strip()
    return text.startswith(("{", "@")) or _is_list(text)


def parse_argument(text: str, index: int, layout: Layouts | None = None, filled: bool = True) -> KernelArgument:
    """The argument that ``text`` describes; random values depend on ``index`` only. Unless ``filled``, arrays hold anything: that tells
    cheaply whether the text means something. Raises ``UnusableInput``."""
    text = text.strip()
    if _depth(text) > DEEPEST:
        raise _wrong(text, f"braces and brackets inside each other, need at most {DEEPEST}")
    if text == "null":
        return KernelArgument(text, "null", None)
    if text.startswith(PREFIX):
        described = parse_tensor_map(text, tuple(TYPES), lambda why: _wrong(text, why))
        array = _array(text, described.type, ",".join(map(str, described.shape)), described.content, index, filled)
        return KernelArgument(text, described.type, array, described.content is not None, tensor_map=described.map)
    if text.startswith(TEXTURE_PREFIX):
        texel = parse_texture(text, tuple(TYPES), lambda why: _wrong(text, why))
        array = _array(text, texel.type, ",".join(map(str, texel.shape)), texel.content, index, filled)
        return KernelArgument(text, texel.type, array, texel.content is not None, texture=texel.texture)
    if text.startswith("{"):
        if layout is None:
            raise _wrong(text, "this parameter takes no structure")
        return _structure(text, dict(_fields(text)), layout(), index)
    if _is_list(text):
        return _pointers(
            text, within_memory(parse_argument(part, 100 * index + number, layout) for number, part in enumerate(_parts(text)))
        )
    if text.startswith("@"):
        return KernelArgument(text, "struct", _file_bytes(text))
    match = _FORM.fullmatch(text)
    if match is None:
        raise _wrong(text, f"expected {_HELP}")
    kind, shape, value = match["type"], match["shape"], match["value"]
    if kind not in TYPES:
        for prefix, example in ((PREFIX, "tensormap[bf16, 64x128, box 64x64]=random"), (TEXTURE_PREFIX, "texture[f32, 64x128]=random")):
            if text.startswith(prefix.rstrip("[")):
                raise _wrong(text, f"the contents are missing: {example}")
        if text.isdecimal():
            raise _wrong(text, f"a number needs its type, s32={text} or f32={text} for example")
        if kind in _C_TYPES and (same := next((known for known in TYPES if TYPES[known] == _C_TYPES[kind]), None)):
            raise _wrong(text, f"{kind!r} is not a type here; did you mean {same}?")
        raise _wrong(text, f"{kind!r} is not a known type; the types are {', '.join(TYPES)}")
    try:
        if shape is not None:
            return KernelArgument(text, kind, _array(text, kind, shape, value, index, filled), value is not None)
        if value is None:
            raise _wrong(text, f"a scalar needs a value, {kind}=7 for example; an array needs a length, {kind}[1024]")
        return KernelArgument(text, kind, _scalar(text, kind, value))
    except (MemoryError, OverflowError):
        raise _wrong(text, "this is more than fits into memory") from None


def argument_of(value: object, index: int, c_type: str = "", layout: Layouts | None = None) -> KernelArgument:
    """The argument that a Python value is: an array (anything that NumPy can view), a number, a mapping of members, a list of arrays,
    None, bytes, or text as on the command line. `c_type` decides the type of a Python number. Raises ``UnusableInput``."""
    import numpy as np

    what = f"argument {index}"
    if value is None:
        return KernelArgument("None", "null", None)
    if isinstance(value, KernelArgument):
        return value
    if isinstance(value, str):
        return parse_argument(value, index, layout)
    if isinstance(value, Texture):
        return replace(argument_of(value.array, index), texture=value)
    if isinstance(value, TensorMap):
        return _mapped(value, index)
    if isinstance(value, bytes | bytearray | np.void):
        return KernelArgument("bytes", "struct", value.tobytes() if isinstance(value, np.void) else bytes(value))
    if isinstance(value, Mapping):
        if layout is None:
            raise UnusableInput(f"{what}: this parameter takes no structure")
        return _structure(what, dict(value), layout(), index)
    if isinstance(value, complex) and not isinstance(value, np.generic):
        value = np.complex128(value) if c_type in _DOUBLE_COMPLEX else np.complex64(value)
    if isinstance(value, bool | int | float | np.generic):
        dtype = np.dtype(_C_TYPES[c_type]) if c_type in _C_TYPES else getattr(value, "dtype", None)
        if dtype is None:
            dtype = np.dtype(np.float32 if isinstance(value, float) else np.int32)
            if isinstance(value, int) and not -(2**31) <= value < 2**31:
                dtype = np.dtype(np.int64)
        if isinstance(value, float | np.floating) and dtype.kind in "iu" and (not np.isfinite(value) or value != int(value)):
            raise UnusableInput(f"{what}: {value} for a parameter of type {c_type or dtype}")
        try:
            scalar = np.array([value]).astype(dtype)[0] if isinstance(value, float | np.generic) else np.array([value], dtype)[0]
        except OverflowError:
            raise UnusableInput(f"{what}: {value} does not fit into {c_type or dtype}") from None
        return KernelArgument(repr(value), _NUMPY_NAMES.get(str(dtype), str(dtype)), scalar)
    if isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
        return _pointers(what, within_memory(argument_of(item, index) for item in value))
    if isinstance(value, Sequence) and len(value) > MAX_ARRAY_BYTES:
        raise _too_large(what, len(value))
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise UnusableInput(f"{what}: {type(value).__name__} is neither an array nor a number")
    if str(array.dtype) not in (*_NUMPY_NAMES, "complex64", "complex128"):
        raise UnusableInput(f"{what}: an array of {array.dtype}; its elements may be {', '.join(_NUMPY_NAMES)}, or a view of their bytes")
    if array.nbytes > MAX_ARRAY_BYTES:
        raise _too_large(what, array.nbytes)
    text = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    return KernelArgument(text, _NUMPY_NAMES.get(str(array.dtype), str(array.dtype)), np.array(array, order="C"))


def _too_large(what: str, size: int) -> UnusableInput:
    got = f"{size / 2**30:.3g} GiB"
    return UnusableInput(f"{what}: {got}, need at most {MAX_ARRAY_BYTES >> 30} GiB: the emulator keeps several bytes for each")


def _mapped(value: TensorMap, index: int) -> KernelArgument:
    """The argument for a tensor map with its array as `base`. Raises ``UnusableInput`` with every reason that the driver would have."""
    if value.base is None:
        raise UnusableInput(f"argument {index}: a tensor map needs its array, TensorMap(..., base=array)")
    wrong = problems(value)
    if wrong:
        raise UnusableInput(
            "\n  - ".join([f"argument {index}: CUDA does not allow this tensor map (axes count from the innermost):", *wrong])
        )
    array = argument_of(value.base, index)
    if not array.is_array or array.pointers or array.texture is not None or array.tensor_map is not None:
        raise UnusableInput(f"argument {index}: the base of a tensor map has to be an array, got {type(value.base).__name__}")
    if value.array_bytes > array.value.nbytes:
        raise UnusableInput(
            f"argument {index}: a tensor map over {value.array_bytes} bytes, from the first to the last element, of an array of "
            f"{array.value.nbytes} bytes"
        )
    return replace(array, text=f"a tensor map over {array.text}", tensor_map=replace(value, base=None))


def _depth(text: str) -> int:
    """Deepest nesting of brackets and braces."""
    depth = deepest = 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    return deepest


def _parts(text: str) -> list[str]:
    """Texts between the commas of `{...}` or `[...]`, braces and brackets inside left whole."""
    pieces, depth, piece = [], 0, ""
    for character in text[1:-1]:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            pieces.append(piece)
            piece = ""
        else:
            piece += character
    return [part.strip() for part in (*pieces, piece) if part.strip()]


def _fields(text: str) -> Iterator[tuple[str, str]]:
    if not text.endswith("}"):
        raise _wrong(text, "the closing brace is missing")
    for part in _parts(text):
        match = re.fullmatch(r"(\w+)\s*[=:]\s*(.*)", part, re.DOTALL)
        if match is None:
            raise _wrong(text, f"{part!r} is no member with a value, such as n=64")
        yield match[1], match[2]


def _overlap(one: Field, other: Field) -> bool:
    return one.offset < other.offset + other.count * other.bytes and other.offset < one.offset + one.count * one.bytes


def _structure(text: str, given: Mapping[str, object], layout: Layout, index: int) -> KernelArgument:
    there = ", ".join(field.name for field in layout.fields)
    for name in given:
        if layout.field(name) is None:
            raise _wrong(text, f"{layout.name} has no member {name}; it has {there}")
    content = bytearray(layout.bytes)
    pointers = []
    for position, field in enumerate(layout.fields):
        if field.name not in given:
            # Members of a union share their bytes: one of them has the value.
            if any(other.name in given and _overlap(field, other) for other in layout.fields):
                continue
            raise _wrong(text, f"the member {field.name} of {layout.name} has no value; it has {there}")
        value = given[field.name]
        if field.kind == "pointer":
            for place, label, target in _member_pointers(text, field, value, 100 * index + position):
                if target.is_array:
                    pointers.append((field.offset + place, f".{field.name}{label}", target))
                    within_memory(member for _, _, member in pointers)
                elif target.value is not None:
                    raise _wrong(text, f"the member {field.name} of {layout.name} is a pointer")
        elif field.kind == "struct" and (maps := _member_maps(text, field, value, 100 * index + position)):
            pointers += maps
            within_memory(member for _, _, member in pointers)
        else:
            numbers = _member_bytes(text, field, value)
            content[field.offset : field.offset + len(numbers)] = numbers
    return KernelArgument(text, "struct", bytes(content), pointers=tuple(pointers))


def _member_pointers(text: str, field: Field, value: object, index: int) -> list[tuple[int, str, KernelArgument]]:
    """Targets of the pointers of a member, each with its place and its label: `[1]` of several."""
    if field.count == 1:
        return [(0, "", _pointed(text, argument_of(value, index)))]
    given = _parts(value) if isinstance(value, str) and value.startswith("[") else value
    if not isinstance(given, list | tuple) or len(given) != field.count:
        raise _wrong(text, f"the member {field.name} takes a list of {field.count} arrays")
    return [(field.bytes * number, f"[{number}]", _pointed(text, argument_of(item, index))) for number, item in enumerate(given)]


def _pointed(text: str, target: KernelArgument) -> KernelArgument:
    """The target of a pointer: a tensor map lies in memory then."""
    return _pointers(text, [target]) if target.tensor_map is not None else target


def _member_maps(text: str, field: Field, value: object, index: int) -> tuple[tuple[int, str, KernelArgument], ...]:
    """The tensor maps of a member that is one, or an array of them; none if the value is something else."""
    given = value.strip() if isinstance(value, str) else value
    if isinstance(given, str):
        parts: Sequence[Any] = _parts(given) if given.startswith("[") else [given]
    else:
        parts = given if isinstance(given, list | tuple) else [given]
    if not all(_is_map(part) for part in parts):
        return ()
    if field.bytes != MAP_BYTES or field.count != len(parts):
        raise _wrong(text, f"the member {field.name} takes {field.count} elements of {field.bytes} bytes, got {len(parts)} tensor maps")
    members = [argument_of(part, 10 * index + number) for number, part in enumerate(parts)]
    if field.count == 1:
        return ((field.offset, f".{field.name}", members[0]),)
    return _maps(field.offset, f".{field.name}", members)


def _is_map(value: object) -> bool:
    if isinstance(value, KernelArgument):
        return value.tensor_map is not None
    return isinstance(value, TensorMap) or (isinstance(value, str) and value.startswith(PREFIX))


def _member_bytes(text: str, field: Field, value: object) -> bytes:
    """The bytes of a member that is no pointer."""
    import numpy as np

    size = field.count * field.bytes
    if isinstance(value, bytes) and len(value) == size:
        return value
    if field.kind == "struct" or field.bytes > 8:
        if isinstance(value, np.ndarray | np.generic) and value.nbytes == size:
            return value.tobytes()
        raise _wrong(text, f"the member {field.name} is a structure of {size} bytes; it takes bytes, or a NumPy array of as many")
    values = value
    if isinstance(value, str):
        plain = re.sub(r"^\w+=", "", value)
        pieces = _parts(plain) if plain.startswith(("[", "{")) else [plain]
        try:
            if not plain.isascii():
                raise ValueError
            values = [float(piece) if field.kind == "f" else int(piece, 0) for piece in pieces]
        except ValueError:
            raise _wrong(text, f"{value!r} is no value of the member {field.name}") from None
    names = {"f": "f", "s": "i", "u": "u"}
    try:
        array = np.atleast_1d(np.asarray(values, np.dtype(f"{names[field.kind]}{field.bytes}")))
    except (OverflowError, ValueError, TypeError):
        raise _wrong(text, f"{value!r} does not fit into the member {field.name}") from None
    if array.size != field.count:
        raise _wrong(text, f"the member {field.name} takes {field.count} values, got {array.size}")
    return array.tobytes()


def _pointers(text: str, targets: Sequence[KernelArgument]) -> KernelArgument:
    """An array of pointers to arrays, or of tensor maps."""
    import numpy as np

    for target in targets:
        if not target.is_array and target.value is not None:
            raise _wrong(text, f"{target.text!r} in an array of pointers is no array")
    if targets and all(target.tensor_map is not None for target in targets):
        return KernelArgument(text, "u64", np.zeros(len(targets) * MAP_BYTES // 8, np.uint64), pointers=_maps(0, "", targets))
    places = tuple((8 * number, f"[{number}]", target) for number, target in enumerate(targets) if target.is_array)
    return KernelArgument(text, "u64", np.zeros(len(targets), np.uint64), pointers=places)


def _maps(offset: int, label: str, maps: Sequence[KernelArgument]) -> tuple[tuple[int, str, KernelArgument], ...]:
    """Tensor maps that lie one behind the other."""
    return tuple((offset + MAP_BYTES * number, f"{label}[{number}]", each) for number, each in enumerate(maps))


def _file_bytes(text: str) -> bytes:
    try:
        return load_array(text[1:]).tobytes()
    except ValueError as error:
        raise _wrong(text, f"{text[1:]}: {error}") from None


def _array(text: str, kind: str, shape: str, fill: str | None, index: int, filled: bool) -> npt.NDArray[Any]:
    import numpy as np

    dtype = np.dtype(TYPES[kind])
    from_file = fill is not None and fill.startswith("@")
    if not shape.strip() and from_file:
        extents = None
    else:
        try:
            if not shape.isascii():  # int takes the digits of every script
                raise ValueError
            extents = tuple(int(part) for part in re.split(r"[,x]", shape))
        except ValueError:
            raise _wrong(text, f"[{shape}] is no length; expected a number, or several such as 64x128") from None
        if min(extents) < 0:
            raise _wrong(text, "a length cannot be negative")
        if len(extents) > MAX_AXES:
            raise _wrong(text, f"{len(extents)} axes, need at most {MAX_AXES}")
        if prod(extents) * dtype.itemsize > MAX_ARRAY_BYTES:
            raise _too_large(f"--arg {text!r}", prod(extents) * dtype.itemsize)
    if fill is not None and from_file:
        return _from_file(text, fill[1:], dtype, extents)
    assert extents is not None
    size = prod(extents)
    if not filled and (fill is None or fill in FILLS):
        return np.empty(extents, dtype)
    if fill is None:
        return np.full(size * dtype.itemsize, POISON, np.uint8).view(dtype).reshape(extents)
    values: npt.NDArray[Any]
    match fill:
        case "zeros":
            return np.zeros(extents, dtype)
        case "ones":
            return np.full(extents, _elements(kind, np.ones(1))[0], dtype)
        case "range":
            values = np.arange(size)
        case "random":
            values = _random(kind, size, np.random.default_rng(index))
        case _:
            raise _wrong(text, f"{fill!r} fills no array; it may be {', '.join(FILLS)}, or left out: unwritten")
    return _elements(kind, values).reshape(extents)


def _from_file(text: str, name: str, dtype: np.dtype[Any], extents: tuple[int, ...] | None) -> npt.NDArray[Any]:
    import numpy as np

    try:
        values = load_array(name)
    except ValueError as error:
        raise _wrong(text, f"{name}: {error}") from None
    if values.dtype != dtype:
        raise _wrong(text, f"{name} holds {values.dtype}, this type needs {dtype}")
    if extents is not None and values.size != prod(extents):
        raise _wrong(text, f"{name} holds {values.size} elements, not {prod(extents)}")
    return np.ascontiguousarray(values if extents is None else values.reshape(extents))


def _random(kind: str, size: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Reals from -1 to 1; integers from -100 to 100, or from 0 where there is no sign."""
    if kind in FLOATS:
        return rng.uniform(-1.0, 1.0, size)
    return rng.integers(0 if kind[0] == "u" else -100, 101, size)


def _scalar(text: str, kind: str, value: str) -> Any:
    import numpy as np

    dtype = np.dtype(TYPES[kind])
    try:
        if not value.isascii():  # int and float take the digits of every script
            raise ValueError
        number = float(value) if kind in FLOATS else int(value, 0)
    except ValueError:
        raise _wrong(text, f"{value!r} is no value of type {kind}") from None
    if isinstance(number, int):
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise _wrong(text, f"{value} does not fit; {kind} holds {limits.min} to {limits.max}")
    return _elements(kind, np.array([number], np.float64 if isinstance(number, float) else dtype))[0]


def _elements(kind: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

    if kind in FLOATS:
        return to_elements(kind, values)
    with np.errstate(over="ignore"):
        return values.astype(TYPES[kind])


def _wrong(text: str, why: str) -> UnusableInput:
    return UnusableInput(f"--arg {text!r}: {why}")


def check_count(entry: str, parameters: Sequence[Variable], names: Sequence[str], count: int) -> None:
    """Raises ``UnusableInput``, with the kernel's signature, if this is not the number of its arguments."""
    if count != len(parameters):
        takes = f"{entry} takes {len(parameters)} argument{'s' * (len(parameters) != 1)}, got {count}"
        raise UnusableInput(f"{takes}\n{signature(entry, parameters, names)}")


def check_arguments(
    entry: str, parameters: Sequence[Variable], names: Sequence[str], arguments: Sequence[KernelArgument], types: Sequence[str] = ()
) -> None:
    """Raises ``UnusableInput``, with the kernel's signature, if the arguments cannot be passed to the parameters; with their `types` in
    C++, also if an array has elements of another size."""
    check_count(entry, parameters, names, len(arguments))
    problem = ""
    if parameters:
        for index, (parameter, name, argument) in enumerate(zip(parameters, names, arguments, strict=True)):
            if isinstance(argument.value, bytes):
                wrong = parameter.size != len(argument.value)
                given = f"{len(argument.value)} bytes"
            elif argument.texture is not None:
                wrong = parameter.size != 8 or parameter.type[0] == "f"
                given = "a texture"
            elif argument.tensor_map is not None:
                wrong = parameter.size != MAP_BYTES
                given = f"a tensor map, {MAP_BYTES} bytes by value"
            elif argument.is_array or argument.value is None:
                wrong = parameter.size != 8 or parameter.type[0] == "f"
                given = "an array" if argument.is_array else "a null pointer"
            else:
                wrong = parameter.size != argument.value.itemsize
                given = f"{argument.value.itemsize} bytes"
            if wrong:
                problem = f"argument {index} ({name}) of {entry} is {_describe(parameter)}; {argument.text!r} is {given}"
                break
            if types[index : index + 1] == ("cudaTextureObject_t",) and argument.is_array and argument.texture is None:
                problem = f"argument {index} ({name}) of {entry} is a texture; {argument.text!r} is an array: "
                problem += "write texture[f32, 64x128]=random, or in Python gemmgen.emulator.Texture(array)"
                break
            if index < len(types) and _has_other_elements(argument, types[index]):
                problem = f"argument {index} ({name}) of {entry} is {types[index]}; {argument.text!r} has elements of another size"
                problem += " (a view of its bytes passes: u8[...], or array.view(np.uint8))"
                break
    if problem:
        raise UnusableInput(f"{problem}\n{signature(entry, parameters, names)}")


def _has_other_elements(argument: KernelArgument, c_type: str) -> bool:
    """True for an array of doubles where a kernel takes `float*`, which NumPy makes easily; bytes and pairs may be anything."""
    import numpy as np

    known = _C_TYPES.get(c_type.removesuffix("*")) if c_type.endswith("*") else None
    if known is None or not argument.is_array or argument.pointers or argument.texture is not None or argument.tensor_map is not None:
        return False
    sizes = {np.dtype(known).itemsize, argument.value.dtype.itemsize}
    return len(sizes) == 2 and 1 not in sizes and argument.value.dtype.kind != "c"


def signature(entry: str, parameters: Sequence[Variable], names: Sequence[str]) -> str:
    """The parameters of a kernel, one a line."""
    lines = [f"  --arg {index}: {name}, {_describe(p)}" for index, (p, name) in enumerate(zip(parameters, names, strict=True))]
    return "\n".join([f"{entry} takes{' no arguments' if not lines else ':'}", *lines])


def _describe(parameter: Variable) -> str:
    if parameter.count != 1:
        return f"a struct of {parameter.size} bytes"
    if parameter.type[0] == "f":
        return f"a {parameter.size * 8}-bit float"
    if parameter.size == 8:
        return "a pointer or a 64-bit value"
    return f"a {parameter.size * 8}-bit value"
