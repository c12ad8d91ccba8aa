"""Instructions of the asynchronous machine with each of their modifiers, executed in kernels of two blocks that meet before and after."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from gemmgen.emulator import TensorMap

from .prelude import run
from .test_every_form import BLOCKS
from .test_every_form import FORMS as OTHER_FORMS

LANES = np.arange(64)
ORDERS = ("", ".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster")
LOOKS = ("", ".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster")
ARRIVALS = (("arrive", "_", ""), ("arrive", "_", ", 1"), ("arrive", "%1", ", 1"), ("arrive_drop", "_", ""), ("arrive_drop", "%1", ", 1"))
HINT = "createpolicy.fractional.L2::evict_first.b64 hint, 1.0;"


NEAR, FAR = ':: "r"(b)', ':: "r"(far)'


def alone(text: str, operands: str = NEAR) -> str:
    """A statement of one thread."""
    return f'if (t == 0) asm volatile("{text}" {operands} : "memory");'


def arrivals() -> Iterator[tuple[str, str, np.ndarray]]:
    """Arrivals at one's own barrier and at another block's, then a wait."""
    for order, (name, state, count) in product(ORDERS, ARRIVALS):
        form = f"mbarrier.{name}{order}.shared::cta.b64 {state}, [%0]{count};"
        arrival = alone(form) if state == "_" else _returning(form)
        yield form, f"u64 old; {arrival} wait(&bar, 0); box[t] += 1; (void)old;", LANES + 1
    for order, (name, state, count) in product((".release.cluster", ".relaxed.cluster"), ARRIVALS):
        if state == "_":
            form = f"mbarrier.{name}{order}.shared::cluster.b64 _, [%0]{count};"
            yield form, f"{alone(form, FAR)} wait(&bar, 0); box[t] += 2;", LANES + 2
    for order, name in product(ORDERS, ("arrive", "arrive_drop")):
        form = f"mbarrier.{name}.expect_tx{order}.shared::cta.b64 _, [%0], 4;"
        done = alone("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 4;")
        yield form, f"{alone(form)} {done} wait(&bar, 0); box[t] += 3;", LANES + 3
    for scope, space in (("cta", "cta"), ("cluster", "cta"), ("cluster", "cluster")):
        which = FAR if space == "cluster" else NEAR
        form = f"mbarrier.expect_tx.relaxed.{scope}.shared::{space}.b64 [%0], 8;"
        done = alone(f"mbarrier.complete_tx.relaxed.{scope}.shared::{space}.b64 [%0], 8;", which)
        yield form, f"{alone(form, which)} cluster_sync(); {done} if (t == 0) arrive(&bar); wait(&bar, 0); box[t] += 4;", LANES + 4
    for name in ("arrive", "arrive_drop"):
        form = f"mbarrier.{name}.noComplete.release.cta.shared::cta.b64 %0, [%1], 1;"
        first = f'u64 old; asm volatile("{form}" : "=l"(old) : "r"(shared_address(&state)) : "memory"); arrive(&state);'
        yield form, f"if (t == 0) init(&state, 2); __syncthreads(); if (t == 0) {{ {first} }} wait(&state, 0); box[t] += 5;", LANES + 5


def _returning(form: str) -> str:
    """An arrival of one thread that returns the state before it."""
    text = form.replace("[%0]", "[%2]").replace("%1", "%0").replace("%2", "%1")
    return f'if (t == 0) asm volatile("{text}" : "=l"(old) : "r"(b) : "memory");'


def looks() -> Iterator[tuple[str, str, np.ndarray]]:
    """Waits for a phase that one thread completes."""
    for look, (name, time), parity in product(LOOKS, (("test_wait", ""), ("try_wait", ""), ("try_wait", ", 100")), (True, False)):
        form = f"mbarrier.{name}{'.parity' if parity else ''}{look}.shared::cta.b64 p, [%0], {'0' if parity else '%1'}{time};"
        given = '"l"(state)'
        first = (
            'if (t == 0) { asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory"); } __syncthreads();'
        )
        loop = f'asm volatile("{{.reg .pred p;\\nAGAIN: {form}\\n@!p bra AGAIN;}}" :: "r"(b), {given} : "memory");'
        yield form, f"{first} {loop} box[t] += 6;", LANES + 6


def copies() -> Iterator[tuple[str, str, np.ndarray]]:
    """Bulk copies in every direction, with and without a hint."""
    for space, hint, mask in product(("shared::cluster", "shared::cta"), (False, True), (False, True)):
        if mask and space == "shared::cta":
            continue
        words = f"{'.multicast::cluster' if mask else ''}{'.L2::cache_hint' if hint else ''}"
        tail = f"{', %3' if mask else ''}{', hint' if hint else ''}"
        form = f"cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes{words} [%0], [%1], 256, [%2]{tail};"
        copy = (
            f'asm volatile("{{.reg .b64 hint; {HINT} {form}}}" :: "r"(shared_address(box)), "l"(in), "r"(b), "h"((u16)3) : "memory");'
            if hint
            else f'asm volatile("{form}" :: "r"(shared_address(box)), "l"(in), "r"(b), "h"((u16)3) : "memory");'
        )
        first = "rank() == 0" if mask else "true"
        yield form, f"if (t == 0) arrive_expect(&bar, 256); cluster_sync(); if (t == 0 && {first}) {{ {copy} }} wait(&bar, 0);", 3 * LANES
    for hint, name in product((False, True), ("cp.async.bulk", "cp.reduce.async.bulk")):
        reduce = ".add.u32" if "reduce" in name else ""
        form = f"{name}.global.shared::cta.bulk_group{'.L2::cache_hint' if hint else ''}{reduce} [%0], [%1], 256{', hint' if hint else ''};"
        text = f"{{.reg .b64 hint; {HINT} {form}}}" if hint else form
        store = f'asm volatile("{text}" :: "l"(other_in + 64 * blockIdx.x), "r"(shared_address(box)) : "memory");'
        back = "__syncthreads(); box[t] = ((volatile int*)other_in)[64 * blockIdx.x + t];"
        yield form, f"if (t == 0) {{ {store} commit(); wait_group<0>(); }} {back}", LANES
    for hint in (False, True):
        form = f"cp.async.bulk.prefetch.L2.global{'.L2::cache_hint' if hint else ''} [%0], 256{', hint' if hint else ''};"
        text = f"{{.reg .b64 hint; {HINT} {form}}}" if hint else form
        yield form, f'if (t == 0) asm volatile("{text}" :: "l"(in) : "memory"); box[t] += 7;', LANES + 7


REDUCTIONS = {
    "add": ("u32 s32 u64", np.add),
    "min": ("u32 s32", np.minimum),
    "max": ("u32 s32", np.maximum),
    "inc": ("u32", lambda old, limit: np.where(old >= limit, 0, old + 1)),
    "dec": ("u32", lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1)),
    "and": ("b32", np.bitwise_and),
    "or": ("b32", np.bitwise_or),
    "xor": ("b32", np.bitwise_xor),
}


def reductions() -> Iterator[tuple[str, str, np.ndarray]]:
    """Reductions into another block's memory: whole runs by TMA, and single words by threads."""
    for name, (types, reference) in REDUCTIONS.items():
        for kind in types.split():
            whole = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{name}.{kind} [%0], [%1], 256, [%2];"
            copy = f'asm volatile("{whole}" :: "r"(peer_address(box, rank() ^ 1)), "r"(shared_address(other)), "r"(far) : "memory");'
            start = "if (t == 0) arrive_expect(&bar, 256); cluster_sync();"
            want = reference(LANES, 10 * LANES)
            yield whole, f"{start} if (t == 0) {{ {copy} }} wait(&bar, 0);", want
            if kind != "u64":
                word = f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{name}.{kind} [%0], %1, [%2];"
                yield word, f'{start} asm volatile("{word}" :: "r"(place), "r"(10 * t), "r"(far) : "memory"); wait(&bar, 0);', want
                atom = f"atom.relaxed.cluster.shared::cluster.{name}.{kind} %0, [%1], %2;"
                yield atom, f'int old; asm volatile("{atom}" : "=r"(old) : "r"(place), "r"(10 * t) : "memory");', want
                red = f"red.relaxed.cluster.shared::cluster.{name}.{kind} [%0], %1;"
                yield red, f'asm volatile("{red}" :: "r"(place), "r"(10 * t) : "memory");', want
    for name, tail, want in (("exch", ", %2", LANES + 50), ("cas", ", %3, %2", LANES + 50)):
        form = f"atom.relaxed.cluster.shared::cluster.{name}.b32 %0, [%1]{tail};"
        yield form, f'int old; asm volatile("{form}" : "=r"(old) : "r"(place), "r"(t + 50), "r"(t) : "memory");', want
    for kind, letter in (("b32", "r"), ("u32", "r"), ("s32", "r"), ("f32", "f"), ("b64", "l"), ("u64", "l"), ("s64", "l"), ("f64", "d")):
        wide = letter in "ld"
        form = f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{kind} [%0], %1, [%2];"
        value = {"r": "t", "f": "__int_as_float(t)", "l": "(u64)t", "d": "__longlong_as_double(t)"}[letter]
        send = f'asm volatile("{form}" :: "r"(place), "{letter}"({value}), "r"(far) : "memory");'
        who = "if (t % 2 == 0)" if wide else ""
        want = np.where(LANES % 2, 0, LANES) if wide else LANES
        yield form, f"if (t == 0) arrive_expect(&bar, 256); box[t] = -1; cluster_sync(); {who} {send} wait(&bar, 0);", want
    for count, kind, letter in ((2, "b32", "r"), (4, "f32", "f"), (2, "b64", "l"), (2, "s64", "l")):
        lanes = count * (2 if letter == "l" else 1)
        form = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v{count}.{kind} [%0], {{{', '.join(['%1'] * count)}}}, [%2];"
        value = {"r": "t", "f": "__int_as_float(t)", "l": "((u64)t << 32 | t)"}[letter]
        send = f'if (t % {lanes} == 0) asm volatile("{form}" :: "r"(place), "{letter}"({value}), "r"(far) : "memory");'
        yield form, f"if (t == 0) arrive_expect(&bar, 256); box[t] = -1; cluster_sync(); {send} wait(&bar, 0);", LANES // lanes * lanes


