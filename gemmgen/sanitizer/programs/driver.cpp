// The driver's interface (libcuda) over the same runtime, for programs that load PTX themselves: Python with cuda.bindings, and C++
// without the CUDA runtime. It shares everything of runtime.cpp, behind which it is compiled.

typedef CUresult Result;

namespace {

int primary_context;  // its address is the handle
int retained = 0;     // times that the program retained it
std::set<CUcontext> made_contexts;
thread_local std::vector<CUcontext> current_contexts;
bool is_initialised = false;
std::map<std::pair<uint64_t, std::string>, Kernel*> functions;
std::map<std::pair<uint64_t, std::string>, Variable*> globals;
std::map<const void*, CUcontext> modules;  // that are loaded, with their contexts; libraries have none
const uint64_t LARGEST_IMAGE = 1ull << 32;
struct Physical { size_t bytes; CUmemAllocationProp kind; bool mapped; };
std::vector<Physical> physical;
struct Link { std::vector<std::string> texts; std::string whole; };

CUcontext primary() { return (CUcontext)&primary_context; }

bool lives(CUcontext context) {
  return context == primary() ? retained > 0 || runtime_keeps_context : made_contexts.count(context) != 0;
}

// The current context of the thread; the runtime makes its own current with the first call that needs one.
CUcontext current() {
  if (current_contexts.empty() && has_primary_context) current_contexts.push_back(primary());
  return current_contexts.empty() ? nullptr : current_contexts.back();
}

const void* current_of_driver() { return current(); }

Result uninitialised() { return is_initialised || runtime_keeps_context ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

Result without_context() {
  if (Result error = uninitialised()) return error;
  CUcontext found = current();
  return !found ? CUDA_ERROR_INVALID_CONTEXT : lives(found) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Streams, events and the like can be used without a current context, but end with theirs.
Result without_any_context() { return made_contexts.empty() && !lives(primary()) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS; }

#define ANYWHERE OutsideRuntime call;
#define INITIALISED ANYWHERE if (Result error = uninitialised()) return error;
#define WITH_HANDLE ANYWHERE if (Result error = without_any_context()) return error;
#define IN_CONTEXT ANYWHERE if (Result error = without_context()) return error;
#define IN_CONTEXT_OF(stream) ANYWHERE if (Result error = stream ? CUDA_SUCCESS : without_context()) return error;

// The driver's codes are the runtime's, but for these.
Result of(Error error) {
  switch ((int)error) {
    case cudaErrorInvalidConfiguration: case cudaErrorInvalidPitchValue: return CUDA_ERROR_INVALID_VALUE;
    case cudaErrorInvalidDeviceFunction: return CUDA_ERROR_INVALID_IMAGE;
    default: return (Result)error;
  }
}

void* pointer_of(CUdeviceptr address) { return (void*)(uintptr_t)address; }

Result load(void** made, const void* image, CUcontext owner) {
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  uint32_t magic;
  memcpy(&magic, image, 4);
  std::string code;
  if (magic == 0x464c457f) {
    unsupported("a module of machine code (cubin): hand over PTX instead, compiled for compute_XX");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  if (magic == 0xba55ed50) {
    uint64_t size;
    uint16_t header;
    memcpy(&header, (const char*)image + 6, 2);
    memcpy(&size, (const char*)image + 8, 8);
    if (size > LARGEST_IMAGE) return CUDA_ERROR_INVALID_IMAGE;
    code.assign((const char*)image, header + size);
  } else {
    code = (const char*)image;
  }
  std::string answer;
  if (ask(LOAD_MODULE, code, &answer) || answer.size() != 8) return CUDA_ERROR_INVALID_PTX;
  uint64_t* module = new uint64_t;
  memcpy(module, answer.data(), 8);
  modules[module] = owner;
  *made = module;
  return CUDA_SUCCESS;
}

Result unload(const void* module) {
  if (!modules.count(module)) return CUDA_ERROR_INVALID_HANDLE;
  finish_all();
  modules.erase(module);
  const uint64_t id = *(const uint64_t*)module;
  for (auto each = functions.lower_bound({id, ""}); each != functions.end() && each->first.first == id; each = functions.erase(each))
    kernel_set.erase(each->second);
  return CUDA_SUCCESS;
}

// The memory and modules of a context end with it.
void end_context(CUcontext context, const char* call) {
  finish_all();
  std::vector<void*> memory;
  for (auto& each : allocations)
    if (each.second.context == context) memory.push_back((void*)each.first);
  for (void* each : memory) release(each, call);
  std::vector<const void*> loaded;
  for (auto& each : modules)
    if (each.second == context) loaded.push_back(each.first);
  for (const void* each : loaded) unload(each);
}

Result load_file(void** made, const char* path, CUcontext owner) {
  FILE* file = fopen(path, "rb");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::string text;
  char part[1 << 16];
  while (size_t count = fread(part, 1, sizeof part, file)) text.append(part, count);
  fclose(file);
  return load(made, text.c_str(), owner);
}

Result function_of(Kernel** found, const void* module, const char* name) {
  if (!modules.count(module)) return CUDA_ERROR_INVALID_HANDLE;
  Kernel*& kernel = functions[{*(const uint64_t*)module, name}];
  if (!kernel) {
    kernel = new Kernel;
    kernel->module = *(const uint64_t*)module;
    kernel->name = name;
    kernel_set.insert(kernel);
  }
  *found = kernel;
  return know(kernel) ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

Result global_of(CUdeviceptr* address, size_t* bytes, const void* module, const char* name) {
  if (!modules.count(module)) return CUDA_ERROR_INVALID_HANDLE;
  Variable*& variable = globals[{*(const uint64_t*)module, name}];
  if (!variable) {
    variable = new Variable;
    variable->module = *(const uint64_t*)module;
    variable->name = name;
    variables[variable] = variable;
  }
  if (!variable_of(variable)) return CUDA_ERROR_NOT_FOUND;
  if (address) *address = variable->address;
  if (bytes) *bytes = variable->size;
  return CUDA_SUCCESS;
}

Result launch_function(CUfunction function, LaunchShape shape, void** arguments, void** extra, CUstream stream) {
  Kernel* kernel = kernel_of(function);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (Error error = know(kernel)) return of(error);
  std::vector<void*> packed;
  for (void** each = extra; each && *each != CU_LAUNCH_PARAM_END; each += 2)
    if (*each == CU_LAUNCH_PARAM_BUFFER_POINTER)
      for (auto& parameter : kernel->parameters) packed.push_back((char*)each[1] + parameter.first);
  return of(launch(kernel, shape, packed.empty() ? arguments : packed.data(), stream));
}

// Values of 1, 2 or 4 bytes, in rows.
Result fill(CUdeviceptr target, size_t pitch, unsigned value, size_t bytes, size_t width, size_t height, CUstream stream, bool waits, const char* call) {
  start();
  if (width > arena / bytes) {
    misuse("copy-out-of-bounds", "%s: %zu elements of %zu bytes, more than device memory has", call, width, bytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::string row;
  row.reserve(width * bytes);
  for (size_t i = 0; i < width; ++i) row.append((const char*)&value, bytes);
  return of(in_stream(stream, [=](cudaStream_t stream) {
    for (size_t i = 0; i < height; ++i)
      if (Error error = copy_now((char*)pointer_of(target) + i * pitch, row.data(), row.size(), cudaMemcpyHostToDevice, stream, waits, call)) return error;
    return cudaSuccess;
  }));
}

Result copy(void* target, const void* source, size_t count, cudaMemcpyKind kind, CUstream stream, bool asynchronous, const char* call) {
  bool waits = !asynchronous || !(on_device(target) && on_device(source));
  return of(in_stream(stream, [=](cudaStream_t stream) { return copy_now(target, source, count, kind, stream, waits, call); }));
}

}  // namespace

// -- device and context -------------------------------------------------------------------------------------------------

API Result cuInit(unsigned) { ANYWHERE start(); is_initialised = true; return CUDA_SUCCESS; }
API Result cuDriverGetVersion(int* version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
API Result cuDeviceGetCount(int* count) { INITIALISED *count = 1; return CUDA_SUCCESS; }
API Result cuDeviceGet(CUdevice* device, int ordinal) { INITIALISED *device = 0; return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
API Result cuDeviceGetName(char* name, int length, CUdevice) { snprintf(name, length, "%s", device_name().c_str()); return CUDA_SUCCESS; }
API Result cuDeviceGetUuid(CUuuid* uuid, CUdevice) {
  memset(uuid, 0, sizeof *uuid);
  memcpy(uuid, std::to_string(device_number()).c_str(), setting("GEMMGEN_DEVICE_NAME") ? 8 : 0);
  return CUDA_SUCCESS;
}
API Result cuDeviceTotalMem(size_t* bytes, CUdevice) { INITIALISED start(); *bytes = device_bytes(); return CUDA_SUCCESS; }
API Result cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? 1 : attribute((cudaDeviceAttr)which);
  return CUDA_SUCCESS;
}
API Result cuDeviceGetPCIBusId(char* text, int length, CUdevice) { return of(cudaDeviceGetPCIBusId(text, length, 0)); }
API Result cuDeviceComputeCapability(int* major, int* minor, CUdevice) { *major = architecture() / 10; *minor = architecture() % 10; return CUDA_SUCCESS; }
API Result cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) { *can = 0; return CUDA_SUCCESS; }
API Result cuDevicePrimaryCtxRetain(CUcontext* made, CUdevice) { INITIALISED ++retained; *made = primary(); return CUDA_SUCCESS; }
API Result cuDevicePrimaryCtxRelease(CUdevice) {
  INITIALISED
  if (!lives(primary())) return CUDA_ERROR_INVALID_CONTEXT;
  retained = std::max(retained - 1, 0);
  if (!lives(primary())) end_context(primary(), "cuDevicePrimaryCtxRelease");
  return CUDA_SUCCESS;
}
API Result cuDevicePrimaryCtxReset(CUdevice) {
  INITIALISED
  if (lives(primary())) end_context(primary(), "cuDevicePrimaryCtxReset");
  return CUDA_SUCCESS;
}
API Result cuDevicePrimaryCtxSetFlags(CUdevice, unsigned) { return CUDA_SUCCESS; }
API Result cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) { *flags = 0; *active = lives(primary()); return CUDA_SUCCESS; }
#if CUDA_VERSION >= 13000
API Result cuCtxCreate(CUcontext* made, CUctxCreateParams*, unsigned, CUdevice) {
#else
API Result cuCtxCreate(CUcontext* made, unsigned, CUdevice) {
#endif
  INITIALISED
  *made = (CUcontext) new int;  // never deleted: the handle of a context that has ended is no later one's
  made_contexts.insert(*made);
  current_contexts.push_back(*made);
  return CUDA_SUCCESS;
}
// Only the stack of the calling thread loses the context; to others it stays current, and their calls fail.
API Result cuCtxDestroy(CUcontext context) {
  INITIALISED
  if (!made_contexts.count(context)) return CUDA_ERROR_INVALID_CONTEXT;
  end_context(context, "cuCtxDestroy");
  made_contexts.erase(context);
  if (!current_contexts.empty() && current_contexts.back() == context) current_contexts.pop_back();
  return CUDA_SUCCESS;
}
API Result cuCtxPushCurrent(CUcontext pushed) {
  INITIALISED
  if (!lives(pushed)) return CUDA_ERROR_INVALID_CONTEXT;
  current_contexts.push_back(pushed);
  return CUDA_SUCCESS;
}
API Result cuCtxPopCurrent(CUcontext* popped) {
  INITIALISED
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (popped) *popped = current_contexts.back();
  current_contexts.pop_back();
  return CUDA_SUCCESS;
}
API Result cuCtxSetCurrent(CUcontext set) {
  INITIALISED
  if (set && !lives(set)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!current_contexts.empty()) current_contexts.pop_back();
  if (set) current_contexts.push_back(set);
  return CUDA_SUCCESS;
}
API Result cuCtxGetCurrent(CUcontext* found) { INITIALISED *found = current(); return CUDA_SUCCESS; }
API Result cuCtxGetDevice(CUdevice* device) { IN_CONTEXT *device = 0; return CUDA_SUCCESS; }
API Result cuCtxGetApiVersion(CUcontext, unsigned* version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
API Result cuCtxGetFlags(unsigned* flags) { IN_CONTEXT *flags = 0; return CUDA_SUCCESS; }
API Result cuCtxGetId(CUcontext, unsigned long long* id) { *id = 1; return CUDA_SUCCESS; }
API Result cuCtxGetLimit(size_t* value, CUlimit) { IN_CONTEXT *value = 8 << 20; return CUDA_SUCCESS; }
API Result cuCtxSetLimit(CUlimit, size_t) { IN_CONTEXT return CUDA_SUCCESS; }
API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) { IN_CONTEXT return of(cudaDeviceGetStreamPriorityRange(least, greatest)); }
API Result cuCtxSynchronize() { IN_CONTEXT return of(finish_all()); }

// -- modules and launches -----------------------------------------------------------------------------------------------

API Result cuModuleLoad(CUmodule* module, const char* path) { IN_CONTEXT return load_file((void**)module, path, current()); }
API Result cuModuleLoadData(CUmodule* module, const void* image) { IN_CONTEXT return load((void**)module, image, current()); }
API Result cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) { IN_CONTEXT return load((void**)module, image, current()); }
API Result cuModuleLoadFatBinary(CUmodule* module, const void* image) { IN_CONTEXT return load((void**)module, image, current()); }
API Result cuModuleUnload(CUmodule module) { IN_CONTEXT return unload(module); }
API Result cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) { *mode = CU_MODULE_EAGER_LOADING; return CUDA_SUCCESS; }
API Result cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) { IN_CONTEXT return function_of((Kernel**)function, module, name); }
API Result cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) { IN_CONTEXT return global_of(address, bytes, module, name); }
API Result cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  ANYWHERE
  return load((void**)library, code, nullptr);
}
API Result cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  ANYWHERE
  return load_file((void**)library, path, nullptr);
}
API Result cuLibraryUnload(CUlibrary library) { ANYWHERE return unload(library); }
API Result cuLibraryGetModule(CUmodule* module, CUlibrary library) { *module = (CUmodule)library; return CUDA_SUCCESS; }
API Result cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) { ANYWHERE return function_of((Kernel**)kernel, library, name); }
API Result cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) { IN_CONTEXT return global_of(address, bytes, library, name); }
API Result cuKernelGetFunction(CUfunction* function, CUkernel kernel) { IN_CONTEXT *function = (CUfunction)kernel; return CUDA_SUCCESS; }
API Result cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
  IN_CONTEXT
  cudaFuncAttributes found;
  if (Error error = cudaFuncGetAttributes(&found, function)) return of(error);
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = found.maxThreadsPerBlock; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)found.sharedSizeBytes; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)found.localSizeBytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = found.numRegs; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = found.ptxVersion; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = found.maxDynamicSharedSizeBytes; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
API Result cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) { IN_CONTEXT return of(cudaFuncSetAttribute(function, (cudaFuncAttribute)which, value)); }
API Result cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
API Result cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel kernel, CUdevice) { ANYWHERE return cuFuncGetAttribute(value, which, (CUfunction)kernel); }
API Result cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice) { ANYWHERE return cuFuncSetAttribute((CUfunction)kernel, which, value); }
API Result cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  ANYWHERE
  Kernel* kernel = kernel_of(function);
  if (!kernel || know(kernel) || index >= kernel->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  if (offset) *offset = kernel->parameters[index].first;
  if (size) *size = kernel->parameters[index].second;
  return CUDA_SUCCESS;
}
API Result cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) { ANYWHERE return cuFuncGetParamInfo((CUfunction)kernel, index, offset, size); }
API Result cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                          void** arguments, void** extra) {
  IN_CONTEXT
  return launch_function(function, plain_shape({gx, gy, gz}, {bx, by, bz}, shared), arguments, extra, stream);
}
API Result cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                     CUstream stream, void** arguments) {
  IN_CONTEXT
  return launch_function(function, plain_shape({gx, gy, gz}, {bx, by, bz}, shared, true), arguments, nullptr, stream);
}
API Result cuLaunchKernelEx(const CUlaunchConfig* given, CUfunction function, void** arguments, void** extra) {
  IN_CONTEXT
  LaunchShape shape = plain_shape({given->gridDimX, given->gridDimY, given->gridDimZ}, {given->blockDimX, given->blockDimY, given->blockDimZ}, given->sharedMemBytes);
  for (unsigned i = 0; i < given->numAttrs; ++i) {
    const CUlaunchAttribute& each = given->attrs[i];
    if (each.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      shape.cluster[0] = each.value.clusterDim.x;
      shape.cluster[1] = each.value.clusterDim.y;
      shape.cluster[2] = each.value.clusterDim.z;
    }
    if (each.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && each.value.cooperative) shape.kinds |= COOPERATIVE;
    if (each.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION && each.value.programmaticStreamSerializationAllowed) shape.kinds |= PROGRAMMATIC;
  }
  return launch_function(function, shape, arguments, extra, given->hStream);
}
API Result cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) { IN_CONTEXT return of(cudaLaunchHostFunc(stream, function, data)); }
API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t shared) {
  IN_CONTEXT
  return of(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared));
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int threads, size_t shared, unsigned) {
  IN_CONTEXT
  return of(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared));
}
API Result cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize, size_t, int limit) {
  IN_CONTEXT
  cudaFuncAttributes found;
  if (Error error = cudaFuncGetAttributes(&found, function)) return of(error);
  *block = limit > 0 ? std::min(limit, found.maxThreadsPerBlock) : found.maxThreadsPerBlock;
  *grid = attribute(cudaDevAttrMultiProcessorCount) * std::max(2048 / *block, 1);
  return CUDA_SUCCESS;
}

