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


class Writer:
    """Texts from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def expression(self, depth: int = 0) -> str:
        """Atoms, signs, parentheses and calls, well-formed or not."""
        rng = self.rng
        if depth > 5 or rng.random() < 0.4:
            return rng.choice(ATOMS)
        inner = self.expression(depth + 1)
        match rng.randrange(4):
            case 0:
                return f"({inner})"
            case 1:
                return f"{rng.choice(CALLED)}({inner}, {self.expression(depth + 1)})"
            case _:
                return inner + rng.choice(SIGNS) + self.expression(depth + 1)

    def where(self) -> object:
        """A filter of results, on one spec."""
        return Expression("--where", self.expression()).holds({"x": 1, "a": {"b": 3}})

    def setting(self) -> object:
        """A plan after --set."""
        value = self.rng.choice(VALUES) if self.rng.random() < 0.5 else self.expression()
        return gemmgen.plan(load_spec("gemm/v0_naive", [f"{self.rng.choice(FIELDS)}={value}"]))

    def problem(self) -> object:
        """A problem as --problem takes it."""
        words = [self.rng.choice(WORDS) if self.rng.random() < 0.9 else self.expression() for _ in range(self.rng.randrange(9))]
        return read_problem(f"{self.rng.choice(['gemm', 'reduction', 'conv2d', 'elementwise', 'grouped', 'cpu', 'x'])}:{','.join(words)}")

    def epilogue(self) -> object:
        """A rendered kernel with formulas in its epilogue."""
        formulas = {"let": {"z": self.expression()}, "outputs": {"C": self.expression()}}
        spec = {**load_spec("gemm/v0_naive").model_dump(mode="json"), "epilogue": {"inputs": {"b": {"per": "column"}}, **formulas}}
        text = gemmgen.render(gemmgen.plan(spec)).text
        assert "\x1b" not in text and "__import__" not in text
        return text


@pytest.mark.parametrize("way", [Writer.where, Writer.setting, Writer.problem, Writer.epilogue], ids=lambda way: way.__name__)
def test_random_texts_end_in_a_value_or_a_message(way: Callable[[Writer], object]) -> None:
    told = 0
    for seed in range(TEXTS):
        try:
            way(Writer(seed))
        except GemmgenError as error:
            told += 1
            assert "\x1b" not in str(error) and len(str(error)) < 20_000
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert told
