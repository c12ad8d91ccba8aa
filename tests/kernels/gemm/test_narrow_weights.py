"""Weights of 4 and 8 bits by tensor cores: kernels are held against their reference, specs that cannot work say why."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.dispatch.problems import read_problem
from gemmgen.kernels.gemm.explain import explain
from gemmgen.kernels.gemm.plan import GemmPlan
from tests.kernels.verifying import verified

MAINLOOP = {
    "strategy": "narrow_weights",
    "tile": {"threadblock": {"m": 16, "n": 32, "k": 64}, "warp": {"m": 16, "n": 32}},
    "stages": 2,
    "bits": 4,
    "group": 32,
    "zeros": True,
}
SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "f16", "b": "u8", "c": "f32"},
    "alignment": {"a": 2, "c": 1},
    "multiple_of": {"k": 32},
    "mainloop": MAINLOOP,
}


def with_loop(**changes: Any) -> dict[str, Any]:
    return {**SPEC, "mainloop": {**MAINLOOP, **changes}}


STREAMS: dict[str, Any] = {
    **SPEC,
    "architecture": "sm_90",
    "storage": {"a": "bf16", "b": "u8", "c": "bf16"},
    "alignment": {"a": 8, "c": 2},
    "decomposition": {"scheme": "split_k_cluster", "slices": 2},
    "early_launch": True,
    "constant": ["b"],
    "mainloop": {
        **MAINLOOP,
        "method": "streams",
        "tile": {"threadblock": {"m": 8, "n": 64, "k": 512}, "warp": {"m": 8, "n": 32}},
        "k_warps": 2,
        "stages": 3,
    },
}
WARPGROUPS: dict[str, Any] = {
    **STREAMS,
    "architecture": "sm_90a",
    "mainloop": {
        **MAINLOOP,
        "method": "warpgroups",
        "tile": {"threadblock": {"m": 8, "n": 128, "k": 128}, "warp": {"m": 8, "n": 16}},
    },
}
ALONE = {"decomposition": {"scheme": "data_parallel"}}
LAST = {"decomposition": {"scheme": "split_k_last"}}
SIXTEEN = {"threadblock": {"m": 16, "n": 128, "k": 128}, "warp": {"m": 16, "n": 16}}
WIDE = {"threadblock": {"m": 8, "n": 256, "k": 128}, "warp": {"m": 8, "n": 16}}
SHORT = {"threadblock": {"m": 8, "n": 128, "k": 64}, "warp": {"m": 8, "n": 16}}
THREE = {"threadblock": {"m": 8, "n": 192, "k": 128}, "warp": {"m": 8, "n": 16}}


def changed(spec: dict[str, Any], loop: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {**spec, **others, "mainloop": {**spec["mainloop"], **loop}}


SHORT_STAGES = changed(WARPGROUPS, {"scaled": "weights", "bits": 8, "group": 128, "tile": SHORT}, multiple_of={"k": 128})
"""Two stages for each group of k."""


@pytest.mark.parametrize("type", ["f16", "bf16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, "column"])
def test_products_are_those_of_the_reference(type: str, bits: int, group: Any) -> None:
    """Codes of every value, zero points at both ends, infinities in scales."""
    spec = {**with_loop(bits=bits, group=group), "storage": {"a": type, "b": "u8", "c": "f32"}}
    assert verified(spec, ("primes", "not-a-numbers and infinities")).passed


def beside_bytes(type: str, **changes: Any) -> dict[str, Any]:
    """Weights of 4 bits beside activations of 8 bits."""
    architecture = "sm_80" if type == "s8" else "sm_89"
    return {
        **with_loop(**changes),
        "architecture": architecture,
        "storage": {"a": type, "b": "u8", "c": "f32"},
        "alignment": {"a": 4, "c": 1},
    }


@pytest.mark.parametrize("group", [32, "column"])
@pytest.mark.parametrize(
    ("type", "changes"),
    [
        ("s8", {}),
        ("s8", {"zeros": False, "scale_type": "f16"}),
        ("e4m3", {"scale_type": "bf16"}),
        ("e4m3", {"zeros": False, "codes": "e2m1"}),
        ("e5m2", {"zeros": False}),
    ],
    ids=["int8", "int8-signed", "e4m3", "e2m1", "e5m2"],
)
def test_activations_of_8_bits_give_the_reference(type: str, changes: dict[str, Any], group: Any) -> None:
    """Every code, zero points at both ends, every integer of 8 bits, infinities in scales, and slices that end within k."""
    names = ("primes", "not-a-numbers and infinities", "many steps", "k of 0")
    spec = {**beside_bytes(type, group=group, **changes), "epilogue": [{"op": "factor", "per": "row"}]}
    assert verified(spec, names).passed
    assert verified({**spec, "decomposition": {"scheme": "split_k_parallel", "slices": 3}}, ("primes", "one tile")).passed


@pytest.mark.parametrize(
    ("type", "changes", "right", "wrong"),
    [
        ("s8", {}, "nibbles_to_s8<1>(word, offset)", "nibbles_to_s8<0>(word, offset)"),
        ("s8", {}, "(sums[i][j]) - kIntegers", "(sums[i][j]) - kIntegers - 1.0f"),
        ("s8", {"group": "column"}, "static_cast<float>(sums[i][j])", "static_cast<float>(sums[i][j] + 1)"),
        ("e4m3", {}, "(integers ^ (signs - ones)) + ones", "integers ^ (signs - ones)"),
        ("e4m3", {"codes": "e2m1", "zeros": False}, "(codes & 0x07070707u) << 2", "(codes & 0x03030303u) << 2"),
    ],
    ids=["a-nibble", "an-offset", "an-integer", "a-magnitude", "an-exponent"],
)
def test_mistakes_beside_bytes_are_found(type: str, changes: dict[str, Any], right: str, wrong: str) -> None:
    assert not verified(beside_bytes(type, **changes), ("primes",), (right, wrong)).passed


def test_integers_add_up_in_int32_to_a_last_k() -> None:
    """All of k in one sum: 2^20 products of -128 and 16 would be 2^31."""
    plan = gemmgen.plan(beside_bytes("s8", group="column"))
    constraints = [one.condition for one in plan.sequence.constraints]
    fits = [all(one.evaluate(size_of(k)) for one in constraints) for k in (2**20 - 32, 2**20)]
    assert fits == [True, False]


def size_of(k: int) -> dict[str, int]:
    return {"m": 16, "n": 32, "k": k, "lda": k, "ldc": 32, "ld_scales": 32, "ld_zeros": 32}


def test_slices_of_k_are_added_up() -> None:
    spec = {**with_loop(zeros=False), "decomposition": {"scheme": "split_k_parallel", "slices": "launch"}, "epilogue": [{"op": "silu"}]}
    assert verified(spec, ("primes", "k in 3 slices", "padded leading dimensions")).passed


def test_a_scale_of_a_column_multiplies_the_sum_of_all_slices() -> None:
    """An infinite scale times slices whose signs differ would give infinity minus infinity."""
    spec = {**with_loop(zeros=False, group="column"), "decomposition": {"scheme": "split_k_parallel", "slices": 8}}
    assert verified(spec, ("not-a-numbers and infinities", "primes")).passed


@pytest.mark.parametrize(
    "spec",
    [
        STREAMS,
        changed(STREAMS, {"bits": 8, "group": "column", "stages": 2}, multiple_of={"k": 8}, epilogue=[{"op": "bias", "per": "column"}]),
        changed(
            STREAMS,
            {"zeros": False, "k_warps": 1, "group": 64},
            **ALONE,
            architecture="sm_80",
            early_launch=False,
            constant=[],
            multiple_of={"k": 64},
            storage={"a": "f16", "b": "u8", "c": "f32"},
            alignment={"a": 2, "c": 2},
        ),
        changed(
            STREAMS,
            {"tile": {"threadblock": {"m": 16, "n": 64, "k": 512}, "warp": {"m": 16, "n": 32}}, "group": 128},
            multiple_of={"k": 128},
        ),
        changed(STREAMS, {"tile": {"threadblock": {"m": 8, "n": 32, "k": 1024}, "warp": {"m": 8, "n": 32}}, "k_warps": 4}, **ALONE),
    ],
    ids=["clusters", "bytes", "sm_80", "16-rows", "32-columns"],
)
def test_streams_give_the_reference(spec: dict[str, Any]) -> None:
    """The same with warps that stream weights: chunks of A end within k, warps and blocks divide k, and a slice has no steps."""
    assert verified(spec, ("primes", "not-a-numbers and infinities", "k of 0")).passed


@pytest.mark.parametrize(
    "spec",
    [
        changed(
            STREAMS,
            {"tile": {"threadblock": {"m": 4, "n": 32, "k": 128}, "warp": {"m": 4, "n": 32}}, "k_warps": 1, "stages": 6},
            decomposition={"scheme": "split_k_cluster", "slices": 4},
        ),
        changed(STREAMS, {"tile": {"threadblock": {"m": 2, "n": 32, "k": 128}, "warp": {"m": 2, "n": 32}}, "k_warps": 1}, **ALONE),
        changed(STREAMS, {"tile": {"threadblock": {"m": 2, "n": 96, "k": 256}, "warp": {"m": 2, "n": 32}}, "stages": 5}),
    ],
    ids=["a-quarter-for-each-block", "alone", "three-panels"],
)
def test_streams_of_fewer_rows_give_the_reference(spec: dict[str, Any]) -> None:
    assert verified(spec, ("primes",)).passed


@pytest.mark.parametrize(
    "spec",
    [
        WARPGROUPS,
        changed(WARPGROUPS, {"persistent_blocks": 2, "group": 128}, **ALONE, multiple_of={"k": 128}, beta="argument"),
        changed(
            WARPGROUPS,
            {"bits": 8, "group": "column", "tile": {"threadblock": {"m": 8, "n": 128, "k": 128}, "warp": {"m": 8, "n": 32}}},
            multiple_of={"k": 1},
            storage={"a": "f16", "b": "u8", "c": "f32"},
        ),
    ],
    ids=["clusters", "persistent", "one-group-of-bytes"],
)
def test_warpgroups_give_the_reference(spec: dict[str, Any]) -> None:
    assert verified(spec, ("primes", "not-a-numbers and infinities", "k of 0")).passed


@pytest.mark.parametrize(
    "spec",
    [
        changed(WARPGROUPS, {"scaled": "weights"}),
        changed(
            WARPGROUPS,
            {"scaled": "weights", "persistent_blocks": 3, "group": 128, "tile": SIXTEEN},
            **ALONE,
            multiple_of={"k": 128},
        ),
        changed(
            WARPGROUPS,
            {
                **{"scaled": "weights", "bits": 8, "group": 64},
                "tile": {"threadblock": {"m": 8, "n": 128, "k": 128}, "warp": {"m": 8, "n": 32}},
            },
            **ALONE,
            multiple_of={"k": 64},
        ),
        SHORT_STAGES,
        changed(SHORT_STAGES, {"codes": "e4m3", "zeros": False}),
        changed(WARPGROUPS, {"codes": "e2m1", "zeros": False, "scaled": "weights"}, storage={"a": "f16", "b": "u8", "c": "f32"}),
        changed(WARPGROUPS, {"scaled": "weights", "bits": 8}, storage={"a": "f16", "b": "u8", "c": "f32"}),
        changed(WARPGROUPS, {"tile": THREE, "bits": 8}, decomposition={"scheme": "split_k_cluster", "slices": 3}),
        changed(WARPGROUPS, {"scaled": "weights", "tile": WIDE, "persistent_blocks": 2}, **ALONE),
        changed(WARPGROUPS, {"scaled": "weights"}, storage={"a": "f16", "b": "u8", "c": "f16"}),
        changed(
            WARPGROUPS,
            {"group": "column", "bits": 8},
            **ALONE,
            alignment={"a": 8, "c": 8},
            multiple_of={"k": 1},
            beta="argument",
            epilogue=[{"op": "bias", "per": "column"}],
        ),
    ],
    ids=[
        "slices",
        "persistent",
        "bytes",
        "stages-of-half-a-group",
        "8-bit-floats",
        "4-bit-floats-of-f16",
        "bytes-of-f16",
        "three-groups",
        "four-groups",
        "nibbles-of-f16",
        "16-bytes-at-a-time",
    ],
)
def test_weights_scaled_and_rounded_give_the_reference(spec: dict[str, Any]) -> None:
    """Weights are rounded to the type of A as the reference rounds them."""
    assert verified(spec, ("primes", "not-a-numbers and infinities", "k of 0")).passed


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        (changed(WARPGROUPS, {"scaled": "weights"}), "fragment[1] = scale_bf16(fragment[1], scale);", ""),
        (changed(WARPGROUPS, {}, **ALONE, alignment={"a": 8, "c": 8}), "words[i / 2] >> i % 2 * 16", "words[i / 2]"),
        (STREAMS, "kTileK / kGroup * ld_numbers", "0 * ld_numbers"),
        (STREAMS, "if (chunk_step == 0)\n            __syncthreads();", "if (chunk_step == 0)\n            __syncwarp();"),
        (STREAMS, "(chunk ^ 1) * kChunkBytes", "chunk * kChunkBytes"),
        (WARPGROUPS, "stage * kGroups + part) * kGroupNumbers + j", "stage * kGroups) * kGroupNumbers + j"),
        (SHORT_STAGES, "/ kGroupSteps + part", "+ part"),
        (WARPGROUPS, "= scale[part / kGroupParts][j / 2]", "= scale[0][j / 2]"),
        (STREAMS, "sender < kSenders", "sender < kSenders - 1"),
        (WARPGROUPS, "fragment[1] = lower[0];", "fragment[1] = upper[0];"),
    ],
    ids=[
        "unscaled",
        "an-odd-column",
        "scales",
        "a-missing-barrier",
        "another-chunk",
        "scales-of-another-group",
        "groups-of-longer-stages",
        "the-first-group's-scales",
        "a-missing-sender",
        "a-fragment",
    ],
)
def test_mistakes_of_streams_and_warpgroups_are_found(spec: dict[str, Any], right: str, wrong: str) -> None:
    assert not verified(spec, ("primes",), (right, wrong)).passed


@pytest.mark.parametrize(
    "spec",
    [
        changed(STREAMS, {"next_launch": "late"}, **LAST),
        changed(STREAMS, {"tile": {"threadblock": {"m": 2, "n": 96, "k": 256}, "warp": {"m": 2, "n": 32}}, "k_warps": 1}, **LAST),
        changed(WARPGROUPS, {}, **LAST),
    ],
    ids=["warps-along-k", "2-rows", "warpgroups"],
)
def test_the_last_block_of_a_tile_adds_up_slices(spec: dict[str, Any]) -> None:
    assert verified(spec, ("primes", "k in 5 slices", "k in 3 slices", "k of 0")).passed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("slice < slices", "slice < slices - 1"),
        ("+ blockIdx.x, slices)", "+ blockIdx.x, slices - 1)"),
        ("own[other * kPanels", "own[0 * kPanels"),
    ],
    ids=["a-missing-slice", "a-block-too-early", "a-warp-for-another"],
)
def test_mistakes_of_the_last_block_are_found(right: str, wrong: str) -> None:
    assert not verified(changed(STREAMS, {}, **LAST), ("k in 2 slices",), (right, wrong)).passed


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("nibbles_to_f16<3>(word, offset)", "nibbles_to_f16<1>(word, offset)"),
        ("* ld_zeros", "* 0"),
        ("lane % 4 * 2 + v, n", "lane % 4 * 2, n"),
    ],
    ids=["a-nibble", "another-zero-point", "another-scale"],
)
def test_mistakes_are_found(right: str, wrong: str) -> None:
    assert not verified(SPEC, ("primes",), (right, wrong)).passed


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (beside_bytes("s8", bits=8), "mainloop.bits"),
        (beside_bytes("s8", codes="e2m1", zeros=False), "mainloop.codes"),
        (beside_bytes("e4m3", codes="e2m1"), "mainloop.zeros"),
        (with_loop(codes="e4m3", zeros=False), "mainloop.codes"),
        (changed(STREAMS, {"codes": "e2m1", "zeros": False, "scaled": "weights"}), "mainloop.scaled"),
        ({**beside_bytes("e4m3"), "architecture": "sm_80"}, "storage.a"),
        ({**beside_bytes("s8"), "alignment": {"a": 2}}, "alignment.a"),
        (with_loop(scale_type="f32"), "mainloop.scale_type"),
        (changed(STREAMS, {}, storage={"a": "s8", "b": "u8", "c": "bf16"}), "mainloop.method"),
        ({**SPEC, "storage": {"a": "f32", "b": "u8", "c": "f32"}}, "storage.a"),
        ({**SPEC, "storage": {"a": "f16", "b": "s8", "c": "f32"}}, "storage.b"),
        ({**SPEC, "transpose": "tn"}, "transpose"),
        ({**SPEC, "alignment": {"a": 1}}, "alignment.a"),
        ({**SPEC, "batch": "strided"}, "batch"),
        ({**SPEC, "store": "through_shared"}, "store"),
        ({**SPEC, "multiple_of": {"k": 16}}, "multiple_of.k"),
        ({**SPEC, "decomposition": {"scheme": "stream_k", "blocks": 4}}, "decomposition.scheme"),
        ({**SPEC, "scales": {"a": {"lines": 1}}}, "scales.a"),
        (with_loop(tile={"threadblock": {"m": 16, "n": 32, "k": 32}, "warp": {"m": 16, "n": 32}}), "mainloop.tile.threadblock.k"),
        (with_loop(tile={"threadblock": {"m": 16, "n": 32, "k": 64}, "warp": {"m": 16, "n": 16}}), "mainloop.tile.warp"),
        (with_loop(k_warps=2), "mainloop.k_warps"),
        (with_loop(persistent_blocks=2), "mainloop.persistent_blocks"),
        (changed(STREAMS, {}, architecture="sm_80", early_launch=False, constant=[]), "decomposition.scheme"),
        (changed(STREAMS, {"tile": {"threadblock": {"m": 32, "n": 64, "k": 512}, "warp": {"m": 32, "n": 32}}}), "mainloop.tile.warp"),
        (
            changed(STREAMS, {"tile": {"threadblock": {"m": 8, "n": 64, "k": 384}, "warp": {"m": 8, "n": 32}}}),
            "mainloop.tile.threadblock.k",
        ),
        (changed(STREAMS, {}, decomposition={"scheme": "split_k_cluster", "slices": 3}), "mainloop.tile.threadblock.n"),
        (changed(STREAMS, {}, alignment={"a": 8, "c": 1}), "alignment.c"),
        (changed(STREAMS, {}, constant=["a"]), "constant"),
        (changed(WARPGROUPS, {}, architecture="sm_90"), "mainloop.method"),
        (changed(WARPGROUPS, {}, alignment={"a": 4, "c": 2}), "alignment"),
        (changed(WARPGROUPS, {"k_warps": 2}), "mainloop.k_warps"),
        (changed(WARPGROUPS, {"tile": {"threadblock": {"m": 16, "n": 96, "k": 128}, "warp": {"m": 16, "n": 16}}}), "mainloop.tile.warp"),
        (changed(WARPGROUPS, {"persistent_blocks": 132}), "mainloop.persistent_blocks"),
        (changed(WARPGROUPS, {"tile": SHORT}), "mainloop.tile"),
        (changed(STREAMS, {"scaled": "weights"}), "mainloop.scaled"),
        ({**SPEC, **LAST}, "decomposition.scheme"),
        (changed(WARPGROUPS, {"scaled": "weights", "group": "column"}), "mainloop.scaled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_specs_that_cannot_work_say_why(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError) as error:
        gemmgen.plan(spec)
    assert field in [reason.field for reason in error.value.reasons]


@pytest.mark.parametrize(
    "word", ["w4g128z", "w8", "w4g32", "s8_s8_bf16,w4g128z", "s8_s8_f32,w4", "e4m3_e4m3_f16,e2m1w4g32", "f16_f16_f16,e4m3w8"]
)
@pytest.mark.parametrize("rows", [1, 200])
def test_problems_name_packed_weights(word: str, rows: int) -> None:
    """A problem's text gives the request that gives the text, and a kernel for it."""
    text = f"gemm:{rows},4096,4096,bf16,{word}" if "_" not in word else f"gemm:{rows},4096,4096,{word}"
    word = word.split(",")[-1]
    assert word in read_problem(text).request.text.split(",")
    plan = gemmgen.for_problem(text, device="H200")
    assert (
        plan.spec.mainloop.strategy == "narrow_weights"
        and word.rstrip("z").replace("w4", "w4col" if "g" not in word else "w4").replace("w8", "w8col") in plan.name
    )


