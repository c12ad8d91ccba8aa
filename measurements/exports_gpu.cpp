// A C++ program that links nothing but the CUDA driver and the bundle of a 7-billion-parameter model's layers, and checks every layer.
// exports_gpu.py writes the bundle beside it, compiles it and runs it.
//
// For each layer and number of rows: random bfloat16 matrices, one call, and results compared with sums in double precision at corners and
// at random elements. Every element must have been written. Prints a line for each call, and returns 1 if one is wrong.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "llama.h"

namespace {

constexpr std::uint16_t NOT_WRITTEN = 0xffff;  // a NaN
constexpr int SAMPLES = 256;
constexpr std::int64_t ROWS[] = { 1, 2, 16, 37, 256, 1000, 4096 };
constexpr std::int64_t MOST_ROWS = 4096;

void require(CUresult result, const char *call)
{
    const char *text = nullptr;
    if (result == CUDA_SUCCESS) return;
    (void)cuGetErrorString(result, &text);
    std::printf("%s: %s\n", call, text == nullptr ? "an unknown error" : text);
    std::exit(2);
}
#define REQUIRE(call) require(call, #call)

double wide(std::uint16_t value)
{
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

// Memory on the device, freed at the end of its scope.
class Memory {
public:
    explicit Memory(std::size_t bytes) { if (bytes > 0) REQUIRE(cuMemAlloc(&address, bytes)); }
    ~Memory() { if (address != 0) (void)cuMemFree(address); }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    std::uint16_t *elements() const { return reinterpret_cast<std::uint16_t *>(address); }
    CUdeviceptr address = 0;
};

using Call = CUresult (*)(const llama_t *, CUstream, std::int64_t, const std::uint16_t *, const std::uint16_t *, std::uint16_t *, void *);
struct Layer {
    const char *name;
    std::int64_t columns, depth;
    bool silu;
    Call call;
    const char *(*why)(std::int64_t);
    std::size_t (*workspace_bytes)(std::int64_t);
};
#define LAYER(name, columns, depth, silu) \
    { #name, columns, depth, silu, llama_##name, llama_##name##_why, llama_##name##_workspace_bytes }
const Layer LAYERS[] = {
    LAYER(gemm_4096_4096_nt_bf16, 4096, 4096, false),
    LAYER(gemm_12288_4096_nt_bf16, 12288, 4096, false),
    LAYER(gemm_11008_4096_nt_bf16_silu, 11008, 4096, true),
    LAYER(gemm_11008_4096_nt_bf16, 11008, 4096, false),
    LAYER(gemm_4096_11008_nt_bf16, 4096, 11008, false),
    LAYER(gemm_32000_4096_nt_bf16, 32000, 4096, false),
};

// bfloat16 numbers between -1 and 1.
std::vector<std::uint16_t> random_matrix(std::size_t count, std::uint64_t seed)
{
    std::vector<std::uint16_t> made(count);
    for (std::uint16_t &one : made) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const float value = static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1p-31f;
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        one = static_cast<std::uint16_t>(bits >> 16);
    }
    return made;
}

// Elements of a result that are wrong: not written, or beyond the error of sums in float32, of the function and of rounding to bfloat16.
std::size_t wrong_elements(const Layer &layer, std::int64_t rows, const std::uint16_t *a, const std::uint16_t *b, const std::uint16_t *out)
{
    std::size_t wrong = 0;
    for (std::int64_t at = 0; at < rows * layer.columns; ++at) wrong += out[at] == NOT_WRITTEN;
    std::mt19937_64 draw(1);
    for (int sample = 0; sample < SAMPLES; ++sample) {
        const std::int64_t row = sample & 2 ? rows - 1 : sample < 4 ? 0 : static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(rows));
        const std::int64_t column =
            sample < 4 ? (sample & 1 ? layer.columns - 1 : 0) : static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(layer.columns));
        double sum = 0, size = 0;
        for (std::int64_t k = 0; k < layer.depth; ++k) {
            const double term = wide(a[row * layer.depth + k]) * wide(b[column * layer.depth + k]);
            sum += term;
            size += std::fabs(term);
        }
        const double exact = layer.silu ? sum / (1 + std::exp(-sum)) : sum;
        const double bound = 1.1 * static_cast<double>(layer.depth) * 0x1p-23 * size + 0x1p-8 * std::fabs(exact) + 1e-30;
        wrong += !(std::fabs(wide(out[row * layer.columns + column]) - exact) <= bound);
    }
    return wrong;
}

int run(const llama_t &kernels, CUstream stream)
{
    int wrong_calls = 0;
    for (const Layer &layer : LAYERS) {
        const std::vector<std::uint16_t> a = random_matrix(static_cast<std::size_t>(MOST_ROWS * layer.depth), 1);
        const std::vector<std::uint16_t> b = random_matrix(static_cast<std::size_t>(layer.columns * layer.depth), 2);
        const Memory device_a(2 * a.size()), device_b(2 * b.size());
        REQUIRE(cuMemcpyHtoD(device_a.address, a.data(), 2 * a.size()));
        REQUIRE(cuMemcpyHtoD(device_b.address, b.data(), 2 * b.size()));
        for (const std::int64_t rows : ROWS) {
            if (const char *why = layer.why(rows)) {
                std::printf("%s, %lld rows: %s\n", layer.name, static_cast<long long>(rows), why);
                ++wrong_calls;
                continue;
            }
            std::vector<std::uint16_t> out(static_cast<std::size_t>(rows * layer.columns));
            const std::size_t bytes = layer.workspace_bytes(rows);
            const Memory device_out(2 * out.size()), workspace(bytes);
            REQUIRE(cuMemsetD8Async(device_out.address, 0xff, 2 * out.size(), stream));
            if (bytes > 0) REQUIRE(cuMemsetD8Async(workspace.address, 0, bytes, stream));
            REQUIRE(layer.call(
                &kernels, stream, rows, device_a.elements(), device_b.elements(), device_out.elements(), workspace.elements()));
            REQUIRE(cuStreamSynchronize(stream));
            REQUIRE(cuMemcpyDtoH(out.data(), device_out.address, 2 * out.size()));
            const std::size_t wrong = wrong_elements(layer, rows, a.data(), b.data(), out.data());
            std::printf("C++: %s with %lld rows: %zu wrong\n", layer.name, static_cast<long long>(rows), wrong);
            std::fflush(stdout);
            wrong_calls += wrong > 0;
        }
    }
    return wrong_calls;
}

}  // namespace

int main()
{
    CUdevice device;
    CUcontext context;
    CUstream stream;
    llama_t kernels;
    REQUIRE(cuInit(0));
    REQUIRE(cuDeviceGet(&device, 0));
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device));
    REQUIRE(cuCtxSetCurrent(context));
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    REQUIRE(llama_load(&kernels));
    const int wrong = run(kernels, stream);
    REQUIRE(llama_unload(&kernels));
    REQUIRE(cuStreamDestroy(stream));
    REQUIRE(cuDevicePrimaryCtxRelease(device));
    std::printf("C++: %d calls wrong\n", wrong);
    return wrong > 0;
}