// Linking of PTX texts; the image is their text, which is linked when it is loaded.
API Result cuLinkCreate(unsigned, CUjit_option*, void**, CUlinkState* state) { *state = (CUlinkState) new Link; return CUDA_SUCCESS; }
API Result cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*, unsigned, CUjit_option*, void**) {
  ANYWHERE
  if (type != CU_JIT_INPUT_PTX) {
    unsupported("cuLinkAddData of anything but PTX");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  ((Link*)state)->texts.push_back(std::string((const char*)data, strnlen((const char*)data, size)));
  return CUDA_SUCCESS;
}
API Result cuLinkComplete(CUlinkState state, void** image, size_t* size) {
  ANYWHERE
  Link* link = (Link*)state;
  if (link->texts.size() != 1) {
    unsupported("cuLinkComplete of several inputs");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  link->whole = link->texts[0];
  *image = &link->whole[0];
  *size = link->whole.size() + 1;
  return CUDA_SUCCESS;
}
API Result cuLinkDestroy(CUlinkState state) { delete (Link*)state; return CUDA_SUCCESS; }

// -- memory -------------------------------------------------------------------------------------------------------------

API Result cuMemAlloc(CUdeviceptr* pointer, size_t bytes) {
  IN_CONTEXT
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  return of(allocate((void**)pointer, bytes, DEVICE, "cuMemAlloc"));
}
API Result cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  IN_CONTEXT
  return of(allocate_in_stream((void**)pointer, bytes, stream, "cuMemAllocAsync"));
}
API Result cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool, CUstream stream) {
  IN_CONTEXT_OF(stream)
  return of(allocate_in_stream((void**)pointer, bytes, stream, "cuMemAllocFromPoolAsync"));
}
API Result cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned) { IN_CONTEXT return of(allocate((void**)pointer, bytes, MANAGED, "cuMemAllocManaged")); }
API Result cuMemAllocHost(void** pointer, size_t bytes) { IN_CONTEXT return of(allocate(pointer, bytes, PINNED, "cuMemAllocHost")); }
API Result cuMemHostAlloc(void** pointer, size_t bytes, unsigned) { IN_CONTEXT return of(allocate(pointer, bytes, PINNED, "cuMemHostAlloc")); }
API Result cuMemAllocPitch(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned) {
  IN_CONTEXT
  *pitch = (width + 511) / 512 * 512;
  return of(allocate((void**)pointer, *pitch * height, DEVICE, "cuMemAllocPitch"));
}
API Result cuMemFree(CUdeviceptr pointer) {
  IN_CONTEXT
  if (pointer) finish_all();
  return of(release(pointer_of(pointer), "cuMemFree"));
}
API Result cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  IN_CONTEXT_OF(stream)
  return of(in_stream(stream, [=](cudaStream_t stream) { return release(pointer_of(pointer), "cuMemFreeAsync", stream); }));
}
// A range of addresses is memory from its reservation on; physical memory that is mapped there has no separate place.
API Result cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) { *bytes = 2 << 20; return CUDA_SUCCESS; }
API Result cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  ANYWHERE
  if (!bytes || bytes % (2 << 20)) return CUDA_ERROR_INVALID_VALUE;
  return of(allocate((void**)pointer, bytes, DEVICE, "cuMemAddressReserve"));
}
API Result cuMemAddressFree(CUdeviceptr pointer, size_t) { ANYWHERE return of(release(pointer_of(pointer), "cuMemAddressFree")); }
API Result cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* kind, unsigned long long) {
  if (!bytes || bytes % (2 << 20)) return CUDA_ERROR_INVALID_VALUE;
  physical.push_back({bytes, *kind, false});
  *handle = physical.size();
  return CUDA_SUCCESS;
}
API Result cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  ANYWHERE
  if (!handle || handle > physical.size() || offset + bytes > physical[handle - 1].bytes) return CUDA_ERROR_INVALID_VALUE;
  if (physical[handle - 1].mapped) {
    unsupported("cuMemMap of memory that was mapped before");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  physical[handle - 1].mapped = true;
  return fits(pointer_of(pointer), bytes, "cuMemMap") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API Result cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
API Result cuMemUnmap(CUdeviceptr, size_t) { ANYWHERE return of(finish_all()); }
API Result cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
API Result cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* kind, CUmemGenericAllocationHandle handle) {
  if (!handle || handle > physical.size()) return CUDA_ERROR_INVALID_VALUE;
  *kind = physical[handle - 1].kind;
  return CUDA_SUCCESS;
}
API Result cuMemFreeHost(void* pointer) { WITH_HANDLE return of(release(pointer, "cuMemFreeHost")); }
API Result cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned flags) { IN_CONTEXT return of(cudaHostGetDevicePointer((void**)device, host, flags)); }
API Result cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) { IN_CONTEXT return of(cudaHostRegister(pointer, bytes, flags)); }
API Result cuMemHostUnregister(void* pointer) { WITH_HANDLE return of(cudaHostUnregister(pointer)); }
API Result cuMemGetInfo(size_t* free_bytes, size_t* total) { IN_CONTEXT return of(cudaMemGetInfo(free_bytes, total)); }
API Result cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  IN_CONTEXT
  auto found = allocation_of(pointer_of(pointer));
  if (found == allocations.end()) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = found->first;
  if (bytes) *bytes = found->second.bytes;
  return CUDA_SUCCESS;
}
API Result cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr pointer) {
  ANYWHERE
  auto found = allocation_of(pointer_of(pointer));
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext*)value = found->second.context ? (CUcontext)found->second.context : primary(); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned*)value = found->second.kind == PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(CUdeviceptr*)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned*)value = found->second.kind == MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)value = 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr*)value = found->first; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t*)value = found->second.bytes; break;
    default: unsupported("cuPointerGetAttribute of this attribute"); return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
