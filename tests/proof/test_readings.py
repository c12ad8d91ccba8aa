"""Statements of PTX whose exact meaning makes a kernel wrong: none is proved, and kernels with the right form are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("z3")

from gemmgen.cli.proof_files import ForeignKernel, read_foreign
from gemmgen.proof.prover import ASSUMED_LIMITS, KernelProof, domain, prove_sequence

SECONDS = 30.0
XY = "const float* x, float* y, int n"
INDEX = "const int t = threadIdx.x, i = blockIdx.x * 64 + t;"
SHARED = f"{INDEX} __shared__ __align__(16) float s[64]; s[t] = i < n ? x[i] : 0.0f; __syncthreads();"
ONE_WARP = f"{INDEX} float v = i < n ? x[i] : 0.0f;"


@dataclass(frozen=True)
class Reading:
    """A kernel and a property that does not hold for all sizes."""

    property: str
    body: str
    parameters: str = XY
    arrays: tuple[str, ...] = ("x=in f32[n]", "y=out f32[n]")
    grid: str = "ceil_div(n, 64)"
    threads: int = 64
    expects: tuple[str, ...] = ("n <= 1000000",)
    architecture: str | None = None
    bounds: str = ""
    shared: str = "0"
    before: str = ""

    def read(self, body: str, folder: Path) -> ForeignKernel:
        file = folder / "kernel.cu"
        file.write_text(f'{self.before}\nextern "C" __global__ void {self.bounds} kernel({self.parameters})\n{{\n{body}\n}}\n')
        return read_foreign(
            file,
            entry_name="kernel",
            architecture=self.architecture,
            block=(self.threads,),
            grid=self.grid,
            arrays=self.arrays,
            expects=self.expects,
            shared=self.shared,
            seconds=SECONDS,
        )

    def proof(self, folder: Path) -> KernelProof:
        kernel = self.read(self.body, folder)
        return prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)[0]


WRONG = {
    "a read through one of two pointers": Reading(
        "initialised", f"{INDEX} if (i < n) {{ const float* p = n > 300 ? y : x; y[i] = p[n - 1 - i]; }}"
    ),
    "a read of others' results through a pointer": Reading(
        "races", f"{INDEX} if (i < n) {{ const float* p = n > 300 ? y : x; y[i] = p[n - 1 - i]; }}"
    ),
    "a pointer that a loop exchanges": Reading(
        "initialised",
        f"{INDEX} const float* a = x; float v = 0; for (int j = 0; j < turns; ++j) {{ if (i < n) v += a[i]; a = y; }} if (i < n) y[i] = v;",
        f"{XY}, int turns",
    ),
    "equality of addresses modulo 2^64": Reading(
        "memory",
        """
    if (a < 1 || b < 1 || c < 1) return;
    unsigned long long o = (unsigned long long)a * b * c;
    int hit;
    asm("{.reg .pred p; .reg .b64 t; mad.lo.s64 t, %2, 8, %1; setp.eq.s64 p, t, %1; selp.s32 %0, 1, 0, p;}" : "=r"(hit) : "l"(y), "l"(o));
    if (hit) y[1000000] = 1.0f;
