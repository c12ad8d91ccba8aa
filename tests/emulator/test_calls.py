"""Calls: by address, of themselves, of the runtime; and refused ones."""

import numpy as np
import pytest

from gemmgen import emulator
from gemmgen.emulator.geometry import Geometry
from gemmgen.emulator.memory import GLOBAL_BASE, GlobalSpace, Heap, Region

from .helpers import compile_ptx, run_cuda

CALLS = """
typedef int (*F)(int);
struct Base { __device__ virtual int f(int x) const = 0; };
struct A : Base { __device__ int f(int x) const override { return x + 1; } };
struct B : Base { __device__ int f(int x) const override { return 2 * x; } };
__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ int odd(int n);
__device__ __noinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }
__device__ int endless(int n) { return endless(n + 1) + n; }
__device__ int plus(int x) { return x + 1; }
__device__ int twice(int x) { return x * 2; }
__device__ F table[2] = {plus, twice};
extern "C" {
__global__ void pointers(int* o) { o[threadIdx.x] = table[threadIdx.x & 1](threadIdx.x); }
__global__ void nowhere(int* o) { F f = (F)(unsigned long long)o; o[threadIdx.x] = f(1); }
__global__ void methods(int* o) {
  Base* b; A a; B c;
  if (threadIdx.x & 1) b = &a; else b = &c;
  o[threadIdx.x] = b->f(threadIdx.x); }
struct C : Base {
  int a;
  __device__ C(int a) : a(a) {}
  __device__ virtual ~C() {}
  __device__ int f(int x) const override { return a * x; } };
__global__ void objects(int* o) {
  Base* b = threadIdx.x & 1 ? (Base*)new C(3) : (Base*)new B();
  o[threadIdx.x] = b->f(threadIdx.x);
  if (threadIdx.x & 1) delete (C*)b; else free(b); }
__global__ void recursion(int* o) { if (threadIdx.x != 3) o[threadIdx.x] = fib(threadIdx.x); }
__global__ void mutual(int* o) { o[threadIdx.x] = even(threadIdx.x) + 10 * odd(threadIdx.x); }
__global__ void deep(int* o) { o[threadIdx.x] = endless(threadIdx.x); }
__global__ void heap(int* o, int free_first) {
  int* p = (int*)malloc(4 * (threadIdx.x + 1));
  p[threadIdx.x] = threadIdx.x;
  if (free_first) free(p);
  o[threadIdx.x] = p[threadIdx.x];
  if (!free_first) free(p); }
__global__ void beyond(int* o) { int* p = new int[3]; p[threadIdx.x] = 1; *o = p[0]; }
__global__ void unwritten(int* o) { int* p = new int[3]; *o = p[1]; }
__global__ void twice_free(int* o) { int* p = new int[3]; delete[] p; delete[] p; }
__global__ void prints(int n) { if (threadIdx.x < 2)
  printf("%d %5.2f %s|%-4u|%c%% %lld %x\\n", threadIdx.x + n, 1.5f, "text", 7u, 'c', 1ll << 40, 255); }
}
"""


def run(entry: str, *args, block: int = 16, hazards: bool = True) -> emulator.LaunchResult:
    return run_cuda(CALLS, entry, 1, block, list(args), hazards=hazards)


@pytest.mark.parametrize(
    ("entry", "function"),
    [
        ("pointers", lambda t: t * 2 if t & 1 else t + 1),
        ("methods", lambda t: t + 1 if t & 1 else 2 * t),
        ("objects", lambda t: 3 * t if t & 1 else 2 * t),
        ("mutual", lambda t: 1 if t % 2 == 0 else 10),
        ("recursion", lambda t: [0, 1, 1, 0, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610][t]),
    ],
)
def test_calls_that_are_not_known_beforehand(entry, function):
    out = np.zeros(16, np.int32)
    run(entry, out)
    assert out.tolist() == [function(t) for t in range(16)]


def test_recursion_under_random_schedules():
    for seed in range(3):
        out = np.zeros(16, np.int32)
        run_cuda(CALLS, "recursion", 1, 16, [out], schedule=emulator.RandomWarps(seed))
        assert out[[2, 10, 15]].tolist() == [1, 55, 610]


def test_a_stack_that_overflows():
    with pytest.raises(emulator.Trapped, match="calls deep in recursion"):
        run("deep", np.zeros(16, np.int32))


def test_an_address_without_a_function():
    with pytest.raises(emulator.Trapped, match="no function lies"):
        run("nowhere", np.zeros(16, np.int32))


def test_memory_from_malloc():
    out = np.zeros(16, np.int32)
    run("heap", out, 0)
    assert out.tolist() == list(range(16))


