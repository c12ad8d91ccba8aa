// The calls of cuBLAS that `gemmgen run` computes with NumPy. Used where the toolkit has no headers of cuBLAS; a call that is not
// here is not supported, and the compiler names it.
#pragma once
// Programs ask for the guards of cuBLAS's own headers.
#define CUBLAS_V2_H_
#define CUBLAS_API_H_
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <library_types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cublasContext* cublasHandle_t;

typedef enum {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_ARCH_MISMATCH = 8,
  CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_INTERNAL_ERROR = 14,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;
typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_FILL_MODE_FULL = 2 } cublasFillMode_t;
typedef enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 } cublasDiagType_t;
typedef enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 } cublasSideMode_t;
typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum { CUBLAS_ATOMICS_NOT_ALLOWED = 0, CUBLAS_ATOMICS_ALLOWED = 1 } cublasAtomicsMode_t;
typedef enum {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_TENSOR_OP_MATH = 1,
  CUBLAS_PEDANTIC_MATH = 2,
  CUBLAS_TF32_TENSOR_OP_MATH = 3,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
} cublasMath_t;
typedef enum {
  CUBLAS_COMPUTE_16F = 64,
  CUBLAS_COMPUTE_16F_PEDANTIC = 65,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69,
  CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_64F_PEDANTIC = 71,
  CUBLAS_COMPUTE_32I = 72,
  CUBLAS_COMPUTE_32I_PEDANTIC = 73,
  CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77
} cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DFALT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99, CUBLAS_GEMM_DFALT_TENSOR_OP = 99 } cublasGemmAlgo_t;
typedef cudaDataType cublasDataType_t;

#ifndef GEMMGEN_RUNTIME
#define cublasCreate_v2 cublasCreate
#define cublasDestroy_v2 cublasDestroy
#define cublasSetStream_v2 cublasSetStream
#define cublasSgemm_v2 cublasSgemm
#define cublasDgemm_v2 cublasDgemm
#endif

cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int* version);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream);
cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode);
cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode);
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes);
const char* cublasGetStatusName(cublasStatus_t status);
const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasSetVector(int n, int bytes, const void* x, int incx, void* y, int incy);
cublasStatus_t cublasGetVector(int n, int bytes, const void* x, int incx, void* y, int incy);
cublasStatus_t cublasSetMatrix(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb);
cublasStatus_t cublasGetMatrix(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb);

// For each type: L is its letter, T the type of elements and alpha, R the type of a norm, i the letters of its norms.
#define GEMMGEN_CUBLAS_TYPE(L, T, R, N, LOWER)                                                                                              \
  cublasStatus_t cublas##L##axpy(cublasHandle_t, int n, const T* alpha, const T* x, int incx, T* y, int incy);                               \
  cublasStatus_t cublas##L##scal(cublasHandle_t, int n, const T* alpha, T* x, int incx);                                                     \
  cublasStatus_t cublas##L##copy(cublasHandle_t, int n, const T* x, int incx, T* y, int incy);                                               \
  cublasStatus_t cublas##L##swap(cublasHandle_t, int n, T* x, int incx, T* y, int incy);                                                     \
  cublasStatus_t cublas##N##nrm2(cublasHandle_t, int n, const T* x, int incx, R* result);                                                    \
  cublasStatus_t cublas##N##asum(cublasHandle_t, int n, const T* x, int incx, R* result);                                                    \
  cublasStatus_t cublasI##LOWER##amax(cublasHandle_t, int n, const T* x, int incx, int* result);                                             \
  cublasStatus_t cublasI##LOWER##amin(cublasHandle_t, int n, const T* x, int incx, int* result);                                             \
  cublasStatus_t cublas##L##gemv(cublasHandle_t, cublasOperation_t trans, int m, int n, const T* alpha, const T* a, int lda, const T* x,     \
                                 int incx, const T* beta, T* y, int incy);                                                                   \
  cublasStatus_t cublas##L##geam(cublasHandle_t, cublasOperation_t transa, cublasOperation_t transb, int m, int n, const T* alpha,           \
                                 const T* a, int lda, const T* beta, const T* b, int ldb, T* c, int ldc);                                    \
  cublasStatus_t cublas##L##getrfBatched(cublasHandle_t, int n, T* const a[], int lda, int* pivots, int* statuses, int batch);               \
  GEMMGEN_CUBLAS_GEMM(L, T)
