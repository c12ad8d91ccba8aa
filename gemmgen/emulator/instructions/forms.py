"""Modifiers that each opcode may carry. A modifier that no handler knows must not be ignored: it may change the result."""

from __future__ import annotations

from gemmgen.emulator.errors import UnknownInstruction
from gemmgen.emulator.instructions.combinations import check_combination
from gemmgen.emulator.ptx.syntax import TYPE_BYTES, Instruction

SPARSE = ("sp", "sp::ordered_metadata")
"""Modifiers of products whose A lacks half of its elements."""
_TYPES = " ".join(TYPE_BYTES)
_ROUNDINGS = "rn rz rm rp"
_COMPARISONS = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan"
_SPACES = "global shared shared::cta shared::cluster local param param::entry param::func const"
_SHAPES = "m8n8k4 m8n8k16 m8n8k32 m16n8k4 m16n8k8 m16n8k16 m16n8k32 m16n8k64 m16n8k128"
_KINDS = "kind::f8f6f4 kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4"
_SCALE_VECTORS = "scale_vec::1X scale_vec::2X scale_vec::4X"
_WARPGROUP_SHAPES = " ".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32, 64))
_TENSOR_KINDS = "kind::f16 kind::tf32 kind::i8 kind::f8f6f4 kind::mxf8f6f4 kind::mxf4 kind::mxf4nvf4"
_COLLECTORS = " ".join(
    f"collector::{buffer}::{use}" for buffer in ("a", "b0", "b1", "b2", "b3") for use in ("fill", "use", "lastuse", "discard")
)
_TENSOR_COPIES = "128x256b 4x256b b8x16 b6x16_p32 b4x16_p64 128x128b 64x128b 32x128b warpx4 warpx2::02_13 warpx2::01_23"
_ORDER = "weak volatile mmio relaxed acquire release acq_rel sc cta cluster gpu sys"

