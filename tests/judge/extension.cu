// A torch extension that computes y = 2 x + z, rightly or in one of several wrong ways.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

template <typename scalar_t>
__global__ void scale_add_kernel(const torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> x, const scalar_t* z, scalar_t* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i] + z[i];
}

__global__ void racing(const float* x, const float* z, float* y, int n) {
    __shared__ float last;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) last = x[i];
    if (i < n) y[i] = 2 * x[i] + z[i] + 0 * last;
}

torch::Tensor scale_add(torch::Tensor x, torch::Tensor z, int64_t mode) {
    static torch::Tensor kept;
    static int calls;
    TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must lie on the device without gaps");
    TORCH_CHECK(mode != 4, "mode ", mode, " is refused");
    const at::cuda::OptionalCUDAGuard guard(x.device());
    auto y = torch::empty_like(x);
    const int n = x.numel();
    const auto stream = at::cuda::getCurrentCUDAStream();
    if (kept.defined() && (mode == 1 || (mode == 9 && ++calls > 20))) return kept;
    if (mode == 7 || mode == 8) {
        cudaStream_t own;
        cudaEvent_t done;
        cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
        cudaEventCreate(&done);
        scale_add_kernel<float><<<(n + 63) / 64, 64, 0, own>>>(
            x.packed_accessor32<float, 1, torch::RestrictPtrTraits>(), z.data_ptr<float>(), y.data_ptr<float>(), n);
        cudaEventRecord(done, own);
        if (mode == 8) cudaStreamWaitEvent(stream, done, 0);
    } else if (mode == 5) {
        racing<<<(n + 63) / 64, 64, 0, stream>>>(x.data_ptr<float>(), z.data_ptr<float>(), y.data_ptr<float>(), n);
    } else {
        AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale_add", ([&] {
            scale_add_kernel<scalar_t><<<(n + 63) / 64, 64, 0, stream>>>(
                x.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>(), z.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), mode == 3 ? n / 2 : n);
        }));
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (mode == 2) x.zero_();
    if (mode == 6) return y.view({2, -1});
    kept = mode == 1 || mode == 9 ? y : torch::Tensor();
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("scale_add", &scale_add, "y = 2 x + z", py::arg("x"), py::arg("z"), py::arg("mode") = 0);
}
