/* A CUDA driver without a GPU for tests of exported headers: it keeps what it was asked to do, in order, and launches nothing.
 * Device memory is host memory. With FAKE_ANY_ENTRY in the environment it knows every kernel, without its parameters. */
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

enum { MOST_EVENTS = 64, MOST_ENTRIES = 512, MOST_PARAMETERS = 64, MOST_BYTES = 4096 };

typedef struct event {
    char kind[16]; /* launch, memset, load, unload, allow */
    char entry[256];
    unsigned grid[3], block[3], cluster[3];
    unsigned shared_bytes;
    int programmatic;
    unsigned long long stream, address, bytes;
    int argument_bytes;
    unsigned char arguments[MOST_BYTES];
} event_t;

typedef struct entry {
    char name[256];
    int count, sizes[MOST_PARAMETERS];
} entry_t;

event_t fake_events[MOST_EVENTS];
int fake_event_count;
int fake_major = 9, fake_minor = 0;
int fake_multiprocessors = 132;
int fake_shared_optin = 232448, fake_static_shared = 1024;
CUresult fake_launch_result = CUDA_SUCCESS;
static entry_t entries[MOST_ENTRIES];
static int entry_count;

static event_t *next_event(const char *kind)
{
    event_t *event = &fake_events[fake_event_count < MOST_EVENTS - 1 ? fake_event_count++ : MOST_EVENTS - 1];
    memset(event, 0, sizeof *event);
    strcpy(event->kind, kind);
    return event;
}

/* Makes a kernel known: the bytes of each of its parameters. */
void fake_add_entry(const char *name, int count, const int *sizes)
{
    entry_t *entry = &entries[entry_count++];
    strncpy(entry->name, name, sizeof entry->name - 1);
    entry->count = count;
    memcpy(entry->sizes, sizes, sizeof(int) * (size_t)count);
}

int fake_event_size(void) { return (int)sizeof(event_t); }

CUresult cuCtxGetDevice(CUdevice *device) { *device = 3; return CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    if (device != 3) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = fake_major; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = fake_minor; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = fake_multiprocessors; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = fake_shared_optin; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    memcpy(next_event("load")->arguments, image, 16);
    *module = (CUmodule)(size_t)77;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    next_event("unload");
    return module == (CUmodule)(size_t)77 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    static const int none = 0;
    int i;
    (void)module;
    if (getenv("FAKE_ANY_ENTRY") != NULL) fake_add_entry(name, 0, &none);
    for (i = 0; i < entry_count; ++i) {
        if (strcmp(entries[i].name, name) == 0) {
            *function = (CUfunction)(void *)&entries[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    event_t *event = next_event("allow");
    strcpy(event->entry, ((entry_t *)(void *)function)->name);
    event->shared_bytes = (unsigned)value;
    return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    (void)function;
    *value = fake_static_shared;
    return attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static event_t *launch(CUfunction function, void **arguments)
{
    const entry_t *entry = (const entry_t *)(void *)function;
    event_t *event = next_event("launch");
    int i;
    strcpy(event->entry, entry->name);
    for (i = 0; i < entry->count; ++i) {
        memcpy(event->arguments + event->argument_bytes, arguments[i], (size_t)entry->sizes[i]);
        event->argument_bytes += entry->sizes[i];
    }
    event->cluster[0] = event->cluster[1] = event->cluster[2] = 1;
    return event;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared_bytes, CUstream stream, void **arguments, void **extra)
{
    event_t *event = launch(function, arguments);
    event->grid[0] = gx, event->grid[1] = gy, event->grid[2] = gz;
    event->block[0] = bx, event->block[1] = by, event->block[2] = bz;
    event->shared_bytes = shared_bytes;
    event->stream = (size_t)stream;
    return extra == NULL ? fake_launch_result : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    unsigned i;
    const CUresult result = cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                           config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream,
                                           arguments, extra);
    event_t *event = &fake_events[fake_event_count - 1];
    for (i = 0; i < config->numAttrs; ++i) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            event->cluster[0] = attribute->value.clusterDim.x;
            event->cluster[1] = attribute->value.clusterDim.y;
            event->cluster[2] = attribute->value.clusterDim.z;
        } else if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            event->programmatic = attribute->value.programmaticStreamSerializationAllowed;
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return result;
}

/* Tensor maps hold what they were made of: address, extents, strides, modes, box or walk, element strides of four bits each. */
static void note_map(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *extents,
                     const cuuint64_t *strides, const cuuint32_t *steps, int interleave, int swizzle, int promotion, int fill,
                     const int *walk, size_t walked)
{
    struct { cuuint64_t address, extents[5], strides[4]; unsigned char modes[8]; int walk[8]; unsigned steps; } note;
    const unsigned char modes[8] = { (unsigned char)type, (unsigned char)rank, (unsigned char)interleave, (unsigned char)swizzle,
                                     (unsigned char)promotion, (unsigned char)fill };
    cuuint32_t axis;
    memset(&note, 0, sizeof note);
    memset(map, 0, sizeof *map);
    note.address = (size_t)address;
    memcpy(note.extents, extents, rank * sizeof *extents);
    memcpy(note.strides, strides, (rank - 1) * sizeof *strides);
    memcpy(note.modes, modes, sizeof modes);
    memcpy(note.walk, walk, walked * sizeof *walk);
    for (axis = 0; axis < rank; ++axis) note.steps |= steps[axis] << 4 * axis;
    memcpy(map, &note, sizeof note < sizeof *map ? sizeof note : sizeof *map);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    note_map(map, type, rank, address, extents, strides, steps, interleave, swizzle, promotion, fill, (const int *)box, rank);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *extents, const cuuint64_t *strides, const int *lower, const int *upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    int walk[8];
    memcpy(walk, lower, (rank - 2) * sizeof *lower);
    memcpy(walk + rank - 2, upper, (rank - 2) * sizeof *upper);
    walk[2 * (rank - 2)] = (int)channels, walk[2 * (rank - 2) + 1] = (int)pixels;
    note_map(map, type, rank, address, extents, strides, steps, interleave, swizzle, promotion, fill, walk, 2 * (rank - 2) + 2);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream)
{
    event_t *event = next_event("memset");
    event->address = address, event->bytes = bytes, event->stream = (size_t)stream;
    return value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What programs use around a launch. */

CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = 3;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    (void)device;
    strncpy(name, "Fake GPU", (size_t)length);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = (CUcontext)(size_t)99;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { (void)device; return CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) { (void)stream; *context = (CUcontext)(size_t)7; return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) { return context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
CUresult cuCtxPopCurrent(CUcontext *context) { *context = (CUcontext)(size_t)7; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    *address = (CUdeviceptr)(size_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    return bytes > 0 && *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree(CUdeviceptr address) { free((void *)(size_t)address); return CUDA_SUCCESS; }

CUresult cuMemcpyHtoD(CUdeviceptr target, const void *source, size_t bytes)
{
    memcpy((void *)(size_t)target, source, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *target, CUdeviceptr source, size_t bytes)
{
    memcpy(target, (const void *)(size_t)source, bytes);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags) { (void)flags; *event = (CUevent)(size_t)5; return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream) { (void)event; (void)stream; return CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent event) { (void)event; return CUDA_SUCCESS; }
CUresult cuEventDestroy(CUevent event) { (void)event; return CUDA_SUCCESS; }

#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    (void)start, (void)end;
    *milliseconds = 1.0f;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime(milliseconds, start, end);
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    (void)error;
    *name = "an error of the fake driver";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "another error";
    return CUDA_SUCCESS;
}
