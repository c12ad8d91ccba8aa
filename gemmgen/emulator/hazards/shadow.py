"""Shadow memory: the last accesses of each granule of a space, and their conflicts with the next one.

A byte of state a granule answers the common case with one gather: no bit that matters is set. Otherwise the records behind
the bits are asked: the last plain write, all plain reads, all strong reads and all strong writes since the bits were cleared.
That suffices: a plain write that raced with nothing is ordered after everything before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from gemmgen.emulator import native
from gemmgen.emulator.fused_access import FusedAccess
from gemmgen.emulator.geometry import WARP, Lanes
from gemmgen.emulator.hazards.order import Order
from gemmgen.emulator.hazards.sites import Site
from gemmgen.emulator.pages import zeros

UNWRITTEN, WRITTEN, READ, STRONG_WRITE, STRONG_READ, WATCHED, NARROW, GUARD = 1, 2, 4, 8, 16, 32, 64, 128
"""Bits of a granule's state. WATCHED: somebody may write it, so that reads must be remembered. NARROW: a strong access orders
only the threads of its block. GUARD: the granule lies between variables and belongs to none."""

_RACES = WRITTEN | READ | STRONG_WRITE | STRONG_READ
_PIECE = 8
_MAX_PENDING = 4096
_MAX_SEARCHES = 256
"""Instructions with unordered strong loads for which flags are searched, as each search looks at all granules."""
_MAX_PENDING_LANES = 1 << 21
_LOG = 1 << 20
"""Logged accesses from which on older ones of the same threads are dropped."""
_ACCESSES_KEPT = 8
"""Limit of logged accesses by other threads: on average over all granules, and for each granule once that is exceeded."""
_CHUNKS = 16
"""Pieces of the log that are put together before they are searched."""
_MANY = 64

Race = Callable[[Site, Lanes, np.ndarray, "Records", np.ndarray], None]
"""`race(site, lanes, granules, records, others)`: lanes touched granules after the accesses `others` (packed)."""


class Records:
    """Accesses by number: who (site), when (time). An access of one lane is packed as record << 32 | thread."""

    def __init__(self) -> None:
        self.sites: list[Site | None] = [None]
        self._times = np.zeros(1024, np.int32)

    def add(self, site: Site, time: int) -> int:
        """A number for an access."""
        number = len(self.sites)
        self.sites.append(site)
        if number >= len(self._times):
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        self._times[number] = time
        return number

    def unpack(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Threads and times."""
        return packed & 0xFFFFFFFF, self._times[packed >> 32]


