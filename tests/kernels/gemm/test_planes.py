"""float32 products by planes: the contents of planes, the bound of their errors, and the corners of IEEE arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from sampling import ALL

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose, choose_by
from gemmgen.hardware.target import device
from gemmgen.kernels.accuracy import UNIT_ROUNDOFF
from gemmgen.kernels.gemm import oracle
from gemmgen.kernels.gemm.explain import accuracy
from gemmgen.kernels.gemm.split_precision.by_tcgen05 import TensorMemoryPlanesPlan
from gemmgen.kernels.gemm.split_precision.numbers import planes_bound, scale_exponents, split, stored_planes
from gemmgen.kernels.gemm.split_precision.planes import SCHEMES, slices_factor
from kernels.gemm.planes_specs import specs, tensor_memory_specs
from kernels.random_batches import try_random_specs

SPEC = "gemm/split_precision/f16x3/128x128"
MMA = "gemm/split_precision/mma_sync"
SMALL = ["mainloop.tile.m=64", "mainloop.tile.n=64", "mainloop.consumers=1", "mainloop.stages=2", "early_launch=false"]
SLICED = "decomposition={scheme: split_k_parallel, slices: launch}"
HOLDS = {
    "f16x3": ([1.0, 2.0**-28], [1.0, 2.0**-29]),
    "bf16x6": ([2.0**62, 2.0**-100], [2.0**63, 1.0]),
    "tf32x3": ([1.0, 2.0**-100], [1.0, 2.0**-101]),
}


def kernel(*overrides: str) -> gemmgen.Kernel:
    return gemmgen.compile(gemmgen.plan(SPEC, "sm_90a", [*SMALL, *overrides]))


def product(multiply: gemmgen.Kernel, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b.T, of matrices whose rows are multiples of four long."""
    c = np.full((len(a), len(b) + len(b) % 2), np.nan, np.float32)
    multiply(A=a, B=b.T, C=c[:, : len(b)], alpha=1.0, beta=0.0)
    return c[:, : len(b)]


@pytest.mark.parametrize("name", SCHEMES)
def test_bound_is_below_that_of_multiply_adds_from_64_on(name):
    scheme = SCHEMES[name]
    assert all(scheme.error_factor(k, scheme.promote_every, True) < k for k in (64, 100, 1024, 65536))


@pytest.mark.parametrize("alignment", [1, 4])
@pytest.mark.parametrize("transpose", ["nt", "nn"])
def test_rows_longer_than_what_is_read_ahead(alignment, transpose):
    changes = [f"alignment={{a: {alignment}, b: {alignment}, c: 1}}", f"transpose={transpose}"]
    planned = gemmgen.plan(SPEC, "sm_90a", [*SMALL, *changes])
    sizes = {"m": 20, "n": 36, "k": 1300, "lda": 1300, "ldb": 1300 if transpose == "nt" else 36, "ldc": 36}
    case = oracle.case_of("long rows", sizes, {"alpha": 1.0, "beta": 0.0}, "reals")
    assert gemmgen.verify(planned, cases=[case]).passed


@pytest.mark.parametrize("alignment", [1, 4])
def test_rows_longer_than_what_a_block_reads_ahead(alignment):
    planned = gemmgen.plan(SPEC, "sm_90a", [*SMALL, SLICED, f"alignment={{a: {alignment}, b: {alignment}, c: 1}}"])
    sizes = {"m": 3, "n": 5, "k": 9244, "lda": 9244, "ldb": 9244, "ldc": 5, "slices": 7}
    case = oracle.case_of("long rows", sizes, {"alpha": 1.0, "beta": 0.0}, "reals")
    assert gemmgen.verify(planned, cases=[case]).passed


