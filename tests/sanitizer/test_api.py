"""gemmgen.emulate: arguments of every kind, results, findings as data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import GemmgenError
from gemmgen.emulator import TensorMap
from gemmgen.sanitizer.api import FindingsError
from gemmgen.sanitizer.headers import header_folders

SAXPY = """
__global__ void saxpy(int n, float a, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""


def test_arrays_come_out_and_inputs_stay():
    y = np.ones(100, np.float32)
    result = gemmgen.emulate(SAXPY, grid=1, block=128, args=[100, 2, np.arange(100, dtype=np.float32), y])
    np.testing.assert_array_equal(result["y"], 2 * np.arange(100) + 1)
    assert result.clean and (y == 1).all() and result.entry == "saxpy"


def test_findings_are_data():
    result = gemmgen.emulate(SAXPY.replace("i < n", "i <= n"), grid=1, block=128, args=[100, 2, np.ones(100, np.float32), "f32[100]=ones"])
    assert [(finding.code, finding.severity, finding.places[0].line) for finding in result.findings] == [("out-of-bounds", "error", 4)] * 2
    with pytest.raises(FindingsError, match="past the end of x"):
        result.check()


def test_notes_leave_a_result_clean_unless_strict():
    source = "__global__ void k(int* flag) { *flag = 1; }"
    lenient, strict = (gemmgen.emulate(source, grid=1, block=32, args=["i32[1]=zeros"], strict=strict) for strict in (False, True))
    assert (lenient.clean, lenient.findings[0].severity) == (True, "note")
    assert (strict.clean, strict.findings[0].code) == (False, "same-value")


STRUCT = """
struct Inner { int x, y; };
struct Args { float* p; int n; double scale; short tail[3]; bool on; const int* q; };
__global__ void k(Args a, float* out) {
  if (threadIdx.x < a.n) a.p[threadIdx.x] = a.scale * a.tail[2] + a.on + a.q[1];
  out[threadIdx.x] = sizeof(Args);
}
"""


def test_a_structure_with_pointers_by_names_of_members():
    members = {"p": np.zeros(20, np.float32), "n": 20, "scale": 0.5, "tail": [1, 2, 3], "on": True, "q": np.array([7, 8], np.int32)}
    result = gemmgen.emulate(STRUCT, grid=1, block=32, args=[members, np.zeros(32, np.float32)])
    assert result.clean
    assert result["a.p"].tolist() == [10.5] * 20 and result["out"][0] == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [({"m": 1}, "has no member m"), ({"n": None}, "the member n"), ({"tail": [1, 2]}, "takes 3 values"), ({"n": 2**40}, "does not fit")],
)
def test_wrong_members_are_told(change, message):
    members = {"p": None, "n": 0, "scale": 0.5, "tail": [1, 2, 3], "on": True, "q": None} | change
    with pytest.raises(GemmgenError, match=message):
        gemmgen.emulate(STRUCT, grid=1, block=32, args=[members, np.zeros(32, np.float32)])


def test_an_array_of_pointers():
    source = "__global__ void k(float** rows, int n) { rows[blockIdx.x][threadIdx.x] = n; }"
    result = gemmgen.emulate(source, grid=2, block=8, args=[[np.zeros(8, np.float32), np.zeros(9, np.float32)], 4])
    assert result["rows[0]"].tolist() == [4] * 8 and result["rows[1]"].tolist() == [4] * 8 + [0]


def test_module_variables_have_the_values_given():
    source = """__constant__ float c[4]; namespace n { __device__ int total = 5; }
        __global__ void k(float* o) { *o = c[3] + n::total; n::total = 9; }"""
    result = gemmgen.emulate(source, grid=1, block=1, args=["f32[1]"], symbols={"c": np.arange(4, dtype=np.float32), "total": np.int32(7)})
    assert result["o"][0] == 10
    assert any(values.view(np.int32).tolist() == [9] for values in result.symbols.values())


@pytest.mark.parametrize("entry", ["scale<float, 3>", "scale<float,3>"])
def test_a_template_is_instantiated_by_its_name(entry):
    source = "template <class T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }"
    assert gemmgen.emulate(source, entry, grid=1, block=4, args=[np.ones(4, np.float32)])["x"].tolist() == [3] * 4


