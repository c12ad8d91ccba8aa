"""Classes of changes that nothing can observe, each decided from the two sources and the plan.

A rule holds where its check holds, whatever kernel it is: it compares the sources without the part that the rule covers, or evaluates
the source with the changed number. A change that the check does not cover stays without a reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.family import KernelPlan
from gemmgen.verification.extra_cases import code_of

from .operators import Mutant

Check = Callable[[KernelPlan, str, Mutant], bool]

_PREFETCH = re.compile(r"prefetch_tensor_map\(\w+\);")
_BLOCK_OF_NOTHING = re.compile(r"if \((?:k > 0|false)\) \{[\s;]*\}")
_STATEMENT_OF_NOTHING = re.compile(r"^\s*;\s*$", re.MULTILINE)
_WAIT_OF_ONE = re.compile(r"if \((?:thread == 0|true)\)\s+(store_boxes_wait<)")
_LOOP = re.compile(r"for \(int (\w+) = 0; \1 < \w+; (?:\+\+\1|\1 \+= \w+)\) \{")
_BAND_LINES = ("band", "within", "band_tiles", "tile_m", "tile_n")
_ARRAY = re.compile(r"^(?:__shared__ [^=;]*;|auto& \w+ = \*reinterpret_cast<[^;]*;)$")


def _same_without(pattern: str | re.Pattern[str], replacement: str, source: str, mutant: Mutant) -> bool:
    return re.sub(pattern, replacement, source) == re.sub(pattern, replacement, mutant.text)


def _prefetches(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    def bare(text: str) -> str:
        text = _STATEMENT_OF_NOTHING.sub("", _BLOCK_OF_NOTHING.sub("", _PREFETCH.sub("", text)))
        return "\n".join(line for line in text.split("\n") if line.strip())

    return bool(_PREFETCH.search(source)) and bare(source) == bare(mutant.text)


def _waits_for_nothing(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    return _same_without(_WAIT_OF_ONE, r"\1", source, mutant)


def _left_again(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True if the counter of the loop rises, and nothing but constants stands before a comparison that holds from then on."""
    lines = [line.strip() for line in source.split("\n")]
    at = mutant.line - 1
    left = re.fullmatch(r"if \((\w+) >= \w+\)", lines[at - 1])
    if (lines[at], mutant.after) != ("break;", "continue;") or not left:
        return False
    declared = ""
    for line in reversed(lines[: at - 1]):
        loop = _LOOP.fullmatch(line)
        if loop:
            return re.search(rf"\b{loop[1]}\b", declared) is not None and "-" not in declared and "^" not in declared
        if not line.startswith("const "):
            return False
        if line.startswith(f"const int {left[1]} = "):
            declared = line
    return False