BESIDE_BYTES = [
    f"gemm:16,64,128,{words}" for words in ("s8,w4", "s8_s8_bf16,w8", "s8_s8_bf16,e2m1w4", "bf16,e2m1w8", "e4m3_e4m3_bf16,e2m1w4z")
]


@pytest.mark.parametrize("text", ["gemm:16,64,128,f32,w4", "gemm:16,64,128,bf16,w4,batch=2", "gemm:16,64,100,bf16,w4g32", *BESIDE_BYTES])
def test_problems_that_no_weights_serve_are_refused(text: str) -> None:
    with pytest.raises((SpecError, LaunchError)):
        gemmgen.for_problem(text, device="H200")


@pytest.mark.parametrize("method", [SPEC, STREAMS, WARPGROUPS], ids=["tiles", "streams", "warpgroups"])
@pytest.mark.parametrize("type", ["f16", "bf16"])
@pytest.mark.parametrize(("codes", "bits"), [("e2m1", 4), ("e4m3", 8)])
def test_weights_of_floats_give_the_reference(method: dict[str, Any], type: str, codes: str, bits: int) -> None:
    """Every code, those of NaN among them; infinities in scales."""
    spec = changed(method, {"zeros": False, "codes": codes, "bits": bits, "stages": 3}, storage={"a": type, "b": "u8", "c": type})
    assert verified({**spec, "alignment": {"a": 8, "c": 2}}, ("primes", "not-a-numbers and infinities")).passed


