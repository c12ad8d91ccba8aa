// Tensors of torch's C++ interface, as far as extensions with kernels of their own use them: storage on the device, shapes,
// strides and types. `gemmgen judge` compiles an extension with this header in place of torch's; operators of torch are not here.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace c10 {
using Half = __half;
using BFloat16 = __nv_bfloat16;
enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, Bool, BFloat16 };
enum class DeviceType : int8_t { CPU, CUDA };
using DeviceIndex = int8_t;

struct Error : std::runtime_error { using std::runtime_error::runtime_error; };

inline size_t bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Bool: return 1;
    case ScalarType::Short: case ScalarType::Half: case ScalarType::BFloat16: return 2;
    case ScalarType::Int: case ScalarType::Float: return 4;
    default: return 8;
  }
}
inline const char* toString(ScalarType type) {
  static const char* names[] = {"Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "Bool", "BFloat16"};
  return names[int(type)];
}
inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }

template <typename T> struct TypeOf;
#define GEMMGEN_TYPE(T, NAME) template <> struct TypeOf<T> { static constexpr ScalarType value = ScalarType::NAME; };
GEMMGEN_TYPE(uint8_t, Byte) GEMMGEN_TYPE(int8_t, Char) GEMMGEN_TYPE(int16_t, Short) GEMMGEN_TYPE(int32_t, Int) GEMMGEN_TYPE(int64_t, Long)
GEMMGEN_TYPE(long long, Long)
GEMMGEN_TYPE(Half, Half) GEMMGEN_TYPE(float, Float) GEMMGEN_TYPE(double, Double) GEMMGEN_TYPE(bool, Bool) GEMMGEN_TYPE(BFloat16, BFloat16)
#undef GEMMGEN_TYPE
template <typename T> using CppTypeToScalarType = TypeOf<T>;

template <typename... Parts> [[noreturn]] inline void fail(const Parts&... parts) {
  std::ostringstream text;
  (void)std::initializer_list<int>{((void)(text << parts), 0)...};
  throw Error(text.str());
}

struct IntArrayRef {
  IntArrayRef(const std::vector<int64_t>& values) : own(values) {}
  IntArrayRef(std::initializer_list<int64_t> values) : own(values) {}
  template <size_t N> IntArrayRef(const int64_t (&values)[N]) : own(values, values + N) {}
  IntArrayRef(int64_t value) : own{value} {}
  size_t size() const { return own.size(); }
  int64_t operator[](size_t axis) const { return own.at(axis); }
  const int64_t* begin() const { return own.data(); }
  const int64_t* end() const { return own.data() + own.size(); }
  const int64_t* data() const { return own.data(); }
  std::vector<int64_t> vec() const { return own; }
  bool equals(const IntArrayRef& other) const { return own == other.own; }
  friend bool operator==(const IntArrayRef& a, const IntArrayRef& b) { return a.own == b.own; }
  friend bool operator!=(const IntArrayRef& a, const IntArrayRef& b) { return a.own != b.own; }
  friend std::ostream& operator<<(std::ostream& out, const IntArrayRef& shape) {
    out << '[';
    for (size_t axis = 0; axis < shape.size(); ++axis) out << (axis ? ", " : "") << shape[axis];
    return out << ']';
  }
  std::vector<int64_t> own;
};

struct Device {
  Device(DeviceType type = DeviceType::CUDA, DeviceIndex index = 0) : kind(type), number(index) {}
  Device(const char* name) : kind(std::strncmp(name, "cuda", 4) ? DeviceType::CPU : DeviceType::CUDA), number(0) {}
  DeviceType type() const { return kind; }
  DeviceIndex index() const { return number; }
  bool is_cuda() const { return kind == DeviceType::CUDA; }
  bool is_cpu() const { return kind == DeviceType::CPU; }
  bool operator==(const Device& other) const { return kind == other.kind; }
  bool operator!=(const Device& other) const { return kind != other.kind; }
  friend std::ostream& operator<<(std::ostream& out, const Device& device) { return out << (device.is_cuda() ? "cuda:0" : "cpu"); }
  DeviceType kind;
  DeviceIndex number;
};

