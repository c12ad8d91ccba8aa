// Part of the replacement runtime: calls of cuBLAS, which the emulator's process computes with NumPy on device memory.
#define GEMMGEN_RUNTIME
#include <cublas_v2.h>

namespace {

struct Blas { cudaStream_t stream; cublasPointerMode_t pointers; cublasMath_t math; };

// One call: its name, its numbers and its scalars (real and imaginary parts).
struct BlasCall {
  std::string name;
  std::vector<int64_t> numbers;
  std::vector<double> scalars;
};

bool scalar(Blas* blas, const void* pointer, cudaDataType type, double* parts) {
  if (!pointer) return false;
  const char* at = reachable(pointer);
  if (blas->pointers == CUBLAS_POINTER_MODE_HOST && is_device_only(pointer)) return false;
  parts[1] = 0;
  switch (type) {
    case CUDA_R_16F: parts[0] = __half2float(*(const __half*)at); return true;
    case CUDA_R_32F: parts[0] = *(const float*)at; return true;
    case CUDA_R_64F: parts[0] = *(const double*)at; return true;
    case CUDA_R_32I: parts[0] = *(const int*)at; return true;
    case CUDA_C_32F: parts[0] = ((const float*)at)[0]; parts[1] = ((const float*)at)[1]; return true;
    case CUDA_C_64F: parts[0] = ((const double*)at)[0]; parts[1] = ((const double*)at)[1]; return true;
    default: return false;
  }
}

cublasStatus_t compute(Blas* blas, const BlasCall& call, void* result = nullptr) {
  if (!blas) return CUBLAS_STATUS_NOT_INITIALIZED;
  bool host_result = result && blas->pointers == CUBLAS_POINTER_MODE_HOST;
  cudaStream_t stream = blas->stream;
  auto status = std::make_shared<cublasStatus_t>(CUBLAS_STATUS_SUCCESS);
  Error error = in_stream(stream, [=](cudaStream_t stream) {
    std::string body = raw((uint32_t)call.name.size()) + call.name + raw(id_of(stream)) + callers(), answer;
    body += raw((uint32_t)call.numbers.size()) + raw((uint32_t)call.scalars.size());
    body.append((const char*)call.numbers.data(), 8 * call.numbers.size()).append((const char*)call.scalars.data(), 8 * call.scalars.size());
    if (int code = ask(BLAS, body, &answer)) {
      say("%s: %s", call.name.c_str(), answer.c_str());
      *status = code == cudaErrorNotSupported ? CUBLAS_STATUS_NOT_SUPPORTED : code == cudaErrorInvalidValue ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_EXECUTION_FAILED;
      return cudaSuccess;
    }
    if (result && !fits(result, answer.size(), call.name.c_str())) {
      *status = CUBLAS_STATUS_EXECUTION_FAILED;
      return cudaSuccess;
    }
    if (result) {
      memcpy(reachable(result), answer.data(), answer.size());
      moved(result, nullptr, answer.size(), stream, host_result, call.name.c_str());
    }
    return cudaSuccess;
  });
  return error ? CUBLAS_STATUS_EXECUTION_FAILED : *status;
}

int64_t number(const void* pointer) { return (int64_t)(uintptr_t)pointer; }

struct Matrices {
  cudaDataType a, b, c, scalars;
};

cublasStatus_t product(cublasHandle_t handle, const char* name, int transa, int transb, int64_t m, int64_t n, int64_t k, const void* alpha, const void* beta,
                       Matrices types, int64_t lda, int64_t ldb, int64_t ldc, int64_t stridea, int64_t strideb, int64_t stridec, int64_t batch,
                       std::vector<int64_t> pointers) {
  Blas* blas = (Blas*)handle;
  if (!blas) return CUBLAS_STATUS_NOT_INITIALIZED;
  double parts[4];
  if (!scalar(blas, alpha, types.scalars, parts) || !scalar(blas, beta, types.scalars, parts + 2)) return CUBLAS_STATUS_INVALID_VALUE;
  BlasCall call = {name, {0, transa, transb, m, n, k, types.a, types.b, types.c, lda, ldb, ldc, stridea, strideb, stridec, batch}, {parts[0], parts[1], parts[2], parts[3]}};
  call.numbers.insert(call.numbers.end(), pointers.begin(), pointers.end());
  return compute(blas, call);
}

template <class T> std::vector<int64_t> lists(const T* const* a, const T* const* b, const T* const* c, int batch) {
  std::vector<int64_t> found;
  for (const T* const* list : {a, b, c})
    for (int i = 0; i < batch; ++i) found.push_back(number(((const T* const*)reachable(list))[i]));
  return found;
}

cudaDataType scalars_of(cublasComputeType_t compute, cudaDataType c) {
  switch (compute) {
    case CUBLAS_COMPUTE_16F: case CUBLAS_COMPUTE_16F_PEDANTIC: return CUDA_R_16F;
    case CUBLAS_COMPUTE_64F: case CUBLAS_COMPUTE_64F_PEDANTIC: return c == CUDA_C_64F ? CUDA_C_64F : CUDA_R_64F;
    case CUBLAS_COMPUTE_32I: case CUBLAS_COMPUTE_32I_PEDANTIC: return CUDA_R_32I;
    default: return c == CUDA_C_32F ? CUDA_C_32F : CUDA_R_32F;
  }
}

// Calls on vectors; the numbers are those of an operation, its count and its operands (address and step).
enum BlasOperation { GEMM, GEMV, GEAM, GER, AXPY, SCALE, COPY, SWAP, DOT, DOTC, NORM, SUM, LARGEST, SMALLEST, FACTORIZE };

cublasStatus_t vectors(cublasHandle_t handle, const char* name, BlasOperation what, int64_t n, cudaDataType type, const void* x, int64_t incx, const void* y, int64_t incy,
                       const void* alpha, void* result, cudaDataType result_type) {
  Blas* blas = (Blas*)handle;
  double parts[2] = {1, 0};
  if (!blas) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha && !scalar(blas, alpha, type, parts)) return CUBLAS_STATUS_INVALID_VALUE;
  return compute(blas, {name, {what, n, type, number(x), incx, number(y), incy, result_type}, {parts[0], parts[1]}}, result);
}

