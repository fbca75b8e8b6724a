// Embedding lookup and fused row-wise Adagrad on a table of 10^8 rows, 2 10^6 ids, Zipf and
// uniform, as shares of ceilings measured in the same run:
//   lookup   the best of plain gathers (one row a group of lanes, no checks, several rows in
//            flight and block sizes) between the same types, over the same ids
//   update   sort of the ids (CUB) + gradients read once, in a row + read-modify-write of the
//            distinct rows and their states (best of several block sizes), each alone
// Usage: bench_embedding_gpu OUT.json COMMIT [ROWS [ONLY]], ONLY as bfloat16/64
#include <cstring>
#include <string>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "tautline/base/random.h"
#include "tautline/kernels/embedding_lookup.h"
#include "tautline/kernels/embedding_update.h"
#include "tautline/kernels/rows.cuh"

#include "gpu_timing.cuh"

namespace tautline::bench {
namespace {

using namespace tautline::kernels;

constexpr int64_t kIds = 2'000'000;

__global__ void fill(uint32_t* words, size_t count, bool halves) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const auto h = static_cast<uint32_t>((i * 0x9E3779B97F4A7C15ull) >> 40);  // 24 bits
    // Values in [-2, 2) of float32, or two of bfloat16.
    words[i] = halves ? (0x3F003F00u | (h & 0x80FFu) | (h & 0x80FF00u) << 8)
                      : 0x3F000000u | (h & 0x7FFFFFu) | (h & 0x800000u) << 8;
  }
}

/// Log-uniform (Zipf with exponent 1), scattered over the table by a multiplication; or uniform.
__global__ void make_ids(int64_t* ids, int64_t count, int64_t rows, bool zipf) {
  const int64_t n = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (n >= count) return;
  const Philox4 bits = philox(1, static_cast<uint32_t>(n), 0, 0, 0);
  const double u = (bits.v[0] * 0x1p-32) + bits.v[1] * 0x1p-64;
  if (!zipf) {
    ids[n] = static_cast<int64_t>(u * static_cast<double>(rows));
    return;
  }
  auto k = static_cast<long long>(exp(u * log(static_cast<double>(rows))));
  k = (k < 1 ? 1 : k > rows ? rows : k) - 1;
  ids[n] = static_cast<int64_t>(static_cast<unsigned long long>(k) * 2654435761ull %
                                static_cast<unsigned long long>(rows));
}

/// The ceiling of a lookup.
template <class From, class To, int kLanes, int kColumns, int kFlight>
__global__ void plain_gather(const From* __restrict__ table, const int64_t* __restrict__ ids,
                             int64_t count, To* __restrict__ out) {
  constexpr int kChunks = kColumns / 4 / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int64_t group = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kLanes * kFlight;
  Quad value[kFlight][kChunks];
#pragma unroll
  for (int f = 0; f < kFlight; ++f)
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      if (group + f < count)
        value[f][c] = load_quad(table + ids[group + f] * kColumns + 4 * (c * kLanes + lane));
#pragma unroll
  for (int f = 0; f < kFlight; ++f)
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      if (group + f < count)
        store_quad<Reuse::kOnce>(out + (group + f) * kColumns + 4 * (c * kLanes + lane),
                                 value[f][c]);
}

template <class From, class To, int kColumns, int kFlight>
double gather_seconds(const void* table, const int64_t* ids, void* out, int threads) {
  constexpr int kLanes = kColumns / 4 < 32 ? kColumns / 4 : 32;
  const auto blocks = static_cast<unsigned>(divide_up(kIds * kLanes, int64_t{threads} * kFlight));
  return median_seconds(
      [&] {
        plain_gather<From, To, kLanes, kColumns, kFlight><<<blocks, threads>>>(
            static_cast<const From*>(table), ids, kIds, static_cast<To*>(out));
      },
      9, 2);
}

template <class From, class To, int kColumns>
double gather_ceiling(const void* table, const int64_t* ids, void* out) {
  double best = 1e9;
  for (const int threads : {128, 256, 512}) {
    best = std::min(best, gather_seconds<From, To, kColumns, 1>(table, ids, out, threads));
    best = std::min(best, gather_seconds<From, To, kColumns, 2>(table, ids, out, threads));
    best = std::min(best, gather_seconds<From, To, kColumns, 4>(table, ids, out, threads));
    if (kColumns < 256)
      best = std::min(best, gather_seconds<From, To, kColumns, 8>(table, ids, out, threads));
  }
  return best;
}

/// Reads every word once; writes nothing that matters.
__global__ void read_all(const uint4* in, size_t count, uint32_t* out) {
  uint32_t sum = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint4 v = __ldcs(in + i);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678u) *out = sum;
}

/// Reads, changes and writes the distinct rows and their states.
template <class T, int kLanes, int kColumns, int kFlight>
__global__ void touch_rows(T* table, float* state, const uint32_t* rows, uint32_t count) {
  constexpr int kChunks = kColumns / 4 / kLanes;
  const int lane = threadIdx.x % kLanes;
  const uint32_t group = (blockIdx.x * blockDim.x + threadIdx.x) / kLanes * kFlight;
  Quad value[kFlight][kChunks];
  float s[kFlight];
#pragma unroll
  for (int f = 0; f < kFlight; ++f)
    if (group + f < count) {
      const int64_t row = rows[group + f];
      s[f] = state[row];
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        value[f][c] = load_quad<Reuse::kOnce>(table + row * kColumns + 4 * (c * kLanes + lane));
    }
#pragma unroll
  for (int f = 0; f < kFlight; ++f)
    if (group + f < count) {
      const int64_t row = rows[group + f];
      if (lane == 0) state[row] = s[f] + 1e-9f;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) value[f][c].v[i] *= 1.0001f;
        store_quad<Reuse::kOnce>(table + row * kColumns + 4 * (c * kLanes + lane), value[f][c]);
      }
    }
}

template <class T, int kColumns, int kFlight>
double touch_seconds(void* table, float* state, const uint32_t* rows, uint32_t count, int threads) {
  constexpr int kLanes = kColumns / 4 < 32 ? kColumns / 4 : 32;
  const auto blocks =
      static_cast<unsigned>(divide_up(int64_t{count} * kLanes, int64_t{threads} * kFlight));
  return median_seconds(
      [&] {
        touch_rows<T, kLanes, kColumns, kFlight>
            <<<blocks, threads>>>(static_cast<T*>(table), state, rows, count);
      },
      9, 2);
}

template <class T, int kColumns>
double touch_ceiling(void* table, float* state, const uint32_t* rows, uint32_t count) {
  double best = 1e9;
  for (const int threads : {128, 256, 512}) {
    best = std::min(best, touch_seconds<T, kColumns, 1>(table, state, rows, count, threads));
    best = std::min(best, touch_seconds<T, kColumns, 2>(table, state, rows, count, threads));
    best = std::min(best, touch_seconds<T, kColumns, 4>(table, state, rows, count, threads));
  }
  return best;
}

template <class T>
T* allocate(size_t count) {
  void* at = nullptr;
  check(cudaMalloc(&at, count * sizeof(T)));
  return static_cast<T*>(at);
}

__global__ void narrow_ids(const int64_t* ids, int64_t count, uint32_t* keys, uint32_t* positions) {
  const int64_t n = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (n >= count) return;
  keys[n] = static_cast<uint32_t>(ids[n]);
  positions[n] = static_cast<uint32_t>(n);
}

/// The ids of one distribution, sorted and distinct, and how long the sort takes.
struct Ids {
  const char* name;
  int64_t* ids = allocate<int64_t>(kIds);
  uint32_t* distinct = allocate<uint32_t>(kIds);
  uint32_t distinct_count = 0;
  double sort_seconds = 0;

  Ids(const char* name, int64_t rows, bool zipf) : name(name) {
    const auto blocks = static_cast<unsigned>(divide_up(kIds, int64_t{256}));
    make_ids<<<blocks, 256>>>(ids, kIds, rows, zipf);
    auto *keys = allocate<uint32_t>(kIds), *sorted = allocate<uint32_t>(kIds);
    auto *positions = allocate<uint32_t>(kIds), *order = allocate<uint32_t>(kIds);
    auto* count = allocate<uint32_t>(1);
    narrow_ids<<<blocks, 256>>>(ids, kIds, keys, positions);
    int bits = 1;
    while (rows >> bits) ++bits;
    size_t bytes = 0, unique_bytes = 0;
    check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, positions, order, kIds, 0,
                                          bits));
    check(cub::DeviceSelect::Unique(nullptr, unique_bytes, sorted, distinct, count, kIds));
    char* scratch = allocate<char>(std::max(bytes, unique_bytes));
    sort_seconds = median_seconds([&] {
      check(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted, positions, order, kIds, 0,
                                            bits));
    });
    check(cub::DeviceSelect::Unique(scratch, unique_bytes, sorted, distinct, count, kIds));
    check(cudaMemcpy(&distinct_count, count, sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (void* at :
         {static_cast<void*>(keys), static_cast<void*>(sorted), static_cast<void*>(positions),
          static_cast<void*>(order), static_cast<void*>(count), static_cast<void*>(scratch)})
      check(cudaFree(at));
  }
};

const char* name_of(Element element) {
  return element == Element::kFloat32    ? "float32"
         : element == Element::kBFloat16 ? "bfloat16"
                                         : "float16";
}

/// Everything that one table width needs, and the lines of the result.
struct Bench {
  int64_t rows;
  double copy;  // bytes a second
  char* table;
  float* state;
  char *values, *workspace;  // outputs or gradients; of the update
  uint32_t* sink = allocate<uint32_t>(1);
  std::string only, json;

  void line(const char* kernel, Element table_type, Element other, int64_t width, const Ids& ids,
            double seconds, double ceiling, double bytes, const std::string& parts) {
    const double share = ceiling / seconds, of_copy = bytes / seconds / copy;
    std::printf(
        "%-7s d=%-4ld rows %-8s %s %-8s ids %-8s %7.3f ms  ceiling %7.3f ms  %5.1f %% of it  "
        "%5.1f %% of copy\n",
        kernel, static_cast<long>(width), name_of(table_type),
        kernel[0] == 'l' ? "out" : "gradients", name_of(other), ids.name, seconds * 1e3,
        ceiling * 1e3, share * 100, of_copy * 100);
    char text[512];
    std::snprintf(text, sizeof text,
                  "    {\"kernel\": \"%s\", \"width\": %ld, \"table\": \"%s\", \"%s\": \"%s\", "
                  "\"ids\": \"%s\", \"distinct\": %u, \"ms\": %.4f, \"ceiling_ms\": %.4f, "
                  "\"ceiling_share\": %.4f, \"copy_share\": %.4f%s}",
                  kernel, static_cast<long>(width), name_of(table_type),
                  kernel[0] == 'l' ? "out" : "gradients", name_of(other), ids.name,
                  ids.distinct_count, seconds * 1e3, ceiling * 1e3, share, of_copy, parts.c_str());
    json += json.empty() ? text : std::string(",\n") + text;
  }

  template <class From, class To, int kColumns>
  void lookup(Element from, Element to, const Ids& ids) {
    Lookup p;
    p.table = table;
    p.table_type = from;
    p.table_rows = rows;
    p.width = kColumns;
    p.rows = ids.ids;
    p.count = kIds;
    p.out = values;
    p.out_type = to;
    const double seconds = median_seconds([&] { lookup_cuda(p); });
    const double ceiling = gather_ceiling<From, To, kColumns>(table, ids.ids, values);
    const double bytes = kIds * (8.0 + kColumns * (sizeof(From) + sizeof(To)));
    line("lookup", from, to, kColumns, ids, seconds, ceiling, bytes, "");
  }

  template <class Table, class Gradient, int kColumns>
  void update(Element table_type, Element type, const Ids& ids) {
    RowUpdate p;
    p.table = table;
    p.table_type = table_type;
    p.table_rows = rows;
    p.width = kColumns;
    p.state = state;
    p.lr = 1e-3f;
    p.eps = 1e-8f;
    RowGradients g{ids.ids, values, type, kIds, kColumns, rows};
    const double seconds = median_seconds([&] { update_rows_cuda(p, g, workspace); });
    const size_t words = kIds * kColumns * sizeof(Gradient) / 16;
    double read = 1e9;
    for (const int blocks : {132 * 8, 132 * 16})
      read =
          std::min(read, median_seconds([&] {
                     read_all<<<blocks, 256>>>(reinterpret_cast<const uint4*>(values), words, sink);
                   }));
    const double touch =
        touch_ceiling<Table, kColumns>(table, state, ids.distinct, ids.distinct_count);
    char parts[160];
    std::snprintf(parts, sizeof parts,
                  ", \"sort_ms\": %.4f, \"read_gradients_ms\": %.4f, \"touch_rows_ms\": %.4f",
                  ids.sort_seconds * 1e3, read * 1e3, touch * 1e3);
    const double bytes = kIds * (8.0 + kColumns * sizeof(Gradient)) +
                         ids.distinct_count * (2.0 * kColumns * sizeof(Table) + 8);
    line("update", table_type, type, kColumns, ids, seconds, ids.sort_seconds + read + touch, bytes,
         parts);
  }

  template <class T, int kColumns>
  void table_of(Element element, const Ids (&ids)[2]) {
    if (!only.empty() && only != std::string(name_of(element)) + "/" + std::to_string(kColumns))
      return;
    const size_t bytes = static_cast<size_t>(rows) * kColumns * sizeof(T);
    for (const Ids& i : ids) {
      fill<<<132 * 16, 512>>>(reinterpret_cast<uint32_t*>(table), bytes / 4, sizeof(T) == 2);
      check(cudaMemset(state, 0, static_cast<size_t>(rows) * 4));
      lookup<T, float, kColumns>(element, Element::kFloat32, i);
      lookup<T, BFloat16, kColumns>(element, Element::kBFloat16, i);
      fill<<<132 * 16, 512>>>(reinterpret_cast<uint32_t*>(values), kIds * kColumns, false);
      update<T, float, kColumns>(element, Element::kFloat32, i);
      fill<<<132 * 16, 512>>>(reinterpret_cast<uint32_t*>(values), kIds * kColumns / 2, true);
      update<T, BFloat16, kColumns>(element, Element::kBFloat16, i);
    }
  }
};

int run(const char* path, const char* commit, int64_t rows, const char* only) {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver));
  check(cudaRuntimeGetVersion(&runtime));
  const size_t values = kIds * 256 * 4;
  Bench bench{rows,
              0,
              allocate<char>(static_cast<size_t>(rows) * 256 * 4),
              allocate<float>(static_cast<size_t>(rows)),
              allocate<char>(values),
              allocate<char>(update_workspace_bytes(kIds, 256, rows))};
  bench.only = only;
  bench.copy = copy_rate(bench.table, bench.table + (size_t{4} << 30), size_t{4} << 30);
  std::printf("%s, driver %d, runtime %d, copy %.2f TB/s\n", device.name, driver, runtime,
              bench.copy * 1e-12);
  const Ids ids[2] = {{"zipf", rows, true}, {"uniform", rows, false}};
  for (const Ids& i : ids)
    std::printf("%s: %.2f M distinct of %.2f M, sort %.3f ms\n", i.name, i.distinct_count * 1e-6,
                kIds * 1e-6, i.sort_seconds * 1e3);
  bench.table_of<float, 64>(Element::kFloat32, ids);
  bench.table_of<float, 128>(Element::kFloat32, ids);
  bench.table_of<float, 256>(Element::kFloat32, ids);
  bench.table_of<BFloat16, 64>(Element::kBFloat16, ids);
  bench.table_of<BFloat16, 128>(Element::kBFloat16, ids);
  bench.table_of<BFloat16, 256>(Element::kBFloat16, ids);
  std::FILE* out = std::fopen(path, "w");
  if (out == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", path);
    return 1;
  }
  std::fprintf(out,
               "{\n  \"device\": \"%s\", \"driver\": %d, \"runtime\": %d, \"nvcc\": \"%d.%d.%d\", "
               "\"commit\": \"%s\",\n  \"rows\": %ld, \"ids\": %ld, \"copy_tb_per_s\": %.4f,\n  "
               "\"results\": [\n%s\n  ]\n}\n",
               device.name, driver, runtime, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__,
               __CUDACC_VER_BUILD__, commit, static_cast<long>(rows), static_cast<long>(kIds),
               bench.copy * 1e-12, bench.json.c_str());
  return std::fclose(out);
}

}  // namespace
}  // namespace tautline::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_embedding_gpu OUT.json COMMIT [ROWS [ONLY]]\n");
    return 2;
  }
  return tautline::bench::run(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 100'000'000,
                              argc > 4 ? argv[4] : "");
}