struct TensorOptions {
  TensorOptions() = default;
  TensorOptions(ScalarType own) : type(own) {}
  TensorOptions(Device) {}
  TensorOptions(DeviceType) {}
  TensorOptions dtype(ScalarType own) const { TensorOptions made = *this; made.type = own; return made; }
  template <typename T> TensorOptions dtype() const { return dtype(TypeOf<T>::value); }
  ScalarType dtype() const { return type; }
  TensorOptions device(Device) const { return *this; }
  TensorOptions device(DeviceType, DeviceIndex = 0) const { return *this; }
  Device device() const { return Device(); }
  TensorOptions layout(int) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
  TensorOptions memory_format(int) const { return *this; }
  ScalarType type = ScalarType::Float;
};
}  // namespace c10

#define TORCH_CHECK(CONDITION, ...) do { if (!(CONDITION)) ::c10::fail("check failed: " #CONDITION " ", ##__VA_ARGS__); } while (0)
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define TORCH_CHECK_EQ(A, B) TORCH_CHECK((A) == (B))
#define AT_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ERROR(...) ::c10::fail(__VA_ARGS__)
#define C10_CUDA_CHECK(CALL) do { cudaError_t gemmgen_error = (CALL); if (gemmgen_error) ::c10::fail("CUDA error: ", cudaGetErrorString(gemmgen_error)); } while (0)
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())

