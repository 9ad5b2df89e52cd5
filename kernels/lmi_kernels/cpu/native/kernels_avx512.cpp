// Kernels for processors with AVX-512 F, BW, VL and DQ. With VNNI or AMX, only the int8 products differ.
// For GCC 12, whose headers initialize undefined values with `__m512 __Y = __Y;`.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "operations.h"

// Products and sums are fused only where `Vec::fma` does so explicitly.
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

namespace lmi {
namespace {

constexpr int64_t kBlockBytes = 512 * 1024;  // L2 cache for a block of rows of a linear layer

#include "vec_avx512.inc"
#include "dot_avx512.inc"
#include "kernels.inc"

constexpr Kernels kKernels = kernels_with<multiply_int8>("avx512");
constexpr Kernels kVnniKernels = kernels_with<multiply_int8_avx512_vnni>("avx512_vnni");
constexpr Kernels kAmxKernels = kernels_with<multiply_int8_amx>("amx");

}  // namespace

const Kernels* avx512_kernels() { return &kKernels; }
const Kernels* avx512_vnni_kernels() { return &kVnniKernels; }
const Kernels* amx_kernels() { return &kAmxKernels; }

}  // namespace lmi
