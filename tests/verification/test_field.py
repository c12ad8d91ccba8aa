"""Runs over a finite field: correct kernels pass, changed ones do not, and kernels whose data decide are not judged."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sampling import ALL

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.emulator import residue_products, residues
from gemmgen.emulator.arithmetic import FIELD
from gemmgen.kernels import family_module
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.digests import program_digests
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import Binary, compile_source
from gemmgen.verification.field import WANTED_BITS, FieldReport, miss_bits_of_run, verify_field
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

from .field_mutants import NARROW_OF_EACH, WIDE_COUNT, Slip, narrow_slips, wide_slips

PASSING = (
    "gemm/mma_sync/bf16/32x32",
    "gemm/simt/linear/residual_block",
    "reduction/rows/32",
    "elementwise/gated_silu",
    "conv2d/mma_sync/output/float",
    "gemm/tcgen05/int8_128x64",
    "gemm/mma_sync/block_scales/mxfp8",
)


@cache
def plan_of(name: str) -> KernelPlan:
    plan = gemmgen.plan(shipped_specs()[name])
    assert isinstance(plan, KernelPlan)
    return plan


def source_of(name: str) -> str:
    return gemmgen.render(plan_of(name)).text


def compiled(spec: str, text: str) -> Binary:
    return compile_source(text, architecture=plan_of(spec).architecture.name, options=COMPILE_OPTIONS, name="slip.cu")


@cache
def code_of(spec: str) -> str:
    """The machine code of a kernel as it should be, as a digest."""
    return program_digests(compiled(spec, source_of(spec)).ptx, plan_of(spec).name)["code"]


def judged(slip: Slip) -> FieldReport | str:
    plan = plan_of(slip.spec)
    try:
        binary = compiled(slip.spec, slip.text)
    except GemmgenError:
        return "does not compile"
    if program_digests(binary.ptx, plan.name)["code"] == code_of(slip.spec):
        return "the same code"
    return verify_field(plan, binary, bits=1)


def ordinary_failures(spec: str, text: str, name: str | None = None) -> list[str]:
    """The failures of a changed kernel in its ordinary cases, or in those of a name."""
    plan, binary, backend = plan_of(spec), compiled(spec, text), EmulatorBackend()
    cases = [case for case in oracle_of(plan.spec.kind).cases(plan) if name in (None, case.name)]
    results = [verify_case(plan, binary, backend, case) for case in cases]
    return [result.failure or "" for result in results if not result.passed]


@pytest.mark.parametrize("name", PASSING)
def test_a_correct_kernel_passes(name):
    report = verify_field(plan_of(name), bits=1)
    assert report.outcome == "passed", report.reason
    assert report.elements > 0


def test_the_text_states_the_probability():
    report = verify_field(plan_of("gemm/mma_sync/bf16/32x32"))
    assert report.text == f"passed, wrong with probability below 2^-{int(report.miss_bits)}"
    assert report.miss_bits > 29


@pytest.mark.parametrize("bits", ["& 0x7fffffff", "| 0x80000000", "<< 1 >> 1"])
def test_kernels_that_take_signs_are_not_claimed(bits):
    name = "gemm/mma_sync/bf16/32x32"
    old = "fmaf(alpha, accumulators[block][4 * j + 2 * half + v], beta * values[v])"
    text = source_of(name)
    assert text.count(old) == 1
    report = verify_field(plan_of(name), compiled(name, text.replace(old, f"__int_as_float(__float_as_int({old}) {bits})")))
    assert report.outcome in ("not claimed", "wrong")
    assert report.outcome == "wrong" or "bits of numbers" in report.reason


@pytest.mark.parametrize(
    "element",
    [
        "__int_as_float(__float_as_int({}) & 0x7fffffff)",
        "__int_as_float(__float_as_int({}) & (kk < 3 ? 0x7fffffff : -1))",
        "__int_as_float(max(__float_as_int({}), 0))",
    ],
)
def test_signs_of_elements_are_not_claimed(element):
    """Masks of words from memory may clear whole bytes, as beyond the last value of k, but no sign."""
    name, old = "gemm/v0_naive", "A[static_cast<long long>(at_m) * lda + kk]"
    text = source_of(name)
    assert text.count(old) == 1
    report = verify_field(plan_of(name), compiled(name, text.replace(old, element.format(old))))
    assert report.outcome == "not claimed"
    assert "bits of numbers" in report.reason or "takes bytes of elements apart" in report.reason


INT8_CONV, INT8_GEMM = "conv2d/mma_sync/int8/pixels_64x64x64", "gemm/mma_sync/tma/int8_128x128"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (INT8_CONV, "fmaf(alpha, value, shift)", "__int_as_float(__float_as_int(fmaf(alpha, value, shift)) & 0x7fffffff)"),
        (INT8_CONV, "fmaf(alpha, value, shift)", "__int_as_float(max(__float_as_int(fmaf(alpha, value, shift)), 0))"),
        (INT8_CONV, "fmaf(alpha, value, shift)", "value + (__float_as_uint(fmaf(alpha, value, shift)) >> 31)"),
        (INT8_GEMM, "value *= factor[row];", "value = __int_as_float(__float_as_int(value * factor[row]) & 0x7fffffff);"),
        (INT8_GEMM, "value *= factor[row];", "value *= __int_as_float(__float_as_int(factor[row]) & 0x7fffffff);"),
    ],
)
def test_signs_beside_integers_are_not_claimed(name, old, new):
    """Factors and sums of integers are exact, but what follows them are floats."""
    text = source_of(name)
    assert text.count(old) == 1
    report = verify_field(plan_of(name), compiled(name, text.replace(old, new)))
    assert report.outcome == "wrong" or (report.outcome == "not claimed" and "bits of numbers" in report.reason)


@pytest.mark.parametrize("sign", ["max({}, 0)", "({} & 0x7fffffff)"])
def test_signs_of_integer_sums_count(sign):
    old = "accumulators[block][4 * j + 2 * half + v]"
    text = source_of(INT8_GEMM)
    assert text.count(old) == 1
    assert verify_field(plan_of(INT8_GEMM), compiled(INT8_GEMM, text.replace(old, sign.format(old)))).outcome == "wrong"


def runs_are_as_many_as_problems(report: FieldReport, name: str) -> bool:
    """True if one run of each problem is enough."""
    plan = plan_of(name)
    return report.runs == len(family_module(plan.spec.kind, "field").field_cases(plan))


def test_float32_takes_one_run():
    assert runs_are_as_many_as_problems(verify_field(plan_of("gemm/v0_naive")), "gemm/v0_naive")


def test_groups_have_problems():
    plan = plan_of("gemm/mma_sync/grouped")
    assert [case.dimensions["groups"] for case in family_module("gemm", "field").field_cases(plan)] == [3]


@pytest.mark.parametrize("name", ["gemm/wgmma/bf16/128x256", "gemm/simt/blocked/128x128x8", "gemm/tcgen05/nvfp4_dynamic"])
def test_problems_have_cut_tiles_and_whole_ones(name):
    plan = plan_of(name)
    cut, whole = (case.dimensions for case in family_module("gemm", "field").field_cases(plan))
    assert cut["m"] % plan.tile_m and cut["n"] % plan.tile_n and cut["k"] % plan.step_k
    assert not (whole["m"] % plan.tile_m or whole["n"] % plan.tile_n or whole["k"] % plan.step_k)


PLANES = "gemm/split_precision/mma_sync/f16x3_64x64"


def test_planes_split_where_they_are_multiplied_are_not_claimed():
    report = verify_field(plan_of("gemm/split_precision/bf16x6_decode/16"))
    assert report.outcome == "not claimed"
    assert "control flow depends on data" in report.reason


def test_products_by_planes_are_claimed():
    report = verify_field(plan_of(PLANES), bits=1)
    assert report.outcome == "passed", report.reason


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("multiply_planes(kept, fragments_a[1], fragments_b[0]);", "", "another polynomial"),
        ("cvt.rp.f16.f32 %0, %1;", "cvt.rn.f16.f32 %0, %1;", "planes of"),
        ("const float factor = one[at_k];", "const float factor = one[at_k] + 1.0f;", "another polynomial"),
    ][: 3 if ALL else 2],
)
def test_mistakes_around_planes_are_found(old, new, words):
    text = source_of(PLANES)
    assert old in text
    report = judged(Slip(PLANES, new, text.replace(old, new)))
    assert isinstance(report, FieldReport)
    assert report.outcome == "wrong"
    assert words in report.reason


SCALED = "gemm/mma_sync/block_scales/nvfp4_64x64"


def test_scales_of_another_block_are_found():
    old = "load_scales(scales_b, min(column, n - 1), word_of_k, blocks)"
    text = source_of(SCALED)
    assert old in text
    assert verify_field(plan_of(SCALED), bits=1).outcome == "passed"
    report = judged(Slip(SCALED, old, text.replace(old, old.replace("word_of_k", "0"))))
    assert isinstance(report, FieldReport)
    assert report.outcome == "wrong"
    assert "another polynomial" in report.reason


@pytest.mark.parametrize("name", [SCALED, "gemm/mma_sync/block_scales/mxfp8", "gemm/tcgen05/mxfp4"])
def test_elements_with_scales_take_one_run_a_problem(name):
    report = verify_field(plan_of(name))
    assert report.outcome == "passed", report.reason
    assert report.runs == 2
    assert report.miss_bits > WANTED_BITS


@pytest.mark.parametrize("slip", narrow_slips(source_of) if ALL else narrow_slips(source_of)[::13], ids=lambda slip: slip.name)
def test_a_slip_of_one_thread_is_caught(slip):
    report = judged(slip)
    assert isinstance(report, FieldReport)
    assert report.outcome == "wrong"


@pytest.mark.parametrize("slip", wide_slips(source_of) if ALL else wide_slips(source_of)[::120], ids=lambda slip: slip.name)
def test_a_changed_index_is_caught(slip):
    report = judged(slip)
    if isinstance(report, FieldReport) and report.outcome != "wrong":
        # Some slips only read beyond the end of small arrays, and one is a race.
        assert ordinary_failures(slip.spec, slip.text)


@pytest.mark.parametrize(
    ("case", "old", "new"),
    [
        ("k of 1", "n - block_n - copy_column_b", "n - block_n + copy_column_b"),
        ("k of 1", "k - copy_column_a", "k + copy_column_a"),
        ("n one above a tile", "block_n + kTileN <= n;", "block_n - kTileN <= n;"),
    ],
)
def test_ordinary_cases_show_reads_beyond_small_arrays(case, old, new):
    text = source_of("gemm/v3_double_buffer")
    line = next(line for line in text.splitlines() if old in line and ("load_global_edge_tile" in line or "bool inside" in line))
    failures = ordinary_failures("gemm/v3_double_buffer", text.replace(line, line.replace(old, new), 1), case)
    assert failures
    assert all("out of bounds" in failure for failure in failures)


def test_stores_between_the_rows_of_the_result_are_caught():
    old = "*target = product;"
    text = source_of("gemm/v0_naive")
    assert old in text
    more = "if (ldc > n && at_n == n - 1 && at_m + 1 < m) target[1] = product;"
    report = judged(Slip("gemm/v0_naive", more, text.replace(old, old + more)))
    assert isinstance(report, FieldReport)
    assert report.outcome == "wrong"
    assert "written between its elements" in report.reason


def test_a_leading_dimension_in_anothers_place_is_caught():
    text = source_of("gemm/simt/linear/bias_relu")
    old = "load_global_tile_a(staged_a, source_a, lda, "
    assert old in text
    report = judged(Slip("gemm/simt/linear/bias_relu", "ldb", text.replace(old, old.replace("lda", "ldb"))))
    assert isinstance(report, FieldReport)
    assert report.outcome == "wrong"


CONVOLUTIONS = ("conv2d/mma_sync/residual", "conv2d/mma_sync/output/int32", "conv2d/wgmma/quantised/zero_point")


@pytest.mark.parametrize("name", CONVOLUTIONS if ALL else CONVOLUTIONS[:2])
def test_slips_in_convolutions_of_integers_are_caught(name):
    assert verify_field(plan_of(name), bits=1).outcome == "passed"
    old = "value += residual;" if "int32" in name else "fmaf(alpha, value, shift)"
    assert old in source_of(name)
    text = source_of(name).replace(old, "value += residual + 1;" if "int32" in name else "fmaf(alpha, value, -shift)")
    report = judged(Slip(name, old, text))
    assert isinstance(report, FieldReport)
    assert report.outcome == "wrong"


def test_convolutions_over_the_field_have_results():
    """Problems of fixed filters, larger than some cases' images, among them."""
    for name in (name for name in shipped_specs() if name.startswith("conv2d/")):
        for case in family_module("conv2d", "field").field_cases(plan_of(name)):
            assert case.dimensions["p"] * case.dimensions["q"] > 0, (name, case.name)


