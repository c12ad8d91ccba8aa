"""Ways to break a kernel: each operator changes one place of a rendered source, as a slip of the hand would."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A source with one place changed."""

    kind: str
    line: int
    before: str
    after: str
    text: str
    previous: str = ""
    """The line before, to tell equal lines apart."""

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}: {self.before!r} became {self.after!r}"


Replacement = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Operator:
    """A slip: `pattern` becomes `replacement`, on lines that match `where`."""

    kind: str
    pattern: str
    replacement: Replacement
    where: str = ""

    def mutants(self, source: str) -> Iterator[Mutant]:
        """All places of a source where this slip is possible."""
        lines = source.split("\n")
        previous = ""
        for number, line in enumerate(lines):
            code, slashes, comment = line.partition("//")
            if not code.strip() or code.lstrip().startswith(("#", "extern", "struct", "template")):
                continue
            before, previous = previous, code.strip()
            if self.where and not re.search(self.where, code):
                continue
            for match in re.finditer(self.pattern, code):
                changed = code[: match.start()] + self._changed(match) + code[match.end() :]
                if changed != code:
                    text = "\n".join([*lines[:number], changed + slashes + comment, *lines[number + 1 :]])
                    yield Mutant(self.kind, number + 1, code.strip(), changed.strip(), text, before)

    def _changed(self, match: re.Match[str]) -> str:
        return match.expand(self.replacement) if isinstance(self.replacement, str) else self.replacement(match)


def _plus(amount: int) -> Callable[[re.Match[str]], str]:
    return lambda match: f"{match[1]}{int(match[2]) + amount}{match[3]}"


def _times(factor: float) -> Callable[[re.Match[str]], str]:
    return lambda match: f"{match[1]}{int(int(match[2]) * factor)}{match[3]}"


_CONSTANT = r"(constexpr int k\w+ = )(\d+)(;)"
_NAME = r"[A-Za-z_][\w.\[\]]*"

