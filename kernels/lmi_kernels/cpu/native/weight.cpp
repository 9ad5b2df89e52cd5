// Weights in panels. Memory is in huge pages if the system has them. A team fills it, because the first touch of memory
// takes as long as the copy.
//
// A floating-point panel is [in_features][32]. With bf16, columns j and j + 16 are adjacent, so that one load and a
// shift or a mask give two vectors. An int8 panel is [depth / 4][32][4], with four integers of each column adjacent,
// where depth is in_features rounded up to 64. An integer times its column's scale is a number of the rotated column
// (`rotate.inc`). A panel of bf16 pairs is [depth / 2][32][2], where depth is in_features rounded up to 32.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "operations.h"
#include "team.h"

namespace lmi {
namespace {

int64_t panel_count(const Weight& weight) { return (weight.out_features + kPanel - 1) / kPanel; }

int64_t panel_bytes(const Weight& weight) {
  if (weight.storage == kInt8) return depth_of(weight.in_features) * kPanel;
  if (weight.storage == kBf16Pairs) return pairs_depth_of(weight.in_features) * kPanel * 2;
  return weight.in_features * kPanel * (weight.storage == kFp32 ? 4 : 2);
}

constexpr int64_t kTailBytes = 4096;  // after the last panel, for prefetches

int64_t memory_bytes(const Weight& weight) { return panel_count(weight) * panel_bytes(weight) + kTailBytes; }

// One zeroed value per column; null if out of memory.
template <class T>
T* new_column_values(const Weight& weight) {
  return static_cast<T*>(std::calloc(panel_count(weight) * kPanel, sizeof(T)));
}

#define AVX2 __attribute__((target("avx2")))
constexpr int64_t kRows = 8;  // rows transposed together

// Transpose eight units of eight rows; the results are `stride` units apart, and aligned.
AVX2 void transpose(const char* const* rows, int64_t unit, uint32_t* out, int64_t stride) {
  __m256i v[kRows], pairs[kRows], quads[kRows];
  for (int i = 0; i < kRows; ++i) v[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + unit * 4));
  for (int i = 0; i < kRows; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < kRows; ++i) {
    const int from = i / 4 * 4 + i / 2 % 2;
    quads[i] = i % 2 ? _mm256_unpackhi_epi64(pairs[from], pairs[from + 2])
                     : _mm256_unpacklo_epi64(pairs[from], pairs[from + 2]);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
  for (int i = 0; i < kRows; ++i) _mm256_store_si256(reinterpret_cast<__m256i*>(out + i * stride), v[i]);
}

AVX2 void transpose(const char* const* rows, int64_t unit, uint16_t* out, int64_t stride) {
  __m128i v[kRows], pairs[kRows], quads[kRows];
  for (int i = 0; i < kRows; ++i) v[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + unit * 2));
  for (int i = 0; i < kRows; i += 2) {
    pairs[i] = _mm_unpacklo_epi16(v[i], v[i + 1]);
    pairs[i + 1] = _mm_unpackhi_epi16(v[i], v[i + 1]);
  }
  for (int i = 0; i < kRows; ++i) {
    const int from = i / 4 * 4 + i / 2 % 2;
    quads[i] = i % 2 ? _mm_unpackhi_epi32(pairs[from], pairs[from + 2])
                     : _mm_unpacklo_epi32(pairs[from], pairs[from + 2]);
  }
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = _mm_unpacklo_epi64(quads[i], quads[i + 4]);
    v[2 * i + 1] = _mm_unpackhi_epi64(quads[i], quads[i + 4]);
  }
  for (int i = 0; i < kRows; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(out + i * stride), v[i]);
}

// A matrix [num_rows, in_features] of floating-point numbers. Its rows are in several blocks, one after the other.
struct Matrix {
  const void* const* blocks;
  const int64_t* block_sizes;  // rows in each block
  int64_t row_bytes;
  int64_t num_rows;
  bool gated;

  const char* row(int64_t index) const {
    int64_t block = 0;
    for (; index >= block_sizes[block]; ++block) index -= block_sizes[block];
    return static_cast<const char*>(blocks[block]) + index * row_bytes;
  }

  // The row in a column of a panel; -1 beyond the last one. The first half of a gated matrix holds the gates, which are
  // in the first half of each panel.
  int64_t row_at(int64_t panel, int64_t column) const {
    if (!gated) return panel * kPanel + column < num_rows ? panel * kPanel + column : -1;
    const int64_t in_half = panel * 16 + column % 16;
    return in_half < num_rows / 2 ? column / 16 * num_rows / 2 + in_half : -1;
  }
};

constexpr int64_t kTileBytes = 8192;  // part of a panel that is filled in the L1 cache
constexpr int64_t kTileRowBytes = kTileBytes / kPanel;

