"""Random texts of a small grammar for --where, --set, --problem and epilogues end in a value or a message.

GEMMGEN_FUZZ_TEXTS=2000 tries so many of each.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.problems import read_problem
from gemmgen.kernels.spec_files import load_spec
from gemmgen.sweep.expression import Expression

TEXTS = int(os.environ.get("GEMMGEN_FUZZ_TEXTS", "40"))
ATOMS = (
    *("x", "acc", "b", "z", "row", "silu(acc)", "a.b", "1", "-1", "9" * 30, "1.5", "1e999", '"s"', "'\x1b'", "True", "None", "٣", "0x1F"),
    *("__class__", "lambda", "[1]", "{}", "()", "a if b else c", "x[0]", "f(x)", "x:=1", "*x", "...", 'f"{x}"', "`", "\0", "{{x}}", "\\"),
)
SIGNS = (*"+-*/%<>&|^,;:=.@ \n()[]", "//", "**", "<<", ">>", "==", "!=", " and ", " or ", " in ", " is ", " not in ")
CALLED = ("min", "max", "exp", "abs", "select", "gelu", "eval", "open", "__import__")
FIELDS = ("alpha", "epilogue", "mainloop.tile.threadblock.m", "label", "x.y", "epilogue.0.op", "", ".", "a" * 500, "epilogue.-1")
VALUES = ("[", "{", "- ", "!!python/object:os.system x", "&a *a", "[{op: relu}]", "1e400", "nan", "~", "yes")
WORDS = ("nt", "f16", "e4m3", "batch=-1", "batch=" + "9" * 20, "bias", "argmax", "ld=5", "a=b=c", "٣", "-1", "2147483648", "64", "64", "17")


TAME_ATOMS = ("acc", "b", "z", "1", "0.5", "silu(acc)", "(acc if acc > b else 0)", "float32(row)")
TAME_SIGNS = (" + ", " - ", " * ", " / ")
TAME_CALLS = ("min", "max")
TAME_WORDS = ("nt", "tn", "f16", "bf16", "bias", "silu", "batch=2", "max", "groups=2")
KINDS = ("gemm", "reduction", "conv2d", "elementwise", "grouped", "quantise", "rows", "cpu", "x")
SETTINGS = (
    "alpha=one",
    "beta=zero",
    "transpose=nt",
    "label=other",
    "epilogue=[{op: relu}]",
    "order=column_major",
    "transpose=xx",
    "alpha=[",
)
COUNTS = {"conv2d": 8, "elementwise": 4, "quantise": 2, "rows": 2}


class Writer:
    """Texts from one seed: of three in four, most parts have a meaning."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tame = self.rng.random() < 0.75

    def _one(self, tame: tuple[str, ...], wild: tuple[str, ...]) -> str:
        return self.rng.choice(tame if self.tame and self.rng.random() < 0.97 else wild)

    def expression(self, depth: int = 0) -> str:
        """Atoms, signs, parentheses and calls, well-formed or not."""
        rng = self.rng
        if depth > 5 or rng.random() < 0.4:
            return self._one(TAME_ATOMS, ATOMS)
        inner = self.expression(depth + 1)
        match rng.randrange(4):
            case 0:
                return f"({inner})"
            case 1:
                return f"{self._one(TAME_CALLS, CALLED)}({inner}, {self.expression(depth + 1)})"
            case _:
                return inner + self._one(TAME_SIGNS, SIGNS) + self.expression(depth + 1)

    def where(self) -> object:
        """A filter of results, on one spec."""
        return Expression("--where", self.expression()).holds(
            {"x": 1, "a": {"b": 3}, "acc": 2, "b": 0, "z": "text", "row": None, "column": [1]}
        )

    def setting(self) -> object:
        """A plan after --set."""
        if self.tame and self.rng.random() < 0.5:
            return gemmgen.plan(load_spec("gemm/v0_naive", self.rng.sample(SETTINGS, 2)))
        value = self.rng.choice(VALUES) if self.rng.random() < 0.5 else self.expression()
        return gemmgen.plan(load_spec("gemm/v0_naive", [f"{self.rng.choice(FIELDS)}={value}"]))

    def problem(self) -> object:
        """A problem as --problem takes it."""
        kind = self.rng.choice(KINDS)
        sizes = [str(self.rng.choice((1, 3, 17, 64, 4096))) for _ in range(COUNTS.get(kind, 3) if self.tame else 0)]
        words = [self._one(TAME_WORDS, WORDS) if self.rng.random() < 0.9 else self.expression() for _ in range(self.rng.randrange(6))]
        return read_problem(f"{kind}:{','.join(sizes + words[: 1 if self.tame else None])}")

    def epilogue(self) -> object:
        """A rendered kernel with formulas in its epilogue."""
        formulas = {"let": {"z": self.expression().replace("z", "acc")}, "outputs": {"value": self.expression() + " + b + z" * self.tame}}
        spec = {**load_spec("gemm/v0_naive").model_dump(mode="json"), "epilogue": {"inputs": {"b": {"per": "column"}}, **formulas}}
        text = gemmgen.render(gemmgen.plan(spec)).text
        assert "\x1b" not in text and "__import__" not in text
        return text


@pytest.mark.parametrize("way", [Writer.where, Writer.setting, Writer.problem, Writer.epilogue], ids=lambda way: way.__name__)
def test_random_texts_end_in_a_value_or_a_message(way: Callable[[Writer], object]) -> None:
    told = made = 0
    for seed in range(TEXTS):
        try:
            way(Writer(seed))
            made += 1
        except GemmgenError as error:
            told += 1
            assert "\x1b" not in str(error) and len(str(error)) < 20_000
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert told and made