@pytest.mark.parametrize("name", ["conv2d/direct/depthwise/first_layer", "conv2d/wgmma/f16/windows_64x384"])
def test_filters_with_more_places_than_elements_are_claimed(name):
    """Lanes of ``mma.sync`` hold zeros beside a row's taps; windows need images that are wider than the filter."""
    assert verify_field(plan_of(name), bits=1).outcome == "passed"


def test_there_are_420_slips():
    assert len(wide_slips(source_of)) == WIDE_COUNT
    assert len(narrow_slips(source_of)) == 3 * NARROW_OF_EACH


def test_a_choice_by_the_bits_of_an_element_is_not_judged():
    # The branch sees another load of the element, as an integer: no floating-point instruction uses it, and no run draws this number.
    old = "values[i] = apply(x_values[u][i]);"
    bits = "reinterpret_cast<const int*>(x)[min((first + u * kThreads) * kVector + i, d0 - 1)]"
    new = f"values[i] = apply(x_values[u][i]) * ({bits} == 123456789 ? 2.0f : 1.0f);"
    spec = "elementwise/grid_stride"
    assert old in source_of(spec)
    report = verify_field(plan_of(spec), compiled(spec, source_of(spec).replace(old, new)))
    assert report.outcome == "not claimed", report.text
    assert "a choice depends on data" in report.text


