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
PRE_INCLUDED = "gemmgen_as_nvcc.h"
"""Stand-in for the headers that nvcc includes by itself, host headers among them."""
WITH_CUDA_STD = "GEMMGEN_WITH_CUDA_STD"
"""Macro with which that stand-in also includes parts of the host's standard library: traits, pairs, functors."""
_CUB_PARTS = (
    *("block/block_adjacent_difference", "block/block_discontinuity", "block/block_exchange", "block/block_histogram"),
    *("block/block_load", "block/block_merge_sort", "block/block_radix_rank", "block/block_radix_sort", "block/block_reduce"),
    *("block/block_scan", "block/block_shuffle", "block/block_store", "warp/warp_exchange", "warp/warp_load", "warp/warp_merge_sort"),
    *("warp/warp_reduce", "warp/warp_scan", "warp/warp_store"),
)
"""The part of CUB that is device code: the algorithms of blocks and warps. Those of the whole device launch kernels from the host."""


def _stand_in(name: str) -> str:
    """The text of a header in the folder ``stand_ins``."""
    return Path(__file__).with_name("stand_ins").joinpath(name).read_text(encoding="utf-8")


def host_algorithms(text: str) -> dict[str, str]:
    """Hardly anything, for the headers of Thrust that a text includes, which NVRTC takes none of, and for those of CUB that launch kernels:
    the calls were in code for the host. The states of tiles, which device code may use, come with CUB's scan."""
    includes = re.findall(r"^[ \t]*#[ \t]*include[ \t]*[<\"]((?:thrust|cub/device)/[\w./]+)[>\"]", text, re.MULTILINE)
    texts = {name: "#pragma once\n" + (_stand_in("thrust.h") if name.startswith("thrust/") else "") for name in includes}
    if "cub/device/device_scan.cuh" in texts and "cub::" in text:
        texts["cub/device/device_scan.cuh"] += "#include <cub/agent/single_pass_scan_operators.cuh>\n"
    return texts


_HOST_LIBRARIES = (
    *("torch", "ATen", "c10", "pybind11", "numpy", "opencv2", "boost", "gtest", "gmock", "benchmark", "fmt", "spdlog", "GL", "GLFW"),
)


def host_libraries(text: str) -> dict[str, str]:
    """Namespaces alone, for the headers of libraries of the host that a text includes: extensions of PyTorch, bindings, tests."""
    names = rf"(?:{'|'.join(_HOST_LIBRARIES)})/[\w./-]+|Python\.h|windows\.h"
    return dict.fromkeys(re.findall(rf"^[ \t]*#[ \t]*include[ \t]*[<\"]({names})[>\"]", text, re.MULTILINE), _stand_in("host_libraries.h"))


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
    texts = dict.fromkeys(_EMPTY, nothing) | dict.fromkeys(("cublas_v2.h", "cublasLt.h"), _stand_in("cublas.h"))
    for name in _THROUGH_CUDA_STD:
        texts[name] = f"#pragma once\n#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"
    stdint = _stand_in("stdint.h")
    integers = stdint + "namespace std { using ::uint32_t; using ::int32_t; using ::uint64_t; using ::int64_t; using ::uint8_t; }\n"
    texts |= {"cstdint": integers, "stdint.h": stdint, "inttypes.h": stdint, PRE_INCLUDED: _stand_in(PRE_INCLUDED)}
    for name in ("limits", "float", "assert"):
        texts |= dict.fromkeys((f"c{name}", f"{name}.h"), _stand_in(f"{name}.h"))
    texts |= _of_thrust()
    texts["cub/cub.cuh"] = "#pragma once\n" + "".join(f"#include <cub/{part}.cuh>\n" for part in _CUB_PARTS)
    texts |= {"cstddef": nothing, "stddef.h": nothing}
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