def test_host_code_in_the_file_is_left_out():
    source = """
#include <cstdio>
#include <vector>
#include <iostream>
#include <cuda_runtime.h>
#define CHECK(x) do { if (x) { printf("bad\\n"); exit(1); } } while (0)
__global__ void k(int* out) { out[threadIdx.x] = threadIdx.x; }
static std::vector<int> make(int n) { return std::vector<int>(n, '{'); }
int main(int argc, char** argv) {
  int* d; CHECK(cudaMalloc(&d, 128));
  k<<<1, 32>>>(d);
  std::cout << "}" << std::endl;
}
__global__ void later(int* out) { out[threadIdx.x + 1] = 1; }
"""
    assert gemmgen.emulate(source, "k", grid=1, block=4, args=["i32[4]"])["out"].tolist() == [0, 1, 2, 3]
    broken = gemmgen.emulate(source, "later", grid=1, block=4, args=["i32[4]"])
    assert broken.findings[0].places[0].line == 14


def test_headers_of_cooperative_groups_and_half_types():
    source = """
#include <cooperative_groups.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda/atomic>
#include <cuda/std/array>
namespace cg = cooperative_groups;
__global__ void k(float* out, int* total) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<32>(block);
  cuda::std::array<float, 2> pair = {__half2float(__float2half(1.5f)), __bfloat162float(__float2bfloat16(2.f))};
  block.sync();
  out[block.thread_rank()] = pair[0] + pair[1] + tile.size();
  cuda::atomic_ref<int, cuda::thread_scope_device> counter(*total);
  counter.fetch_add(1, cuda::memory_order_relaxed);
}
"""
    result = gemmgen.emulate(source, grid=2, block=64, args=["f32[64]", "i32[1]=zeros"])
    assert result["out"].tolist() == [35.5] * 64 and result["total"][0] == 128
    assert [finding.code for finding in result.findings] == ["same-value"]


def test_a_finding_in_a_header_quotes_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("header.h").write_text("__device__ inline void store(int* o, int i) {\n  // two\n  o[i + 1] = 1;\n}\n")
    Path("main.cu").write_text('#include "header.h"\n// two\n// three\n__global__ void k(int* out) { store(out, threadIdx.x); }\n')
    (finding,) = gemmgen.emulate("main.cu", grid=1, block=4, args=["i32[4]"]).findings
    assert finding.places[0].file == "header.h" and "3 | o[i + 1] = 1;" in finding.text
    assert "store(int*, int), inlined at main.cu:4" in finding.text


def test_an_error_in_a_header_quotes_the_header(tmp_path: Path):
    (tmp_path / "header.h").write_text("\n\n__device__ int f() { return missing; }\n")
    (tmp_path / "main.cu").write_text('#include "header.h"\n__global__ void k(int* out) { *out = f(); }\n')
    with pytest.raises(GemmgenError, match=r"header\.h:3: identifier \"missing\" is undefined\n +3 \| __device__ int f"):
        gemmgen.emulate(tmp_path / "main.cu", grid=1, block=4, args=["i32[4]"])


def test_optimisation_hides_a_store_that_debug_code_has():
    source = "__global__ void k(int* o) { int a[4]; a[threadIdx.x] = 1; *o = 2; }"
    plain, debug = (gemmgen.emulate(source, grid=1, block=8, args=["i32[1]"], debug=debug) for debug in (False, True))
    assert plain.clean and debug.findings[0].code == "out-of-bounds"


def test_a_result_that_depends_on_the_order_of_warps():
    source = "__global__ void k(volatile int* out) { out[0] = threadIdx.x / 32; }"
    result = gemmgen.emulate(source, grid=1, block=256, args=["i32[1]"], schedules=8)
    assert result.findings[0].code == "schedule-dependent" and "under schedule" in result.findings[0].message


def test_counters_tell_the_lines():
    result = gemmgen.emulate(SAXPY, grid=1, block=128, args=[100, 2.0, "f32[100]=ones", "f32[100]=ones"], counters=True)
    assert result.counters is not None and [line.line for line in result.counters.memory_lines] == [4]


@pytest.mark.parametrize("value", [object(), np.array([object()]), "f33[4]"])
def test_values_that_are_no_arguments_are_told(value):
    with pytest.raises(GemmgenError, match=r"argument 0|not a known type"):
        gemmgen.emulate("__global__ void k(int n) {}", grid=1, block=1, args=[value])