def test_an_allocation_goes_through_no_other(monkeypatch):
    space = GlobalSpace(Geometry((32, 1, 1), 1))
    space.map(np.zeros(1 << 23, np.uint8), [Region("x", 0, 256, False)], Heap(256, 1 << 23))
    monkeypatch.delattr(GlobalSpace, "_set_regions")  # it goes through all
    found = [space.allocate(8, "a node") for _ in range(1000)]
    for address in found[::2]:
        assert space.free(address) == ""
    kept = [address - GLOBAL_BASE for address in found[1::2]]
    assert [(region.start, region.stop) for region in space.regions] == [(0, 256), *((start, start + 8) for start in kept)]
    assert all(space.holds(start, 8) for start in kept) and not any(space.holds(address - GLOBAL_BASE, 8) for address in found[::2])


@pytest.mark.parametrize(
    ("entry", "args", "error", "message"),
    [
        ("heap", [np.zeros(16, np.int32), 1], emulator.OutOfBounds, "that has been freed"),
        ("beyond", [np.zeros(1, np.int32)], emulator.OutOfBounds, "past the end of an allocation"),
        ("unwritten", [np.zeros(1, np.int32)], emulator.UnwrittenRead, r"read of an allocation of .*\[1\]"),
        ("twice_free", [np.zeros(1, np.int32)], emulator.BadAllocation, "has been freed before"),
    ],
)
def test_misuse_of_the_heap(entry, args, error, message):
    with pytest.raises(error, match=message):
        run(entry, *args)


def test_printf_formats_as_c_does():
    assert run("prints", 5).output == "".join(f"{n}  1.50 text|7   |c% 1099511627776 ff\n" for n in (5, 6))


def test_printf_takes_the_argument_that_it_does_not_write():
    source = 'extern "C" __global__ void k(int n) { printf("%s%n%d\\n", "a", &n, 300); }'
    assert run_cuda(source, "k", 1, 1, [1]).output == "a300\n"


def test_an_assertion_tells_its_condition():
    source = 'extern "C" __global__ void kernel(int n) { assert(n > 3); }'
    source = 'extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);\n' + source.replace(
        "assert(n > 3)", 'if (!(n > 3)) __assertfail("n > 3", "a.cu", 7, "kernel", 1)'
    )
    with pytest.raises(emulator.Trapped, match=r"n > 3 \(a.cu:7\)"):
        run_cuda(source, "kernel", 1, 1, [1])


def test_only_the_kernel_that_cannot_be_parsed_is_refused():
    ptx = compile_ptx('extern "C" __global__ void good(int* o) { *o = 1; }\nextern "C" __global__ void bad(int* o) { *o = 2; }')
    broken = ptx.replace(".visible .entry bad(", ".visible .entry bad(").rpartition("ret;")
    broken = broken[0] + ".mystery directive; ret;" + broken[2]
    out = np.zeros(1, np.int32)
    emulator.launch(broken, "good", grid=1, block=1, args=[out])
    assert out[0] == 1
    with pytest.raises(emulator.ParseError, match="mystery"):
        emulator.launch(broken, "bad", grid=1, block=1, args=[out])


@pytest.mark.parametrize("barrier", ["grid.sync();", ""])
def test_blocks_meet_at_a_grid_barrier(barrier):
    from gemmgen import emulate

    source = f"""#include <cooperative_groups.h>
    __global__ void k(int* a, int* b) {{
      auto grid = cooperative_groups::this_grid(); int i = grid.thread_rank();
      a[i] = i; {barrier}
      b[i] = a[(i + 33) % grid.size()]; }}"""
    result = emulate(source, grid=3, block=32, args=[np.zeros(96, np.int32), np.zeros(96, np.int32)])
    if barrier:
        assert result.clean and result["b"].tolist() == [(i + 33) % 96 for i in range(96)]
    else:
        assert [finding.code for finding in result.findings] == ["global-race"]


def test_kernels_that_launch_kernels_are_refused():
    body = ".visible .entry kernel()\n{\n.param .b64 p; call cudaDeviceSynchronize, (); ret;\n}\n"
    with pytest.raises(emulator.UnknownInstruction, match="kernels that launch kernels"):
        emulator.launch(f".version 8.0\n.target sm_80\n.address_size 64\n{body}", grid=1, block=1)


def test_every_call_of_an_inlined_access_is_told():
    source = """__device__ __forceinline__ void put(int* p) { p[99] = 1; }
__device__ __forceinline__ void pass(int* p) { put(p + 1); }
extern "C" __global__ void kernel(int* p) { pass(p); pass(p + 1); }"""
    with pytest.raises(emulator.OutOfBounds) as raised:
        emulator.launch(compile_ptx(source), "kernel", grid=1, block=1, args=[np.zeros(4, np.int32)], source=source)
    told = str(raised.value)
    places = [told.index(words) for words in ("kernel.cu:1 in put(int*)", "kernel.cu:2 in pass(int*)", "inlined at ", "kernel.cu:3\n")]
    assert places[0] < places[1] < places[3] and "3 | extern" in told