// Interleave the numbers of two bf16 rows.
AVX2 void interleave(const char* even, const char* odd, int64_t bytes, char* out) {
  int64_t k = 0;
  for (; k + 16 <= bytes; k += 16) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + k));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + k));
    _mm_store_si128(reinterpret_cast<__m128i*>(out + 2 * k), _mm_unpacklo_epi16(a, b));
    _mm_store_si128(reinterpret_cast<__m128i*>(out + 2 * k + 16), _mm_unpackhi_epi16(a, b));
  }
  for (; k < bytes; k += 2) {
    std::memcpy(out + 2 * k, even + k, 2);
    std::memcpy(out + 2 * k + 2, odd + k, 2);
  }
}

// Write `bytes` of every lane to a panel [units][kLanes]. A unit is contiguous both in a lane and in a panel. The panel
// is not needed in a cache, so it is written past the caches, in whole cache lines.
template <class Unit, int64_t kLanes>
AVX2 void transpose_tile(const char* const (&lanes)[kLanes], int64_t bytes, char* panel) {
  alignas(64) Unit tile[kTileBytes / sizeof(Unit)];
  const int64_t size = sizeof(Unit);
  int64_t unit = 0;
  for (; (unit + kRows) * size <= bytes; unit += kRows)
    for (int64_t lane = 0; lane < kLanes; lane += kRows)
      transpose(&lanes[lane], unit, tile + unit * kLanes + lane, kLanes);
  for (; unit * size < bytes; ++unit)
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      Unit& value = tile[unit * kLanes + lane];
      value = 0;
      std::memcpy(&value, lanes[lane] + unit * size, std::min(size, bytes - unit * size));
    }
  const auto* from = reinterpret_cast<const __m256i*>(tile);
  auto* to = reinterpret_cast<__m256i*>(panel);
  for (int64_t k = 0; k < unit * kLanes * size / 32; ++k) _mm256_stream_si256(to + k, from[k]);
}

// Copy 32 rows to a panel, a tile at a time. Null stands for a row of zeros.
template <int32_t kStorage>
void fill_panel(const char* const (&rows)[kPanel], int64_t row_bytes, char* panel) {
  static constexpr char kZeros[kTileRowBytes] = {};
  const char* lanes[kPanel];
  for (int64_t left = 0; left < row_bytes; left += kTileRowBytes, panel += kTileBytes) {
    const int64_t bytes = std::min(kTileRowBytes, row_bytes - left);
    for (int64_t column = 0; column < kPanel; ++column) lanes[column] = rows[column] ? rows[column] + left : kZeros;
    if constexpr (kStorage == kBf16) {
      alignas(64) char pairs[kPanel / 2][2 * kTileRowBytes];
      const char* pair_lanes[kPanel / 2];
      for (int64_t lane = 0; lane < kPanel / 2; ++lane) {
        interleave(lanes[lane], lanes[lane + kPanel / 2], bytes, pairs[lane]);
        pair_lanes[lane] = pairs[lane];
      }
      transpose_tile<uint32_t, kPanel / 2>(pair_lanes, 2 * bytes, panel);
    } else {
      transpose_tile<std::conditional_t<kStorage == kFp16, uint16_t, uint32_t>, kPanel>(lanes, bytes, panel);
    }
  }
}

struct Fill {
  const Weight& weight;
  Matrix matrix;
  int32_t storage;  // of the matrix
  const float* bias;
  float* norms;
  char* scratch;  // int8: [workers, quantized_bytes]
};

// Bytes of scratch for the rows of an int8 panel: one as fp32 numbers, and 32 as integers.
int64_t quantized_bytes(const Weight& weight) { return depth_of(weight.in_features) * (sizeof(float) + kPanel); }

// Quantize row `index` of the matrix for a column of the weight, and return its integers.
const char* quantize(const Fill& fill, int64_t index, int64_t column, char* scratch) {
  const Weight& weight = fill.weight;
  const int64_t depth = depth_of(weight.in_features);
  auto* numbers = reinterpret_cast<float*>(scratch);
  auto* integers = reinterpret_cast<int8_t*>(numbers + depth) + column % kPanel * depth;
  float norms[2];
  active_kernels->quantize_weight_row(fill.matrix.row(index), fill.storage, weight.in_features, numbers, integers,
                                      const_cast<float*>(weight.scales) + column, fill.norms ? norms : nullptr);
  for (int half = 0; fill.norms && half < 2; ++half) fill.norms[half * fill.matrix.num_rows + index] = norms[half];
  int32_t sum = 0;
  for (int64_t k = 0; k < depth; ++k) sum += integers[k];
  const_cast<int32_t*>(weight.sums)[column] = sum;
  return reinterpret_cast<const char*>(integers);
}