def test_blocks_of_cub():
    source = """
#include <cub/cub.cuh>
__global__ void k(const int* in, int* out) {
  using Reduce = cub::BlockReduce<int, 128>;
  using Scan = cub::BlockScan<int, 128>;
  __shared__ union { typename Reduce::TempStorage reduce; typename Scan::TempStorage scan; } storage;
  int sum = Reduce(storage.reduce).Sum(in[threadIdx.x]);
  if (threadIdx.x == 0) out[128] = sum;
  __syncthreads();
  Scan(storage.scan).InclusiveSum(in[threadIdx.x], out[threadIdx.x]);
}
"""
    result = gemmgen.emulate(source, grid=1, block=128, args=[np.arange(128, dtype=np.int32), np.zeros(129, np.int32)]).check()
    assert result["out"].tolist() == [*np.cumsum(np.arange(128)).tolist(), 127 * 64]


def test_thrust_on_the_host_is_left_out():
    source = """#include <thrust/device_vector.h>
#include <thrust/sort.h>
#include <helper_cuda.h>
template <typename T> struct Matrix { T* data; int width, height; };
template <typename T> __global__ void transpose(Matrix<T> a, Matrix<T> b) {
  int i = threadIdx.x;
  if (i < a.width * a.height) b.data[i % a.width * b.width + i / a.width] = a.data[i];
}
int main() {
  thrust::device_vector<int> v(10);
  thrust::sort(v.begin(), v.end());
  transpose<float><<<1, 64>>>({nullptr, 1, 1}, {nullptr, 1, 1});
}
"""
    a = np.arange(40, dtype=np.float32)
    matrices = [{"data": a, "width": 10, "height": 4}, {"data": np.zeros_like(a), "width": 4, "height": 10}]
    result = gemmgen.emulate(source, "transpose<float>", grid=1, block=64, args=matrices).check()
    assert (result["b.data"].reshape(10, 4) == a.reshape(4, 10).T).all()


LAUNCHING = """__global__ void inner(int* x) { x[threadIdx.x] = 1; }
__global__ void outer(int* x) { inner<<<1, 32>>>(x); }
"""


def test_a_kernel_that_launches_kernels_is_refused_by_itself():
    assert gemmgen.emulate(LAUNCHING, "inner", grid=1, block=4, args=["i32[4]"]).check()["x"].tolist() == [1, 1, 1, 1]
    with pytest.raises(GemmgenError, match="kernels that launch kernels are not supported"):
        gemmgen.emulate(LAUNCHING, "outer", grid=1, block=1, args=["i32[32]"])


def test_headers_of_random_numbers_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "curand_kernel.h").write_text("")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert str(tmp_path / "include") in header_folders()


def test_methods_without_a_word_about_where_they_run():
    source = """
#include <iostream>
struct Timer { void start() {} float stop() { return 0.f; } };
struct Pair { int a, b; int sum() const { return a + b; } };
int helper(int x) { return x + 1; }
__global__ void k(int* o) { Pair p{1, (int)threadIdx.x}; o[threadIdx.x] = p.sum(); }
int main() { Timer t; t.start(); k<<<1, 1>>>(nullptr); std::cout << helper(2); }
"""
    assert gemmgen.emulate(source, grid=1, block=3, args=["i32[3]"])["o"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("uint32_t v = 1; *p = v;", 1),
        ("*p = INFINITY > HUGE_VAL || NAN == NAN;", 0),
        ("uint v = 2; ushort w = 3; *p = v + w;", 5),
        ("*p = std::min(1, 2) + std::max(2, 3);", 4),
        ("*p = std::sqrt(4.0f) + std::abs(-3) + std::isnan(2.0f);", 5),
        ("int a = 1, b = 2; std::swap(a, b); *p = a + (M_PI > 3);", 3),
    ],
)
def test_names_that_nvcc_includes_by_itself(statement, value):
    result = gemmgen.emulate(f"__global__ void k(int* p) {{ {statement} }}", grid=1, block=1, args=["i32[1]=zeros"])
    assert result.clean and result["p"].tolist() == [value]


def test_a_file_that_has_such_names_of_its_own():
    source = """typedef unsigned char uint8_t; typedef unsigned uint;
        #define INFINITY 5
        __global__ void k(int* p) { uint8_t v = 255; uint w = INFINITY; *p = v + w + (int)std::fabs(-1.0f); }"""
    result = gemmgen.emulate(source, grid=1, block=1, args=["i32[1]=zeros"])
    assert result.clean and result["p"].tolist() == [261]


