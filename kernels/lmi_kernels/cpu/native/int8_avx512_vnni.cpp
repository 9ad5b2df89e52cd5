// Products with int8 weights for processors with AVX-512 and VNNI.
// GCC 12: its headers write `__m512 __Y = __Y;` where a result does not matter.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "native.h"

// Products and sums are fused where `Vec::fma` says so, not where the compiler likes.
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")

namespace lmi {
namespace {

constexpr int64_t kBlockBytes = 512 * 1024;  // of the second cache, for rows of a linear

#include "vec_avx512.inc"
#include "dot_avx512_vnni.inc"
#include "math.inc"
#include "activations.inc"
#include "work.inc"
#include "tiles.inc"
#include "rotate.inc"
#include "linear_int8.inc"

}  // namespace

void multiply_int8_avx512_vnni(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker) {
  multiply_int8(op, first_row, num_rows, worker);
}

}  // namespace lmi
