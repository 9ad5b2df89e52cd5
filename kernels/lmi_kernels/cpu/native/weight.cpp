// Weights in panels: memory in huge pages where the system has them, filled part by part as a checkpoint is read.
//
// A panel of floating point is [in_features][32]; with bf16, column j and column j + 16 are neighbours, so that one load
// and a shift or a mask give two vectors. A panel of int8 is [depth / 4][32][4]: four integers of each column side by
// side, the depth being in_features rounded up to 64; integer * scale of its column is a number of the turned column
// (`rotate.inc`). A panel of bf16
// in pairs is [depth / 2][32][2], the depth being in_features rounded up to 32.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "native.h"

namespace lmi {
namespace {

int64_t panel_count(const Weight& weight) { return (weight.out_features + kPanel - 1) / kPanel; }

// Of one panel.
int64_t panel_bytes(const Weight& weight) {
  if (weight.storage == kInt8) return depth_of(weight.in_features) * kPanel;
  if (weight.storage == kBf16Pairs) return pairs_depth_of(weight.in_features) * kPanel * 2;
  return weight.in_features * kPanel * (weight.storage == kFp32 ? 4 : 2);
}

// A tail that prefetches may run into.
constexpr int64_t kTailBytes = 4096;

int64_t memory_bytes(const Weight& weight) { return panel_count(weight) * panel_bytes(weight) + kTailBytes; }

// A value for each column, 0 at first; null where there is no memory.
template <class T>
T* new_values(const Weight& weight) {
  return static_cast<T*>(std::calloc(panel_count(weight) * kPanel, sizeof(T)));
}

char* panel_of(const Weight& weight, int64_t column) {
  return static_cast<char*>(weight.panels) + column / kPanel * panel_bytes(weight);
}

// Where in a panel's 32 values of floating point column `lane` lies.
int64_t place(int32_t storage, int64_t lane) {
  return storage != kBf16 ? lane : lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
}

template <class T>
void fill_column(const Weight& weight, int64_t column, const T* from) {
  T* at = reinterpret_cast<T*>(panel_of(weight, column)) + place(weight.storage, column % kPanel);
  for (int64_t k = 0; k < weight.in_features; ++k) at[k * kPanel] = from[k];
}

void fill_pairs(const Weight& weight, int64_t column, const uint16_t* from) {
  auto* at = reinterpret_cast<uint16_t*>(panel_of(weight, column)) + column % kPanel * 2;
  for (int64_t k = 0; k < weight.in_features; ++k) at[k / 2 * 2 * kPanel + k % 2] = from[k];
}

void fill_integers(const Weight& weight, int64_t column, const int8_t* from) {
  auto* at = reinterpret_cast<int8_t*>(panel_of(weight, column)) + column % kPanel * 4;
  int32_t sum = 0;
  for (int64_t k = 0; k < depth_of(weight.in_features); ++k) {
    at[k / 4 * 4 * kPanel + k % 4] = from[k];
    sum += from[k];
  }
  const_cast<int32_t*>(weight.sums)[column] = sum;
}

}  // namespace
}  // namespace lmi

using namespace lmi;

EXPORT void lmi_weight_free(Weight* weight) {
  munmap(weight->panels, memory_bytes(*weight));
  std::free(const_cast<float*>(weight->bias));
  std::free(const_cast<float*>(weight->scales));
  std::free(const_cast<int32_t*>(weight->sums));
  delete weight;
}

EXPORT Weight* lmi_weight_new(int64_t out_features, int64_t in_features, int32_t storage, int32_t with_bias) {
  auto* weight =
      new (std::nothrow) Weight{nullptr, nullptr, nullptr, nullptr, in_features, out_features, storage, 0};
  if (!weight) return nullptr;
  void* memory = mmap(nullptr, memory_bytes(*weight), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    delete weight;
    return nullptr;
  }
  madvise(memory, memory_bytes(*weight), MADV_HUGEPAGE);
  weight->panels = memory;
  const bool integers = storage == kInt8;
  if (with_bias || integers) weight->bias = new_values<float>(*weight);
  if (integers) {
    weight->scales = new_values<float>(*weight);
    weight->sums = new_values<int32_t>(*weight);
  }
  if (((with_bias || integers) && !weight->bias) || (integers && (!weight->scales || !weight->sums))) {
    lmi_weight_free(weight);
    return nullptr;
  }
  return weight;
}

// Columns first_column, first_column + step, ... of the product, from `num_rows` rows of a matrix
// [num_rows, in_features] in the weight's storage; of integers, [num_rows, depth], turned.
EXPORT void lmi_weight_fill(Weight* weight, int64_t first_column, int64_t step, const void* rows, int64_t num_rows) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t column = first_column + row * step, first = row * weight->in_features;
    if (weight->storage == kInt8)
      fill_integers(*weight, column, static_cast<const int8_t*>(rows) + row * depth_of(weight->in_features));
    else if (weight->storage == kBf16Pairs)
      fill_pairs(*weight, column, static_cast<const uint16_t*>(rows) + first);
    else if (weight->storage == kFp32)
      fill_column(*weight, column, static_cast<const uint32_t*>(rows) + first);
    else
      fill_column(*weight, column, static_cast<const uint16_t*>(rows) + first);
  }
}

EXPORT void lmi_weight_fill_bias(Weight* weight, int64_t first_column, int64_t step, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) const_cast<float*>(weight->bias)[first_column + i * step] = values[i];
}

EXPORT void lmi_weight_fill_scales(Weight* weight, int64_t first_column, int64_t step, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) const_cast<float*>(weight->scales)[first_column + i * step] = values[i];
}