OPERATORS = (
    # Order between threads
    Operator("drop a barrier", r"__syncthreads\(\);", ";"),
    Operator("a warp barrier instead of a barrier", r"__syncthreads\(\)", "__syncwarp()"),
    Operator("drop a warp barrier", r"__syncwarp\([^)]*\);", ";"),
    Operator("a barrier of half a warp", r"__syncwarp\(\)", "__syncwarp(threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u)"),
    Operator("drop a fence", r"__threadfence\(\);", ";"),
    Operator("a fence of the block only", r"__threadfence\(\)", "__threadfence_block()"),
    Operator(
        "acquire becomes relaxed",
        r"__NV_ATOMIC_(ACQUIRE|ACQ_REL)|\.acquire\b",
        lambda m: ".relaxed" if m[0][0] == "." else "__NV_ATOMIC_RELAXED",
    ),
    Operator(
        "release becomes relaxed", r"__NV_ATOMIC_RELEASE|\.release\b", lambda m: ".relaxed" if m[0][0] == "." else "__NV_ATOMIC_RELAXED"
    ),
    Operator("an atomic addition becomes a plain one", r"atomicAdd\(([^,]+), ([^()]+)\)", r"((*(\1) += \2) - \2)"),
    # Asynchronous copies
    Operator("drop a wait for copies", r"\bcopy_async_wait<[^>]*>\(\);", ";"),
    Operator("wait for one group too few", r"(copy_async_wait<kStages - )2(>)", r"\g<1>1\2"),
    Operator("drop the end of a group of copies", r"^( +)copy_async_commit\(\);", r"\1;"),
    Operator("copies that do not fill with zeros", r" \? 16 : 0\)", " ? 16 : 16)"),
    # Stages
    Operator("both stages are the same", r"stage \^ 1\b", "stage"),
    Operator("the stage never changes", r"stage \^= 1", "stage ^= 0"),
    Operator("the first tile goes into the other stage", r"(shared_[ab])\[0\]", r"\1[1]", where=r"store_shared_tile|copy"),
    Operator("a stage too few", r"kStages - 1\b", "kStages - 2", where="stage"),
    Operator("the stage is not taken back to the first", r"\? 0 : (\w+_stage) \+ kStageBytes", r"? kStageBytes : \1 + kStageBytes"),
    # Loops
    Operator("skip the last step", r"(for \(.*; \w+ < )(k|steps|rounds|tiles)(;)", r"\1\2 - 1\3"),
    Operator("a loop begins one late", r"(for \((?:unsigned )?(?:int )?\w+ = )0;", r"\g<1>1;"),
    Operator("a loop ends one early", r"(for \(.*; \w+ < )(k[A-Z]\w*|\d+)(;)", r"\1\2 - 1\3"),
    Operator("a loop takes one turn more", r"(for \(.*; \w+ )<( \w+;)", r"\1<=\2"),
    Operator("a loop takes steps of twice the size", r"(for \(.*\+= )([^)]+)\)", r"\g<1>2 * (\2))"),
    Operator("halves become quarters", r"/= 2\)", "/= 4)"),
    Operator("a loop ends at two", r"> 0; (\w+ /= 2)", r"> 1; \1"),
    # Conditions
    Operator("less becomes less or equal", r"(?<![<-]) < (?![<=])", " <= ", where=r"if |\?|&&|\|\||="),
    Operator("at least becomes more than", r" >= ", " > "),
    Operator("more than becomes at least", r"(?<![->]) > (?![>=])", " >= ", where=r"^(?!.*template)"),
    Operator("drop a condition", r"\bif \((.*)\)( \{)?$", r"if (true)\2"),
    Operator("a condition never holds", r"\bif \((.*)\)( \{)?$", r"if (false)\2"),
    Operator("drop a choice", r"(?:[\w.\[\]]+ )?[<>=!]=? [\w.\[\]]+ \? ([^:?]+) : 0(?:\.0f)?\b", r"\1"),
    Operator("and becomes or", r" && ", " || "),
    Operator("the special case of a scalar", r"\b(alpha|beta) ([!=])= 0\.0f", lambda m: f"{m[1]} {'!' if m[2] == '=' else '='}= 0.0f"),
    # Indices
    Operator("an index one too far", r"\[([a-z]\w*)\]", r"[\1 + 1]"),
    Operator("plus becomes minus", r"(?<![eE]) \+ (?!1\))", " - "),
    Operator("minus becomes plus", r"(?<=[\w\])]) - (?=[\w(])", " + "),
    Operator("a subtraction the wrong way round", rf"({_NAME}) - ({_NAME})(?=;|\)|,)", r"\2 - \1"),
    Operator("a factor is missing", r" \* (k[A-Z]\w*|ld\w*|\d+)\b", ""),
    Operator("a quotient becomes a remainder", r"\b((?:warp|lane|threadIdx\.x|blockIdx\.x)) / ", r"\1 % "),
    Operator("a remainder becomes a quotient", r"\b((?:warp|lane|threadIdx\.x|blockIdx\.x)) % ", r"\1 / "),
    Operator("a warp of 16 lanes", r"threadIdx\.x ([/%]) 32\b", r"threadIdx.x \1 16"),
    Operator("a lane off by one", r"threadIdx\.x % (\w+)", r"(threadIdx.x + 1) % \1", where="="),
    Operator("the other matrix's stride", r"\b(lda|ldb)\b", lambda m: "ldb" if m[0] == "lda" else "lda", where=r"[*]|load"),
    Operator("the wrong stride of the result", r"\* ldc\b", "* (ldc + 1)"),
    Operator(
        "the other extent",
        r"(at_m >= |= )\b([mn])( -|\b)",
        lambda m: f"{m[1]}{'n' if m[2] == 'm' else 'm'}{m[3]}",
        where="at_m|left|available",
    ),
    # Constants
    Operator("a constant one too large", _CONSTANT, _plus(1)),
    Operator("a constant doubled", _CONSTANT, _times(2)),
    Operator("a constant halved", _CONSTANT, _times(0.5)),
    Operator("another padding", r"(constexpr int kPitch\w* = )(\d+)(;)", _plus(-4)),
    Operator("another swizzle", r"\^ \((\w+) >> (\d) & (\d)\)", r"^ (\1 & \3)"),
    Operator("no swizzle", r" \^ \(\w+ >> \d & \d\)", ""),
    Operator("another distance between vectors", r"(i / \d+ \* )(\d+)( \+)", _times(0.5)),
    Operator("another shift", r"(>> |<< )(\d+)()", _plus(1)),
    Operator("another mask", r"& 1\b", "& 0"),
    Operator("the wrong component", r"\bvector\.([yzw])\b", "vector.x"),
    # Arithmetic
    Operator("no zero to begin with", r"(\w+(?:\[\w+\])+) = \{\};", r"\1;"),
    Operator("begin with one", r"(float|int|double) (\w+) = 0(\.0f)?;", r"\1 \2 = 1\3;"),
    Operator("add becomes assign", r" \+= ", " = "),
    Operator("add becomes subtract", r" \+= ", " -= "),
    Operator("subtract becomes add", r" -= ", " += "),
    Operator("half of a sum is dropped", r"\bcombine\(([^(),]+), (?:[^()]|\([^()]*\))+\)", r"\1"),
    Operator("the products are not added up", r"(fmaf\([^,]+, [^,]+, )[^,()]*(?:\[[^,]*\])+\)", r"\g<1>0.0f)"),
    Operator("not saturated", r"__saturatef\((fmaf\([^()]*\))\)", r"\1"),
    Operator("another distance of a shuffle", r"(__shfl_\w+_sync\([^,]+, [^,]+, )(\w+)\)", r"\1\2 / 2)"),
    Operator(
        "a statement is missing",
        r"^(\s+)(?!return|const|float|int|unsigned|long|double|__shared__|asm|extern|typedef|using)[a-z_*][^{}]*;\s*$",
        r"\1;",
    ),
    Operator("no return", r"^(\s+)return;", r"\1;"),
    Operator("leave the loop too early", r"\bcontinue;", "break;"),
    Operator("stay in the loop", r"\bbreak;", "continue;"),
)


def all_mutants(source: str) -> list[Mutant]:
    """Every mutant of a source, each text once."""
    found: dict[str, Mutant] = {}
    for operator in OPERATORS:
        for mutant in operator.mutants(source):
            found.setdefault(mutant.text, mutant)
    return list(found.values())
