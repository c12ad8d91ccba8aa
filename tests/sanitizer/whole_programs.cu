// A program with a mode for each thing that gemmgen run is tried on.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

namespace cg = cooperative_groups;

__constant__ float factor = 2;
__device__ int counter;
__managed__ int managed_counter = 5;

template <class T> __global__ void scale(const T* in, T* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = factor * in[i];
}
__global__ void set(int* out, int value) { out[blockIdx.x * blockDim.x + threadIdx.x] = value; }
__global__ void set_one(unsigned char* out, int value, int* count) {
  if (threadIdx.x == 0) *out = value;
  atomicAdd(count, 1);
}
__global__ void sum_up(int* out) { atomicAdd_system(out, 1); }
__global__ void count_down(int* out, cudaGraphConditionalHandle handle) { cudaGraphSetConditional(handle, --*out > 0); }
__global__ void add(const int* values, int* sums) { sums[threadIdx.x] += values[threadIdx.x]; }
__global__ void increment(int* out) { ++out[threadIdx.x]; }
__global__ void draw(unsigned* out) {
  unsigned value = *out;
  do value = value * 1664525 + 1013904223; while (value != 123456);
  *out = value;
}
__global__ void reversed(const int* in, int* out) {
  __shared__ int tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[63 - threadIdx.x];
}
__global__ void sum_all(int* out) {
  atomicAdd(&counter, 1);
  cg::this_grid().sync();
  if (threadIdx.x == 0) out[blockIdx.x] = counter;
  if (threadIdx.x == 0 && blockIdx.x == 0) ++managed_counter;
}
__global__ void sample(cudaTextureObject_t texture, float* out) { out[threadIdx.x] = tex2D<float>(texture, threadIdx.x + 0.5f, 1.5f); }
__global__ void dynamic(int* out) {
  extern __shared__ int more[];
  more[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = more[blockDim.x - 1 - threadIdx.x];
}

__global__ void add_one(cudaSurfaceObject_t surface, int shift) {
  float value;
  surf2Dread(&value, surface, threadIdx.x * 4, threadIdx.y);
  surf2Dwrite(value + 1, surface, (threadIdx.x + shift) * 4, threadIdx.y);
  surf2Dwrite(100.f, surface, (threadIdx.x + 8) * 4, threadIdx.y, cudaBoundaryModeZero);
}
__global__ void layers(cudaTextureObject_t layered, cudaTextureObject_t cube, cudaTextureObject_t pitched, cudaSurfaceObject_t surface, float* out) {
  out[0] = tex2DLayered<float>(layered, 1.5f, 1.5f, 2);
  out[1] = tex2DLayered<float>(layered, 0.5f, 1.5f, 9);
  out[2] = texCubemap<float>(cube, -0.5f, -2.f, 0.5f);
  out[3] = texCubemap<float>(cube, 3.f, 1.f, -1.f);
  float4 around = tex2Dgather<float4>(pitched, 1.f, 2.f, 0);
  out[4] = around.x * 1000 + around.y * 100 + around.z * 10 + around.w;
  out[5] = tex2D<float>(pitched, 2.5f, 1.5f);
  out[6] = surf2DLayeredread<float>(surface, 4, 0, 1);
}

#define CHECK(call) do { cudaError_t e = call; if (e) { printf("%s: %s\n", #call, cudaGetErrorString(e)); exit(4); } } while (0)

int features() {
  std::vector<float> host(256, 3);
  float *in, *out;
  CHECK(cudaMalloc(&in, 1024));
  CHECK(cudaMalloc(&out, 1024));
  cudaStream_t first, second;
  cudaEvent_t done, ended;
  CHECK(cudaStreamCreate(&first));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&done));
  CHECK(cudaEventCreate(&ended));
  CHECK(cudaMemcpyAsync(in, host.data(), 1024, cudaMemcpyHostToDevice, first));
  scale<<<2, 128, 0, first>>>(in, out, 256);
  CHECK(cudaEventRecord(done, first));
  CHECK(cudaStreamWaitEvent(second, done, 0));
  scale<<<2, 128, 0, second>>>(out, in, 256);
  CHECK(cudaEventRecord(ended, second));
  CHECK(cudaStreamSynchronize(second));
  float time;
  CHECK(cudaEventElapsedTime(&time, done, ended));
  CHECK(cudaMemcpy(host.data(), in, 1024, cudaMemcpyDeviceToHost));
  printf("streams %g\n", host[255]);
  int* pooled;
  CHECK(cudaMallocAsync(&pooled, 256, second));
  set<<<1, 64, 0, second>>>(pooled, 1);
  CHECK(cudaFreeAsync(pooled, second));

  cudaGraph_t graph;
  cudaGraphExec_t made;
  int* numbers;
  CHECK(cudaMallocManaged(&numbers, 256));
  CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
  CHECK(cudaMemsetAsync(numbers, 0, 256, first));
  increment<<<1, 64, 0, first>>>(numbers);
  increment<<<1, 64, 0, first>>>(numbers);
  CHECK(cudaStreamEndCapture(first, &graph));
  CHECK(cudaGraphInstantiate(&made, graph, 0));
  for (int i = 0; i < 2; ++i) CHECK(cudaGraphLaunch(made, first));
  cudaGraphExecUpdateResultInfo updated;
  CHECK(cudaGraphExecUpdate(made, graph, &updated));
  cudaStreamAttrValue window = {};
  CHECK(cudaStreamSetAttribute(first, cudaStreamAttributeAccessPolicyWindow, &window));
  CHECK(cudaGraphLaunch(made, first));
  CHECK(cudaDeviceSynchronize());
  printf("graph %d\n", numbers[63]);

  void* arguments[] = {&numbers};
  int blocks;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sum_all, 32, 0));
  CHECK(cudaLaunchCooperativeKernel(sum_all, dim3(4), dim3(32), arguments));
  CHECK(cudaDeviceSynchronize());
  printf("cooperative %d %d, %d blocks\n", numbers[3], managed_counter, blocks);

  CHECK(cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  dynamic<<<1, 64, 65536>>>(numbers);
  CHECK(cudaDeviceSynchronize());
  printf("dynamic %d\n", numbers[0]);

  float texels[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaArray_t array;
  CHECK(cudaMallocArray(&array, &format, 4, 2));
  CHECK(cudaMemcpy2DToArray(array, 0, 0, texels, 16, 16, 2, cudaMemcpyHostToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc texture = {};
  texture.addressMode[0] = texture.addressMode[1] = cudaAddressModeClamp;
  cudaTextureObject_t object;
  CHECK(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
  sample<<<1, 4>>>(object, out);
  CHECK(cudaMemcpy(host.data(), out, 16, cudaMemcpyDeviceToHost));
  printf("texture %g %g\n", host[0], host[3]);
  cudaFreeArray(array);
  cudaFree(in);
  cudaFree(out);
  cudaFree(numbers);
  return 0;
}

cudaArray_t array_of(int width, int height, int depth, unsigned flags, const float* values) {
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaArray_t array;
  CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(width, height, depth), flags));
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = make_cudaPitchedPtr((void*)values, width * 4, width, height);
  copy.dstArray = array;
  copy.extent = make_cudaExtent(width, height, depth > 0 ? depth : 1);
  copy.kind = cudaMemcpyHostToDevice;
  CHECK(cudaMemcpy3D(&copy));
  return array;
}

int surfaces(int shift) {
  float values[64], result[8], *out, *rows;
  for (int i = 0; i < 64; ++i) values[i] = i;
  cudaArray_t plane = array_of(8, 4, 0, cudaArraySurfaceLoadStore, values);
  cudaArray_t stack = array_of(2, 2, 3, cudaArrayLayered | cudaArraySurfaceLoadStore, values), sky = array_of(2, 2, 6, cudaArrayCubemap, values);
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = plane;
  cudaSurfaceObject_t surface, layered_surface;
  CHECK(cudaCreateSurfaceObject(&surface, &resource));
  add_one<<<1, dim3(8, 4)>>>(surface, shift);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy2DFromArray(values, 32, plane, 0, 0, 32, 4, cudaMemcpyDeviceToHost));
  printf("surface %g %g\n", values[0], values[31]);
  cudaTextureDesc sampling = {};
  cudaTextureObject_t layered, cube, pitched;
  resource.res.array.array = stack;
  CHECK(cudaCreateTextureObject(&layered, &resource, &sampling, nullptr));
  CHECK(cudaCreateSurfaceObject(&layered_surface, &resource));
  resource.res.array.array = sky;
  CHECK(cudaCreateTextureObject(&cube, &resource, &sampling, nullptr));
  size_t pitch;
  CHECK(cudaMallocPitch(&rows, &pitch, 12, 3));
  for (int i = 0; i < 9; ++i) values[i] = i + 1;
  CHECK(cudaMemcpy2D(rows, pitch, values, 12, 12, 3, cudaMemcpyHostToDevice));
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D = {rows, cudaCreateChannelDesc<float>(), 3, 3, pitch};
  CHECK(cudaCreateTextureObject(&pitched, &resource, &sampling, nullptr));
  CHECK(cudaMalloc(&out, sizeof result));
  layers<<<1, 1>>>(layered, cube, pitched, layered_surface, out);
  CHECK(cudaMemcpy(result, out, 28, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 7; ++i) printf("%g ", result[i]);
  printf("\n");
  cudaFreeArray(plane); cudaFreeArray(stack); cudaFreeArray(sky); cudaFree(rows); cudaFree(out);
  return 0;
}

// A graph that was captured from two streams, with events and streams that are gone when it runs; memory of its own; and a loop.
int graphs() {
  cudaStream_t first, second, runs;
  cudaEvent_t forked, joined;
  int *own, *kept, *out, host[64];
  CHECK(cudaMalloc(&out, 256));
  CHECK(cudaStreamCreateWithFlags(&runs, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK(cudaEventCreate(&forked));
  CHECK(cudaEventCreate(&joined));
  cudaGraph_t graph;
  cudaGraphExec_t made;
  CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
  CHECK(cudaMallocAsync(&own, 256, first));
  set<<<1, 64, 0, first>>>(own, 5);
  CHECK(cudaEventRecord(forked, first));
  CHECK(cudaStreamWaitEvent(second, forked, 0));
  increment<<<1, 64, 0, second>>>(own);
  CHECK(cudaEventRecord(joined, second));
  CHECK(cudaStreamWaitEvent(first, joined, 0));
  CHECK(cudaMemcpyAsync(out, own, 256, cudaMemcpyDeviceToDevice, first));
  CHECK(cudaFreeAsync(own, first));
  CHECK(cudaStreamEndCapture(first, &graph));
  CHECK(cudaStreamDestroy(first));
  CHECK(cudaStreamDestroy(second));
  CHECK(cudaEventDestroy(forked));
  CHECK(cudaEventDestroy(joined));
  cudaMemAllocNodeParams memory = {};
  memory.poolProps.allocType = cudaMemAllocationTypePinned;
  memory.poolProps.location.type = cudaMemLocationTypeDevice;
  memory.bytesize = 256;
  cudaGraphNode_t node;
  CHECK(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &memory));
  kept = (int*)memory.dptr;
  CHECK(cudaGraphAddMemcpyNode1D(&node, graph, &node, 1, kept, out, 256, cudaMemcpyDeviceToDevice));
  CHECK(cudaGraphInstantiate(&made, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) {
    CHECK(cudaGraphLaunch(made, runs));
    increment<<<1, 64, 0, runs>>>(out);
    CHECK(cudaStreamSynchronize(runs));
    CHECK(cudaMemcpy(host, kept, 256, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(kept));
  }
  CHECK(cudaGraphExecDestroy(made));
  printf("graph of two streams %d\n", host[63]);

  cudaGraphConditionalHandle handle;
  CHECK(cudaGraphCreate(&graph, 0));
  CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams loop = {cudaGraphNodeTypeConditional};
  loop.conditional.handle = handle;
  loop.conditional.type = cudaGraphCondTypeWhile;
  loop.conditional.size = 1;
  CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &loop));
  CHECK(cudaStreamBeginCaptureToGraph(runs, loop.conditional.phGraph_out[0], nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
  count_down<<<1, 1, 0, runs>>>(out, handle);
  CHECK(cudaStreamEndCapture(runs, nullptr));
  CHECK(cudaGraphInstantiate(&made, graph, 0));
  CHECK(cudaGraphLaunch(made, runs));
  CHECK(cudaStreamSynchronize(runs));
  CHECK(cudaGraphExecDestroy(made));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaMemcpy(host, out, 4, cudaMemcpyDeviceToHost));
  printf("loop %d\n", host[0]);
  CHECK(cudaFree(out));
  return 0;
}

int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "features") return features();
  if (mode == "graphs") return graphs();
  if (mode == "surfaces" || mode == "outside") return surfaces(mode == "outside");
  int *first_array, *second_array;
  int host[64] = {};
  CHECK(cudaMalloc(&first_array, 256));
  CHECK(cudaMalloc(&second_array, 256));
  CHECK(cudaMemcpy(first_array, host, 256, cudaMemcpyHostToDevice));
  if (mode == "race") {
    reversed<<<1, 64>>>(first_array, second_array);
    increment<<<1, 64>>>(second_array);
  } else if (mode == "dependent") {
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t configuration = {dim3(1), dim3(64), 0, nullptr, &early, 1};
    for (int i = 0; i < 3; ++i) CHECK(cudaLaunchKernelEx(&configuration, increment, first_array));
    CHECK(cudaDeviceSynchronize());
    increment<<<1, 64>>>(first_array);
  } else if (mode == "bounds") {
    set<<<1, 65>>>(second_array, 1);
  } else if (mode == "wild") {
    set<<<1, 64>>>(second_array + (1 << 24), 1);
  } else if (mode == "freed") {
    CHECK(cudaFree(first_array));
    increment<<<1, 64>>>(first_array);
  } else if (mode == "twice") {
    cudaFree(first_array);
    cudaFree(first_array);
  } else if (mode == "copy") {
    cudaMemcpy(host, first_array, 260, cudaMemcpyDeviceToHost);
  } else if (mode == "unwritten") {
    cudaMemcpy(host, second_array, 256, cudaMemcpyDeviceToHost);
  } else if (mode == "host") {
    printf("%d\n", first_array[0]);
  } else if (mode == "streams") {
    cudaStream_t one, two;
    cudaStreamCreate(&one);
    cudaStreamCreate(&two);
    set<<<1, 64, 0, one>>>(second_array, 1);
    set<<<1, 64, 0, two>>>(second_array, 2);
  } else if (mode == "neighbours") {
    CHECK(cudaMemset(first_array, 0, 256));
    cudaStream_t streams[4];
    for (int i = 0; i < 4; ++i) {
      cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
      set_one<<<1, 64, 0, streams[i]>>>(reinterpret_cast<unsigned char*>(second_array) + i, i + 1, first_array);
    }
    cudaDeviceSynchronize();
    cudaMemcpy(host, second_array, 4, cudaMemcpyDeviceToHost);
    int count;
    cudaMemcpy(&count, first_array, 4, cudaMemcpyDeviceToHost);
    unsigned char* bytes = reinterpret_cast<unsigned char*>(host);
    printf("neighbours %d %d %d %d, %d\n", bytes[0], bytes[1], bytes[2], bytes[3], count);
  } else if (mode == "overtakes") {
    cudaStream_t one;
    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    set<<<1, 64, 0, one>>>(second_array, 1);
    cudaMemcpy(host, second_array, 256, cudaMemcpyDeviceToHost);
  } else if (mode == "repeats") {
    for (int i = 0; i < 100; ++i) set<<<1, 64>>>(second_array, 1);
  } else if (mode == "resets") {
    for (int i = 0; i < 50; ++i) {
      cudaMemset(second_array, 0, 256);
      increment<<<1, 64>>>(second_array);
    }
    cudaMemcpy(host, second_array, 256, cudaMemcpyDeviceToHost);
    printf("sum %d\n", host[63]);
  } else if (mode == "large input") {
    int* large;
    cudaMalloc(&large, 4 << 20);
    for (int value = 1; value <= 2; ++value) {
      cudaMemset(large, value, 4 << 20);
      for (int i = 0; i < 20; ++i) {
        cudaMemset(second_array, 0, 256);
        add<<<1, 64>>>(large, second_array);
      }
      cudaMemcpy(host, second_array, 256, cudaMemcpyDeviceToHost);
      printf("sum %x\n", host[63]);
    }
    cudaFree(large);
  } else if (mode == "pinned") {
    int* pinned;
    cudaMallocHost(&pinned, 256);
    set<<<1, 64>>>(pinned, 7);
    if (argc > 2) cudaDeviceSynchronize();
    printf("pinned %d\n", pinned[5]);
    cudaFreeHost(pinned);
  } else if (mode == "host atomics") {
    int* count;
    cudaMallocManaged(&count, 256);
    sum_up<<<1, 64>>>(count);
    __atomic_fetch_add(count, 36, __ATOMIC_SEQ_CST);
    cudaDeviceSynchronize();
    printf("count %d\n", *count);
    cudaFree(count);
  } else if (mode == "garbage") {
    int socket = atoi(getenv("GEMMGEN_SOCKET"));
    unsigned words[64];
    memset(words, atoi(argv[2]), sizeof words);
    if (write(socket, words, sizeof words) < 0) return 5;
    sleep(5);
  } else if (mode == "writes") {
    FILE* file = fopen(argv[2], "w");
    printf("file %d\n", file != nullptr);
  } else if (mode == "unsupported") {
    cudaGraphicsResource_t resource = nullptr;
    printf("%s\n", cudaGetErrorString(cudaGraphicsUnregisterResource(resource)));
  } else if (mode == "null") {
    cudaError_t status = cudaMemcpy(first_array, nullptr, 256, cudaMemcpyHostToDevice);
    printf("null %d\n", status);
  } else if (mode == "freed in another stream") {
    cudaStream_t one, other;
    CHECK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    set<<<1, 64, 0, one>>>(second_array, 1);
    CHECK(cudaFreeAsync(second_array, other));
    CHECK(cudaDeviceSynchronize());
    second_array = nullptr;
  } else if (mode == "zeros") {
    std::vector<unsigned char> all(3 << 20, 7);
    unsigned char* many;
    CHECK(cudaMalloc(&many, all.size()));
    CHECK(cudaMemcpy(many, all.data(), all.size(), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(many + 5, 0, (2 << 20) + 77));
    CHECK(cudaMemcpy(all.data(), many, all.size(), cudaMemcpyDeviceToHost));
    size_t first = 0, last = all.size();
    while (all[first]) ++first;
    while (all[last - 1]) --last;
    size_t sum = 0;
    for (size_t i = first; i < last; ++i) sum += all[i];
    printf("zeros %zu %zu %zu\n", first, last - first, sum);
    CHECK(cudaFree(many));
  } else if (mode == "busy kernel") {
    draw<<<1, 1>>>((unsigned*)first_array);
  } else if (mode == "busy") {
    for (volatile long i = 0;; ++i) {}
  }
  cudaError_t error = cudaDeviceSynchronize();
  printf("end: %s\n", cudaGetErrorString(error));
  cudaFree(second_array);
  if (mode != "freed" && mode != "twice") cudaFree(first_array);
  return error ? 6 : 0;
}