def test_an_unknown_name_is_told_in_the_users_line():
    with pytest.raises(GemmgenError, match=r"kernel.cu:2: identifier \"nonsense\" is undefined"):
        gemmgen.emulate("\n__global__ void k(int* p) { *p = nonsense; }", grid=1, block=1, args=["i32[1]"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": None}, "a tensor map needs its array"),
        ({"base": 3.0}, "has to be an array"),
        ({"box": (33, 8)}, "does not allow this tensor map"),
        ({"base": np.zeros(7, np.float32)}, "of an array of 28 bytes"),
    ],
)
def test_a_bad_tensor_map_is_refused(change, message):
    given = {
        "element": "f32",
        "extents": (64, 16),
        "strides": (256,),
        "box": (32, 8),
        "swizzle": "128B",
        "base": np.zeros((16, 64), np.float32),
    }
    source = "struct CUtensorMap { unsigned long long opaque[16]; }; __global__ void k(const __grid_constant__ CUtensorMap map) {}"
    with pytest.raises(GemmgenError, match=message):
        gemmgen.emulate(source, grid=1, block=32, args=[TensorMap(**given | change)], architecture="sm_90a")


GRID_CONSTANTS = """
__global__ void k(float* const __grid_constant__ y, const __grid_constant__ float s, const __grid_constant__ unsigned char at,
                  const __grid_constant__ long long n, const __grid_constant__ double d, const bool __grid_constant__ on) {
    if (on) y[at] = s + n + d;
}
"""


@pytest.mark.parametrize("args", [(1.5, 2, 2**33, 0.25, True), ("f32=1.5", "u8=2", f"s64={2**33}", "f64=0.25", "u8=1")])
def test_scalars_of_the_grid(args):
    result = gemmgen.emulate(GRID_CONSTANTS, grid=1, block=1, args=["f32[4]=zeros", *args])
    assert result.clean and result["y"].tolist() == [0.0, 0.0, float(np.float32(2**33)), 0.0]


FIRST_BYTE = "__global__ void k(char* p) { if (threadIdx.x == 0) p[0] = 1; }"
MANY_BYTES = np.broadcast_to(np.int8(0), (10**11,))
GIBIBYTE = np.broadcast_to(np.int8(0), (1 << 30,))


@pytest.mark.parametrize(
    ("source", "args", "symbols", "message"),
    [
        (FIRST_BYTE, [MANY_BYTES], {}, "93.1 GiB, need at most 1 GiB"),
        (FIRST_BYTE, [range(10**12)], {}, "931 GiB, need at most 1 GiB"),
        (FIRST_BYTE, ["u8[1]"], {"w": MANY_BYTES}, "has 16 bytes"),
        ("__global__ void k(char** p) { p[0][0] = 1; }", [[MANY_BYTES]], {}, "93.1 GiB"),
        ("struct A { char* p; };\n__global__ void k(A a) { a.p[0] = 1; }", [{"p": MANY_BYTES}], {}, "93.1 GiB"),
        ("__device__ char big[1ll << 33]; __global__ void k(int i) { big[i] = 1; }", [0], {}, "take 8 GiB"),
    ],
)
def test_what_no_memory_holds_is_refused_at_once(source, args, symbols, message):
    with pytest.raises(GemmgenError, match=message):
        gemmgen.emulate("__device__ float w[4];" + source, grid=1, block=32, args=args, symbols=symbols)


def test_arrays_are_counted_together(monkeypatch):
    monkeypatch.setattr("gemmgen.sanitizer.arguments.MAX_TOTAL_BYTES", 2 << 20)
    three = [np.zeros(900 << 10, np.int8)] * 3
    source = "struct A { char *p, *q, *r; };\n__global__ void %s"
    for kernel, args in (
        ("k(char* p, char* q, char* r) { *p = 1; }", three),
        ("k(char** rows) { **rows = 1; }", [three]),
        ("k(A a) { *a.p = 1; }", [dict(zip("pqr", three, strict=True))]),
    ):
        with pytest.raises(GemmgenError, match="the first 3 arrays take"):
            gemmgen.emulate(source % kernel, grid=1, block=1, args=args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": 1.5}, "grid is 1.5"),
        ({"block": "32"}, "block is '32'"),
        ({"grid": None}, "grid is None"),
        ({"cluster": (1, 1, 1, 1)}, "cluster is"),
        ({"args": 5}, "args is a list"),
        ({"args": [float("nan")]}, "nan for a parameter of type int"),
        ({"args": [np.zeros(1, ">i4")]}, "an array of >i4"),
        ({"schedules": -1}, "schedules is -1"),
        ({"seed": -3}, "seed is -3"),
        ({"jobs": 0}, "jobs is 0"),
        ({"source": None}, "got NoneType"),
        ({"source": ""}, "an empty text"),
    ],
)
def test_values_of_the_wrong_kind_are_told(change, message):
    call = {"source": "__global__ void k(int n) {}", "grid": 1, "block": 32, "args": [1]} | change
    with pytest.raises(GemmgenError, match=message):
        gemmgen.emulate(call.pop("source"), **call)


