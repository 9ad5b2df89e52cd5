// Products with int8 weights and with bf16 pairs, for processors with AVX-512, VNNI and AMX.
// For GCC 12, whose headers initialize undefined values with `__m512 __Y = __Y;`.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include "operations.h"

#if LMI_HAS_AMX

// Products and sums are fused only where `Vec::fma` does so explicitly.
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8,amx-bf16,avx2,fma,f16c")

namespace lmi {
namespace {

constexpr int64_t kBlockBytes = 512 * 1024;  // L2 cache for a block of rows of a linear layer
constexpr int64_t kAmxBlockBytes = 1024 * 1024;  // same, with AMX
constexpr int64_t kMinAmxRows = 8;  // fewer rows times int8 weights are computed without AMX

#include "vec_avx512.inc"
#include "dot_avx512_vnni.inc"
#include "math.inc"
#include "activations.inc"
#include "work.inc"
#include "tiles.inc"
#include "rotate.inc"
#include "quantize.inc"
#include "linear_int8.inc"
#include "amx.inc"
#include "pairs_one_row.inc"

}  // namespace

void multiply_int8_amx(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker) {
  if (num_rows < kMinAmxRows) return multiply_int8(op, first_row, num_rows, worker);
  quantize_rows(op, first_row, num_rows, worker);
  worker.barrier();
  multiply_amx<AmxInt8>(op, first_row, num_rows, worker);
}

void multiply_pairs_amx(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker) {
  const unsigned int saved_csr = _mm_getcsr();
  _mm_setcsr(saved_csr | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  if (num_rows <= PairTiles::kRows) {
    multiply_few<PairTiles>(op, first_row, num_rows, worker);
  } else {
    split_rows(op, first_row, num_rows, worker);
    worker.barrier();
    multiply_amx<AmxBf16>(op, first_row, num_rows, worker);
  }
  _mm_setcsr(saved_csr);
}

void multiply_pairs_panel_amx(const Linear& op, int64_t row) {
  const unsigned int saved_csr = _mm_getcsr();
  _mm_setcsr(saved_csr | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  PairTiles::tile<1, 1>(op, row, 0, {});
  _mm_setcsr(saved_csr);
}

}  // namespace lmi

#else  // stubs, never called

namespace lmi {

void multiply_int8_amx(const Linear&, int64_t, int64_t, Worker&) {}
void multiply_pairs_amx(const Linear&, int64_t, int64_t, Worker&) {}
void multiply_pairs_panel_amx(const Linear&, int64_t) {}

}  // namespace lmi

#endif
