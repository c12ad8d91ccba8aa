"""Hazards of the asynchronous machine: for each a kernel that has none, and the change by which it has the hazard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemmgen import emulator
from gemmgen.emulator import TensorMap
from gemmgen.emulator.hazards.report import LockstepRace

from ..hazards.test_wgmma import FRAGMENT, KERNEL, PLAIN, SCALED, UNSET
from ..helpers import compile_ptx
from ..wgmma import HELPERS
from .prelude import PRELUDE
from .test_bulk_copy import REGISTERS
from .test_clusters import COPY, MULTICAST, NEIGHBOUR, SIGNAL, rows_map
from .test_dependent_launches import FIRST, SECOND
from .test_hazards import LOAD, RING, ROWS, SEEN, STORE


@dataclass(frozen=True)
class Pair:
    """A kernel without the hazard, the words to replace, and the parts of the message about it."""

    sentence: str
    group: str
    error: type[emulator.EmulatorError]
    twin: str
    old: str
    new: str
    says: tuple[str, ...]
    """The lines of CUDA that meet, and who should have waited for whom."""
    arguments: Callable[[], list[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """The launches before, on the same arguments, if the kernel may begin early."""
    after: str = ""
    """The launch behind it, which may begin early as well."""

    @property
    def mistaken(self) -> str:
        """The kernel that has the hazard."""
        assert self.old in self.twin, self.sentence
        return self.twin.replace(self.old, self.new)


def launch(pair: Pair, body: str, strict: bool) -> emulator.LaunchResult:
    """Runs one of the two with everything looked for."""
    arguments = pair.arguments()
    options = {"grid": 1, "block": 128, **pair.options}
    early = bool(pair.before or pair.after)
    result = None
    for text in (*pair.before, body, *([pair.after] if pair.after else [])):
        source = text if HELPERS in text else PRELUDE + text
        ptx = compile_ptx(source, "compute_90a")
        extra = {"hazards": True, "strict": strict, "step_limit": 20_000, "overlaps": result, "overlapped": early}
        result = emulator.launch(ptx, "kernel", args=arguments, source=source, **extra, **options)
    assert result is not None
    return result


def _stored() -> list[Any]:
    return [TensorMap("f32", (32, 32), (128,), (32, 32), base=np.zeros((32, 32), np.float32)), np.arange(1024, dtype=np.float32)]


def _loaded() -> list[Any]:
    array = np.arange(1024, dtype=np.float32).reshape(32, 32)
    return [TensorMap("f32", (32, 32), (128,), (32, 32), base=array), np.zeros(128, np.float32)]


def _in_memory() -> list[Any]:
    array = np.arange(1024, dtype=np.float32).reshape(32, 32)
    return [[TensorMap("f32", (32, 32), (128,), (32, 8), base=array)], np.zeros(128, np.float32)]


def _ring() -> list[Any]:
    return [TensorMap("f32", (32, 64), (128,), (32, 8), base=ROWS), np.zeros(96, np.float32), 8]


def _floats(count: int, arrays: int = 1) -> Callable[[], list[Any]]:
    return lambda: [np.zeros(count, np.float32) for _ in range(arrays)]


def _viewed() -> list[Any]:
    array = np.zeros(64, np.float32)
    return [TensorMap("f32", (8, 8), (32,), (8, 8), base=array.reshape(8, 8)), array]


def _multicast() -> list[Any]:
    return [rows_map(), np.zeros((8, 256), np.float32), 15]


def _product(text: str) -> str:
    return KERNEL.replace("BODY", text)


_FOUR = {"grid": 4, "block": 64, "cluster": 4}
_TWO = {"grid": 2, "block": 64, "cluster": 2}
_STARTED = NEIGHBOUR.replace("mine[threadIdx.x] = 100.f", "cluster_sync(); mine[threadIdx.x] = 100.f")
_SENT = SIGNAL.replace("OPERATION", "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];")
_POOL = REGISTERS.replace("KERNEL", 'extern "C" __global__ void __launch_bounds__(384) kernel').replace("DEC", "40").replace("INC", "232")
_POOL = _POOL.replace("out[0] = 1;", "if (threadIdx.x == 0) out[0] = 1;")
_READ_BACK = """KERNEL(const float* in, float* out) {
    __shared__ __align__(16) float tile[64]; __shared__ u64 bar;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); }
    tile[threadIdx.x] = 7;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) { arrive_expect(&bar, 256); load_bulk(tile, in, 256, &bar); }
    wait(&bar, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}"""
_REFILL = """KERNEL(const float* in, float* out) {
    __shared__ __align__(16) float tile[64]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init();
        for (int k = 0; k < 2; ++k) {
            arrive_expect(&bar, 256); load_bulk(tile, in + 64 * k, 256, &bar);
            wait(&bar, k);
            store_bulk(out + 64 * k, tile, 256); commit();
            wait_group_read<0>();
        }
    }
}"""
_REFILL_PRODUCT = _product("""unsigned bar = shared_address(&full);
    if (threadIdx.x == 0) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(bar)); }
    __syncthreads();
    wgmma_fence(); mma(d, da, db, 0); wgmma_commit();
    wgmma_wait<0>(); __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(bar) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                     :: "r"(shared_address(b)), "l"(out), "r"(bar) : "memory");
    }
    asm volatile("{.reg .pred p;\\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\\n@!p bra L;}" :: "r"(bar) : "memory");
    wgmma_wait<0>(); __syncthreads();""").replace("b[8 * 64];", "b[8 * 64]; __shared__ uint64_t full;")
_GUARDED = """KERNEL(int* out, int n) {
    __shared__ int s[64];
    if (threadIdx.x < n) s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < n) out[threadIdx.x] = s[n - 1 - threadIdx.x];
}"""
_COUNTED = """KERNEL(float* out) {
    __shared__ u64 bar;
    if (threadIdx.x == 0) { init(&bar, 64); fence_init(); }
    __syncthreads();
    arrive(&bar);
    wait(&bar, 0);
    out[threadIdx.x] = 1;
}"""
_STATES = """KERNEL(float* out) {
    __shared__ u64 bar; u64 first, latest; u32 done, at = shared_address(&bar);
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init();
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(first) : "r"(at) : "memory");
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(latest) : "r"(at) : "memory");
        asm volatile("{.reg .pred P; mbarrier.test_wait.shared::cta.b64 P, [%1], %2; selp.u32 %0, 1, 0, P;}"
                     : "=r"(done) : "r"(at), "l"(latest) : "memory");
        out[0] = done + (first == latest);
    }
}"""
_LOWERED = """extern "C" __global__ void __launch_bounds__(128) kernel(float* out) {
    if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    out[threadIdx.x] = 1;
}"""
_SUMMED = """KERNEL(float* out) {
    __shared__ u32 sum;
    if (threadIdx.x == 0) sum = 0;
    cluster_sync();
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(peer_address(&sum, 0)) : "memory");
    cluster_sync();
    if (rank() == 0 && threadIdx.x == 0) out[0] = sum;
}"""
_BRANCHED = """KERNEL(float* out) {
    if (threadIdx.x < 16) { out[32 * rank() + threadIdx.x] = 1; asm volatile("barrier.cluster.arrive; // few" ::: "memory"); }
    else asm volatile("barrier.cluster.arrive; // many" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
}"""
_NUMBERED = """KERNEL(float* out, int number) {
    asm volatile("bar.sync %0, 64;" :: "r"(number + 15) : "memory");
    out[threadIdx.x] = 1;
}"""
_EVERYONE = RING.replace("init(empty + s, 3)", "init(empty + s, 96)").replace(
    "__syncwarp();\n            if (threadIdx.x % 32 == 0) arrive", "arrive"
)
_FENCED_ONCE = _product(f"if (threadIdx.x == 0) proxy_fence(); __syncthreads(); {PLAIN}").replace(
    "proxy_fence();\n    __syncthreads()", "__syncthreads()"
)
_AGAIN = """KERNEL(float* out) {
    __shared__ u64 bar, go;
    if (threadIdx.x == 0) { init(&bar, 32); init(&go, 1); }
    __syncthreads();
    if (threadIdx.x >= 32) wait(&bar, 0);
    else {
        if (threadIdx.x == 0) { /* again */ arrive(&go); }
        wait(&go, 0);
        arrive(&bar);
    }
    out[threadIdx.x] = 1;
}"""
_EARLY_STORE = FIRST.replace(
    "out[threadIdx.x] = 2 * in[threadIdx.x];",
    """__shared__ __align__(16) float tile[64];
    tile[threadIdx.x] = 2 * in[threadIdx.x]; fence_async(); __syncthreads();
    if (threadIdx.x == 0) { store_bulk(out, tile, 256); commit(); wait_group<0>(); }""",
).replace("KERNEL(const float* in, float* out)", "KERNEL(const float* in, float* out, float* unused)")
_LATER = SECOND.replace("weights[threadIdx.x]", "2")
_GO = 'asm volatile("griddepcontrol.launch_dependents;");'
_WRITES = f"KERNEL(float* a, float* b, float* out) {{ b[threadIdx.x] = 2 * a[threadIdx.x]; {_GO} }}"
_BETWEEN = f"KERNEL(float* a, float* b, float* out) {{ {_GO} WAIT out[threadIdx.x] = 1; }}"
_BULK = """KERNEL(float* a, float* b, float* out) {
    __shared__ __align__(16) float tile[64]; __shared__ u64 bar;
    tile[threadIdx.x] = 5;
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init();
        asm volatile("griddepcontrol.wait;" ::: "memory");
        COPY
    }
}"""
_BULK_LOAD = _BULK.replace("COPY", "arrive_expect(&bar, 256); load_bulk(tile, b, 256, &bar); wait(&bar, 0);")
_BULK_STORE = _BULK.replace("COPY", "store_bulk(DESTINATION, tile, 256); commit(); wait_group<0>();")
_TENSOR_READ = """KERNEL(const __grid_constant__ CUtensorMap map, float* b) {
    __shared__ __align__(128) float tile[64]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init();
        asm volatile("griddepcontrol.wait;" ::: "memory");
        arrive_expect(&bar, 256); load_tile(tile, &map, &bar, 0, 0);
        wait(&bar, 0);
    }
}"""
_WAIT_BEFORE = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
_FENCE = "let the writing threads execute fence.proxy.async"
_BARRIER = "__syncthreads() between the two"
_COPIED = """KERNEL(const float* in, float* out) {
    __shared__ __align__(16) float tile[512];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(shared_address(tile + 4 * threadIdx.x)), "l"(in + 4 * threadIdx.x));
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) { store_bulk(out, tile, 2048); commit(); wait_group<0>(); }
}"""
_CHANGED = """KERNEL(CUtensorMap* map, float* out) {
    __shared__ __align__(128) float tile[1024]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init();
        asm volatile("tensormap.replace.tile.box_dim.global.b1024.b32 [%0], 1, %1;" :: "l"(map), "r"(4) : "memory");
        asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 64) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) { arrive_expect(&bar, 512); load_tile(tile, map, &bar, 0, 0); }
    wait(&bar, 0);
    out[threadIdx.x] = tile[threadIdx.x];
}"""
_ASKED = """KERNEL(const float* in, float* out) {
    __shared__ __align__(16) float tile[64]; __shared__ u64 bar; u32 done;
    if (threadIdx.x == 0) { init(&bar, 1); fence_init(); arrive_expect(&bar, 256); load_bulk(tile, in, 256, &bar); }
    __syncthreads();
    do asm volatile("{.reg .pred P; mbarrier.try_wait.parity.shared::cta.b64 P, [%1], 0; selp.u32 %0, 1, 0, P;}"
                    : "=r"(done) : "r"(shared_address(&bar)) : "memory"); while (!done);
    out[threadIdx.x] = tile[threadIdx.x];
}"""
_COMPLETION = "nobody has seen the completion of a phase of its barrier"
_GROUP = "wgmma.wait_group 0 by these threads has to come first"

PAIRS = {
    "threads write, a tensor store reads": Pair(
        "generic writes read by TMA without `fence.proxy.async`",
        "proxies",
        emulator.MissingProxyFence,
        STORE,
        "fence_async();",
        "",
        ("tile[i] = plain[i]", "store_tile(&map, tile, 0, 0)", _FENCE),
        _stored,
    ),
    "fence of one warp for all": Pair(
        "generic writes read by `wgmma` behind a `fence.proxy.async` that only one of the issuing warps knows of",
        "proxies",
        emulator.MissingProxyFence,
        _FENCED_ONCE,
        "__syncthreads(); wgmma_fence",
        "wgmma_fence",
        ("a[i] = 0x3f80", "mma(d, da, db, 0)", "no fence.proxy.async lies between"),
        _floats(512),
    ),
    "fence of the other state space": Pair(
        "generic writes to shared memory behind a `fence.proxy.async` of global memory alone",
        "proxies",
        emulator.MissingProxyFence,
        STORE.replace("fence_async();", 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'),
        "async.shared::cta",
        "async.global",
        ("tile[i] = plain[i]", "store_tile(&map, tile, 0, 0)", "but one that is restricted to global memory"),
        _stored,
    ),
    "threads write, a bulk store reads": Pair(
        "generic writes read by a bulk store without `fence.proxy.async`",
        "proxies",
        emulator.MissingProxyFence,
        SEEN,
        "fence_async();",
        "",
        ("tile[threadIdx.x] = threadIdx.x", "store_bulk(out, tile, 256)", _FENCE),
        _floats(64, 2),
        {"block": 64},
    ),
    "threads write, a copy to another block reads": Pair(
        "generic writes read by a copy to another block without `fence.proxy.async`",
        "proxies",
        emulator.MissingProxyFence,
        COPY,
        "fence_async();",
        "",
        ("mine[threadIdx.x] = 100.f", "cp.async.bulk.shared::cluster", _FENCE),
        _floats(128),
        _TWO,
    ),
    "threads write, a load overwrites": Pair(
        "generic writes overwritten by TMA without `fence.proxy.async`",
        "proxies",
        emulator.MissingProxyFence,
        _READ_BACK,
        "fence_async();",
        "",
        ("tile[threadIdx.x] = 7", "load_bulk(tile, in, 256, &bar)", _FENCE),
        _floats(64, 2),
        {"block": 64},
    ),
    "threads read, a load overwrites": Pair(
        "generic reads of a slot that TMA refills without `fence.proxy.async`: by strict rules only",
        "proxies",
        emulator.RefillWithoutProxyFence,
        RING,
        "fence_async();",
        "",
        ("sum += tile[s]", "load_tile(tile[s]", "which threads have read; no fence.proxy.async lies between the read and this"),
        lambda: [rows_map(), np.zeros(96, np.float32), 6],
    ),
    "threads write, wgmma reads": Pair(
        "generic writes read by `wgmma` without `fence.proxy.async`",
        "proxies",
        emulator.MissingProxyFence,
        _product(PLAIN),
        "proxy_fence();\n",
        "",
        ("a[i] = 0x3f80", "mma(d, da, db, 0)", _FENCE),
        _floats(512),
    ),
    "cp.async writes, a bulk store reads": Pair(
        "what `cp.async` wrote, used by an engine without `fence.proxy.async`: a warning, an error by strict rules",
        "proxies",
        emulator.CopyWithoutProxyFence,
        _COPIED,
        "fence_async();",
        "",
        ("cp.async.cg.shared.global", "store_bulk(out, tile, 2048)", "let the copying threads execute fence.proxy.async"),
        _floats(512, 2),
    ),
    "changed map not acquired": Pair(
        "a tensor map that the kernel has changed, used by a block that has not acquired it",
        "proxies",
        emulator.MissingMapFence,
        _CHANGED,
        "if (threadIdx.x == 64) asm",
        "if (threadIdx.x == 640) asm",
        ("tensormap.replace", "load_tile(tile, map", "no fence.proxy.tensormap::generic.acquire of this map"),
        _in_memory,
    ),
    "changed map not released": Pair(
        "a tensor map that the kernel has changed, not released to TMA",
        "proxies",
        emulator.MissingMapFence,
        _CHANGED,
        'asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");',
        "",
        ("tensormap.replace", "load_tile(tile, map", "no fence.proxy.tensormap::generic.release"),
        _in_memory,
    ),
    "data read before its barrier": Pair(
        "TMA-written data read before its barrier's phase completed",
        "copies",
        emulator.InFlightRead,
        LOAD,
        "wait(bar + 1, 0);",
        "",
        ("tile[1][threadIdx.x]", "load_tile(tile[1]", _COMPLETION),
        _loaded,
    ),
    "wait whose answer nobody reads": Pair(
        "TMA-written data read behind a `try_wait` whose answer nobody reads: it may have given up",
        "copies",
        emulator.InFlightRead,
        _ASKED,
        "while (!done)",
        "while (false)",
        ("out[threadIdx.x] = tile[threadIdx.x]", "load_bulk(tile, in, 256, &bar)", _COMPLETION),
        _floats(64, 2),
        {"block": 64},
    ),
    "one warp waits for the others": Pair(
        "TMA-written data read by threads that have not waited themselves",
        "copies",
        emulator.InFlightRead,
        LOAD,
        "wait(bar + 1, 0);",
        "if (threadIdx.x < 32) wait(bar + 1, 0);",
        ("tile[1][threadIdx.x]", "load_tile(tile[1]"),
        _loaded,
    ),
    "slot refilled, a store reads": Pair(
        "a slot refilled while a store that reads it is in flight",
        "copies",
        emulator.InFlightWrite,
        _REFILL,
        "wait_group_read<0>();",
        "",
        ("load_bulk(tile, in + 64 * k", "store_bulk(out + 64 * k, tile, 256)"),
        _floats(128, 2),
        {"block": 32},
    ),
    "slot refilled, wgmma reads": Pair(
        "a slot refilled while a `wgmma` that reads it is in flight",
        "copies",
        emulator.InFlightWrite,
        _REFILL_PRODUCT,
        "wgmma_wait<0>(); __syncthreads();\n    if",
        "__syncthreads();\n    if",
        ("cp.async.bulk.shared::cluster.global", "wgmma.mma_async"),
        _floats(512),
    ),
    "slot refilled, one arrival too early": Pair(
        "a slot refilled that one consumer has not freed: the barrier counts an arrival less than there are consumers",
        "copies",
        emulator.SharedRace,
        _EVERYONE,
        "init(empty + s, 96)",
        "init(empty + s, 95)",
        ("sum += tile[s][threadIdx.x - 32]", "load_tile(tile[s]"),
        _ring,
    ),
    "slot refilled, threads read": Pair(
        "a slot refilled that its consumers have not freed",
        "copies",
        emulator.SharedRace,
        RING,
        "__syncwarp();\n            if",
        "if",
        ("sum += tile[s][threadIdx.x - 32]", "load_tile(tile[s]"),
        _ring,
    ),
    "store's source overwritten": Pair(
        "bulk store source overwritten before `wait_group.read`",
        "copies",
        emulator.InFlightWrite,
        STORE,
        "wait_group_read<0>();",
        "",
        ("tile[threadIdx.x] = 0", "store_tile(&map, tile, 0, 0)"),
        _stored,
    ),
    "store's group not committed": Pair(
        "bulk stores whose group is never committed",
        "copies",
        emulator.InFlightWrite,
        STORE,
        "commit(); ",
        "",
        ("tile[threadIdx.x] = 0", "store_tile(&map, tile, 0, 0)"),
        _stored,
    ),
    "wait leaves the store's group": Pair(
        "`wait_group.read` that leaves the group of the store",
        "copies",
        emulator.InFlightWrite,
        STORE,
        "wait_group_read<0>",
        "wait_group_read<1>",
        ("tile[threadIdx.x] = 0", "store_tile(&map, tile, 0, 0)"),
        _stored,
    ),
    "block ends before its store has read": Pair(
        "a block that ends before its stores have read",
        "copies",
        emulator.UnfinishedStore,
        STORE.replace("tile[threadIdx.x] = 0;", ""),
        "wait_group_read<0>();",
        "",
        ("store_tile(&map, tile, 0, 0)",),
        _stored,
    ),
    "block ends before its load has written": Pair(
        "a block that ends before its loads have arrived",
        "copies",
        emulator.UnfinishedCopy,
        """KERNEL(const float* in) {
    __shared__ __align__(16) float tile[64]; __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1); fence_init(); arrive_expect(&bar, 256);
        load_bulk(tile, in, 256, &bar);
        wait(&bar, 0);
    }
}""",
        "wait(&bar, 0);",
        "",
        ("load_bulk(tile, in, 256, &bar)",),
        _floats(64),
    ),
    "stored data read before it is there": Pair(
        "data of a bulk store, read after `wait_group.read` only",
        "copies",
        emulator.GlobalRace,
        SEEN,
        "wait_group<0>()",
        "wait_group_read<0>()",
        ("((volatile float*)out)[threadIdx.x]", "store_bulk(out, tile, 256)"),
        _floats(64, 2),
        {"block": 64},
    ),
    "stored data read by a later launch": Pair(
        "visibility of bulk stores to later launches",
        "copies",
        emulator.UnorderedLaunch,
        _LATER,
        _WAIT_BEFORE,
        "",
        ("weight * data[threadIdx.x]", "launch before this one", "griddepcontrol.wait"),
        _floats(64, 3),
        {"block": 64},
        before=(_EARLY_STORE,),
    ),
    "written data loaded by a later launch": Pair(
        "data that threads wrote, loaded by TMA in a launch that begins early",
        "copies",
        emulator.UnorderedLaunch,
        _BULK_LOAD,
        _WAIT_BEFORE,
        "",
        ("load_bulk(tile, b", "b[threadIdx.x] = 2 * a[threadIdx.x]", "griddepcontrol.wait"),
        _floats(64, 3),
        {"block": 64},
        before=(_WRITES,),
    ),
    "written data loaded as a box by a later launch": Pair(
        "data that threads wrote, loaded through a tensor map in a launch that begins early",
        "copies",
        emulator.UnorderedLaunch,
        _TENSOR_READ,
        _WAIT_BEFORE,
        "",
        ("load_tile(tile, &map", "b[threadIdx.x] = 1", "griddepcontrol.wait"),
        _viewed,
        {"block": 64},
        before=(f"KERNEL(const __grid_constant__ CUtensorMap map, float* b) {{ b[threadIdx.x] = 1; {_GO} }}",),
    ),
    "data of a later launch stored over data that is read": Pair(
        "a bulk store of a launch that begins early, over data that the preceding launch still reads",
        "copies",
        emulator.UnorderedLaunch,
        _BULK_STORE.replace("DESTINATION", "a"),
        _WAIT_BEFORE,
        "",
        ("store_bulk(a, tile", "b[threadIdx.x] = 2 * a[threadIdx.x]", "griddepcontrol.wait"),
        _floats(64, 3),
        {"block": 64},
        before=(_WRITES,),
    ),
    "bulk store that nobody has waited for, between launches": Pair(
        "a bulk store whose reading alone was waited for, read by a later launch: its end is part of the end of its launch",
        "copies",
        emulator.UnorderedLaunch,
        _LATER,
        _WAIT_BEFORE,
        "",
        ("weight * data[threadIdx.x]", "store_bulk(out, tile", "griddepcontrol.wait"),
        _floats(64, 3),
        {"block": 64},
        before=(_EARLY_STORE.replace("wait_group<0>", "wait_group_read<0>"),),
    ),
    "words of another block not waited for": Pair(
        "words of `st.async` read before their barrier's phase completed",
        "copies",
        emulator.InFlightRead,
        _SENT,
        "wait(&bar, 0);",
        "",
        ("box[threadIdx.x]", "st.async"),
        _floats(128),
        {**_TWO, "schedule": emulator.RandomWarps(1)},
    ),
    "result read in flight": Pair(
        "accumulators read between `mma_async` and its `wait_group`",
        "wgmma",
        emulator.RegisterInFlight,
        _product(PLAIN),
        "wgmma_wait<0>();",
        "",
        ("d[i] + e[i]", "mma(d, da, db, 0)", _GROUP),
        _floats(512),
    ),
    "accumulator written in flight": Pair(
        "accumulators written between `mma_async` and its `wait_group`",
        "wgmma",
        emulator.RegisterInFlight,
        _product("wgmma_fence(); mma(d, da, db, 0); wgmma_commit();\n    /* here */ wgmma_wait<0>();"),
        "/* here */",
        'asm volatile("mov.f32 %0, 0f00000000;" : "+f"(d[0]));',
        ("mov.f32", "mma(d, da, db, 0)"),
        _floats(512),
    ),
    "A register written in flight": Pair(
        "A registers written between `mma_async` and its `wait_group`",
        "wgmma",
        emulator.RegisterInFlight,
        _product("""wgmma_fence();
    asm volatile("{\\n.reg .b32 a;\\nmov.b32 a, %6;\\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, {a, %4, %4, %4}, %5, 0, 1, 1, 0;\\nwgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;\\n"
        "add.u32 a, a, 1;\\nwgmma.wait_group.sync.aligned 0;\\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(f[1]), "l"(db), "r"(f[0]) : "memory");"""),
        '\\nwgmma.wait_group.sync.aligned 0;\\n"',
        '\\n"',
        ("as an A register", "add.u32"),
        _floats(512),
    ),
    "source of an A register written in flight": Pair(
        "registers whose copies are A registers written between `mma_async` and its `wait_group`",
        "wgmma",
        emulator.ReloadedOperand,
        _product("""wgmma_fence();
    asm volatile("{\\n.reg .b32 a, s;\\nadd.u32 s, %6, 0;\\nmov.b32 a, s;\\nwgmma.fence.sync.aligned;\\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, {a, %4, %4, %4}, %5, 0, 1, 1, 0;\\nwgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;\\n"
        "add.u32 s, s, 1;\\nwgmma.wait_group.sync.aligned 0;\\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(f[1]), "l"(db), "r"(f[0]) : "memory");"""),
        '\\nwgmma.wait_group.sync.aligned 0;\\n"',
        '\\n"',
        ("of which an A register is a copy", "add.u32"),
        _floats(512),
    ),
    "no fence before the first product": Pair(
        "no `wgmma.fence` before the first",
        "wgmma",
        emulator.MissingWarpgroupFence,
        _product(PLAIN),
        "wgmma_fence();",
        "",
        ("mma(d, da, db, 0)", "no wgmma.fence comes before this first wgmma"),
        _floats(512),
    ),
    "no fence after accumulators were written": Pair(
        "no `wgmma.fence` after accumulators were written",
        "wgmma",
        emulator.MissingWarpgroupFence,
        _product(SCALED),
        "wgmma_fence(); mma(d, da, db, 1);",
        "mma(d, da, db, 1);",
        ("d[i] *= 2.0f", "mma(d, da, db, 1)", "let all threads of the warpgroup execute wgmma.fence"),
        _floats(512),
    ),
    "no fence after A registers were written": Pair(
        "no `wgmma.fence` after A registers were written",
        "wgmma",
        emulator.MissingWarpgroupFence,
        _product(FRAGMENT.replace("wgmma_fence()", "f[1] = 9; wgmma_fence()", 1)),
        "wgmma_fence(); mma_a(d, f, db, 1);",
        "mma_a(d, f, db, 1);",
        ("f[0]", "mma_a(d, f, db, 1)", "let all threads of the warpgroup execute wgmma.fence"),
        _floats(512),
    ),
    "group never committed": Pair(
        "groups never committed",
        "wgmma",
        emulator.RegisterInFlight,
        _product(PLAIN),
        "wgmma_commit();",
        "",
        ("d[i] + e[i]", "mma(d, da, db, 0)", "its group is not even committed"),
        _floats(512),
    ),
    "wait leaves the product's group": Pair(
        "`wait_group` one too high",
        "wgmma",
        emulator.RegisterInFlight,
        _product(PLAIN),
        "wgmma_wait<0>();",
        "wgmma_wait<1>();",
        ("d[i] + e[i]", "mma(d, da, db, 0)", _GROUP),
        _floats(512),
    ),
    "threads end with a product in flight": Pair(
        "threads that end with a `wgmma` in flight",
        "wgmma",
        emulator.UnfinishedWgmma,
        _product(f"float x[4] = {{}}; {PLAIN.replace('(d', '(x')} return;"),
        "wgmma_wait<0>();",
        "",
        ("mma(x, da, db, 0)", "that nothing waited for"),
        _floats(512),
    ),
    "operand overwritten in flight": Pair(
        "an operand overwritten while a `wgmma` reads it",
        "wgmma",
        emulator.InFlightWrite,
        _product("wgmma_fence(); mma(d, da, db, 0); wgmma_commit();\n    wgmma_wait<0>(); __syncthreads();\n    b[threadIdx.x] = 0;"),
        "wgmma_wait<0>(); __syncthreads();\n    b[threadIdx.x] = 0;",
        "b[threadIdx.x] = 0; wgmma_wait<0>();",
        ("b[threadIdx.x] = 0", "mma(d, da, db, 0)", "nobody has seen the wgmma.wait_group of its warpgroup"),
        _floats(512),
    ),
    "barrier never initialised": Pair(
        "a barrier used before init",
        "barriers",
        emulator.BarrierMisuse,
        LOAD,
        "init(bar + 1, 1);",
        "",
        ("arrive_expect(bar + 1, 4096)", "none has been initialised there"),
        _loaded,
    ),
    "initialisation not fenced": Pair(
        "a barrier used by TMA without the init fence",
        "barriers",
        emulator.MissingInitFence,
        LOAD,
        "fence_init();",
        "",
        ("init(bar, 1)", "load_tile(tile[0]", "let the initialising thread execute fence.mbarrier_init.release.cluster"),
        _loaded,
    ),
    "initialisation not fenced before a relaxed arrival": Pair(
        "a barrier used behind a relaxed barrier of the cluster, without the init fence",
        "barriers",
        emulator.EarlyBarrierUse,
        LOAD.replace(
            "__syncthreads();\n    if (threadIdx.x == 0)",
            'asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); cluster_wait();\n    if (threadIdx.x == 32)',
        ),
        "fence_init();",
        "",
        ("init(bar, 1)", "need not know of its initialisation"),
        _loaded,
    ),
    "initialisation not known": Pair(
        "a barrier used by threads that need not know of its init",
        "barriers",
        emulator.EarlyBarrierUse,
        LOAD,
        "__syncthreads();",
        "",
        ("wait(bar, 0)", "init(bar, 1)", "put __syncthreads() after the initialisation"),
        _loaded,
    ),
    "an arrival too many": Pair(
        "count overflow",
        "barriers",
        emulator.BarrierMisuse,
        _COUNTED,
        "arrive(&bar);",
        "arrive(&bar, 3);",
        ("arrive(&bar, 3)", "init(&bar, 64)", "arrivals at once where"),
        _floats(64),
        {"block": 64},
    ),
    "more bytes than expected": Pair(
        "byte overflow",
        "barriers",
        emulator.BarrierMisuse,
        LOAD,
        "arrive_expect(bar, 4096)",
        "arrive_expect(bar, 2048)",
        ("load_tile(tile[0]", "init(bar, 1)", "gets 2048 bytes more in phase 0 than were expected"),
        _loaded,
    ),
    "more bytes than a barrier counts": Pair(
        "a count of bytes beyond 2^20 - 1",
        "barriers",
        emulator.BarrierMisuse,
        LOAD,
        "arrive_expect(bar, 4096)",
        "arrive_expect(bar, 1 << 20)",
        ("arrive_expect(bar, 1 << 20)", "it can count to 1048575"),
        _loaded,
    ),
    "wait passes a phase too early": Pair(
        "wrong parity: a wait that passes a phase too early",
        "barriers",
        emulator.InFlightRead,
        LOAD,
        "wait(bar, 0);",
        "wait(bar, 1);",
        ("float a = tile[0][threadIdx.x]", "load_tile(tile[0]", _COMPLETION),
        _loaded,
    ),
    "wait can never pass": Pair(
        "wrong parity: a wait that can never pass",
        "barriers",
        emulator.Deadlock,
        RING,
        "wait(empty + s, phase ^ 1)",
        "wait(empty + s, phase)",
        ("wait(empty + s, phase)", "wait(full + s, phase)", "of 3 arrivals pending"),
        _ring,
    ),
    "state of a phase long past": Pair(
        "a wait with the state of neither the current phase nor the one before",
        "barriers",
        emulator.BarrierMisuse,
        _STATES,
        '"l"(latest)',
        '"l"(first)',
        ("mbarrier.test_wait", "is asked with a state of its phase 0", "the current phase and of the one before it"),
        _floats(1),
    ),
    "initialised again while waited on": Pair(
        "re-init while waited on",
        "barriers",
        emulator.BarrierMisuse,
        _AGAIN,
        "/* again */",
        "init(&bar, 32);",
        ("init(&bar, 32); arrive(&go)", "init(&bar, 32); init(&go, 1)", "wait for its phase 0; mbarrier.inval has to end it first"),
        _floats(64),
        {"block": 64},
    ),
    "expected bytes never come": Pair(
        "expected bytes that never come",
        "barriers",
        emulator.Deadlock,
        LOAD,
        "arrive_expect(bar, 4096)",
        "arrive_expect(bar, 8192)",
        ("wait(bar, 0)", "phase 0, 0 of 1 arrivals pending, 4096 bytes still to come", "phase 1, 1 of 1 arrivals pending, 0 bytes"),
        _loaded,
    ),
    "an arrival that never comes": Pair(
        "arrivals that never come",
        "barriers",
        emulator.Deadlock,
        LOAD,
        "init(bar, 1)",
        "init(bar, 2)",
        ("wait(bar, 0)", "1 of 2 arrivals pending"),
        _loaded,
    ),
    "barrier touched as data": Pair(
        "a barrier touched as data",
        "barriers",
        emulator.BarrierMisuse,
        LOAD,
        "float a =",
        "*(volatile u64*)bar = 0; float a =",
        ("*(volatile u64*)bar = 0", "only mbarrier instructions may touch it"),
        _loaded,
    ),
    "peer not started": Pair(
        "remote access before the peer started",
        "clusters",
        emulator.ClusterMisuse,
        NEIGHBOUR,
        "cluster_sync();\n    u32",
        "u32",
        ("ld.shared::cluster", "need not have started"),
        _floats(512),
        _FOUR,
    ),
    "peer ended": Pair(
        "remote access after the peer ended",
        "clusters",
        emulator.OutlivingAccess,
        NEIGHBOUR.replace("mine[threadIdx.x] = -1;\n", ""),
        "cluster_sync();\n        out",
        "out",
        ("ld.shared::cluster",),
        _floats(512),
        _FOUR,
    ),
    "blocks do not meet": Pair(
        "missing cluster barrier",
        "clusters",
        emulator.SharedRace,
        _STARTED,
        "cluster_sync();\n    u32",
        "__syncthreads(); u32",
        ("ld.shared::cluster", "mine[threadIdx.x] = 100.f"),
        _floats(512),
        _FOUR,
    ),
    "relaxed arrival of a cluster": Pair(
        "a cluster barrier whose arrival is relaxed",
        "clusters",
        emulator.SharedRace,
        NEIGHBOUR.replace("cluster_sync();\n    u32", 'asm volatile("barrier.cluster.arrive.aligned;"); cluster_wait();\n    u32'),
        "arrive.aligned",
        "arrive.relaxed.aligned",
        ("ld.shared::cluster", "mine[threadIdx.x] = 100.f"),
        _floats(512),
        _FOUR,
    ),
    "cluster's barrier out of turn": Pair(
        "arrivals at a cluster's barrier without waits",
        "clusters",
        emulator.ClusterMisuse,
        "KERNEL() { cluster_arrive(); cluster_wait(); }",
        "cluster_wait();",
        "cluster_arrive();",
        ("cluster_arrive()", "has not waited"),
        list,
        _TWO,
    ),
    "multicast beyond the cluster": Pair(
        "multicast to blocks that are not there",
        "clusters",
        emulator.ClusterMisuse,
        MULTICAST,
        '"h"((u16)mask)',
        '"h"((u16)(mask | 16))',
        ("multicast::cluster", "no block of rank 4"),
        _multicast,
        {"grid": 8, "cluster": 4},
    ),
    "multicast before the others are ready": Pair(
        "multicast to blocks that have not initialised their barriers",
        "clusters",
        emulator.ClusterMisuse,
        MULTICAST,
        "cluster_sync();",
        "__syncthreads();",
        ("multicast::cluster", "need not have started"),
        _multicast,
        {"grid": 8, "cluster": 4},
    ),
    "multicast leaves one out": Pair(
        "multicast that leaves a waiting block out",
        "clusters",
        emulator.Deadlock,
        MULTICAST,
        '"h"((u16)mask)',
        '"h"((u16)(mask & 7))',
        ("wait(&full, 0);", "1024 bytes still to come"),
        _multicast,
        {"grid": 8, "cluster": 4},
    ),
    "box at a place that is not aligned": Pair(
        "misaligned boxes",
        "operands",
        emulator.Misaligned,
        LOAD,
        "load_tile(tile[0], ",
        "load_tile(tile[0] + 4, ",
        ("load_tile(tile[0] + 4", "16 bytes past a multiple of 128"),
        _loaded,
    ),
    "copy of another rank than its map": Pair(
        "invalid tensor maps: another rank than the copy",
        "operands",
        emulator.InvalidCopy,
        LOAD.replace("out) {", "out) { /* 3 */"),
        "load_tile(tile[0], &map, bar, 0, 0)",
        'asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {0, 0, 0}], [%2];" '
        ':: "r"(shared_address(tile[0])), "l"(&map), "r"(shared_address(bar)) : "memory")',
        ("cp.async.bulk.tensor.3d", "3 dimensions through a tensor map of 2"),
        _loaded,
    ),
    "descriptor within a swizzle's pattern": Pair(
        "misaligned descriptors: swizzle atoms that are not aligned",
        "operands",
        emulator.InvalidMatrix,
        _product(PLAIN),
        "mma(d, da,",
        "mma(d, da + (1ull << 49),",
        ("mma(d, da + (1ull << 49)", "bytes into the pattern of its 128-byte swizzle"),
        _floats(512),
    ),
    "descriptors of a warpgroup differ": Pair(
        "descriptors that differ between the threads of a warpgroup",
        "operands",
        emulator.InvalidMatrix,
        _product(PLAIN),
        "mma(d, da,",
        "mma(d, da + 64 * (threadIdx.x / 64),",
        ("a matrix descriptor differs between the threads of a warpgroup",),
        _floats(512),
    ),
    "more registers than the pool has": Pair(
        "`setmaxnreg` that exceeds the pool",
        "operands",
        emulator.Deadlock,
        _POOL,
        "u32 232;",
        "u32 240;",
        ("setmaxnreg.inc", "want 240 registers a thread"),
        _floats(1),
        {"block": 384},
    ),
    "registers asked for that are held": Pair(
        "`setmaxnreg.inc` below the registers that a thread holds",
        "operands",
        emulator.RegisterPoolMisuse,
        _POOL,
        "u32 232;",
        "u32 160;",
        ("setmaxnreg.inc", "inc to 160 where a thread holds 168"),
        _floats(1),
        {"block": 384},
    ),
    "registers of a part of a warpgroup": Pair(
        "`setmaxnreg` by a part of a warpgroup",
        "operands",
        emulator.PartialRegisterCount,
        _LOWERED,
        "threadIdx.x < 128",
        "threadIdx.x < 96",
        ("setmaxnreg.dec", "warp 0 has asked for 40 registers, warp 3 for nothing"),
        _floats(128),
    ),
    "map copied to local memory": Pair(
        "a tensor map that is a parameter without `__grid_constant__`",
        "operands",
        emulator.InvalidCopy,
        LOAD,
        "const __grid_constant__ CUtensorMap",
        "const CUtensorMap",
        ("load_tile(tile[0], &map, bar, 0, 0)", "const __grid_constant__ CUtensorMap"),
        _loaded,
    ),
    "threads and TMA meet": Pair(
        "races across proxies",
        "races",
        emulator.SharedRace,
        STORE,
        "fence_async();\n    __syncthreads();",
        "fence_async();",
        ("tile[i] = plain[i]", "store_tile(&map, tile, 0, 0)", _BARRIER),
        _stored,
    ),
    "threads and a product meet": Pair(
        "races across proxies, with `wgmma`",
        "races",
        emulator.SharedRace,
        _product(PLAIN),
        "    __syncthreads();\n    uint64_t",
        "    uint64_t",
        ("a[i] = 0x3f80", "mma(d, da, db, 0)", _BARRIER),
        _floats(512),
    ),
    "blocks of a cluster meet": Pair(
        "races across the blocks of a cluster",
        "races",
        emulator.SharedRace,
        _STARTED,
        "cluster_sync();\n    mine",
        "mine",
        ("ld.shared::cluster", "mine[threadIdx.x] = -1"),
        _floats(512),
        _FOUR,
    ),
    "launch reads before its wait": Pair(
        "a kernel launched early that reads before its wait",
        "races",
        emulator.UnorderedLaunch,
        _LATER,
        _WAIT_BEFORE,
        "",
        ("weight * data[threadIdx.x]", "griddepcontrol.wait"),
        _floats(64, 3),
        {"block": 64},
        before=(FIRST.replace("float* out)", "float* out, float* unused)"),),
    ),
    "launch further back not waited for": Pair(
        "a launch between that does not wait: the one behind it waits for it, not for the one before it",
        "races",
        emulator.UnfinishedLaunch,
        _BETWEEN.replace("WAIT", _WAIT_BEFORE),
        _WAIT_BEFORE,
        "",
        (
            "a[threadIdx.x] = b[threadIdx.x]",
            "b[threadIdx.x] = 2 * a[threadIdx.x]",
            "a launch further back",
            "a thread of the launch in between",
        ),
        _floats(64, 3),
        {"block": 64},
        before=(_WRITES,),
        after=f"KERNEL(float* a, float* b, float* out) {{ {_WAIT_BEFORE} a[threadIdx.x] = b[threadIdx.x]; }}",
    ),
    "bulk store of a launch further back": Pair(
        "visibility of bulk stores to later launches, behind a launch that does not wait",
        "copies",
        emulator.UnfinishedLaunch,
        _BETWEEN.replace("WAIT", _WAIT_BEFORE),
        _WAIT_BEFORE,
        "",
        ("load_bulk(tile, b", "store_bulk(b, tile", "a launch further back", "a thread of the launch in between"),
        _floats(64, 3),
        {"block": 64},
        before=(_BULK_STORE.replace("DESTINATION", "b").replace(_WAIT_BEFORE, _GO),),
        after=_BULK_LOAD,
    ),
    "threads that have left before a barrier": Pair(
        "a thread that left early counts as arrived at `__syncthreads`: a warning, an error by strict rules",
        "races",
        emulator.MissedBarrier,
        _GUARDED,
        "if (threadIdx.x < n) s[threadIdx.x] = threadIdx.x;",
        "if (threadIdx.x >= n) return; s[threadIdx.x] = threadIdx.x;",
        ("__syncthreads()", "guard the work between the barriers"),
        lambda: [np.zeros(64, np.int32), 40],
        {"block": 64},
    ),
    "fence too early": Pair(
        "`wgmma.fence` before the last access to its registers: a warning, an error by strict rules",
        "wgmma",
        emulator.EarlyWarpgroupFence,
        _product(f"""{PLAIN}
    for (int i = 0; i < 4; ++i) asm volatile("add.f32 %0, %0, %0;" : "+f"(d[i]));
    wgmma_fence(); mma(d, da, db, 1); wgmma_commit(); wgmma_wait<0>();"""),
        """for (int i = 0; i < 4; ++i) asm volatile("add.f32 %0, %0, %0;" : "+f"(d[i]));
    wgmma_fence();""",
        """wgmma_fence();
    for (int i = 0; i < 4; ++i) asm volatile("add.f32 %0, %0, %0;" : "+f"(d[i]));""",
        ("add.f32", "mma(d, da, db, 1)", "the wgmma.fence comes too early"),
        _floats(512),
    ),
    "operand not written": Pair(
        "an operand that nothing has written",
        "wgmma",
        emulator.UnwrittenRead,
        _product(PLAIN),
        "b[i] = 0x3f80;",
        ";",
        ("mma(d, da, db, 0)", "shared b[0]"),
        _floats(512),
    ),
    "accumulators not set": Pair(
        "accumulators that nothing has set",
        "wgmma",
        emulator.UndefinedRegister,
        _product(UNSET),
        "mma(x, da, db, k > 0)",
        "mma(x, da, db, 1)",
        ("mma(x, da, db, 1)", "the accumulator of this wgmma is made of"),
        _floats(512),
    ),
    "warpgroup not whole": Pair(
        "a `wgmma` that not all warps of the warpgroup reach",
        "wgmma",
        emulator.DivergentWarp,
        _product(f"if (threadIdx.x < 128) {{ {PLAIN} }}"),
        "< 128",
        "< 64",
        ("waits for warps of its warpgroup that never arrive",),
        _floats(512),
    ),
    "copy beyond its array": Pair(
        "bulk copies beyond an array",
        "operands",
        emulator.OutOfBounds,
        _READ_BACK,
        "load_bulk(tile, in,",
        "load_bulk(tile, in + 4,",
        ("load_bulk(tile, in + 4", "past the end of argument 0"),
        _floats(64, 2),
        {"block": 64},
    ),
    "barrier in a branch": Pair(
        "a barrier that lanes of one warp reach at different places",
        "any kernel",
        emulator.DivergentBarrier,
        "KERNEL(float* out) { if (threadIdx.x < 64) __syncthreads(); else __syncthreads(); out[threadIdx.x] = 1; }",
        "< 64",
        "< 16",
        ("__syncthreads(); else", "lanes of one warp wait at different barriers"),
        _floats(128),
    ),
    "aligned barrier of the cluster in a branch": Pair(
        "an aligned barrier of the cluster that lanes of one warp reach at different places",
        "clusters",
        emulator.DivergentWarp,
        _BRANCHED,
        "arrive;",
        "arrive.aligned;",
        ("// few", "lanes of its warp (.aligned)"),
        _floats(64),
        {"grid": 2, "block": 32, "cluster": 2},
    ),
    "barrier beyond the sixteenth": Pair(
        "a barrier whose number a block does not have",
        "any kernel",
        emulator.DivergentBarrier,
        _NUMBERED,
        "number + 15",
        "number + 16",
        ("bar.sync", "barrier 16: a block has barriers 0 to 15"),
        lambda: [np.zeros(64, np.float32), 0],
        {"block": 64},
    ),
    "lanes in lockstep": Pair(
        "lanes of one warp that rely on lockstep",
        "any kernel",
        LockstepRace,
        """KERNEL(int* out) {
    __shared__ volatile int s[32];
    int t = threadIdx.x;
    s[t] = t;
    __syncwarp();
    if (t < 16) s[t] = s[t] + s[t + 16];
    __syncwarp();
    if (t < 8) s[t] = s[t] + s[t + 8];
    __syncwarp();
    out[t] = s[t];
}""",
        "__syncwarp();\n    if (t < 8)",
        "if (t < 8)",
        ("s[t] = s[t] + s[t + 8]", "s[t] = s[t] + s[t + 16]", "put __syncwarp() between the two accesses"),
        lambda: [np.zeros(32, np.int32)],
        {"block": 32},
    ),
    "scope of a block": Pair(
        "an atomic operation of a block's scope by several blocks",
        "any kernel",
        emulator.ScopeRace,
        "KERNEL(int* out) { atomicAdd(out, 1); }",
        "atomicAdd(",
        "atomicAdd_block(",
        ("atomicAdd_block(out, 1)", "device scope"),
        lambda: [np.zeros(1, np.int32)],
        {"grid": 2},
    ),
    "scope of a block in a cluster": Pair(
        "an atomic operation of a block's scope on shared memory that several blocks of a cluster reach",
        "races",
        emulator.ScopeRace,
        _SUMMED,
        "red.relaxed.cluster",
        "red.relaxed.cta",
        ("red.relaxed.cta.shared::cluster.add.u32", "device scope"),
        _floats(1),
        _TWO,
    ),
    "ticket without a fence behind it": Pair(
        "data of other blocks read behind an atomic ticket, with a fence before the ticket only",
        "any kernel",
        emulator.UnfencedTicket,
        """KERNEL(unsigned* part, unsigned* ticket, unsigned* out) {
    part[blockIdx.x] = blockIdx.x;
    __threadfence();
    unsigned number = atomicAdd(ticket, 1u);
    __threadfence();
    if (number == gridDim.x - 1) out[0] = part[0] + part[1];
}""",
        "atomicAdd(ticket, 1u);\n    __threadfence();",
        "atomicAdd(ticket, 1u);",
        ("out[0] = part[0]", "put __threadfence() after the atomic operation"),
        lambda: [np.zeros(2, np.uint32) for _ in range(3)],
        {"grid": 2, "block": 1},
    ),
    "read-only load of memory that the launch writes": Pair(
        "a load through the read-only path from memory that the launch has written",
        "any kernel",
        emulator.StaleRead,
        """KERNEL(float* data, float* out) {
    data[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = data[127 - threadIdx.x];
}""",
        "data[127 - threadIdx.x]",
        "__ldg(data + 127 - threadIdx.x)",
        ("__ldg(data + 127 - threadIdx.x)", "const __restrict__"),
        _floats(128, 2),
    ),
    "volatile accesses meet": Pair(
        "volatile accesses that nothing orders",
        "any kernel",
        emulator.VolatileRace,
        """KERNEL(volatile int* flag, int* out) {
    if (threadIdx.x == 0) flag[blockIdx.x] = 1;
    __syncthreads();
    out[blockIdx.x] = flag[blockIdx.x];
}""",
        "flag[blockIdx.x] = 1",
        "flag[0] = 1",
        ("flag[0] = 1", "a barrier, an atomic operation"),
        lambda: [np.zeros(2, np.int32), np.zeros(2, np.int32)],
        {"grid": 2, "block": 1},
    ),
    "same value from many": Pair(
        "several threads that store one value to one place",
        "any kernel",
        emulator.SameValue,
        "KERNEL(int* out) { if (threadIdx.x == 0) *out = 1; }",
        "if (threadIdx.x == 0) ",
        "",
        ("*out = 1", "an atomic operation makes the intent explicit"),
        lambda: [np.zeros(1, np.int32)],
    ),
    "shuffle from outside its mask": Pair(
        "a shuffle from a lane that takes no part",
        "any kernel",
        emulator.InactiveShuffle,
        "KERNEL(int* out) { if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffff, threadIdx.x, 4); }",
        "threadIdx.x, 4)",
        "threadIdx.x, 20)",
        ("__shfl_sync", "every lane that supplies a value must execute the shuffle"),
        lambda: [np.zeros(32, np.int32)],
        {"block": 32},
    ),
    "write to read-only memory": Pair(
        "a write to read-only memory",
        "any kernel",
        emulator.ReadOnly,
        "KERNEL(int* in, int* out) { int* to = out; to[threadIdx.x] = in[threadIdx.x] + 1; }",
        "int* to = out;",
        "int* to = in;",
        ("to[threadIdx.x]", "in in"),
        lambda: [emulator.Buffer(np.zeros(32, np.int32), name="in", writable=False), np.zeros(32, np.int32)],
        {"block": 32},
    ),
    "freed twice": Pair(
        "memory freed twice",
        "any kernel",
        emulator.BadAllocation,
        "KERNEL(int* out) { int* p = (int*)malloc(4); *p = 3; *out = *p; free(p); }",
        "free(p);",
        "free(p); free(p);",
        ("free(p)", "has been freed before"),
        lambda: [np.zeros(1, np.int32)],
        {"block": 1},
    ),
    "a trap": Pair(
        "a trap",
        "any kernel",
        emulator.Trapped,
        "KERNEL(int* out) { if (*out > 1) __trap(); }",
        "*out > 1",
        "*out < 1",
        ("__trap()",),
        lambda: [np.zeros(1, np.int32)],
        {"block": 1},
    ),
}
