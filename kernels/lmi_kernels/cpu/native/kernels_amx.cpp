// The kernels for processors with AVX-512 F, BW, VL, DQ and VNNI, and AMX for int8.
// GCC 12: its headers write `__m512 __Y = __Y;` where a result does not matter.
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "native.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8,avx2,fma,f16c")

namespace lmi {
namespace {

#define LMI_AMX 1

constexpr const char* kName = "amx";
constexpr int64_t kBlockBytes = 512 * 1024;  // of the second cache, for rows of a linear
constexpr int64_t kAmxRows = 8;              // at least so many are multiplied by AMX

#include "vec_avx512.inc"
#include "dot_avx512_vnni.inc"
#include "kernels.inc"

}  // namespace

const Kernels* amx_kernels() { return &kKernels; }

}  // namespace lmi
