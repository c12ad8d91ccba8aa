// The types of 16 bits, which the headers of cuBLAS include.
#pragma once
namespace std {}
#if __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif
