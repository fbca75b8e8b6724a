// Timing on the GPU for the benches: median of CUDA-event timings after warm-up, with the host's
// launch time hidden behind a kernel that spins, and the copy rate as the ceiling of everything.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

namespace tautline::bench {

inline void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

namespace {
__global__ void spin(long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {
  }
}
__global__ void copy_words(const uint4* in, uint4* out, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    out[i] = in[i];
}
}  // namespace

/// Median seconds of `run()`.
template <class Run>
double median_seconds(Run&& run, int repeats = 15, int warm_up = 3) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < warm_up + repeats; ++i) {
    spin<<<1, 1>>>(500000);  // about 0.3 ms
    check(cudaEventRecord(begin));
    run();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= warm_up) times.push_back(milliseconds * 1e-3);
  }
  check(cudaGetLastError());
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

/// Bytes read and written a second by a plain copy between two buffers of `bytes`: the better of
/// ours and cudaMemcpy.
inline double copy_rate(const void* from, void* to, size_t bytes) {
  const double ours = median_seconds([&] {
    copy_words<<<132 * 16, 512>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to),
                                  bytes / 16);
  });
  const double theirs =
      median_seconds([&] { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice)); });
  return 2.0 * static_cast<double>(bytes) / std::min(ours, theirs);
}

}  // namespace tautline::bench