void fill(void* argument, Worker& worker) {
  const Fill& fill = *static_cast<const Fill*>(argument);
  const Weight& weight = fill.weight;
  char* scratch = fill.scratch + worker.index() * quantized_bytes(weight);
  const bool integers = weight.storage == kInt8;
  const int64_t bytes = integers ? depth_of(weight.in_features) : fill.matrix.row_bytes;
  const auto fill_one = weight.storage == kBf16   ? fill_panel<kBf16>
                        : weight.storage == kFp16 ? fill_panel<kFp16>
                                                  : fill_panel<kFp32>;
  for (Range panels; (panels = worker.claim(panel_count(weight))).start < panels.stop;)
    for (int64_t panel = panels.start; panel < panels.stop; ++panel) {
      const char* rows[kPanel] = {};
      for (int64_t place = 0; place < kPanel; ++place) {
        const int64_t index = fill.matrix.row_at(panel, place), column = panel * kPanel + place;
        if (index < 0) continue;
        rows[place] = integers ? quantize(fill, index, column, scratch) : fill.matrix.row(index);
        if (fill.bias) const_cast<float*>(weight.bias)[column] = fill.bias[index];
      }
      fill_one(rows, bytes, static_cast<char*>(weight.panels) + panel * panel_bytes(weight));
    }
  _mm_sfence();  // other threads see what was written past the caches
}

// Weights share huge pages, because most are smaller than one. Memory is allocated in zeroed blocks of whole huge
// pages; a block is freed with its last weight. Blocks are large, because the last page of each is mostly unused.
struct Block {
  char* start;
  int64_t bytes, used = 0, num_weights = 0;

  bool holds(const void* memory) const { return memory >= start && memory < start + bytes; }
};

constexpr int64_t kHugePage = 2 << 20, kBlockBytes = 256 << 20;
std::mutex blocks_mutex;
std::vector<Block> blocks;  // new weights go into the last one

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

bool add_block(int64_t bytes) {
  const int64_t mapped = bytes + kHugePage;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  char* first = static_cast<char*>(memory);
  const int64_t before = round_up(reinterpret_cast<int64_t>(first), kHugePage) - reinterpret_cast<int64_t>(first);
  if (before) munmap(first, before);
  if (before < kHugePage) munmap(first + before + bytes, kHugePage - before);
  madvise(first + before, bytes, MADV_HUGEPAGE);
  blocks.push_back({first + before, bytes});
  return true;
}

void* allocate(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(blocks_mutex);
  bytes = round_up(bytes, 64);
  if (blocks.empty() || blocks.back().used + bytes > blocks.back().bytes) {
    if (!add_block(std::max(kBlockBytes, round_up(bytes, kHugePage)))) return nullptr;
  }
  Block& block = blocks.back();
  void* memory = block.start + block.used;
  block.used += bytes;
  ++block.num_weights;
  return memory;
}

void deallocate(const void* memory) {
  const std::lock_guard<std::mutex> lock(blocks_mutex);
  const auto block = std::find_if(blocks.begin(), blocks.end(), [&](const Block& each) { return each.holds(memory); });
  if (--block->num_weights > 0) return;
  munmap(block->start, block->bytes);
  blocks.erase(block);
}

}  // namespace
}  // namespace lmi

using namespace lmi;

EXPORT void lmi_weight_free(Weight* weight) {
  deallocate(weight->panels);
  std::free(const_cast<float*>(weight->bias));
  std::free(const_cast<float*>(weight->scales));
  std::free(const_cast<int32_t*>(weight->sums));
  delete weight;
}

EXPORT Weight* lmi_weight_new(int64_t out_features, int64_t in_features, int32_t storage, int32_t with_bias) {
  auto* weight =
      new (std::nothrow) Weight{nullptr, nullptr, nullptr, nullptr, in_features, out_features, storage, 0};
  if (!weight) return nullptr;
  weight->panels = allocate(memory_bytes(*weight));
  if (!weight->panels) {
    delete weight;
    return nullptr;
  }
  const bool integers = storage == kInt8;
  if (with_bias || integers) weight->bias = new_column_values<float>(*weight);
  if (integers) {
    weight->scales = new_column_values<float>(*weight);
    weight->sums = new_column_values<int32_t>(*weight);
  }
  if (((with_bias || integers) && !weight->bias) || (integers && (!weight->scales || !weight->sums))) {
    lmi_weight_free(weight);
    return nullptr;
  }
  return weight;
}

// Fill a weight with a matrix [num_rows, in_features] of floating-point numbers, in the weight's storage unless it is
// int8. blocks: memory of its rows, block_sizes[i] rows in blocks[i]. storage: of the matrix. bias: [num_rows], or null.
// norms: [2, num_rows], for int8, or null: see `QuantizeWeightRow`. gated: the first half of the rows are the gates of
// the second half. Returns false if out of memory.
EXPORT bool lmi_weight_pack(Team* team, Weight* weight, const void* const* blocks, const int64_t* block_sizes,
                            int32_t storage, const float* bias, float* norms, int64_t num_rows, bool gated) {
  const bool integers = weight->storage == kInt8;
  const std::unique_ptr<char[]> scratch(
      new (std::nothrow) char[integers ? team->size() * quantized_bytes(*weight) : 1]);
  if (!scratch) return false;
  const int64_t row_bytes = weight->in_features * (storage == kFp32 ? 4 : 2);
  Fill argument{*weight, {blocks, block_sizes, row_bytes, num_rows, gated}, storage, bias, norms, scratch.get()};
  team->run(fill, &argument);
  return true;
}