namespace at {
using namespace c10;
template <typename T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <typename T> struct DefaultPtrTraits { typedef T* PtrType; };

// An element of a tensor in a kernel, by its indices.
template <typename T, size_t N, template <typename> class Traits, typename Index> struct Accessor {
  __host__ __device__ Accessor(T* data, const Index* sizes, const Index* strides) : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ Accessor<T, N - 1, Traits, Index> operator[](Index i) const { return {data_ + i * strides_[0], sizes_ + 1, strides_ + 1}; }
  __host__ __device__ Index size(Index axis) const { return sizes_[axis]; }
  T* data_; const Index* sizes_; const Index* strides_;
};
template <typename T, template <typename> class Traits, typename Index> struct Accessor<T, 1, Traits, Index> {
  __host__ __device__ Accessor(T* data, const Index* sizes, const Index* strides) : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ T& operator[](Index i) const { return data_[i * strides_[0]]; }
  __host__ __device__ Index size(Index axis) const { return sizes_[axis]; }
  T* data_; const Index* sizes_; const Index* strides_;
};
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits, typename Index = int64_t> struct PackedTensorAccessor {
  __host__ __device__ Index size(Index axis) const { return sizes_[axis]; }
  __host__ __device__ Index stride(Index axis) const { return strides_[axis]; }
  __host__ __device__ T* data() const { return data_; }
  __device__ auto operator[](Index i) const { return first<N>(i); }
  template <size_t M> __device__ typename std::enable_if<(M > 1), Accessor<T, (M > 1 ? M - 1 : 1), Traits, Index>>::type first(Index i) const {
    return {data_ + i * strides_[0], sizes_ + 1, strides_ + 1};
  }
  template <size_t M> __device__ typename std::enable_if<M == 1, T&>::type first(Index i) const { return data_[i * strides_[0]]; }
  T* data_; Index sizes_[N]; Index strides_[N];
};
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits> using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Traits, int32_t>;
template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits> using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Traits, int64_t>;

struct Tensor {
  Tensor() = default;
  Tensor(std::vector<int64_t> shape, ScalarType type) : sizes_(std::move(shape)), type_(type) {
    strides_.assign(sizes_.size(), 1);
    for (size_t axis = sizes_.size(); axis-- > 1;) strides_[axis - 1] = strides_[axis] * (sizes_[axis] ? sizes_[axis] : 1);
    for (int64_t extent : sizes_) if (extent < 0) fail("a tensor with a negative extent");
    void* pointer = nullptr;
    if (nbytes()) C10_CUDA_CHECK(cudaMalloc(&pointer, nbytes()));
    storage_ = std::shared_ptr<void>(pointer, [](void* own) { if (own) cudaFree(own); });
  }
  bool defined() const { return storage_ != nullptr || !sizes_.empty(); }
  int64_t dim() const { return int64_t(sizes_.size()); }
  int64_t ndimension() const { return dim(); }
  int64_t axis_of(int64_t axis) const {
    if (axis < -dim() || axis >= dim()) fail("axis ", axis, " of a tensor with ", dim(), " axes");
    return axis < 0 ? axis + dim() : axis;
  }
  int64_t size(int64_t axis) const { return sizes_[axis_of(axis)]; }
  int64_t stride(int64_t axis) const { return strides_[axis_of(axis)]; }
  IntArrayRef sizes() const { return sizes_; }
  IntArrayRef strides() const { return strides_; }
  int64_t numel() const { int64_t count = 1; for (int64_t extent : sizes_) count *= extent; return count; }
  size_t element_size() const { return bytes_of(type_); }
  size_t itemsize() const { return bytes_of(type_); }
  size_t nbytes() const { return size_t(numel()) * bytes_of(type_); }
  ScalarType scalar_type() const { return type_; }
  ScalarType dtype() const { return type_; }
  Device device() const { return Device(); }
  DeviceIndex get_device() const { return 0; }
  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
  bool requires_grad() const { return false; }
  bool is_floating_point() const { return type_ == ScalarType::Float || type_ == ScalarType::Double || type_ == ScalarType::Half || type_ == ScalarType::BFloat16; }
  bool is_contiguous(int = 0) const {
    int64_t step = 1;
    for (size_t axis = sizes_.size(); axis-- > 0;) {
      if (sizes_[axis] != 1 && strides_[axis] != step) return false;
      step *= sizes_[axis];
    }
    return true;
  }
  Tensor contiguous(int = 0) const {
    if (!is_contiguous()) fail("contiguous() of a tensor with gaps, which copies with an operator of torch's");
    return *this;
  }
  TensorOptions options() const { return TensorOptions(type_); }
  template <typename T> T* data_ptr() const {
    if (TypeOf<typename std::remove_const<T>::type>::value != type_) fail("expected elements of type ", TypeOf<typename std::remove_const<T>::type>::value, ", got ", type_);
    return static_cast<T*>(data_ptr());
  }
  void* data_ptr() const { return storage_ ? static_cast<char*>(storage_.get()) + offset_ * bytes_of(type_) : nullptr; }
  template <typename T> const T* const_data_ptr() const { return data_ptr<T>(); }
  template <typename T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <typename T> T* data() const { return data_ptr<T>(); }
  Tensor view(IntArrayRef shape) const {
    if (!is_contiguous()) fail("view of a tensor with gaps");
    Tensor made = *this;
    made.sizes_ = shape.vec();
    int64_t known = 1, open = -1;
    for (size_t axis = 0; axis < made.sizes_.size(); ++axis) { if (made.sizes_[axis] == -1) open = int64_t(axis); else known *= made.sizes_[axis]; }
    if (open >= 0) made.sizes_[open] = known ? numel() / known : 0;
    if (made.numel() != numel()) fail("a view of shape ", shape, " on ", numel(), " elements");
    made.strides_.assign(made.sizes_.size(), 1);
    for (size_t axis = made.sizes_.size(); axis-- > 1;) made.strides_[axis - 1] = made.strides_[axis] * (made.sizes_[axis] ? made.sizes_[axis] : 1);
    return made;
  }
  Tensor reshape(IntArrayRef shape) const { return view(shape); }
  Tensor flatten() const { return view({numel()}); }
  Tensor transpose(int64_t a, int64_t b) const {
    Tensor made = *this;
    std::swap(made.sizes_[axis_of(a)], made.sizes_[axis_of(b)]);
    std::swap(made.strides_[axis_of(a)], made.strides_[axis_of(b)]);
    return made;
  }
  Tensor t() const { return transpose(0, 1); }
  Tensor unsqueeze(int64_t axis) const {
    Tensor made = *this;
    axis = axis < 0 ? axis + dim() + 1 : axis;
    made.sizes_.insert(made.sizes_.begin() + axis, 1);
    made.strides_.insert(made.strides_.begin() + axis, 1);
    return made;
  }
  Tensor squeeze(int64_t axis) const {
    Tensor made = *this;
    axis = axis_of(axis);
    if (sizes_[axis] == 1) { made.sizes_.erase(made.sizes_.begin() + axis); made.strides_.erase(made.strides_.begin() + axis); }
    return made;
  }
  Tensor detach() const { return *this; }
  Tensor clone() const {
    Tensor made(contiguous().sizes_, type_);
    if (nbytes()) C10_CUDA_CHECK(cudaMemcpy(made.data_ptr(), data_ptr(), nbytes(), cudaMemcpyDeviceToDevice));
    return made;
  }
  Tensor& zero_() {
    contiguous();
    if (nbytes()) C10_CUDA_CHECK(cudaMemset(data_ptr(), 0, nbytes()));
    return *this;
  }
  const Tensor& zero_() const { Tensor(*this).zero_(); return *this; }
  template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits, typename Index = int64_t>
  PackedTensorAccessor<T, N, Traits, Index> packed_accessor() const {
    if (dim() != int64_t(N)) fail("an accessor with ", N, " axes to a tensor with ", dim());
    PackedTensorAccessor<T, N, Traits, Index> made;
    made.data_ = data_ptr<T>();
    for (size_t axis = 0; axis < N; ++axis) { made.sizes_[axis] = Index(sizes_[axis]); made.strides_[axis] = Index(strides_[axis]); }
    return made;
  }
  template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits> PackedTensorAccessor32<T, N, Traits> packed_accessor32() const { return packed_accessor<T, N, Traits, int32_t>(); }
  template <typename T, size_t N, template <typename> class Traits = DefaultPtrTraits> PackedTensorAccessor64<T, N, Traits> packed_accessor64() const { return packed_accessor<T, N, Traits, int64_t>(); }