REMOTE_STORE = 'asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(place), "r"(9) : "memory");'


def meetings() -> Iterator[tuple[str, str, np.ndarray]]:
    """Barriers of the cluster and of parts of a block."""
    for order, aligned, look in product((".release", ""), (".aligned", ""), (".acquire", "")):
        form = f"barrier.cluster.arrive{order}{aligned}; barrier.cluster.wait{look}{aligned};"
        body = f'{REMOTE_STORE} asm volatile("{form}" ::: "memory"); box[t] += 1;'
        yield form, body, np.full(64, 10)
    for aligned in (".aligned", ""):
        form = f"fence.acq_rel.cluster; barrier.cluster.arrive.relaxed{aligned}; barrier.cluster.wait{aligned}; fence.acq_rel.cluster;"
        body = f'{REMOTE_STORE} asm volatile("{form}" ::: "memory"); box[t] += 1;'
        yield form, body, np.full(64, 10)
    for sync in (
        "bar.sync 3, 64;",
        "bar.sync 3;",
        "barrier.sync 3;",
        "barrier.cta.sync 3, 64;",
        "barrier.cta.sync.aligned 3, 64;",
        "bar.cta.sync 3, 64;",
    ):
        yield (
            sync,
            f'asm volatile("{sync}" ::: "memory"); int v = other[t ^ 33]; asm volatile("{sync}" ::: "memory"); box[t] = v;',
            10 * (LANES ^ 33),
        )
    for arrive, sync in (("bar.arrive 2, 64;", "bar.sync 2, 64;"), ("barrier.cta.arrive 2, 64;", "barrier.cta.sync 2, 64;")):
        first = f'box[t + 32] = 4; asm volatile("{arrive}" ::: "memory");'
        body = f'if (t < 32) {{ {first} }} else {{ asm volatile("{sync}" ::: "memory"); box[t] += 1; }}'
        yield f"{arrive} {sync}", body, np.where(LANES < 32, LANES, 5)
    for form, want in (("bar.red.popc.u32 %0, 1, p;", 16), ("barrier.cta.red.popc.aligned.u32 %0, 1, 64, p;", 16)):
        yield (
            form,
            f'u32 n; asm volatile("{{.reg .pred p; setp.lt.u32 p, %1, 16; {form}}}" : "=r"(n) : "r"(t)); box[t] = n;',
            np.full(64, want),
        )
    for name, want in (("and", 0), ("or", 1)):
        form = f"bar.red.{name}.pred q, 1, p;"
        text = f"{{.reg .pred p, q; setp.lt.u32 p, %1, 16; {form} selp.u32 %0, 1, 0, q;}}"
        yield form, f'u32 n; asm volatile("{text}" : "=r"(n) : "r"(t)); box[t] = n;', np.full(64, want)
    for fence in (
        "fence.proxy.async;",
        "fence.proxy.async.shared::cta;",
        "fence.proxy.async.shared::cluster;",
        "fence.proxy.async.global;",
    ):
        if "global" not in fence:
            store = "if (t == 0) { store_bulk(other_in + 64 * blockIdx.x, box, 256); commit(); wait_group<0>(); }"
            back = "__syncthreads(); box[t] = ((volatile int*)other_in)[64 * blockIdx.x + t];"
            yield fence, f'box[t] = 5 * t; asm volatile("{fence}" ::: "memory"); __syncthreads(); {store} {back}', 5 * LANES
        else:
            write = "if (t < 32) other_in[64 * blockIdx.x + t] = t;"
            load = "if (t == 0) { arrive_expect(&bar, 128); load_bulk(box, other_in + 64 * blockIdx.x, 128, &bar); } wait(&bar, 0);"
            yield fence, f'{write} asm volatile("{fence}" ::: "memory"); __syncthreads(); {load}', LANES
    for fence in (
        "fence.mbarrier_init.release.cluster;",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
        "fence.acquire.sync_restrict::shared::cluster.cluster;",
        "fence.release.sync_restrict::shared::cta.cluster;",
    ):
        yield fence, f'asm volatile("{fence}" ::: "memory"); box[t] += 8;', LANES + 8


