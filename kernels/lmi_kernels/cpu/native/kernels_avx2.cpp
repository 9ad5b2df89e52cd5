// The kernels for processors with AVX2, FMA and F16C.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "native.h"

#pragma GCC target("avx2,fma,f16c")

namespace lmi {
namespace {

constexpr const char* kName = "avx2";
constexpr int64_t kBlockBytes = 192 * 1024;  // of the second cache, for rows of a linear

#include "vec_avx2.inc"
#include "dot_avx2.inc"
#include "kernels.inc"

}  // namespace

const Kernels* avx2_kernels() { return &kKernels; }

}  // namespace lmi
