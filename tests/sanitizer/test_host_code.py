"""Host code of the shapes that people's files have: it is left out, and the kernel beside it runs."""

from __future__ import annotations

import numpy as np
import pytest

import gemmgen
from gemmgen.core.errors import CompileError, GemmgenError

KERNEL = "__global__ void k(float* o) { o[threadIdx.x] = 1; }\n"
MAIN = "int main() { k<<<1, 32>>>(nullptr); }\n"
FILES = {
    "timer": "struct Timer { cudaEvent_t from, to; Timer() { cudaEventCreate(&from); } void stop() { cudaEventRecord(to, 0); } };\n"
    + KERNEL
    + MAIN,
    "class_of_vectors": "#include <vector>\nclass Rows { public: std::vector<float> all; Rows(int n) : all(n) {} };\n" + KERNEL + MAIN,
    "exception": "class Bad : public std::exception { std::string text; public: explicit Bad(std::string t) : text(t) {} };\n"
    + KERNEL
    + MAIN,
    "names_of_std": "#include <vector>\nusing std::vector;\nusing namespace std::chrono;\ntypedef std::vector<float> Row;\n"
    + KERNEL
    + MAIN,
    "variables": 'FILE* out = fopen("x", "w"); cudaStream_t stream; std::mt19937 random(1); time_t begin; dim3 grid(2);\n' + KERNEL + MAIN,
    "two_heads": KERNEL + "#ifdef _WIN32\nint main(int n, char** a) {\n#else\nint main() {\n#endif\n  k<<<1, 32>>>(nullptr);\n}\n",
    "kernel_behind_two_heads": "#ifdef _WIN32\nint run(int n) {\n#else\nint run() {\n#endif\n  return 0;\n}\n" + KERNEL + MAIN,
    "macro_in_a_function": "int run() {\n#define ONE 1\n  return 0; }\n" + KERNEL.replace("= 1", "= ONE") + MAIN,
    "aligned": "struct alignas(8) P { float x, y; };\nstruct __attribute__((packed)) Q { char a; };\n"
    + "__global__ void k(float* o) { P p{1, 2}; o[threadIdx.x] = p.x * sizeof(Q); }\n"
    + MAIN,
    "condition_of_a_template": "#include <type_traits>\n"
    + "template <int N, std::enable_if_t<(N > 0), int> = 0>\nstruct V { static const int n = N; };\n"
    + "__global__ void k(float* o) { o[threadIdx.x] = V<1>::n; }\n"
    + MAIN,
    "constant_of_mathematics": "__global__ void k(float* o) { o[threadIdx.x] = roundf(float(M_PI)) - 2; }\n" + MAIN,
    "host_methods_of_a_class_for_both": "#include <iostream>\nstruct V {\n  float x;\n  __device__ float twice() const { return 2 * x; }\n"
    + "  void print() const { std::cout << x << std::endl; }\n  friend std::ostream& operator<<(std::ostream& o, const V& v);\n};\n"
    + "__global__ void k(float* o) { V v{0.5f}; o[threadIdx.x] = v.twice(); }\n"
    + MAIN,
    "functor_of_thrust": "#include <thrust/transform.h>\nstruct Half : thrust::unary_function<float, float> {\n"
    + "  __device__ float operator()(float x) const { return x / 2; } };\n"
    + "__global__ void k(float* o) { o[threadIdx.x] = Half()(2); }\nvoid go() { thrust::transform(nullptr, nullptr, Half()); }\n"
    + MAIN,
    "base_class_of_the_host": "class Managed {\n public:\n"
    + "  void* operator new(size_t n) { void* p; cudaMallocManaged(&p, n); return p; }\n};\n"
    + "struct One : Managed { float x; __device__ float get() const { return x; } };\n"
    + "__global__ void k(float* o) { One one; one.x = 1; o[threadIdx.x] = one.get(); }\n"
    + MAIN,
    "for_nvcc_alone": '#ifndef __NVCC__\n#error "nvcc compiles this"\n#endif\n' + KERNEL + MAIN,
    "cpp20": "template <class T> concept Any = true;\n" + KERNEL.replace("= 1", "= Any<int>") + MAIN,
    "byte_order_mark": "\ufeff" + KERNEL + MAIN,
    "constants_of_stdlib": "__global__ void k(float* o) { o[threadIdx.x] = RAND_MAX > 0 && EXIT_SUCCESS == 0; }\n" + MAIN,
    "functors_of_std": "#include <functional>\n"
    + "__global__ void k(float* o) { std::plus<float> add; o[threadIdx.x] = add(std::size_t(1), 0); }\n"
    + MAIN,
    "pairs_of_thrust": "#include <thrust/pair.h>\n#include <thrust/functional.h>\n"
    + "#include <thrust/complex.h>\n__global__ void k(float* o) {"
    + " auto p = thrust::make_pair(1.f, 2); thrust::complex<float> i(0, 1); o[threadIdx.x] = thrust::maximum<float>{}(p.first, 0)"
    + " - 1 - (i * i).real(); }\n"
    + MAIN,
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_the_kernel_beside_host_code_runs(text: str) -> None:
    result = gemmgen.emulate(text, "k", grid=1, block=32, args=[np.zeros(32, np.float32)])
    assert not result.findings
    assert (result["o"] == 1).all()


def test_a_type_that_a_kernel_needs_is_not_left_out() -> None:
    text = "#include <vector>\nstruct Rows { std::vector<float> all; };\n__global__ void k(Rows r, float* o) { o[0] = 1; }\n" + MAIN
    with pytest.raises(CompileError, match=r"kernel\.cu:2: qualified name"):
        gemmgen.emulate(text, "k", grid=1, block=1, args=[0, np.zeros(1, np.float32)])


def test_a_specialisation_that_does_not_compile_is_not_left_out() -> None:
    text = "template <class T> struct One { static const int n = 1; };\ntemplate <> struct One<int> { static const int n = missing; };\n"
    with pytest.raises(CompileError, match="missing"):
        gemmgen.emulate(text + "__global__ void k(int* o) { *o = One<int>::n; }\n", "k", grid=1, block=1, args=[np.zeros(1, np.int32)])


def test_the_example_of_an_entry_is_what_the_host_launches() -> None:
    text = "template <int N> __global__ void k(float* o) { o[0] = N; }\nvoid run() { k<4><<<1, 1>>>(nullptr); }\n"
    with pytest.raises(GemmgenError, match=r"--entry 'k<4>'"):
        gemmgen.emulate(text, grid=1, block=1, args=[np.zeros(1, np.float32)])


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("inline int at(int i) { return i; }\n__global__ void k(float* o) { o[at(0)] = 1; }\n" + MAIN, "at is a host function"),
        ("#include <curand_kernel.h>\n" + KERNEL.replace("= 1", "= curand_uniform(nullptr)") + MAIN, "nvidia-curand"),
    ],
)
def test_a_way_out_is_told(text: str, advice: str) -> None:
    with pytest.raises(CompileError, match=advice):
        gemmgen.emulate(text, grid=1, block=1, args=[np.zeros(1, np.float32)])