def test_a_block_splits_a_long_row_where_k_is_cut():
    sequence = gemmgen.plan(SPEC, "sm_90a", [*SMALL, SLICED]).sequence
    assert sequence.launches[0].grid_of({"m": 30, "n": 20, "k": 9000, "slices": 4})[0] == 50


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_bound_is_that_of_multiply_adds_at_most(name, compensated, steps):
    scheme = SCHEMES[name]
    promoted = steps * scheme.instruction_k
    for parts in (1, 8):
        least = scheme.least_depth(promoted, compensated, parts)
        assert all(scheme.error_factor(k, promoted, compensated) + parts - 1 <= k for k in range(least, 20000))


@pytest.mark.parametrize(("path", "more"), [("f16x3/128x128", 0), ("bf16x6", 1024 / 32), ("tf32x3", 1024 / 16)])
def test_bound_at_the_end_of_the_range_counts_additions(path, more):
    planes = gemmgen.plan(f"gemm/split_precision/{path}", "sm_90a").planes
    assert planes.range_factor(1024) == planes.error_factor(1024) + more
    factors = np.full((2, 1, 1024), [[[2.0**59]], [[2.0**57]]])
    large, small = (planes_bound(planes, a[None, 0], np.full((1, 1024, 1), 2.0**58)) / a[0, 0] for a in factors)
    assert np.isclose(large / small, planes.range_factor(1024) / planes.error_factor(1024)).all()