API Result cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice) { *pool = (CUmemoryPool)&primary_context; return CUDA_SUCCESS; }
API Result cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice) { *pool = (CUmemoryPool)&primary_context; return CUDA_SUCCESS; }
API Result cuDeviceSetMemPool(CUdevice, CUmemoryPool) { return CUDA_SUCCESS; }
API Result cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) { *pool = (CUmemoryPool)&primary_context; return CUDA_SUCCESS; }
API Result cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation*, CUmemAllocationType) { return cuDeviceGetDefaultMemPool(pool, 0); }
API Result cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation*, CUmemAllocationType) { return cuDeviceGetDefaultMemPool(pool, 0); }
API Result cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
API Result cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool, CUmemLocation*) { *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; return CUDA_SUCCESS; }
API Result cuMemPoolDestroy(CUmemoryPool) { return CUDA_SUCCESS; }
API Result cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }
API Result cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) { return CUDA_SUCCESS; }
API Result cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute which, void* value) {
  if (which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) *(int*)value = 0;
  else *(cuuint64_t*)value = 0;
  return CUDA_SUCCESS;
}
// -- arrays and textures ------------------------------------------------------------------------------------------------

API Result cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* given) {
  IN_CONTEXT
  bool real = given->Format == CU_AD_FORMAT_HALF || given->Format == CU_AD_FORMAT_FLOAT;
  bool whole = given->Format >= CU_AD_FORMAT_SIGNED_INT8 && given->Format <= CU_AD_FORMAT_SIGNED_INT32;
  int size = real ? (given->Format == CU_AD_FORMAT_HALF ? 16 : 32) : 8 << ((given->Format & 7) - (whole ? 0 : 1));
  int bits[4] = {};
  if (given->NumChannels > 4) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < given->NumChannels; ++i) bits[i] = size;
  auto kind = real ? cudaChannelFormatKindFloat : whole ? cudaChannelFormatKindSigned : cudaChannelFormatKindUnsigned;
  cudaChannelFormatDesc format = {bits[0], bits[1], bits[2], bits[3], kind};
  return of(cudaMallocArray((cudaArray_t*)array, &format, given->Width, given->Height, 0));
}
API Result cuArrayDestroy(CUarray array) { WITH_HANDLE return of(cudaFreeArray((cudaArray_t)array)); }
API Result cuMemcpy2D(const CUDA_MEMCPY2D* given) {
  IN_CONTEXT
  auto of_array = [](CUarray array) { return (Array*)array; };
  auto row = [&](CUarray array) { return of_array(array)->element_bytes * of_array(array)->extent.width; };
  auto place = [&](CUmemorytype type, const void* host, CUdeviceptr device, CUarray array) {
    return type == CU_MEMORYTYPE_HOST ? (char*)host : type == CU_MEMORYTYPE_ARRAY ? (char*)of_array(array)->data : (char*)pointer_of(device);
  };
  size_t to = given->dstMemoryType == CU_MEMORYTYPE_ARRAY ? row(given->dstArray) : given->dstPitch ? given->dstPitch : given->WidthInBytes;
  size_t from = given->srcMemoryType == CU_MEMORYTYPE_ARRAY ? row(given->srcArray) : given->srcPitch ? given->srcPitch : given->WidthInBytes;
  char* target = place(given->dstMemoryType, given->dstHost, given->dstDevice, given->dstArray) + given->dstY * to + given->dstXInBytes;
  char* source = place(given->srcMemoryType, given->srcHost, given->srcDevice, given->srcArray) + given->srcY * from + given->srcXInBytes;
  return of(copy_rows(target, to, source, from, given->WidthInBytes, given->Height, cudaMemcpyDefault, nullptr, true, "cuMemcpy2D"));
}
API Result cuTexObjectCreate(CUtexObject* object, const CUDA_RESOURCE_DESC* given, const CUDA_TEXTURE_DESC* how, const CUDA_RESOURCE_VIEW_DESC*) {
  IN_CONTEXT
  if (given->resType != CU_RESOURCE_TYPE_ARRAY) {
    unsupported("cuTexObjectCreate over memory that is no array");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = (cudaArray_t)given->res.array.hArray;
  cudaTextureDesc texture = {};
  for (int i = 0; i < 3; ++i) texture.addressMode[i] = (cudaTextureAddressMode)how->addressMode[i];
  texture.filterMode = (cudaTextureFilterMode)how->filterMode;
  bool real = ((Array*)given->res.array.hArray)->format.f == cudaChannelFormatKindFloat;
  texture.readMode = real || how->flags & CU_TRSF_READ_AS_INTEGER ? cudaReadModeElementType : cudaReadModeNormalizedFloat;
  texture.normalizedCoords = (how->flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
  return of(cudaCreateTextureObject((cudaTextureObject_t*)object, &resource, &texture, nullptr));
}
API Result cuTexObjectDestroy(CUtexObject object) { WITH_HANDLE return of(cudaDestroyTextureObject(object)); }

API Result cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t count) { IN_CONTEXT return copy(pointer_of(target), pointer_of(source), count, cudaMemcpyDefault, nullptr, false, "cuMemcpy"); }
API Result cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t count, CUstream stream) { IN_CONTEXT return copy(pointer_of(target), pointer_of(source), count, cudaMemcpyDefault, stream, true, "cuMemcpyAsync"); }
API Result cuMemcpyHtoD(CUdeviceptr target, const void* source, size_t count) { IN_CONTEXT return copy(pointer_of(target), source, count, cudaMemcpyHostToDevice, nullptr, false, "cuMemcpyHtoD"); }
API Result cuMemcpyDtoH(void* target, CUdeviceptr source, size_t count) { IN_CONTEXT return copy(target, pointer_of(source), count, cudaMemcpyDeviceToHost, nullptr, false, "cuMemcpyDtoH"); }
API Result cuMemcpyDtoD(CUdeviceptr target, CUdeviceptr source, size_t count) { IN_CONTEXT return copy(pointer_of(target), pointer_of(source), count, cudaMemcpyDeviceToDevice, nullptr, false, "cuMemcpyDtoD"); }
API Result cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, size_t count, CUstream stream) { IN_CONTEXT return copy(pointer_of(target), source, count, cudaMemcpyHostToDevice, stream, true, "cuMemcpyHtoDAsync"); }
API Result cuMemcpyDtoHAsync(void* target, CUdeviceptr source, size_t count, CUstream stream) { IN_CONTEXT return copy(target, pointer_of(source), count, cudaMemcpyDeviceToHost, stream, true, "cuMemcpyDtoHAsync"); }
API Result cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t count, CUstream stream) { IN_CONTEXT return copy(pointer_of(target), pointer_of(source), count, cudaMemcpyDeviceToDevice, stream, true, "cuMemcpyDtoDAsync"); }
API Result cuMemsetD8(CUdeviceptr target, unsigned char value, size_t count) { IN_CONTEXT return fill(target, 0, value, 1, count, 1, nullptr, false, "cuMemsetD8"); }
API Result cuMemsetD16(CUdeviceptr target, unsigned short value, size_t count) { IN_CONTEXT return fill(target, 0, value, 2, count, 1, nullptr, false, "cuMemsetD16"); }
API Result cuMemsetD32(CUdeviceptr target, unsigned value, size_t count) { IN_CONTEXT return fill(target, 0, value, 4, count, 1, nullptr, false, "cuMemsetD32"); }
API Result cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) { IN_CONTEXT return fill(target, 0, value, 1, count, 1, stream, false, "cuMemsetD8Async"); }
API Result cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream) { IN_CONTEXT return fill(target, 0, value, 2, count, 1, stream, false, "cuMemsetD16Async"); }
API Result cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) { IN_CONTEXT return fill(target, 0, value, 4, count, 1, stream, false, "cuMemsetD32Async"); }
API Result cuMemsetD2D8(CUdeviceptr target, size_t pitch, unsigned char value, size_t width, size_t height) { IN_CONTEXT return fill(target, pitch, value, 1, width, height, nullptr, false, "cuMemsetD2D8"); }
API Result cuMemsetD2D32(CUdeviceptr target, size_t pitch, unsigned value, size_t width, size_t height) { IN_CONTEXT return fill(target, pitch, value, 4, width, height, nullptr, false, "cuMemsetD2D32"); }

