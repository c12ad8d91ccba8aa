// Calls and properties of devices that CUDA 13 no longer declares, or declares with other parameters, for programs that are older.
#pragma once
#ifdef __CUDACC__
#include <cuda_runtime_api.h>
#if CUDART_VERSION >= 13000
static inline cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
static inline cudaError_t cudaThreadExit() { return cudaDeviceReset(); }
static inline cudaError_t cudaThreadSetLimit(cudaLimit limit, size_t value) { return cudaDeviceSetLimit(limit, value); }
static inline cudaError_t cudaThreadGetLimit(size_t* value, cudaLimit limit) { return cudaDeviceGetLimit(value, limit); }
static inline cudaError_t cudaThreadSetCacheConfig(cudaFuncCache which) { return cudaDeviceSetCacheConfig(which); }
#ifdef __cplusplus
static inline cudaMemLocation gemmgen_location(int device) {
  cudaMemLocation place = {};
  place.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  place.id = device;
  return place;
}
static inline cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t count, int device, cudaStream_t stream = 0) {
  return cudaMemPrefetchAsync(pointer, count, gemmgen_location(device), 0, stream);
}
static inline cudaError_t cudaMemAdvise(const void* pointer, size_t count, cudaMemoryAdvise advice, int device) {
  return cudaMemAdvise(pointer, count, advice, gemmgen_location(device));
}
static inline cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
  return cudaGraphAddDependencies(graph, from, to, nullptr, count);
}
#endif
#if __cplusplus >= 201703L
struct gemmgen_cudaDeviceProp : cudaDeviceProp {
  int clockRate, memoryClockRate, deviceOverlap, computeMode, kernelExecTimeoutEnabled, singleToMultiDevicePerfRatio, cooperativeMultiDeviceLaunch, maxTexture1DLinear;
};
static inline cudaError_t cudaGetDeviceProperties(gemmgen_cudaDeviceProp* properties, int device) {
  cudaDeviceGetAttribute(&properties->clockRate, cudaDevAttrClockRate, device);
  cudaDeviceGetAttribute(&properties->memoryClockRate, cudaDevAttrMemoryClockRate, device);
  properties->deviceOverlap = 1;
  properties->computeMode = properties->kernelExecTimeoutEnabled = properties->cooperativeMultiDeviceLaunch = 0;
  properties->maxTexture1DLinear = 1 << 28;
  properties->singleToMultiDevicePerfRatio = 32;
  return cudaGetDeviceProperties(static_cast<cudaDeviceProp*>(properties), device);
}
#define cudaDeviceProp gemmgen_cudaDeviceProp
#endif
#endif
#endif
