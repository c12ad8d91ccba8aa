"""Headers for files that were written for nvcc: where CUDA's lie, and stand-ins for host headers, which NVRTC lacks."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_EMPTY = (
    *("iostream", "fstream", "sstream", "iomanip", "cstdio", "stdio.h", "cstdlib", "stdlib.h", "cstring", "string.h", "string"),
    *("vector", "map", "set", "unordered_map", "unordered_set", "deque", "list", "queue", "stack", "algorithm", "numeric", "chrono"),
    *("random", "memory", "thread", "mutex", "future", "functional", "iterator", "stdexcept", "exception", "ctime", "time.h", "cmath"),
    *("math.h", "sys/time.h", "unistd.h", "getopt.h", "optional", "variant", "regex", "filesystem", "cinttypes", "ostream", "istream"),
    *("bitset", "cerrno", "errno.h", "new", "typeinfo", "cuda_profiler_api.h", "nvtx3/nvToolsExt.h", "omp.h", "cudnn.h", "cufft.h"),
    *("curand.h", "cusolverDn.h", "cusparse.h", "helper_cuda.h", "helper_functions.h", "helper_string.h", "helper_timer.h", "mpi.h"),
    *("nccl.h", "atomic", "cctype", "condition_variable", "ctype.h", "locale", "pthread.h", "signal.h", "string_view", "sys/stat.h"),
    *("sys/types.h", "any", "iso646.h", "ciso646", "cuda_gl_interop.h", "cudaGL.h", "barrier", "cfenv", "charconv", "clocale"),
    *("codecvt", "compare", "coroutine", "csetjmp", "csignal", "cstdarg", "cwchar", "dirent.h", "execution", "fcntl.h", "fenv.h"),
    *("format", "forward_list", "iosfwd", "latch", "libgen.h", "malloc.h", "memory.h", "memory_resource", "ranges"),
    *("scoped_allocator", "semaphore", "shared_mutex", "source_location", "stdarg.h", "stdbool.h", "stop_token", "streambuf"),
    *("strings.h", "sys/mman.h", "sys/resource.h", "syncstream", "system_error", "typeindex", "valarray", "version", "wchar.h"),
)
_THROUGH_CUDA_STD = (
    *("type_traits", "limits", "utility", "tuple", "array", "complex", "initializer_list", "ratio", "span", "bit", "concepts"),
    *("numbers",),
)
_INTEGERS = (
    "".join(
        f"typedef {'unsigned ' * unsigned}{name} {'u' * unsigned}int{bits}_t;\n"
        for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
        for unsigned in (True,)
    )
    + "typedef signed char int8_t;\ntypedef short int16_t;\ntypedef int int32_t;\ntypedef long long int64_t;\n"
)
_STDINT = f"""#pragma once
#ifndef GEMMGEN_STDINT
#define GEMMGEN_STDINT
{_INTEGERS}typedef unsigned long long uintptr_t;
typedef long long intptr_t;
#define INT32_MAX 2147483647
#define INT32_MIN (-2147483647 - 1)
#define UINT32_MAX 4294967295u
#define INT64_MAX 9223372036854775807ll
#define UINT64_MAX 18446744073709551615ull
#endif
"""
_LIMITS = """#pragma once
#ifndef INT_MAX
#define CHAR_BIT 8
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#define ULLONG_MAX 18446744073709551615ull
#endif
"""
_FLOAT = """#pragma once
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#endif
"""
_ASSERT = """#pragma once
#ifndef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
#define assert(condition) ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, __func__, 1))
#endif
#endif
"""


_FUNCTIONS_OF_STD = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf", "erfc", "exp"),
    *("exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "hypot", "isfinite", "isinf", "isnan", "ldexp", "lgamma"),
    *("log", "log10", "log1p", "log2", "lrint", "lround", "modf", "nearbyint", "pow", "remainder", "rint", "round", "signbit", "sin"),
    *("sinh", "sqrt", "tan", "tanh", "tgamma", "trunc", "frexp", "memcpy", "memset"),
)
PRE_INCLUDED = "gemmgen_as_nvcc.h"
"""Stand-in for the headers that nvcc includes by itself, host headers among them."""
WITH_CUDA_STD = "GEMMGEN_WITH_CUDA_STD"
"""Macro with which that stand-in also includes parts of the host's standard library: traits, pairs, functors."""
_AS_NVCC = f"""#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef HUGE_VALF
#define HUGE_VALF INFINITY
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000ll)
#endif
#ifndef M_PI
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
#ifndef RAND_MAX
#define RAND_MAX 2147483647
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#endif
#include <stdint.h>
#include <limits.h>
#include <float.h>
#if __has_include(<cuda_device_runtime_api.h>)
#include <cuda_device_runtime_api.h>
#endif
typedef unsigned uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
namespace std {{
{"".join(f"using ::{name};" for name in _FUNCTIONS_OF_STD)}
template <class T> __host__ __device__ constexpr const T& min(const T& a, const T& b) {{ return b < a ? b : a; }}
template <class T> __host__ __device__ constexpr const T& max(const T& a, const T& b) {{ return a < b ? b : a; }}
template <class T> __host__ __device__ constexpr void swap(T& a, T& b) {{ T c = a; a = b; b = c; }}
using ::printf;
using ::size_t;
using ptrdiff_t = decltype((char*)0 - (char*)0);
using nullptr_t = decltype(nullptr);
}}
#ifdef {WITH_CUDA_STD}
#include <cuda/std/array>
#include <cuda/std/functional>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
namespace std {{ using namespace cuda::std; }}
#endif
"""


