"""Requests, the kernels that fit them, and the choice."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gemmgen.api import verify
from gemmgen.cli import cli
from gemmgen.core.errors import SpecError
from gemmgen.dispatch.candidates import candidates
from gemmgen.dispatch.matcher import matcher_of
from gemmgen.dispatch.model import PARAMETERS
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import base_name, choose, choose_by, fitted, table_name
from gemmgen.dispatch.table import Row, Table, load_table, table_for
from gemmgen.hardware.target import architecture, device
from gemmgen.kernels import GPU_KINDS
from gemmgen.kernels.gemm import oracle
from gemmgen.kernels.gemm.request import alignment_elements
from gemmgen.kernels.requests import Layout, merged
from gemmgen.ops.operators import operator_called

H200 = device("H200")


@pytest.fixture(autouse=True)
def no_table(monkeypatch):
    """Choices by the model alone, whatever tables there are."""
    monkeypatch.setattr("gemmgen.dispatch.selection.table_for", lambda device: None)


@pytest.mark.parametrize("kind", GPU_KINDS)
@pytest.mark.parametrize("fine", [False, True])
def test_problems_of_the_grids_are_read_and_written_alike(kind, fine):
    for text in matcher_of(kind).problem_grid(fine):
        request = parse_problem(f"{kind}:{text}")
        assert parse_problem(f"{kind}:{request.text}").text == request.text


@pytest.mark.parametrize(
    ("words", "result"),
    [("s8", "s32"), ("u8", "s32"), ("s8,bias,gelu", "f32"), ("s8_s8_s32", "s32"), ("e5m2,bias", "bf16"), ("f16,residual", "f16")],
)
def test_a_result_left_open_has_the_type_that_a_call_gives_it(words, result):
    assert parse_problem(f"gemm:8,8,8,{words}").c.type == result


def test_tf32_is_multiplied_on_tensor_cores_from_ampere_on():
    for name in ("A100", "L40S", "H100", "H200"):
        chosen = choose(parse_problem("gemm:4096,4096,4096,nt,tf32"), device(name)).chosen
        assert chosen.plan.spec.storage.a == "tf32", name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gemm",
        "gemm:1,2,3,f16_f16_u16",
        "gemm:1,2,3,s32",
        "gemm:1,2,3,f16_f16",
        "gemm:1,2",
        "gemm:1,2,x",
        "gemm:-1,2,3",
        "gemm:1,2,3,zz",
        "gemm:1,2,3,batch=0",
        "gemm:9999999999,1,1",
        "sort:5",
        "reduction:1,5,1,median",
        "conv2d:1,3,5,5,32,3,3,1,1",
        "conv2d:1,32,5,5,32,3,3,1,1,groups=x",
        "gemm:１,2,3",
    ],
)
def test_what_is_no_problem_is_refused_in_words(text):
    with pytest.raises(Exception) as caught:
        parse_problem(text)
    assert type(caught.value).__name__ in ("SpecError", "LaunchError")
    assert len(str(caught.value)) > 20


def test_a_promise_that_the_arrays_do_not_keep_is_not_made():
    for text in ("gemm:1001,1003,1005", "gemm:1024,1024,1024,unaligned", "gemm:17,4096,4097,nt"):
        request = parse_problem(text)
        for option in choose(request, H200).options:
            assert all(constraint.condition.evaluate(option.dimensions) for constraint in option.plan.sequence.constraints)
            for array in option.plan.sequence.arrays:
                if array.role != "workspace":
                    assert option.fit.arrays[array.name][1].alignment % array.alignment == 0


def decode_of_sixteen(problem):
    (candidate,) = (one for one in candidates("gemm") if one.label == "gemm/wgmma/bf16_decode/16")
    return fitted(candidate, parse_problem(problem), H200.architecture)


@pytest.mark.parametrize("rows", [2, 8, 16])
def test_few_rows_stored_across_k_are_copied_first(rows):
    fit, plan, _ = decode_of_sixteen(f"gemm:{rows},136,72,tn,bf16")
    assert [factor.matrix.name for factor in plan.copied.factors] == ["B"]
    if rows == 8:
        assert verify(fit.spec, "emulator", H200.architecture, oracle.cases(plan)[:6]).passed


def test_many_rows_stored_across_k_are_not_copied():
    assert "64 columns of a tile of B" in decode_of_sixteen("gemm:512,640,256,tn,bf16")


def test_the_least_estimate_is_taken():
    for text in ("gemm:4096,4096,4096,nt", "gemm:1024,1024,1024", "reduction:4096,1024,1,argmax"):
        choice = choose(parse_problem(text), H200)
        assert choice.chosen.seconds <= 1.01 * min(option.seconds for option in choice.options)


def test_what_no_instance_has_is_derived_and_said():
    choice = choose(parse_problem("reduction:64,64,1,product,int8"), H200)
    assert {"operation", "input"} <= set(choice.chosen.fit.derived)
    assert not choice.chosen.certified


def test_every_candidate_is_either_option_or_rejected():
    choice = choose(parse_problem("conv2d:16,256,14,14,256,3,3,1,1"), H200)
    assert all(choice.rejected.values())
    assert len(choice.options) + len(choice.rejected) <= len(candidates("conv2d"))
    assert {option.candidate.label for option in choice.options} | choice.rejected.keys() <= {c.label for c in candidates("conv2d")}


def test_a_kernel_for_one_chip_only_is_not_taken_elsewhere():
    for name in ("T4", "A100"):
        chip = device(name)
        for option in choose(parse_problem("gemm:512,512,512"), chip).options:
            assert chip.architecture.runs_cubins_of(option.plan.architecture)


def test_a_column_major_result_is_the_transposed_product():
    plain = parse_problem("gemm:64,96,32")
    columns = (
        operator_called("matmul")
        .interpret(
            {"a": Layout((64, 32), (32, 1), "f32"), "b": Layout((32, 96), (96, 1), "f32"), "out": Layout((64, 96), (1, 64), "f32")}, {}
        )
        .request
    )
    assert columns.sizes == (96, 64, 32)
    assert columns.traits[0] == "tt"
    assert plain.traits[0] == ""
    options = [fitted(candidate, columns, architecture("sm_90")) for candidate in candidates("gemm")]
    assert any(not isinstance(option, str) for option in options)


@pytest.mark.parametrize(
    ("shape", "strides", "alignment", "elements"),
    [
        ((8, 8), (8, 1), 16, 4),
        ((8, 8), (10, 1), 16, 2),
        ((8, 8), (9, 1), 16, 1),
        ((1, 8), (9, 1), 16, 4),
        ((8, 8), (8, 1), 8, 2),
        ((3, 8, 8), (65, 8, 1), 16, 1),
        ((3, 8, 8), (0, 8, 1), 16, 4),
        ((0, 8), (9, 1), 4, 4),
    ],
)
def test_leading_dimension_batch_stride_and_address_limit_access(shape, strides, alignment, elements):
    assert alignment_elements(8, Layout(shape, strides, "f32", alignment), row_major=True) == elements


@pytest.mark.parametrize(
    ("extents", "strides", "expected"),
    [
        ((), (), (1, 0)),
        ((4,), (3,), (4, 3)),
        ((2, 3), (3, 1), (6, 1)),
        ((2, 3), (4, 1), None),
        ((2, 1, 3), (3, 99, 1), (6, 1)),
        ((0, 3), (7, 5), (0, 0)),
        ((2, 3), (0, 0), (6, 0)),
    ],
)
def test_axes_that_a_single_stride_walks_through_are_one(extents, strides, expected):
    assert merged(extents, strides) == expected


def test_a_table_that_cannot_be_read_says_so(tmp_path, monkeypatch):
    load_table.cache_clear()
    path = tmp_path / "x.json"
    path.write_text("{")
    monkeypatch.setattr("gemmgen.dispatch.table.table_paths", lambda name: [path])
    with pytest.raises(SpecError, match="is no JSON"):
        load_table("x")
    load_table.cache_clear()


@pytest.mark.parametrize("kind", GPU_KINDS)
def test_names_in_the_manifest_are_those_of_the_plans(kind):
    others = ("sm_100a", "sm_120a")  # architectures whose kernels have no plan for an H200
    built = [candidate for candidate in candidates(kind) if candidate.name and candidate.spec.architecture not in others][::7]
    assert len(built) > 1 or kind in ("quantise", "rows"), "no instance of the library"
    assert [candidate.name for candidate in built] == [base_name(candidate.spec, H200.architecture) for candidate in built]


def test_a_candidate_that_the_library_lacks_is_named_by_its_plan():
    candidate = replace(candidates("reduction")[0], name="")
    assert table_name(candidate, H200.architecture) == base_name(candidate.spec, H200.architecture)


@pytest.mark.parametrize(("digest", "asked"), [(PARAMETERS.digest, []), ("another", ["a", "b"])])
def test_a_current_table_is_not_modelled_again(digest, asked):
    table = Table("H200", (Row("64,64,64", "gemm", {"a": 2.0, "b": 3.0}, {"a": 1.0}),), {"model": digest})
    models = []
    near = table.near(parse_problem("gemm:128,64,64"))
    seconds, _ = table.estimate(near, "a", 1e-6, lambda row, name: models.append(name) or 1e-6)
    assert models == asked
    assert seconds > 1e-6


def test_problems_of_a_shipped_table_are_read_when_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    row = {"problem": "no problem", "kind": "gemm", "times": {}}
    path.write_text(json.dumps({"schema_version": 1, "device": "x", "problems": [row]}))
    monkeypatch.setattr("gemmgen.dispatch.table.table_paths", lambda name: [tmp_path / "none.json", path])
    load_table.cache_clear()
    found = load_table("x")
    load_table.cache_clear()
    with pytest.raises(SpecError, match="is not a valid problem"):
        found.near(parse_problem("gemm:64,64,64"))


def test_of_equal_instances_the_more_specialised_is_taken():
    choice = choose(parse_problem("conv2d:16,256,56,56,128,1,1,2,0"), device("A100"))
    arguments = {option.candidate.label: len(option.plan.sequence.launches[0].arguments) for option in choice.options}
    equal = [option for option in choice.options if f"{option.seconds:.3g}" == f"{choice.chosen.seconds:.3g}"]
    assert len(equal) > 1
    assert len(set(arguments[option.candidate.label] for option in equal)) > 1
    assert arguments[choice.chosen.candidate.label] == min(arguments[option.candidate.label] for option in equal)


def explained(problem, *options):
    result = CliRunner().invoke(cli, ["explain", "--problem", problem, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_times_of_runners_up_have_the_unit_that_suits_them():
    assert " s " in explained("gemm:100000,100000,100000")
    assert " µs " in explained("gemm:64,64,64")
    assert "0.00 ns" not in explained("gemm:1,1,1")


def test_waves_are_those_of_the_product():
    # The kernel that splits its factors has 128 blocks, 6 at a time; two slices of k make 128 of the product, which fill an SM each.
    told = explained("gemm:128,4096,4096,nt", "--device", "H200")
    assert "bf16x6_decode/128" in told
    assert "128 blocks, 1 at a time on each of 132 SMs" in told


@pytest.mark.parametrize("problem", ["gemm:64,64,0", "conv2d:1,64,8,8,64,1,1,1,0", "reduction:1,0,1"])
def test_a_zero_that_leaves_something_to_compute_is_no_hindrance(problem):
    assert "takes " in explained(problem)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("gemm:0,64,64", "the result is empty"),
        ("reduction:0,4,4", "the result is empty"),
        ("conv2d:1,64,2,2,64,3,3,1,0", "the result is empty"),
        (
            "gemm:64,64,64,f16,bf16",
            "a problem has one word for types (those of A, B and C together are one, such as f16_f16_f32), got f16 and bf16",
        ),
        ("gemm:64,64,64,nn,nt", "one transposition, got nn and nt"),
        ("reduction:8,8,8,sum,max", "one operation, got sum and max"),
        ("reduction:8,8,8,aligned,unaligned", "one alignment"),
        ("conv2d:1,64,8,8,64,1,1,1,0,s8,s32", "one output, got s8 and s32"),
    ],
)
def test_a_problem_that_cannot_be_is_told(problem, message):
    result = CliRunner().invoke(cli, ["explain", "--problem", problem])
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_row_without_residual_decides_nothing_with_one():
    table = Table("H200", (Row("128,4096,4096,nt,bf16", "gemm", {"a": 13.4}),))
    plain, gelu, added = (parse_problem(f"gemm:128,4096,4096,nt,bf16{words}") for words in ("", ",bias,gelu", ",residual"))
    assert [table.estimate(table.near(one), "a", 1e-5, lambda row, name: 1e-5)[1] for one in (plain, gelu)] == ["measured"] * 2
    seconds, source = table.estimate(table.near(added), "a", 3e-5, lambda row, name: 1e-5)
    assert source == "interpolated"
    assert seconds > 2.5e-5  # the residual's time by the model


def test_a_table_of_the_same_architecture_corrects_the_model(monkeypatch):
    load_table.cache_clear()
    h100 = device("H100")
    borrowed, own = table_for(h100), load_table("H200")
    assert (borrowed.borrowed, own.borrowed, borrowed.device) == (True, False, "H200")
    assert table_for(device("T4")) is None
    request = own.rows[0].request
    plain, timed = choose_by(None, request, h100), choose_by(borrowed, request, h100)
    assert {option.source for option in plain.options} == {"model"}
    assert "interpolated" in {option.source for option in timed.options}
    assert "measured" not in {option.source for option in timed.options}
    assert "measured" in {option.source for option in choose_by(own, request, H200).options}


def test_a_borrowed_row_for_the_problem_itself_decides():
    h100, row = device("H100"), load_table("H200").rows[0]
    plain = {option.plan.name: option.seconds for option in choose_by(None, row.request, h100).options}
    held = 0
    for option in choose_by(table_for(h100), row.request, h100).options:
        name = table_name(option.candidate, h100.architecture)
        if name in row.times and name in row.models:
            held += 1
            assert option.source == "interpolated"
            assert option.seconds == pytest.approx(plain[option.plan.name] * row.times[name] / row.models[name], rel=1e-6)
    assert held > 1


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        ("conv2d:64,704,18,18,704,7,7,2,3,f16,groups=704", "depthwise_f16_4x4x2"),
        ("conv2d:64,64,76,79,608,3,3,1,1,f16", "wgmma_f16_128x256x64"),
        ("conv2d:32,256,56,56,256,3,3,1,1,f16", "wgmma_f16_128x256x64"),
        ("conv2d:32,224,28,28,224,3,3,1,1,f16,groups=4", "grouped_f16_3x28x112"),
        ("conv2d:64,512,14,14,512,3,3,1,1,f16,groups=32", "grouped_f16_7x14x64"),
    ],
)
def test_convolutions_choose_the_tiles_that_were_faster(problem: str, name: str) -> None:
    assert choose(parse_problem(problem), H200).chosen.plan.name.startswith(f"conv2d_{name}")