def test_control_flow_that_depends_on_data_is_not_judged():
    text = source_of("gemm/v0_naive").replace("*target = product;", "if (product != 1.0f) *target = product;")
    binary = compile_source(text, architecture="sm_80", options=COMPILE_OPTIONS, name="guarded.cu")
    report = verify_field(plan_of("gemm/v0_naive"), binary, bits=1)
    assert report.outcome == "not claimed"
    assert "depends on data" in report.reason


@pytest.mark.parametrize("left", ["f32", "bf16", "e4m3", "integers"])
@pytest.mark.parametrize("right", ["f32", "f16", "integers"])
def test_a_product_of_residues_is_exact(left, right):
    random = np.random.default_rng(3)

    def drawn(kind, shape):
        if kind == "f32":
            return random.integers(0, residues.MODULUS, shape, dtype=np.uint64)
        if kind == "integers":
            return residues.of_integers(random.integers(-128, 256, shape)).astype(np.uint64).reshape(shape)
        word = np.uint8 if kind == "e4m3" else np.uint16
        codes = random.integers(0, np.iinfo(word).max + 1, shape).astype(word)
        codes.reshape(-1)[:2] = 0, np.iinfo(word).max
        return residues.canonical(residues.of_codes(codes, kind)).reshape(shape)

    a, b = drawn(left, (4, 70)), drawn(right, (70, 3))
    exact = [[sum(int(x) * int(y) for x, y in zip(row, column, strict=True)) % residues.MODULUS for column in b.T] for row in a]
    assert residues.matrix_product(a, b).tolist() == exact


