"""The causality order of PTX, as far as it decides whether two accesses race.

Time is one counter for the whole launch; it advances at every synchronization. An access of thread u at time s is ordered before the
present access of thread t if t knows u up to s. The knowledge of a thread comes from (PTX ISA, "Memory Consistency Model"):

- program order: itself;
- barriers of the whole block (`bar.sync` synchronizes with itself): all earlier accesses of its block. One time a block;
- `bar.warp.sync` and barriers of a part of the block: the knowledge of all participants. A matrix of times, lane by lane, for each
  warp (or for each block, in programs that have barriers of a part of it). `shfl`, `vote`, `match`, `redux`, `ldmatrix`
  and `mma` bring lanes together, but the CUDA programming guide says that they guarantee no memory ordering;
- release and acquire patterns: a fence (or a release) before a strong write to M, a strong read of M that observes it, and a
  fence (or an acquire) after that. Knowledge travels with the location M, through read-modify-write operations too. `red`
  acquires nothing.

All of it is cumulative: a barrier passes on everything acquired before it. It also hands on fences: a `fence.sc` (the
meaning of `membar` and of `__threadfence()`) by one thread, a barrier, and an atomic operation by another one release as if
that one had executed the fence: otherwise the two fence.sc of writer and reader, which are ordered one way or the other,
would contradict the values that were read. Fences of other strengths are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gemmgen.emulator.geometry import WARP, Geometry, Lanes
from gemmgen.emulator.hazards.clocks import NOTHING, Clocks


class Level:
    """Fences of one scope: the fenced knowledge of each lane, its reads since the last fence, and the clocks that locations carry."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.carried: dict[Any, int] = {}
        """The knowledge that a location's present value carries, as the number of a clock."""

    def start(self, lanes: int) -> None:
        """Fresh lanes; locations keep their clocks until these are forgotten."""
        self.fence_time = np.zeros(lanes, np.int32)
        self.fence_base = np.zeros(lanes, np.int32)
        self.fence_known = np.zeros(lanes, np.int32)
        self.released = np.zeros(lanes, np.int32)
        self.pending = np.zeros(lanes, np.int32)
        self.tickets = np.zeros(lanes, np.int32)
        """The part of `pending` that read-modify-write operations have shown."""
        self.fenced = False
        self.observed = False

    def restart(self, lanes: Lanes, places: Callable[[int], bool]) -> None:
        """Some lanes are fresh; the locations that `places` chooses are new memory and carry nothing."""
        for values in (self.fence_time, self.fence_base, self.fence_known, self.released, self.pending, self.tickets):
            values[lanes] = 0
        self.forget(places)

    def held(self) -> Iterator[int]:
        """The numbers of the clocks that lanes and locations hold."""
        for numbers in (self.fence_known, self.released, self.pending, self.tickets):
            yield from np.unique(numbers).tolist()
        yield from self.carried.values()

    def forget(self, places: Callable[[int], bool]) -> None:
        """Locations that `places` chooses carry nothing."""
        for key in [key for key in self.carried if places(key[0] if isinstance(key, tuple) else key)]:
            del self.carried[key]

    def forget_blocks(self, ended: set[int] | None) -> None:
        """Forgets the stamps of locations within blocks that have ended (None: all)."""
        self.carried = {} if ended is None else {key: number for key, number in self.carried.items() if key[1] not in ended}

    def join(self, lanes: Lanes, block: int, whole_block: bool, threads: np.ndarray) -> None:
        """Lanes met at a barrier: all get the fenced and observed knowledge of each. `threads` are the lanes' thread numbers."""
        clocks = self.clocks
        if self.observed:
            for numbers in (self.pending, self.tickets):
                distinct = np.unique(numbers[lanes]).tolist()
                if len(distinct) > 1:
                    numbers[lanes] = clocks.join_all(distinct)
        if not self.fenced:
            return
        times = self.fence_time[lanes]
        distinct = np.unique(self.released[lanes]).tolist()
        own = np.flatnonzero(times)
        if len(own):
            blocks = {block: int(self.fence_base[lanes].max())}
            if whole_block and len(own) == len(lanes):
                blocks[block] = max(blocks[block], int(times.min()))
            own = own[times[own] > blocks[block]]
            fenced = dict(zip(threads[own].tolist(), times[own].tolist(), strict=True))
            distinct += [clocks.new(blocks, fenced), *np.unique(self.fence_known[lanes]).tolist()]
        elif len(distinct) == 1:
            return
        self.released[lanes] = clocks.join_all(distinct)
        self.fence_time[lanes] = self.fence_base[lanes] = self.fence_known[lanes] = 0

    def release_of(self, lane: int, block: int, thread: int) -> int:
        """The clock that a strong write of this lane carries."""
        time = int(self.fence_time[lane])
        if not time:
            return int(self.released[lane])
        own = self.clocks.new({block: int(self.fence_base[lane])}, {thread: time})
        return self.clocks.join_all([self.clocks.join_all([int(self.released[lane]), int(self.fence_known[lane])]), own])