def shallow_factors(k: int, columns: int = 66) -> tuple[np.ndarray, np.ndarray]:
    """Factors whose products cancel, in rows as long as a kernel needs."""
    rng = np.random.default_rng(k)
    a, b = np.zeros((70, -(-k // 4) * 4), np.float32), np.zeros((columns, -(-k // 4) * 4), np.float32)
    a[:, :k], b[:, :k] = rng.standard_normal((70, k), np.float32), rng.standard_normal((columns, k), np.float32)
    a[:, k // 2 : k // 2 * 2] = a[:, : k // 2] * np.float32(1.001)
    b[:, k // 2 : k // 2 * 2] = -b[:, : k // 2]
    return a[:, :k], b[:, :k]


@pytest.mark.parametrize(("name", "k"), [("f16x3", 1), ("f16x3", 63), ("bf16x6", 26), ("bf16x9", 7), ("tf32x3", 65)])
def test_shallow_products_are_rounded_once(name, k):
    a, b = shallow_factors(k)
    exact = np.zeros((len(a), len(b)))
    for step in range(k):  # products of float32 are exact in float64
        exact += np.outer(a[:, step].astype(np.float64), b[:, step])
    np.testing.assert_array_equal(product(mma_kernel(name), a, b), exact.astype(np.float32))


def test_planes_are_used_from_the_least_depth_on():
    a, b = shallow_factors(64)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    got = product(mma_kernel(), a, b)
    size = np.abs(a).astype(np.float64) @ np.abs(b.T).astype(np.float64)
    assert (got != exact.astype(np.float32)).any()
    assert (np.abs(got - exact) <= 64 * UNIT_ROUNDOFF * size).all()


@pytest.mark.parametrize("k", [1, 30])
def test_infinities_and_nan_propagate_in_shallow_products(k):
    a, b = np.ones((70, -(-k // 4) * 4), np.float32)[:, :k], np.ones((66, -(-k // 4) * 4), np.float32)[:, :k]
    a[0, 0], a[1, k // 2], a[69, k - 1] = np.inf, np.nan, -np.inf
    b[1, 0], b[2, k - 1], b[65, 0] = 0.0, -np.inf, np.nan
    got = product(kernel(), a, b)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, a @ b.T)


@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("transpose", ["nn", "tt"])
def test_shallow_products_scale_c_once(transpose, rows):
    k, columns = 12, 36
    rng = np.random.default_rng(rows)
    a, b, c = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((rows, k), (k, columns), (rows, columns)))
    stored_a = np.zeros((k, 72), np.float32)[:, :rows].T if transpose[0] == "t" else np.zeros((rows, k), np.float32)
    stored_a[:] = a
    stored_b = b if transpose[1] == "n" else b.T.copy().T
    got = c.copy()
    kernel(f"transpose={transpose}")(A=stored_a, B=stored_b, C=got, alpha=2.0, beta=3.0)
    np.testing.assert_array_equal(got, 2 * (a @ b) + 3 * c)


def test_shallow_products_of_a_batch_share_a_factor():
    multiply = kernel("batch=strided", "transpose=nn")
    rng = np.random.default_rng(9)
    a, b = rng.integers(-8, 8, (3, 20, 8)).astype(np.float32), rng.integers(-8, 8, (1, 8, 24)).astype(np.float32)
    c = np.full((3, 20, 24), np.nan, np.float32)
    multiply(A=a, B=np.broadcast_to(b, (3, 8, 24)), C=c, alpha=1.0, beta=0.0)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("name", HOLDS)
def test_numbers_that_planes_hold(name):
    held, not_held = HOLDS[name]
    assert SCHEMES[name].holds(np.array([held, not_held], np.float32)).tolist() == [True, False]


@pytest.mark.parametrize("name", SCHEMES)
def test_zeros_are_held_and_infinities_are_not(name):
    rows = np.array([[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [-0.0, 1.0]], np.float32)
    assert SCHEMES[name].holds(rows).tolist() == [True, False, False, True]


def test_infinities_and_nan_propagate_as_with_multiply_adds():
    a = np.ones((3, 8), np.float32)
    a[0, 3], a[1, 5] = np.inf, np.nan
    b = np.ones((4, 8), np.float32)
    b[1, 3], b[2, 3] = 0.0, -1.0
    got = product(kernel(), a, b)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, a @ b.T)


def test_largest_floats_do_not_overflow_by_being_split():
    largest = np.finfo(np.float32).max
    a = np.full((2, 4), largest, np.float32)
    b = np.full((2, 4), 2.0**-3, np.float32)
    assert product(kernel(), a, b).tolist() == [[largest / 2] * 2] * 2


def test_smallest_normal_floats_keep_their_bits():
    a = np.full((2, 4), np.float32(1.2345678) * np.float32(2.0**-126), np.float32)
    b = np.full((2, 4), 2.0**20, np.float32)
    assert product(kernel(), a, b).tolist() == [[float(a[0, 0]) * 2.0**22] * 2] * 2


def mma_kernel(scheme: str = "f16x3", *overrides: str) -> gemmgen.Kernel:
    """Such a product by ``mma.sync``, with scalars."""
    path = f"{MMA}/{'bf16x6' if scheme == 'bf16x9' else scheme}"
    changes = [f"mainloop.arithmetic.f32_by={scheme}", "alpha=argument", "beta=argument", *overrides]
    return gemmgen.compile(gemmgen.plan(path, "sm_80", changes))


@pytest.mark.parametrize(("name", "every", "most"), [*((name, "auto", 3) for name in SCHEMES), ("f16x3", 64, 6), ("tf32x3", 32, 6)])
def test_products_on_tensor_memory_stay_within_bounds(name, every, most):
    rng = np.random.default_rng(5)
    a, b = (rng.random((64, 512), np.float32) * np.exp2(rng.integers(-9, 9, (64, 1))).astype(np.float32) for _ in range(2))
    plan = tensor_memory_plan(name, f"mainloop.promote_every={every}")
    got, exact = product(gemmgen.compile(plan), a, b), a.astype(np.float64) @ b.T.astype(np.float64)
    bound = planes_bound(plan.planes, a.astype(np.float64), b.T.astype(np.float64))
    assert (np.abs(got - exact) <= bound).all()
    assert (np.abs(got - exact) <= most * UNIT_ROUNDOFF * exact).all()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("mainloop.tile.n=96", "mainloop.tile.n"),
        ("mainloop.promote_every=48", "mainloop.promote_every"),
        ("mainloop.arithmetic.sums=plain", "mainloop.arithmetic.sums"),
        ("mainloop.arithmetic.split=mainloop", "mainloop.arithmetic.split"),
        ("mainloop.multiplied=e2m1", "mainloop.multiplied"),
        ("store=tma", "store"),
        ("storage={a: bf16, b: bf16, c: f32}", "storage"),
        ("batch=grouped", "batch"),
        ("scales={b: {lines: 128, k: 32}}", "scales"),
    ],
)
def test_tensor_memory_refuses_what_planes_cannot_serve(change, field):
    with pytest.raises(PlanError) as caught:
        gemmgen.plan("gemm/tcgen05/f32_f16x3_128x64", "sm_100a", [change])
    assert field in [reason.field for reason in caught.value.reasons]


@pytest.mark.parametrize("name", SCHEMES)
def test_products_by_warps_stay_within_their_bound(name):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((64, 128), np.float32), rng.standard_normal((64, 128), np.float32)
    got = product(mma_kernel(name), a, b)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b.T).astype(np.float64)
    scheme = SCHEMES[name]
    factor = scheme.error_factor(128, scheme.promote_every, True)
    assert (np.abs(got - exact) <= factor * UNIT_ROUNDOFF * size).all()


def test_warps_leave_what_planes_cannot_hold_to_the_repair():
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal((64, 96), np.float32) for _ in range(2))
    a[3, 5], b[7] = np.inf, b[7] * np.float32(2.0) ** rng.integers(-60, 60, 96).astype(np.float32)
    got = product(mma_kernel(), a, b)
    np.testing.assert_array_equal(got[3], np.copysign(np.inf, b[:, 5]))
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b.T).astype(np.float64)
    others = np.arange(64) != 3
    assert (np.abs(got[others] - exact[others]) <= 96 * UNIT_ROUNDOFF * size[others]).all()


@pytest.mark.parametrize(
    "setting",
    ["decomposition={scheme: split_k_parallel, slices: 2}", "batch=grouped", "store=through_shared", "scales={b: {}}", "mainloop.sparse=a"],
)
def test_warps_refuse_what_planes_cannot_serve(setting):
    with pytest.raises(PlanError):
        gemmgen.plan(f"{MMA}/f16x3", "sm_80", [setting])


@pytest.mark.parametrize(("name", "unit"), [("A100", "planes"), ("RTX 4090", "ffma"), ("RTX 3090", "ffma")])
def test_planes_by_warps_are_taken_where_they_are_faster(name, unit):
    chosen = choose(parse_problem("gemm:4096,4096,4096,nt"), device(name)).chosen
    assert ("split_precision" in chosen.candidate.label) == (unit == "planes")


@pytest.mark.parametrize("transpose", ["nt", "nn"])
def test_rows_that_planes_cannot_hold_are_repaired(transpose):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((70, 96), np.float32)
    b = rng.standard_normal((66, 96), np.float32)
    a[69] *= np.float32(2.0) ** rng.integers(-60, 60, 96).astype(np.float32)
    b[0] *= np.float32(2.0) ** rng.integers(-60, 60, 96).astype(np.float32)
    multiply = kernel(f"transpose={transpose}")
    stored = b.T if transpose == "nt" else np.zeros((96, 68), np.float32)[:, :66]
    stored[:] = b.T
    c = np.full((70, 66), np.nan, np.float32)
    for _ in range(2):  # the second run finds the workspace as the first left it
        multiply(A=a, B=stored, C=c, alpha=1.0, beta=0.0)
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        size = np.abs(a).astype(np.float64) @ np.abs(b.T).astype(np.float64)
        assert (np.abs(c - exact) <= 96 * UNIT_ROUNDOFF * size).all()


@pytest.mark.parametrize("name", ["bf16x6", "tf32x3"])
def test_other_schemes_stay_within_their_bound(name):
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((64, 128), np.float32), rng.standard_normal((64, 128), np.float32)
    depth = ["mainloop.tile.k=32"] if name == "tf32x3" else []
    got = product(kernel(f"mainloop.arithmetic.f32_by={name}", *depth), a, b)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b.T).astype(np.float64)
    factor = SCHEMES[name].error_factor(128, SCHEMES[name].promote_every, True)
    assert (np.abs(got - exact) <= factor * UNIT_ROUNDOFF * size).all()


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("storage={a: bf16, b: bf16, c: f32}", "storage"),
        ("store=tma", "store"),
        ("mainloop.schedule=ping_pong", "mainloop.schedule"),
        ("mainloop.promote_every=24", "mainloop.promote_every"),
        ("decomposition={scheme: stream_k, blocks: 4}", "decomposition.scheme"),
        ("store=through_shared", "store"),
        ("scales={b: {lines: 128, k: 32, layout: mn_major}}", "scales"),
        ("mainloop.sparse=a", "mainloop.sparse"),
    ],
)
def test_specs_that_planes_cannot_serve_are_refused(override, field):
    with pytest.raises(PlanError) as caught:
        gemmgen.plan(SPEC, "sm_90a", [override])
    assert field in {reason.field for reason in caught.value.reasons}


