"""Kernels of tensor memory as lists of PTX statements: each mistake leaves out, moves or changes one of them.

The first kernel multiplies twice, with A from shared memory and then from tensor memory; the second one multiplies in a pair of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gemmgen import emulator

from ..tcgen05 import core_matrices, descriptor

Statements = Mapping[str, str]
REGISTERS = [", ".join(f"%r{i}" for i in range(count)) for count in (8, 32)]
STORES = " ".join(f"st.global.v4.b32 [%out+{16 * i}], {{%r{4 * i}, %r{4 * i + 1}, %r{4 * i + 2}, %r{4 * i + 3}}};" for i in range(8))
BEFORE, AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
ARRIVE, AWAIT = "barrier.cluster.arrive.release.aligned;", "barrier.cluster.wait.acquire.aligned;"
HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {
.reg .pred %one, %warp, %q, %no, %lead; .reg .b32 %t, %w, %tm, %own, %lanes, %x, %z, %sa, %sb, %rank; .reg .b32 %r<32>; .reg .b16 %h;
.reg .b64 %ga, %gb, %gc, %out, %y, %da, %db, %o;
.shared .align 1024 .b8 SA[8192]; .shared .align 1024 .b8 SB[2048]; .shared .align 8 .b64 B1; .shared .align 8 .b64 B2; .shared .b32 SLOT;
mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; setp.eq.u32 %one, %t, 0; setp.lt.u32 %warp, %t, 32; setp.ne.u32 %no, 0, 0; shl.b32 %lanes, %w, 21;
mov.u32 %rank, %ctaid.x; setp.eq.u32 %lead, %rank, 0; mad.lo.u32 %x, %rank, 128, %t;
ld.param.u64 %ga, [pa]; ld.param.u64 %gb, [pb]; ld.param.u64 %gc, [pc]; ld.param.u64 %out, [pd];
mul.wide.u32 %o, %x, 32; add.u64 %ga, %ga, %o; add.u64 %gc, %gc, %o; mul.wide.u32 %o, %x, B_BYTES; add.u64 %gb, %gb, %o;
mul.wide.u32 %o, %x, D_BYTES; add.u64 %out, %out, %o;
mov.u32 %sa, SA; mad.lo.u32 %sa, %t, 32, %sa; mov.u32 %sb, SB; mad.lo.u32 %sb, %t, B_BYTES, %sb;
"""


def matrix(register: str, name: str, leading: int, stride: int, version: int = 1) -> str:
    """The descriptor of an operand without swizzle."""
    fields = leading >> 4 << 16 | stride >> 4 << 32 | version << 46
    return f"mov.u32 %x, {name}; cvt.u64.u32 %y, %x; shr.u64 %y, %y, 4; and.b64 %y, %y, 0x3fff; or.b64 {register}, %y, {fields};"


def wait(barrier: str, label: str) -> str:
    return f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %q, [{barrier}], 0; @!%q bra {label};"


def load(column: int) -> str:
    return f"add.u32 %x, %own, {column}; tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{REGISTERS[1]}}}, [%x];"


