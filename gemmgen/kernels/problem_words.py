"""Words of problems: other names of types, words that no kernel serves yet, and the message about a word that no family knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from gemmgen.core.elements import BY_WORD
from gemmgen.core.errors import SpecError
from gemmgen.core.text import printable

ALIASES: dict[str, str] = {
    **{word: name for word, name in BY_WORD.items() if word != "bool"},
    "float": "f32",
    "fp32": "f32",
    "single": "f32",
    "double": "f64",
    "fp64": "f64",
    "half": "f16",
    "fp16": "f16",
    "bfloat": "bf16",
    "fp8": "e4m3",
    "float8": "e4m3",
    "e4m3fn": "e4m3",
    "float8_e4m3": "e4m3",
    "fp8_e4m3": "e4m3",
    "fp8_e5m2": "e5m2",
    "i8": "s8",
    "i32": "s32",
    "i64": "s64",
}
"""Names of element types that people use, and those of problems."""
_ALIAS = re.compile(rf"(?<![a-z0-9])({'|'.join(sorted(ALIASES, key=len, reverse=True))})(?![a-z0-9])")

UNSERVED: tuple[tuple[str, str], ...] = (
    (
        r"(swi|ge|re|si)?glu(_tanh)?",
        "gated activations multiply two products; only gemm and grouped have them: swiglu, geglu, geglu_tanh, reglu, glu",
    ),
    (r"softmax|logsoftmax", "softmax is a separate kernel over whole rows: use rows:ROWS,COLUMNS,softmax or log_softmax"),
    (
        r"(layer|rms|group|batch)_?norm",
        "a norm is a separate kernel over whole rows: use rows:ROWS,COLUMNS,layer_norm or rms_norm",
    ),
    (r"(flash_?)?attention|attn|sdpa", "no kernel fuses the two products of attention; nearest: gemm:...,batch=N for each of them"),
    (
        r"[iuw]?int4|[su]4|w4a16|w8a16|awq|gptq",
        "4-bit types are supported for weights only (B of a product in bf16 or f16): gemm:...,bf16,nt,w4g128 or w8g128 (docs/formats.md)",
    ),
    (
        r"(nv|mx)?fp4|mxfp[48]|nvfp4|e2m1",
        "block-scaled formats are specs, not words of a problem: gemm/tcgen05 (sm_100a), gemm/mma_sync/block_scales (sm_120a)",
    ),
    (
        r"mxfp6|fp6|e2m3|e3m2|e8m0|[iuw]?int2|[su]2",
        "no kernel reads that type; nearest: e4m3, e5m2, s8 or u8 with scale_row and scale_column",
    ),
    (r"f64|s64|s16|u16|u64", "no kernel of this kind computes with that type; nearest: f32, or s8 with results s32"),
    (r"depth_?wise", "groups=N with as many groups as channels is a filter for each channel"),
    (
        r"(conv_?)?transposed?|deconv(olution)?|backward|dgrad|wgrad",
        "ops.conv_transpose2d and the gradients of ops.conv2d make several launches",
    ),
    (r"winograd|fft", "every convolution is computed as a product (implicit GEMM); leave the word out"),
    (
        r"(log)?cum(sum|prod|max|min)|scan|prefix_sum",
        "a separate kernel keeps partial sums: rows:ROWS,COLUMNS,cumsum or logcumsumexp; others are not computed",
    ),
    (
        r"top_?k|sort|argsort|median|quantile|kthvalue|mode",
        "no kernel orders all elements; nearest: the first of them, rows:ROWS,COLUMNS,topk,k=N",
    ),
    (r"var(iance)?|std(dev)?", "variances come with their mean: mean_variance; ops.reduce derives var and std from it"),
    (r"c64|c128|complex(64|128)?", "no kernel computes complex numbers; nearest: f32"),
    (
        r"sparse|2:4|csr|bsr",
        "no kernel skips zeros but those of ops.compress_2_4, which no problem names; nearest: the dense product",
    ),
    (r"dropout", "no kernel draws random numbers; nearest: the product without it"),
)
"""Patterns of commonly requested words that no kernel serves, with the reason and the nearest alternative."""
_ALIKE = 0.8
"""Likeness from which on a known word is suggested: closer than silu and swiglu, or nt and int8."""


def _likeness(word: str, known: str) -> float:
    """From 0 to 1; a word with its letters in another order, or with one other letter among four or more, is as good as the same."""
    if len(word) > 2 and sorted(word) == sorted(known):
        return 1.0
    if len(word) == len(known) > 3 and sum(one != other for one, other in zip(word, known, strict=True)) == 1:
        return 1.0
    return SequenceMatcher(None, word, known).ratio()


def plain_word(word: str) -> str:
    """A word of a problem with the names of types that problems have: ``of_uint8`` is ``of_u8``."""
    return _ALIAS.sub(lambda match: ALIASES[match[0]], word.lower())


def unserved(word: str) -> str | None:
    """The reason why no kernel serves a commonly requested word, with the nearest alternative; None for any other word."""
    return next((reason for pattern, reason in UNSERVED if re.fullmatch(pattern, word.lower())), None)


def unknown_word(what: str, word: str, known: Sequence[str], need: str) -> SpecError:
    """The error about a word that a kind of problem, ``what``, lacks; ``known``: the words that it has, ``need``: these as text."""
    shown = printable(word, 60)
    if (reason := unserved(word)) is not None:
        return SpecError(f"{what} has no option {shown!r}: {reason}")
    name = word.partition("=")[0]
    close = max(known, key=lambda other: _likeness(name, other), default="")
    if close and _likeness(name, close) > _ALIKE:
        return SpecError(f"{what} has no option {shown!r} (did you mean {close}?)")
    return SpecError(f"{what} has no option {shown!r}: need {need}")