def test_tf32_planes_need_both_operands_along_k():
    with pytest.raises(PlanError, match="along k"):
        gemmgen.plan(SPEC, "sm_90a", ["mainloop.arithmetic.f32_by=tf32x3", "mainloop.tile.k=32", "transpose=nn"])


def relative_error(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of errors over |a| |b|."""
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b.T).astype(np.float64)
    return float(np.sqrt((((got - exact) / size) ** 2).mean()))


def wgmma_kernel(name: str, *changes: str) -> gemmgen.Kernel:
    """A product by a scheme, by ``wgmma``."""
    depth = 128 // SCHEMES[name].element_bytes
    return kernel(f"mainloop.arithmetic.f32_by={name}", f"mainloop.tile.k={depth}", *changes)


def tensor_memory_plan(scheme: str, *overrides: str) -> TensorMemoryPlanesPlan:
    """Such a product on tensor memory, with scalars."""
    depth = 32 if scheme == "tf32x3" else 64
    small = [f"mainloop.tile={{n: 64, k: {depth}}}", "mainloop.stages=2", "mainloop.persistent_blocks=0", "early_launch=false"]
    changes = [f"mainloop.arithmetic.f32_by={scheme}", "beta=argument", *small, *overrides]
    plan = gemmgen.plan("gemm/tcgen05/f32_f16x3_128x64", "sm_100a", changes)
    assert isinstance(plan, TensorMemoryPlanesPlan)
    return plan


def tensor_memory_kernel(scheme: str, *overrides: str) -> gemmgen.Kernel:
    """Its kernel."""
    return gemmgen.compile(tensor_memory_plan(scheme, *overrides))


FORMS = {"wgmma": wgmma_kernel, "mma": mma_kernel, "tcgen05": tensor_memory_kernel}
"""A product by a scheme, on each instruction."""


UNSCALED = [name for name, scheme in SCHEMES.items() if not scheme.scaled]


def test_errors_of_compensated_sums_do_not_grow_with_k():
    rng = np.random.default_rng(3)
    a, b = (rng.random((64, 2048), np.float32) for _ in range(2))
    compensated, plain = kernel(), kernel("mainloop.arithmetic.sums=plain")
    assert relative_error(product(compensated, a, b), a, b) < 7e-8
    assert relative_error(product(plain, a, b), a, b) > 1e-7


@pytest.mark.parametrize("form", ["wgmma", "mma"])
@pytest.mark.parametrize("name", UNSCALED)
def test_compensated_sums_have_smaller_errors_than_plain_ones(name, form):
    rng = np.random.default_rng(3)
    a, b = (rng.random((64, 1024), np.float32) for _ in range(2))
    compensated, plain = FORMS[form](name), FORMS[form](name, "mainloop.arithmetic.sums=plain")
    errors = [relative_error(product(multiply, a, b), a, b) for multiply in (compensated, plain)]
    assert errors[0] < 6.5e-8
    assert errors[0] < 0.75 * errors[1]


def large_factors() -> tuple[np.ndarray, np.ndarray]:
    """Factors whose sums come to the end of float32, of numbers that planes hold: eight rows of either sign, whose columns are all
    positive, one whose first steps overflow, and others of both signs."""
    rng = np.random.default_rng(7)
    a = (rng.choice([-1.0, 1.0], (64, 352)) * rng.uniform(1, 1.9, (64, 352)) * 2.0**57).astype(np.float32)
    b = (rng.choice([-1.0, 1.0], (64, 352)) * np.exp2(rng.uniform(56, 63, (64, 1)))).astype(np.float32)
    a[:8], b[:8], a[8:16] = np.abs(a[:8]), np.abs(b[:8]), -np.abs(a[8:16])
    a[16, :32], a[16, 32:] = 2.0**62.9, -np.abs(a[16, 32:])
    return a, b


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", UNSCALED)
def test_sums_that_overflow_are_infinite(name, form):
    a, b = large_factors()
    got, exact = product(FORMS[form](name), a, b), a.astype(np.float64) @ b.T.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(b.T).astype(np.float64)
    beyond = np.abs(exact) > 2.0**128
    assert SCHEMES[name].holds(a).all()
    assert SCHEMES[name].holds(b).all()
    assert 0 < beyond[:16, :8].sum() < 128
    np.testing.assert_array_equal(got[:16, :8][beyond[:16, :8]], np.copysign(np.inf, exact[:16, :8][beyond[:16, :8]]))
    # In its first 32 steps the sum is infinite, if it is; the later terms have the other sign.
    first = 32 * a[16, 0].astype(np.float64) * b[:8, 0]
    np.testing.assert_array_equal(got[16, :8][first > 2.0**128], np.inf)
    within = size < 2.0**128
    assert 0 < within[17:].sum() < within[17:].size
    assert (np.abs(got - exact) <= 64 * UNIT_ROUNDOFF * size)[within].all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", UNSCALED)
def test_sums_at_the_end_of_the_range_stay_finite(name, form):
    # One addition from -3 * 2^103 to about the largest float: a step that overflows finds the part that it rounds off.
    k = 352 if name == "tf32x3" else 64
    step = SCHEMES[name].promote_every
    a, b = np.zeros((64, k), np.float32), np.ones((64, k), np.float32)
    a[:, 0], b[:, 0] = -3 * 2.0**52, 2.0**51
    a[:, step : step + 8], b[:, step : step + 8] = (2.0**24 - 1) * 2.0**39, 2.0**62
    got = product(FORMS[form](name), a, b)
    assert np.unique(got).tolist() == [2.0**128 - 2.0**105]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", UNSCALED)
def test_infinities_and_nan_of_every_scheme(name, form):
    k = 352
    a, b = np.ones((66, k), np.float32), np.ones((68, k), np.float32)
    a[0, 3], a[1, k - 1], a[2, 0], a[3, 40] = np.inf, np.nan, -np.inf, np.finfo(np.float32).max
    b[1, 3], b[2, 3], b[5, 0], b[6, 7] = 0.0, -1.0, -np.inf, np.nan
    got = product(FORMS[form](name), a, b)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got, a @ b.T)


def test_repaired_sums_are_compensated_too():
    rng = np.random.default_rng(4)
    a, b = (np.exp2(rng.uniform(-20, 20, (16, 2048))).astype(np.float32) for _ in range(2))
    assert not SCHEMES["f16x3"].holds(a).any()
    assert relative_error(product(kernel(), a, b), a, b) < 7e-8


def test_second_tf32_plane_is_rounded_away_from_zero():
    scheme = SCHEMES["tf32x3"]
    rng = np.random.default_rng(8)
    values = np.concatenate([rng.standard_normal(500, np.float32), [1 + 2.0**-11 + 2.0**-23, 1 - 2.0**-24, 3.0]])[None].astype(np.float32)
    high, low = split(scheme, values, scale_exponents(scheme, values)).view(np.float32)[:, 0].astype(np.float64)
    excess = (np.abs(high + low) - np.abs(values[0].astype(np.float64))) / np.abs(values[0])
    assert (excess >= 0).all()
    assert (excess <= 2.0**-22).all()
    assert excess.max() > 2.0**-24
    assert excess[-1] == 0


def test_second_plane_is_rounded_away_from_zero():
    scheme = SCHEMES["f16x3"]
    values = np.array([[1 + 2.0**-11 + 2.0**-23, -1 - 2.0**-11 - 2.0**-23, 3.0]], np.float32)
    high, low = split(scheme, values, scale_exponents(scheme, values)).view(np.float16)[:, 0]
    held = high.astype(np.float64) + low.astype(np.float64) * 2.0**-11
    assert (np.abs(held) >= np.abs(values[0].astype(np.float64)) * 2.0**13).all()
    assert held[2] == 3 * 2.0**13


@pytest.mark.parametrize("transpose", ["nt", "nn"])
def test_kernels_keep_the_planes_that_numpy_makes(transpose):
    rng = np.random.default_rng(5)
    b = rng.standard_normal((36, 72), np.float32)
    b[3] *= np.float32(2.0) ** rng.integers(-60, 60, 72).astype(np.float32)
    plan = gemmgen.plan(SPEC, "sm_90a", [f"transpose={transpose}", "mainloop.arithmetic.kept=b"])
    expected = stored_planes(plan.planes.kept_operand, b)
    made = np.zeros(expected.shape, np.uint8)
    gemmgen.Kernel(plan.keeping, gemmgen.compile(plan).binary)(B=b.T if transpose == "nt" else b.T.copy(), planes_b=made)
    first = plan.planes.offset_of("exponents_b").evaluate({"n": 36, "k": 72})
    np.testing.assert_array_equal(made[first:], expected[first:])


@pytest.mark.parametrize(
    "overrides",
    [
        ["batch=strided", "transpose=nn"],
        ["decomposition={scheme: split_k_cluster, slices: 2}", "mainloop.persistent_blocks=0"],
        ["mainloop.arithmetic.kept=b"],
        ["mainloop.tile.m=128", "mainloop.consumers=2"],
        ["decomposition={scheme: split_k_parallel, slices: 3}", "transpose=tn"],
        ["decomposition={scheme: split_k_parallel, slices: 20}", "mainloop.arithmetic.f32_by=bf16x6", "transpose=tt"],
        [SLICED, "batch=strided", "transpose=nn"],
        [SLICED, "mainloop.arithmetic.kept=a", "order=column_major", "epilogue=[{op: bias, per: row}, {op: relu}]"],
    ],
)
def test_every_form_verifies(overrides):
    plan = gemmgen.plan(SPEC, "sm_90a", [*SMALL, *overrides])
    names = ("primes", "k of 0", "not-a-numbers and infinities", "k in 5 slices", "k in 70 slices")
    assert gemmgen.verify(plan, "emulator", cases=[case for case in oracle.cases(plan) if case.name in names]).passed


def test_marked_results_of_slices_keep_c_for_the_repair():
    rng = np.random.default_rng(11)
    a, b = rng.integers(-8, 8, (40, 192)).astype(np.float32), rng.integers(-8, 8, (36, 192)).astype(np.float32)
    a[3], b[5] = 0.0, 0.0
    a[3, 0], a[3, 1], b[5, 2], b[5, 3] = 5.0, 2.0**-40, 7.0, 2.0**-40
    c = rng.integers(-8, 8, (40, 36)).astype(np.float32)
    exact = 2 * (a.astype(np.float64) @ b.T.astype(np.float64)) + 3 * c.astype(np.float64)
    kernel(SLICED)(A=a, B=b.T, C=c, alpha=2.0, beta=3.0, slices=3)
    np.testing.assert_allclose(c, exact, atol=1e-6)


def test_errors_of_many_slices_are_those_of_one():
    rng = np.random.default_rng(12)
    a, b = (rng.random((16, 8192), np.float32) for _ in range(2))
    multiply = kernel(SLICED)
    errors = []
    for slices in (1, 128):
        c = np.zeros((16, 16), np.float32)
        multiply(A=a, B=b.T, C=c, alpha=1.0, beta=0.0, slices=slices)
        errors.append(relative_error(c, a, b))
    assert errors[1] < 1.05 * errors[0] < 6.5e-8


@pytest.mark.parametrize("name", UNSCALED)
def test_slices_at_the_end_of_the_range_stay_finite(name):
    # One addition of slices, from -3 * 2^103 to about the largest float.
    depth = 128 // SCHEMES[name].element_bytes
    k = 352 // depth * depth
    a, b = np.zeros((64, 2 * k), np.float32), np.ones((64, 2 * k), np.float32)
    a[:, 0], b[:, 0] = -3 * 2.0**52, 2.0**51
    a[:, k : k + 8], b[:, k : k + 8] = (2.0**24 - 1) * 2.0**39, 2.0**62
    c = np.zeros((64, 64), np.float32)
    wgmma_kernel(name, SLICED)(A=a, B=b.T, C=c, alpha=1.0, beta=0.0, slices=2)
    assert np.unique(c).tolist() == [2.0**128 - 2.0**105]


@pytest.mark.parametrize("slices", [2, 1024, 4096])
@pytest.mark.parametrize("name", SCHEMES)
def test_bound_with_slices_is_that_of_multiply_adds_at_most(name, slices):
    scheme = SCHEMES[name]
    least = scheme.least_depth(scheme.promote_every, True, slices=slices)
    assert all(scheme.error_factor(k, scheme.promote_every, True) + slices_factor(slices) <= k for k in range(least, 20000))


def test_bound_of_an_instance_counts_the_sum_of_slices():
    whole, cut = (gemmgen.plan(SPEC, "sm_90a", [*SMALL, *more]).planes for more in ([], [SLICED]))
    assert cut.error_factor(1024) == whole.error_factor(1024) + slices_factor(4096)


def test_sums_of_slices_lie_behind_the_planes():
    sequence = gemmgen.plan(SPEC, "sm_90a", [*SMALL, SLICED]).sequence
    size = {"m": 64, "n": 30, "k": 128, "slices": 5}
    planes = 256 + 256 + 4 * 64 * 128 + 4 * 30 * 128
    assert sequence.workspace_bytes.evaluate(size) == planes + 5 * 4 * 64 * 32


def test_rows_split_in_the_mainloop_refuse_slices():
    changes = ["mainloop.arithmetic={f32_by: bf16x6, split: mainloop}", "decomposition={scheme: split_k_parallel, slices: 2}"]
    with pytest.raises(PlanError, match="known where all of it has been read"):
        gemmgen.plan(SPEC, "sm_90a", [*SMALL, *changes])


@pytest.mark.parametrize("letters", ["nn", "tt"])
def test_few_tiles_and_a_long_k_are_cut_into_slices(letters):
    chosen = choose_by(None, parse_problem(f"gemm:384,384,32000,{letters}"), device("H200")).chosen
    assert chosen.candidate.label.startswith("gemm/split_precision/f16x3/split_")
    assert chosen.dimensions["slices"] > 1


@pytest.mark.parametrize(
    ("k", "words"), [(63, "at most 1 u |A||B|, u = 2^-24, in double precision, as below k = 64"), (64, "at most 45 u")]
)
def test_the_bound_of_an_instance_says_how_it_is_met(k, words):
    assert accuracy(gemmgen.plan(SPEC, "sm_90a"), {"m": 64, "n": 64, "k": k}).startswith(words)


def test_wider_tiles_have_no_longer_epilogue():
    stores = [kernel(f"mainloop.tile.n={n}").binary.ptx.count("st.global.v2.f32") for n in (64, 128)]
    assert stores[0] == stores[1] > 0


def test_one_code_splits_operands_that_lie_alike():
    assert kernel().binary.ptx.count("redux.sync.max") == 1


@pytest.mark.parametrize("batch", range(2))
def test_a_random_spec_is_rejected_or_verifies(batch):
    outcomes = try_random_specs(specs(), batch + 300, examples=8, every=9 if ALL else 18)
    assert outcomes["verified"] >= 4


def test_random_specs_on_tensor_memory_verify():
    outcomes = try_random_specs(tensor_memory_specs(), 11, examples=4, every=9 if ALL else 18)
    assert outcomes["verified"] == 4
