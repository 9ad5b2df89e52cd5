// Kernels for processors with AVX2, FMA and F16C.
#include <immintrin.h>

#include "operations.h"

// Products and sums are fused only where `Vec::fma` does so explicitly.
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")

namespace lmi {
namespace {

constexpr int64_t kBlockBytes = 192 * 1024;  // L2 cache for a block of rows of a linear layer

#include "vec_avx2.inc"
#include "dot_avx2.inc"
#include "kernels.inc"

constexpr Kernels kKernels = kernels_with<multiply_int8>("avx2");

}  // namespace

const Kernels* avx2_kernels() { return &kKernels; }

}  // namespace lmi