def _order_of_tiles(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True if the order by the changed width of bands still has each tile once."""
    if not re.fullmatch(r"constexpr int kBand = [1-9]\d*;", mutant.after):
        return False
    source = re.sub("//.*", "", source)
    body = mutant.text[mutant.text.index(mutant.after) :].partition("}")[0]
    parts = {name: text for name, text in re.findall(r"const int (\w+) = ([^;]*);", body) if name in _BAND_LINES}
    if tuple(parts) != _BAND_LINES or len(re.findall(r"\bkBand\b", source)) != 1 + sum(text.count("kBand") for text in parts.values()):
        return False
    steps = [(name, compile(text.replace("/", "//"), name, "eval")) for name, text in parts.items()]
    width = int(mutant.after.split()[-1][:-1])
    for across, along in product((1, 2, width - 1, width, width + 1, 2 * width + 3), (1, 2, 5)):
        found = set()
        for index in range(across * along):
            names: dict[str, Any] = {"kBand": width, "across": across, "along": along, "index": index, "min": min}
            for name, code in steps:
                names[name] = eval(code, {"__builtins__": {}}, names)
            found.add((names["tile_m"], names["tile_n"]))
        if found != set(product(range(across), range(along))):
            return False
    return True


def _larger_array(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    grown = [mutant.before.replace(f"[{name}]", f"[{name} + 1]", 1) for name in re.findall(r"\[(k\w+)\]", mutant.before)]
    return bool(_ARRAY.match(mutant.before)) and mutant.after in grown and "sizeof" not in mutant.before.partition("=")[0]


def _fewer_stages(plan: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True if the source is that of the same spec with the changed number of stages, which needs no more shared memory."""
    stages = re.fullmatch(r"constexpr int kStages = (\d+);", mutant.after)
    spec = plan.spec.model_dump(mode="json", exclude_unset=True)
    if not stages or spec.get("mainloop", {}).get("stages", 0) <= int(stages[1]):
        return False
    spec["mainloop"]["stages"] = int(stages[1])
    try:
        other = gemmgen.plan(spec)
    except GemmgenError:
        return False
    return code_of(gemmgen.render(other).text).replace(other.name, plan.name) == code_of(mutant.text)


def _after_the_only_tile(plan: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True behind the loop over the steps of a block that has one tile only: its way to the next, and stages that nobody fills again."""
    loop = getattr(plan, "loop", None)
    if getattr(loop, "persistent_blocks", True) or getattr(getattr(plan.spec, "decomposition", None), "scheme", "") == "stream_k":
        return False
    lines = [line.strip() for line in source.split("\n")]
    step = r"gridDim\.x(?: / kClusterBlocks)?"
    if re.fullmatch(rf"for \((?:int index = blockIdx\.x)?; index < works; index (?:= {step}|\+= 2 \* \({step}\))\) \{{", mutant.after):
        return mutant.kind in ("add becomes assign", "a loop takes steps of twice the size")
    before = lines[: mutant.line]
    begins = len(before) - 1 - before[::-1].index("if (work.steps > 0) {") if "if (work.steps > 0) {" in before else -1
    release = ["if (work.steps > 0) {", "const int previous = stage == 0 ? kStages - 1 : stage - 1;", "if (lane == 0)"]
    release.append("mbarrier_arrive(empty + kBarrierBytes * previous);")
    return begins > 0 and lines[begins - 1] == "wgmma_wait<0>();" and lines[begins : begins + 4] == release and mutant.line <= begins + 4


_OF_A_LANE = re.compile(r"^(?:float|int|unsigned|double) (\w+)((?:\[\w+\])+)(?: = \{\})?;$")


def _larger_registers(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for an array of a lane that is longer along one axis, all of whose uses name each of its axes."""
    declared = _OF_A_LANE.match(mutant.before)
    if declared is None:
        return False
    name, axes = declared[1], declared[2].count("[")
    grown = [mutant.before.replace(f"[{axis}]", f"[{axis} + 1]", 1) for axis in re.findall(r"\[(k\w+)\]", mutant.before)]
    lines = [line.partition("//")[0] for line in source.split("\n")]
    uses = [part for line in lines if line.strip() != mutant.before for part in re.split(rf"\b{name}\b", line)[1:]]
    return mutant.after in grown and bool(uses) and f"&{name}[" not in source and all(_axes(use) >= axes for use in uses)


def _axes(text: str) -> int:
    """The number of indices that a text begins with."""
    count, depth = 0, 0
    for letter in text:
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
            count += depth == 0
        elif depth == 0:
            break
    return count


def _zero_of_either_sign(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    relu = re.fullmatch(r"(\w+) = \1 < 0\.0f \? 0\.0f : \1;", mutant.before)
    return relu is not None and mutant.after == mutant.before.replace(" < ", " <= ")


def _tiles_behind_the_last(plan: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for copies before the mainloop of a convolution whose entries are counted, into stages that no step reads."""
    lines = [line.strip() for line in source.split("\n")][mutant.line - 2 : mutant.line + 3]
    begins = ["for (int stage = 0; stage < kStages - 1; ++stage) {", "if (stage < steps) {"]
    copies = [line.partition("(")[0] for line in lines[2:4]] == ["copy_pixel_tile", "copy_filter_tile"]
    weaker = mutant.after in ("if (true) {", "if (stage <= steps) {")
    return lines[:2] == begins and copies and lines[4:] == ["}"] and weaker and "entries_left = entries;" in source


def _read_ahead(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for fragments of the plane behind the last, of a stage that is there, which no product takes."""
    lines = [line.strip() for line in source.split("\n")][mutant.line - 1 :]
    if lines[0] != "if (plane < kPlanes - 1 || step + 1 < steps) {":
        return False
    body = " ".join(lines[1 : lines.index("}")])
    weaker = ("if (true) {", "if (plane < kPlanes - 1 || step - 1 < steps) {", "if (plane < kPlanes - 1 || step + 1 <= steps) {")
    return mutant.after in weaker and bool(re.fullmatch(r"(?:load_fragments\(\w+\[\(plane \+ 1\) % 2\], [^;]*\); ?)+", body))


_IGNORED = re.compile(r"^constexpr (?:int|unsigned) kLeadingBytes(\w*) = \d+;  // ignored", re.MULTILINE)
_LEADING = re.compile(r"^constexpr (?:int|unsigned) kLeadingBytes(\w*) = \d+;", re.MULTILINE)


def _leading_bytes(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for the leading bytes of a descriptor whose rows run along k, or, as PTX names no use for them, of a tile of one box."""
    ignored = {*_IGNORED.findall(source), *(name for name in _LEADING.findall(source) if f"constexpr int kBoxes{name} = 1;" in source)}
    if declared := _LEADING.match(mutant.before):
        return declared[1] in ignored and _LEADING.match(mutant.after) is not None
    shifted = "return kLeadingBytes / kDescriptorUnit << 16 | (address & kAddressBits) / kDescriptorUnit;"
    return mutant.before == shifted and mutant.after == shifted.replace("16", "17") and ignored == set(_LEADING.findall(source))


def _outside(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for one more tile or step than there are, behind the last."""
    count = re.search(r"\((\w+) - 1\) / kTile[A-Z] \+ 1", mutant.before)
    named = re.match(r"(?:__device__ __forceinline__ int tiles_\w\(int \w\) \{ return|const int steps = )", mutant.before)
    if count is None or named is None:
        return False
    return mutant.after == mutant.before.replace(count[0], count[0].replace("-", "+", 1), 1)


def _other_lanes(plan: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True if the threads copy the same vectors of a tile, each another one."""
    column = re.fullmatch(r"const int copy_column_(\w) = (threadIdx\.x) % (kVectorsPerRow\w) \* kVector\w;", mutant.before)
    if not column or mutant.after != mutant.before.replace("threadIdx.x", "(threadIdx.x + 1)"):
        return False
    rows = f"const int copy_row_{column[1]} = threadIdx.x / {column[3]};"
    across = re.search(rf"constexpr int {column[3]} = (\d+);|constexpr int {column[3]} = (\w+) / (\w+);", source)
    if rows not in source or across is None:
        return False
    sizes = [int(found[1]) for name in across.groups()[1:] if name and (found := re.search(rf"constexpr int {name} = (\d+);", source))]
    if across[1] is None and len(sizes) < 2:
        return False
    vectors = int(across[1]) if across[1] else sizes[0] // sizes[1]
    threads = range(plan.sequence.launches[0].threads)
    return {(t // vectors, t % vectors) for t in threads} == {(t // vectors, (t + 1) % vectors) for t in threads}


def _subtracted_in_turn(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    found = re.fullmatch(r"(const int \w+ = \w+) - (\w+) - (\w+);", mutant.before)
    return found is not None and mutant.after == f"{found[1]} - {found[3]} - {found[2]};"


def _second_of_two(plan: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for a distance that is multiplied by the number of a block before this one in a cluster of two: by 0."""
    if {tuple(sorted(launch.cluster)) for launch in plan.sequence.launches} - {(1, 1, 1)} != {(1, 1, 2)}:
        return False
    factor = re.match(r"\+ \(\(rank - 1\) \* ", mutant.before)
    missing = factor is not None and mutant.kind == "a factor is missing" and mutant.after.startswith(factor[0])
    return missing or (mutant.before.count("+ (rank - 1) * ") == 1 and mutant.after == mutant.before.replace("+ (rank", "- (rank"))


def _steps_of_no_product(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for one turn more of the repair of planes, which copies zeros and multiplies none."""
    turns = "for (int first = 0; first < k; first += kRepairK) {"
    guarded = "first + i % kRepairK < k && first_" in source and "const int steps = min(kRepairK, k - first);" in source
    return guarded and (mutant.before, mutant.after) == (turns, turns.replace("first < k", "first <= k"))


_LAUNCH_BOUND = re.compile(r"__launch_bounds__\(kThreads(?:, \d+)?\)(?: __cluster_dims__\(kClusterBlocks, 1, 1\))?$")


def _threads_of_a_bound(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True if the number of threads is a promise to the compiler only, or divided with the same result."""
    declared = re.fullmatch(r"constexpr int kThreads = ([^;]+);", mutant.before)
    changed = re.fullmatch(r"constexpr int kThreads = ([^;]+);", mutant.after)
    if not declared or not changed:
        return False
    functions = re.sub(r"template <int kThreads>\n.*?\n\}\n", "", source, flags=re.DOTALL)
    uses = [line for line in re.sub("//.*", "", functions).split("\n") if "kThreads" in line and line.strip() != mutant.before]
    divided = "constexpr int kWarps = kThreads / 32;"
    bounds = [line for line in uses if line != divided]
    if divided in uses and not (declared[1].isdigit() and changed[1].isdigit() and int(declared[1]) // 32 == int(changed[1]) // 32):
        return False
    return all(_LAUNCH_BOUND.search(line.strip()) for line in bounds)


def _by_elements(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True if a whole vector is read or written element by element, as at an edge."""
    lines = [line.strip() for line in source.split("\n")][mutant.line - 1 :]
    whole = re.fullmatch(r"if \(available >= (\d+)\) \{", lines[0])
    if whole is None or mutant.after != "if (false) {" or "} else {" not in lines:
        return False
    loop = lines[lines.index("} else {") + 1 :][:4]
    body = " ".join(loop[2:4])
    copies = ("values[i] = i < available ? source[i] : 0.0f;", "if (i < available) target[i] = values[i];")
    return loop[1] == f"for (int i = 0; i < {whole[1]}; ++i)" and body.startswith(copies)


def _of_a_nan(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for the sum of two numbers, one of which is NaN by the line before."""
    return (mutant.previous, mutant.before, mutant.after) == ("if (a != a || b != b)", "return a + b;", "return a - b;")


def _pauses(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    return (mutant.before, mutant.after) == ("__nanosleep(pause);", ";")


def _tiles_of_nothing(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for a stage that is given back after a tile without steps, in a kernel whose tiles have as many steps, without a cluster."""
    if mutant.before != "if (work.steps > 0) {" or mutant.after not in ("if (true) {", "if (work.steps >= 0) {"):
        return False
    same = re.search(r"const int steps = \(k \+ kTileK - 1\) / kTileK;\s+work\.steps = steps;", source)
    return same is not None and source.count("work.steps =") == 1 and "arrive_remote" not in source


def _between_boxes(_: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for the elements from one box of a tile to the next, where a tile is one box."""
    found = re.match(r"constexpr int kBoxElements([AB]) = \d+;", mutant.before)
    if found is None or not mutant.after.startswith(f"constexpr int kBoxElements{found[1]} = "):
        return False
    uses = [line for line in code_of(source).split("\n") if f"kBoxElements{found[1]}" in line and line != mutant.before]
    named = f"kBoxes{found[1]}, kBoxElements{found[1]}, "
    apart = [line for line in code_of(source).split("\n") if "kElements" in line and not line.startswith("template <")]
    return (
        f"constexpr int kBoxes{found[1]} = 1;" in source
        and all(re.match(rf"load_(boxes|pieces)_2d<{named}", line) for line in uses)
        and all("x + box * kElements" in line and line.count("kElements") == 1 for line in apart)
    )


def _loads_of_a_tile(plan: KernelPlan, source: str, mutant: Mutant) -> bool:
    """True for the number of loads of a thread in a tile of a sum, by which all that depends on it is computed."""
    counts = [re.fullmatch(r"constexpr int kUnroll = (\d+);", text) for text in (mutant.before, mutant.after)]
    derived = "constexpr unsigned int kTile = kThreads * kUnroll;" in source and "\n    return a + b;\n" in source
    return plan.spec.kind == "reduction" and derived and all(count is not None and int(count[1]) > 0 for count in counts)


RULES: dict[str, Check] = {
    "A prefetch of a tensor map changes no value.": _prefetches,
    "A thread waits for its own copies only, and has none.": _waits_for_nothing,
    "The loop's counter rises: once a row or column lies outside, all later ones do.": _left_again,
    "Another order of the same tiles.": _order_of_tiles,
    "Fewer stages: the kernel of another spec, which has the same results.": _fewer_stages,
    "An array one larger, which is nowhere left: each access is checked against the memory that a block has.": _larger_array,
    "A block has one tile: it is at its end, and no stage is filled again.": _after_the_only_tile,
    "An array of a lane is longer than what is filled and read of it.": _larger_registers,
    "Zero becomes zero, of either sign.": _zero_of_either_sign,
    "Tiles past the last entry are zeros, in a stage that nobody reads.": _tiles_behind_the_last,
    "Fragments are read ahead that nobody multiplies.": _read_ahead,
    "Leading bytes of a descriptor count nowhere if rows run along k or a tile is one box.": _leading_bytes,
    "One tile or step more, behind the last: its elements are zeros and are not stored.": _outside,
    "The threads of a row copy the same vectors, each another one.": _other_lanes,
    "The same difference.": _subtracted_in_turn,
    "The second block of two is number 1: the distance is 0.": _second_of_two,
    "A turn of the repair behind the last has no products.": _steps_of_no_product,
    "The number of threads is part of a launch bound only.": _threads_of_a_bound,
    "A whole vector is copied element by element.": _by_elements,
    "One of the two is NaN, and so are their sum and their difference.": _of_a_nan,
    "The pause between two looks at memory takes time alone.": _pauses,
    "Tiles have no steps only with k of 0, and then none has: a stage is given back for which nobody waits.": _tiles_of_nothing,
    "A tile is one box: the way to the next one counts nowhere.": _between_boxes,
    "Tiles of another number of loads: each element is added once, in another order.": _loads_of_a_tile,
}
"""Reasons, each with its check."""


def rule_for(plan: KernelPlan, source: str, mutant: Mutant) -> str | None:
    """The reason why nothing observes a change; None if no rule covers it."""
    return next((why for why, holds in RULES.items() if holds(plan, source, mutant)), None)
