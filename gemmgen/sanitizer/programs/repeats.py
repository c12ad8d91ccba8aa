"""Launches that are known already: the same kernel, with the same arguments, on the same memory. Their results are put in place instead.

The contents of an allocation have a number, which changes whenever they do. A launch is known if all that it reads has the numbers of an
earlier launch; what it changed then gets those numbers again. Contents that come from the host are compared with those that have been kept,
so that data which are copied again have their former number. The bytes themselves move when somebody looks at them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from gemmgen.emulator import Device
from gemmgen.emulator.device import Touched
from gemmgen.emulator.memory import GLOBAL_BASE

_MAX_LAUNCHES = 1 << 16
"""Different kernels with their arguments."""
_MAX_OCCASIONS = 64
"""Occasions of one of them that are remembered."""
_MAX_CONTENT_BYTES, _MAX_KEPT_BYTES = 64 << 20, 512 << 20
"""Bytes of contents that are kept for one launch, and for all of them."""
_FIRST_CONTENT_BYTES = 16 << 20
"""Bytes of contents that are kept for the first launch of a kernel with its arguments."""
_LARGE_INPUT = 1 << 20
"""Bytes from which an allocation that a launch only reads is known by its number alone."""
_MAX_CHANGING_RUNS = 32
"""Runs of a launch that always meets other memory, after which it is no longer expected to meet the same again."""
_SAMPLES = 1024
_HEAD_BYTES = 256


@dataclass(slots=True)
class _Occasion:
    """Numbers of the contents that a launch has met."""

    inputs: dict[int, int]
    """Numbers of the allocations that the launch read, by their start."""
    outputs: dict[int, tuple[int, int, bool]]
    """Numbers of the allocations that it changed, before and after, and whether it certainly wrote every byte without reading any."""


@dataclass(slots=True)
class _Known:
    """Launches with the same kernel, shape and parameters."""

    occasions: list[_Occasion] = field(default_factory=list)
    touched: dict[int, bool] = field(default_factory=dict)
    """Allocations that the last one touched, and whether it has changed them."""
    misses: int = 0
    """Runs in a row that met other memory."""


class KnownLaunches:
    """The launches of a device, and the contents of its memory."""

    def __init__(self, device: Device, size_of: Callable[[int], int]) -> None:
        """`size_of`: the bytes of the allocation or variable at a place."""
        self._device, self._size_of = device, size_of
        self._launches: dict[bytes, _Known] = {}
        self._numbers: dict[int, int] = {}
        self._generations: dict[int, int] = {}
        self._last_number = 0
        self._kept: OrderedDict[int, tuple[object, np.ndarray]] = OrderedDict()
        """Contents by their number, with their sample; those that were of use last are last."""
        self._kept_bytes = 0
        self._by_sample: dict[object, list[int]] = {}
        self._pending: dict[int, np.ndarray] = {}

    @property
    def is_pending(self) -> bool:
        """True if memory has to get its contents before anybody looks at it."""
        return bool(self._pending)

    def place_contents(self) -> None:
        """Gives memory the contents that it is known to have."""
        for start, content in self._pending.items():
            self._device.memory[start : start + len(content)] = content
        self._pending.clear()

    def change(self, start: int) -> None:
        """An allocation has other contents from now on."""
        self._pending.pop(start, None)
        self._last_number += 1
        self._numbers[start] = self._last_number

    def renew(self, start: int) -> None:
        """An allocation is another one, or its contents have become undefined: they equal no former contents, whatever the bytes are."""
        self._generations[start] = self._generations.get(start, 0) + 1
        self.change(start)

    def put_in_place(self, key: bytes) -> bool:
        """True if a launch is known; memory is then as the launch leaves it. If not, it is ready to run."""
        known = self._launches.get(key)
        if known is not None and known.occasions and self._meets(known):
            known.misses = 0
            return True
        self.place_contents()
        return False

    def note(self, key: bytes, touched: Sequence[Touched], read_besides: Collection[int], is_repeatable: bool, has_changed: bool) -> None:
        """The effect of a launch that has run; it cannot be repeated if it had another effect than on this memory of the device.

        `read_besides` are allocations, by their start, that it may have read without a sign of it in `touched`; `has_changed`: some byte
        may differ from before."""
        if len(self._launches) >= _MAX_LAUNCHES and key not in self._launches:
            del self._launches[next(iter(self._launches))]
        is_first = key not in self._launches
        known = self._launches.setdefault(key, _Known())
        changed = [each for each in touched if each.is_changed]
        before = {start: self._number(start) for start in (*read_besides, *(each.region.start for each in touched))}
        for each in changed if has_changed else ():
            self.change(each.region.start)
        known.misses += 1
        known.touched = dict.fromkeys(before, False) | {each.region.start: True for each in changed}
        if not is_repeatable:
            known.occasions.clear()
            known.touched.clear()
            return
        if known.misses <= _MAX_CHANGING_RUNS:
            self._identify(known, _FIRST_CONTENT_BYTES if is_first else _MAX_CONTENT_BYTES)
        read = {each.region.start for each in touched if each.read.any() or each.atomic.any()}.union(read_besides)
        outputs = {}
        for each in changed:
            start = each.region.start
            units = -(-(each.region.stop - start) // each.unit)
            outputs[start] = before[start], self._number(start), start not in read and each.unit == 1 and bool(each.written[:units].all())
        inputs = {start: number for start, number in before.items() if start in read}
        known.occasions = [*known.occasions[1 - _MAX_OCCASIONS :], _Occasion(inputs, outputs)]

    def _number(self, start: int) -> int:
        number = self._numbers.get(start)
        if number is None:
            self.change(start)
            number = self._numbers[start]
        return number

    def _meets(self, known: _Known) -> bool:
        """True if one of the occasions has come again; its effect is in place then."""
        if any(self._repeat(occasion) for occasion in reversed(known.occasions)):
            return True
        if known.misses > _MAX_CHANGING_RUNS:
            return False
        before = dict(self._numbers)
        self._identify(known, _MAX_CONTENT_BYTES)
        return before != self._numbers and any(self._repeat(occasion) for occasion in reversed(known.occasions))

    def _repeat(self, occasion: _Occasion) -> bool:
        if any(self._numbers.get(start) != number for start, number in occasion.inputs.items()):
            return False
        missing = {}
        for start, (before, after, is_whole) in occasion.outputs.items():
            number = self._numbers.get(start)
            if number == after:
                continue
            if after not in self._kept or not (is_whole or number == before):
                return False
            missing[start] = after
        for start, after in missing.items():
            self._pending[start] = self._kept[after][1]
            self._kept.move_to_end(after)
            self._numbers[start] = after
        return True

    def _identify(self, known: _Known, limit: int) -> None:
        """Looks for the contents that a launch touches among those that are kept, and keeps them if they have at most `limit` bytes."""
        chosen = {start: self._size_of(start) for start, is_changed in known.touched.items()}
        chosen = {start: size for start, size in chosen.items() if known.touched[start] or size <= _LARGE_INPUT}
        if sum(chosen.values()) > limit:
            return
        for start, size in chosen.items():
            number = self._number(start)
            if number in self._kept or start in self._pending or not size:
                continue
            content = self._device.memory[start : start + size]
            sample = start, self._generations.get(start), size, content[:_HEAD_BYTES].tobytes(), content[:: size // _SAMPLES | 1].tobytes()
            same = next((other for other in self._by_sample.get(sample, ()) if _are_equal(self._kept[other][1], content)), None)
            if same is not None:
                self._numbers[start] = same
                self._kept.move_to_end(same)
            else:
                self._keep(number, sample, content.copy())

    def _keep(self, number: int, sample: object, content: np.ndarray) -> None:
        self._kept[number] = sample, content
        self._by_sample.setdefault(sample, []).append(number)
        self._kept_bytes += len(content)
        while self._kept_bytes > _MAX_KEPT_BYTES:
            oldest, (its_sample, its_content) = self._kept.popitem(last=False)
            self._kept_bytes -= len(its_content)
            others = self._by_sample[its_sample]
            others.remove(oldest)
            if not others:
                del self._by_sample[its_sample]


def size_on(device: Device) -> Callable[[int], int]:
    """Sizes of a device's allocations, by their place in its memory; 0 where there is none."""

    def size_of(start: int) -> int:
        region = device.region_of(start + GLOBAL_BASE)
        return region.stop - region.start if region is not None and region.start == start else 0

    return size_of


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    words = len(one) // 8 * 8
    return np.array_equal(one[:words].view(np.uint64), other[:words].view(np.uint64)) and np.array_equal(one[words:], other[words:])
