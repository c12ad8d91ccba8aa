"""Forms of kernels for few rows times narrow weights, and the model that chooses among them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.ops.weight_forms import Form, Numbers, balance, costs, fastest, kind_of, shared_bytes, streams, suited, traits, warpgroups
from gemmgen.ops.weight_kernels import Call, Product, call_of, form_of, slices_of, spec_of

DEVICE = find_device("H200")
RECORDS = Path(__file__).parents[2] / "measurements" / "weight_forms_h200.jsonl"
LAYERS = ((4096, 4096), (14336, 4096), (256, 8192), (2560, 10240), (64, 128), (28672, 8192), (34, 96))
FORMATS = [Numbers("bf16", bits, group, zeros) for bits in (4, 8) for group in (0, 32, 128) for zeros in (True, False)]


@pytest.mark.parametrize("numbers", FORMATS, ids=lambda one: f"{one.bits}-{one.group}-{one.zeros}")
@pytest.mark.parametrize("rows", (1, 16, 17, 64, 65, 1024))
def test_chosen_forms_have_plans(rows: int, numbers: Numbers) -> None:
    for n, k in LAYERS:
        call = call_of(Product(rows, n, k, 8, 2), numbers, DEVICE)
        plan = plan_gemm(spec_of(call), DEVICE.architecture)
        assert plan.shared_bytes <= DEVICE.architecture.shared_bytes_per_block


@pytest.mark.parametrize("numbers", FORMATS, ids=lambda one: f"{one.bits}-{one.group}-{one.zeros}")
def test_shared_memory_of_forms_covers_that_of_plans(numbers: Numbers) -> None:
    for form in (*list(streams(16, numbers, DEVICE.architecture))[::7], *list(warpgroups(64, numbers, DEVICE.architecture))[::3]):
        call = call_of(Product(8, 4096, 4096, 8, 2), numbers, DEVICE)
        plan = plan_gemm(spec_of(type(call)(**{**vars(call), "form": form})), DEVICE.architecture)
        assert plan.shared_bytes <= shared_bytes(form, numbers) <= plan.shared_bytes + 1024


def test_older_architectures_get_forms_without_clusters() -> None:
    ampere = find_architecture("sm_80")
    forms = list(streams(8, FORMATS[0], ampere))
    assert forms and {form.slices for form in forms} == {1}
    call = call_of(Product(1, 4096, 14336, 8, 8), Numbers("bf16", 4, 128, True), DEVICE, architecture=ampere)
    assert call.form.tile[1] == 32  # 64 columns occupy half of the SMs


@pytest.mark.parametrize("numbers", FORMATS, ids=lambda one: f"{one.bits}-{one.group}-{one.zeros}")
@pytest.mark.parametrize("rows", (3, 16))
def test_forms_of_older_architectures_have_plans(rows: int, numbers: Numbers) -> None:
    ampere = find_architecture("sm_80")
    for n, k in LAYERS:
        plan = plan_gemm(spec_of(call_of(Product(rows, n, k, 8, 2), numbers, DEVICE, architecture=ampere)), ampere)
        assert plan.shared_bytes <= ampere.shared_bytes_per_block


@pytest.mark.parametrize(
    ("rows", "architecture", "joined"), [(16, "sm_80", True), (1, "sm_80", False), (64, "sm_90a", True), (8, "sm_90a", False)]
)
def test_a_last_block_adds_up_sums_of_deep_layers(rows: int, architecture: str, joined: bool) -> None:
    """On an H200, 16 x 4096 x 14336 takes 16.9 us by kernels of sm_80 instead of 23.2, 64 rows 18.0 instead of 20.6."""
    call = call_of(Product(rows, 4096, 14336, 8, 8), Numbers("bf16", 4, 128, True), DEVICE, architecture=find_architecture(architecture))
    assert call.form.joined == joined
    plan = plan_gemm(spec_of(call), DEVICE.architecture)
    slices = slices_of(call, plan, Product(rows, 4096, 14336, 8, 8), DEVICE)
    assert slices == ({"slices": call.form.slices} if joined else {})


@pytest.mark.parametrize(("n", "k", "least"), [(5120, 5120, 0.6), (1000, 4096, 0.2), (152064, 5120, 0.9)])
def test_layers_that_suit_no_form_are_divided_evenly(n: int, k: int, least: float) -> None:
    ampere = find_architecture("sm_80")
    numbers = Numbers("bf16", 4, 128, True)
    assert not any(suited(form, n, k, DEVICE.sm_count) for form in streams(8, numbers, ampere))
    form = call_of(Product(8, n, k, 8, 8), numbers, DEVICE, architecture=ampere).form
    assert balance(form, n, k, DEVICE.sm_count) >= least


def test_the_model_weighs_every_trait() -> None:
    for form in (Form("streams", (8, 64, 256), (8, 32), 3, 1), Form("warpgroups", (64, 128, 128), (64, 16), 4)):
        for one in (form, replace(form, slices=4, joined=True)):
            assert len(traits(one, 4096, 4096, FORMATS[0], 132)) == len(costs().weights[kind_of([one])])
    assert fastest((), 4096, 4096, FORMATS[0], 132) is None


def test_chosen_forms_were_among_the_fastest() -> None:
    losses = []
    for line in RECORDS.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        times = {Form(**{**form, "tile": tuple(form["tile"]), "warp": tuple(form["warp"])}): taken for taken, form in one["times"]}
        numbers = Numbers("bf16", one["bits"], 128, one["bits"] == 4)
        chosen = fastest(times, one["n"], one["k"], numbers, DEVICE.sm_count)
        assert chosen is not None
        losses.append(times[chosen] / min(times.values()))
    assert sum(losses) / len(losses) < 1.02
    assert max(losses) < 1.12


@pytest.mark.parametrize(
    ("rows", "columns", "bits", "scaled"), [(32, 256, 4, "sums"), (64, 64, 4, "sums"), (64, 256, 4, "weights"), (32, 64, 8, "weights")]
)
def test_sums_of_few_rows_are_scaled(rows: int, columns: int, bits: int, scaled: str) -> None:
    form = Form("warpgroups", (rows, columns, 128), (rows, 16), 4)
    call = Call(form, Numbers("bf16", bits, 128, True), 8, 8, 128, "bf16", False, None, DEVICE.architecture)
    assert spec_of(call).mainloop.scaled == scaled


@pytest.mark.parametrize(("rows", "bits", "scaled"), [(64, 4, "sums"), (1024, 4, "weights"), (64, 8, "sums"), (1024, 8, "weights")])
def test_floats_are_scaled_where_there_are_many_rows(rows: int, bits: int, scaled: str) -> None:
    numbers = Numbers("bf16", bits, 128, False, floats=True)
    call = call_of(Product(rows, 4096, 4096, 8, 8), numbers, DEVICE)
    assert spec_of(call).mainloop.scaled == scaled


@pytest.mark.parametrize(("rows", "method"), [(8, "streams"), (9, "warpgroups"), (16, "warpgroups")])
def test_a_model_chooses_streams_or_warpgroups(rows: int, method: str) -> None:
    """On an H200, 16 x 7168 x 18432 takes 23.2 us by warpgroups, 29.8 by the fastest streams."""
    form = form_of(Product(rows, 7168, 18432, 8, 8), Numbers("bf16", 4, 128, True), DEVICE.architecture, DEVICE.sm_count)
    assert form.method == method


@pytest.mark.parametrize(("rows", "n", "slices"), [(128, 11008, 1), (128, 14336, 1), (96, 1024, 4)])
def test_k_is_divided_where_that_saves_time(rows: int, n: int, slices: int) -> None:
    """Two blocks of a cluster for 86 tiles would take a second round of 40."""
    form = form_of(Product(rows, n, 4096, 8, 8), Numbers("bf16", 4, 128, True), DEVICE.architecture, DEVICE.sm_count)
    assert form.slices == slices
