"""Two kernels, or a kernel and an expression, over a finite field: whether they are the same function of their arrays.

Arrays of floating-point numbers are filled with random residues, regardless of their contents. The answer is a probability, as
`gemmgen.emulator.arithmetic` explains, and nothing is claimed for kernels whose data decide about branches, addresses or choices, or which
compute with the bits of numbers.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import GemmgenError, TimeIsUp
from gemmgen.sanitizer.arguments import KernelArgument
from gemmgen.sanitizer.launches import Launch, Run, Settings, run_launches
from gemmgen.sanitizer.source import KernelCode, UnusableInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.emulator.data_loads import DataLoads

    Array = npt.NDArray[Any]

FLOATS = {"f32": 31, "f16": 16, "bf16": 16}
"""Types that are drawn from the field, and their bits that count."""
MIN_DEGREE = 3
"""Degree that probabilities are stated for at least: products of two arrays with a scalar."""
_SCALAR_LIMIT = 0x7F800000
_GROSS = 2.0**-5
"""Difference of results for ordinary numbers, relative to the largest one, that no roundings make."""
WIDE_RUNS = 4
"""Runs on numbers of many sizes."""
_WIDEST = {"f32": 100, "bf16": 100, "f16": 13}
"""Exponents of such numbers, without their sign."""
_SMALLEST = {"f32": 2.0**-100, "bf16": 2.0**-100, "f16": 2.0**-13}
"""Results up to here may have lost bits."""
_MAX_EXPRESSION_LENGTH = 2000
_DEEPEST_EXPRESSION = 40


@dataclass(frozen=True)
class Other:
    """The second kernel, with its own launches."""

    code: KernelCode
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class FieldAnswer:
    """Outcome of a comparison."""

    outcome: str
    """``same``, ``different`` or ``not claimed``."""
    text: str


def compare_over_field(
    code: KernelCode,
    launches: Sequence[Launch],
    given: Mapping[str, KernelArgument],
    symbols: Mapping[str, object],
    settings: Settings,
    other: Other | Mapping[str, str],
    bits: int = 29,
    on_run: Callable[[str], None] = lambda name: None,
) -> FieldAnswer:
    """Runs a kernel and its counterpart on the same residues as often as it takes for a miss below 2 to the minus ``bits``.

    ``other`` is a second kernel, or a mapping from arrays to expressions for their final values. ``on_run`` receives the name of the code
    before each run. Raises ``UnusableInput``.
    """
    types = {array.type for argument in given.values() for _, array in argument.arrays("")} & FLOATS.keys()
    if not types:
        raise UnusableInput(f"--field needs an array of {', '.join(FLOATS)}")
    from gemmgen.emulator.degrees import MOST
    from gemmgen.emulator.residues import MODULUS

    drawn = min(FLOATS[name] for name in types)
    kernels = [(code, launches)] + ([(other.code, other.launches)] if isinstance(other, Other) else [])
    degrees = []
    for each, own in kernels:
        degrees.append(_degree_of_launches(each, own))
        if degrees[-1] >= MOST:
            name = own[0].entry.name
            return FieldAnswer("not claimed", f"{name} multiplies in a loop what it has multiplied before, so that no degree is known")
    of_expressions = [] if isinstance(other, Other) else [degree_of_expression(text) for text in other.values()]
    degree = max(MIN_DEGREE, *degrees, *of_expressions)
    per_run = -math.log2(degree / MODULUS if drawn == FLOATS["f32"] else (degree + 1) * 2.0**-drawn)
    runs = max(1, math.ceil(bits / per_run))
    for seed in range(runs):
        arguments = {name: _drawn(name, argument, seed) for name, argument in given.items()}
        on_run(code.name)
        first = _run(code, launches, arguments, symbols, settings, first=seed == 0)
        if isinstance(first, FieldAnswer):
            return first
        if isinstance(other, Other):
            on_run(other.code.name)
            second = _run(other.code, other.launches, arguments, symbols, settings, first=seed == 0)
            if isinstance(second, FieldAnswer):
                return second
            wanted = {name: (array.type, array.value) for name, array in second.arrays().items()}
        else:
            wanted = {name: (given[name].type, _stored(evaluate(text, arguments), given[name])) for name, text in other.items()}
        for name, array in first.arrays().items():
            if name in wanted and (difference := _difference(name, array, wanted[name][1])):
                return FieldAnswer("different", difference)
    if doubt := _differs_on_numbers(code, launches, given, symbols, settings, other, on_run):
        return FieldAnswer("not claimed", doubt)
    times = f"{runs} run{'s' * (runs > 1)}"
    return FieldAnswer("same", f"the same function, wrong with probability below 2^-{math.floor(per_run * runs)} ({times})")


def _differs_on_numbers(
    code: KernelCode,
    launches: Sequence[Launch],
    given: Mapping[str, KernelArgument],
    symbols: Mapping[str, Any],
    settings: Settings,
    other: Other | Mapping[str, str],
    on_run: Callable[[str], None],
) -> str:
    """The first result that differs by far more than roundings for ordinary numbers, or for numbers of many sizes; empty if none does.

    Functions that are equal over the field may differ over the real numbers by factors such as 2^31, which is 1 there. Where such a term
    is tiny beside others of an ordinary run, it is the largest one for some numbers of many sizes.
    """
    import numpy as np

    own = replace(settings, counters=False)
    for wide in range(1 + WIDE_RUNS):
        numbers = {name: _real(name, argument, wide) for name, argument in given.items()}
        try:
            on_run(code.name)
            first = run_launches(code, launches, numbers, symbols, None, own).arrays()
            if isinstance(other, Other):
                on_run(other.code.name)
                second = run_launches(other.code, other.launches, numbers, symbols, None, own).arrays()
                wanted = {name: _numbers(array) for name, array in second.items()}
            else:
                with np.errstate(all="ignore"):
                    wanted = {name: evaluate(text, numbers, over_field=False).reshape(-1) for name, text in other.items()}
        except (UnusableInput, TimeIsUp):
            raise
        except GemmgenError as error:
            return str(error).splitlines()[0]
        for name, array in first.items():
            if name not in wanted or array.type not in FLOATS:
                continue
            got, expected = _numbers(array), wanted[name]
            with np.errstate(all="ignore"):
                sizes = np.fmax(np.abs(got), np.abs(expected))
                known = np.isfinite(got) & np.isfinite(expected) & (got != 0) & (expected != 0) & (sizes > _SMALLEST[array.type])
                each = bool(wide % 2)  # elements of one array differ in size as well: roundings are relative to each result
                limit = _GROSS * (sizes if each else np.max(sizes, initial=0.0, where=known if wide else ~np.isnan(sizes)))
                wrong = np.flatnonzero(
                    known & (np.abs(got - expected) > limit)
                    if wide  # another order of products may overflow, or give 0
                    else (np.abs(got - expected) > limit) | (np.isnan(got) != np.isnan(expected))
                )
            if len(wrong):
                place = int(wrong[0])
                kind = "numbers of many sizes" if wide else "ordinary numbers"
                return f"results differ for {kind}: {name}[{place}] is {got[place]:.6g} and {expected[place]:.6g}"
    return ""


def _real(name: str, argument: KernelArgument, wide: int) -> KernelArgument:
    """An argument with ordinary numbers in its arrays of floats, or, if ``wide`` is not 0, with numbers of many sizes."""
    import numpy as np

    rng = np.random.default_rng([17 + wide, *name.encode()])
    if argument.is_array and argument.type in FLOATS and argument.initialised:
        drawn = rng.normal(0, 1, argument.value.shape).astype(np.float32)
        if wide:
            most = _WIDEST[argument.type]
            # An array may be larger than the others as a whole; in the last run all are so small that constants are larger.
            shared = -most if wide == WIDE_RUNS else rng.integers(-most, most + 1)
            sizes = rng.integers(-most, most + 1, argument.value.shape) if wide % 2 else np.full(argument.value.shape, shared)
            drawn = np.ldexp(drawn, sizes).astype(np.float32)
        if argument.type == "f16":
            drawn = drawn.astype(np.float16)
        elif argument.type == "bf16":
            drawn = (drawn.view(np.uint32) >> 16).astype(np.uint16)
        return replace(argument, value=drawn.view(argument.value.dtype))
    if not argument.is_array and argument.type == "f32":
        return replace(argument, value=np.float32(rng.uniform(0.5, 2)))
    return argument


def _numbers(argument: KernelArgument) -> npt.NDArray[np.float64]:
    """The elements of an array of floats in its shape on the command line, which is flat."""
    import numpy as np

    values = np.ascontiguousarray(argument.value).reshape(-1)
    if argument.type == "bf16":
        values = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif argument.type == "f16":
        values = values.view(np.float16)
    elif argument.type == "f32":
        values = values.view(np.float32)
    return values.astype(np.float64)


def _run(
    code: KernelCode,
    launches: Sequence[Launch],
    arguments: Mapping[str, KernelArgument],
    symbols: Mapping[str, Any],
    settings: Settings,
    *,
    first: bool,
) -> Run | FieldAnswer:
    """One run. The ``first`` shows whether data decide about anything: neither equal nor different results say anything then."""
    from gemmgen.emulator.arithmetic import FIELD
    from gemmgen.emulator.data_loads import DataLoads

    loads = DataLoads({name for name, argument in arguments.items() if argument.type in FLOATS})
    own = replace(settings, counters=False, arithmetic=FIELD, observers=(loads,) if first else ())
    try:
        run = run_launches(code, launches, arguments, symbols, None, own)
    except (UnusableInput, TimeIsUp):
        raise
    except GemmgenError as error:
        return FieldAnswer("not claimed", str(error).splitlines()[0])
    narrowest = min(4 if FLOATS[argument.type] == FLOATS["f32"] else 2 for argument in arguments.values() if argument.type in FLOATS)
    if first and (doubt := _doubt(code, launches, loads, narrowest)):
        return FieldAnswer("not claimed", doubt)
    if run.failed:
        worst = next(finding for finding in run.findings if finding.severity == "error")
        return FieldAnswer("different", f"{code.name} has an error: {worst.title}")
    return run


def _drawn(name: str, argument: KernelArgument, seed: int) -> KernelArgument:
    """An argument with residues in its arrays of floats; a float32 by value becomes a residue too."""
    import numpy as np

    from gemmgen.emulator import residues

    rng = np.random.default_rng([seed, *name.encode()])
    if argument.pointers:
        raise UnusableInput(f"--field takes no structures and arrays of pointers, as {name} is one")
    if argument.is_array and argument.type in FLOATS and argument.initialised:
        bits = FLOATS[argument.type]
        word = np.uint32 if bits == 31 else np.uint16
        codes = rng.integers(0, residues.MODULUS if bits == 31 else 1 << bits, argument.value.shape, dtype=np.uint64).astype(word)
        return replace(argument, value=codes.view(argument.value.dtype))
    if not argument.is_array and argument.type == "f32":
        return replace(argument, value=np.uint32(rng.integers(2, _SCALAR_LIMIT)).view(np.float32))
    return argument


def _stored(values: npt.NDArray[Any], like: KernelArgument) -> npt.NDArray[Any]:
    import numpy as np

    from gemmgen.emulator import residues

    if values.size != like.value.size:
        raise UnusableInput(f"--field: the expression has {values.size} elements, the array {like.value.size}")
    flat = values.reshape(-1)
    if like.type == "f32":
        return residues.words(residues.canonical(flat))
    return residues.narrowed(flat, FLOATS[like.type]).astype(np.uint16)


def _difference(name: str, array: KernelArgument, wanted: npt.NDArray[Any]) -> str:
    import numpy as np

    from gemmgen.emulator import residues

    if array.type not in FLOATS:
        same = np.ascontiguousarray(array.value).reshape(-1).view(np.uint8) == np.ascontiguousarray(wanted).reshape(-1).view(np.uint8)
        return "" if same.all() else f"{name} differs"
    word = np.uint32 if array.type == "f32" else np.uint16
    got, expected = (np.ascontiguousarray(values).reshape(-1).view(word) for values in (array.value, wanted))
    if array.type == "f32":
        got, expected = residues.canonical(got), residues.canonical(expected)
    different = np.flatnonzero(got != expected)
    if not len(different):
        return ""
    return f"{name}[{int(different[0])}] is another function of the arrays; {len(different)} of {got.size} elements differ"


def _doubt(code: KernelCode, launches: Sequence[Launch], loads: DataLoads, narrowest: int) -> str:
    """The decision that data take in a kernel; empty if there is none. ``narrowest``: bytes of the smallest elements of data."""
    from gemmgen.emulator.data_flow import ProgramFlow
    from gemmgen.emulator.number_bits import held_in_shared, on_bits, results_of_floats
    from gemmgen.emulator.program import link

    for launch in launches:
        flow = ProgramFlow(link(code.ptx if isinstance(code.ptx, str) else code.ptx.decode(), launch.entry.symbol))
        dependence = flow.dependence(loads.instructions.values(), flow.infinity_tests)
        if dependence.reason:
            return f"{launch.entry.name}: {dependence.reason}"
        if dependence.choices:
            return f"{launch.entry.name}: a choice depends on data: {dependence.choices[0].text.strip()}"
        sources = frozenset(map(id, loads.instructions.values()))
        sources |= held_in_shared(flow, sources) | results_of_floats(flow)
        if (inst := on_bits(flow, sources, narrowest=narrowest)) is not None:
            return f"{launch.entry.name}: it computes with the bits of numbers: {inst.text.strip()}"
    return ""


def _degree_of_launches(code: KernelCode, launches: Sequence[Launch]) -> int:
    """Degree of results as polynomials of the arrays before the first launch; each launch loads what earlier ones have stored."""
    from gemmgen.emulator.degrees import degree_of
    from gemmgen.emulator.program import link

    text = code.ptx if isinstance(code.ptx, str) else code.ptx.decode()
    return math.prod(max(1, degree_of(link(text, launch.entry.symbol))) for launch in launches)


# -- expressions ---------------------------------------------------------------------------------------------------


class _Residues:
    """Arithmetic of expressions over the field, on uint64 below the modulus."""

    def of(self, argument: KernelArgument) -> Array:
        """An argument's elements."""
        import numpy as np

        from gemmgen.emulator import residues

        value = np.asarray(argument.value)
        if argument.type not in FLOATS:
            return self._reduced(residues.of_integers(value), value)
        words = np.ascontiguousarray(value).view(np.uint32 if argument.type == "f32" else np.uint16)
        return self._reduced(residues.of_codes(words, argument.type), value)

    def number(self, value: float) -> Array:
        """A literal."""
        import numpy as np

        from gemmgen.emulator import residues

        return np.array(residues.of_float(value), np.uint64)

    def negative(self, value: Array) -> Array:
        """The residue that gives 0 with another one."""
        import numpy as np

        from gemmgen.emulator import residues

        return self._reduced(np.uint64(residues.MODULUS) - value, value)

    def sum(self, a: Array, b: Array) -> Array:
        """a + b."""
        return self._reduced(a + b, a)

    def product(self, a: Array, b: Array) -> Array:
        """a * b."""
        from gemmgen.emulator import residues

        return self._reduced(residues.multiplied(a, b), a)

    def matrix_product(self, a: Array, b: Array) -> Array:
        """a @ b."""
        from gemmgen.emulator import residues

        return residues.matrix_product(a, b)

    def total(self, value: Array, axis: int | None) -> Array:
        """Sums along an axis, or of all elements."""
        import numpy as np

        summed = value.sum(dtype=np.uint64, axis=axis)
        return self._reduced(summed, summed)

    def _reduced(self, value: Array, like: Array) -> Array:
        import numpy as np

        from gemmgen.emulator import residues

        return residues.canonical(value).reshape(np.shape(like))


