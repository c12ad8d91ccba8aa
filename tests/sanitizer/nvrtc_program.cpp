// Compiles a kernel for the device's own architecture with NVRTC, loads its code through the driver, and runs it.
#include <cuda.h>
#include <cuda_runtime.h>
#include <nvrtc.h>
#include <cstdio>
#include <vector>

#define CHECK(call) \
  if (int status = (int)(call)) return printf("%s gives %d\n", #call, status), 1

int main() {
  const char* text =
      "template <int N> __global__ void add(int* values, int count) {\n"
      "  if (threadIdx.x <= count) values[threadIdx.x] += N;\n"
      "}\n";
  nvrtcProgram program;
  CHECK(nvrtcCreateProgram(&program, text, "add.cu", 0, nullptr, nullptr));
  CHECK(nvrtcAddNameExpression(program, "add<3>"));
  const char* options[] = {"-arch", "sm_80", "--std=c++17"};
  CHECK(nvrtcCompileProgram(program, 3, options));
  size_t bytes;
  CHECK(nvrtcGetCUBINSize(program, &bytes));
  std::vector<char> code(bytes);
  CHECK(nvrtcGetCUBIN(program, code.data()));
  const char* name;
  CHECK(nvrtcGetLoweredName(program, "add<3>", &name));
  CHECK(cuInit(0));
  CUdevice device;
  CUcontext context;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CUmodule module;
  CUfunction function;
  CHECK(cuModuleLoadData(&module, code.data()));
  CHECK(cuModuleGetFunction(&function, module, name));
  int start[31] = {4}, result[31], count = 31;
  CUdeviceptr values;
  CHECK(cuMemAlloc(&values, sizeof start));
  CHECK(cuMemcpyHtoD(values, start, sizeof start));
  void* arguments[] = {&values, &count};
  CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  CHECK(cuMemcpyDtoH(result, values, sizeof result));
  printf("%d %d\n", result[0], result[30]);
  CHECK(cuMemFree(values));
}