FOUR = "st.shared.v4.b32 [%sa], {%r0, %r1, %r2, %r3}; st.shared.v4.b32 [%sa+16], {%r4, %r5, %r6, %r7};"
EIGHT = "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [FROM]; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [FROM+16];"
ALONE = {
    "init": "@%one mbarrier.init.shared::cta.b64 [B1], 1; @%one mbarrier.init.shared::cta.b64 [B2], 1;",
    "alloc": "@%warp tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [SLOT], 128;",
    "relinquish": "@%warp tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    "fill": f"{EIGHT.replace('FROM', '%ga')} {FOUR} ld.global.v2.b32 {{%r0, %r1}}, [%gb]; st.shared.v2.b32 [%sb], {{%r0, %r1}};",
    "proxy": "fence.proxy.async.shared::cta;",
    "filled": f"{BEFORE} bar.sync 0; {AFTER}",
    "slot": "ld.shared.b32 %tm, [SLOT]; add.u32 %own, %tm, %lanes;",
    "matrices": matrix("%da", "SA", 2048, 128) + matrix("%db", "SB", 512, 128),
    "first product": f"@%one tcgen05.mma.cta_group::1.kind::f16 [%tm], %da, %db, {descriptor(128, 32, 0, 0, 1)}, %no;",
    "first commit": "@%one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [B1];",
    "store A": f"{EIGHT.replace('FROM', '%gc')} add.u32 %x, %own, 64; tcgen05.st.sync.aligned.32x32b.x8.b32 [%x], {{{REGISTERS[0]}}};",
    "stored": "tcgen05.wait::st.sync.aligned;",
    "before stores are used": BEFORE,
    "barrier of the stores": "bar.sync 0;",
    "after the stores": AFTER,
    "second product": "add.u32 %x, %tm, 32; add.u32 %z, %tm, 64; "
    f"@%one tcgen05.mma.cta_group::1.kind::f16 [%x], [%z], %db, {descriptor(128, 32, 0, 0, 1)}, %no;",
    "second commit": "@%one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [B2];",
    "first wait": wait("B1", "FIRST"),
    "after the first wait": AFTER,
    "first load": load(0),
    "first loaded": "tcgen05.wait::ld.sync.aligned;",
    "first result": STORES,
    "second wait": wait("B2", "SECOND"),
    "after the second wait": AFTER,
    "second load": load(32),
    "second loaded": "tcgen05.wait::ld.sync.aligned;",
    "second result": "add.u64 %out, %out, 128; " + STORES,
    "read": f"{BEFORE} bar.sync 0; {AFTER}",
    "free": "@%warp tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tm, 128;",
}
PAIR = {
    "init": "@%one mbarrier.init.shared::cta.b64 [B1], 1;",
    "alloc": "@%warp tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [SLOT], 64;",
    "relinquish": "@%warp tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;",
    "fill": f"{EIGHT.replace('FROM', '%ga')} {FOUR} ld.global.b32 %r0, [%gb]; st.shared.b32 [%sb], %r0;",
    "proxy": "fence.proxy.async.shared::cta;",
    "filled": f"{BEFORE} {ARRIVE} {AWAIT} {AFTER}",
    "slot": ALONE["slot"],
    "matrices": matrix("%da", "SA", 2048, 128) + matrix("%db", "SB", 256, 128),
    "leader": "@!%lead setp.ne.u32 %one, 0, 0;",
    "product": f"@%one tcgen05.mma.cta_group::2.kind::f16 [%tm], %da, %db, {descriptor(256, 32, 0, 0, 1)}, %no;",
    "commit": "mov.b16 %h, 3; @%one tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [B1], %h;",
    "wait": wait("B1", "DONE"),
    "after the wait": AFTER,
    "load": load(0),
    "loaded": "tcgen05.wait::ld.sync.aligned;",
    "result": STORES,
    "read": f"{BEFORE} {ARRIVE} {AWAIT} {AFTER}",
    "free": "@%warp tcgen05.dealloc.cta_group::2.sync.aligned.b32 %tm, 64;",
}


def launch(statements: Statements, **settings: Any) -> bool:
    """True if the kernel of these statements, with all checks, computes its product."""
    pair = "leader" in statements
    rng = np.random.default_rng(11)
    rows, b = 256 if pair else 128, rng.integers(-6, 7, (32, 16)).astype(np.float16)
    a, c = (rng.integers(-6, 7, (rows, 16)).astype(np.float16) for _ in range(2))
    wanted = np.hstack([left.astype(np.float32) @ b.T for left in ((a,) if pair else (a, c))])
    parts = [np.concatenate([core_matrices(part) for part in np.split(each, 1 + pair)]) for each in (a, b)]
    d = np.zeros_like(wanted)
    head = HEAD.replace("B_BYTES", "4" if pair else "8").replace("D_BYTES", str(d.strides[0]))
    text = head + "\n".join(statements.values()) + "\nret;\n}\n"
    emulator.launch(text, "k", grid=1 + pair, block=128, args=[*parts, c, d], hazards=True, cluster=1 + pair, **settings)
    return np.array_equal(d, wanted)


def without(kernel: Statements, *names: str) -> Statements:
    assert set(names) <= set(kernel)
    return {name: statement for name, statement in kernel.items() if name not in names}


def changed(kernel: Statements, name: str, old: str, new: str) -> Statements:
    assert old in kernel[name]
    return {**kernel, name: kernel[name].replace(old, new)}


def moved(kernel: Statements, moving: str, behind: str) -> Statements:
    order = [name for name in kernel if name != moving]
    order.insert(order.index(behind) + 1, moving)
    return {name: kernel[name] for name in order}


