#include <cublas_v2.h>
#include <cstdio>
#include <vector>
// Calls of cuBLAS; with an argument, one that reads beyond its array.
#ifndef CUBLAS_API_H_
#error programs ask for this guard
#endif
int main(int argc, char**) {
  int m = 3, n = 2, k = 4;
  std::vector<float> a(m * k), b(k * n), c(m * n, 1);
  for (int i = 0; i < m * k; ++i) a[i] = i;
  for (int i = 0; i < k * n; ++i) b[i] = i % 3;
  float *da, *db, *dc, alpha = 2, beta = 1, dot, *ddot;
  cublasHandle_t h;
  cublasCreate(&h);
  cudaMalloc(&da, 48); cudaMalloc(&db, 32); cudaMalloc(&dc, 24); cudaMalloc(&ddot, 4);
  cublasSetMatrix(m, k, 4, a.data(), m, da, m);
  cublasSetVector(8, 4, b.data(), 1, db, 1);
  cudaMemcpy(dc, c.data(), 24, cudaMemcpyHostToDevice);
  cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &alpha, da, m, db, k, &beta, dc, m);
  cublasGetVector(6, 4, dc, 1, c.data(), 1);
  for (float x : c) printf("%g ", x);
  cublasSdot(h, 8, db, 1, da, 1, &dot);
  printf("dot %g", dot);
  cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE);
  cublasSnrm2(h, 4, db, 2, ddot);
  cudaMemcpy(&dot, ddot, 4, cudaMemcpyDeviceToHost);
  cublasSetPointerMode(h, CUBLAS_POINTER_MODE_HOST);
  int at;
  cublasIsamax(h, 12, da, 1, &at);
  cublasSgemv(h, CUBLAS_OP_T, m, k, &alpha, da, m, db, 1, &beta, db, 1);
  cublasGetVector(4, 4, db, 1, b.data(), 1);
  printf(" nrm2 %g amax %d gemv %g %g", dot, at, b[0], b[3]);
  const float* as[2] = {da, da}; const float* bs[2] = {db, db + 4}; float* cs[2] = {dc, dc};
  void** lists; cudaMalloc(&lists, 48); cudaMemcpy(lists, as, 16, cudaMemcpyHostToDevice); cudaMemcpy(lists + 2, bs, 16, cudaMemcpyHostToDevice); cudaMemcpy(lists + 4, cs, 16, cudaMemcpyHostToDevice);
  beta = 0;
  cublasSgemmBatched(h, CUBLAS_OP_N, CUBLAS_OP_N, m, 1, k, &alpha, (float**)lists, m, (float**)lists + 2, k, &beta, (float**)lists + 4, m, 2);
  cublasGetVector(3, 4, dc, 1, c.data(), 1);
  printf(" batched %g %g\n", c[0], c[2]);
  if (argc > 1) printf("%d\n", cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, m, 3, k, &alpha, da, m, db, k, &beta, dc, m));
  cublasDestroy(h);
  cudaFree(da); cudaFree(db); cudaFree(dc); cudaFree(ddot); cudaFree(lists);
}