def test_one_folder_or_macro_needs_no_list(tmp_path):
    (tmp_path / "four.h").write_text("#define FOUR 4\n")
    source = '#include "four.h"\n__global__ void k(int* out) { *out = FOUR + ONE; }'
    assert gemmgen.emulate(source, grid=1, block=1, args=["i32[1]"], include=tmp_path, define="ONE=1")["out"].tolist() == [5]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_complex_numbers_fill_pairs(kind):
    source = f"__global__ void k({kind}2 z, {kind}* out) {{ out[0] = z.x; out[1] = z.y; }}"
    name = "f32" if kind == "float" else "f64"
    assert gemmgen.emulate(source, grid=1, block=1, args=[1 + 2j, f"{name}[2]"])["out"].tolist() == [1, 2]


TWICE = """
#include <cuda/barrier>
__device__ void begin(cuda::barrier<cuda::thread_scope_block>* bar) {
  init(bar, 32);
}
__global__ void k(int* out) {
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  begin(&bar);
  __syncthreads();
  bar.arrive_and_wait();
  out[threadIdx.x] = 1;
}
"""


@pytest.mark.skipif(not header_folders(), reason="CUDA's headers are not installed")
def test_findings_in_headers_of_cuda_name_the_users_line():
    result = gemmgen.emulate(TWICE, grid=1, block=32, args=["i32[32]"], name="main.cu")
    finding = result.findings[0]
    place = finding.places[0]
    assert (place.file, place.line, place.function) == (
        "main.cu",
        4,
        "begin(cuda::barrier<(cuda::std::thread_scope)2, cuda::std::__empty_completion>*)",
    )
    assert "inlined at main.cu:8, through <cuda/" in finding.text and "4 | init(bar, 32);" in finding.text
    assert "/include/" not in finding.text


@pytest.mark.skipif(not header_folders(), reason="CUDA's headers are not installed")
def test_counters_of_headers_of_cuda_count_at_the_users_line():
    source = TWICE.replace("begin(&bar)", "if (threadIdx.x == 0) begin(&bar)")
    result = gemmgen.emulate(source, grid=1, block=32, args=["i32[32]"], name="main.cu", counters=True)
    assert result.clean and result.counters is not None
    assert {line.file for line in result.counters.lines} <= {"main.cu", ""}


def test_one_line_with_several_barriers_is_one_finding():
    source = """__global__ void k(const char* x, char* out) {
  __shared__ alignas(16) char tile[48];
  __shared__ unsigned long long bars[3];
  unsigned at = __cvta_generic_to_shared(bars), to = __cvta_generic_to_shared(tile);
  #pragma unroll
  for (int i = 0; i < 3; i++) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at + 8 * i));
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" :: "r"(at + 8 * i));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];"
                 :: "r"(to + 16 * i), "l"(x + 16 * i), "r"(at + 8 * i) : "memory");
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }" :: "r"(at + 8 * i) : "memory");
  }
  for (int i = 0; i < 48; i++) out[i] = tile[i];
}"""
    result = gemmgen.emulate(source, grid=1, block=1, args=["u8[48]=range", "u8[48]"], architecture="sm_90")
    assert [(finding.code, finding.count) for finding in result.findings] == [("missing-init-fence", 3)]


def test_extensions_of_pytorch_compile_for_the_device():
    source = """#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <thrust/sort.h>
namespace F = torch::nn::functional;
torch::Tensor relu(torch::Tensor x);
template <typename scalar_t>
__global__ void relu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i <= n; i += gridDim.x * blockDim.x) 
    y[i] = x[i] > scalar_t(0) ? x[i] : scalar_t(0);
}
torch::Tensor relu(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be on the device");
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "relu", [&] {
    relu_kernel<scalar_t><<<4, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  });
  return y;
}
TORCH_LIBRARY(mine, m) { m.def("relu", relu); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("relu", &relu, "relu"); }
"""
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    result = gemmgen.emulate(source, "relu_kernel<float>", grid=1, block=128, args=[x, np.empty(100, np.float32), 100], name="relu.cu")
    assert [(finding.code, finding.places[0].line) for finding in result.findings] == [("out-of-bounds", 10)] * 2
    right = gemmgen.emulate(
        source.replace("i <= n", "i < n"), "relu_kernel<float>", grid=1, block=128, args=[x, np.empty(100, np.float32), 100]
    )
    np.testing.assert_array_equal(right["y"], np.maximum(x, 0))
    assert right.clean