_CUB_PARTS = (
    *("block/block_adjacent_difference", "block/block_discontinuity", "block/block_exchange", "block/block_histogram"),
    *("block/block_load", "block/block_merge_sort", "block/block_radix_rank", "block/block_radix_sort", "block/block_reduce"),
    *("block/block_scan", "block/block_shuffle", "block/block_store", "warp/warp_exchange", "warp/warp_load", "warp/warp_merge_sort"),
    *("warp/warp_reduce", "warp/warp_scan", "warp/warp_store"),
)
"""The part of CUB that is device code: the algorithms of blocks and warps. Those of the whole device launch kernels from the host."""


_THRUST_ITSELF = """#ifndef GEMMGEN_THRUST
#define GEMMGEN_THRUST
namespace thrust {
template <class A, class R> struct unary_function { using argument_type = A; using result_type = R; };
template <class A, class B, class R> struct binary_function {
  using first_argument_type = A;
  using second_argument_type = B;
  using result_type = R;
};
namespace placeholders {}
}
#endif
"""
"""The namespace, and the base class of functors."""


def host_algorithms(text: str) -> dict[str, str]:
    """Hardly anything, for the headers of Thrust that a text includes, which NVRTC takes none of, and for those of CUB that launch kernels:
    the calls were in code for the host. The states of tiles, which device code may use, come with CUB's scan."""
    includes = re.findall(r"^[ \t]*#[ \t]*include[ \t]*[<\"]((?:thrust|cub/device)/[\w./]+)[>\"]", text, re.MULTILINE)
    texts = {name: "#pragma once\n" + (_THRUST_ITSELF if name.startswith("thrust/") else "") for name in includes}
    if "cub/device/device_scan.cuh" in texts and "cub::" in text:
        texts["cub/device/device_scan.cuh"] += "#include <cub/agent/single_pass_scan_operators.cuh>\n"
    return texts


_OF_CUBLAS = """#pragma once
namespace std {}
#if __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
"""
"""The types of 16 bits, which cuBLAS's own headers include."""
_HOST_LIBRARIES = (
    *("torch", "ATen", "c10", "pybind11", "numpy", "opencv2", "boost", "gtest", "gmock", "benchmark", "fmt", "spdlog", "GL", "GLFW"),
)
_THEIR_NAMESPACES = """#pragma once
namespace torch { namespace nn { namespace functional {} } namespace indexing {} }
namespace at { namespace native {} namespace cuda {} }
namespace c10 { namespace cuda {} }
namespace pybind11 { namespace literals {} }
namespace cv {}
namespace boost {}
"""