  std::shared_ptr<void> storage_;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  ScalarType type_ = ScalarType::Float;
};

inline Tensor empty(IntArrayRef shape, TensorOptions options = {}) { return Tensor(shape.vec(), options.type); }
inline Tensor zeros(IntArrayRef shape, TensorOptions options = {}) { Tensor made = empty(shape, options); made.zero_(); return made; }
inline Tensor empty_like(const Tensor& other) { return Tensor(other.sizes_, other.type_); }
inline Tensor empty_like(const Tensor& other, TensorOptions options) { return Tensor(other.sizes_, options.type); }
inline Tensor zeros_like(const Tensor& other) { Tensor made = empty_like(other); made.zero_(); return made; }
inline Tensor zeros_like(const Tensor& other, TensorOptions options) { Tensor made = empty_like(other, options); made.zero_(); return made; }
using TensorList = std::vector<Tensor>;
constexpr int kStrided = 0;

namespace cuda {
struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
  void synchronize() const { cudaStreamSynchronize(nullptr); }
};
inline CUDAStream getCurrentCUDAStream(int = 0) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = 0) { return {}; }
struct CUDAGuard { CUDAGuard(Device) {} explicit CUDAGuard(int) {} };
struct OptionalCUDAGuard { OptionalCUDAGuard() {} OptionalCUDAGuard(Device) {} };
inline cudaDeviceProp* getCurrentDeviceProperties() { static cudaDeviceProp made; cudaGetDeviceProperties(&made, 0); return &made; }
}  // namespace cuda
constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short, kInt = ScalarType::Int, kLong = ScalarType::Long,
                     kHalf = ScalarType::Half, kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16;
constexpr DeviceType kCUDA = DeviceType::CUDA, kCPU = DeviceType::CPU;
}  // namespace at

namespace c10 { namespace cuda {
using at::cuda::CUDAGuard; using at::cuda::CUDAStream; using at::cuda::OptionalCUDAGuard; using at::cuda::getCurrentCUDAStream;
} }

namespace torch {
using namespace at;
constexpr ScalarType kUInt8 = at::kByte, kInt8 = at::kChar, kInt16 = at::kShort, kInt32 = at::kInt, kInt64 = at::kLong, kFloat16 = at::kHalf, kFloat32 = at::kFloat, kFloat64 = at::kDouble;
using Dtype = ScalarType;
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(Device) { return TensorOptions(); }
}  // namespace torch
namespace at { using torch::kUInt8; using torch::kInt8; using torch::kInt32; using torch::kInt64; using torch::kFloat16; using torch::kFloat32; using torch::kFloat64; }