// -- streams, events and graphs -----------------------------------------------------------------------------------------

API Result cuStreamCreate(CUstream* stream, unsigned flags) { IN_CONTEXT return of(cudaStreamCreateWithFlags(stream, flags)); }
API Result cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) { IN_CONTEXT return of(cudaStreamCreateWithPriority(stream, flags, priority)); }
API Result cuStreamDestroy(CUstream stream) { WITH_HANDLE return of(cudaStreamDestroy(stream)); }
API Result cuStreamSynchronize(CUstream stream) { WITH_HANDLE return of(cudaStreamSynchronize(stream)); }
API Result cuStreamQuery(CUstream stream) { WITH_HANDLE return of(cudaStreamQuery(stream)); }
API Result cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) { WITH_HANDLE return of(cudaStreamWaitEvent(stream, event, flags)); }
API Result cuStreamGetFlags(CUstream stream, unsigned* flags) { WITH_HANDLE return of(cudaStreamGetFlags(stream, flags)); }
API Result cuStreamGetPriority(CUstream stream, int* priority) { WITH_HANDLE return of(cudaStreamGetPriority(stream, priority)); }
API Result cuStreamGetCtx(CUstream stream, CUcontext* found) {
  IN_CONTEXT_OF(stream)
  *found = current() ? current() : primary();
  return CUDA_SUCCESS;
}
API Result cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) { IN_CONTEXT return of(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); }
API Result cuStreamEndCapture(CUstream stream, CUgraph* graph) { IN_CONTEXT return of(cudaStreamEndCapture(stream, graph)); }
API Result cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) { WITH_HANDLE return of(cudaStreamIsCapturing(stream, (cudaStreamCaptureStatus*)status)); }
API Result cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long) { ANYWHERE return of(cudaGraphInstantiate(made, graph, 0)); }
API Result cuGraphLaunch(CUgraphExec made, CUstream stream) { IN_CONTEXT return of(cudaGraphLaunch(made, stream)); }
API Result cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
API Result cuGraphExecDestroy(CUgraphExec made) { ANYWHERE return of(cudaGraphExecDestroy(made)); }
API Result cuGraphDestroy(CUgraph graph) { ANYWHERE return of(cudaGraphDestroy(graph)); }
API Result cuEventCreate(CUevent* event, unsigned flags) { IN_CONTEXT return of(cudaEventCreateWithFlags(event, flags)); }
API Result cuEventRecord(CUevent event, CUstream stream) { IN_CONTEXT return of(cudaEventRecord(event, stream)); }
API Result cuEventSynchronize(CUevent event) { WITH_HANDLE return of(cudaEventSynchronize(event)); }
API Result cuEventQuery(CUevent event) { WITH_HANDLE return of(cudaEventQuery(event)); }
API Result cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) { WITH_HANDLE return of(cudaEventElapsedTime(milliseconds, from, to)); }
API Result cuEventDestroy(CUevent event) { WITH_HANDLE return of(cudaEventDestroy(event)); }