@pytest.mark.parametrize(("array", "told"), [(np.zeros(4), "float64"), (np.arange(4), "int64"), (np.zeros(4, np.float16), "float16")])
def test_elements_of_another_size_are_told(array: np.ndarray, told: str) -> None:
    with pytest.raises(GemmgenError, match=rf"argument 0 \(x\) of k is float\*; '{told}\[4\]' has elements of another size"):
        gemmgen.emulate("__global__ void k(float* x) { x[0] = 1; }", grid=1, block=1, args=[array])


def test_bytes_pass_for_any_elements() -> None:
    result = gemmgen.emulate("__global__ void k(float* x) { x[0] = 1; }", grid=1, block=1, args=[np.zeros(4, np.uint8)])
    assert result["x"].view(np.float32)[0] == 1


NESTED = """
struct Box { float3 g; struct { float lo, hi; } side[2]; enum Kind { A, B } kind; float* pos[2]; int n{3}; struct In { int q; } in; };
__global__ void k(Box b, float* out) {
  out[0] = b.g.z; out[1] = b.side[1].hi; out[2] = b.kind; out[3] = b.pos[1][1]; out[4] = b.n; out[5] = b.in.q;
}
"""


def test_a_structure_of_structures_and_arrays_of_pointers() -> None:
    box = {
        "g": np.array([1, 2, 3], np.float32),
        "side": np.array([[4, 5], [6, 7]], np.float32),
        "kind": np.int32(1),
        "pos": [np.zeros(2, np.float32), np.array([8, 9], np.float32)],
        "n": 10,
        "in": b"\x0b\0\0\0",
    }
    result = gemmgen.emulate(NESTED, grid=1, block=1, args=[box, np.zeros(6, np.float32)])
    assert result["out"].tolist() == [3, 7, 1, 9, 10, 11]


def test_too_few_arrays_for_a_member_are_told() -> None:
    source = "struct S { float* p[2]; };\n__global__ void k(S s) { s.p[1][0] = 1; }"
    with pytest.raises(GemmgenError, match="the member p takes a list of 2 arrays"):
        gemmgen.emulate(source, grid=1, block=1, args=[{"p": np.zeros(2, np.float32)}])


def test_an_array_for_a_texture_is_told() -> None:
    source = "__global__ void k(cudaTextureObject_t t, float* o) { o[0] = tex1Dfetch<float>(t, 0); }"
    with pytest.raises(GemmgenError, match=r"argument 0 \(t\) of k is a texture.*Texture\(array\)"):
        gemmgen.emulate(source, grid=1, block=1, args=[np.zeros(4, np.float32), np.zeros(1, np.float32)])


def test_a_length_may_be_written_as_extents() -> None:
    result = gemmgen.emulate("__global__ void k(float* x) { x[11] += 1; }", grid=1, block=1, args=["f32[3x4]=ones"])
    assert result["x"].ravel()[11] == 2


@pytest.mark.parametrize(("shift", "words"), [(150, "472 bytes past the end of b"), (-100, "400 bytes before b")])
def test_a_wild_index_names_the_array_that_it_belongs_to(shift: int, words: str, tmp_path: Path) -> None:
    # Another array is nearer to the address.
    file = tmp_path / "shifted.cu"
    file.write_text("__global__ void k(const float* a, const float* b, float* c, int n) { int i = threadIdx.x; c[i] = a[i] + b[i + n]; }")
    array = np.ones(32, np.float32)
    result = gemmgen.emulate(file, grid=1, block=32, args=[array, array.copy(), array.copy(), shift])
    assert words in result.findings[0].message


@pytest.mark.skipif(not header_folders(), reason="the types of 16 bits need CUDA's headers")
def test_the_headers_of_cublas_bring_the_types_of_16_bits():
    source = "#include <cublas_v2.h>\n__global__ void k(float* p) { *p = float(__nv_bfloat16(1.5f)) + float(__half(2.0f)); }"
    result = gemmgen.emulate(source, grid=1, block=1, args=["f32[1]"])
    assert result["p"][0] == 3.5