#define GEMMGEN_CASE(ENUM, TYPE, ...) case ENUM: { using scalar_t = TYPE; __VA_ARGS__(); break; }
#define GEMMGEN_SWITCH(OWN, NAME, CASES) \
  [&] { const ::c10::ScalarType gemmgen_type = ::c10::scalar_type_of(OWN); switch (gemmgen_type) { CASES default: ::c10::fail(NAME, " is not implemented for ", gemmgen_type); } }()
namespace c10 { inline ScalarType scalar_type_of(ScalarType type) { return type; } }
#define GEMMGEN_FLOATS(...) GEMMGEN_CASE(::c10::ScalarType::Float, float, __VA_ARGS__) GEMMGEN_CASE(::c10::ScalarType::Double, double, __VA_ARGS__)
#define GEMMGEN_HALF(...) GEMMGEN_CASE(::c10::ScalarType::Half, ::c10::Half, __VA_ARGS__)
#define GEMMGEN_INTEGERS(...) \
  GEMMGEN_CASE(::c10::ScalarType::Byte, uint8_t, __VA_ARGS__) GEMMGEN_CASE(::c10::ScalarType::Char, int8_t, __VA_ARGS__) \
  GEMMGEN_CASE(::c10::ScalarType::Short, int16_t, __VA_ARGS__) GEMMGEN_CASE(::c10::ScalarType::Int, int32_t, __VA_ARGS__) \
  GEMMGEN_CASE(::c10::ScalarType::Long, int64_t, __VA_ARGS__)
template <c10::ScalarType> struct GemmgenTypeNamed;
template <> struct GemmgenTypeNamed<c10::ScalarType::Half> { using type = c10::Half; };
template <> struct GemmgenTypeNamed<c10::ScalarType::BFloat16> { using type = c10::BFloat16; };
template <> struct GemmgenTypeNamed<c10::ScalarType::Bool> { using type = bool; };
#define GEMMGEN_NAMED(ENUM, ...) GEMMGEN_CASE(ENUM, GemmgenTypeNamed<ENUM>::type, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) GEMMGEN_SWITCH(TYPE, NAME, GEMMGEN_FLOATS(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) GEMMGEN_SWITCH(TYPE, NAME, GEMMGEN_FLOATS(__VA_ARGS__) GEMMGEN_HALF(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(ONE, TYPE, NAME, ...) GEMMGEN_SWITCH(TYPE, NAME, GEMMGEN_FLOATS(__VA_ARGS__) GEMMGEN_NAMED(ONE, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(ONE, TWO, TYPE, NAME, ...) \
  GEMMGEN_SWITCH(TYPE, NAME, GEMMGEN_FLOATS(__VA_ARGS__) GEMMGEN_NAMED(ONE, __VA_ARGS__) GEMMGEN_NAMED(TWO, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) GEMMGEN_SWITCH(TYPE, NAME, GEMMGEN_FLOATS(__VA_ARGS__) GEMMGEN_INTEGERS(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) GEMMGEN_SWITCH(TYPE, NAME, GEMMGEN_INTEGERS(__VA_ARGS__))

// Bindings name functions for Python, which the judge calls by their names in C++.
namespace gemmgen_torch { struct Module { template <typename... Given> Module& def(const Given&...) { return *this; } template <typename... Given> Module& impl(const Given&...) { return *this; } }; }
#define TORCH_EXTENSION_NAME extension
#define PYBIND11_MODULE(NAME, MODULE) static void gemmgen_bindings([[maybe_unused]] gemmgen_torch::Module& MODULE)
#define TORCH_LIBRARY(NAME, MODULE) static void gemmgen_library([[maybe_unused]] gemmgen_torch::Module& MODULE)
#define TORCH_LIBRARY_IMPL(NAME, KEY, MODULE) static void gemmgen_library_impl([[maybe_unused]] gemmgen_torch::Module& MODULE)
#define TORCH_LIBRARY_FRAGMENT(NAME, MODULE) static void gemmgen_library_fragment([[maybe_unused]] gemmgen_torch::Module& MODULE)
namespace pybind11 {
struct arg {
  explicit arg(const char*) {}
  template <typename T> arg& operator=(const T&) { return *this; }
};
}  // namespace pybind11
namespace py = pybind11;
