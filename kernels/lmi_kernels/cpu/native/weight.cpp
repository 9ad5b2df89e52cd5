// Weights in panels: memory in huge pages where the system has them, filled part by part as a checkpoint is read.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "native.h"

namespace lmi {
namespace {

int64_t row_bytes(int32_t storage) { return kPanel * (storage == kFp32 ? 4 : 2); }

int64_t panel_count(int64_t out_features) { return (out_features + kPanel - 1) / kPanel; }

// A tail that prefetches may run into.
constexpr int64_t kTailBytes = 4096;

int64_t panel_bytes(const Weight& weight) {
  return panel_count(weight.out_features) * weight.in_features * row_bytes(weight.storage) + kTailBytes;
}

// Where in a panel's 32 values column `lane` lies.
int64_t place(int32_t storage, int64_t lane) {
  return storage != kBf16 ? lane : lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
}

template <class T>
void fill(Weight& weight, int64_t first_column, int64_t step, const T* source, int64_t num_rows) {
  T* panels = static_cast<T*>(weight.panels);
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t column = first_column + row * step;
    T* at = panels + column / kPanel * weight.in_features * kPanel + place(weight.storage, column % kPanel);
    const T* from = source + row * weight.in_features;
    for (int64_t k = 0; k < weight.in_features; ++k) at[k * kPanel] = from[k];
  }
}

}  // namespace
}  // namespace lmi

using namespace lmi;

EXPORT void lmi_weight_free(Weight* weight) {
  munmap(weight->panels, panel_bytes(*weight));
  std::free(const_cast<float*>(weight->bias));
  delete weight;
}

EXPORT Weight* lmi_weight_new(int64_t out_features, int64_t in_features, int32_t storage, int32_t with_bias) {
  auto* weight = new (std::nothrow) Weight{nullptr, nullptr, nullptr, in_features, out_features, storage, 0};
  if (!weight) return nullptr;
  void* memory = mmap(nullptr, panel_bytes(*weight), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    delete weight;
    return nullptr;
  }
  madvise(memory, panel_bytes(*weight), MADV_HUGEPAGE);
  weight->panels = memory;
  if (with_bias) {
    weight->bias = static_cast<float*>(std::calloc(panel_count(out_features) * kPanel, sizeof(float)));
    if (!weight->bias) {
      lmi_weight_free(weight);
      return nullptr;
    }
  }
  return weight;
}

// Columns first_column, first_column + step, ... of the product, from `num_rows` rows of a matrix [num_rows, in_features].
EXPORT void lmi_weight_fill(Weight* weight, int64_t first_column, int64_t step, const void* rows, int64_t num_rows) {
  if (weight->storage == kFp32)
    fill(*weight, first_column, step, static_cast<const uint32_t*>(rows), num_rows);
  else
    fill(*weight, first_column, step, static_cast<const uint16_t*>(rows), num_rows);
}

EXPORT void lmi_weight_fill_bias(Weight* weight, int64_t first_column, int64_t step, const float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) const_cast<float*>(weight->bias)[first_column + i * step] = values[i];
}