def test_literals_are_dyadic_fractions():
    half, third = residues.of_float(0.5), residues.of_float(-3.0)
    assert int(half) * 2 % residues.MODULUS == 1
    assert (int(third) + 3) % residues.MODULUS == 0


def test_sums_of_trees_commute_and_do_not_associate():
    a, b, c = (np.array([value], np.uint32) for value in (5, 7, 11))
    assert residues.tree_sum(a, b) == residues.tree_sum(b, a)
    assert residues.tree_sum(residues.tree_sum(a, b), c) != residues.tree_sum(a, residues.tree_sum(b, c))
    assert residues.tree_sum(a, np.zeros(1, np.uint32)) == a


def kept(elements: int, results: int) -> residues.Interned:
    return residues.Interned(np.random.default_rng(3), elements, results)


def test_codes_of_16_bits_are_different_random_residues():
    numbers = kept(60_000, 5_000)
    drawn = np.concatenate([numbers.draw((200, 200)).reshape(-1), numbers.draw((20_000,))])
    assert len(set(drawn.tolist())) == 60_000
    assert len(set(numbers.residues[drawn].tolist())) == 60_000
    assert numbers.distinct


def test_rounding_to_16_bits_loses_nothing():
    numbers = kept(40_000, 25_000)
    drawn = numbers.draw((40_000,))
    values = np.random.default_rng(4).integers(0, residues.MODULUS, (100, 250), dtype=np.uint32)
    codes = numbers.narrowed(values)
    assert (numbers.residues[codes] == values).all()
    assert (np.isin(codes, drawn) == np.isin(values, numbers.residues[drawn])).all()
    assert (numbers.narrowed(values[::-1]) == codes[::-1]).all()
    assert (numbers.narrowed(numbers.residues[drawn]) == drawn).all()
    assert numbers.narrowed(np.array([0, residues.MODULUS])).tolist() == [0, 0]