_FORMS = {
    "add sub": f"{_ROUNDINGS} ftz sat cc u16x2 s16x2",
    "mul mad": f"lo hi wide {_ROUNDINGS} ftz sat cc",
    "addc subc": "cc",
    "madc": "lo hi cc",
    "fma": f"{_ROUNDINGS} ftz sat relu",
    "mul24 mad24": "lo hi sat",
    "div": f"approx full {_ROUNDINGS} ftz",
    "rcp sqrt rsqrt": f"approx {_ROUNDINGS} ftz",
    "ex2 lg2 sin cos tanh": "approx ftz",
    "rem sad dp4a copysign and or xor not cnot shl shr popc clz brev bfe bfi fns selp mov activemask": "",
    "neg abs slct": "ftz",
    "szext": "clamp wrap",
    "min max": "ftz NaN xorsign abs relu u16x2 s16x2",
    "dp2a": "lo hi",
    "lop3": "and or",
    "bfind": "shiftamt",
    "bmsk": "clamp wrap",
    "shf": "l r clamp wrap",
    "prmt": "f4e b4e rc8 ecl ecr rc16",
    "testp": "finite infinite number notanumber normal subnormal",
    "setp set": f"{_COMPARISONS} and or xor ftz",
    "cvt": f"{_ROUNDINGS} rna rni rzi rmi rpi ftz sat relu satfinite tf32 pack e4m3x2 e5m2x2 e2m3x2 e3m2x2 e2m1x2 ue8m0x2 "
    "rs e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4 u4 s4 u2 s2",
    "cvta": f"to {_SPACES}",
    "isspacep": _SPACES,
    "ld ldu": f"{_ORDER} {_SPACES} v2 v4 v8 ca cg cs lu cv nc",
    "st": f"{_ORDER} {_SPACES} v2 v4 v8 wb cg cs wt async mbarrier::complete_tx::bytes",
    "atom red": f"{_ORDER} {_SPACES} async mbarrier::complete_tx::bytes add min max inc dec and or xor exch cas noftz v2 v4 v8",
    "membar": "cta gl sys",
    "fence": f"{_ORDER} proxy alias async async::generic async::global async::shared::cta async::shared::cluster global shared::cta "
    "shared::cluster mbarrier_init tensormap::generic sync_restrict::shared::cta sync_restrict::shared::cluster",
    "bar barrier": "cta warp sync arrive red popc and or aligned cluster wait acquire release relaxed",
    "mbarrier": f"init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait parity noComplete pending_count {_ORDER} "
    "shared shared::cta shared::cluster",
    "mapa getctarank": "shared::cluster",
    "clusterlaunchcontrol": "try_cancel async shared::cta mbarrier::complete_tx::bytes multicast::cluster::all query_cancel is_canceled "
    "get_first_ctaid get_first_ctaid::x get_first_ctaid::y get_first_ctaid::z v4",
    "setmaxnreg": "inc dec sync aligned",
    "griddepcontrol": "launch_dependents wait",
    "shfl": "sync up down bfly idx",
    "vote": "sync all any uni ballot",
    "match": "sync all any",
    "redux": "sync add min max and or xor abs NaN",
    "elect": "sync",
    "ldmatrix": "sync aligned m8n8 m8n16 m16n16 x1 x2 x4 trans shared shared::cta b8x16 b6x16_p32 b4x16_p64",
    "stmatrix": "sync aligned m8n8 m16n8 x1 x2 x4 trans shared shared::cta",
    "mma": f"sync aligned sp sp::ordered_metadata {_SHAPES} row col satfinite s4 u4 tf32 e4m3 e5m2 e3m2 e2m3 e2m1 {_KINDS} "
    f"block_scale {_SCALE_VECTORS} ue8m0 ue4m3",
    "wgmma": f"sync aligned fence commit_group wait_group mma_async sp satfinite tf32 e4m3 e5m2 {_WARPGROUP_SHAPES}",
    "tcgen05": "alloc dealloc relinquish_alloc_permit fence::before_thread_sync fence::after_thread_sync wait::ld wait::st commit ld st cp "
    "shift down mma ws sp red min max abs NaN sync aligned shared::cta shared::cluster multicast::cluster mbarrier::arrive::one "
    f"cta_group::1 cta_group::2 {_TENSOR_KINDS} {_COLLECTORS} {_TENSOR_COPIES} block_scale block16 block32 {_SCALE_VECTORS} 32x32b "
    f"16x32bx2 16x64b 16x128b 16x256b pack::16b unpack::16b {' '.join(f'x{1 << i}' for i in range(8))}",
    "movmatrix": "sync aligned m8n8 trans",
    "cp": "async ca cg shared shared::cta shared::cluster global commit_group wait_group wait_all mbarrier arrive noinc bulk bulk_group "
    "mbarrier::complete_tx::bytes multicast::cluster cta_group::1 cta_group::2 "
    "tensor 1d 2d 3d 4d 5d tile im2col im2col_no_offs prefetch L2 reduce read cp_mask "
    "add min max inc dec and or xor noftz",
    "tex": "1d 2d 3d a1d a2d cube acube v4 level grad",
    "tld4": "r g b a 2d v4",
    "suld sust": "b 1d 2d 3d a1d a2d v2 v4 trap clamp zero ca cg cs cv wb wt",
    "tensormap": "replace tile global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout swizzle_mode "
    "swizzle_atomicity fill_mode global shared::cta b1024 cp_fenceproxy tensormap::generic release cta cluster gpu sys sync aligned",
    "bra ret": "uni",
    "brx": "idx uni",
    "exit": "",
    "trap": "assert nowhere",
}

_ALLOWED = {opcode: frozenset(f"{_TYPES} {words}".split()) for names, words in _FORMS.items() for opcode in names.split()}


def check_form(inst: Instruction) -> None:
    """Raises UnknownInstruction for a modifier that the opcode's handler does not know. Cache hints pass."""
    allowed = _ALLOWED.get(inst.opcode)
    if allowed is None:
        return
    for modifier in inst.modifiers:
        if modifier not in allowed and not modifier.startswith(("L1::", "L2::")):
            raise UnknownInstruction(f"{inst.opcode} with the modifier .{modifier}", instruction=inst)
    check_combination(inst)
