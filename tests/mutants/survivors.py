"""Mutants that verification does not catch, and why.

SURVIVORS change nothing that can be observed, or nothing but speed. GAPS do: no case shows them yet. `pattern` is searched in
"previous line | before => after". A survivor that no entry explains fails the test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .operators import Mutant


@dataclass(frozen=True)
class Survivor:
    """Mutants of some families that are known to survive."""

    families: str
    kind: str
    pattern: str
    why: str

    def explains(self, subject: str, mutant: Mutant) -> bool:
        """Whether a survivor is one of these."""
        return (
            subject.split("/")[0] in self.families.split()
            and re.fullmatch(self.kind, mutant.kind) is not None
            and re.search(self.pattern, f"{mutant.previous} | {mutant.before} => {mutant.after}") is not None
        )


_ALL = "gemm reduction conv2d"

SURVIVORS = (
    # The same numbers, computed another way
    Survivor(_ALL, "a subtraction the wrong way round", r"(\w+) - (\w+) - (\w+);.*=> .*\1 - \3 - \2;", "the order of two subtrahends"),
    Survivor(
        "gemm",
        "at least becomes more than|a condition never holds",
        r"if \(available >= 4\)",
        "vectors element by element: slower, same values",
    ),
    Survivor(
        "gemm",
        "a lane off by one|.*quotient.*|.*remainder.*",
        r"\| const int (copy_\w+|lane\w*) =",
        "a permutation of the lanes that share the work",
    ),
    Survivor("conv2d", "a lane off by one", r"\| const int (half|channel|\w*row\w*) =", "a permutation of the lanes that share the work"),
    Survivor(
        "gemm", "stay in the loop", r"\| break;", "rows beyond the edge follow each other: the rest of the loop leaves at the same test"
    ),
    # More work than needed, thrown away
    Survivor("gemm", "a loop takes one turn more", r"k_next < k;", "a whole step of zeros is added"),
    Survivor("conv2d", ".*", r"if \(plane < kPlanes - 1 \|\| step \+ 1 < steps\)", "fragments are read that nobody multiplies"),
    # Layout, which changes bank conflicts only
    Survivor(_ALL, "another padding|a constant .*", r"kPitch\w+ = ", "padding against bank conflicts: another one is slower"),
    Survivor(
        "conv2d",
        "another swizzle|no swizzle|another shift|another mask",
        r"half \^",
        "written and read through the same function: bank conflicts only",
    ),
    # Constants that only reserve, promise or divide the work
    Survivor(_ALL, "a constant (one too large|doubled)", r"kThreads = ", "in a kernel that uses it for its launch bounds only"),
    Survivor(_ALL, "a constant (one too large|doubled)", r"kStages = ", "more shared memory than used"),
    Survivor("gemm conv2d", "a constant .*", r"k\w*RowsPerPass\w* = ", "with one pass, the distance between passes is not used"),
    Survivor(
        "conv2d",
        "a constant one too large|a loop takes one turn more",
        r"k\w+Passes\b",
        "what lies behind an array of one element, which the compiler drops",
    ),
    Survivor(
        "reduction",
        "a constant .*|a loop takes one turn more",
        r"kUnroll\b",
        "another division of the elements into tiles and rests; each is still taken once",
    ),
    Survivor("reduction", "a constant .*", r"kAccumulators = ", "more or fewer partial results that begin neutral and are joined"),
    Survivor(
        "reduction",
        "no zero to begin with",
        r"loaded\[kUnroll\]",
        "what is not loaded is not used either: the condition of both is the same",
    ),
    # Comparisons of what is equal only where both answers are the same
    Survivor("gemm", "less becomes less or equal", r"value < 0\.0f \? 0\.0f : value", "the sign of zero, which no case compares"),
    Survivor("reduction", "less becomes less or equal", r"a\.index < b\.index", "two states never have the same index"),
    Survivor(
        "reduction",
        "less becomes less or equal|drop a condition",
        r"if \(thread < distance\)",
        "the lane at the distance joins a neighbour that nobody reads any more",
    ),
    Survivor("reduction", "more than becomes at least|a subtraction the wrong way round", r"largest", "equal, or within fabsf"),
    Survivor(
        "reduction", "more than becomes at least|drop a condition", r"gridDim\.x > 1", "a single block waits for nobody and joins nothing"
    ),
    Survivor("reduction", "drop a condition", r"threadIdx\.x < 32", "other warps compute what nobody uses"),
    Survivor("reduction", "another shift", r"1ull << 32", "any bit above the value says that there is one"),
    Survivor("reduction", "plus becomes minus", r"last = vectors \* kVector \+", "at most one element is left: thread 0's, at distance 0"),
    Survivor(
        "reduction",
        "a factor is missing",
        r"if \(at \+ u \* kThreads < vectors\)",
        "around the sum of what was loaded, which is 0 where nothing was; around the loads it is caught",
    ),
    # Barriers that protect nothing here
    Survivor(
        "reduction",
        "drop a barrier|a warp barrier instead of a barrier",
        r"bool last; \| __syncthreads\(\);",
        "before a ticket that the thread draws which alone wrote; the barrier after it orders the rest",
    ),
    # Empty steps
    Survivor("conv2d", "minus becomes plus", r"steps = \(entries", "a whole step of zeros is added"),
    Survivor(
        "conv2d",
        "less becomes less or equal|drop a condition",
        r"stage < steps|step \+ kStages - 1 <|step \+ 1 <",
        "zeros are copied, or waited for, where nobody reads",
    ),
    Survivor(
        "reduction",
        ".*",
        r"unsigned int blocks = .*> 1 \?",
        "the same number of blocks for every problem, or one more that adds the neutral element",
    ),
)

GAPS = (
    Survivor(
        "reduction",
        ".*",
        r"(block|other) = threadIdx.x; \w+ < \w+(\.x)?; \w+ \+= |tile = \S+; \w+ < \w+(\.x)?; \w+ \+= ",
        "no case has so many blocks, or such values, that the second turn of this loop decides the result",
    ),
    Survivor("reduction", "leave the loop too early", r"continue;", "no case has more blocks than a block has threads"),
    Survivor("reduction", "a factor is missing", r"tile \* kTile", "no case gives a block of this kernel a second tile"),
    Survivor("reduction", ".*", r"unsigned int blocks = |kMostBlocks = ", "no case reaches the limit of blocks"),
    Survivor("reduction", "a statement is missing", r"power = fmaf|f16_to_float", "the bound of the sum is wider than this term"),
    Survivor(
        "reduction",
        "a constant one too large|a loop ends one early|less becomes less or equal|plus becomes minus",
        r"kThreads\b|kUnroll\b",
        "the extremum never lies in the elements that are skipped or taken twice",
    ),
    Survivor("conv2d", "minus becomes plus", r"(pixel|channel)_tiles = ", "no case has whole tiles in both directions and several of them"),
)
"""What the cases should show and do not: each is a case to be added."""


def explanation(subject: str, mutant: Mutant) -> str | None:
    """Why a mutant survives; None if that is not known."""
    for survivor in (*SURVIVORS, *GAPS):
        if survivor.explains(subject, mutant):
            return survivor.why
    return None
