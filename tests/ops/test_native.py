"""ops.matmul on arrays in host memory runs on the processor, and on the emulator where that is asked for or needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
from kernels.cpu_gemm.specs import HERE

from gemmgen import ops
from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.core.resources import resource_directory
from gemmgen.hardware.cpu import CPU_ARCHITECTURES
from gemmgen.kernels.cpu_gemm.plan import plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import BlockedLoops
from gemmgen.kernels.epilogue.operations import Operation, Relu
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.requests import Layout
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import load_spec
from gemmgen.ops import host_tuning, native
from gemmgen.ops.arrays import address_reader
from gemmgen.ops.first_products import FirstProducts, first_function
from gemmgen.runtime.native import LoadedLibrary
from gemmgen.toolchain.compilation import compile_host_plan

pytestmark = pytest.mark.skipif(not HERE, reason="this machine runs no code for x86-64-v3")
RNG = np.random.default_rng(3)
SPECS = resource_directory("specs") / "cpu"


def request(kind: str = "f32") -> GemmRequest:
    return GemmRequest(Layout.packed((20, 30), kind), Layout.packed((30, 10), kind), Layout.packed((20, 10), kind))


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)


def test_products_of_float32_run_on_the_processor() -> None:
    assert native.native_call(request()) is not None


def test_products_of_halves_do_not() -> None:
    assert native.native_call(request("f16")) is None


def test_without_a_compiler_there_is_no_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(shape: str, transpose: str) -> None:
        raise EnvironmentMissing("there is no C compiler")

    monkeypatch.setattr(native, "general_spec", none)
    monkeypatch.setattr(native, "_known", {})
    assert native.native_call(request()) is None


@pytest.mark.parametrize("epilogue", [(), (Relu(op="relu"),)], ids=["plain", "relu"])
def test_a_quick_kernel_serves_until_another_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, epilogue: tuple[Operation, ...]
) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native, "_known", {})
    compiled: list[str] = []
    library = native.compile_host_plan
    monkeypatch.setattr(native, "compile_host_plan", lambda plan: compiled.append(plan.name) or library(plan))
    submitted: list[tuple[object, Callable[[], None]]] = []
    monkeypatch.setattr(native, "_compilers", lambda: SimpleNamespace(submit=lambda *given: submitted.append(given)))
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((37, 800), (800, 50)))
    served = native._served("nn", epilogue, "large", patient=False)
    assert served is not None
    quick = served.function
    results = [np.empty((37, 50), np.float32) for _ in range(2)]
    arguments = [37, 50, 800, 1.0, a.ctypes.data, 800, b.ctypes.data, 50, 0.0]
    assert quick(*arguments, results[0].ctypes.data, 50) == 0
    ((_, then),) = submitted
    # Threads of earlier tests may compile kernels of theirs meanwhile.
    assert any("extension" in name for name in compiled) == bool(epilogue) and served.plan.name not in compiled
    then()
    assert served.function is not quick and served.plan.name in compiled
    assert served.function(*arguments, results[1].ctypes.data, 50) == 0
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], np.maximum(a @ b, 0) if epilogue else a @ b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "sizes", [(29, 43, 531), (21, 1, 45), (21, 2, 45), (13, 3, 77), (5, 3, 7), (3, 500, 9), (11, 1100, 531), (40, 51, 6)], ids=str
)
def test_all_candidates_give_the_same_bits(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    found = []
    quick = host_tuning.quick_spec("nn")
    assert quick is not None
    plans = plan_cpu_gemm(quick, CPU_ARCHITECTURES[quick.architecture]), *host_tuning.candidates("nn")
    functions = [LoadedLibrary(compile_host_plan(plan), plan.sequence).function for plan in plans]
    for function in (first_function("nn"), *functions):
        out = np.empty((m, n), np.float32)
        assert function(m, n, k, 1.0, a.ctypes.data, k, b.ctypes.data, n, 0.0, out.ctypes.data, n) == 0
        found.append(out)
    np.testing.assert_allclose(found[0], a @ b, rtol=1e-3, atol=1e-3)
    assert len(found) > 2 and all((one == found[0]).all() for one in found)


def arrays(letters: str, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    orders: dict[str, Literal["C", "F"]] = {"n": "C", "t": "F"}
    shapes = (m, k), (k, n)
    a, b = (np.asarray(RNG.standard_normal(shape, np.float32), order=orders[one]) for one, shape in zip(letters, shapes, strict=True))
    return a, b


@pytest.mark.parametrize("letters", ["nn", "tn", "tt"])
def test_first_products_have_the_bits_of_later_ones(monkeypatch: pytest.MonkeyPatch, letters: str) -> None:
    monkeypatch.setattr(native, "_known", {})
    monkeypatch.setattr(native, "host_plan_is_cached", lambda plan: True)  # none serves but the one that is meant to
    done = Event()
    first = FirstProducts(lambda a, b: done.wait())
    for sizes in (
        (7, 5, 3),
        (1, 60, 90),
        (60, 1, 90),
        (13, 3, 77),
        (5, 4, 300),
        (2, 8, 1000),
        (83, 6, 300),
        (9, 2, 600),
        (100, 33, 600),
        (500, 90, 600),
        (4, 4, 1),
        (1, 1, 9),
    ):
        a, b = arrays(letters, *sizes)
        np.testing.assert_array_equal(first(a, b), ops.matmul(a, b, alpha=1.0, beta=0.0))
    for one, other in ((a.astype(np.float64), b.astype(np.float64)), (a, b[:-1]), (a, b[0]), (a, b.tolist()), (a[:0], b)):
        assert first(one, other) is None
    a, b = arrays("nn", 7, 8, 9)
    assert first(a[:, ::-1], b) is None and first(a, b[::-1]) is None
    done.set()
    first.wait()
    assert first(a, b) is None  # all is ready


@pytest.mark.parametrize("columns", range(1, 9))
@pytest.mark.parametrize("letters", ["tn", "tt"])
def test_few_columns_of_rows_that_are_neighbours(letters: str, columns: int) -> None:
    for rows, depth in ((8, 1), (75, 40), (300, 301)):
        a, b, before = integers(depth, rows).T, integers(depth, columns), integers(rows, columns + 2)
        b = b if letters == "tn" else np.asfortranarray(b)
        out = before.copy()
        ops.matmul(a, b, out=out[:, :columns], alpha=2.0, beta=3.0)
        assert (out[:, :columns] == 2 * (a @ b) + 3 * before[:, :columns]).all() and (out[:, columns:] == before[:, columns:]).all()


@pytest.mark.parametrize("letters", ["tn", "tt"])
def test_few_columns_by_the_transposed_product(letters: str) -> None:
    for m, n, k in ((70, 9, 33), (300, 20, 700), (2001, 95, 40)):
        (a, b), before = arrays(letters, m, n, k), integers(m, n + 3)
        out, few = before.copy(), before[:40].copy()
        ops.matmul(a, b, out=out[:, :n], alpha=2.0, beta=3.0)
        np.testing.assert_allclose(out[:, :n], 2 * (a.astype(np.float64) @ b) + 3 * before[:, :n], rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(out[:, n:], before[:, n:])
        ops.matmul(a[:40], b, out=few[:, :n], alpha=2.0, beta=3.0)
        np.testing.assert_array_equal(few, out[:40])


@pytest.mark.parametrize("letters", ["nn", "nt", "tn", "tt"])
def test_short_sums_of_several_vectors_of_columns(letters: str) -> None:
    for m, n, k in ((33, 17, 13), (40, 31, 5), (9, 32, 12), (35, 33, 8), (50, 48, 7), (32, 64, 6), (41, 61, 2), (31, 64, 1)):
        a, b, before = integers(m, k), integers(k, n), integers(m, n + 3)
        a, b = (np.asfortranarray(one) if letter == "t" else one for one, letter in zip((a, b), letters, strict=True))
        out = before.copy()
        ops.matmul(a, b, out=out[:, :n], alpha=2.0, beta=3.0)
        assert (out[:, :n] == 2 * (a @ b) + 3 * before[:, :n]).all() and (out[:, n:] == before[:, n:]).all()
        np.testing.assert_array_equal(ops.matmul(a, b), a @ b)


def test_first_products_prepare_later_ones_once() -> None:
    prepared, a, b = [], integers(9, 8), integers(8, 7)
    first = FirstProducts(lambda *given: prepared.append(given))
    while (found := first(a, b)) is not None:
        np.testing.assert_array_equal(found, a @ b)
    assert len(prepared) == 1 and prepared[0][0] is a and prepared[0][1] is b


def test_no_kernel_is_timed_unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(host_tuning, "timed", lambda plans, sizes: pytest.fail("kernels were timed"))
    for shape in host_tuning.REPRESENTATIVES:
        assert host_tuning.general_spec(shape, "nn") is not None


@pytest.mark.parametrize("array", [np.ones(5), np.ones((4, 6), np.float32)[1:, 2:], np.empty((0, 3)), np.ones(())], ids=str)
def test_addresses_are_those_that_numpy_tells(array: np.ndarray) -> None:
    assert address_reader()(array) == array.ctypes.data


def test_a_bound_call_does_what_one_by_names_does() -> None:
    a, b = integers(3, 20, 30), integers(3, 30, 10)
    batch = GemmRequest(*(Layout.packed(shape, "f32") for shape in ((3, 20, 30), (3, 30, 10), (3, 20, 10))))
    found = native.native_call(batch)
    assert found is not None
    results = [np.zeros((3, 20, 10), np.float32) for _ in range(2)]
    numbers = {"gamma": 1.0, "alpha": 2.0, "beta": 0.0}
    pointers = [{"out": result.ctypes.data, "b": b.ctypes.data, "bias": 0, "a": a.ctypes.data} for result in results]
    found(pointers[0], numbers)
    found.bind(tuple(pointers[1]), tuple(numbers))
    found.call(list(pointers[1].values()), tuple(numbers.values()))
    assert (results[0] == 2 * (a @ b)).all()
    assert (results[1] == results[0]).all()


def test_a_large_product_takes_no_time_to_speak_of() -> None:
    a, b = integers(700, 600), integers(600, 500)
    assert (ops.matmul(a, b, activation="relu") == np.maximum(a @ b, 0)).all()  # the emulator would take hours


def test_the_emulator_gives_the_same_when_asked_for() -> None:
    a, b, bias = integers(20, 9), integers(9, 12), integers(12)
    emulated = ops.matmul(a, b, bias=bias, backend="emulator")
    assert (emulated == ops.matmul(a, b, bias=bias)).all()


def test_another_backend_is_an_error() -> None:
    with pytest.raises(LaunchError, match="'auto' or 'emulator'"):
        ops.matmul(integers(2, 2), integers(2, 2), backend="gpu")  # type: ignore[arg-type]


def test_a_result_that_overlaps_an_operand_is_refused() -> None:
    whole = integers(20, 20)
    with pytest.raises(LaunchError, match="overlaps"):
        ops.matmul(whole, integers(20, 20), out=whole)


def test_later_calls_of_a_layout_see_the_new_values() -> None:
    for m, n, k in ((1, 1, 1), (5, 7, 3), (64, 33, 20)):
        for _ in range(3):
            a, b = integers(m, k), integers(k, n)
            assert (ops.matmul(a, b) == a @ b).all()


def test_later_calls_take_scales_and_results_that_are_given() -> None:
    out, other = np.full((12, 9), 2, np.float32), np.full((12, 9), 3, np.float32)
    a, b, bias = integers(12, 5), integers(5, 9), integers(9)
    for alpha, beta, into, before in ((1.0, 0.5, out, 2), (2.0, -1.0, other, 3)):
        result = ops.matmul(a, b, out=into, alpha=alpha, beta=beta, bias=bias)
        assert result is into and (into == alpha * (a @ b) + beta * before + bias).all()


def test_a_later_result_that_overlaps_is_refused() -> None:
    whole, b = integers(40, 20), integers(20, 20)
    ops.matmul(whole[:20], b, out=whole[20:])
    with pytest.raises(LaunchError, match="overlaps"):
        ops.matmul(whole[:20], b, out=whole[:20])


def test_a_layout_that_was_known_is_told_from_a_read_only_one() -> None:
    a, out = integers(6, 6), np.empty((6, 6), np.float32)
    ops.matmul(a, a.copy(), out=out)
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="read-only"):
        ops.matmul(a, a.copy(), out=out)


def test_foreign_byte_order_is_read_after_the_machines_own() -> None:
    a = integers(6, 6)
    ops.matmul(a, a.copy())
    for _ in range(2):
        assert (ops.matmul(a.astype(">f4"), a) == a @ a).all()


def test_what_numpy_transposes_is_read_where_it_is() -> None:
    a, b = integers(7, 11), integers(13, 7)
    for _ in range(2):
        assert (ops.matmul(a.T, b.T) == a.T @ b.T).all()


def test_a_batch_is_multiplied_again_and_again() -> None:
    for _ in range(3):
        a, b = integers(4, 6, 5), integers(4, 5, 8)
        assert (ops.matmul(a, b) == a @ b).all()


def test_the_fastest_instance_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    host_tuning.choice.cache_clear()
    first = host_tuning.choice("small", "nn")
    host_tuning.choice.cache_clear()
    monkeypatch.setattr(host_tuning, "timed", lambda plans, sizes: pytest.fail("it was timed again"))
    assert first is not None and host_tuning.choice("small", "nn") == first


def test_the_choice_is_the_least_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(host_tuning, "timed", lambda plans, sizes: {plan.name: 9.0 - index for index, plan in enumerate(plans)})
    host_tuning.choice.cache_clear()
    found = host_tuning.choice("large", "nn")
    host_tuning.choice.cache_clear()
    assert found is not None and found.name == host_tuning.candidates("nn")[-1].name


def test_other_candidates_are_timed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path))
    calls = []
    monkeypatch.setattr(host_tuning, "timed", lambda plans, sizes: calls.append(sizes) or {plan.name: 1.0 for plan in plans})
    plans = host_tuning.candidates("nn")
    for some in (plans[:2], plans[:2], plans[:3]):
        monkeypatch.setattr(host_tuning, "candidates", lambda transpose, some=some: some)
        host_tuning.choice.cache_clear()
        host_tuning.choice("large", "nn")
    host_tuning.choice.cache_clear()
    assert len(calls) == 2


def test_time_is_shared_out_where_whole_rounds_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = host_tuning.candidates("nn")[:2]
    first, second = (plan.name for plan in plans)
    # The second is faster in every round; the first has the shortest single turn.
    rounds = {first: [1.0, 4.0, 2.0], second: [0.9, 3.0, 1.9]}
    monkeypatch.setattr("gemmgen.perf.host.benchmark.in_turns", lambda calls, count, clock: rounds)
    found = host_tuning.timed(plans, (8, 8, 8))
    assert found[second] < found[first] and sum(found.values()) == pytest.approx(1.9e6, rel=0.02)


@pytest.mark.parametrize("transpose", ["nn", "nt", "tn", "tt"])
def test_every_storage_of_operands_has_candidates(transpose: host_tuning.Transposes) -> None:
    plans = host_tuning.candidates(transpose)
    assert len(plans) > 1 and {plan.spec.transpose for plan in plans} == {transpose}


def test_candidates_are_for_the_newest_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, specs in (
        ("x86_64_v3", {"micro_kernels/avx2_6x16"}),
        ("x86_64_v4", {"c7_streamed", "c6_avx512", "micro_kernels/avx512_12x32"}),
        ("aarch64", {"micro_kernels/neon_8x12"}),
    ):
        monkeypatch.setattr(host_tuning, "best_architecture", lambda name=name: CPU_ARCHITECTURES[name])
        host_tuning.candidates.cache_clear()
        own = {spec for spec, _ in host_tuning.CANDIDATES if load_spec(shipped_specs()[f"cpu/{spec}"]).architecture == name}
        assert own == specs and len(host_tuning.candidates("nt")) >= len(specs)
    host_tuning.candidates.cache_clear()


@pytest.mark.parametrize("name", ["x86_64_v3", "x86_64_v4"])
def test_a_candidate_for_few_rows_packs_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(host_tuning, "best_architecture", lambda: CPU_ARCHITECTURES[name])
    host_tuning.candidates.cache_clear()
    tiles = {plan.spec.loops.micro_kernel.rows for plan in host_tuning.candidates("nn") if plan.spec.loops.pack == "none"}
    host_tuning.candidates.cache_clear()
    assert 4 in tiles


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 513, 129), (4, 100, 300), (7, 97, 127), (31, 200, 257), (3, 6200, 40)], ids=str)
def test_few_rows_are_multiplied_right(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = integers(m, k), integers(k, n)
    assert (ops.matmul(a, b) == a @ b).all()


def test_later_plain_products_look_at_their_arrays() -> None:
    a, b, out = integers(9, 31), integers(31, 17), np.empty((9, 17), np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(ops.matmul(a, b), a @ b)
        assert ops.matmul(a, b, out=out) is out
        np.testing.assert_array_equal(out, a @ b)
        np.testing.assert_array_equal(ops.matmul(a[:, ::-1].T.T, b), a[:, ::-1] @ b)
        a, b = integers(9, 31), integers(31, 17)
    square = integers(31, 31)
    np.testing.assert_array_equal(ops.matmul(square, square, out=np.empty_like(square)), square @ square)
    with pytest.raises(LaunchError, match="overlap"):
        ops.matmul(square, square, out=square)
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="read-only"):
        ops.matmul(a, b, out=out)
    np.testing.assert_array_equal(ops.matmul(a.astype(">f4"), b), a @ b)


@pytest.mark.parametrize("n", [1, 63, 64, 1027])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_alone_have_the_bits_of_all(n: int, order: Literal["C", "F"]) -> None:
    a, b = RNG.standard_normal((13, 777), np.float32), np.asarray(RNG.standard_normal((777, n), np.float32), order=order)
    whole = ops.matmul(a, b, batch_invariant=True)
    for rows in (1, 2, 3, 4, 5):
        np.testing.assert_array_equal(ops.matmul(a[:rows], b, batch_invariant=True), whole[:rows])


@pytest.mark.parametrize(("a_order", "b_order"), [("C", "C"), ("C", "F"), ("F", "C"), ("F", "F")])
@pytest.mark.parametrize("sizes", [(1, 5000, 37), (300, 1, 41), (4, 1100, 300), (3, 64, 16)], ids=str)
def test_vectors_and_few_rows_are_right(a_order: Literal["C", "F"], b_order: Literal["C", "F"], sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = np.asarray(integers(m, k), order=a_order), np.asarray(integers(k, n), order=b_order)
    bias, old = integers(n), integers(m, n)
    result = ops.matmul(a, b, bias=bias, alpha=2.0, beta=3.0, out=old.copy())
    np.testing.assert_array_equal(result, 2 * (a @ b) + 3 * old + bias)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((8, 4096, 4096), "few_rows"),
        ((16, 4096, 4096), "large"),
        ((1, 512, 512), "few_rows_near"),
        ((4096, 64, 4096), "few_columns"),
        ((128, 128, 128), "small"),
        ((777, 3001, 333), "large"),
    ],
)
def test_every_shape_has_a_class(sizes: tuple[int, int, int], shape: str) -> None:
    assert host_tuning.class_of(*sizes) == shape


def test_an_empty_batch_writes_nothing() -> None:
    around = np.zeros(64, np.float32)
    ops.matmul(np.ones((0, 3, 4), np.float32), np.ones((0, 4, 5), np.float32), out=around[8:8].reshape(0, 3, 5), bias=1.0)
    assert not around.any()


@pytest.mark.parametrize(("m", "n", "k"), [(90, 4, 60000), (4, 30, 200000), (8, 8, 1 << 20), (96, 1, 1 << 20), (9, 8, 1 << 20)])
def test_dot_products_keep_their_order_for_every_number_of_rows(m: int, n: int, k: int) -> None:
    spec = host_tuning.general_spec(host_tuning.class_of(m, n, k), "nt")
    assert spec is not None and isinstance(spec.loops, BlockedLoops) and spec.loops.few == "fastest"