class AccessSet:
    """All accesses of a kind: the latest of the first thread that came to a granule, and a log of those by others."""

    def __init__(self, granules: int) -> None:
        self.first = zeros(granules, np.int64)
        self._shared = zeros(granules, np.bool_)
        self._log: list[tuple[np.ndarray, np.ndarray]] = []
        self._logged = 0
        self._limit = _LOG
        self._of_streams: dict[int, np.ndarray] = {}
        """The latest access of each stream: there are few of them, and they come back to the same granules."""
        self._mark: np.ndarray | None = None

    @property
    def flags(self) -> np.ndarray:
        """True for granules that several threads have accessed."""
        return self._shared

    def add(self, granules: np.ndarray, packed: np.ndarray) -> None:
        """Notes accesses (granules may repeat)."""
        known = self.first[granules]
        fresh = known == 0
        if fresh.any():
            self.first[granules[fresh]] = packed[fresh]
            known = self.first[granules]
        same = (known ^ packed) & 0xFFFFFFFF == 0
        if same.all():
            self.first[granules] = packed
            return
        if same.any():
            self.first[granules[same]] = packed[same]
            others, theirs = granules[~same], packed[~same]
        else:
            others, theirs = granules, packed
        self._shared[others] = True
        self._shared_log(others, theirs)

    def add_lanes(
        self, loops: native.Loops, index: np.ndarray, lanes: Lanes | None, places: tuple[int, int, int], threads: np.ndarray, record: int
    ) -> None:
        """`add` for an access of lanes (None: all) to granules of `_granules` each."""
        shift, unit, per = places
        granules, accesses = np.empty(len(index) * per, np.int64), np.empty(len(index) * per, np.int64)
        others = loops.note_accesses(
            self.first.ctypes.data,
            self._shared.ctypes.data,
            index.ctypes.data,
            shift,
            unit,
            per,
            len(index),
            native.pointer(lanes),
            threads.ctypes.data,
            record << 32,
            granules.ctypes.data,
            accesses.ctypes.data,
        )
        if others:
            self._shared_log(granules[-others:].copy(), accesses[-others:].copy())

    def _shared_log(self, granules: np.ndarray, packed: np.ndarray) -> None:
        self._log.append((granules, packed))
        self._logged += len(granules)
        if self._logged > self._limit:
            self._compact()

    def _compact(self) -> None:
        """Keeps the latest access of each thread to each granule; where even these are many, some of each granule's, by threads far
        apart: memory is bounded by the data that is accessed, not by how often that happens."""
        granules = np.concatenate([chunk for chunk, _ in self._log])
        packed = np.concatenate([chunk for _, chunk in self._log])
        order = np.lexsort((packed, packed & 0xFFFFFFFF, granules))
        granules, packed = granules[order], packed[order]
        last = np.ones(len(granules), np.bool_)
        last[:-1] = (granules[1:] != granules[:-1]) | ((packed[1:] ^ packed[:-1]) & 0xFFFFFFFF != 0)
        granules, packed = granules[last], packed[last]
        if len(granules) > max(_LOG, _ACCESSES_KEPT * len(self.first)):
            recent = _spread_out(granules, packed, _ACCESSES_KEPT)
            granules, packed = granules[recent], packed[recent]
        self._log = [(granules, packed)]
        self._logged = len(granules)
        self._limit = max(_LOG, 2 * self._logged)

    def add_of_stream(self, granules: np.ndarray, packed: int) -> None:
        """Notes an access of a stream to distinct granules."""
        stream = packed & 0xFFFFFFFF
        if stream not in self._of_streams:
            self._of_streams[stream] = zeros(len(self.first), np.int64)
        self._of_streams[stream][granules] = packed

    def drop(self, granules: np.ndarray) -> None:
        """Forgets distinct granules, because all their accesses are ordered before later ones."""
        self.first[granules] = 0
        self._shared[granules] = False
        for latest in self._of_streams.values():
            latest[granules] = 0

    def clear(self, part: slice) -> None:
        """Forgets granules."""
        self.first[part] = 0
        self._shared[part] = False
        for latest in self._of_streams.values():
            latest[part] = 0
        if part.start is None:
            self._log.clear()
            self._logged = 0
        elif self._logged:
            self._log = [(g[keep], p[keep]) for g, p in self._log if (keep := (g < part.start) | (g >= part.stop)).any()]
            self._logged = sum(len(g) for g, _ in self._log)

    def unordered(self, granules: np.ndarray, lanes: Lanes, records: Records, order: Order) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `granules` that meet an access not ordered before `lanes`, and one such access each (packed)."""
        racing, others = zip(
            *(_not_ordered(positions, packed, lanes, records, order) for positions, packed in self._entries(granules)),
            strict=True,
        )
        return np.concatenate(racing), np.concatenate(others)

    def _entries(self, granules: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All accesses to these granules: positions in `granules`, and accesses (packed)."""
        yield np.arange(len(granules)), self.first[granules]
        for latest in self._of_streams.values():
            yield np.arange(len(granules)), latest[granules]
        many = np.flatnonzero(self._shared[granules])
        if len(many) and len(self._log) > _CHUNKS:
            self._log = [(np.concatenate([chunk for chunk, _ in self._log]), np.concatenate([chunk for _, chunk in self._log]))]
        # Several lanes may ask for one granule; the marks hold one of them at a time.
        while len(many):
            mark = zeros(len(self.first), np.int32) if self._mark is None else self._mark
            self._mark = mark
            mark[granules[many]] = many + 1
            here = mark[granules[many]] == many + 1
            for chunk, packed in self._log:
                hits = np.flatnonzero(mark[chunk])
                if len(hits):
                    yield mark[chunk[hits]] - 1, packed[hits]
            mark[granules[many]] = 0
            many = many[~here]

    def accesses_to(self, granule: int) -> np.ndarray:
        """All accesses to one granule (packed)."""
        accesses: np.ndarray = np.concatenate([packed for _, packed in self._entries(np.array([granule]))])
        here: np.ndarray = accesses[accesses != 0]
        return here


def _spread_out(granules: np.ndarray, packed: np.ndarray, most: int) -> np.ndarray:
    """Positions of up to `most` entries of each granule, one from each stretch of threads; granules ascend, threads within each."""
    threads = packed & 0xFFFFFFFF
    # Lengths are powers of two, so that kept entries stay spread out after growth.
    stretch = threads >> max(int(threads.max()).bit_length() - most.bit_length() + 1, 0)
    indices: np.ndarray = np.flatnonzero(np.append((granules[1:] != granules[:-1]) | (stretch[1:] != stretch[:-1]), True))
    return indices


