// How our CUDA kernels are launched and their errors told.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "tautline/base/error.h"

namespace tautline::kernels {

constexpr int kWarp = 32;

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw RankFailure(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

/// After a launch; an error of the device itself shows up at a later call.
inline void check_launch(const char* what) { check_cuda(cudaGetLastError(), what); }

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

inline int multiprocessors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  return count;
}

/// wgmma exists on compute capability 9.0 alone.
inline bool on_hopper() {
  int device = 0, major = 0, minor = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "cudaDeviceGetAttribute");
  return major == 9 && minor == 0;
}

template <class T>
constexpr T divide_up(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace tautline::kernels
