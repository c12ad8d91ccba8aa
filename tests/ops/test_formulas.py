"""Products with an epilogue of the caller's, by ``ops.matmul``: operands by name, further outputs, traced functions, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen import ops, symbols
from gemmgen.core.errors import LaunchError, SpecError
from gemmgen.kernels.epilogue.functions import philox

RNG = np.random.default_rng(3)
A = RNG.integers(-3, 4, (9, 20)).astype(np.float32)
B = RNG.integers(-3, 4, (20, 13)).astype(np.float32)
BIAS = RNG.integers(-3, 4, 13).astype(np.float32)
SLOPE = RNG.integers(1, 3, (9, 1)).astype(np.float16)
GATE = RNG.integers(-3, 4, (9, 13)).astype(np.int8)
FORMULA = {
    "inputs": {
        "bias": {"per": "column"},
        "slope": {"per": "row", "type": "f16"},
        "gate": {"per": "element", "type": "s8"},
        "keep": {"scalar": "f32"},
    },
    "let": {"z": "acc * slope + bias"},
    "outputs": {
        "C": "z * gate * keep if row >= column else -1",
        "saved": {"value": "z", "type": "f16"},
        "reach": {"reduce": "absmax", "of": "z"},
    },
}


def operands(**more: Any) -> dict[str, Any]:
    return {
        "bias": BIAS,
        "slope": SLOPE,
        "gate": GATE,
        "keep": 0.5,
        "saved": np.zeros((9, 13), np.float16),
        "reach": np.zeros(1, np.float32),
        **more,
    }


def test_operands_and_outputs_are_passed_by_name() -> None:
    given = operands()
    got = ops.matmul(A, B, epilogue=FORMULA, operands=given, backend="emulator")
    z = A @ B * SLOPE.astype(np.float32) + BIAS
    wanted = np.where(np.arange(9)[:, None] >= np.arange(13), z * GATE * 0.5, -1)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(given["saved"], z.astype(np.float16))
    assert given["reach"] == np.abs(z).max()


def test_a_result_in_columns_turns_the_formula() -> None:
    given = operands(gate=np.asfortranarray(GATE), saved=np.zeros((9, 13), np.float16, order="F"))
    out = np.zeros((9, 13), np.float32, order="F")
    ops.matmul(A, B, epilogue=FORMULA, operands=given, out=out, backend="emulator")
    np.testing.assert_array_equal(out, ops.matmul(A, B, epilogue=FORMULA, operands=operands(), backend="emulator"))
    np.testing.assert_array_equal(given["saved"], (A @ B * SLOPE.astype(np.float32) + BIAS).astype(np.float16))


def test_a_traced_function_is_an_epilogue() -> None:
    @gemmgen.epilogue(bias={"per": "column"})
    def finish(acc: Any, bias: Any) -> Any:
        return symbols.max(acc + bias, 0)

    got = ops.matmul(A, B, epilogue=finish, operands={"bias": BIAS}, backend="emulator")
    np.testing.assert_array_equal(got, np.maximum(A @ B + BIAS, 0))


@pytest.mark.parametrize(
    "activation",
    [
        [{"op": "relu"}, {"op": "clamp", "high": 6.0}],
        [{"op": "clamp", "low": 0, "high": 6.0}],
        ({"op": "relu"}, {"value": "min(value, 6)"}),
        "clamp(value, 0, 6)",
        {"let": {"z": "max(acc, 0)"}, "value": "min(z, 6)"},
        [lambda acc: symbols.max(acc, 0), {"op": "clamp", "high": np.float32(6)}],
        np.array(["relu", "min(value, 6)"]),
    ],
)
def test_activations_are_lists_of_mappings_and_formulas(activation: Any) -> None:
    got = ops.matmul(A, B, activation=activation, backend="emulator")
    np.testing.assert_array_equal(got, np.clip(A @ B, 0, 6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operands": operands(gat=GATE)}, "the epilogue has no 'gat'; did you mean 'gate'"),
        ({"operands": {"bias": BIAS}}, "the epilogue has the operand slope, pass operands="),
        ({"operands": operands(saved=None)}, "the epilogue has the output saved"),
        ({"operands": operands(bias=BIAS[:5])}, r"bias has shape \(5,\), need \(13,\) or \(1, 13\)"),
        ({"operands": operands(gate=GATE.astype(np.int16))}, "gate has elements"),
        ({"operands": operands(), "bias": BIAS}, "bias beside epilogue"),
        ({"epilogue": None, "operands": operands()}, "operands without epilogue"),
        ({"epilogue": {"value": "silu(gat)"}}, "unknown name 'gat'"),
        ({"epilogue": [{"op": "bias", "per": "column"}]}, "bias reads an operand, need a formula"),
        ({"epilogue": None, "activation": {"value": "acc * rate", "inputs": {"rate": {"per": "row"}}}}, "epilogue= takes operands"),
    ],
)  # fmt: skip
def test_mistakes_are_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        ops.matmul(A, B, **{"epilogue": FORMULA, "backend": "emulator", **options})


@pytest.mark.parametrize("shared", [False, True])
def test_batches_have_epilogues(shared: bool) -> None:
    """Rows count from 0 in each product, also where all of them share B."""
    a = RNG.integers(-3, 4, (3, 5, 8)).astype(np.float32)
    b = RNG.integers(-3, 4, (8, 6) if shared else (3, 8, 6)).astype(np.float32)
    gate = RNG.integers(-3, 4, (3, 5, 6)).astype(np.float32)
    saved, widest_value = np.zeros((3, 5, 6), np.float32), np.zeros(1, np.float32)
    formula = {
        "inputs": {"gate": {"per": "element"}, "slope": {"per": "row"}},
        "outputs": {
            "C": "acc * gate if row >= column else 0",
            "saved": {"value": "acc * slope"},
            "widest_value": {"reduce": "absmax", "of": "acc"},
        },
    }
    slope = np.arange(5, dtype=np.float32)
    given = {"gate": gate, "slope": slope, "saved": saved, "widest_value": widest_value}
    got = ops.matmul(a, b, epilogue=formula, operands=given, backend="emulator")
    np.testing.assert_array_equal(got, np.where(np.arange(5)[:, None] >= np.arange(6), a @ b * gate, 0))
    np.testing.assert_array_equal(saved, a @ b * slope[:, None])
    assert widest_value == np.abs(a @ b).max()


def test_groups_have_epilogues() -> None:
    a = RNG.integers(-3, 4, (9, 16)).astype(np.float16)
    b = RNG.integers(-3, 4, (2, 16, 8)).astype(np.float16)
    offsets = np.array([4, 9], np.int32)
    bias, weight = RNG.integers(-3, 4, (2, 8)).astype(np.float32), np.array([2, 3], np.float32)
    gate, saved = RNG.integers(0, 2, (9, 8)).astype(np.float16), np.zeros((9, 8), np.float32)
    formula = {
        "inputs": {"bias": {"per": "column"}, "weight": {"per": "group"}, "gate": {"per": "element", "type": "f16"}},
        "outputs": {"C": "acc * weight + bias * gate", "saved": {"value": "acc"}},
    }
    given = {"bias": bias, "weight": weight, "gate": gate, "saved": saved}
    got = ops.grouped_matmul(a, b, offsets, epilogue=formula, operands=given)
    group = np.repeat([0, 1], [4, 5])
    product = np.einsum("mk,mkn->mn", a.astype(np.float32), b.astype(np.float32)[group])
    np.testing.assert_array_equal(got, (product * weight[group][:, None] + bias[group] * gate).astype(np.float16))
    np.testing.assert_array_equal(saved, product)


@pytest.mark.parametrize("backend", ["auto", "emulator"])
def test_an_operand_may_be_out(backend: Any) -> None:
    formula = {"inputs": {"z": {"per": "element"}}, "outputs": {"C": "max(acc + 3 * z, 0)", "before": {"value": "z"}}}
    out, before = np.arange(9 * 13, dtype=np.float32).reshape(9, 13) - 60, np.zeros((9, 13), np.float32)
    earlier = out.copy()
    assert ops.matmul(A, B, out=out, epilogue=formula, operands={"z": out, "before": before}, backend=backend) is out
    np.testing.assert_array_equal(out, np.maximum(A @ B + 3 * earlier, 0))
    np.testing.assert_array_equal(before, earlier)
    whole = np.zeros((10, 13), np.float32)
    with pytest.raises(LaunchError, match="C is written, but overlaps z"):
        ops.matmul(A, B, out=whole[1:], epilogue=formula, operands={"z": whole[:9], "before": before}, backend=backend)


def test_an_operand_of_other_operations_may_be_out() -> None:
    formula = {"inputs": {"z": {"per": "element", "type": "f16"}}, "value": "acc - z"}
    ends, matrices = np.array([3, 9], np.int32), np.stack([B, -B]).astype(np.float16)
    out = np.ones((9, 13), np.float16)
    ops.grouped_matmul(A.astype(np.float16), matrices, ends, out=out, epilogue=formula, operands={"z": out})
    np.testing.assert_array_equal(out, np.concatenate([A[:3] @ B, A[3:] @ -B]) - 1)
    x, w, y = (np.full((2, 4, 4, 8), value, np.float16).transpose(0, 3, 1, 2) for value in (1, 2, 3))
    ops.conv2d(x, w[:, :, :1, :1].repeat(4, 0), out=y, epilogue=formula, operands={"z": y})
    assert (y == 16 - 3).all()


def test_sums_and_random_numbers() -> None:
    formula = {
        "inputs": {"seed": {"scalar": "s64"}},
        "let": {"kept": "rand(seed, 0, int64(row) * 13 + int64(column), 0) < 0.5"},
        "outputs": {
            "C": "acc if kept else 0",
            "by_row": {"reduce": "sum", "per": "row", "of": "acc"},
            "kept_ones": {"value": "kept", "type": "bool"},
        },
    }
    by_row, kept = np.zeros(9, np.float32), np.zeros((9, 13), bool)
    given = {"seed": 67280421310721, "by_row": by_row, "kept_ones": kept}
    got = ops.matmul(A, B, epilogue=formula, operands=given, backend="emulator")
    words = philox(67280421310721, 0, np.arange(9 * 13).reshape(9, 13), 0)
    np.testing.assert_array_equal(kept, words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33) < 0.5)
    np.testing.assert_array_equal(got, np.where(kept, A @ B, 0))
    np.testing.assert_array_equal(by_row, (A @ B).sum(1))


@pytest.mark.parametrize(("per", "shape"), [("element", (9, 13)), ("row", (9,)), ("column", (13,))])
def test_truth_values_are_conditions(per: str, shape: tuple[int, ...]) -> None:
    formula = {
        "inputs": {"keep": {"per": per, "type": "bool"}},
        "value": "acc if keep and not (acc > 100) else -keep",
    }
    keep = np.arange(np.prod(shape)).reshape(shape) % 3 == 0
    got = ops.matmul(A, B, epilogue=formula, operands={"keep": keep}, backend="emulator")
    product, whole = A @ B, np.broadcast_to(keep[:, None] if per == "row" else keep, (9, 13))
    np.testing.assert_array_equal(got, np.where(whole & (product <= 100), product, -whole.astype(np.float32)))
    with pytest.raises(LaunchError, match="keep has elements uint8, need bool, as the epilogue says"):
        ops.matmul(A, B, epilogue=formula, operands={"keep": keep.astype(np.uint8)}, backend="emulator")


def test_a_wrong_formula_is_the_first_reason() -> None:
    with pytest.raises(
        LaunchError, match=r"^no instance can do gemm:9,13,\d+.*?: epilogue.0: got formula: silu of 2 values at character 1"
    ):
        ops.matmul(A, B, epilogue={"value": "silu(acc, 1)"})


def test_an_operand_in_another_order_is_named() -> None:
    turned = np.zeros((13, 9), np.float32).T
    with pytest.raises(LaunchError, match=": the epilogue's gate is not stored like the result"):
        ops.matmul(A, B, epilogue={"inputs": {"gate": {"per": "element"}}, "value": "acc * gate"}, operands={"gate": turned})


def test_a_function_is_no_operation() -> None:
    with pytest.raises(LaunchError, match=r"no operation 'elu', need one of scale, .*; elu is a function of formulas"):
        ops.matmul(A, B, epilogue=[{"op": "elu"}])


LINES = {
    "let": {"z": "acc + 1"},
    "outputs": {
        "C": "z",
        "by_row": {"reduce": "sum", "per": "row", "of": "z"},
        "highest": {"reduce": "max", "per": "column", "of": "z"},
        "everything": {"reduce": "sum", "of": "z"},
    },
}


def test_products_of_a_batch_have_reductions_of_rows_and_columns() -> None:
    factors = np.stack([A, A + 1, -A]), np.stack([B, B, B - 1])
    exact = factors[0] @ factors[1] + 1
    given = {"by_row": np.zeros((3, 9), "f4"), "highest": np.full((3, 13), -np.inf, "f4"), "everything": np.zeros(1, "f4")}
    np.testing.assert_array_equal(ops.matmul(*factors, epilogue=LINES, operands=given), exact)
    np.testing.assert_array_equal(given["by_row"], exact.sum(axis=2))
    np.testing.assert_array_equal(given["highest"], exact.max(axis=1))
    assert given["everything"] == exact.sum()
    with pytest.raises(LaunchError, match=r"by_row has shape \(9,\), need \(3, 9\), a line for each product"):
        ops.matmul(*factors, epilogue=LINES, operands={**given, "by_row": np.zeros(9, "f4")})


def test_groups_of_rows_have_reductions_of_rows_and_columns() -> None:
    ends = np.array([3, 3, 8], np.int32)
    matrices = np.stack([B, B + 1, -B]).astype(np.float16)
    exact = np.concatenate([A[:3] @ B, A[3:8] @ -B]) + 1
    given = {"by_row": np.full(9, 7, "f4"), "highest": np.full(13, -np.inf, "f4"), "everything": np.zeros(1, "f4")}
    ops.grouped_matmul(A.astype(np.float16), matrices, ends, epilogue=LINES, operands=given)
    np.testing.assert_array_equal(given["by_row"], [*exact.sum(axis=1), 0])
    np.testing.assert_array_equal(given["highest"], exact.max(axis=0))
    assert given["everything"] == exact.sum()


CYCLE: dict[str, Any] = {}
CYCLE["value"] = CYCLE
NO_OPERATIONS = {
    "a mapping within itself": CYCLE,
    "many lists": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["relu"]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],
    "a set": {"value"},
    "bytes": bytearray(b"value"),
    "a symbol in a set": lambda acc: {"C": acc, "y": {"reduce": "max", "of": {"of": acc}}},
}


@pytest.mark.parametrize("name", NO_OPERATIONS)
def test_what_is_no_operation_is_a_message(name: str) -> None:
    with pytest.raises(SpecError, match="which no operation has"):
        ops.matmul(A, B, epilogue=NO_OPERATIONS[name], backend="emulator")


def test_a_name_without_end_is_a_short_message() -> None:
    with pytest.raises(LaunchError, match="characters left out") as refusal:
        ops.matmul(A, B, epilogue={"outputs": {"x" * 100_000: "acc"}}, backend="emulator")
    assert len(str(refusal.value)) < 400