template <class T> constexpr cudaDataType type_of() {
  return std::is_same<T, float>::value ? CUDA_R_32F : std::is_same<T, double>::value ? CUDA_R_64F : std::is_same<T, cuComplex>::value ? CUDA_C_32F : std::is_same<T, __half>::value ? CUDA_R_16F : CUDA_C_64F;
}

}  // namespace

// Programs that were compiled with NVIDIA's header call names with _v2.
#define ALSO(NAME) API cublasStatus_t NAME##_v2(...) __attribute__((alias(#NAME)));

API cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  start();
  *handle = (cublasHandle_t) new Blas{nullptr, CUBLAS_POINTER_MODE_HOST, CUBLAS_DEFAULT_MATH};
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasDestroy(cublasHandle_t handle) { delete (Blas*)handle; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) { *version = 130000; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) { ((Blas*)handle)->stream = stream; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) { *stream = ((Blas*)handle)->stream; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) { ((Blas*)handle)->pointers = mode; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) { *mode = ((Blas*)handle)->pointers; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasSetAtomicsMode(cublasHandle_t, cublasAtomicsMode_t) { return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) { ((Blas*)handle)->math = mode; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) { *mode = ((Blas*)handle)->math; return CUBLAS_STATUS_SUCCESS; }
API cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
ALSO(cublasCreate) ALSO(cublasDestroy) ALSO(cublasGetVersion) ALSO(cublasSetStream) ALSO(cublasGetStream) ALSO(cublasSetPointerMode)
ALSO(cublasGetPointerMode) ALSO(cublasSetWorkspace)
API const char* cublasGetStatusName(cublasStatus_t status) { return status ? "a cuBLAS error" : "CUBLAS_STATUS_SUCCESS"; }
API const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
API cublasStatus_t cublasSetMatrix(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb) {
  Error error = copy_rows(b, (size_t)ldb * bytes, a, (size_t)lda * bytes, (size_t)rows * bytes, columns, cudaMemcpyDefault, nullptr, true, "cublasSetMatrix");
  return error ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasGetMatrix(int rows, int columns, int bytes, const void* a, int lda, void* b, int ldb) { return cublasSetMatrix(rows, columns, bytes, a, lda, b, ldb); }
API cublasStatus_t cublasSetVector(int n, int bytes, const void* x, int incx, void* y, int incy) {
  if (incx < 1 || incy < 1) return CUBLAS_STATUS_INVALID_VALUE;
  return incx == 1 && incy == 1 ? cublasSetMatrix(n, 1, bytes, x, n, y, n) : cublasSetMatrix(1, n, bytes, x, incx, y, incy);
}
API cublasStatus_t cublasGetVector(int n, int bytes, const void* x, int incx, void* y, int incy) { return cublasSetVector(n, bytes, x, incx, y, incy); }

#define DEFINE_GEMM(L, T)                                                                                                                                           \
  API cublasStatus_t cublas##L##gemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha, const T* a, int lda,        \
                                     const T* b, int ldb, const T* beta, T* c, int ldc) {                                                                           \
    return product(h, "cublas" #L "gemm", ta, tb, m, n, k, alpha, beta, {type_of<T>(), type_of<T>(), type_of<T>(), type_of<T>()}, lda, ldb, ldc, 0, 0, 0, 1,        \
                   {number(a), number(b), number(c)});                                                                                                              \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##L##gemmBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha, const T* const a[],  \
                                            int lda, const T* const b[], int ldb, const T* beta, T* const c[], int ldc, int batch) {                                \
    return product(h, "cublas" #L "gemmBatched", ta, tb, m, n, k, alpha, beta, {type_of<T>(), type_of<T>(), type_of<T>(), type_of<T>()}, lda, ldb, ldc, -1, -1, -1, \
                   batch, lists<T>(a, b, c, batch));                                                                                                                \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##L##gemmStridedBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T* alpha, const T* a,   \
                                                   int lda, long long sa, const T* b, int ldb, long long sb, const T* beta, T* c, int ldc, long long sc,            \
                                                   int batch) {                                                                                                     \
    return product(h, "cublas" #L "gemmStridedBatched", ta, tb, m, n, k, alpha, beta, {type_of<T>(), type_of<T>(), type_of<T>(), type_of<T>()}, lda, ldb, ldc, sa,  \
                   sb, sc, batch, {number(a), number(b), number(c)});                                                                                               \
  }
#define DEFINE_TYPE(L, T, R, N, LOWER)                                                                                                                              \
  DEFINE_GEMM(L, T)                                                                                                                                                 \
  API cublasStatus_t cublas##L##axpy(cublasHandle_t h, int n, const T* alpha, const T* x, int incx, T* y, int incy) {                                               \
    return vectors(h, "cublas" #L "axpy", AXPY, n, type_of<T>(), x, incx, y, incy, alpha, nullptr, type_of<T>());                                                   \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##L##scal(cublasHandle_t h, int n, const T* alpha, T* x, int incx) {                                                                     \
    return vectors(h, "cublas" #L "scal", SCALE, n, type_of<T>(), x, incx, x, incx, alpha, nullptr, type_of<T>());                                                  \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##L##copy(cublasHandle_t h, int n, const T* x, int incx, T* y, int incy) {                                                               \
    return vectors(h, "cublas" #L "copy", COPY, n, type_of<T>(), x, incx, y, incy, nullptr, nullptr, type_of<T>());                                                 \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##L##swap(cublasHandle_t h, int n, T* x, int incx, T* y, int incy) {                                                                     \
    return vectors(h, "cublas" #L "swap", SWAP, n, type_of<T>(), x, incx, y, incy, nullptr, nullptr, type_of<T>());                                                 \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##N##nrm2(cublasHandle_t h, int n, const T* x, int incx, R* result) {                                                                    \
    return vectors(h, "cublas" #N "nrm2", NORM, n, type_of<T>(), x, incx, x, incx, nullptr, result, type_of<R>());                                                  \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##N##asum(cublasHandle_t h, int n, const T* x, int incx, R* result) {                                                                    \
    return vectors(h, "cublas" #N "asum", SUM, n, type_of<T>(), x, incx, x, incx, nullptr, result, type_of<R>());                                                   \
  }                                                                                                                                                                 \
  API cublasStatus_t cublasI##LOWER##amax(cublasHandle_t h, int n, const T* x, int incx, int* result) {                                                             \
    return vectors(h, "cublasI" #LOWER "amax", LARGEST, n, type_of<T>(), x, incx, x, incx, nullptr, result, CUDA_R_32I);                                            \
  }                                                                                                                                                                 \
  API cublasStatus_t cublasI##LOWER##amin(cublasHandle_t h, int n, const T* x, int incx, int* result) {                                                             \
    return vectors(h, "cublasI" #LOWER "amin", SMALLEST, n, type_of<T>(), x, incx, x, incx, nullptr, result, CUDA_R_32I);                                           \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##L##gemv(cublasHandle_t h, cublasOperation_t trans, int m, int n, const T* alpha, const T* a, int lda, const T* x, int incx,            \
                                     const T* beta, T* y, int incy) {                                                                                               \
    Blas* blas = (Blas*)h;                                                                                                                                          \
    double parts[4];                                                                                                                                                \
    if (!blas) return CUBLAS_STATUS_NOT_INITIALIZED;                                                                                                                \
    if (!scalar(blas, alpha, type_of<T>(), parts) || !scalar(blas, beta, type_of<T>(), parts + 2)) return CUBLAS_STATUS_INVALID_VALUE;                              \
    return compute(blas, {"cublas" #L "gemv", {GEMV, trans, m, n, type_of<T>(), number(a), lda, number(x), incx, number(y), incy},                                  \
                          {parts[0], parts[1], parts[2], parts[3]}});                                                                                               \
  }                                                                                                                                                                 \
  API cublasStatus_t cublas##L##geam(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, const T* alpha, const T* a, int lda,               \
                                     const T* beta, const T* b, int ldb, T* c, int ldc) {                                                                           \
    Blas* blas = (Blas*)h;                                                                                                                                          \
    double parts[4];                                                                                                                                                \
    if (!blas) return CUBLAS_STATUS_NOT_INITIALIZED;                                                                                                                \
    if (!scalar(blas, alpha, type_of<T>(), parts) || !scalar(blas, beta, type_of<T>(), parts + 2)) return CUBLAS_STATUS_INVALID_VALUE;                              \
    return compute(blas, {"cublas" #L "geam", {GEAM, ta, tb, m, n, type_of<T>(), number(a), lda, number(b), ldb, number(c), ldc},                                   \
                          {parts[0], parts[1], parts[2], parts[3]}});                                                                                               \
  }                                                                                                                                                                 \
  ALSO(cublas##L##gemm) ALSO(cublas##L##axpy) ALSO(cublas##L##scal) ALSO(cublas##L##copy) ALSO(cublas##L##swap) ALSO(cublas##N##nrm2) ALSO(cublas##N##asum)         \
  ALSO(cublasI##LOWER##amax) ALSO(cublasI##LOWER##amin) ALSO(cublas##L##gemv)
GEMMGEN_CUBLAS_TYPES(DEFINE_TYPE)
DEFINE_GEMM(H, __half)

#define DEFINE_FACTORIZATION(L, T, R, N, LOWER)                                                                                                                     \
  API cublasStatus_t cublas##L##getrfBatched(cublasHandle_t h, int n, T* const a[], int lda, int* pivots, int* statuses, int batch) {                                \
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;                                                                                                                    \
    if (n < 0 || batch < 0 || lda < std::max(n, 1)) return CUBLAS_STATUS_INVALID_VALUE;                                                                              \
    BlasCall call = {"cublas" #L "getrfBatched", {FACTORIZE, n, type_of<T>(), lda, number(pivots), number(statuses), batch}, {}};                                    \
    for (int i = 0; i < batch; ++i) call.numbers.push_back(number(((T* const*)reachable(a))[i]));                                                                    \
    return compute((Blas*)h, call);                                                                                                                                  \
  }
GEMMGEN_CUBLAS_TYPES(DEFINE_FACTORIZATION)

#define DEFINE_DOT(NAME, T)                                                                                                       \
  API cublasStatus_t cublas##NAME(cublasHandle_t h, int n, const T* x, int incx, const T* y, int incy, T* result) {               \
    BlasOperation what = strstr(#NAME, "dotc") ? DOTC : DOT;                                                                      \
    return vectors(h, "cublas" #NAME, what, n, type_of<T>(), x, incx, y, incy, nullptr, result, type_of<T>());                    \
  }                                                                                                                               \
  ALSO(cublas##NAME)
GEMMGEN_CUBLAS_DOTS(DEFINE_DOT)
#define DEFINE_GER(NAME, T)                                                                                                       \
  API cublasStatus_t cublas##NAME(cublasHandle_t h, int m, int n, const T* alpha, const T* x, int incx, const T* y, int incy, T* a, int lda) { \
    double parts[2];                                                                                                              \
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;                                                                                 \
    if (!scalar((Blas*)h, alpha, type_of<T>(), parts)) return CUBLAS_STATUS_INVALID_VALUE;                                        \
    return compute((Blas*)h, {"cublas" #NAME, {GER, m, n, type_of<T>(), number(x), incx, number(y), incy, number(a), lda}, {parts[0], parts[1]}}); \
  }                                                                                                                               \
  ALSO(cublas##NAME)
GEMMGEN_CUBLAS_GERS(DEFINE_GER)

API cublasStatus_t cublasDotEx(cublasHandle_t h, int n, const void* x, cudaDataType xtype, int incx, const void* y, cudaDataType ytype, int incy, void* result,
                               cudaDataType result_type, cudaDataType) {
  return xtype == ytype ? vectors(h, "cublasDotEx", DOT, n, xtype, x, incx, y, incy, nullptr, result, result_type) : CUBLAS_STATUS_NOT_SUPPORTED;
}
API cublasStatus_t cublasNrm2Ex(cublasHandle_t h, int n, const void* x, cudaDataType xtype, int incx, void* result, cudaDataType result_type, cudaDataType) {
  return vectors(h, "cublasNrm2Ex", NORM, n, xtype, x, incx, x, incx, nullptr, result, result_type);
}
API cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a, cudaDataType at,
                                int lda, const void* b, cudaDataType bt, int ldb, const void* beta, void* c, cudaDataType ct, int ldc, cublasComputeType_t compute,
                                cublasGemmAlgo_t) {
  return product(h, "cublasGemmEx", ta, tb, m, n, k, alpha, beta, {at, bt, ct, scalars_of(compute, ct)}, lda, ldb, ldc, 0, 0, 0, 1, {number(a), number(b), number(c)});
}
API cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a,
                                              cudaDataType at, int lda, long long sa, const void* b, cudaDataType bt, int ldb, long long sb, const void* beta, void* c,
                                              cudaDataType ct, int ldc, long long sc, int batch, cublasComputeType_t compute, cublasGemmAlgo_t) {
  return product(h, "cublasGemmStridedBatchedEx", ta, tb, m, n, k, alpha, beta, {at, bt, ct, scalars_of(compute, ct)}, lda, ldb, ldc, sa, sb, sc, batch,
                 {number(a), number(b), number(c)});
}
API cublasStatus_t cublasGemmBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* const a[],
                                       cudaDataType at, int lda, const void* const b[], cudaDataType bt, int ldb, const void* beta, void* const c[], cudaDataType ct,
                                       int ldc, int batch, cublasComputeType_t compute, cublasGemmAlgo_t) {
  return product(h, "cublasGemmBatchedEx", ta, tb, m, n, k, alpha, beta, {at, bt, ct, scalars_of(compute, ct)}, lda, ldb, ldc, -1, -1, -1, batch,
                 lists<char>((const char* const*)a, (const char* const*)b, (const char* const*)c, batch));
}