""",
        "float* y, int a, int b, int c",
        ("y=out f32[64]",),
        "1",
        expects=(),
    ),
    "a shuffle by lanes that its mask leaves out": Reading("progress", f"{ONE_WARP} v += __shfl_sync(0xffffu, v, 3); if (i < n) y[i] = v;"),
    "a barrier of a warp that leaves out lanes": Reading("progress", f"{SHARED} __syncwarp(0xffffu); if (i < n) y[i] = s[t];"),
    "a vote by lanes that its mask leaves out": Reading(
        "progress", f"{ONE_WARP} if (__ballot_sync(0x0fffffffu, v > 0.0f) > 3) v = 1.0f; if (i < n) y[i] = v;"
    ),
    "a mask that depends on the size": Reading(
        "progress", f"{ONE_WARP} v += __shfl_sync(n > 100 ? 0xffffu : ~0u, v, 3); if (i < n) y[i] = v;"
    ),
    "a shuffle from lanes that the block has not": Reading(
        "initialised",
        "const int i = blockIdx.x * 40 + threadIdx.x; float v = i < n ? x[i] : 0; v += __shfl_down_sync(~0u, v, 1); if (i < n) y[i] = v;",
        grid="ceil_div(n, 40)",
        threads=40,
    ),
    "a grid whose factors are both negative": Reading(
        "memory",
        "if (threadIdx.x == 0) y[blockIdx.x] = 1.0f;",
        "float* y, int n, int m",
        ("y=out f32[n * m]",),
        "(n - 1) * (m - 1)",
        expects=(),
    ),
    "an instruction that ends the launch": Reading("progress", f"{INDEX} if (i < n) y[i] = x[i]; if (n > 999) __trap();"),
    "a conversion to 8 bits in a register of 32": Reading(
        "memory", f'{INDEX} int d; asm("cvt.s8.s32 %0, %1;" : "=r"(d) : "r"(i)); if (i < n) y[i] = x[d];'
    ),
    "atomics of two widths": Reading(
        "races",
        f"""{INDEX} __shared__ unsigned long long s[64]; s[t] = 0; __syncthreads();
    atomicAdd(&s[t], 2ull); atomicAdd((unsigned*)&s[(t + 1) % 64], 1u);
    __syncthreads(); if (i < n) y[i] = s[t];""",
    ),
    "the index of a cluster where blocks form none": Reading(
        "memory",
        f'{INDEX} int c; asm("mov.u32 %0, %%clusterid.x;" : "=r"(c)); if (i < n) y[i] = x[i]; if (c > 0) y[1 << 30] = 1.0f;',
        architecture="sm_90",
    ),
    "a generic address taken for one of shared memory": Reading(
        "memory", f'{SHARED} float v; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "l"(&s[63 - t])); if (i < n) y[i] = v;'
    ),
    "an address of shared memory taken for a generic one": Reading(
        "memory",
        f'{SHARED} float v; asm volatile("ld.f32 %0, [%1];" : "=f"(v) : "l"(__cvta_generic_to_shared(&s[63 - t]))); if (i < n) y[i] = v;',
    ),
    "a store of more bytes than its type": Reading(
        "memory",
        f'{SHARED} asm volatile("st.bulk.weak.shared::cta [%0], 1024, 0;" :: "r"((unsigned)__cvta_generic_to_shared(s)));'
        " __syncthreads(); if (i < n) y[i] = s[t];",
        architecture="sm_100a",
    ),
    "a block that the kernel does not allow": Reading("complete", f"{INDEX} if (i < n) y[i] = x[i];", bounds="__launch_bounds__(32)"),
    "a barrier of a part of a warp": Reading(
        "progress",
        "const int t = threadIdx.x, i = blockIdx.x * 48 + t; __shared__ float s[48]; s[t] = i < n ? x[i] : 0;"
        ' asm volatile("bar.sync 1, 48;");'
        " if (i < n) y[i] = s[47 - t];",
        grid="ceil_div(n, 48)",
        threads=48,
    ),
    "more shared memory than a block may have": Reading(
        "complete", f"{INDEX} extern __shared__ float s[]; s[t] = i < n ? x[i] : 0.0f; if (i < n) y[i] = s[t];", shared="300000"
    ),
    "a minimum that is never negative": Reading(
        "memory",
        f'{INDEX} int d; asm("min.s32.relu %0, %1, %2;" : "=r"(d) : "r"(i - 5), "r"(-1)); if (i < n && i < 5 && d == 0) y[n] = x[i];',
        architecture="sm_90",
    ),
    "bounds of one of two ways": Reading(
        "memory",
        f"""{INDEX} const int k = i - 64; if (i >= n) return; unsigned long long d;
    asm("{{.reg .pred p; setp.ge.s32 p, %1, 0; @p bra A; cvt.s64.s32 %0, %1; bra B; A: cvt.u64.u32 %0, %1; B: }}" : "=l"(d) : "r"(k));
    y[(d >> 62) + 1 + 4 * i] = 1.0f;""",
        arrays=("x=in f32[n]", "y=out f32[4 * n]"),
    ),
    "a copy that reads more than it writes": Reading(
        "memory",
        f'{SHARED} asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"((unsigned)__cvta_generic_to_shared(&s[t])), "l"(x),'
        ' "r"(8)); asm volatile("cp.async.wait_all;"); if (i < n) y[i] = s[t];',
        expects=("n >= 4",),
    ),
    "a cache policy taken for a number of bytes": Reading(
        "memory",
        f'{SHARED} asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2;" :: "r"((unsigned)'
        '__cvta_generic_to_shared(&s[t])), "l"(x + n), "l"(0ull)); asm volatile("cp.async.wait_all;"); if (i < n) y[i] = s[t];',
        expects=("n >= 4",),
    ),
    "an element that another thread stores": Reading(
        "races", f"{INDEX} if (i + 1 < n) y[i] = y[i + 1];", "float* y, int n", ("y=inout f32[n]",)
    ),
    "a load of constant data that the thread stores later": Reading(
        "races", f"{INDEX} if (i < n) y[i] = 2.0f * __ldg(y + i);", "float* y, int n", ("y=inout f32[n]",)
    ),
    "a variable of the module that all threads store to": Reading(
        "once", f"{INDEX} if (i < n) {{ y[i] = x[i]; last = i; }}", before="__device__ int last;"
    ),
    "a label that an inner scope hides": Reading(
        "memory",
        f"""{INDEX} int s;
    asm volatile("{{.reg .pred q; .reg .b32 c; mov.b32 c, 0; L: add.s32 c, c, 1;"
                 "{{setp.lt.s32 q, c, %1; @q bra L; mov.b32 c, 7; L: }} mov.b32 %0, c; }}" : "=r"(s) : "r"(n));
    if (i < n) y[s > 1 ? i : i + n] = x[i];""",
        expects=("8 <= n", "n <= 1000000"),
    ),
    "an exchange by several threads": Reading(
        "once", f"{INDEX} if (i < n) atomicExch(&y[0], 1.0f);", "float* y, int n", ("y=inout f32[n]",)
    ),
    "atomics of a block on a result of all": Reading(
        "once", f"{INDEX} if (i < n) atomicAdd_block(&y[0], 1.0f);", "float* y, int n", ("y=inout f32[n]",)
    ),
}
RIGHT = {
    "a shuffle of all lanes": Reading("progress", f"{ONE_WARP} v += __shfl_sync(~0u, v, 3); if (i < n) y[i] = v;"),
    "halves of a warp": Reading(
        "initialised",
        "int i = blockIdx.x * 48 + threadIdx.x; float v = i < n ? x[i] : 0; v += __shfl_xor_sync(~0u, v, 1, 16); if (i < n) y[i] = v;",
        grid="ceil_div(n, 48)",
        threads=48,
    ),
    "an address of shared memory": Reading(
        "memory",
        f'{SHARED} float v; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "l"(__cvta_generic_to_shared(&s[63 - t])));'
        " if (i < n) y[i] = v;",
    ),
    "a generic address of shared memory": Reading(
        "memory", f'{SHARED} float v; asm volatile("ld.f32 %0, [%1];" : "=f"(v) : "l"(&s[63 - t])); if (i < n) y[i] = v;'
    ),
    "each thread changes its own element": Reading(
        "races", f"{INDEX} if (i < n) y[i] = 2.0f * y[i];", "float* y, int n", ("y=inout f32[n]",)
    ),
    "a sum of all threads": Reading("once", f"{INDEX} if (i < n) atomicAdd(&y[0], 1.0f);", "float* y, int n", ("y=inout f32[n]",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_hold_is_not_proved(name: str, tmp_path: Path) -> None:
    assert WRONG[name].property not in WRONG[name].proof(tmp_path).proved


@pytest.mark.parametrize("name", RIGHT)
def test_what_holds_is_proved(name: str, tmp_path: Path) -> None:
    proof = RIGHT[name].proof(tmp_path)
    assert RIGHT[name].property in proof.proved, [each.reasons for each in proof.properties if each.name == RIGHT[name].property]


def test_a_fault_of_another_kind_confirms_nothing(tmp_path: Path) -> None:
    """The kernel reads shared memory before it is written, which says nothing about how often results are stored."""
    reading = Reading("races", f"{INDEX} __shared__ float s[64]; s[t] = 1.0f; if (i < n) y[i] = s[63 - t];")
    kernel = reading.read(reading.body, tmp_path)
    assert "shared s" in kernel.replay("races", {"problem": {"n": 64}, "thread": {}})
    assert [kernel.replay(name, {"problem": {"n": 64}, "thread": {}}) for name in ("once", "memory")] == ["", ""]


def test_an_array_without_elements_has_no_first_one(tmp_path: Path) -> None:
    reading = Reading("memory", f"{INDEX} if (i < n) y[i] = x[0];", f"{XY}, int k", ("x=in f32[k]", "y=out f32[n]"))
    assert "0 bytes past the end of x (0 bytes)" in reading.read(reading.body, tmp_path).replay(
        "memory", {"problem": {"n": 1, "k": 0}, "thread": {}}
    )


def test_limits_of_sizes_that_the_problem_gives_are_named(tmp_path: Path) -> None:
    body = f"{INDEX} if (i < n) y[i] = x[i];"
    fixed = Reading("memory", body).read(body, tmp_path).sequence
    by_rows = Reading("memory", body, grid="1, ceil_div(n, 64)").read(body, tmp_path).sequence
    assert ASSUMED_LIMITS not in domain(fixed)
    assert domain(by_rows)[-1] == ASSUMED_LIMITS


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 {}, .param .u64 {}, .param .u32 {})\n{{ {} }}\n"
BODY = """.reg .pred %p<3>; .reg .b16 %h<3>; .reg .b32 %r<6>; .reg .b64 %rd<9>; .reg .f32 %f<3>;
ld.param.u64 %rd1, [{}]; ld.param.u64 %rd2, [{}]; ld.param.u32 %r2, [{}]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3; setp.ge.s32 %p1, %r1, %r2; @%p1 bra END;
ld.global.f32 %f1, [%rd4]; st.global.f32 [%rd5], %f1; {} END: ret;"""
ALL = {"memory", "races", "once", "progress", "initialised", "complete"}


def proof_of_ptx(parameters: tuple[str, str, str], read: tuple[str, str, str], folder: Path, more: str = "", most: int = 64) -> KernelProof:
    """Copies the first 64 of n elements from an array to another one, by PTX with these names of parameters."""
    file = folder / "kernel.ptx"
    file.write_text(HEAD.format(*parameters, BODY.format(*read, more)))
    one, other, n = parameters
    kernel = read_foreign(
        file,
        entry_name="k",
        architecture=None,
        block=(64,),
        grid="1",
        arrays=[f"{one}=in f32[{n}]", f"{other}=out f32[{n}]"],
        expects=[f"{n} <= {most}"],
        shared="0",
        seconds=SECONDS,
    )
    (proof,) = prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)
    return proof


@pytest.mark.parametrize("names", [("x", "y", "n"), ("k_param_0", "k_param_1", "k_param_2"), ("k_param_2", "k_param_0", "k_param_7")])
def test_parameters_are_read_by_their_places(names: tuple[str, str, str], tmp_path: Path) -> None:
    assert set(proof_of_ptx(names, names, tmp_path).proved) >= ALL
    exchanged = proof_of_ptx(names, (names[1], names[0], names[2]), tmp_path)
    assert not {"memory", "initialised", "complete"} & set(exchanged.proved)


def test_a_loop_may_be_the_whole_kernel(tmp_path: Path) -> None:
    file = tmp_path / "kernel.ptx"
    file.write_text(HEAD.format("x", "y", "n", "L: bra L;"))
    kernel = read_foreign(
        file,
        entry_name="k",
        architecture=None,
        block=(64,),
        grid="1",
        arrays=["x=in f32[n]", "y=inout f32[n]"],
        expects=[],
        shared="0",
        seconds=SECONDS,
    )
    (proof,) = prove_sequence(kernel.sequence, kernel.code.ptx, SECONDS)
    assert not {"progress", "complete"} & set(proof.proved)


PARTS = {
    "a statement that is not read": ("vadd.u32.u32.u32 %r1, %r5.b0, 0;", "progress"),
    "a store of no known form": ("st.global.async.f32 [%rd5], %f1;", "once"),
    "two parts of a parameter that look alike": (
        "ld.param.u8 %r3, [n]; ld.param.s8 %r4, [n]; setp.eq.s32 %p2, %r3, %r4; @%p2 bra END; st.global.f32 [%rd5+4096], %f1;",
        "memory",
    ),
    "a branch of lanes that differ, declared as uniform": (
        "setp.gt.s32 %p2, %r1, 40; @%p2 bra.uni END; st.global.f32 [%rd5], %f1;",
        "memory",
    ),
    "a number behind the parameters": ("ld.param.u32 %r3, [n+4];", "memory"),
    "half of a parameter": (
        "ld.param.u16 %h1, [n]; cvt.u32.u16 %r3, %h1; setp.ne.s32 %p2, %r3, %r2; @%p2 bra END; st.global.f32 [%rd5+4096], %f1;",
        "memory",
    ),
    "a product of some lanes": (
        "setp.ne.s32 %p2, %r1, 48; @%p2 shfl.sync.idx.b32 %r3, %r1, 3, 31, -1;",
        "progress",
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_ptx_are_not_passed_over(part: str, tmp_path: Path) -> None:
    more, property_ = PARTS[part]
    names = ("x", "y", "n")
    assert property_ not in proof_of_ptx(names, names, tmp_path, more, 200).proved