def test_more_results_than_codes_are_refused():
    numbers = kept(65_000, 100)
    with pytest.raises(OverflowError):
        numbers.narrowed(np.arange(1, 1000, dtype=np.uint32))


def test_more_elements_than_codes_share_them():
    numbers = kept(100_000, 20_000)
    drawn = numbers.draw((100_000,))
    assert not numbers.distinct
    assert len(set(drawn.tolist())) <= numbers.pool < 65_536 - 20_000


def test_words_with_an_empty_lower_half_are_codes():
    numbers = kept(10, 10)
    token = residues.interned.set(numbers)
    try:
        code = numbers.draw((1,))
        assert residues.read(code.astype(np.uint32) << np.uint32(16)).tolist() == numbers.residues[code].tolist()
        written = residues.written(np.array([0, 0x30000, 5], np.uint32))
        assert residues.read(written).tolist() == written.tolist()
        assert residues.canonical(written).tolist() == [0, 0x30000, 5]
    finally:
        residues.interned.reset(token)


def test_a_code_keeps_the_residue_that_it_was_read_as():
    numbers = kept(10, 500)
    codes = numbers.codes[10:200].copy()
    before = numbers.of_codes(codes)
    values = np.random.default_rng(4).integers(1, residues.MODULUS, 300, dtype=np.uint32)
    given = numbers.narrowed(values)
    assert not np.isin(given, codes).any()
    assert (numbers.of_codes(given) == values).all() and (numbers.of_codes(codes) == before).all()


def test_products_of_kept_numbers_are_exact():
    token = residues.interned.set(kept(2000, 10))
    try:
        a, b = (residues.interned.get().draw(shape).astype(np.uint32) for shape in ((8, 100), (10, 100)))
        product = residue_products.multiply_add(FIELD, a, b, ("bf16", "bf16"), np.zeros((8, 10), np.uint32))
        left, right = (residues.of_codes(codes, "bf16").astype(object) for codes in (a, b))
        assert (residues.canonical(residues.read(product)) == (left @ right.T) % residues.MODULUS).all()
    finally:
        residues.interned.reset(token)