class _Numbers:
    """Arithmetic of expressions on real numbers, in float64."""

    def of(self, argument: KernelArgument) -> Array:
        """An argument's elements."""
        return _numbers(argument)

    def number(self, value: float) -> Array:
        """A literal."""
        import numpy as np

        return np.array(value)

    def negative(self, value: Array) -> Array:
        """The number that gives 0 with another one."""
        return -value

    def sum(self, a: Array, b: Array) -> Array:
        """a + b."""
        return a + b

    def product(self, a: Array, b: Array) -> Array:
        """a * b."""
        return a * b

    def matrix_product(self, a: Array, b: Array) -> Array:
        """a @ b."""
        result: Array = a @ b
        return result

    def total(self, value: Array, axis: int | None) -> Array:
        """Sums along an axis, or of all elements."""
        result: Array = value.sum(axis=axis)
        return result


def evaluate(text: str, arguments: Mapping[str, KernelArgument], *, over_field: bool = True) -> Array:
    """A NumPy expression of the arguments, over the field or in float64: + - * @, .T, .reshape(...), .sum(axis=...), slices and numbers.

    Raises ``UnusableInput`` for anything else.
    """
    import numpy as np

    tree = _parsed(text)
    try:
        return _value(tree, arguments, _Residues() if over_field else _Numbers(), 0)
    except (ValueError, IndexError, TypeError, np.exceptions.AxisError) as error:
        raise UnusableInput(f"--field: {text!r}: {error}") from None


