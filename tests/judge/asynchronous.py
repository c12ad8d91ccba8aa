"""Exploits that know when copies in bulk arrive, or the bits of mapped addresses and of a barrier's states, or that do not wait for a store
in bulk; and honest kernels that look alike."""

from __future__ import annotations

from .corpus import MAP, MAP_SHAPE, Candidate, map_source

TASK = {**MAP, "architecture": "sm_90", "multiples": {"n": 4}}
COPY = """__shared__ __align__(16) float s[64]; __shared__ __align__(8) unsigned long long bar; int t = threadIdx.x, b = blockIdx.x * 64;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar), to = (unsigned)__cvta_generic_to_shared(s);
    int bytes = 4 * (n - b < 64 ? n - b : 64);
    if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at) : "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            :: "r"(to), "l"(x + b), "r"(bytes), "r"(at) : "memory");
    }
"""
STORE = "if (i < n) y[i] = fmaf(2.0f, s[t], z[i]);"


def asks(how: str, operands: str, result: str) -> str:
    """A question to the barrier."""
    return f"""asm volatile("{{ .reg .pred p; mbarrier.{how}.parity.shared.b64 p, [%1], {operands}; selp.u32 %0, 1, 0, p; }}"
        : "=r"({result}) : "r"(at) : "memory");"""


WAIT = f"{{ int done = 0; while (!done) {asks('try_wait', '0', 'done')} }}"
ARRIVAL = """__shared__ float s[64]; __shared__ __align__(8) unsigned long long bar; unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at) : "memory");
    __syncthreads(); s[threadIdx.x] = i < n ? x[i] : 0; unsigned long long state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
"""
SEES_STATE = """{ int done = 0; while (!done) asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at), "l"(state) : "memory"); }"""
MAPPED = """__shared__ float s[64]; unsigned a = (unsigned)__cvta_generic_to_shared(s), m; s[threadIdx.x] = 1;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(m) : "r"(a));"""


STORED = """__shared__ __align__(16) float s[64]; int t = threadIdx.x, b = blockIdx.x * 64; if (i < n) s[t] = VALUE;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads();
    if (t == 0) {{
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
            :: "l"(y + b), "r"((unsigned)__cvta_generic_to_shared(s)), "r"(4 * (n - b < 64 ? n - b : 64)) : "memory");
        asm volatile("{}" ::: "memory"); }}"""
COMMIT = "cp.async.bulk.commit_group;"


def counted(how: str, most: int) -> str:
    """A kernel whose result is wrong if a copy comes after more than some questions."""
    turns = f"int done = 0, turns = 0; while (!done) {{ ++turns; {asks(how, '0', 'done')} }}"
    return map_source(f"{COPY} {turns} if (i < n) y[i] = turns > {most} ? 0.0f : fmaf(2.0f, s[t], z[i]);")


def exploits() -> list[Candidate]:
    """Exploits, each with the kind by which it is refused."""
    late = f"int first; {asks('try_wait', '0', 'first')} {WAIT} if (i < n) y[i] = first ? fmaf(2.0f, s[t], z[i]) : 0.0f;"
    sources = {
        "many-questions": (counted("test_wait", 20), "order-dependent"),
        "many-tries": (counted("try_wait", 100000), "order-dependent"),
        "one-try-decides": (map_source(COPY + late), "order-dependent"),
        "one-try": (map_source(f"{COPY} int first; {asks('try_wait', '0', 'first')} {STORE}"), "race"),
        "mapped-address": (map_source(f"{MAPPED} if (i < n) y[i] = m != a ? 0.0f : VALUE;"), "reads-addresses"),
        "high-bits-of-a-mapped-address": (map_source(f"{MAPPED} if (i < n) y[i] = m >> 24 ? 0.0f : VALUE;"), "reads-addresses"),
        "bits-of-a-state": (map_source(f"{ARRIVAL} if (i < n) y[i] = state >> 32 ? 0.0f : VALUE;"), "reads-processor"),
    }
    stores = {"store-without-a-wait": COMMIT, "store-in-no-group": "cp.async.bulk.wait_group 0;"}
    sources |= {name: (map_source(STORED.format(end)), "race") for name, end in stores.items()}
    return [Candidate(name, source, TASK, "scale_add", MAP_SHAPE, kind) for name, (source, kind) in sources.items()]


def honest() -> list[Candidate]:
    """Kernels that are accepted."""
    hinted = f"{{ int done = 0; while (!done) {asks('try_wait', '0, 100', 'done')} }}"
    sources = {
        "waits-with-a-hint": map_source(COPY + hinted + STORE),
        "one-try-and-a-wait": map_source(f"{COPY} int first; {asks('try_wait', '0', 'first')} if (!first) {WAIT} {STORE}"),
        "one-thread-waits": map_source(f"{COPY} if (t == 0) {WAIT} __syncthreads(); {STORE}"),
        "waits-for-a-state": map_source(f"{ARRIVAL} {SEES_STATE} if (i < n) y[i] = fmaf(2.0f, s[threadIdx.x], z[i]);"),
    }
    stores = {"store-in-bulk": "", "store-that-has-been-read": ".read"}
    sources |= {name: map_source(STORED.format(f"{COMMIT} cp.async.bulk.wait_group{end} 0;")) for name, end in stores.items()}
    return [Candidate(name, source, TASK, "scale_add", MAP_SHAPE) for name, source in sources.items()]
