// Memory of the driver's interface: an array with a texture, a range of addresses, and host memory that kernels reach.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call) \
  if (int status = (int)(call)) return printf("%s gives %d\n", #call, status), 1

__global__ void sample(CUtexObject texture, float* out) { out[threadIdx.x] = tex2D<float>(texture, threadIdx.x + 0.5f, 2.5f); }
__global__ void add(int* values, int more) { values[threadIdx.x] += more; }

int textures() {
  CUarray array;
  CUDA_ARRAY_DESCRIPTOR shape = {8, 4, CU_AD_FORMAT_FLOAT, 1};
  CHECK(cuArrayCreate(&array, &shape));
  float host[4][16];
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 16; ++x) host[y][x] = 8 * y + x;
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = host, copy.srcPitch = sizeof host[0], copy.srcXInBytes = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array;
  copy.WidthInBytes = 32, copy.Height = 4;
  CHECK(cuMemcpy2D(&copy));
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_ARRAY, resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC how = {};
  how.addressMode[0] = how.addressMode[1] = CU_TR_ADDRESS_MODE_CLAMP;
  CUtexObject texture;
  CHECK(cuTexObjectCreate(&texture, &resource, &how, nullptr));
  float *out, values[8];
  CHECK(cudaMalloc(&out, sizeof values));
  sample<<<1, 8>>>(texture, out);
  CHECK(cudaMemcpy(values, out, sizeof values, cudaMemcpyDeviceToHost));
  printf("texture %g %g\n", values[0] - 8, values[7] + 1);
  CHECK(cuTexObjectDestroy(texture));
  CHECK(cuArrayDestroy(array));
  CHECK(cudaFree(out));
  return 0;
}

int ranges() {
  CUmemAllocationProp kind = {};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED, kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t granule;
  CHECK(cuMemGetAllocationGranularity(&granule, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUdeviceptr range;
  CHECK(cuMemAddressReserve(&range, 2 * granule, 0, 0, 0));
  for (int half = 0; half < 2; ++half) {
    CUmemGenericAllocationHandle handle;
    CHECK(cuMemCreate(&handle, granule, &kind, 0));
    CHECK(cuMemMap(range + half * granule, granule, 0, handle, 0));
    CHECK(cuMemRelease(handle));
  }
  CUmemAccessDesc access = {kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemSetAccess(range, 2 * granule, &access, 1));
  int* middle = (int*)(range + granule) - 16;
  CHECK(cudaMemset(middle, 0, 128));
  add<<<1, 32>>>(middle, 3);
  int values[32];
  CHECK(cudaMemcpy(values, middle, 128, cudaMemcpyDeviceToHost));
  printf("range %d %d\n", values[0], values[31]);
  CHECK(cuMemUnmap(range, 2 * granule));
  CHECK(cuMemAddressFree(range, 2 * granule));
  return 0;
}

int registered() {
  std::vector<int> values(5000, 5);
  int *device, outside = values[0];
  CHECK(cudaHostRegister(&values[7], 4000 * sizeof(int), cudaHostRegisterMapped));
  CHECK(cudaHostGetDevicePointer(&device, &values[2000], 0));
  add<<<1, 32>>>(device, 3);
  CHECK(cudaDeviceSynchronize());
  int seen = values[2031];
  CHECK(cudaHostUnregister(&values[7]));
  printf("registered %d %d %d\n", outside, seen, values[2000]);
  return 0;
}

int main() {
  CHECK(cudaFree(0));
  return textures() || ranges() || registered();
}
