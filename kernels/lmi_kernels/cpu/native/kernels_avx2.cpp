// The kernels for processors with AVX2, FMA and F16C.
#include <immintrin.h>

#include "native.h"

// Products and sums are fused where `Vec::fma` says so, not where the compiler likes.
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")

namespace lmi {
namespace {

constexpr int64_t kBlockBytes = 192 * 1024;  // of the second cache, for rows of a linear

#include "vec_avx2.inc"
#include "dot_avx2.inc"
#include "kernels.inc"

constexpr Kernels kKernels = kernels_with<multiply_int8>("avx2");

}  // namespace

const Kernels* avx2_kernels() { return &kKernels; }

}  // namespace lmi
