// Calls and properties of devices that CUDA 13 no longer declares, for programs that are older.
#pragma once
#ifdef __CUDACC__
#include <cuda_runtime_api.h>
#if CUDART_VERSION >= 13000
static inline cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
static inline cudaError_t cudaThreadExit() { return cudaDeviceReset(); }
static inline cudaError_t cudaThreadSetLimit(cudaLimit limit, size_t value) { return cudaDeviceSetLimit(limit, value); }
static inline cudaError_t cudaThreadGetLimit(size_t* value, cudaLimit limit) { return cudaDeviceGetLimit(value, limit); }
static inline cudaError_t cudaThreadSetCacheConfig(cudaFuncCache which) { return cudaDeviceSetCacheConfig(which); }
#if __cplusplus >= 201703L
struct gemmgen_cudaDeviceProp : cudaDeviceProp {
  int clockRate, memoryClockRate, deviceOverlap, computeMode, kernelExecTimeoutEnabled, singleToMultiDevicePerfRatio;
};
static inline cudaError_t cudaGetDeviceProperties(gemmgen_cudaDeviceProp* properties, int device) {
  cudaDeviceGetAttribute(&properties->clockRate, cudaDevAttrClockRate, device);
  cudaDeviceGetAttribute(&properties->memoryClockRate, cudaDevAttrMemoryClockRate, device);
  properties->deviceOverlap = 1;
  properties->computeMode = properties->kernelExecTimeoutEnabled = 0;
  properties->singleToMultiDevicePerfRatio = 32;
  return cudaGetDeviceProperties(static_cast<cudaDeviceProp*>(properties), device);
}
#define cudaDeviceProp gemmgen_cudaDeviceProp
#endif
#endif
#endif
