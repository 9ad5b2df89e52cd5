// Weights in panels. Memory is in huge pages if the system has them, and is filled piecewise as a checkpoint is read.
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
#include <mutex>
#include <new>
#include <vector>

#include "native.h"

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

char* panel_of(const Weight& weight, int64_t column) {
  return static_cast<char*>(weight.panels) + column / kPanel * panel_bytes(weight);
}

// Offset of column `lane` in the 32 values of a floating-point panel's row.
int64_t lane_offset(int32_t storage, int64_t lane) {
  return storage != kBf16 ? lane : lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
}

#define AVX2 __attribute__((target("avx2")))
constexpr int64_t kRows = 8;  // rows transposed together

// Transpose eight rows of eight 4-byte units.
AVX2 void transpose(__m256i (&v)[kRows]) {
  __m256i pairs[kRows], quads[kRows];
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
}

// The same for 2-byte units.
AVX2 void transpose(__m128i (&v)[kRows]) {
  __m128i pairs[kRows], quads[kRows];
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
}

// Copy units [left, right) of eight rows to lanes lane, lane + 1, ... of a panel, eight units at a time. Returns the
// first unit that was not copied.
AVX2 int64_t fill_eight(int32_t, uint32_t* panel, int64_t lane, const char* rows, int64_t row_bytes, int64_t left,
                        int64_t right) {
  for (; left + 8 <= right; left += 8) {
    __m256i v[kRows];
    for (int i = 0; i < kRows; ++i)
      v[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + i * row_bytes + left * 4));
    transpose(v);
    for (int i = 0; i < 8; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + (left + i) * kPanel + lane), v[i]);
  }
  return left;
}

AVX2 int64_t fill_eight(int32_t storage, uint16_t* panel, int64_t lane, const char* rows, int64_t row_bytes,
                        int64_t left, int64_t right) {
  for (; left + 8 <= right; left += 8) {
    __m128i v[kRows];
    for (int i = 0; i < kRows; ++i)
      v[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i * row_bytes + left * 2));
    transpose(v);
    for (int i = 0; i < 8; ++i) {
      uint16_t* at = panel + (left + i) * kPanel + lane_offset(storage, lane) / 2 * 2;
      if (storage != kBf16) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), v[i]);
        continue;
      }
      // Keep the values of the panel's other half, which are in between.
      auto* both = reinterpret_cast<__m256i*>(at);
      const __m256i wide = _mm256_cvtepu16_epi32(v[i]), other = _mm256_loadu_si256(both);
      _mm256_storeu_si256(both, lane < 16 ? _mm256_blend_epi16(other, wide, 0x55)
                                          : _mm256_blend_epi16(other, _mm256_slli_epi32(wide, 16), 0xAA));
    }
  }
  return left;
}

// Copy rows to columns first_column, first_column + 1, ... of the panels. A unit is contiguous both in a row and in a
// panel. Rows are copied in tiles that stay in the L1 cache, because neighbours in a panel come from different rows.
template <class Unit>
void fill(const Weight& weight, int64_t first_column, const char* rows, int64_t row_bytes, int64_t num_rows) {
  constexpr int64_t kTileUnits = 64;
  const int64_t units = row_bytes / sizeof(Unit), tail_bytes = row_bytes % sizeof(Unit);
  const auto copy = [&](int64_t row, int64_t unit, int64_t right) {
    const int64_t column = first_column + row;
    Unit* at = reinterpret_cast<Unit*>(panel_of(weight, column)) + lane_offset(weight.storage, column % kPanel);
    const char* from = rows + row * row_bytes;
    for (; unit < right; ++unit) std::memcpy(at + unit * kPanel, from + unit * sizeof(Unit), sizeof(Unit));
    if (tail_bytes && right == units) std::memcpy(at + units * kPanel, from + units * sizeof(Unit), tail_bytes);
  };
  for (int64_t top = 0; top < num_rows; top += kPanel) {
    const int64_t bottom = std::min(top + kPanel, num_rows);
    for (int64_t left = 0; left == 0 || left < units; left += kTileUnits) {
      const int64_t right = std::min(left + kTileUnits, units);
      for (int64_t row = top; row < bottom;) {
        const int64_t lane = (first_column + row) % kPanel;
        const int64_t count = lane % kRows == 0 && row + kRows <= bottom ? kRows : 1;
        int64_t unit = left;
        if (count == kRows) {
          Unit* panel = reinterpret_cast<Unit*>(panel_of(weight, first_column + row));
          unit = fill_eight(weight.storage, panel, lane, rows + row * row_bytes, row_bytes, left, right);
        }
        for (const int64_t end = row + count; row < end; ++row) copy(row, unit, right);
      }
    }
  }
}

void fill_sums(const Weight& weight, int64_t first_column, const int8_t* rows, int64_t num_rows) {
  const int64_t depth = depth_of(weight.in_features);
  for (int64_t row = 0; row < num_rows; ++row) {
    int32_t sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += rows[row * depth + k];
    const_cast<int32_t*>(weight.sums)[first_column + row] = sum;
  }
}

// Weights share huge pages, because most are smaller than one. Memory is allocated in zeroed blocks of whole huge
// pages; a block is freed with its last weight.
struct Block {
  char* start;
  int64_t bytes, used = 0, num_weights = 0;

  bool holds(const void* memory) const { return memory >= start && memory < start + bytes; }
};

constexpr int64_t kHugePage = 2 << 20, kBlockBytes = 32 << 20;
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

// Fill the columns from first_column on with the rows of a matrix [num_rows, in_features] in the weight's storage.
// Integers are [num_rows, depth], already rotated.
EXPORT void lmi_weight_fill(Weight* weight, int64_t first_column, const void* rows, int64_t num_rows) {
  const char* from = static_cast<const char*>(rows);
  if (weight->storage == kInt8) {
    fill<uint32_t>(*weight, first_column, from, depth_of(weight->in_features), num_rows);
    fill_sums(*weight, first_column, static_cast<const int8_t*>(rows), num_rows);
  } else if (weight->storage == kBf16Pairs) {
    fill<uint32_t>(*weight, first_column, from, weight->in_features * 2, num_rows);
  } else if (weight->storage == kFp32) {
    fill<uint32_t>(*weight, first_column, from, weight->in_features * 4, num_rows);
  } else {
    fill<uint16_t>(*weight, first_column, from, weight->in_features * 2, num_rows);
  }
}

EXPORT void lmi_weight_fill_bias(Weight* weight, int64_t first_column, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) const_cast<float*>(weight->bias)[first_column + i] = values[i];
}

EXPORT void lmi_weight_fill_scales(Weight* weight, int64_t first_column, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) const_cast<float*>(weight->scales)[first_column + i] = values[i];
}
