// Memory of the GPU for tests: copies in and out, poisoned until written.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace tautline::gpu {

inline void expect_success(cudaError_t status) {
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    expect_success(
        cudaMalloc(&data_, bytes() + 256));  // never null, so that empties have an address
    expect_success(cudaMemset(data_, 0xFF, bytes() + 256));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    expect_success(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> values(count_);
    expect_success(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t bytes() const { return count_ * sizeof(T); }
  size_t count_;
  T* data_ = nullptr;
};

}  // namespace tautline::gpu