#define GEMMGEN_CUBLAS_GEMM(L, T)                                                                                                           \
  cublasStatus_t cublas##L##gemm(cublasHandle_t, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const T* alpha,    \
                                 const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc);                                    \
  cublasStatus_t cublas##L##gemmBatched(cublasHandle_t, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,             \
                                        const T* alpha, const T* const a[], int lda, const T* const b[], int ldb, const T* beta,             \
                                        T* const c[], int ldc, int batch);                                                                   \
  cublasStatus_t cublas##L##gemmStridedBatched(cublasHandle_t, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,      \
                                               const T* alpha, const T* a, int lda, long long stridea, const T* b, int ldb,                  \
                                               long long strideb, const T* beta, T* c, int ldc, long long stridec, int batch);
#define GEMMGEN_CUBLAS_TYPES(DO)          \
  DO(S, float, float, S, s)               \
  DO(D, double, double, D, d)             \
  DO(C, cuComplex, float, Sc, c)          \
  DO(Z, cuDoubleComplex, double, Dz, z)
GEMMGEN_CUBLAS_TYPES(GEMMGEN_CUBLAS_TYPE)
GEMMGEN_CUBLAS_GEMM(H, __half)

#define GEMMGEN_CUBLAS_DOT(NAME, T) cublasStatus_t cublas##NAME(cublasHandle_t, int n, const T* x, int incx, const T* y, int incy, T* result);
#define GEMMGEN_CUBLAS_DOTS(DO) DO(Sdot, float) DO(Ddot, double) DO(Cdotu, cuComplex) DO(Cdotc, cuComplex) DO(Zdotu, cuDoubleComplex) DO(Zdotc, cuDoubleComplex)
GEMMGEN_CUBLAS_DOTS(GEMMGEN_CUBLAS_DOT)

#define GEMMGEN_CUBLAS_GER(NAME, T) \
  cublasStatus_t cublas##NAME(cublasHandle_t, int m, int n, const T* alpha, const T* x, int incx, const T* y, int incy, T* a, int lda);
#define GEMMGEN_CUBLAS_GERS(DO) DO(Sger, float) DO(Dger, double) DO(Cgeru, cuComplex) DO(Zgeru, cuDoubleComplex)
GEMMGEN_CUBLAS_GERS(GEMMGEN_CUBLAS_GER)

cublasStatus_t cublasDotEx(cublasHandle_t, int n, const void* x, cudaDataType xtype, int incx, const void* y, cudaDataType ytype, int incy,
                           void* result, cudaDataType result_type, cudaDataType execution_type);
cublasStatus_t cublasNrm2Ex(cublasHandle_t, int n, const void* x, cudaDataType xtype, int incx, void* result, cudaDataType result_type,
                            cudaDataType execution_type);
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void* alpha,
                            const void* a, cudaDataType atype, int lda, const void* b, cudaDataType btype, int ldb, const void* beta,
                            void* c, cudaDataType ctype, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType atype, int lda, long long stridea, const void* b,
                                          cudaDataType btype, int ldb, long long strideb, const void* beta, void* c, cudaDataType ctype,
                                          int ldc, long long stridec, int batch, cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void* alpha,
                                   const void* const a[], cudaDataType atype, int lda, const void* const b[], cudaDataType btype, int ldb,
                                   const void* beta, void* const c[], cudaDataType ctype, int ldc, int batch, cublasComputeType_t compute,
                                   cublasGemmAlgo_t algorithm);
#ifdef __cplusplus
}
#endif