def _not_ordered(positions: np.ndarray, packed: np.ndarray, lanes: Lanes, records: Records, order: Order) -> tuple[np.ndarray, np.ndarray]:
    there = packed != 0
    if not there.all():
        positions, packed = positions[there], packed[there]
    if not len(positions):
        return positions, packed
    who = lanes[positions]
    if len(who) > _MANY and (who == who[0]).all():
        # One lane that asks about a box: few accesses lie behind many granules.
        distinct, inverse = np.unique(packed, return_inverse=True)
        bad = ~order.ordered(np.full(len(distinct), who[0]), *records.unpack(distinct))[inverse]
    else:
        bad = ~order.ordered(who, *records.unpack(packed))
    return positions[bad], packed[bad]


class Shadow:
    """The shadow of one space."""

    def __init__(
        self,
        size: int,
        granule: int,
        order: Order,
        records: Records,
        race: Race,
        private: bool = False,
        lockstep: bool = False,
        scoped: bool = True,
    ) -> None:
        """`size` bytes, a multiple of 16. `private`: each byte belongs to one lane, so that nothing races. `lockstep`: strong
        accesses of one warp that move data without an order are races as well. `scoped`: several blocks reach the space."""
        self.granule = granule
        self.private = private
        self.lockstep = lockstep
        self.scoped = scoped
        self.order, self.records, self.race = order, records, race
        self.loops: native.Loops | None = None
        self.count = size // granule
        self.use_state(zeros(-(-self.count // _PIECE) * _PIECE, np.uint8))
        self._writers: np.ndarray | None = None
        self._sets: dict[int, AccessSet] = {}
        self._pending: list[tuple[int, np.ndarray, Lanes | None, tuple[int, int, int]]] = []
        self._pending_lanes = 0
        self.unwritten: Callable[[Site, Lanes, np.ndarray], None] | None = None
        self.outside: Callable[[Site, Lanes, np.ndarray], None] | None = None
        self.stale: Callable[[Site, Lanes, np.ndarray], None] | None = None
        """Called for read-only loads of addresses that the launch has written."""
        self.repeated: Race | None = None
        """Called in place of `race` where the bytes that are written are there already, or are written by all lanes alike."""
        self.unfenced: Callable[[Site, Lanes, np.ndarray, Records, np.ndarray], np.ndarray] | None = None
        """Called for strong loads of data that another block stored by a strong operation before a flag, where no fences order the two.
        Returns a flag for each that it reports."""
        self._searches = 0
        self.content: Callable[[], np.ndarray] | None = None
        """The bytes of the space, as they are before the access."""

    def use_state(self, state: np.ndarray) -> None:
        """Takes another array for the states of granules."""
        self.state = state
        self._views = {width: state.view(f"u{width}") for width in (1, 2, 4, 8)}

    def forget(self, part: slice | None = None) -> None:
        """A barrier has ordered all that happened to some granules (None: all)."""
        if part is None:
            self._pending.clear()
            self._pending_lanes = 0
        else:
            self.settle()
        chosen = slice(None) if part is None else part
        self.state[chosen] &= UNWRITTEN | WATCHED | GUARD
        for accesses in self._sets.values():
            accesses.clear(chosen)

    def access(self, site: Site, lanes: Lanes | None, offsets: np.ndarray, writes: bool | None = None) -> None:
        """Lanes access `width` bytes at byte offsets of the space. `writes` False: only ask, remember nothing."""
        width = site.access.width
        # TMA alone moves less than a granule, at the edges of tensors: it counts as all of it.
        total = max(1, width // self.granule)
        per_piece = min(total, _PIECE)
        shift = (per_piece * self.granule).bit_length() - 1
        first = offsets >> shift
        for piece in range(total // per_piece):
            self._piece(site, lanes, first + piece if piece else first, per_piece, writes is False)

    def plan(self, site: Site, fused: FusedAccess) -> bool:
        """Adds the checks of a plain access to the plan of a native one; False if they take more."""
        plan, total = fused.plan, site.access.width // self.granule
        threads, readers = self.order.threads, self._set(READ)
        if site.strong or total not in (1, 2, 4, 8) or not native.is_index(threads):
            return False
        plan.state, plan.granules, plan.granule_shift = self.state.ctypes.data, total, self.granule.bit_length() - 1
        plan.watched = plan.keep = plan.mark = 0
        if self.private:
            plan.matters = UNWRITTEN * site.reads
            plan.kind |= native.IS_PRIVATE
            fused.look_at(self, partial(self.noted, site))
            return True
        if self._writers is None:
            self._writers = zeros(self.count, np.int64)
        plan.matters = self._matters(site)
        plan.kind |= 0 if site.read_only else native.MAY_BE_OWN
        plan.writers, plan.threads = self._writers.ctypes.data, threads.ctypes.data
        plan.readers, plan.many_readers = readers.first.ctypes.data, readers.flags.ctypes.data
        if site.writes:
            plan.keep, plan.mark = 0xFF & ~UNWRITTEN, WRITTEN
        else:
            plan.watched, plan.keep, plan.mark = WATCHED, 0xFF, READ
        fused.look_at(self, partial(self.noted, site))
        return True

    @property
    def next_record(self) -> int:
        """The number of the next access."""
        return len(self.records.sites)

    @property
    def has_pending(self) -> bool:
        """True if there are reads that no set holds yet."""
        return bool(self._pending)

    def noted(self, site: Site, lanes: Lanes | None, index: np.ndarray, granules: int, answer: int) -> None:
        """A native access has been made to `granules` granules a lane, from the byte offsets `index` on."""
        if site.writes and not self.private:
            record = self.records.add(site, self.order.time)
            if answer == native.LOST:
                touched, who = self._spread(index, lanes, (self.granule.bit_length() - 1, 1, granules))
                self._tell_lost(site, lanes, granules, touched, who | record << 32)
        elif answer == native.REMEMBER:
            self._remember_read(self.records.add(site, self.order.time), index, lanes, (self.granule.bit_length() - 1, 1, granules))

    def _remember_read(self, record: int, index: np.ndarray, lanes: Lanes | None, places: tuple[int, int, int]) -> None:
        self._pending.append((record, index, lanes, places))
        self._pending_lanes += len(index)
        if len(self._pending) >= _MAX_PENDING or self._pending_lanes >= _MAX_PENDING_LANES:
            self.settle()

    def _tell_lost(self, site: Site, lanes: Lanes | None, per: int, granules: np.ndarray, packed: np.ndarray) -> None:
        """Reports lanes of one instruction that wrote granules that others of them wrote too."""
        assert self._writers is not None
        writers = self._writers[granules]
        lost = np.flatnonzero(writers != packed)
        if len(lost):
            who = (np.arange(len(granules) // per) if lanes is None else lanes).repeat(per)
            same = self._alike(site, who, granules, lost, np.flatnonzero(writers == packed))
            self._tell(site, who[lost], granules[lost], writers[lost], same)

    def _piece(self, site: Site, lanes: Lanes | None, index: np.ndarray, per: int, only_ask: bool) -> None:
        view = self._views[per]
        state = view[index]
        matters = UNWRITTEN * site.reads if self.private else self._matters(site)
        everywhere = _SPREAD[per]
        combined = int(np.bitwise_or.reduce(state))
        if combined & (matters * everywhere):
            self._examine(site, lanes, index, per, state, matters)
        if only_ask:
            return
        if self.private:
            if site.writes:
                view[index] = 0
            return
        if site.writes:
            mark = (STRONG_WRITE | NARROW * site.narrow) if site.strong else WRITTEN
            if combined & (UNWRITTEN * everywhere):
                state &= state.dtype.type(~(UNWRITTEN * everywhere) & ((1 << 8 * per) - 1))
            view[index] = state | state.dtype.type(mark * everywhere)
        elif combined & (WATCHED * everywhere):
            mark = state.dtype.type(((STRONG_READ | NARROW * site.narrow) if site.strong else READ) * everywhere)
            if np.bitwise_and.reduce(state) & mark != mark:
                view[index] = state | mark
        else:
            return
        record = self.records.add(site, self.order.time)
        if not site.strong and not site.writes:
            self._remember_read(record, index, lanes, (0, per, per))
            return
        granules, threads = self._spread(index, lanes, (0, per, per))
        packed = threads | record << 32
        if site.strong:
            self._set(STRONG_WRITE if site.writes else STRONG_READ).add(granules, packed)
            if (site.narrow and self.scoped) or (site.volatile and site.writes):
                self._meet_at_once(site, lanes, per, granules, packed)
            return
        if self._writers is None:
            self._writers = zeros(self.count, np.int64)
        self._writers[granules] = packed
        self._tell_lost(site, lanes, per, granules, packed)

    def own_access(self, kind: int, part: slice, foreign: int) -> np.ndarray:
        """An access of a kind to each granule of a part (packed; 0: none), but for those of the first `foreign` streams."""
        if kind == WRITTEN:
            writers = np.zeros(part.stop - part.start, np.int64) if self._writers is None else self._writers[part].copy()
            stream = (writers & 0xFFFFFFFF) - self.order.first_stream
            writers[((self.state[part] & WRITTEN) == 0) | ((stream >= 0) & (stream < foreign))] = 0
            return writers
        first: np.ndarray = np.where(self.state[part] & kind, self._set(kind).first[part], 0)
        return first

    def only_written_before(self, granules: np.ndarray, lanes: Lanes) -> bool:
        """True if plain writes that all these lanes know are all that a read of granules has to look at: a quick look."""
        state = self.state[granules]
        if int(np.bitwise_or.reduce(state)) & (UNWRITTEN | STRONG_WRITE | GUARD):
            return False
        writers = self.writers_of(granules[(state & WRITTEN) != 0])
        writers = writers[:1] if len(writers) and (writers == writers[0]).all() else np.unique(writers)
        many = np.tile(writers, len(lanes))
        return bool(self.order.ordered(lanes.repeat(len(writers)), *self.records.unpack(many)).all())

    def note(self, site: Site, granules: np.ndarray, thread: int) -> int:
        """Remembers an access of a stream, by its number, to distinct granules that it was free to touch; returns it packed."""
        record = self.records.add(site, self.order.time)
        packed = thread | record << 32
        if site.writes:
            self.mark_written(granules, packed)
            for accesses in self._sets.values():
                accesses.drop(granules)
            self.settle_if(granules)
        else:
            self.state[granules] |= READ
            self._set(READ).add_of_stream(granules, packed)
        return packed

    def settle_if(self, granules: np.ndarray) -> None:
        """Settles and drops the reads of these granules that are still to be settled: they came before."""
        if self._pending:
            self.settle()
            self._set(READ).drop(granules)

    def mark_written(self, granules: np.ndarray, packed: int) -> None:
        """Makes a write the last thing that happened to granules."""
        if self._writers is None:
            self._writers = zeros(self.count, np.int64)
        self._writers[granules] = packed
        self.state[granules] = (self.state[granules] & (WATCHED | GUARD)) | WRITTEN

    def writers_of(self, granules: np.ndarray) -> np.ndarray:
        """The last plain write of each granule (packed)."""
        return np.zeros(len(granules), np.int64) if self._writers is None else self._writers[granules]

    def _meet_at_once(self, site: Site, lanes: Lanes | None, per: int, granules: np.ndarray, packed: np.ndarray) -> None:
        """Strong accesses of one instruction that conflict with each other: volatile stores, and narrow ones of two blocks."""
        order = np.argsort(granules, kind="stable")
        first, second = order[:-1], order[1:]
        meet = granules[first] == granules[second]
        if not site.volatile:
            stride = self.order.geometry.stride
            meet &= (packed[first] & 0xFFFFFFFF) // stride != (packed[second] & 0xFFFFFFFF) // stride
        if meet.any():
            first, second = first[meet], second[meet]
            who = (np.arange(len(granules) // per) if lanes is None else lanes).repeat(per)
            same = self._alike(site, who, granules, first, second)
            self._tell(site, who[first], granules[first], packed[second], same)

    def _tell(self, site: Site, who: Lanes, granules: np.ndarray, others: np.ndarray, repeated: np.ndarray) -> bool:
        """Reports accesses that meet others; False if all of them repeat known ones."""
        if repeated.any():
            assert self.repeated is not None
            self.repeated(site, who[repeated], granules[repeated], self.records, others[repeated])
        rest = ~repeated
        if rest.any():
            self.race(site, who[rest], granules[rest], self.records, others[rest])
        return bool(rest.any())

    def _bytes_to_store(self, site: Site, who: Lanes, granules: np.ndarray) -> np.ndarray | None:
        """Bytes that lanes are about to write to granules, one row of bytes each; None if that is not known."""
        if self.repeated is None or site.access.stored is None or not len(who):
            return None
        rows = site.access.stored(who)
        first = granules * self.granule % site.access.width
        content: np.ndarray = rows[np.arange(len(who))[:, None], first[:, None] + np.arange(self.granule)]
        return content

    def _alike(self, site: Site, who: Lanes, granules: np.ndarray, lost: np.ndarray, won: np.ndarray) -> np.ndarray:
        """Entries of `lost` that write the same bytes to their granule as the one that won."""
        ours, theirs = (self._bytes_to_store(site, who[chosen], granules[chosen]) for chosen in (lost, won))
        if ours is None or theirs is None:
            return np.zeros(len(lost), np.bool_)
        order = np.argsort(granules[won], kind="stable")
        winner = order[np.searchsorted(granules[won], granules[lost], sorter=order)]
        alike: np.ndarray = (ours == theirs[winner]).all(axis=1)
        return alike

    def _repeats(self, site: Site, who: Lanes, granules: np.ndarray) -> np.ndarray:
        """Lanes that write bytes that are in memory already."""
        ours = self._bytes_to_store(site, who, granules)
        if ours is None or self.content is None:
            return np.zeros(len(who), np.bool_)
        there = self.content()[granules[:, None] * self.granule + np.arange(self.granule)]
        repeats: np.ndarray = (ours == there).all(axis=1)
        return repeats

    def _spread(self, index: np.ndarray, lanes: Lanes | None, places: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Granules and threads, one a granule touched: for `places` (shift, unit, count), `count` from (index >> shift) * unit on."""
        shift, unit, per = places
        if shift:
            index = index >> shift
        threads = self.order.threads if lanes is None else self.order.threads[lanes]
        if per == 1:
            return index, threads
        return ((index * unit)[:, None] + np.arange(per)).ravel(), threads.repeat(per)

    def _set(self, kind: int) -> AccessSet:
        if kind not in self._sets:
            self._sets[kind] = AccessSet(self.count)
        return self._sets[kind]

    def settle(self) -> None:
        """Moves remembered plain reads to their set; necessary before lanes become other threads."""
        loops = self.loops
        for record, index, lanes, places in self._pending:
            threads = self.order.threads
            if loops is not None and native.is_index(index) and native.is_index(lanes) and native.is_index(threads):
                self._set(READ).add_lanes(loops, index, lanes, places, threads, record)
            else:
                granules, who = self._spread(index, lanes, places)
                self._set(READ).add(granules, who | record << 32)
        self._pending.clear()
        self._pending_lanes = 0

    def _examine(self, site: Site, lanes: Lanes | None, index: np.ndarray, per: int, state: np.ndarray, matters: int) -> None:
        """Looks at each granule with a bit that matters."""
        bits = np.ascontiguousarray(state).view(np.uint8)
        if matters & NARROW and (bits & NARROW).any():
            matters |= STRONG_WRITE | STRONG_READ * site.writes
        who = np.arange(len(index)) if lanes is None else lanes
        chosen = np.flatnonzero(bits & matters)
        bits = bits[chosen]
        who = who[chosen // per]
        granules = index[chosen // per].astype(np.int64) * per + chosen % per
        if self.outside is not None and (bits & GUARD).any():
            bad = np.flatnonzero(bits & GUARD)
            self.outside(site, who[bad], granules[bad])
            bits[bad] &= ~np.uint8(UNWRITTEN)
        if matters & UNWRITTEN and self.unwritten is not None:
            bad = np.flatnonzero(bits & UNWRITTEN)
            if len(bad):
                self.unwritten(site, who[bad], granules[bad])
        if site.read_only and self.stale is not None:
            bad = np.flatnonzero(bits & (WRITTEN | STRONG_WRITE))
            bad = bad[self._by_threads(granules[bad], bits[bad])]
            if len(bad):
                self.stale(site, who[bad], granules[bad])
                return
        if matters & WRITTEN and self._writers is not None:
            here = np.flatnonzero(bits & WRITTEN)
            if len(here):
                racing, others = _not_ordered(here, self._writers[granules[here]], who, self.records, self.order)
                if len(racing):
                    same = self._repeats(site, who[racing], granules[racing]) & (self._of_stores(others))
                    if self._tell(site, who[racing], granules[racing], others, same):
                        return
        if self._pending and matters & READ and (bits & READ).any():
            self.settle()
        for kind in (READ, STRONG_WRITE, STRONG_READ):
            here = np.flatnonzero(bits & (kind & matters))
            if len(here):
                racing, others = self._set(kind).unordered(granules[here], who[here], self.records, self.order)
                if kind == STRONG_WRITE and self._passes_data(site) and len(racing):
                    flagged = self._behind_flags(granules[here][racing], who[here][racing], others)
                    if self.unfenced is not None and flagged.any():
                        at, on = who[here][racing[flagged]], granules[here][racing[flagged]]
                        known = self.unfenced(site, at, on, self.records, others[flagged])
                        flagged[flagged] = known
                        racing, others = racing[~flagged], others[~flagged]
                if site.strong and kind != READ:
                    racing, others = self._conflicting(site, racing, others, who[here])
                elif kind == STRONG_WRITE and len(racing):
                    racing, others = self._not_observed(racing, others, granules[here], who[here])
                if not len(racing):
                    continue
                at, on = who[here][racing], granules[here][racing]
                same = np.zeros(len(racing), np.bool_)
                if kind == STRONG_WRITE and site.writes:
                    same = self._repeats(site, at, on) & self._of_stores(others)
                if self._tell(site, at, on, others, same):
                    return

    def _by_threads(self, granules: np.ndarray, bits: np.ndarray) -> np.ndarray:
        """True for granules whose last write came from a thread of this launch, not from an engine or an earlier launch."""
        plain = (bits & WRITTEN) != 0
        stream = (self.writers_of(granules) & 0xFFFFFFFF) >= self.order.first_stream
        by_threads: np.ndarray = ~(plain & stream)
        return by_threads

    def _of_stores(self, others: np.ndarray) -> np.ndarray:
        """Accesses (packed) that are plain or volatile stores."""
        sites = self.records.sites
        return np.array(
            [(other := sites[number]) is not None and other.access.kind == "store" for number in (others >> 32).tolist()], np.bool_
        )

    def _matters(self, site: Site) -> int:
        """The state bits that an access has to look at. Strong accesses race with each other only where scopes are too narrow,
        where lanes rely on lockstep, and through volatile variables."""
        matters = _matters(site)
        if self.outside is not None:
            matters |= GUARD
        if site.strong:
            if self.scoped:
                matters |= NARROW
            if (site.narrow and self.scoped) or site.volatile or (self.lockstep and site.exchanges):
                matters |= STRONG_WRITE | STRONG_READ * site.writes
            if self._passes_data(site):
                matters |= STRONG_WRITE
        return matters

    def _conflicting(self, site: Site, racing: np.ndarray, others: np.ndarray, who: Lanes) -> tuple[np.ndarray, np.ndarray]:
        """Only those unordered strong accesses that conflict with one of another thread nevertheless."""
        theirs, ours = others & 0xFFFFFFFF, self.order.threads[who[racing]]
        stride = self.order.geometry.stride
        same_warp, same_block = theirs // WARP == ours // WARP, theirs // stride == ours // stride
        keep = np.zeros(len(racing), np.bool_)
        numbers, inverse = np.unique(others >> 32, return_inverse=True)
        for position, number in enumerate(numbers.tolist()):
            other = self.records.sites[number]
            assert other is not None
            here = inverse == position
            if self.lockstep and site.exchanges and other.exchanges:
                keep |= here & same_warp
            if site.volatile and other.volatile:
                keep |= here
            if self.scoped and (site.narrow or other.narrow):
                keep |= here & ~same_block
        return racing[keep], others[keep]

    def _not_observed(self, racing: np.ndarray, others: np.ndarray, granules: np.ndarray, who: Lanes) -> tuple[np.ndarray, np.ndarray]:
        """Leaves out the strong writes that a strong read, itself ordered before the present access, has seen: a write
        precedes everything after a read that observes it (PTX ISA, "Causality order")."""
        if not len(racing):
            return racing, others
        turns = {thread: lane for lane, thread in enumerate(self.order.threads.tolist())}
        # Many lanes meet the same access to the same word: a lock.
        known: dict[tuple[int, int], np.ndarray] = {}
        places = list(zip(granules[racing].tolist(), others.tolist(), strict=True))
        readers_of = {
            granule: np.concatenate([each.accesses_to(granule) for each in self._strong_sets()])
            for granule in {place[0] for place in places}
        }
        for granule, other in set(places):
            readers = readers_of[granule]
            known[granule, other] = readers[self._after(readers, other, turns)]
        seen = np.zeros(len(racing), np.bool_)
        counts = np.array([len(known[place]) for place in places])
        ends = np.cumsum(counts)
        first = 0
        while first < len(places):
            last = max(int(np.searchsorted(ends, ends[first] - counts[first] + _MAX_PAIRS, side="right")), first + 1)
            pairs = np.repeat(np.arange(first, last), counts[first:last])
            readers = np.concatenate([known[place] for place in places[first:last]])
            seen[pairs[self.order.ordered(who[racing[pairs]], *self.records.unpack(readers))]] = True
            first = last
        return racing[~seen], others[~seen]

    def _after(self, accesses: np.ndarray, other: int, turns: Mapping[int, int]) -> np.ndarray:
        """True for strong accesses (packed) that came after another one; updates by one instruction come lane after lane, in the `turns`
        of threads."""
        after: np.ndarray = accesses >> 32 > other >> 32
        together = np.flatnonzero(accesses >> 32 == other >> 32)
        site = self.records.sites[other >> 32]
        if len(together) > 1 and site is not None and site.reads and site.writes:
            turn = turns.get(other & 0xFFFFFFFF)
            if turn is not None:
                after[together] = [turns.get(thread, -1) > turn for thread in (accesses[together] & 0xFFFFFFFF).tolist()]
        return after

    def _passes_data(self, site: Site) -> bool:
        """True for strong loads that take data from other blocks: nobody waits with the value."""
        return self.unfenced is not None and site.exchanges and not site.writes

    def _behind_flags(self, granules: np.ndarray, lanes: Lanes, others: np.ndarray) -> np.ndarray:
        """True for unordered loads of lanes of bytes that a store in `others` left, if the lane's block has accessed another
        location, a flag, after the storing block has written that after the store. Only fences would make the flag order the store."""
        stride = self.order.geometry.stride
        readers, writers = self.order.threads[lanes] // stride, (others & 0xFFFFFFFF) // stride
        chosen = np.flatnonzero(self._of_data(others) & (readers != writers))
        flagged = np.zeros(len(others), np.bool_)
        if not len(chosen) or self._searches >= _MAX_SEARCHES:
            return flagged
        self._searches += 1
        flags = np.flatnonzero(self.state[: self.count] & (STRONG_WRITE | STRONG_READ))
        flags = flags[~np.isin(flags, granules)]
        if not len(flags):
            return flagged
        writes, reads = (self._accesses_of(kind, flags) for kind in (STRONG_WRITE, STRONG_READ))
        seen_at, seen = np.concatenate([writes[0], reads[0]]), np.concatenate([writes[1], reads[1]])
        written_when, seen_when = self._in_turn(writes[1]), self._in_turn(seen)
        for reader in np.unique(readers[chosen]).tolist():
            # The last access of the reader's block to each flag, and the last write of each block to a flag before that.
            latest = np.zeros(len(flags), np.int64)
            own = (seen & 0xFFFFFFFF) // stride == reader
            np.maximum.at(latest, seen_at[own], seen_when[own])
            before = written_when < latest[writes[0]]
            blocks, place = np.unique((writes[1][before] & 0xFFFFFFFF) // stride, return_inverse=True)
            raised = np.zeros(len(blocks) + 1, np.int64)
            np.maximum.at(raised, place, writes[1][before] >> 32)
            asked = chosen[readers[chosen] == reader]
            position = np.searchsorted(blocks, writers[asked])
            known = np.append(blocks, -1)[position] == writers[asked]
            flagged[asked] = known & (raised[position] > others[asked] >> 32)
        return flagged

    def _in_turn(self, accesses: np.ndarray) -> np.ndarray:
        """Numbers in the order in which accesses (packed) came: lanes execute one instruction's atomic operations one after another."""
        threads = self.order.threads
        by_thread = np.argsort(threads, kind="stable")
        position = np.minimum(np.searchsorted(threads, accesses & 0xFFFFFFFF, sorter=by_thread), len(threads) - 1)
        lane = by_thread[position]
        in_turn: np.ndarray = accesses >> 32 << 32 | np.where(threads[lane] == accesses & 0xFFFFFFFF, lane, 0)
        return in_turn

    def _of_data(self, others: np.ndarray) -> np.ndarray:
        """True for accesses (packed) that leave data: stores, exchanges and sums of floats."""
        numbers, inverse = np.unique(others >> 32, return_inverse=True)
        sites = [self.records.sites[number] for number in numbers.tolist()]
        leaves = np.array([site is not None and site.leaves_data for site in sites], np.bool_)
        of_data: np.ndarray = leaves[inverse]
        return of_data

    def _accesses_of(self, kind: int, granules: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `granules`, and accesses of a kind to them (packed)."""
        positions, packed = zip(*self._set(kind)._entries(granules), strict=True)
        at, accesses = np.concatenate(positions), np.concatenate(packed)
        there = accesses != 0
        return at[there], accesses[there]

    def _strong_sets(self) -> list[AccessSet]:
        return [self._set(kind) for kind in (STRONG_READ, STRONG_WRITE)]


_MAX_PAIRS = 1 << 18
"""Pairs of an access and a reader that are compared at once."""
_SPREAD = {1: 0x1, 2: 0x101, 4: 0x1010101, 8: 0x101010101010101}


def _matters(site: Site) -> int:
    """The state bits that an access has to look at. Strong accesses do not race with each other."""
    if site.strong:
        return (UNWRITTEN if site.reads else 0) | WRITTEN | (READ if site.writes else 0)
    if site.writes:
        return _RACES
    return UNWRITTEN | WRITTEN | STRONG_WRITE


__all__ = ["UNWRITTEN", "WATCHED", "AccessSet", "Records", "Shadow"]
