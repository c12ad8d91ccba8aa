"""Problems that no kernel serves, and texts that are no problem: one message each, which says the reason and what comes nearest."""

import re

import pytest

HOSTILE = {
    "gemm:64,64": r"gemm needs 3 numbers \(m, n, k\), for example gemm:",
    "gemm:64,64,64,64": r"gemm needs 3 numbers \(m, n, k\), got 4",
    "gemm:-1,64,64": r"gemm needs 3 numbers",
    "gemm:0,64,64": r"its result has no element",
    "gemm:99999999999999999999,64,64": r"no device has memory for it",
    "gemm:64,64,64,batch=0": r"has batch '0', need a number from 1 to 65535",
    "gemm:64,64,64,bf16,int8": r"one word for types \(.* such as f16_f16_f32\), got bf16 and s8",
    "gemm:64,64,64,fp64": r"no kernel of this kind computes with that type; nearest: f32",
    "gemm:64,64,64,int4": r"only weights, .* are of 4 bits: gemm:.*w4g128",
    "gemm:64,64,64,softmax": r"softmax needs a whole row of the result; nearest: reduction:ROWS,COLUMNS,1,logsumexp",
    "gemm:64,64,64,gulu": r"no option 'gulu' \(did you mean g[el]",
    "grouped:64,64,64": r"grouped needs the number of groups, for example grouped:",
    "grouped:64,64,groups=4": r"grouped needs 3 numbers",
    "grouped:64,64,64,groups=0": r"has groups '0', need a number from 1 to 65535",
    "grouped:64,64,64,groups=4,groups=5": r"one batch, got groups=4 and groups=5",
    "grouped:64,64,64,groups=4,batch=2": r"one batch, got groups=4 and batch=2",
    "grouped:64,64,64,groups=4,fp4": r"no kernel reads that type; nearest: e4m3",
    "grouped:64,64,64,groups=4,dropout": r"no kernel draws random numbers",
    "grouped:64,64,64,groups=4,layernorm": r"a norm needs a whole row of the result; nearest",
    "grouped:0,64,64,groups=4": r"its result has no element",
    "grouped:64,64,64,groups=4,relu,swiglu": r"swiglu multiplies two products: it comes before other operations",
    "conv2d:1,32,8,8,32,3,3": r"conv2d needs 9 numbers",
    "conv2d:1,31,8,8,32,3,3,1,1": r"c is 31, need a multiple of 32: gemmgen.layouts.nchw_to_nchw32",
    "conv2d:1,32,8,8,32,9,9,1,0": r"its result has no element",
    "conv2d:1,32,8,8,32,3,3,0,1": r"stride_h 0, need at least 1",
    "conv2d:1,32,8,8,32,3,3,1,1,swiglu": r"a gated activation multiplies two products, which gemm and grouped alone have",
    "conv2d:1,32,8,8,32,3,3,1,1,groups=5": r"need a multiple of 160 with 5 groups",
    "conv2d:1,32,8,8,32,3,3,1,1,depthwise": r"nearest: groups=N, with at least 32 channels in a group",
    "conv2d:1,32,8,8,32,3,3,1,1,transposed": r"no kernel computes a transposed convolution",
    "conv2d:1,32,8,8,32,3,3,1,1,fft": r"implicit GEMM",
    "conv2d:1,32,8,8,32,3,3,1,1,relu,h_swish": r"one activation, got relu and h_swish",
    "reduction:64": r"reduction needs 3 numbers \(outer, reduced, inner\)",
    "reduction:64,1e3,1": r"reduction needs 3 numbers",
    "reduction:64,64,1,median": r"no kernel orders elements; nearest: max",
    "reduction:64,64,1,topk": r"no kernel orders elements",
    "reduction:64,64,1,cumsum": r"no kernel keeps partial results along an axis; nearest",
    "reduction:64,64,1,argmax,argmin": r"one operation, got argmax and argmin",
    "reduction:64,64,1,layernorm": r"nearest: reduction:ROWS,COLUMNS,1,mean_variance",
    "reduction:64,64,1,std": r"mean_variance",
    "reduction:64,64,1,fp4": r"no kernel reads that type",
    "reduction:64,64,1,agrmax": r"did you mean argmax",
    "elementwise:64": r"elementwise needs 4 numbers \(d0, d1, d2, d3\)",
    "elementwise:1,1,1,1,1,64": r"elementwise needs 4 numbers \(d0, d1, d2, d3\), got 6",
    "elementwise:1,1,64,-4": r"elementwise needs 4 numbers",
    "elementwise:1,1,64,64,swiglu": r"a gated activation multiplies two products",
    "elementwise:1,1,64,64,dropout": r"no kernel draws random numbers",
    "elementwise:1,1,64,64,softmax": r"softmax needs a whole row",
    "elementwise:1,1,64,64,rleu": r"did you mean relu",
    "elementwise:1,1,64,64,batch=3": r"no option 'batch=3': need abs",
    "elementwise:1,1,64,64,complex64": r"no kernel computes complex numbers; nearest: f32",
    "elementwise:1,1,64,64,cumsum": r"no kernel keeps partial results along an axis",
    "cpu:64,64": r"cpu needs 3 numbers",
    "cpu:64,64,64,bf16": r"they multiply matrices of float32, .*; nearest: gemm:64,64,64,bf16 on a GPU",
    "cpu:64,64,64,int8": r"nearest: gemm:64,64,64,int8 on a GPU",
    "cpu:64,64,64,swiglu": r"one product in a launch",
    "cpu:64,64,64,groups=2": r"without groups",
    "cpu:0,64,64": r"its result has no element",
    "cpu:64,64,64,fp64": r"no kernel of this kind computes with that type",
    "cpu:64,64,64,nn,nt": r"one transposition, got nn and nt",
    "cpu:64,64,64,sparse": r"no kernel skips zeros but those of ops.compress_2_4, which no problem names; nearest: the dense product",
    "cpu:99999999999,64,64": r"no device has memory for it",
    "matmul:64,64,64": r"need one of gemm:.* \(did you mean gemm\?\)",
    "conv:64": r"did you mean conv2d",
    "attention:64,64": r"no kernel fuses the two products of attention; nearest",
    "": r"it starts with ''",
    "gemm:" + "9" * 5000: r"it has more than 4096 characters",
    "\x00gemm:64,64,64": r"did you mean gemm",
}
"""Texts, ten of each kind at least, and what the message says."""


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text)[1:60])
def test_a_problem_that_nothing_serves_ends_in_one_message(text, run):
    shown = run("explain", "--problem", text, code=2)
    message = " ".join(shown.err.split())
    assert shown.out == "" and message.startswith("Error: ") and len(message) < 1500
    assert re.search(HOSTILE[text], message), message
