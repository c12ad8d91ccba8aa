// CUB's sum of float32 behind a C function, so that it runs in the process, and on the stream, of what it is compared with.
#include <cub/cub.cuh>

// With workspace == nullptr only *workspace_bytes is set. Returns a cudaError_t.
extern "C" int cub_sum(void* workspace, size_t* workspace_bytes, const float* x, float* y, int n, void* stream)
{
    return cub::DeviceReduce::Sum(workspace, *workspace_bytes, x, y, n, static_cast<cudaStream_t>(stream));
}
