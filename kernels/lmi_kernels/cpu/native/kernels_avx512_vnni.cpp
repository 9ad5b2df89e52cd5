// The kernels for processors with AVX-512 F, BW, VL, DQ and VNNI.
// GCC 12: its headers write `__m512 __Y = __Y;` where a result does not matter.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "native.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")

namespace lmi {
namespace {

constexpr const char* kName = "avx512_vnni";
constexpr int64_t kBlockBytes = 512 * 1024;  // of the second cache, for rows of a linear

#include "vec_avx512.inc"
#include "dot_avx512_vnni.inc"
#include "kernels.inc"

}  // namespace

const Kernels* avx512_vnni_kernels() { return &kKernels; }

}  // namespace lmi
