"""``--problem``: the kernel that operations would launch, taken through every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

FUSED = "gemm:512,256,128,nt,bf16,silu"


@pytest.mark.parametrize(
    "problem",
    [
        "gemm:m=17,n=33,k=65,float16,tn,bias,relu",
        "gemm:64,64,64,int8,nt,batch=2",
        "grouped:128,64,64,bfloat16,groups=4",
        "conv2d:2,32,8,8,32,3,3,1,1,relu",
        "conv2d:1,32,8,8,64,1,1,1,0,f16",
        "conv2d:1,32,8,8,64,1,1,1,0,bf16,bias",
        "conv2d:1,32,8,8,32,1,1,1,0,f16,of_s8",
        "reduction:16,100,1,max,half",
        "elementwise:1,1,64,100,silu,square",
        "elementwise:1,1,1,64,bfloat16,square",
    ],
)
def test_the_spec_of_a_problem_renders_to_the_same_bytes(run: Run, problem: str) -> None:
    told = run("render", "--problem", problem, "--device", "H200", "--spec", "chosen.yaml", "-o", "one").err
    run("render", "chosen.yaml", "-o", "other")
    (one,), (other,) = Path("one").iterdir(), Path("other").iterdir()
    assert one.name == other.name and one.read_text() == other.read_text()
    assert f"{problem} on the H200: chosen " in told


def test_the_choice_is_the_one_that_explain_gives(run: Run) -> None:
    explained = run("explain", "--problem", FUSED, "--device", "H100", "--json").json
    told = run("render", "--problem", FUSED, "--device", "H100", "-o", "out").err
    assert [file.stem for file in Path("out").iterdir()] == [explained["chosen"]["name"]]
    assert all(other["spec"] in told for other in explained["runners_up"][:3])


def test_commands_take_a_problem(run: Run) -> None:
    device = ("--device", "A100")
    assert "sm_80" in run("compile", "--problem", "gemm:64,64,64,half", *device).out
    assert "verified" in run("verify", "--problem", "reduction:3,5,1,max", *device).out
    assert "m=96" in run("analyze", "--problem", "gemm:96,64,64,half", *device, "--no-traffic").out
    assert "tiles" in run("draw", "--problem", FUSED, *device).out
    assert run("export", "--problem", "elementwise:1,1,1,4096,silu", *device, "--format", "python").out.startswith("# SPDX")
    assert "mainloop" in run("diff", "--problem", "gemm:64,64,64", "gemm/v0_naive", "--device", "A100", "--no-source").out
    run("view", "--problem", "elementwise:1,1,1,64,abs", *device, "-o", "page.html")
    assert "Missing argument 'SPEC...'" in run("render", code=2).err
    assert "--spec goes with --problem" in run("render", "gemm/v0_naive", "--spec", "x.yaml", code=2).err


def test_explain_takes_a_problem_of_a_processor(run: Run) -> None:
    assert "Micro-kernel" in run("explain", "--problem", "cpu:64,64,64").out
    assert run("explain", "--problem", "cpu:64,64,64", "--json").json["name"].startswith("cpu_sgemm")
    assert "without --device" in run("explain", "--problem", "cpu:64,64,64", "--device", "H200", code=2).err
    assert "diff compares kernels of GPUs" in run("diff", "--problem", "cpu:64,64,64", "gemm/v0_naive", code=2).err


def test_a_bench_takes_the_sizes_of_its_problem(run: Run) -> None:
    assert "missing option '--size'" in run("bench", "gemm/v0_naive", code=2).err


def test_words_that_no_kernel_serves_are_told_from_misspelt_ones(run: Run) -> None:
    assert "silu(acc) * acc2" in run("render", "--problem", "gemm:64,64,64,swiglu").out
    assert "4-bit types are supported for weights only" in run("render", "--problem", "gemm:64,64,64,int4", code=2).err
    assert "did you mean silu?" in run("render", "--problem", "gemm:64,64,64,sillu", code=2).err
    assert "did you mean" not in run("render", "--problem", "gemm:64,64,64,xyz", code=2).err
    assert "did you mean square?" in run("render", "--problem", "elementwise:1,1,1,8,sqare", code=2).err


def test_a_problem_that_no_kernel_serves_names_the_nearest(run: Run) -> None:
    error = run("render", "--problem", "gemm:128,64,64,nt,fp8", "--device", "T4", code=2).err
    assert "The T4 (sm_75) does not support it: served on " in error and "H200" in error
    assert "Nearest that is served: gemm:128,64,64,nt,bf16 (bf16 for fp8)" in error


def test_unknown_devices_list_the_known_ones(run: Run) -> None:
    error = run("render", "--problem", FUSED, "--device", "H2000", code=2).err
    assert "did you mean H200?" in error and "RTX 3090" in error and "arch=sm_86" in error
    described = "name=A10,arch=sm_86,sms=72,mhz=1695,l2=6,fp32=31.2,int8=250,memory=600"
    assert "on the A10: chosen" in run("render", "--problem", FUSED, "--device", described, "-o", "out").err
    assert "lacks the field 'sms'" in run("render", "--problem", FUSED, "--device", "name=A10,arch=sm_86", code=2).err
    broken = described.replace("sms=72", "sms=many")
    assert "sms is 'many'" in run("render", "--problem", FUSED, "--device", broken, code=2).err


@pytest.mark.parametrize(
    "text", ["gemm:", "gemm:1", "grouped:1,2,3", "gemm:1,2,x", "gemm:m=1,n=2", "gemm:m=1,m=2,n=3,k=4", "nope:1", "g" * 9999]
)
def test_what_is_no_problem_is_refused_in_one_message(run: Run, text: str) -> None:
    assert "is not a valid problem" in run("render", "--problem", text, code=2).err


def test_a_spec_may_leave_the_mainloop_to_the_choice(run: Run) -> None:
    Path("auto.yaml").write_text(f"kind: gemm\nmainloop: auto\nproblem: {FUSED[5:]}\nlabel: mine\n")
    Path("wrong.yaml").write_text("kind: gemm\nmainloop: auto\n")
    run("render", "auto.yaml", "-o", "one")
    run("render", "--problem", FUSED, "--device", "H200", "-o", "other")
    (one,), (other,) = Path("one").iterdir(), Path("other").iterdir()
    same = [text.read_text().partition("constexpr")[2].replace(text.stem, "NAME") for text in (one, other)]
    assert one.stem.startswith("mine") and same[0] == same[1]
    assert "wrong.yaml: not a valid spec with mainloop: auto" in run("render", "wrong.yaml", code=2).err
    assert run("check", "auto.yaml").out.startswith("accepted")
