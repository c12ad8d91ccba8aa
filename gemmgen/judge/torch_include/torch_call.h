// A call of an extension's function on tensors in files, in a fresh process: twice, if a second set of files is named.
#pragma once
#include "torch_tensors.h"

namespace gemmgen_call {
inline std::vector<char> bytes_of_file(const std::string& name) {
  FILE* file = std::fopen(name.c_str(), "rb");
  if (!file) c10::fail("cannot read ", name);
  std::vector<char> found;
  char buffer[65536];
  for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, file)) > 0;) found.insert(found.end(), buffer, buffer + count);
  std::fclose(file);
  return found;
}
inline at::Tensor tensor_in(const std::string& name, const std::vector<int64_t>& shape, c10::ScalarType type) {
  at::Tensor made(shape, type);
  std::vector<char> bytes = bytes_of_file(name);
  if (bytes.size() != made.nbytes()) c10::fail(name, " has another size");
  if (!bytes.empty()) C10_CUDA_CHECK(cudaMemcpy(made.data_ptr(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  return made;
}
inline void write_tensor(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.is_contiguous()) c10::fail("the result ", name, " has gaps");
  std::vector<char> bytes(tensor.nbytes());
  if (!bytes.empty()) C10_CUDA_CHECK(cudaMemcpy(bytes.data(), tensor.data_ptr(), bytes.size(), cudaMemcpyDeviceToHost));
  FILE* file = std::fopen(name.c_str(), "wb");
  if (!file || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() || std::fclose(file)) c10::fail("cannot write ", name);
}
inline void expect(const at::Tensor& tensor, const std::string& name, const std::vector<int64_t>& shape, c10::ScalarType type) {
  if (tensor.sizes() != c10::IntArrayRef(shape) || tensor.scalar_type() != type)
    c10::fail("the result ", name, " is ", tensor.sizes(), " of type ", tensor.scalar_type(), ", expected ", c10::IntArrayRef(shape), " of type ", type);
}
inline std::vector<at::Tensor> results(const at::Tensor& one) { return {one}; }
inline std::vector<at::Tensor> results(const std::vector<at::Tensor>& all) { return all; }
template <typename... Each> std::vector<at::Tensor> results(const std::tuple<Each...>& all) {
  return std::apply([](const auto&... each) { return std::vector<at::Tensor>{each...}; }, all);
}
}  // namespace gemmgen_call
