"""The table of statements that proofs understand: forms of one statement with one word more or less are none of them."""

from __future__ import annotations

import pytest

from gemmgen.emulator.ptx.parser import parse
from gemmgen.emulator.ptx.syntax import Instruction
from gemmgen.proof.forms import is_understood

HEAD = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x)
{
.reg .pred p, q; .reg .b32 a, b, c, d; .reg .b64 x1, x2; .reg .f32 f, g;
"""
UNDERSTOOD = (
    "ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {a, b, c, d}, [x1];",
    "ld.global.L2::cache_hint.f32 f, [x1], x2;",
    "ld.acquire.gpu.global.u32 a, [x1];",
    "st.release.gpu.global.u32 [x1], a;",
    "st.shared::cta.b32 [a], b;",
    "atom.global.add.f32 f, [x1], g;",
    "atom.add.acq_rel.gpu.u32 a, [x1], 1;",
    "red.relaxed.gpu.global.add.f32 [x1], f;",
    "cp.async.cg.shared.global.L2::128B [a], [x1], 16, b;",
    "bar.sync 0;",
    "barrier.sync.aligned 1, 64;",
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [a], b;",
    "mbarrier.arrive.release.cta.shared::cta.b64 _, [a];",
    "fence.proxy.async.shared::cta;",
    "fence.acq_rel.gpu;",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {a, b, c, d}, [a];",
    "tcgen05.wait::ld.sync.aligned;",
    "add.rn.ftz.f32 f, f, g;",
    "vote.sync.any.pred p, q, -1;",
)
OTHERS = (
    "ld.mmio.relaxed.sys.global.u32 a, [x1];",
    "ld.relaxed.global.u32 a, [x1];",
    "ld.global.L2::cache_hint.f32 f, [x1];",
    "ld.param::func.u32 a, [x];",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [a], b, [c];",
    "st.bulk.weak.shared::cta [a], x1, 0;",
    "st.param.b32 [x], a;",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [a], b, [c];",
    "cp.async.mbarrier.arrive.shared.b64 [a];",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [x1], [a], b;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [x1], b, [c];",
    "bar.arrive 1, 64;",
    "bar.red.popc.u32 a, 0, p;",
    "barrier.cluster.arrive.relaxed;",
    "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 p, [a], b;",
    "mbarrier.try_wait.parity.b64 p, [x1], b;",
    "mbarrier.arrive.noComplete.shared.b64 x1, [a], b;",
    "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [a];",
    "mbarrier.complete_tx.shared::cta.b64 [a], b;",
    "fence.proxy.alias;",
    "fence.proxy.tensormap::generic.release.gpu;",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {a, b}, [c];",
    "movmatrix.sync.aligned.m8n8.trans.b16 a, b;",
    "multimem.red.relaxed.gpu.global.add.f32 [x1], f;",
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [a], {b};",
    "tcgen05.mma.cta_group::1.kind::f16.collector::a::use [a], x1, x2, b, p;",
    "discard.global.L2 [x1], 128;",
    "shfl.idx.b32 a, b, 0, 31;",
    "vadd.s32.s32.s32 a, b, c;",
)


def statement(text: str) -> Instruction:
    (function,) = parse(f"{HEAD}{text}\n}}\n").functions.values()
    assert function.problem is None
    return function.body[0]


@pytest.mark.parametrize("text", UNDERSTOOD)
def test_a_listed_form_is_understood(text: str) -> None:
    assert is_understood(statement(text))


@pytest.mark.parametrize("text", OTHERS)
def test_no_other_form_is_understood(text: str) -> None:
    assert not is_understood(statement(text))
