"""Cost of one warp-wide access to shared memory, in wavefronts.

There are 32 banks of 4 bytes, and a warp is served by groups of lanes: one group of 32 for 4 bytes a lane, two of 16 for 8 bytes,
four of 8 for 16 bytes. For loads only, neighbouring groups pair up if over the whole warp every active lane i and its partner i^1
(or, for every lane, i^2), where both are active, read the same address; 16-byte groups pair once, never to a single group. A group
with an active lane costs as many wavefronts as the largest number of distinct 4-byte words that it touches in one bank.

The rule was measured on an H200 with the counters l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{ld,st} and
l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{ld,st} over 339 address patterns, all of which it reproduces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

WARP = 32
BANKS = 32
BANK_BYTES = 4


@dataclass(frozen=True)
class SharedAccessCost:
    """Cost of one warp-wide access."""

    wavefronts: int
    conflicts: int
    """Wavefronts beyond one for each group of lanes with an active lane."""


@dataclass(frozen=True)
class ServedGroup:
    """Lanes of a warp that are served together."""

    first_lane: int
    lanes: int
    bank_words: tuple[int, ...]
    """For each bank, how many different words of it they touch; 0 for all if none of them is active."""

    @property
    def wavefronts(self) -> int:
        """One for each word of the bank that has most; none for a group without an active lane."""
        return max(self.bank_words)


def shared_access_cost(offsets: Sequence[int], width: int, *, store: bool) -> SharedAccessCost:
    """Wavefronts and conflicts of one warp-wide access.

    ``offsets``: byte offset in shared memory for each of the 32 lanes, -1 where the lane is inactive; ``width``: bytes a lane,
    1 to 16. Raises ``ValueError`` for another number of lanes or another width.
    """
    wavefronts = [group.wavefronts for group in served_groups(offsets, width, store=store)]
    return SharedAccessCost(sum(wavefronts), sum(count - 1 for count in wavefronts if count))


def copy_source_degree(addresses: Sequence[int], width: int) -> int:
    """Wavefronts of a group of lanes of a ``cp.async`` of ``width`` bytes each, as far as its sources in global memory decide.

    Banks count on both sides (measured on an H200): lanes go in groups as for stores, and a group takes as many wavefronts as words of
    it meet in one bank, which is the byte address over 4 modulo 32. Equal words are not merged.
    """
    group, words = BANKS * BANK_BYTES // width, range(width // BANK_BYTES)
    degree = 0
    for first in range(0, len(addresses), group):
        meeting = Counter((address // BANK_BYTES + word) % BANKS for address in addresses[first : first + group] for word in words)
        degree = max(degree, *meeting.values())
    return degree


def served_groups(offsets: Sequence[int], width: int, *, store: bool) -> list[ServedGroup]:
    """The groups of lanes that one warp-wide access is served by, in order; arguments and errors as for ``shared_access_cost``."""
    if len(offsets) != WARP:
        raise ValueError(f"a warp has {WARP} lanes, got {len(offsets)} offsets")
    if width not in (1, 2, 4, 8, 16):
        raise ValueError(f"a lane accesses 1, 2, 4, 8 or 16 bytes, got {width}")
    group_size = WARP if width <= BANK_BYTES else WARP * BANK_BYTES // width
    if not store and width > BANK_BYTES and any(_partners_agree(offsets, distance) for distance in (1, 2)):
        group_size *= 2
    words_per_lane = max(1, width // BANK_BYTES)
    groups = []
    for first in range(0, WARP, group_size):
        words = {
            offset // BANK_BYTES + word for offset in offsets[first : first + group_size] if offset >= 0 for word in range(words_per_lane)
        }
        per_bank = [0] * BANKS
        for word in words:
            per_bank[word % BANKS] += 1
        groups.append(ServedGroup(first, group_size, tuple(per_bank)))
    return groups


def _partners_agree(offsets: Sequence[int], distance: int) -> bool:
    return all(offset < 0 or offsets[lane ^ distance] < 0 or offset == offsets[lane ^ distance] for lane, offset in enumerate(offsets))
