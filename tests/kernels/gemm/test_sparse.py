"""Products of a 2:4 sparse A by mma.sp: the reference, metadata, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.gemm.sparsity import compress, places, random_metadata
from tests.kernels.verifying import passes

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "transpose": "nt",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "f32"},
    "alignment": {"a": 2, "b": 2, "c": 2},
    "multiple_of": {"k": 64},
    "mainloop": {
        "strategy": "mma_sync",
        "sparse": "a",
        "tile": {"threadblock": {"m": 32, "n": 16, "k": 64}, "warp": {"m": 16, "n": 16}},
        "stages": 2,
    },
}
NAMES = ("primes", "not-a-numbers and infinities", "padded leading dimensions", "k of 0")


def changed(loop: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {**SPEC, **others, "mainloop": {**SPEC["mainloop"], **loop}}


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        changed(
            {"tile": {"threadblock": {"m": 32, "n": 32, "k": 128}, "warp": {"m": 32, "n": 16}}, "stages": 3},
            order="column_major",
            transpose="tn",
            storage={"a": "f16", "b": "f16", "c": "f16"},
            epilogue=[{"op": "bias", "per": "row"}],
        ),
        changed({}, transpose="nn", decomposition={"scheme": "split_k_parallel", "slices": 3}, multiple_of={"k": 64, "n": 2}),
        changed({}, storage={"a": "s8", "b": "s8", "c": "s32"}, alignment={"a": 4, "b": 4, "c": 1}, alpha="one"),
    ],
    ids=["rows", "columns", "slices", "bytes"],
)
def test_products_are_those_of_the_reference(spec: dict[str, Any]) -> None:
    """Metadata of every pair; infinities of B beside values of A that are left out do not count."""
    assert passes(spec, NAMES)


@pytest.mark.parametrize(
    "planted",
    [
        ("chunk * kChunkBytes + lane % 4 * 2;", "chunk * kChunkBytes + lane % 2 * 2;"),
        ("multiply<1>", "multiply<0>"),
        ("2 * part + 1", "2 * part"),
        ("min(first_row + index / kRowChunks, m - 1)", "index / kRowChunks"),
    ],
)
def test_mistakes_show(planted: tuple[str, str]) -> None:
    assert not passes(SPEC, ("2 x 3 tiles",), planted)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (changed({}, storage={"a": "e4m3", "b": "e4m3", "c": "f32"}, architecture="sm_89"), "storage"),
        (changed({}, transpose="tn"), "transpose"),
        (changed({}, multiple_of={"k": 32}), "multiple_of.k"),
        (changed({}, batch="strided"), "mainloop.sparse"),
        (changed({"copies": "tma"}, architecture="sm_90", alignment={"a": 8, "b": 8, "c": 1}), "mainloop.sparse"),
        (changed({"fragment_buffers": 2}), "mainloop.sparse"),
        (changed({}, alignment={"a": 1, "b": 2, "c": 1}), "alignment.a"),
        (changed({"tile": {"threadblock": {"m": 32, "n": 16, "k": 32}, "warp": {"m": 16, "n": 16}}}), "mainloop.tile.threadblock.k"),
    ],
)
def test_specs_that_cannot_work_are_refused(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(GemmgenError) as caught:
        gemmgen.plan(spec)
    assert field in str(caught.value)


def test_compression_keeps_what_is_there() -> None:
    rng = np.random.default_rng(1)
    at = places(random_metadata((5, 8), rng))
    dense = np.zeros((5, 128), np.float32)
    values = rng.integers(1, 100, at.shape)
    values[:, ::3] = 0
    np.put_along_axis(dense, at, values.astype(np.float32), axis=1)
    kept, metadata = compress(dense, dense)
    again = np.zeros_like(dense)
    np.put_along_axis(again, places(metadata), kept, axis=1)
    assert np.array_equal(again, dense)
    assert (places(metadata)[:, 0::2] < places(metadata)[:, 1::2]).all()


def test_crowded_rows_are_named_or_pruned() -> None:
    dense = np.zeros((2, 64), np.float32)
    dense[1, 8:12] = (1.0, -4.0, np.nan, 2.0)
    with pytest.raises(ValueError, match="column 1 has more than two values other than 0 in rows 8 to 11"):
        compress(dense, dense)
    kept, metadata = compress(dense, dense, prune=True)
    assert kept[1, 4] == -4.0
    assert np.isnan(kept[1, 5])
    assert places(metadata)[1, 4:6].tolist() == [9, 10]


def test_dispatch_takes_no_sparse_kernel_for_a_dense_product() -> None:
    from gemmgen.dispatch.problems import parse_problem
    from gemmgen.kernels.gemm.matcher import fit
    from gemmgen.kernels.gemm.spec import GemmSpec

    assert fit(GemmSpec.model_validate(SPEC), parse_problem("gemm:64,64,64,nt,bf16")) == "it is for a sparse A"