IN_USE, MISUSED, UNWRITTEN = emulator.TensorMemoryInFlight, emulator.TensorMemoryMisuse, emulator.UnwrittenRead
MISTAKES: dict[str, tuple[Statements, type[emulator.EmulatorError]]] = {
    "sums before their commit": (without(ALONE, "first wait"), IN_USE),
    "later sums before their commit": (without(ALONE, "second wait"), IN_USE),
    "no fence behind a wait": (without(ALONE, "after the first wait"), emulator.MissingTensorFence),
    "registers before wait::ld": (without(ALONE, "first loaded"), emulator.TensorLoadInFlight),
    "A before wait::st": (without(ALONE, "stored"), IN_USE),
    "no fence before the barrier": (without(ALONE, "before stores are used"), emulator.MissingTensorFence),
    "no fence of the thread that multiplies": (without(ALONE, "after the stores"), emulator.MissingTensorFence),
    "no barrier behind the stores": (without(ALONE, "barrier of the stores"), emulator.TensorRace),
    "no proxy fence": (without(ALONE, "proxy"), emulator.MissingProxyFence),
    "no barrier behind the fill": (without(ALONE, "filled"), emulator.SharedRace),
    "never freed": (without(ALONE, "free"), MISUSED),
    "freed twice": ({**ALONE, "again": "bar.sync 0; " + ALONE["free"]}, MISUSED),
    "half of it freed": (changed(ALONE, "free", "128;", "64;"), MISUSED),
    "freed before the last load": (moved(ALONE, "free", "first loaded"), IN_USE),
    "columns behind the allocation": (changed(ALONE, "second load", "%own, 32", "%own, 112"), MISUSED),
    "lanes of the next warp": (changed(ALONE, "slot", "%tm, %lanes;", "%tm, %lanes; xor.b32 %own, %own, 0x200000;"), MISUSED),
    "a product over the other's sums": (changed(ALONE, "second product", "%tm, 32;", "%tm, 0;"), IN_USE),
    "B refilled under a product": (
        {**ALONE, "second commit": ALONE["second commit"] + " st.shared.b32 [%sb], %r0;"},
        emulator.InFlightWrite,
    ),
    "A in columns that nothing stored": (changed(ALONE, "second product", "%tm, 64;", "%tm, 80;"), UNWRITTEN),
    "allocated after giving up the permit": (moved(ALONE, "relinquish", "init"), MISUSED),
    "the parity of the next phase": (changed(ALONE, "second wait", "[B2], 0", "[B2], 1"), IN_USE),
    "both commits at one barrier": (changed(ALONE, "first commit", "[B1]", "[B2]"), emulator.Deadlock),
    "version bits": ({**ALONE, "matrices": matrix("%da", "SA", 2048, 128, 0) + matrix("%db", "SB", 512, 128)}, emulator.InvalidMatrix),
    "a stride beyond the filled part": ({**ALONE, "matrices": matrix("%da", "SA", 2048, 384) + matrix("%db", "SB", 512, 128)}, UNWRITTEN),
    "a sum that nothing began": (changed(ALONE, "first product", "%no;", "%one;"), UNWRITTEN),
    "a barrier that counts two": (changed(ALONE, "init", "[B2], 1", "[B2], 2"), emulator.Deadlock),
    "a product of every lane": (changed(ALONE, "first product", "@%one", "@%warp"), emulator.TensorRace),
    "A over the running sums": (changed(ALONE, "store A", "%own, 64", "%own, 16"), IN_USE),
    "commit at the leader alone": (changed(PAIR, "commit", "%h, 3;", "%h, 1;"), emulator.Deadlock),
    "a barrier of each block": (changed(PAIR, "filled", f"{ARRIVE} {AWAIT}", "bar.sync 0;"), emulator.SharedRace),
    "freed as a single block": (changed(PAIR, "free", "cta_group::2", "cta_group::1"), MISUSED),
    "committed as a single block": (changed(PAIR, "commit", "cta_group::2", "cta_group::1"), MISUSED),
    "one block allocates": (changed(PAIR, "alloc", "@%warp", "setp.lt.and.u32 %q, %t, 32, %lead; @%q"), MISUSED),
    "B of one block not fenced": ({**PAIR, "proxy": "@%lead " + PAIR["proxy"]}, emulator.MissingProxyFence),
    "a form of too many rows": (
        changed(PAIR, "product", str(descriptor(256, 32, 0, 0, 1)), str(descriptor(208, 32, 0, 0, 1))),
        emulator.InvalidMatrix,
    ),
}
SOUND: dict[str, Statements] = {
    "alone": ALONE,
    "a pair": PAIR,
    "issued by the second block": changed(PAIR, "leader", "@!%lead", "@%lead"),
    "no cluster barrier before freeing": changed(PAIR, "read", f"{ARRIVE} {AWAIT}", "bar.sync 0;"),
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_is_clean(name: str, seed: int | None) -> None:
    assert launch(SOUND[name], **({} if seed is None else {"schedule": emulator.RandomWarps(seed)}))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_statement_is_found(name: str) -> None:
    statements, kind = MISTAKES[name]
    with pytest.raises(emulator.EmulatorError) as caught:
        launch(statements)
    error = caught.value
    assert kind in {type(found) for found in (error, *getattr(error, "also", ()), getattr(error, "ending", None))}
