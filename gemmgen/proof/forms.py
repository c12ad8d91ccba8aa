"""The forms of statements that proofs understand. Nothing is proved of a kernel with a statement of another form.

Statements that only compute registers from registers may have any form: a result without a formula is any number. All others are listed
with each of their modifiers, for both ways of lifting a kernel.
"""

from __future__ import annotations

import re

from gemmgen.emulator.ptx.syntax import Instruction

# fmt: off
PURE = frozenset((
    "abs", "activemask", "add", "addc", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cos", "createpolicy",
    "cvt", "cvta", "div", "dp2a", "dp4a", "elect", "ex2", "fma", "fns", "isspacep", "lg2", "lop3", "mad", "mad24", "madc", "mapa", "match",
    "max", "min", "mma", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rcp", "redux", "rem", "rsqrt", "sad", "selp", "set",
    "setp", "shf", "shfl", "shl", "shr", "sin", "slct", "sqrt", "sub", "subc", "szext", "tanh", "testp", "vote", "xor"
))
# fmt: on
"""Opcodes that compute registers from registers."""
OF_LANES = frozenset(("elect", "match", "mma", "redux", "shfl", "vote"))
"""Those among them that lanes of a warp carry out together."""
WITHOUT_EFFECT = frozenset(("membar", "nanosleep", "prefetch"))
"""Opcodes that change neither memory nor registers. Fences order accesses of different threads, which proofs take for granted nowhere."""

CACHE_HINT = "L2::cache_hint"
"""A modifier with which a policy of caches is one more operand."""
HINTED = frozenset(("ld", "st", "atom", "red", "cp"))

_SCOPE = r"(?:cta|cluster|gpu|sys)"
_SPACE = r"(?:\.global|\.shared(?:::cta|::cluster)?|\.local)?"
_CACHE = r"(?:\.(?:ca|cg|cs|lu|cv|wb|wt|L[12]::\w+(?:::\w+)?))*"
_TYPE = r"\.(?:b8|b16|b32|b64|b128|[us](?:8|16|32|64)|f32|f64)"
_LOAD = rf"(?:\.weak|\.volatile|\.relaxed\.{_SCOPE}|\.acquire\.{_SCOPE})?{_SPACE}{_CACHE}(?:\.v[248])?{_TYPE}"
_STORE = rf"(?:\.weak|\.volatile|\.relaxed\.{_SCOPE}|\.release\.{_SCOPE})?{_SPACE}{_CACHE}(?:\.v[248])?{_TYPE}"
_ORDER = rf"(?:\.(?:relaxed|acquire|release|acq_rel))?(?:\.{_SCOPE})?(?:\.global|\.shared(?:::cta)?)?"
_ADDS = r"\.(?:add|and|or|xor|min|max|inc|dec)(?:\.noftz)?"
_NUMBER = r"(?:\.v[248])?\.(?:[usb](?:32|64)|f16|f16x2|bf16|bf16x2|f32|f64)"
_REDUCTION = rf"(?:{_ORDER}{_ADDS}|{_ADDS}{_ORDER}){_NUMBER}"
_MATRICES = r"\.sync\.aligned\.m8n8\.x[124](?:\.trans)?(?:\.shared(?:::cta)?)?\.b16"
_TENSOR = r"\.async\.bulk\.tensor\.[1-5]d"
_OWN = r"\.shared(?:::cta)?"