def _parsed(text: str) -> ast.expr:
    """Raises ``UnusableInput`` for a text that is no expression, or a very long one."""
    if len(text) > _MAX_EXPRESSION_LENGTH:
        raise UnusableInput(f"--field: an expression of {len(text)} characters, need at most {_MAX_EXPRESSION_LENGTH}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnusableInput(f"--field: {text!r} is no expression") from None


def degree_of_expression(text: str) -> int:
    """Degree of an expression. Raises ``UnusableInput`` if it is none."""
    return _degree_of(_parsed(text))


def _degree_of(node: ast.expr) -> int:
    match node:
        case ast.Name():
            return 1
        case ast.BinOp(left=left, op=ast.MatMult() | ast.Mult(), right=right):
            return _degree_of(left) + _degree_of(right)
        case ast.BinOp(left=left, right=right):
            return max(_degree_of(left), _degree_of(right))
        case (
            ast.UnaryOp(operand=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner))
        ):
            return _degree_of(inner)
    return 0


def _value(node: ast.expr, arguments: Mapping[str, KernelArgument], meaning: _Residues | _Numbers, depth: int) -> Array:
    import numpy as np

    if depth > _DEEPEST_EXPRESSION:
        raise UnusableInput(f"--field: an expression nested more than {_DEEPEST_EXPRESSION} deep")

    def below(inner: ast.expr) -> Array:
        return _value(inner, arguments, meaning, depth + 1)

    match node:
        case ast.Name(id=name) if name in arguments:
            return meaning.of(arguments[name])
        case ast.Constant(value=int() | float() as number):
            return meaning.number(float(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return meaning.negative(below(operand))
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            return meaning.matrix_product(below(left), below(right))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as operator, right=right):
            a, b = np.broadcast_arrays(below(left), below(right))
            if isinstance(operator, ast.Mult):
                return meaning.product(a, b)
            return meaning.sum(a, b if isinstance(operator, ast.Add) else meaning.negative(b))
        case ast.Attribute(value=inner, attr="T"):
            return below(inner).T
        case ast.Subscript(value=inner, slice=index):
            chosen: Array = below(inner)[_index(index)]
            return chosen
        case ast.Call(func=ast.Attribute(value=inner, attr="reshape"), args=sizes, keywords=[]):
            return below(inner).reshape([_integer(size) for size in sizes])
        case ast.Call(func=ast.Attribute(value=inner, attr="sum"), args=[], keywords=keywords):
            axes = {keyword.arg: _integer(keyword.value) for keyword in keywords}
            return meaning.total(below(inner), axes.get("axis"))
        case _:
            known = ", ".join(arguments)
            raise UnusableInput(f"--field: {ast.unparse(node)!r} is not understood; there are {known}, + - * @, .T, .reshape and .sum")


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
    raise UnusableInput(f"--field: {ast.unparse(node)!r} is no integer")


def _index(node: ast.expr) -> Any:
    match node:
        case ast.Tuple(elts=elements):
            return tuple(_index(element) for element in elements)
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(None if part is None else _integer(part) for part in (lower, upper, step)))
        case ast.Constant(value=None):
            return None
    return _integer(node)
