"""Accesses to shared memory, given by a formula of the lane or a list of addresses, and their cost.

Formulas are read as data (``gemmgen.core.expressions``), never run as code. The effect of padding or a swizzle is computed by changing the
addresses accordingly and counting again."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from gemmgen.core.errors import GemmgenError
from gemmgen.core.expressions import BINARY, Grammar, NotInGrammar, Walker, read
from gemmgen.core.text import printable
from gemmgen.hardware.shared_memory import BANK_BYTES, BANKS, WARP, SharedAccessCost, served_groups, shared_access_cost
from gemmgen.hardware.tensor_map import Swizzle, flipped_bytes, swizzled
from gemmgen.kernels.pictures import BankMap, BankMaps, SharedAccess, SharedLayout

WIDTHS = (1, 2, 4, 8, 16)
"""Bytes that a lane can access with one instruction."""
LINE_BYTES = BANKS * BANK_BYTES
MAX_OFFSET = 1 << 18
"""Bytes of shared memory that no device exceeds."""
_MAX_NODES = 200
_SWIZZLES: tuple[Swizzle, ...] = ("128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")
"""Names in tensor maps of the swizzles of 128-byte rows, or of parts of rows; those with atoms need sm_100 or later."""

GRAMMAR = Grammar(
    binary=frozenset({ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor}),
    compare=frozenset({ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq}),
    functions={"min": (2, min), "max": (2, max), "select": (3, lambda condition, yes, no: yes if condition else no)},
    constants=(int,),
    general=True,
    parts="lane, whole numbers, + - * // % << >> & | ^, comparisons, and, or, not, yes if condition else no, min, max, select",
)


class _Lane(Walker):
    """The value of a formula for one lane."""

    grammar: ClassVar[Grammar] = GRAMMAR

    def __init__(self, lane: int) -> None:
        self.lane = lane

    def name(self, name: str) -> int:
        if name != "lane":
            raise GemmgenError(f"unknown name {name!r}; a pattern is a formula of lane, which runs from 0 to 31")
        return self.lane

    def member(self, parent: object, key: str | int, node: ast.expr) -> int:
        raise GemmgenError(f"{ast.unparse(node)!r} is not a number; a pattern is a formula of lane")

    def arithmetic(self, op: ast.operator, left: int, right: int) -> int:
        if not isinstance(left, int) or not isinstance(right, int):
            raise GemmgenError("a list is not a number; a pattern is a formula of lane")
        if isinstance(op, ast.LShift | ast.RShift) and not 0 <= right <= 64:
            raise GemmgenError(f"a shift by {right}; need 0 to 64")
        value = int(BINARY[type(op)](left, right))
        if abs(value) > 1 << 64:
            raise GemmgenError("the formula grows beyond 64 bits")
        return value


def parse_pattern(text: str, width: int) -> tuple[int, ...]:
    """The byte offset of each of the 32 lanes, -1 for one that does not take part.

    ``text``: a formula of ``lane`` such as ``lane*16 ^ lane//8*32``, or up to 32 numbers separated by commas; the lanes beyond do not
    take part, nor those that get -1. Raises ``GemmgenError``.
    """
    numbers = text.split(",")
    if all(number.strip().lstrip("-").isdecimal() for number in numbers):
        if len(numbers) > WARP:
            raise GemmgenError(f"{len(numbers)} addresses; a warp has {WARP} lanes")
        try:
            offsets = [int(number) for number in numbers] + [-1] * (WARP - len(numbers))
        except ValueError:
            raise GemmgenError(f"{printable(text, 100)!r}: no number, or one of thousands of digits") from None
    else:
        try:
            tree = read(text, GRAMMAR, _MAX_NODES)
            offsets = [int(_Lane(lane).value(tree)) for lane in range(WARP)]
        except NotInGrammar as error:
            raise GemmgenError(f"{text!r}: {error}; a pattern is a formula of lane, such as lane*16 or lane%8*128 + lane//8*16") from None
        except ZeroDivisionError:
            raise GemmgenError(f"{text!r}: divides by zero") from None
        except TypeError as error:
            raise GemmgenError(f"{text!r}: {error}") from None
    for lane, offset in enumerate(offsets):
        if offset != -1 and not 0 <= offset < MAX_OFFSET:
            raise GemmgenError(f"lane {lane} accesses byte {offset}; need 0 to {MAX_OFFSET - 1}, or -1 for an inactive lane")
        if offset % width and offset != -1:
            raise GemmgenError(f"lane {lane} accesses {width} bytes at offset {offset}, which is not a multiple of {width}")
    if all(offset < 0 for offset in offsets):
        raise GemmgenError("every lane is inactive")
    return tuple(offsets)


@dataclass(frozen=True)
class Variant:
    """An access in one layout of shared memory."""

    title: str
    offsets: tuple[int, ...]
    cost: SharedAccessCost


@dataclass(frozen=True)
class Pattern:
    """One warp-wide access, its cost, and its cost in other layouts."""

    text: str
    width: int
    store: bool
    row: int
    """Bytes after which paddings are put in, and whose number swizzles take."""
    variants: tuple[Variant, ...]
    """Variants: first as given, then padded and swizzled."""

    @property
    def given(self) -> Variant:
        """The access as it was written down."""
        return self.variants[0]

    @property
    def ideal(self) -> int:
        """Fewest wavefronts for as many different words: those of lanes that read one after the other."""
        words = {
            offset // BANK_BYTES + word for offset in self.given.offsets if offset >= 0 for word in range(max(1, self.width // BANK_BYTES))
        }
        return math.ceil(len(words) / BANKS)

    @property
    def merged(self) -> bool:
        """True if neighbouring groups of lanes are served together, as they read the same."""
        plain = WARP if self.width <= BANK_BYTES else WARP * BANK_BYTES // self.width
        return served_groups(self.given.offsets, self.width, store=self.store)[0].lanes > plain


def examine(text: str, width: int, *, store: bool = False, row: int | None = None) -> Pattern:
    """The cost of an access and of the same access in padded and swizzled layouts. Raises ``GemmgenError``.

    ``row``: bytes of a row of the tile; else the least distance of two lanes that is a multiple of 128, or 128 if there is none.
    """
    if width not in WIDTHS:
        raise GemmgenError(f"a lane accesses {', '.join(map(str, WIDTHS))} bytes, got {width}")
    offsets = parse_pattern(text, width)
    active = sorted({offset for offset in offsets if offset >= 0})
    distances = {high - low for low in active for high in active if high > low}
    rows = row or min((distance for distance in distances if distance % LINE_BYTES == 0), default=LINE_BYTES)
    if rows % width or rows <= 0:
        raise GemmgenError(f"a row of {rows} bytes is not a multiple of the access width, {width} bytes")
    unit = max(width, BANK_BYTES)
    changes: list[tuple[str, Callable[[int], int]]] = [("as given", lambda offset: offset)]
    for padding in dict.fromkeys((unit, 2 * unit, 4 * unit, 16)):
        if padding % unit == 0:
            changes.append((f"{padding} bytes of padding after each {rows}", _padded(rows, padding)))
    places = min(LINE_BYTES, rows) // unit
    if places > 1 and places & (places - 1) == 0:
        title = f"units of {unit} bytes, XOR the row's number (mod {places})"
        changes.append((title, lambda offset: offset ^ (offset // rows % places * unit)))
    if row is not None and row % LINE_BYTES == 0:
        possible = [name for name in _SWIZZLES if width <= 8 or not flipped_bytes(name)]
        changes += [(f"{name} swizzle of TMA", partial(swizzled, swizzle=name)) for name in possible]
    variants = []
    for title, change in changes:
        changed = tuple(change(offset) if offset >= 0 else -1 for offset in offsets)
        variants.append(Variant(title, changed, shared_access_cost(changed, width, store=store)))
    return Pattern(text, width, store, rows, tuple(variants))


def _padded(row: int, padding: int) -> Callable[[int], int]:
    return lambda offset: offset + offset // row * padding


def picture_of(pattern: Pattern, *, all_variants: bool = True) -> BankMaps:
    """The access in shared memory as given, and in the layouts that need fewer wavefronts."""
    better = [one for one in pattern.variants[1:] if one.cost.wavefronts < pattern.given.cost.wavefronts]
    shown = [pattern.given, *sorted(better, key=lambda one: one.cost.wavefronts)[:1]] if all_variants else [pattern.given]
    unit = max(pattern.width, BANK_BYTES)
    layouts = tuple(_layout(one, pattern, unit) for one in shown)
    what = "stores" if pattern.store else "loads"
    title = f"Each lane {what} {pattern.width} byte{'s' if pattern.width > 1 else ''} at {pattern.text}"
    notes = ("Each color is one group of lanes that is served together.",)
    total = f"{pattern.given.cost.wavefronts} wavefronts, {pattern.given.cost.conflicts} of them for conflicts"
    return BankMaps("Banks of shared memory", (BankMap("pattern", title, layouts, total, notes, unit),))


def _layout(variant: Variant, pattern: Pattern, unit: int) -> SharedLayout:
    size = max(variant.offsets) + max(unit, pattern.width)
    groups = served_groups(variant.offsets, pattern.width, store=pattern.store)
    colors: dict[int, int] = {}
    for number, group in enumerate(groups):
        for offset in variant.offsets[group.first_lane : group.first_lane + group.lanes]:
            if offset >= 0:
                for place in range(offset // unit * unit, offset + pattern.width, unit):
                    colors.setdefault(place, number)
    access = SharedAccess.of(variant.offsets, pattern.width, store=pattern.store)
    return SharedLayout(variant.title, -(-size // LINE_BYTES) * LINE_BYTES, colors, access, variant is pattern.given)