@pytest.mark.parametrize(
    ("type", "codes", "right", "wrong"),
    [
        ("f16", "e2m1", "(codes & 0x00070007u) << 9", "(codes & 0x00030003u) << 9"),
        ("bf16", "e2m1", "0x7e807e80u", "0x7f007f00u"),
        ("f16", "e4m3", "0x9180 : 0xb3a2", "0x9180 : 0x9180"),
        ("bf16", "e4m3", "<< 4 & 0x87f087f0u", "<< 5 & 0x87f087f0u"),
    ],
    ids=["a-bit", "a-unit", "a-byte", "an-exponent"],
)
def test_mistakes_of_floats_are_found(type: str, codes: str, right: str, wrong: str) -> None:
    spec = with_loop(zeros=False, codes=codes, bits=4 if codes == "e2m1" else 8)
    assert not verified({**spec, "storage": {"a": type, "b": "u8", "c": "f32"}}, ("primes",), (right, wrong)).passed


def test_floats_are_explained_as_floats() -> None:
    plan = gemmgen.plan(with_loop(zeros=False, codes="e2m1"))
    assert isinstance(plan, GemmPlan)
    text = " ".join(line for section in explain(plan) for _, line in section.lines)
    assert "scale times code, a float of 4 bits, e2m1" in text and "code - zero" not in text


def test_turing_has_no_such_kernels() -> None:
    with pytest.raises(PlanError, match="sm_80 or newer"):
        gemmgen.plan({**SPEC, "architecture": "sm_75"})


@pytest.mark.parametrize("spec", [SPEC, STREAMS, WARPGROUPS], ids=["mma_sync", "streams", "warpgroups"])
def test_formulas_with_sums_and_alpha_of_0(spec: dict[str, Any]) -> None:
    """Kernels behind the product add up a formula's sums; with alpha = 0 an infinite scale of a column is not read."""
    outputs = {"value": "relu(acc)", "added": {"reduce": "sum", "per": "column", "of": "acc"}, "reach": {"reduce": "absmax", "of": "acc"}}
    spec = changed(spec, {"group": "column"}, alpha="argument", epilogue={"outputs": outputs})
    assert verified(spec, ("primes", "alpha of 0")).passed
