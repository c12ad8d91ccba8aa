"""ops.matmul on arrays in host memory runs on the processor, and on the emulator where that is asked for or needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernels.cpu_gemm.specs import HERE

from gemmgen import ops
from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.kernels.gemm.matcher import GemmRequest
from gemmgen.kernels.requests import Layout
from gemmgen.ops import host_tuning, native

pytestmark = pytest.mark.skipif(not HERE, reason="this machine runs no code for x86-64-v3")
RNG = np.random.default_rng(3)


def request(kind: str = "f32") -> GemmRequest:
    return GemmRequest(Layout.packed((20, 30), kind), Layout.packed((30, 10), kind), Layout.packed((20, 10), kind))


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-4, 5, shape).astype(np.float32)


def test_products_of_float32_run_on_the_processor() -> None:
    assert native.native_call(request()) is not None


def test_products_of_halves_do_not() -> None:
    assert native.native_call(request("f16")) is None


def test_without_a_compiler_there_is_no_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(shape: str) -> None:
        raise EnvironmentMissing("there is no C compiler")

    monkeypatch.setattr(native, "general_spec", none)
    native._loaded.cache_clear()
    try:
        assert native.native_call(request()) is None
    finally:
        native._loaded.cache_clear()


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


def test_the_fastest_instance_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    host_tuning.choice.cache_clear()
    first = host_tuning.choice("small")
    host_tuning.choice.cache_clear()
    monkeypatch.setattr(host_tuning, "timed", lambda plans, sizes: pytest.fail("it was timed again"))
    assert first is not None and host_tuning.choice("small") == first


def test_the_choice_is_the_least_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(host_tuning, "timed", lambda plans, sizes: {plan.name: 9.0 - index for index, plan in enumerate(plans)})
    host_tuning.choice.cache_clear()
    found = host_tuning.choice("large")
    host_tuning.choice.cache_clear()
    assert found is not None and found.name == host_tuning.candidates()[-1].name


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((16, 4096, 4096), "few_rows"), ((4096, 64, 4096), "few_columns"), ((128, 128, 128), "small"), ((777, 3001, 333), "large")],
)
def test_every_shape_has_a_class(sizes: tuple[int, int, int], shape: str) -> None:
    assert host_tuning.class_of(*sizes) == shape
