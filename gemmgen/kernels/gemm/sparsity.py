"""Matrices that are 2:4 sparse: of every four neighbours along k, two are kept, and four bits of metadata say which.

Rows of the kept values have half the length. Metadata are words of 16 bits, one for 16 values of k, row by row: bits 4 i to 4 i + 3 of a
word belong to its i-th four values, the lower two say where the first kept one stands, the upper two where the second one does.

Warpgroups read metadata in the order of their lanes: a word of 32 bits for each of the 128 lanes, for 64 rows and 64 values of k. Lane
4 r + i of a warp, which has 16 of the rows, holds of 16-bit elements word i of its row r, and above it that of row r + 8; of bytes, words
2 (i div 2) and the next of row r where i is even, else of row r + 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmgen.core.formulas import ceil_div

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FOUR, KEPT = 4, 2
WORD_K = 16
"""Values of k of a word of metadata."""
CHUNK_K = 64
"""Values of k whose metadata are copied at a time: 8 bytes of a row. It divides k."""
LANE_ROWS, LANES = 64, 128
"""Rows of metadata in the order of lanes, and the lanes."""
WORDS = CHUNK_K // WORD_K
PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
"""Places of the kept values among four."""


def compress(dense: npt.NDArray[Any], numbers: npt.NDArray[Any], prune: bool = False) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint16]]:
    """The kept values (rows, k / 2) of a matrix (rows, k), and their metadata (rows, k / 16); k is a multiple of 16.

    ``numbers``: the values of the elements, by which the two largest magnitudes of four are kept, NaN before all others, the first of
    equal ones. Raises ``ValueError`` where more than two are not zero, unless ``prune``.
    """
    import numpy as np

    rows, k = dense.shape
    each = np.abs(np.ascontiguousarray(numbers.reshape(rows, k // FOUR, FOUR).transpose(2, 0, 1), np.float32))
    each[np.isnan(each)] = np.inf
    if not prune and (crowded := (each != 0).sum(axis=0, dtype=np.int8) > KEPT).any():
        line, four = np.argwhere(crowded)[0]
        raise ValueError(f"column {line} has more than two values other than 0 in rows {FOUR * four} to {FOUR * four + 3}")
    # A value is kept if fewer than two others come before it: larger ones, and equal ones on its left.
    after = {(i, j): each[j] >= each[i] if j < i else each[j] > each[i] for i in range(FOUR) for j in range(FOUR) if i != j}
    takes = [sum(after[i, j].view(np.int8) for j in range(FOUR) if j != i) < KEPT for i in range(FOUR)]
    values = np.moveaxis(dense.reshape(rows, k // FOUR, FOUR), 2, 0)
    byte = np.uint8
    first = np.where(takes[0], byte(0), np.where(takes[1], byte(1), byte(2)))
    second = np.where(takes[3], byte(3), np.where(takes[2], byte(2), byte(1)))
    nonzero = np.empty((rows, k // FOUR, KEPT), dense.dtype)
    nonzero[:, :, 0] = np.where(takes[0], values[0], np.where(takes[1], values[1], values[2]))
    nonzero[:, :, 1] = np.where(takes[3], values[3], np.where(takes[2], values[2], values[1]))
    nibbles = (first | second << byte(2)).reshape(rows, k // WORD_K, WORD_K // FOUR)
    words = (nibbles[:, :, 0::2] | nibbles[:, :, 1::2] << byte(4)).view(np.uint16).reshape(rows, k // WORD_K)
    return nonzero.reshape(rows, k // 2), words


def places(metadata: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The value of k that each kept one belongs to, (rows, k / 2), of metadata (rows, k / 16)."""
    import numpy as np

    rows, words = metadata.shape
    fours = words * WORD_K // FOUR
    nibbles = metadata.astype(np.int64)[..., None] >> np.arange(0, WORD_K, FOUR) & 15
    both = np.stack([nibbles & 3, nibbles >> 2], axis=-1).reshape(rows, fours, KEPT)
    indices: npt.NDArray[np.int64] = (both + FOUR * np.arange(fours)[:, None]).reshape(rows, fours * KEPT)
    return indices


def lane_words(metadata: npt.NDArray[Any], element_bytes: int) -> npt.NDArray[np.uint32]:
    """Metadata (rows, k / 16) in the order of lanes, (rows / 64, k / 64 * 128); those of rows that do not exist name the first two values.
    k is a multiple of 64."""
    import numpy as np

    rows, words = metadata.shape
    whole = np.full((ceil_div(rows, LANE_ROWS) * LANE_ROWS, words), 0x4444, np.uint32)
    whole[:rows] = metadata
    # Block of 64 rows, warp, half of its rows, row, unit along k, word.
    parts = whole.reshape(-1, 4, 2, 8, words // WORDS, WORDS)
    if element_bytes == 2:
        held = parts[:, :, 0] | parts[:, :, 1] << 16  # block, warp, row, unit, word
        lanes = held.transpose(0, 3, 1, 2, 4)
    else:
        held = parts[..., 0::2] | parts[..., 1::2] << 16  # block, warp, half, row, unit, pair of words
        lanes = held.transpose(0, 4, 1, 3, 5, 2)
    return np.ascontiguousarray(lanes.reshape(len(whole) // LANE_ROWS, -1))


def from_lane_words(lanes: npt.NDArray[Any], rows: int, element_bytes: int) -> npt.NDArray[np.uint16]:
    """Metadata (rows, k / 16) of those in the order of lanes."""
    import numpy as np

    blocks, units = lanes.shape[0], lanes.shape[1] // LANES
    words = lanes.astype(np.uint32)
    low, high = words & 0xFFFF, words >> 16
    whole = np.empty((blocks, 4, 2, 8, units, WORDS), np.uint16)
    if element_bytes == 2:
        for half, held in enumerate((low, high)):
            whole[:, :, half] = held.reshape(blocks, units, 4, 8, WORDS).transpose(0, 2, 3, 1, 4)
    else:
        for place, held in enumerate((low, high)):
            whole[..., place::2] = held.reshape(blocks, units, 4, 8, 2, 2).transpose(0, 2, 5, 3, 1, 4)
    metadata: npt.NDArray[np.uint16] = whole.reshape(blocks * LANE_ROWS, units * WORDS)[:rows]
    return metadata


def random_metadata(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Metadata of any pairs."""
    import numpy as np

    codes = np.array([first | second << 2 for first, second in PAIRS])
    words: npt.NDArray[np.int64] = (codes[rng.integers(0, len(codes), (*shape, FOUR))] << np.arange(0, WORD_K, FOUR)).sum(axis=-1)
    return words
