"""Combinations of modifiers that the asynchronous instructions have, one line a syntax of the PTX ISA.

A modifier may be known and still have no place beside another one: a relaxed arrival without a scope, a wait at a barrier of another
block, a multicast between blocks. An assembler refuses those; so does the emulator. In a line, plain words are required, `a|b` is one of
several, brackets enclose optional words, and `+` joins words that occur together. The order of modifiers does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.ptx.syntax import Instruction

_LOCAL = "[shared|shared::cta]"
_ANY = "[shared|shared::cta|shared::cluster]"
_RELEASES = "[release+cta|release+cluster|relaxed+cta|relaxed+cluster]"
_LOOKS = "[acquire+cta|acquire+cluster|relaxed+cta|relaxed+cluster]"
_SCOPES = "cta|cluster|gpu|sys"
_BYTES = "mbarrier::complete_tx::bytes"
_HINT = "[L2::cache_hint]"
_DIMENSIONS, _PIXELS = "1d|2d|3d|4d|5d", "3d|4d|5d"
_OPERATIONS = "add|min|max|inc|dec|and|or|xor"
_SMALL_REDUCTIONS = ("add u32|s32|u64", "min|max u32|s32", "inc|dec u32", "and|or|xor b32")
_REDUCTIONS = (
    "add u32|s32|u64|f32|f64",
    "add noftz f16|bf16",
    "min|max u32|s32|u64|s64|f16|bf16",
    "inc|dec u32",
    "and|or|xor b32|b64",
)
_TO_BLOCK = f"shared::cluster global {_BYTES} [multicast::cluster] {_HINT}"
_TO_OWN_BLOCK = f"shared::cta global {_BYTES} {_HINT}"
_PAIR = "[cta_group::1|cta_group::2]"

_SYNTAX = {
    "mbarrier": (
        f"init|inval {_LOCAL} b64",
        f"arrive|arrive_drop [expect_tx] {_RELEASES} {_ANY} b64",
        f"arrive|arrive_drop noComplete [release+cta] {_LOCAL} b64",
        f"expect_tx|complete_tx [relaxed+cta|relaxed+cluster] {_ANY} b64",
        f"test_wait|try_wait [parity] {_LOOKS} {_LOCAL} b64",
        "pending_count b64",
    ),
    "fence": (
        f"[acq_rel|sc|acquire|release] {_SCOPES}",
        "acquire sync_restrict::shared::cluster cluster",
        "release sync_restrict::shared::cta cluster",
        "mbarrier_init release cluster",
        "proxy alias",
        "proxy async [global|shared::cta|shared::cluster]",
        f"proxy tensormap::generic acquire|release {_SCOPES}",
        "proxy async::generic acquire sync_restrict::shared::cluster cluster",
        "proxy async::generic release sync_restrict::shared::cta cluster",
    ),
    "cp": (
        f"async mbarrier arrive [noinc] {_LOCAL} b64",
        "async bulk commit_group",
        "async bulk wait_group [read]",
        f"async bulk {_TO_BLOCK}",
        f"async bulk {_TO_OWN_BLOCK}",
        f"async bulk shared::cluster shared::cta {_BYTES}",
        f"async bulk global shared::cta bulk_group [cp_mask] {_HINT}",
        f"async bulk prefetch L2 global {_HINT}",
        *(f"reduce async bulk shared::cluster shared::cta {_BYTES} {each}" for each in _SMALL_REDUCTIONS),
        *(f"reduce async bulk global shared::cta bulk_group {_HINT} {each}" for each in _REDUCTIONS),
        *(
            f"async bulk tensor {shape} {ends}"
            for shape in (f"{_DIMENSIONS} [tile]", f"{_PIXELS} im2col")
            for ends in (f"{_TO_BLOCK} {_PAIR}", _TO_OWN_BLOCK)
        ),
        *(f"async bulk prefetch tensor {shape} L2 global {_HINT}" for shape in (f"{_DIMENSIONS} [tile]", f"{_PIXELS} im2col")),
        *(
            f"{copy} async bulk tensor {shape} global shared::cta bulk_group {_HINT}"
            for copy in ("", f"reduce {_OPERATIONS}")
            for shape in (f"{_DIMENSIONS} [tile]", f"{_PIXELS} im2col_no_offs")
        ),
    ),
    "st": (f"async [weak] [shared::cluster|shared::cta] {_BYTES} [v2|v4] b32|b64|u32|u64|s32|s64|f32|f64",),
    "red": tuple(f"async relaxed cluster [shared::cluster] {_BYTES} {each}" for each in (*_SMALL_REDUCTIONS, "add s64")),
    "bar": ("warp sync", "[cta] sync|arrive", "[cta] red popc u32", "[cta] red and|or pred"),
    "barrier": (
        "cluster arrive [release|relaxed] [aligned]",
        "cluster wait [acquire] [aligned]",
        "[cta] sync|arrive [aligned]",
        "[cta] red popc u32 [aligned]",
        "[cta] red and|or pred [aligned]",
    ),
    "tensormap": (
        "replace tile global_address|global_stride global|shared::cta b1024 b64",
        "replace tile rank|box_dim|global_dim|element_stride global|shared::cta b1024 b32",
        "replace tile elemtype|interleave_layout|swizzle_mode|swizzle_atomicity|fill_mode global|shared::cta b1024 b32",
        f"cp_fenceproxy global shared::cta tensormap::generic release {_SCOPES} sync aligned",
    ),
    "elect": ("sync",),
    "setmaxnreg": ("inc|dec sync aligned u32",),
    "clusterlaunchcontrol": (
        f"try_cancel async [shared::cta] {_BYTES} [multicast::cluster::all] b128",
        "query_cancel is_canceled pred b128",
        "query_cancel get_first_ctaid v4 b32 b128",
        "query_cancel get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z b32 b128",
    ),
    "griddepcontrol": ("launch_dependents|wait",),
    "mapa": ("[shared::cluster] u32|u64",),
    "getctarank": ("[shared::cluster] u32|u64",),
}
_CONCERNED = {"cp": {"bulk", "mbarrier"}, "st": {"async"}, "red": {"async"}}
"""Opcodes that have other uses as well, and the words that tell the asynchronous ones."""
_ATOMIC = {
    "add": "u32 s32 u64 f32 f64 f16 f16x2 bf16 bf16x2",
    "min": "u32 s32 u64 s64",
    "max": "u32 s32 u64 s64",
    "inc": "u32",
    "dec": "u32",
    "and": "b32 b64",
    "or": "b32 b64",
    "xor": "b32 b64",
    "exch": "b32 b64 b128",
    "cas": "b16 b32 b64 b128",
}
"""Types of each operation of `atom` and `red` on one element."""

Option = frozenset[str]


@cache
def _groups(line: str) -> tuple[tuple[Option, ...], ...]:
    """Alternatives of each place of a line; the empty one stands for an optional word."""
    groups = []
    for word in line.split():
        options = tuple(frozenset(each.split("+")) for each in word.strip("[]").split("|"))
        groups.append((*options, frozenset()) if word.startswith("[") else options)
    return tuple(groups)


def _rests(groups: tuple[tuple[Option, ...], ...], words: Option) -> Iterator[Option]:
    """Words that are left over when each place has taken one of its alternatives."""
    if not groups:
        yield words
        return
    for option in groups[0]:
        if option <= words:
            yield from _rests(groups[1:], words - option)


@cache
def _has_syntax(opcode: str, modifiers: tuple[str, ...]) -> bool:
    words = frozenset(modifiers)
    return len(words) == len(modifiers) and any(
        not rest for line in _SYNTAX[opcode] if (groups := _groups(line)) for rest in _rests(groups, words)
    )


def check_combination(inst: Instruction) -> None:
    """Raises UnknownInstruction for modifiers that do not go together."""
    alone = inst.opcode in ("atom", "red") and inst.first_of(("async", "v2", "v4", "v8")) is None
    operation = inst.first_of(tuple(_ATOMIC)) if alone else None
    if inst.opcode == "red" and (inst.has("acquire") or inst.has("acq_rel")):
        raise UnknownInstruction("red returns nothing, so that it acquires nothing: it is .relaxed or .release", instruction=inst)
    if operation is not None and inst.type not in (types := _ATOMIC[operation].split()):
        message = f"{inst.opcode}.{operation} of type {inst.type}; the PTX ISA has it for {', '.join(types)}"
        raise UnknownInstruction(message, instruction=inst)
    if inst.opcode not in _SYNTAX or not _CONCERNED.get(inst.opcode, set(inst.modifiers)) & set(inst.modifiers):
        return
    modifiers = tuple(each for each in inst.modifiers if each == "L2::cache_hint" or not each.startswith(("L1::", "L2::")))
    backwards = inst.opcode == "cp" and [each for each in modifiers if each.startswith("shared::")] == ["shared::cta", "shared::cluster"]
    if backwards or not _has_syntax(inst.opcode, modifiers):
        name = ".".join((inst.opcode, *inst.modifiers))
        raise UnknownInstruction(f"{name}: the PTX ISA has each of these modifiers, but no such combination", instruction=inst)
