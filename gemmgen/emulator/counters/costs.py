"""The cost of warp-wide accesses, for many warps at once: the rule of ``gemmgen.hardware.shared_memory``, and sectors of global memory.

Accesses are matrices of one row a warp and one column a lane: byte offsets or addresses, -1 where the lane is inactive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.memory import CopyForm
from gemmgen.hardware.shared_memory import BANK_BYTES, BANKS

SECTOR_BYTES = 32
_SECTORS_OF_LINE = 4
_HALF = 16
_TOGETHER = 8
_LANES = np.arange(WARP)


class SharedCosts(NamedTuple):
    """Costs of one access, an array entry a warp."""

    wavefronts: np.ndarray
    conflicts: np.ndarray
    """Wavefronts beyond one for each group of lanes that is served together."""
    ideal: np.ndarray
    """The fewest wavefronts that could move as many words for these lanes, wherever the words lay."""


class GlobalCosts(NamedTuple):
    """Costs of one access, an array entry a warp."""

    sectors: np.ndarray
    """Distinct pieces of 32 bytes that the warp touches."""
    ideal: np.ndarray
    """Sectors if the distinct bytes that the warp touches lay side by side."""
    bytes: np.ndarray
    """Distinct bytes that the warp touches."""


def rows_of_warps(lanes: Lanes | None, addresses: np.ndarray) -> np.ndarray:
    """The matrix of an access by ``lanes`` (ascending; None: all), without the warps that take no part."""
    values = addresses.astype(np.int64)
    if lanes is None:
        return values.reshape(-1, WARP)
    warps = lanes // WARP
    starts = np.ones(len(lanes), np.bool_)
    np.not_equal(warps[1:], warps[:-1], out=starts[1:])
    rows = np.cumsum(starts) - 1
    matrix = np.full((int(rows[-1]) + 1, WARP), -1, np.int64)
    matrix[rows, lanes % WARP] = values
    return matrix


def shared_costs(offsets: np.ndarray, width: int, *, pairs: bool) -> SharedCosts:
    """Wavefronts of an access to shared memory of ``width`` bytes a lane (1 to 16).

    ``pairs``: neighbouring groups of lanes may be served together, as loads are; stores, ``ldmatrix`` and copies are not.
    """
    words_per_lane = max(width // BANK_BYTES, 1)
    words = (offsets // BANK_BYTES)[:, :, None] + np.arange(words_per_lane)
    words[offsets < 0] = -1
    group = WARP // words_per_lane
    wavefronts, groups = _serve(words, group)
    fewest_groups = groups
    if pairs and words_per_lane > 1:
        paired_wavefronts, paired_groups = _serve(words, 2 * group)
        together = _partners_agree(offsets, 1) | _partners_agree(offsets, 2)
        wavefronts = np.where(together, paired_wavefronts, wavefronts)
        groups = np.where(together, paired_groups, groups)
        fewest_groups = paired_groups
    distinct = _count_distinct(words.reshape(len(words), -1))
    return SharedCosts(wavefronts, wavefronts - groups, np.maximum(-(-distinct // BANKS), fewest_groups))


def copy_costs(
    sources: np.ndarray,
    destinations: np.ndarray,
    filled: np.ndarray,
    width: int,
    form: CopyForm,
    bypass: bool = False,
    *,
    first_predicate: bool = False,
) -> SharedCosts:
    """Wavefronts of a ``cp.async`` of ``width`` bytes a lane (4, 8 or 16); ``filled`` lanes only fill with zeros.

    Banks count on both sides, those of the source being address / 4 mod 32 as well; equal words are not merged, and a filled lane
    has no source. ``.ca``: see ``_asynchronous_wavefronts``. ``.cg`` (``bypass``): a warp none of whose lanes reads costs the degree of
    the destination, the words of a group of lanes that meet in one bank. One that only reads, without a number of bytes in its addresses,
    costs that or the arrivals from the L2, whichever is more. Every other warp costs the larger of both sides' degrees, and the arrivals.

    ``first_predicate``: as Nsight Compute counts a ``.cg`` copy whose condition is in the machine's predicate register P0. Then a
    ``chosen`` copy has the degree of the destination alone, and filled lanes of a ``sized`` one seem to read.

    Measured on an H200, instruction by instruction (tests/data/async_copy_wavefronts_h200.json and copy_wavefronts_h200.json) and over
    whole kernels (measurements/counters.json).
    """
    words_per_lane = width // BANK_BYTES
    degrees = _degrees(destinations, words_per_lane)
    groups = np.count_nonzero(degrees, axis=1)
    words = np.where(destinations < 0, -1, destinations // BANK_BYTES)[:, :, None] + np.arange(words_per_lane)
    words[destinations < 0] = -1
    ideal = np.maximum(-(-_count_distinct(words.reshape(len(words), -1)) // BANKS), groups)
    live = np.where(filled, -1, sources)
    if not bypass:
        wavefronts = _asynchronous_wavefronts(live, destinations, degrees, words_per_lane)
        return SharedCosts(wavefronts, wavefronts - groups, ideal)
    if first_predicate and form == "chosen":
        wavefronts = degrees.sum(axis=1)
        return SharedCosts(wavefronts, wavefronts - groups, ideal)
    if first_predicate and form == "sized":
        live = sources
    reads = (live >= 0).any(axis=1)
    alone = ((live >= 0) == (destinations >= 0)).all(axis=1) & (form != "sized")
    banks = np.maximum(_degrees(live, words_per_lane), degrees).sum(axis=1)
    arrivals = _arrivals(live, destinations)
    wavefronts = np.where(alone, np.maximum(arrivals, degrees.sum(axis=1)), banks + arrivals)
    extra = np.where(reads & ~alone, arrivals, 0)
    return SharedCosts(wavefronts, wavefronts - extra - groups, np.where(reads & ~alone, 2 * ideal, ideal))


def _asynchronous_wavefronts(sources: np.ndarray, destinations: np.ndarray, degrees: np.ndarray, words_per_lane: int) -> np.ndarray:
    """Wavefronts of a ``cp.async.ca``, each warp; addresses are -1 for lanes that take no part, or have no source.

    In each wavefront every bank of the source offers the first lane that waits for it, and of the lanes that are offered the last one
    gets its banks of the destination. So a lane may wait although its own banks are free, and a group of lanes whose words meet
    on both sides can cost more than the larger degree. That gives every pattern with one regular side and those of whole kernels;
    where both sides are random it is 10 to 15% low on average, at most 31%.
    """
    of_source = _degrees(sources, words_per_lane)
    degrees_of_all: np.ndarray = np.maximum(of_source, degrees)
    for warp, group in np.argwhere((of_source > 1) & (degrees > 1)):
        lanes = slice(group * (WARP // words_per_lane), (group + 1) * (WARP // words_per_lane))
        pairs = zip(sources[warp, lanes].tolist(), destinations[warp, lanes].tolist(), strict=True)
        degrees_of_all[warp, group] = _wavefronts_of_group([pair for pair in pairs if pair[1] >= 0], (1 << words_per_lane) - 1)
    wavefronts: np.ndarray = degrees_of_all.sum(axis=1)
    return wavefronts


def _wavefronts_of_group(lanes: list[tuple[int, int]], words: int) -> int:
    waiting = [(words << of // BANK_BYTES % BANKS if of >= 0 else 0, words << to // BANK_BYTES % BANKS) for of, to in lanes]
    wavefronts = 0
    while waiting:
        wavefronts += 1
        claimed, taken = 0, 0
        offered = []
        for number, (of, _) in enumerate(waiting):
            if not of & claimed:
                offered.append(number)
            claimed |= of
        served = set()
        for number in reversed(offered):
            if not waiting[number][1] & taken:
                taken |= waiting[number][1]
                served.add(number)
        waiting = [lane for number, lane in enumerate(waiting) if number not in served]
    return wavefronts


def _arrivals(sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
    """Times that data of a ``cp.async.cg`` comes to shared memory, each warp; addresses are -1 for lanes that take no part.

    Eight lanes belong together. Their data from one line of 128 bytes for one line of shared memory arrives at once, if whole sectors
    of 32 bytes are moved and sectors keep their parity, or all change it; single halves come apart, those that stay in their half and
    those that change it. A sector that is wanted twice comes twice. This gives every measured pattern in which one side is regular.
    """
    arrivals = np.zeros(len(sources), np.int64)
    for warp, (of, to) in enumerate(zip(sources.tolist(), destinations.tolist(), strict=True)):
        for first in range(0, WARP, _TOGETHER):
            arrivals[warp] += _arrivals_of_group(of[first : first + _TOGETHER], to[first : first + _TOGETHER])
    return arrivals


def _arrivals_of_group(sources: list[int], destinations: list[int]) -> int:
    moves: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for of, to in zip(sources, destinations, strict=True):
        if of >= 0 and to >= 0:
            moves[of // SECTOR_BYTES, to // SECTOR_BYTES].append((of // _HALF % 2, to // _HALF % 2))
    arrivals: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    for (of, to), halves in moves.items():
        route = of // _SECTORS_OF_LINE, to // _SECTORS_OF_LINE, (of ^ to) & 1
        both = len(halves) == 2 and {half for half, _ in halves} == {half for _, half in halves} == {0, 1}
        if both:
            arrivals[route][of] += 1
            continue
        for half in halves:
            arrivals[(*route, half)][of] += 1
    return sum(max(times.values()) for times in arrivals.values())


def _degrees(addresses: np.ndarray, words_per_lane: int) -> np.ndarray:
    """The number of words in the fullest bank, per warp and group of lanes that are served together."""
    groups = words_per_lane
    warps = len(addresses)
    words = (addresses // BANK_BYTES)[:, :, None] + np.arange(words_per_lane)
    group = np.arange(warps)[:, None, None] * groups + (_LANES // (WARP // groups))[None, :, None]
    active = np.broadcast_to(addresses[:, :, None] >= 0, words.shape)
    places = np.broadcast_to(group, words.shape)[active] * BANKS + words[active] % BANKS
    degrees: np.ndarray = np.bincount(places, minlength=warps * groups * BANKS).reshape(warps, groups, BANKS).max(axis=2)
    return degrees


def global_costs(addresses: np.ndarray, width: int) -> GlobalCosts:
    """Sectors of an access to global memory of ``width`` bytes a lane (1 to 32), aligned to its width.

    An aligned access of at most 32 bytes lies within one sector, and two of one width coincide or do not overlap.
    """
    sectors = _count_distinct(np.where(addresses < 0, -1, addresses // SECTOR_BYTES))
    touched = _count_distinct(addresses) * width
    return GlobalCosts(sectors, -(-touched // SECTOR_BYTES), touched)


def copied_sectors(sources: np.ndarray, together: int = 8) -> np.ndarray:
    """Sectors that a copy past the L1 (``cp.async.cg``, 16 bytes a lane) asks for, each warp; addresses are -1 for lanes that read nothing.

    Sectors are merged among ``together`` neighbouring lanes only, those whose bytes are a line of 128: a row that begins in the midst of
    a sector costs one more for every line. How many of its 16 bytes a lane takes changes nothing.
    Measured on an H200, instruction by instruction (measurements/copy_predicates_h200.json).
    """
    sectors = np.where(sources < 0, -1, sources // SECTOR_BYTES)
    counted: np.ndarray = _count_distinct(sectors.reshape(-1, together)).reshape(len(sources), -1).sum(axis=1)
    return counted


def costs_of_pieces(pieces: Sequence[tuple[Lanes | None, np.ndarray, int]], warps: int) -> GlobalCosts:
    """Sectors of one instruction whose lanes read in several aligned pieces: (lanes, addresses, width) each.

    Has an entry for each of the ``warps`` that reads anything.
    """
    if len(pieces) == 1:
        lanes, addresses, width = pieces[0]
        return global_costs(rows_of_warps(lanes, addresses), width)
    matrix = np.full((warps, WARP * len(pieces)), -1, np.int64)
    touched = np.zeros(warps, np.int64)
    for number, (lanes, addresses, width) in enumerate(pieces):
        who = np.arange(len(addresses)) if lanes is None else lanes
        part = matrix[:, number * WARP : (number + 1) * WARP]
        part[who // WARP, who % WARP] = addresses
        touched += _count_distinct(part) * width
    takes_part = touched > 0
    sectors = _count_distinct(np.where(matrix < 0, -1, matrix // SECTOR_BYTES))[takes_part]
    touched = touched[takes_part]
    return GlobalCosts(sectors, -(-touched // SECTOR_BYTES), touched)


def _serve(words: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Wavefronts, and groups with an active lane, of each warp, where ``group`` lanes are served together."""
    warps = len(words)
    ordered = np.sort(words.reshape(warps * (WARP // group), -1), axis=1)
    distinct = ordered >= 0
    distinct[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    rows, columns = np.nonzero(distinct)
    places = rows * BANKS + ordered[rows, columns] % BANKS
    per_bank = np.bincount(places, minlength=len(ordered) * BANKS).reshape(warps, -1, BANKS)
    per_group = per_bank.max(axis=2)
    return per_group.sum(axis=1), np.count_nonzero(per_group, axis=1)


def _partners_agree(offsets: np.ndarray, distance: int) -> np.ndarray:
    """True for each warp whose active lanes i and i^distance access the same address."""
    partners = offsets[:, _LANES ^ distance]
    agree: np.ndarray = ((offsets == partners) | (offsets < 0) | (partners < 0)).all(axis=1)
    return agree


def _count_distinct(values: np.ndarray) -> np.ndarray:
    """The number of different nonnegative values in each row."""
    ordered = np.sort(values, axis=1)
    distinct = ordered >= 0
    distinct[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    counts: np.ndarray = np.count_nonzero(distinct, axis=1)
    return counts