_FORMS: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "ld": ((_LOAD, (2,)), (rf"\.global{_CACHE}\.nc{_CACHE}(?:\.v[248])?{_TYPE}", (2,)), (rf"\.(?:param|const)(?:\.v[24])?{_TYPE}", (2,))),
    "st": ((_STORE, (2,)),),
    "atom": (
        (_REDUCTION, (3,)),
        (rf"(?:{_ORDER}\.exch|\.exch{_ORDER})\.b(?:32|64)", (3,)),
        (rf"(?:{_ORDER}\.cas|\.cas{_ORDER})\.b(?:16|32|64)", (4,)),
    ),
    "red": ((_REDUCTION, (2,)),),
    "ldmatrix": ((_MATRICES, (2,)),),
    "stmatrix": ((_MATRICES, (2,)),),
    "cp": (
        (rf"\.async\.(?:ca|cg)\.shared(?:::cta)?\.global{_CACHE}", (3, 4)),
        (r"\.async\.(?:bulk\.)?commit_group", (0,)),
        (r"\.async\.wait_group", (1,)),
        (r"\.async\.wait_all", (0,)),
        (r"\.async\.bulk\.wait_group(?:\.read)?", (1,)),
        (rf"{_TENSOR}\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes", (3,)),
        (rf"{_TENSOR}\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes\.multicast::cluster", (4,)),
        (rf"{_TENSOR}\.global\.shared::cta\.tile\.bulk_group", (2,)),
    ),
    "bar": ((r"(?:\.cta)?\.sync(?:\.aligned)?", (1, 2)), (r"\.warp\.sync", (1,))),
    "barrier": (
        (r"(?:\.cta)?\.sync(?:\.aligned)?", (1, 2)),
        (r"\.cluster\.(?:arrive(?:\.release)?|wait(?:\.acquire)?)(?:\.aligned)?", (0,)),
    ),
    "mbarrier": (
        (rf"\.init{_OWN}\.b64", (2,)),
        (rf"\.(?:try|test)_wait\.parity(?:\.acquire\.(?:cta|cluster))?{_OWN}\.b64", (3, 4)),
        (rf"\.arrive(?:\.release\.(?:cta|cluster))?{_OWN}\.b64", (2, 3)),
        (r"\.arrive(?:\.release\.cluster)?\.shared::cluster\.b64", (2, 3)),
        (rf"\.arrive\.expect_tx(?:\.release\.(?:cta|cluster))?{_OWN}\.b64", (3,)),
    ),
    "fence": (
        (rf"\.(?:sc|acq_rel|acquire|release)\.{_SCOPE}", (0,)),
        (r"\.mbarrier_init\.release\.cluster", (0,)),
        (r"\.proxy\.async(?:\.global|\.shared::cta|\.shared::cluster)?", (0,)),
    ),
    "membar": ((r"\.(?:cta|gl|sys)", (0,)),),
    "griddepcontrol": ((r"\.(?:wait|launch_dependents)", (0,)),),
    "nanosleep": ((r"\.u32", (1,)),),
    "prefetch": ((r"\.tensormap", (1,)), (r"(?:\.global|\.local)?\.L[12](?:::\w+)?", (1,))),
    "setmaxnreg": ((r"\.(?:inc|dec)\.sync\.aligned\.u32", (1,)),),
    "wgmma": (
        (r"\.(?:fence|commit_group)\.sync\.aligned", (0,)),
        (r"\.wait_group\.sync\.aligned", (1,)),
        (r"\.mma_async(?:\.sp)?\.sync\.aligned\.m64n\d+k\d+\.\w+\.\w+\.\w+(?:\.satfinite)?", (4, 5, 6, 7, 8, 9, 10)),
    ),
    "tcgen05": (
        (r"\.alloc\.cta_group::1\.sync\.aligned\.shared::cta\.b32", (2,)),
        (r"\.dealloc\.cta_group::1\.sync\.aligned\.b32", (2,)),
        (r"\.relinquish_alloc_permit\.cta_group::1\.sync\.aligned", (0,)),
        (r"\.fence::(?:before|after)_thread_sync", (0,)),
        (r"\.wait::ld\.sync\.aligned", (0,)),
        (r"\.ld\.sync\.aligned\.(?:32x32b|16x64b|16x128b|16x256b)\.x\d+\.b32", (2,)),
        (r"\.mma\.cta_group::1\.kind::(?:f16|tf32|f8f6f4|i8)", (5,)),
        (r"\.commit\.cta_group::1\.mbarrier::arrive::one\.shared::cluster\.b64", (1,)),
    ),
    "bra": ((r"(?:\.uni)?", (1,)),),
    "ret": ((r"(?:\.uni)?", (0,)),),
    "exit": ((r"", (0,)),),
    "trap": ((r"", (0,)),),
}
"""By opcode: a pattern of modifiers, and the numbers of operands that it may have."""
_PATTERNS = {opcode: [(re.compile(pattern), counts) for pattern, counts in forms] for opcode, forms in _FORMS.items()}


def is_understood(instruction: Instruction) -> bool:
    """True for a statement whose effect on memory, threads and control flow the proofs model."""
    if instruction.has("uni") and instruction.guard is not None:
        return False  # lanes that differ would make it undefined
    if instruction.opcode in PURE:
        together = instruction.opcode not in OF_LANES or instruction.has("sync")
        return together and bool(instruction.operands)
    words = "".join(f".{word}" for word in instruction.modifiers if word != CACHE_HINT)
    count = len(instruction.operands) - instruction.has(CACHE_HINT)
    if instruction.has(CACHE_HINT) and instruction.opcode not in HINTED:
        return False
    return any(pattern.fullmatch(words) and count in counts for pattern, counts in _PATTERNS.get(instruction.opcode, ()))