@pytest.mark.parametrize("name", ["gemm/mma_sync/bf16/32x32", "elementwise/bias_residual_gelu_bf16"])
def test_kernels_of_16_bits_take_one_run(name):
    report = verify_field(plan_of(name))
    assert report.outcome == "passed" and runs_are_as_many_as_problems(report, name)
    assert report.miss_bits > WANTED_BITS


@pytest.mark.parametrize(
    "name",
    ["gemm/wgmma/fp8/64x32", "gemm/wgmma/int8/64x48", "gemm/tcgen05/int8_128x64", "gemm/wgmma/tf32/64x32", "gemm/wgmma/bf16/128x256"],
)
def test_words_of_elements_take_one_run(name):
    report = verify_field(plan_of(name))
    assert report.outcome == "passed" and runs_are_as_many_as_problems(report, name)
    assert report.miss_bits > WANTED_BITS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step * kTileK, work.column)", "step * kTileK, work.row)"),
        ("b + step_offset<kStepBytesB>(step) / kDescriptorUnit", "b + step_offset<kStepBytesB>(step & 2) / kDescriptorUnit"),
        ("step * kTileK, work.row)", "step * kTileK + 2, work.row)"),
    ],
)
@pytest.mark.parametrize("name", ["gemm/wgmma/fp8/64x32", "gemm/wgmma/bf16/128x256"])
def test_slips_in_kernels_of_words_are_caught(name, old, new):
    text = source_of(name)
    assert text.count(old) == 1
    report = verify_field(plan_of(name), compiled(name, text.replace(old, new)))
    assert report.outcome == "wrong"


@pytest.mark.parametrize("name", ["conv2d/wgmma/int8_k64/64x32", "conv2d/mma_sync/pointwise/stride2", "conv2d/mma_sync/residual"])
def test_convolutions_of_integers_take_one_run(name):
    report = verify_field(plan_of(name))
    assert report.outcome == "passed" and runs_are_as_many_as_problems(report, name)
    assert report.miss_bits > WANTED_BITS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0x0040), 0x5410)", "0x0040), 0x5401)"),
        ("fmaf(values[i], 128.0f", "fmaf(values[i == 3 && threadIdx.x == 5 ? 2 : i], 128.0f"),
        ("packed - (packed >> 7 & 0x01010101u)", "packed - (packed >> 6 & 0x01010101u)"),
    ],
)
def test_slips_where_results_are_packed_are_caught(old, new):
    text = source_of("conv2d/wgmma/int8_k64/64x32")
    assert text.count(old) == 1
    report = verify_field(plan_of("conv2d/wgmma/int8_k64/64x32"), compiled("conv2d/wgmma/int8_k64/64x32", text.replace(old, new)))
    assert report.outcome == "wrong"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unpack_s8(residual + 4, packed_residual.y);", "unpack_s8(residual + 4, packed_residual.x);"),
        ("z + offset + block * next_channels,", "z + offset + block * next_channels + (threadIdx.x == 37 ? 8 : 0),"),
        (
            "const uint2 packed_residual = exists ? *reinterpret_cast<const uint2*>(z) :",
            "const uint2 packed_residual = false ? *reinterpret_cast<const uint2*>(z) :",
        ),
    ],
)
def test_slips_of_a_residual_are_caught(old, new):
    name = "conv2d/mma_sync/residual"
    text = source_of(name)
    assert text.count(old) == 1
    report = verify_field(plan_of(name), compiled(name, text.replace(old, new)))
    assert report.outcome == "wrong"


def test_bounds_of_integers_count_their_collisions():
    plan = gemmgen.plan(shipped_specs()["conv2d/mma_sync/int8/pixels_128x64x64"])
    assert miss_bits_of_run(plan, family_module("conv2d", "field")) < 6