class Order:
    """The order of one launch. Threads of the grid are numbered block by block, a block's padding included."""

    def __init__(self, parts_of_blocks: bool) -> None:
        self.parts_of_blocks = parts_of_blocks
        """True if the program has barriers that only a part of a block takes part in."""
        self.time = 1
        self.clocks = Clocks()
        self.device, self.block = Level(self.clocks), Level(self.clocks)
        self.clocks.holders += [self.device.held, self.block.held, lambda: np.unique(self.known).tolist()]
        self.streams: list[str] = []
        """Engines that act as separate threads, in words; the first one's number is `first_stream`."""

    def start_wave(self, geometry: Geometry) -> None:
        """Fresh lanes, in blocks that nothing has ordered yet."""
        self.geometry = geometry
        lanes = geometry.lanes
        self.threads = geometry.threads_of_grid(np.arange(lanes))
        self.base = np.full(lanes, self.time - 1, np.int32)
        self.known = np.zeros(lanes, np.int32)
        self.knows = False
        self.group = geometry.stride if self.parts_of_blocks else WARP
        self.matrix: np.ndarray | None = None
        self.arrivals: dict[tuple[int, int], list[tuple[Lanes, np.ndarray]]] = {}
        for level in (self.device, self.block):
            level.start(lanes)
            level.forget(lambda place: place < 0)
        self.block.forget_blocks(None)
        self.time += 1

    def blocks_replaced(self, places: np.ndarray, shared: Callable[[int], bool]) -> None:
        """Other blocks, fresh as those of a new wave, are at these places; `shared` tells locations in their shared memory."""
        lanes = self.geometry.lanes_at(places)
        ended = set((self.threads[lanes] // self.geometry.stride).tolist())
        self.block.forget_blocks(ended)
        self.threads[lanes] = self.geometry.threads_of_grid(lanes)
        self.base[lanes] = self.time - 1
        self.known[lanes] = NOTHING
        if self.matrix is not None:
            self.matrix.reshape(-1, self.group)[lanes] = 0
        for key in [key for key in self.arrivals if key[0] in places]:
            del self.arrivals[key]
        for level in (self.device, self.block):
            level.restart(lanes, shared)
        self.time += 1

    # -- engines and barriers in memory ------------------------------------------------------------------------

    first_stream = 1 << 31

    def new_stream(self, name: str) -> int:
        """The number of an engine, which acts as a separate thread outside of all blocks."""
        self.streams.append(name)
        return self.first_stream + len(self.streams) - 1

    def describe(self, thread: int) -> str:
        """A thread of the grid, or a stream."""
        if thread >= self.first_stream:
            return self.streams[thread - self.first_stream]
        return self.geometry.describe_thread(thread)

    def clock_of(self, threads: dict[int, int]) -> int:
        """A clock that knows these threads up to a time each."""
        return self.clocks.new({}, threads)

    def release(self, lanes: Lanes) -> int:
        """A clock of the knowledge and accesses of these lanes up to now."""
        stride = self.geometry.stride
        numbers = [number for number in np.unique(self.known[lanes]).tolist() if number != NOTHING]
        for block in np.unique(lanes // stride).tolist():
            members = lanes[lanes // stride == block]
            number = int(self.threads[members[0]]) // stride
            if len(members) == self.geometry.threads:
                numbers.append(self.clocks.new({number: self.time}, {}))
                continue
            base = int(self.base[members].max())
            threads = dict.fromkeys(self.threads[members].tolist(), self.time)
            if self.matrix is not None:
                for group in np.unique(members // self.group).tolist():
                    row = self.matrix[group, members[members // self.group == group] % self.group].max(axis=0)
                    first = int(self.threads[group * self.group])
                    for other in np.flatnonzero(row > base).tolist():
                        threads.setdefault(first + other, int(row[other]))
            numbers.append(self.clocks.new({number: base}, threads))
        self.time += 1
        return self.clocks.join_all(numbers)

    def release_fenced(self, lanes: Lanes) -> int:
        """A clock of these lanes up to their last fence of a scope wider than a block, which a relaxed operation publishes."""
        stride, level = self.geometry.stride, self.device
        fenced = lanes[(level.fence_time[lanes] | level.released[lanes]) != 0]
        threads = self.threads[fenced].tolist()
        return self.clocks.join_all(
            [level.release_of(lane, thread // stride, thread) for lane, thread in zip(fenced.tolist(), threads, strict=True)]
        )

    def observe(self, lanes: Lanes, clock: int) -> None:
        """Lanes have observed a clock by a relaxed operation; they acquire it at their next fence."""
        if clock == NOTHING:
            return
        for lane in lanes.tolist():
            self.device.pending[lane] = self.clocks.join_all([int(self.device.pending[lane]), clock])
        self.device.observed = True

    def learn(self, lanes: Lanes, clock: int) -> None:
        """Lanes acquire a clock."""
        if clock == NOTHING:
            return
        known = self.known[lanes]
        for number in np.unique(known).tolist():
            self.known[lanes[known == number]] = self.clocks.join_all([number, clock])
        self.knows = True

    # -- the question ------------------------------------------------------------------------------------------

    def ordered(self, lanes: Lanes, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
        """True if what `threads` did at `times` happened before what `lanes` do now, pair by pair."""
        if len(lanes) == 1:
            return np.array([self._happened_before(int(lanes[0]), int(threads[0]), int(times[0]))])
        mine = self.threads[lanes]
        stride = self.geometry.stride
        same_block = threads // stride == mine // stride
        fine: np.ndarray = (threads == mine) | (same_block & (times <= self.base[lanes]))
        if self.matrix is not None and not fine.all():
            group = self.group
            near = np.flatnonzero(~fine & (threads // group == mine // group))
            known = self.matrix[lanes[near] // group, lanes[near] % group, threads[near] % group]
            fine[near] = known >= times[near]
        if self.knows and not fine.all():
            for clock in np.unique(self.known[lanes[~fine]]).tolist():
                if clock != NOTHING:
                    here = np.flatnonzero(~fine & (self.known[lanes] == clock))
                    fine[here] = self.clocks[clock].covers(threads[here], times[here], stride)
        return fine

    def _happened_before(self, lane: int, thread: int, time: int) -> bool:
        """True if a thread's accesses at a time happened before the lane's access now: `ordered` for one pair, without arrays."""
        mine, stride, group = int(self.threads[lane]), self.geometry.stride, self.group
        if thread == mine or (thread // stride == mine // stride and time <= self.base[lane]):
            return True
        matrix = self.matrix if thread // group == mine // group else None
        if matrix is not None and matrix[lane // group, lane % group, thread % group] >= time:
            return True
        clock = int(self.known[lane]) if self.knows else NOTHING
        return clock != NOTHING and self.clocks[clock].covers_one(thread, time, stride)

    def seen_unfenced(self, lanes: Lanes, threads: np.ndarray, times: np.ndarray, by_tickets: bool = True) -> np.ndarray:
        """True if a strong operation, of read-modify-write `by_tickets`, has shown to a lane, or to its block before a barrier, that
        accesses of `threads` at `times` happened, and only the fence behind that operation is missing."""
        seen = np.zeros(len(lanes), np.bool_)
        pending = (self.device.tickets if by_tickets else self.device.pending)[lanes]
        for clock in np.unique(pending).tolist():
            if clock != NOTHING:
                here = np.flatnonzero(pending == clock)
                seen[here] = self.clocks[clock].covers(threads[here], times[here], self.geometry.stride)
        return seen

    # -- barriers ----------------------------------------------------------------------------------------------

    def whole_blocks_met(self, lanes: Lanes | None) -> None:
        """All living threads of these lanes' blocks (None: of all) were released from a barrier."""
        self.clocks.drop_unheld()
        if self.knows or self.device.observed or self.device.fenced or self.block.observed or self.block.fenced:
            stride = self.geometry.stride
            who = np.flatnonzero(~self.geometry.padding) if lanes is None else lanes
            for block in np.unique(who // stride).tolist():
                self._join(who[who // stride == block], whole_block=True)
        self.base[... if lanes is None else self._with_whole_blocks(lanes)] = self.time
        self.time += 1

    def _with_whole_blocks(self, lanes: Lanes) -> np.ndarray:
        stride = self.geometry.stride
        return (np.unique(lanes // stride)[:, None] * stride + np.arange(stride)).ravel()

    def arrived(self, lanes: Lanes, numbers: np.ndarray) -> None:
        """Lanes arrived at barriers (by number) without waiting; waiting lanes will acquire their present clocks."""
        rows = self._rows()
        for lane, number in zip(lanes.tolist(), numbers.tolist(), strict=True):
            block = lane // self.geometry.stride
            row = rows[lane // self.group, lane % self.group].copy()
            row[lane % self.group] = self.time
            self.arrivals.setdefault((block, number), []).append((np.array([lane]), row))
        self.time += 1

    def part_of_block_met(self, lanes: Lanes, number: int) -> None:
        """Some threads of one block were released from barrier `number`."""
        arrivals = self.arrivals.pop((int(lanes[0]) // self.geometry.stride, number), [])
        everyone = np.concatenate([lanes, *(who for who, _ in arrivals)])
        self._join(everyone, whole_block=False, only=lanes)
        self._meet(lanes, [row for _, row in arrivals])
        self.time += 1

    def warps_met(self, lanes: Lanes, masks: np.ndarray) -> None:
        """Lanes met at `bar.warp.sync`: those of one warp with one mask."""
        self.clocks.drop_unheld()
        keys = (lanes // WARP) << 32 | masks.astype(np.int64)
        order = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        groups = np.split(lanes[order], cuts)
        if self.knows or self.device.observed or self.device.fenced or self.block.observed or self.block.fenced:
            for members in groups:
                self._join(members, whole_block=False)
        if self.group == WARP and len(groups) == len(np.unique(lanes // WARP)):
            self._warps_meet(lanes)
        else:
            for members in groups:
                self._meet(members, [])
        self.time += 1

    def _rows(self) -> np.ndarray:
        if self.matrix is None:
            self.matrix = np.zeros((self.geometry.lanes // self.group, self.group, self.group), np.int32)
        return self.matrix

    def _warps_meet(self, lanes: Lanes) -> None:
        """`_meet` for many warps at once, one group of lanes in each."""
        matrix = self._rows()
        present = np.zeros((self.geometry.lanes // WARP, WARP), np.bool_)
        present.reshape(-1)[lanes] = True
        rows = np.where(present[:, :, None], matrix, 0).max(axis=1)
        rows[present] = self.time
        self.matrix = np.where(present[:, :, None], rows[:, None, :], matrix)

    def _meet(self, lanes: Lanes, more: list[np.ndarray]) -> None:
        """Lanes of one group acquire the clocks of all of them, and `more`."""
        matrix = self._rows()
        group, inside = int(lanes[0]) // self.group, lanes % self.group
        row = matrix[group, inside].max(axis=0)
        for other in more:
            np.maximum(row, other, out=row)
        row[inside] = self.time
        matrix[group, inside] = row

    def _join(self, lanes: Lanes, whole_block: bool, only: Lanes | None = None) -> None:
        """Lets all that these lanes have acquired, fenced and observed become common to them (to `only`, if given)."""
        targets = lanes if only is None else only
        if self.knows:
            distinct = np.unique(self.known[lanes]).tolist()
            if len(distinct) > 1:
                self.known[targets] = self.clocks.join_all(distinct)
        block = int(self.threads[lanes[0]]) // self.geometry.stride
        for level in (self.device, self.block):
            level.join(lanes, block, whole_block, self.threads[lanes])

    # -- fences, releases, acquires ------------------------------------------------------------------------------

    def fence(self, lanes: Lanes, device: bool) -> None:
        """Lanes execute a fence of device scope or wider, or of block scope."""
        self.clocks.drop_unheld()
        for level in (self.device, self.block) if device else (self.block,):
            if level.observed:
                for lane in lanes[level.pending[lanes] != NOTHING].tolist():
                    self._learn(lane, int(level.pending[lane]))
            level.fence_time[lanes] = self.time
            level.fence_base[lanes] = self.base[lanes]
            level.fence_known[lanes] = self.known[lanes]
            level.fenced = True
            if self.matrix is not None:
                for lane in lanes.tolist():
                    level.released[lane] = self._now(lane, int(level.released[lane]))
        self.time += 1

    def _learn(self, lane: int, clock: int) -> None:
        self.known[lane] = self.clocks.join_all([int(self.known[lane]), clock])
        self.knows = True

    def _now(self, lane: int, more: int = NOTHING) -> int:
        """All that a lane knows, and the clock `more`, as a clock."""
        thread, stride = int(self.threads[lane]), self.geometry.stride
        threads = {thread: self.time}
        base = int(self.base[lane])
        if self.matrix is not None:
            row = self.matrix[lane // self.group, lane % self.group]
            first = thread // self.group * self.group
            threads |= {first + other: int(row[other]) for other in np.flatnonzero(row > base).tolist()}
            threads[thread] = self.time
        # Lanes share this join, and each adds a part that no other lane shares.
        common = self.clocks.join_all([more, int(self.known[lane])])
        return self.clocks.join_all([common, self.clocks.new({thread // stride: base}, threads)])

    def strong_access(
        self,
        lanes: Lanes,
        places: np.ndarray,
        reads: bool,
        writes: bool,
        updates: bool,
        acquire: bool,
        release: bool,
        device: bool,
    ) -> None:
        """Lanes, one after another, access locations with morally strong operations. `updates`: read-modify-write."""
        self.clocks.drop_unheld()
        for lane, place in self._concerned(lanes, places, acquire or release):
            thread = int(self.threads[lane])
            block = thread // self.geometry.stride
            for level, key in ((self.device, place), (self.block, (place, block))):
                if level is self.device and not device:
                    continue
                carried = level.carried.get(key, NOTHING)
                if reads and carried != NOTHING:
                    if acquire:
                        self._learn(lane, carried)
                    else:
                        level.pending[lane] = self.clocks.join_all([int(level.pending[lane]), carried])
                        level.observed = True
                        if updates:
                            level.tickets[lane] = self.clocks.join_all([int(level.tickets[lane]), carried])
                if writes:
                    released = self._now(lane) if release else level.release_of(lane, block, thread)
                    level.carried[key] = self.clocks.join_all([carried, released]) if updates else released
        if release:
            self.time += 1

    def _concerned(self, lanes: Lanes, places: np.ndarray, synchronizing: bool) -> Iterator[tuple[int, int]]:
        """The lanes for which a strong access can matter: those that release, or meet a location that carries something."""
        device, block = self.device, self.block
        if not (synchronizing or device.fenced or block.fenced or device.carried or block.carried):
            return
        chosen = (device.fence_time[lanes] | device.released[lanes] | block.fence_time[lanes] | block.released[lanes]) != 0
        if synchronizing:
            chosen[:] = True
        else:
            concerned = set(places[chosen].tolist())
            blocks = (self.threads[lanes] // self.geometry.stride).tolist()
            chosen |= np.array(
                [
                    place in concerned or place in device.carried or (place, own) in block.carried
                    for place, own in zip(places.tolist(), blocks, strict=True)
                ]
            )
        yield from zip(lanes[chosen].tolist(), places[chosen].tolist(), strict=True)