def host_libraries(text: str) -> dict[str, str]:
    """Namespaces alone, for the headers of libraries of the host that a text includes: extensions of PyTorch, bindings, tests."""
    names = rf"(?:{'|'.join(_HOST_LIBRARIES)})/[\w./-]+|Python\.h|windows\.h"
    return dict.fromkeys(re.findall(rf"^[ \t]*#[ \t]*include[ \t]*[<\"]({names})[>\"]", text, re.MULTILINE), _THEIR_NAMESPACES)


_OF_THRUST = {
    "pair": ("utility", "pair", "make_pair"),
    "tuple": ("tuple", "tuple", "make_tuple", "tie", "get", "tuple_element", "tuple_size"),
    "swap": ("utility", "swap"),
    "complex": (
        *("complex", "complex", "abs", "arg", "norm", "conj", "polar", "proj", "exp", "log", "log10", "pow", "sqrt", "cos", "sin", "tan"),
        *("cosh", "sinh", "tanh", "acos", "asin", "atan", "acosh", "asinh", "atanh"),
    ),
    "functional": (
        *("functional", "plus", "minus", "multiplies", "divides", "modulus", "negate", "equal_to", "not_equal_to", "less", "greater"),
        *("less_equal", "greater_equal", "logical_and", "logical_or", "logical_not", "bit_and", "bit_or", "bit_xor"),
    ),
}
"""Headers of Thrust that device code uses, and the names of the CUDA library that they map to."""
_MAXIMUM = """#include <cuda/functional>
namespace thrust { using ::cuda::maximum; using ::cuda::minimum; template <class T = void> using identity = ::cuda::std::identity; }
"""


def _of_thrust() -> dict[str, str]:
    texts = {}
    for header, (source, *names) in _OF_THRUST.items():
        named = "".join(f"using ::cuda::std::{name};" for name in names)
        texts[f"thrust/{header}.h"] = f"#pragma once\n#include <cuda/std/{source}>\nnamespace thrust {{ {named} }}\n"
    texts["thrust/functional.h"] += _MAXIMUM
    return texts


def stand_ins() -> dict[str, str]:
    """Texts for the host's headers, by the name that they are included with: the parts that device code may use, else nothing."""
    nothing = "#pragma once\nnamespace std {}\n"
    texts = dict.fromkeys(_EMPTY, nothing) | dict.fromkeys(("cublas_v2.h", "cublasLt.h"), _OF_CUBLAS)
    for name in _THROUGH_CUDA_STD:
        texts[name] = f"#pragma once\n#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"
    integers = _STDINT + "namespace std { using ::uint32_t; using ::int32_t; using ::uint64_t; using ::int64_t; using ::uint8_t; }\n"
    texts |= {"cstdint": integers, "stdint.h": _STDINT, "inttypes.h": _STDINT}
    texts |= {"climits": _LIMITS, "limits.h": _LIMITS, "cfloat": _FLOAT, "float.h": _FLOAT}
    texts[PRE_INCLUDED] = _AS_NVCC
    texts |= _of_thrust()
    texts["cub/cub.cuh"] = "#pragma once\n" + "".join(f"#include <cub/{part}.cuh>\n" for part in _CUB_PARTS)
    texts |= {"cassert": _ASSERT, "assert.h": _ASSERT, "cstddef": nothing, "stddef.h": nothing}
    return texts


def header_folders() -> list[str]:
    """Folders that hold the CUDA headers: of a toolkit, or of NVIDIA's Python packages."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [Path(root) / "include" for root in roots if root]
    package = find_spec("nvidia")
    for location in (package.submodule_search_locations or []) if package is not None else []:
        candidates += sorted(Path(location).glob("*/include"))
    folders = [folder for folder in candidates if (folder / "cuda_fp16.h").is_file()]
    with_library = [folder / "cccl" for folder in folders if (folder / "cccl").is_dir()]
    with_library += [folder for folder in folders if (folder / "cuda" / "std").is_dir()]
    random = [folder for folder in candidates if (folder / "curand_kernel.h").is_file() and folder not in folders[:1]]
    return [str(folder) for folder in (*folders[:1], *with_library[:1], *random[:1])]


def found_in(name: str, folders: Sequence[str]) -> bool:
    """True if one of the folders has a header."""
    return any((Path(folder) / name).is_file() for folder in folders)
