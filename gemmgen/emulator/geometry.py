"""The threads of lanes: lanes are the threads of the blocks that run, place by place, padded to whole warps."""

from __future__ import annotations

import numpy as np

WARP = 32
Dim3 = tuple[int, int, int]
Lanes = np.ndarray
"""Lane numbers (int64, ascending)."""


class Geometry:
    """The lanes of one wave: places for `blocks` blocks. `numbers` says which block of the grid is at each place."""

    def __init__(self, block_dim: Dim3, blocks: int) -> None:
        self.block_dim = block_dim
        self.blocks = blocks
        self.threads = block_dim[0] * block_dim[1] * block_dim[2]
        self.warps_per_block = -(-self.threads // WARP)
        self.stride = self.warps_per_block * WARP
        self.lanes = blocks * self.stride
        self.numbers = np.arange(blocks)
        self.grid_dim: Dim3 = (1, 1, 1)
        self.cluster_dim: Dim3 = (1, 1, 1)
        self.explicit_cluster = False
        everyone = np.arange(self.lanes)
        self.block_of_lane = everyone // self.stride
        self.thread_of_lane = everyone % self.stride
        self.padding = self.thread_of_lane >= self.threads
        self._thread_index: dict[int, np.ndarray] = {}

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster; they have neighbouring places."""
        x, y, z = self.cluster_dim
        return x * y * z

    def block_numbers(self, first: int, count: int) -> np.ndarray:
        """The blocks of the grid that start as number `first` and on: cluster by cluster, x fastest in both."""
        started = np.arange(first, first + count)
        if self.cluster_size == 1:
            return started
        cluster, rank = started // self.cluster_size, started % self.cluster_size
        number, weight = np.zeros(count, np.int64), 1
        for grid, size in zip(self.grid_dim, self.cluster_dim, strict=True):
            number += (cluster % (grid // size) * size + rank % size) * weight
            cluster, rank, weight = cluster // (grid // size), rank // size, weight * grid
        return number

    def lanes_at(self, places: np.ndarray) -> Lanes:
        """The lanes of the blocks at these places, padding included."""
        lanes: np.ndarray = (places[:, None] * self.stride + np.arange(self.stride)).ravel()
        return lanes

    def threads_of_grid(self, lanes: Lanes) -> np.ndarray:
        """The number that each lane's thread has in the grid; blocks follow each other, padded to whole warps."""
        threads: np.ndarray
        if np.size(lanes) == self.lanes:
            threads = (self.numbers * self.stride).repeat(self.stride)
            threads += self.thread_of_lane
        else:
            threads = self.numbers[lanes // self.stride] * self.stride + lanes % self.stride
        return threads

    def thread_index(self, axis: int) -> np.ndarray:
        """%tid along an axis, for every lane."""
        if axis not in self._thread_index:
            x, y, _ = self.block_dim
            thread = np.minimum(self.thread_of_lane, self.threads - 1)
            index = thread % x if axis == 0 else thread // x % y if axis == 1 else thread // (x * y)
            self._thread_index[axis] = index.astype(np.uint32)
        return self._thread_index[axis]

    def block_index(self, axis: int) -> np.ndarray:
        """%ctaid along an axis, for every lane."""
        x, y, _ = self.grid_dim
        index = self.numbers % x if axis == 0 else self.numbers // x % y if axis == 1 else self.numbers // (x * y)
        return index.astype(np.uint32).repeat(self.stride)

    def describe_block(self, place: int) -> str:
        """`block (1,0,0)`, by its place."""
        number = int(self.numbers[place])
        x, y, _ = self.grid_dim
        return f"block ({number % x},{number // x % y},{number // (x * y)})"

    def describe_lane(self, lane: int) -> str:
        """`thread (3,0,0) of block (1,0,0)`."""
        return self.describe_thread(int(self.threads_of_grid(np.array(lane))))

    def describe_thread(self, number: int) -> str:
        """`describe_lane` for a thread of the grid, by its number there."""
        x, y, _ = self.block_dim
        thread, block = number % self.stride, number // self.stride
        gx, gy, _ = self.grid_dim
        return (
            f"thread ({thread % x},{thread // x % y},{thread // (x * y)}) of block ({block % gx},{block // gx % gy},{block // (gx * gy)})"
        )

    def describe(self, lanes: np.ndarray) -> str:
        """A set of lanes in words: the first one, and how many others in how many blocks."""
        count = len(lanes)
        if count == 0:
            return "no thread"
        text = self.describe_lane(int(lanes[0]))
        if count > 1:
            blocks = len(np.unique(self.block_of_lane[lanes]))
            where = "" if blocks == 1 else f" in {blocks} blocks"
            text += f" and {count - 1} other{'s' if count > 2 else ''}{where}"
        return text
