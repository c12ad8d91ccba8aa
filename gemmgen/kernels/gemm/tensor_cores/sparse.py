"""Products of a 2:4 sparse A on tensor cores: reasons against them, and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmgen.core.errors import Reason
from gemmgen.kernels.accuracy import SMALLEST
from gemmgen.kernels.gemm.sparsity import CHUNK_K, places
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.math.tensor_accuracy import Mainloop, magnitude, sum_error

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.gemm.plan import Array

METADATA_BITS = 1
"""Bits of metadata for each value of k, removed ones included."""


def sparse_form_reasons(spec: GemmSpec, types: tuple[str, ...]) -> Iterator[Reason]:
    """Types, layouts and multiples that do not go with a sparse A."""
    if {spec.storage.a, spec.storage.b} - set(types):
        need = f"{', '.join(types[:-1])} or {types[-1]} with a sparse A"
        yield Reason("sparse", "storage", f"{spec.storage.a} and {spec.storage.b}", need)
    if (spec.transpose[0] == "n") != (spec.order == "row_major"):
        need = "A along k, in which neighbours are left out: n where row_major, t where column_major"
        yield Reason("sparse", "transpose", spec.transpose, need)
    if spec.multiple_of.k % CHUNK_K:
        need = f"a multiple of {CHUNK_K}: metadata are copied for so many values of k"
        yield Reason("multiple_of", "multiple_of.k", str(spec.multiple_of.k), need, f"multiple_of: {{k: {CHUNK_K}}}")
    if spec.batch != "none" or spec.dual or spec.scales.given:
        yield Reason("sparse", "mainloop.sparse", "a with a batch, a second B or block scales", "one product without block scales")


def sparse_product(
    loop: Mainloop, a: Array, b: Array, metadata: npt.NDArray[np.uint16], slices: int, joined: int, exact: bool
) -> tuple[Array, Array]:
    """A B of the kept values, and its largest error, 0 if ``exact``; ``metadata``: (m, k / 16); ``loop``: its numbers count kept values.
    Values of B beside those that are left out take no part, not even as infinities. The error allows for an instruction that adds its
    products at once, and for one that adds them in two parts."""
    import numpy as np

    at = places(metadata)
    shape = a.shape[0], b.shape[1]
    product = np.stack([row @ b[selected] for row, selected in zip(a, at, strict=True)]) if len(a) else np.zeros(shape)
    if exact:
        return product, np.zeros(shape)
    sizes_a, sizes_b = magnitude(loop.type_a, a), magnitude(loop.type_b, b)
    size = np.stack([row @ sizes_b[selected] for row, selected in zip(sizes_a, at, strict=True)]) if len(a) else np.zeros(shape)
    return product, 2 * sum_error(loop, slices, a.shape[1], joined) * size + SMALLEST
