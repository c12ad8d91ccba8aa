"""Kernels with one index changed, for runs over a finite field: slips that move whole tiles, and slips of a single lane and step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from mutants.operators import OPERATORS, Mutant
from mutants.survivors import explanation

WIDE = ("gemm/v3_double_buffer", "gemm/simt/linear/bias_relu", "gemm/simt/blocked/128x128x8")
"""Kernels whose mutants that change nothing are known."""
NARROW = ("gemm/v3_double_buffer", "gemm/mma_sync/bf16/32x32", "gemm/wgmma/bf16/64x32")
WIDE_COUNT, NARROW_OF_EACH = 360, 20
"""Of the wide ones, some compile to the same machine code: 300 and more are left."""
_INDEX_KINDS = (
    *("an index one too far", "plus becomes minus", "minus becomes plus", "a subtraction the wrong way round", "a factor is missing"),
    *("a quotient becomes a remainder", "a remainder becomes a quotient", "a lane off by one", "the other matrix's stride"),
    *("the wrong stride of the result", "another distance between vectors", "another mask", "the wrong component"),
    *("skip the last step", "a loop begins one late", "a loop ends one early", "a loop takes steps of twice the size"),
    *("both stages are the same", "the stage never changes", "the first tile goes into the other stage"),
)


_DECLARATIONS = ("__shared__", "(&", "__restrict__", "__launch_bounds__", "constexpr", "float fragment_a[", "float accumulators[")
"""Text of the lines in which brackets give a size."""


@dataclass(frozen=True)
class Slip:
    """A kernel's source with an index changed."""

    spec: str
    name: str
    text: str


def wide_slips(source_of: Callable[[str], str]) -> list[Slip]:
    """Slips anywhere in the source, spread evenly over three kernels."""
    found: list[Slip] = []
    for spec in WIDE:
        source = source_of(spec)
        seen: dict[str, Mutant] = {}
        for operator in OPERATORS:
            if operator.kind in _INDEX_KINDS:
                for mutant in operator.mutants(source):
                    if explanation(spec, mutant) is None and not any(word in mutant.before for word in _DECLARATIONS):
                        seen.setdefault(mutant.text, mutant)
        chosen = list(seen.values())
        Random(spec).shuffle(chosen)
        found += [Slip(spec, str(mutant), mutant.text) for mutant in chosen[: WIDE_COUNT // len(WIDE)]]
    return found


def narrow_slips(source_of: Callable[[str], str]) -> list[Slip]:
    """Slips of one thread of one block in one step: a term lost, taken twice or of a neighbour, or a result in another's place."""
    makers = (_simt_slips, _mma_slips, _wgmma_slips)
    found: list[Slip] = []
    for spec, make in zip(NARROW, makers, strict=True):
        source = source_of(spec)
        for name, old, new in make(Random(spec)):
            assert source.count(old) >= 1, (spec, old)
            found.append(Slip(spec, name, source.replace(old, f"{{ {new} }}" if old.endswith(";") else new)))
    return found


def _simt_slips(random: Random) -> Iterator[tuple[str, str, str]]:
    call = "multiply_accumulate(accumulators, fragment_a[0], fragment_b[0]);"
    for _ in range(NARROW_OF_EACH // 4):
        thread, block, kk, i, j = random.randrange(256), random.randrange(4), random.randrange(8), random.randrange(8), random.randrange(7)
        at = f"if (kk == {kk} && threadIdx.x == {thread} && blockIdx.x == {block}) "
        term = f"fragment_a[0][{i}], fragment_b[0][{j}], accumulators[{i}][{j}]"
        yield f"a term lost: {at}", call, f"{call} {at}accumulators[{i}][{j}] = fmaf(-{term});"
        yield f"a term twice: {at}", call, f"{call} {at}accumulators[{i}][{j}] = fmaf({term});"
        difference = f"fragment_b[0][{j + 1}] - fragment_b[0][{j}]"
        extra = f"fmaf(fragment_a[0][{i}], {difference}, accumulators[{i}][{j}])"
        yield f"the next column's factor: {at}", call, f"{call} {at}accumulators[{i}][{j}] = {extra};"
        yield f"the next row's factor: {at}", call, f"{at}fragment_a[0][{i}] = fragment_a[0][{(i + 1) % 8}]; {call}"


def _mma_slips(random: Random) -> Iterator[tuple[str, str, str]]:
    call = "multiply(accumulators[i] + 4 * j, fragments_a[i], fragments_b[j]);"
    for _ in range(NARROW_OF_EACH // 5):
        thread, block, step, part = random.randrange(128), random.randrange(4), random.randrange(2), random.randrange(2)
        register, half = random.randrange(4), random.randrange(2)
        at = f"if (threadIdx.x == {thread} && blockIdx.x == {block} && step == {step} && part == {part} && j == 0) "
        yield (
            f"half of a register of A lost: {at}",
            call,
            f"{at}fragments_a[i][{register}] &= {'0xffffu' if half else '0xffff0000u'}; {call}",
        )
        swapped = f"fragments_b[j][{register % 2}] << 16 | fragments_b[j][{register % 2}] >> 16"
        yield f"halves of a register of B swapped: {at}", call, f"{at}fragments_b[j][{register % 2}] = {swapped}; {call}"
        yield f"a register of A of the next: {at}", call, f"{at}fragments_a[i][{register}] = fragments_a[i][{register ^ 1}]; {call}"
        yield f"a register of B lost: {at}", call, f"{at}fragments_b[j][{register % 2}] = 0; {call}"
        value = "accumulators[block][4 * j + 2 * half + v]"
        own = f"threadIdx.x == {thread} && blockIdx.x == {block} && j == {part} && v == {half}"
        yield f"a result of its neighbour: {own}", value, f"accumulators[block][4 * j + 2 * half + ({own} ? {1 - half} : v)]"


def _wgmma_slips(random: Random) -> Iterator[tuple[str, str, str]]:
    value = "accumulators[block][4 * j + 2 * half + v]"
    for _ in range(NARROW_OF_EACH // 4):
        thread, block, column, half, v = (
            random.randrange(128),
            random.randrange(4),
            random.randrange(4),
            random.randrange(2),
            random.randrange(2),
        )
        own = f"threadIdx.x % 128 == {thread} && blockIdx.x == {block} && j == {column} && half == {half}"
        yield f"a result of its neighbour: {own}", value, f"accumulators[block][4 * j + 2 * half + ({own} && v == {v} ? {1 - v} : v)]"
        yield f"a result of the other line: {own}", value, f"accumulators[block][4 * j + 2 * ({own} ? {1 - half} : half) + v]"
        yield f"a result of another column: {own}", value, f"accumulators[block][4 * ({own} ? {(column + 1) % 4} : j) + 2 * half + v]"
        yield f"a result lost: {own} && v == {v}", value, f"({own} && v == {v} ? 0.0f : {value})"