FORMS = {form: (body, want) for part in (arrivals, looks, copies, reductions, meetings) for form, body, want in part()}
KERNEL = BLOCKS.replace("KERNEL(int* out)", "KERNEL(int* out, const int* in, int* other_in)").replace(
    "(void)place;", "(void)place; (void)in; (void)other_in;"
)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_executed(form: str) -> None:
    body, want = FORMS[form]
    out, other = np.zeros((2, 64), np.int32), np.zeros((2, 64), np.int32)
    arrays = out, (3 * LANES).astype(np.int32), other
    assert not run(KERNEL.replace("BODY", body), *arrays, grid=2, block=64, cluster=2, hazards=True).findings
    np.testing.assert_array_equal(out, np.array([want, want]))


def test_every_form_stands_once() -> None:
    assert len(FORMS) > 150 and not FORMS.keys() & OTHER_FORMS.keys()


TENSOR_REDUCTIONS = {
    "add": ("s32 u32 u64 f16 bf16 f32 f64", np.add),
    "min": ("s32 u32 s64 u64 f16", np.minimum),
    "max": ("s32 u32 s64 u64 f16", np.maximum),
    "inc": ("u32", REDUCTIONS["inc"][1]),
    "dec": ("u32", REDUCTIONS["dec"][1]),
    "and": ("s32 u64", np.bitwise_and),
    "or": ("s32 u64", np.bitwise_or),
    "xor": ("s32 u64", np.bitwise_xor),
}
DTYPES = {"s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64}
TENSOR = """KERNEL(const __grid_constant__ CUtensorMap map, const u64* in) {
    __shared__ __align__(1024) u64 tile[64];
    if (threadIdx.x < WORDS) tile[threadIdx.x] = in[threadIdx.x];
    fence_async(); __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("{.reg .b64 hint; POLICY "
                     "cp.reduce.async.bulk.tensor.1d.global.shared::cta.OPERATION.tile.bulk_groupHINT [%0, {8}], [%1]TAIL;}"
                     :: "l"(&map), "r"(shared_address(tile)) : "memory");
        commit(); wait_group<0>();
    }
}"""


@pytest.mark.parametrize(("operation", "kind"), [(name, kind) for name, (kinds, _) in TENSOR_REDUCTIONS.items() for kind in kinds.split()])
@pytest.mark.parametrize("hint", [False, True])
def test_a_box_is_reduced(operation: str, kind: str, hint: bool) -> None:
    random = np.random.default_rng(4)
    values = random.integers(0, 50, (2, 32))
    if kind == "bf16":  # small integers are exact, and lie in the upper half of a float32
        array, box = ((value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for value in values)
        want = ((values[0, 8:24] + values[1, :16]).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        array, box = (value.astype(DTYPES[kind]) for value in values)
        want = TENSOR_REDUCTIONS[operation][1](array[8:24], box[:16]).astype(DTYPES[kind])
    old = array.copy()
    body = TENSOR.replace("WORDS", str(16 * box.itemsize // 8)).replace("OPERATION", operation)
    body = (
        body.replace("HINT", ".L2::cache_hint" if hint else "")
        .replace("TAIL", ", hint" if hint else "")
        .replace("POLICY", HINT if hint else "")
    )
    tensor_map = TensorMap(kind, (32,), (), (16,), base=array)
    assert not run(body, tensor_map, box.view(np.uint64), block=64, hazards=True).findings
    np.testing.assert_array_equal(array[8:24], want)
    np.testing.assert_array_equal(array[24:], old[24:])
