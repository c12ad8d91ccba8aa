"""Names that are suggested in place of one that there is not."""

from __future__ import annotations

import pytest

from gemmgen.core.text import close_paths

KNOWN = ("gemm/v0_naive", "gemm/v1_tiled", "gemm/wgmma/tour/fp8_128x256", "gemm/wgmma", "conv2d/wgmma", "reduction/open", "reduction")


@pytest.mark.parametrize(
    ("word", "close"),
    [
        ("gemm/v1_tilde", ["gemm/v1_tiled"]),
        ("v1_tild", ["gemm/v1_tiled"]),
        ("gem/v1_tiled", ["gemm/v1_tiled"]),
        ("wgma", ["gemm/wgmma", "conv2d/wgmma"]),
        ("reducton", ["reduction"]),
        ("gemm/nope", []),
        ("", []),
    ],
)
def test_close_paths_are_like_it_in_their_last_part(word: str, close: list[str]) -> None:
    assert close_paths(word, KNOWN) == close
