"""Calls of cuBLASLt, on a library that records its calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from gemmgen.kernels.gemm.cublaslt import (
    A_SCALE_POINTER,
    BATCH_COUNT,
    BIAS_POINTER,
    COMPUTE_F32,
    COMPUTE_S32,
    DATA_TYPES,
    EPILOGUE,
    EPILOGUES,
    FAST_ACCUMULATION,
    TRANSPOSE_A,
    TRANSPOSE_B,
    Addresses,
    CublasLt,
    CublasLtError,
    Operand,
    Product,
)
from gemmgen.kernels.gemm.peer import fused_epilogue

NOT_SUPPORTED = 15


class Recorded:
    """A library of which every function succeeds; ``offered`` algorithms, of which the second is refused by the heuristic itself."""

    def __init__(self, offered: int = 3, heuristic_status: int = 0) -> None:
        self.layouts: list[tuple[int, int, int, int]] = []
        self.layout_attributes: list[tuple[int, int]] = []
        self.attributes: dict[int, int] = {}
        self.computes: list[int] = []
        self.products: list[tuple[int, int, int, float, float]] = []
        self.offered, self.heuristic_status = offered, heuristic_status

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: self._done(name, arguments)

    def _done(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "cublasLtMatmulDescCreate":
            self.computes.append(arguments[1].value)
        elif name == "cublasLtMatrixLayoutCreate":
            self.layouts.append(tuple(argument.value for argument in arguments[1:5]))  # type: ignore[arg-type]
        elif name == "cublasLtMatrixLayoutSetAttribute":
            self.layout_attributes.append((arguments[1].value, arguments[2]._obj.value))
        elif name == "cublasLtMatmulDescSetAttribute":
            self.attributes[arguments[1].value] = arguments[2]._obj.value
        elif name == "cublasLtMatmulAlgoGetHeuristic":
            arguments[9]._obj.value = self.offered
            for number in range(self.offered):
                arguments[8][number].status = NOT_SUPPORTED if number == 1 else 0
            return self.heuristic_status
        elif name == "cublasLtMatmul":
            alpha, beta = (ctypes.cast(arguments[place], ctypes.POINTER(type(arguments[place]._obj))).contents.value for place in (2, 7))
            self.products.append((arguments[3].value, arguments[5].value, arguments[8].value, alpha, beta))
        return 0


def row_major(kind: str, rows: int, columns: int, gap: int = 0) -> Operand:
    return Operand(kind, rows, columns, columns + gap, 1)


AT = Addresses(a=1000, b=2000, d=3000, bias=4000, scale=5000)


def test_row_major_results_are_computed_as_transposes() -> None:
    library = Recorded()
    product = Product(row_major("bf16", 5, 7), row_major("bf16", 7, 3), row_major("bf16", 5, 3, gap=8))
    first, *others = CublasLt(0, library).algorithms(product)
    first.run(AT, 2.0, 0.0, 0)
    assert [algorithm.number for algorithm in (first, *others)] == [0, 2], "an algorithm that the heuristic refuses was offered"
    assert library.layouts == [(DATA_TYPES["bf16"], 3, 7, 3), (DATA_TYPES["bf16"], 7, 5, 7), (DATA_TYPES["bf16"], 3, 5, 11)]
    assert (library.attributes[TRANSPOSE_A], library.attributes[TRANSPOSE_B]) == (0, 0)
    assert library.computes == [COMPUTE_F32]
    assert library.products == [(2000, 1000, 3000, 2.0, 0.0)]


def test_k_contiguous_operands_are_transposed_by_the_call() -> None:
    library = Recorded()
    product = Product(row_major("s8", 32, 64), row_major("s8", 16, 64).transposed, row_major("s32", 32, 16))
    CublasLt(0, library).algorithms(product)[0].run(AT, 3.0, 1.0, 0)
    assert (library.attributes[TRANSPOSE_A], library.attributes[TRANSPOSE_B]) == (1, 0)
    assert library.computes == [COMPUTE_S32]
    assert library.products == [(2000, 1000, 3000, 3, 1)], "alpha and beta of int32 sums are integers"


def test_column_major_results_keep_the_order_of_operands() -> None:
    library = Recorded()
    product = Product(row_major("f16", 5, 7), row_major("f16", 7, 3), row_major("f16", 3, 5).transposed)
    CublasLt(0, library).algorithms(product)[0].run(AT, 1.0, 0.0, 0)
    assert library.products[0][:3] == (1000, 2000, 3000)
    assert (library.attributes[TRANSPOSE_A], library.attributes[TRANSPOSE_B]) == (1, 1)


def test_bias_scales_and_accumulation_are_set_for_a_product() -> None:
    library = Recorded()
    product = Product(row_major("e4m3", 16, 32), row_major("e4m3", 16, 32).transposed, row_major("bf16", 16, 16), "bias_gelu", False, True)
    CublasLt(0, library).algorithms(product)[0].run(AT, 1.0, 0.0, 0)
    assert library.attributes[EPILOGUE] == EPILOGUES["bias_gelu"]
    assert (library.attributes[BIAS_POINTER], library.attributes[A_SCALE_POINTER], library.attributes[FAST_ACCUMULATION]) == (4000, 5000, 1)


def test_batches_have_a_count_and_a_stride() -> None:
    library = Recorded()
    batched = [Operand("f32", 4, 4, 4, 1, batch=6, batch_stride=16) for _ in range(3)]
    CublasLt(0, library).algorithms(Product(*batched))
    assert [value for attribute, value in library.layout_attributes if attribute == BATCH_COUNT] == [6, 6, 6]


def test_products_that_cublaslt_lacks_have_no_algorithm() -> None:
    product = Product(*(row_major("e4m3", 5, 5) for _ in range(3)))
    assert CublasLt(0, Recorded(heuristic_status=NOT_SUPPORTED)).algorithms(product) == ()


def test_matrices_with_two_gaps_are_refused() -> None:
    gaps = Operand("f32", 4, 4, 16, 2)
    with pytest.raises(CublasLtError, match="contiguous"):
        CublasLt(0, Recorded()).algorithms(Product(gaps, gaps, row_major("f32", 4, 4)))


def test_fused_epilogue_takes_bias_and_one_activation() -> None:
    from gemmgen import api

    def steps(*operations: dict[str, Any]) -> Any:
        naive = {"strategy": "naive", "threadblock": {"m": 16, "n": 16}}
        return api.plan({"kind": "gemm", "mainloop": naive, "epilogue": list(operations)}, "sm_80").epilogue

    result = row_major("f32", 8, 8)
    bias, relu = {"op": "bias", "per": "column"}, {"op": "relu"}
    assert fused_epilogue(steps(bias, relu), result) == ("bias_relu", [])
    assert fused_epilogue(steps(bias, {"op": "gelu", "form": "tanh"}), result)[0] == "bias_gelu"
    fused, left = fused_epilogue(steps(bias, {"op": "silu"}), result)
    assert (fused, [step.operation.op for step in left]) == ("bias", ["silu"])
    assert fused_epilogue(steps({"op": "bias", "per": "row"}), result)[0] == "none"
    assert fused_epilogue(steps(bias), result.transposed)[0] == "none"
