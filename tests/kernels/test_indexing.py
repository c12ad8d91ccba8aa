from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gemmgen.kernels.tiles.indexing import contiguous_fragment, split_fragment, tile_copy

POWERS = st.sampled_from([1, 2, 4, 8, 16])


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.sampled_from(["contiguous", "warp", "threadblock"]))
def test_a_fragment_map_covers_the_tile_exactly_once(lanes: int, warps: int, quads: int, how: str) -> None:
    thread = 4 * quads
    warp, threadblock = lanes * thread, lanes * thread * warps
    if how == "contiguous":
        fragment = contiguous_fragment(threadblock, warp, thread)
    else:
        fragment = split_fragment(threadblock, warp, thread, warp if how == "warp" else threadblock, 4)
    assert (fragment.lanes, fragment.warps) == (lanes, warps)
    positions = [fragment.position(w, lane, i) for w in range(warps) for lane in range(lanes) for i in range(thread)]
    assert sorted(positions) == list(range(threadblock))


@given(st.sampled_from([8, 16, 24, 64, 128]), st.sampled_from([8, 12, 16, 32, 64]), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_tile_copy_reads_every_element_once(rows: int, columns: int, warps: int, widest: int) -> None:
    copy = tile_copy(rows, columns, 32 * warps, widest)
    if copy is None:
        assert rows * columns % (32 * warps) or columns & (columns - 1) or warps & (warps - 1)  # powers of two always fit
        return
    assert copy.vector <= widest
    touched = []
    for thread in range(copy.threads):
        for a_pass in range(copy.passes):
            row, column = copy.position(thread, a_pass)
            touched += [(row, column + i) for i in range(copy.vector)]
    assert sorted(touched) == [(row, column) for row in range(rows) for column in range(columns)]


def test_takes_the_widest_vectors_that_share_the_tile_evenly() -> None:
    assert tile_copy(128, 8, 256, 4).vector == 4  # type: ignore[union-attr]
    assert tile_copy(64, 8, 256, 4).vector == 2  # type: ignore[union-attr]
    assert tile_copy(128, 8, 256, 1).vector == 1  # type: ignore[union-attr]
    assert tile_copy(7, 8, 256, 4) is None
