// Products with int8 weights for processors with AVX-512 and VNNI.
// For GCC 12, whose headers initialize undefined values with `__m512 __Y = __Y;`.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "operations.h"

// Products and sums are fused only where `Vec::fma` does so explicitly.
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")

namespace lmi {
namespace {

constexpr int64_t kBlockBytes = 512 * 1024;  // L2 cache for a block of rows of a linear layer

#include "vec_avx512.inc"
#include "dot_avx512_vnni.inc"
#include "math.inc"
#include "activations.inc"
#include "work.inc"
#include "tiles.inc"
#include "rotate.inc"
#include "quantize.inc"
#include "linear_int8.inc"

}  // namespace

void multiply_int8_avx512_vnni(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker) {
  multiply_int8(op, first_row, num_rows, worker);
}

}  // namespace lmi