// -- errors and entry points --------------------------------------------------------------------------------------------

API Result cuGetErrorString(Result error, const char** text) { *text = cudaGetErrorString((Error)error); return CUDA_SUCCESS; }
API Result cuGetErrorName(Result error, const char** name) {
  switch ((int)error) {
#define NAME(error) case error: *name = #error; break;
    NAME(CUDA_SUCCESS) NAME(CUDA_ERROR_INVALID_VALUE) NAME(CUDA_ERROR_OUT_OF_MEMORY) NAME(CUDA_ERROR_INVALID_IMAGE) NAME(CUDA_ERROR_INVALID_CONTEXT)
    NAME(CUDA_ERROR_NOT_INITIALIZED) NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    NAME(CUDA_ERROR_INVALID_DEVICE) NAME(CUDA_ERROR_INVALID_PTX) NAME(CUDA_ERROR_NO_BINARY_FOR_GPU) NAME(CUDA_ERROR_FILE_NOT_FOUND) NAME(CUDA_ERROR_INVALID_HANDLE)
    NAME(CUDA_ERROR_NOT_FOUND) NAME(CUDA_ERROR_ILLEGAL_ADDRESS) NAME(CUDA_ERROR_MISALIGNED_ADDRESS) NAME(CUDA_ERROR_LAUNCH_FAILED) NAME(CUDA_ERROR_ASSERT)
    NAME(CUDA_ERROR_LAUNCH_TIMEOUT) NAME(CUDA_ERROR_NOT_SUPPORTED)
#undef NAME
    default: *name = "CUDA_ERROR_UNKNOWN";
  }
  return CUDA_SUCCESS;
}
// The static CUDA runtime reaches the driver through unnamed tables. NVRTC asks for one too, and works without.
API Result cuGetExportTable(const void**, const CUuuid*) {
  Dl_info caller;
  if (!dladdr(__builtin_return_address(0), &caller) || !strstr(caller.dli_fname, "libnvrtc"))
    unsupported("cuGetExportTable, which the static CUDA runtime needs (in Python: cuda.bindings.runtime and CuPy; cuda.bindings.driver runs, and gemmgen.emulate takes the source of a RawKernel)");
  return CUDA_ERROR_NOT_SUPPORTED;
}
API Result cuGetProcAddress(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  Dl_info own;
  static void* library = dladdr((void*)&primary_context, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  *function = nullptr;
  // Names in requests have no version; the header's newest is the one that is compiled here.
  for (const char* version : {"_v4", "_v3", "_v2", ""})
    if (library && !*function) *function = dlsym(library, (std::string(name) + version).c_str());
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
