// The operations of a program: the structs that Python fills (`structs.py` mirrors them), and their kernels.
#pragma once

#include "native.h"

namespace lmi {

// Kind of an operation.
enum OpKind : int32_t {
  kEmbed = 0,
  kGather = 1,
  kNorm = 2,
  kAdd = 3,
  kElementwise = 4,
  kLinear = 5,
  kRopeAndStore = 6,
  kAttention = 7,
  kExperts = 8,
  kTruncate = 9,
  kChoose = 10,
  kLogprobs = 11,
  kGreedyHead = 12,
  kAllReduce = 13,
  kGatherColumns = 14,
  kNumKinds = 15,
};

// An operation of a program.
struct Op {
  int32_t kind;
  int32_t at_places;  // whether it computes the step's `num_places` rows instead of `num_rows`
  const void* what;   // struct of this kind
};

// y = the embedding of each row's token or position, or 0 if the id is not in [first_id, first_id + num_ids).
struct Embed {
  const Weight* table;  // in panels, like the LM head's weight; an id is an output feature
  float* y;
  int64_t y_stride;
  int64_t first_id;
  int32_t of_positions;
  int32_t reserved;
};

// y[i] = x[places[i]]
struct Gather {
  const float* x;
  float* y;
  int64_t x_stride;
  int64_t y_stride;
  int64_t width;
};

// RMSNorm or LayerNorm of each row.
struct Norm {
  const float* x;
  float* y;
  const float* weight;
  const float* bias;  // bias of a LayerNorm, or null
  int64_t x_stride;
  int64_t y_stride;
  int64_t width;
  float eps;
  int32_t is_layer_norm;
};

// y = x + other; y may alias x or other.
struct Add {
  const float* x;
  const float* other;
  float* y;
  int64_t x_stride;
  int64_t other_stride;
  int64_t y_stride;
  int64_t width;
};

// Elementwise functions. `parameter` is the factor of kScale and the cap of kSoftcap. The others are activations.
enum Function : int32_t {
  kGelu = 0,  // by erf
  kGeluTanh = 1,
  kRelu = 2,
  kSilu = 3,
  kQuickGelu = 4,    // x sigmoid(1.702 x)
  kRelu2 = 5,        // relu(x)^2
  kScale = 6,        // parameter x
  kSoftcap = 7,      // parameter tanh(x / parameter)
};

// y = function(x); y may alias x.
struct Elementwise {
  const float* x;
  float* y;
  int64_t x_stride;
  int64_t y_stride;
  int64_t width;
  int32_t function;
  float parameter;
};

enum Epilogue : int32_t {
  kStore = 0,           // y = product
  kAccumulate = 1,      // y += product
  kActivateAndMul = 2,  // y = activation(gate) * up: columns 0..15 of a panel are gates, columns 16..31 are ups
  kBounds = 3,          // y = bounds of the products before quantization, see `GreedyHead`; int8 only
};

struct Linear {
  const Weight* weight;
  const float* x;
  float* y;
  int64_t x_stride;
  int64_t y_stride;
  int32_t epilogue;
  int32_t gate;  // `Function` of the gates, for kActivateAndMul
  // Scratch for converted rows. With int8 weights: integers, [max_rows, in_features rounded up to 64], and their
  // scales, [max_rows]. With bf16 pairs: three bf16 parts, [max_rows, 3, in_features rounded up to 32]. Else null.
  int8_t* integers;
  float* row_scales;
  // For kBounds, else null.
  float* row_norms;           // scratch: norm of each row and of its quantization error, [max_rows, 2]
  const float* column_norms;  // norm of each column and of its quantization error, [2, panels x 32]
};

// Normalize query and key heads (if there are weights), apply rotary embedding to both in place, and write keys and
// values to the cache. Rows hold query heads, then key heads, then value heads.
struct RopeAndStore {
  float* qkv;
  int64_t qkv_stride;
  const float* q_norm;   // [head_dim], or null
  const float* k_norm;   // [head_dim], or null
  const float* cos_sin;  // [positions, rotary_dim]: cosines, then sines; null: no rotation
  const KvLayer* cache;
  int32_t num_heads;
  int32_t rotary_dim;  // rotated features: the first ones of each head
  float eps;
  int32_t interleaved;  // features 2i and 2i + 1 are a pair; else i and i + rotary_dim / 2
};

// y = softmax(score) v for each row's query heads, over the last `window` keys of its sequence up to its own position.
// score = cap tanh(scale q k^T / cap) + slope (key position - query position).
struct Attention {
  const float* q;  // rows of heads [num_heads, head_dim]
  float* y;        // like q
  int64_t q_stride;
  int64_t y_stride;
  const KvLayer* cache;
  int32_t num_heads;
  float scale;
  int32_t window;       // 0: all keys. Blocks before every window are not read
  float softcap;        // 0: none
  const float* slopes;  // ALiBi slopes, [num_heads]; or null
  const float* sinks;   // [num_heads], score of an additional key with a value of zero; or null
  float* scratch;  // shared by all layers; size: `lmi_attention_scratch_bytes`
  int64_t scratch_bytes;
};

// Sizes of attention's units of work. Tiles and parts are aligned to the sequence's first key, so that the order of a
// query's sums does not depend on the step.
constexpr int64_t kTileKeys = 64;    // keys in a tile; the running maximum is updated once per tile
constexpr int64_t kPartKeys = 512;   // keys in a part; parts are summed separately, then merged in order
constexpr int64_t kItemRows = 96;    // queries (tokens x heads of a group) that share a tile of keys
constexpr int64_t kSplitRows = 2048;  // per worker: limit of queries x parts split over several workers

// Rows of scratch that a worker needs for the queries, sums and totals of one item.
static inline int64_t attention_rows(int64_t num_heads, int64_t num_kv_heads) {
  const int64_t share = num_heads / num_kv_heads;
  return share > kItemRows ? share : kItemRows;
}

static inline int64_t attention_width(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of scratch for each worker: per row three vectors, the lanes of a sum and four numbers; and a tile of
// converted keys and values.
static inline int64_t attention_floats(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t width = attention_width(head_dim);
  return attention_rows(num_heads, num_kv_heads) * (3 * width + 16 + 4) + 2 * kTileKeys * (width + 1);
}

// Mixture of experts: each row is routed to its `top_k` best gated MLPs, weighted by the softmax over all experts or,
// if renormalized, over the chosen ones.
struct Experts {
  const float* x;
  const float* logits;  // router logits, [rows, num_experts]
  float* y;
  int64_t x_stride;
  int64_t logits_stride;
  int64_t y_stride;
  const Weight* const* gate_up;  // [num_experts], interleaved as for kActivateAndMul
  const Weight* const* down;     // [num_experts]
  int32_t num_experts;
  int32_t top_k;
  int32_t gate;  // `Function` of the gates
  int32_t renormalize;
  int32_t* choices;  // scratch: [max_rows * top_k * 2 + num_experts + 1]
  float* shares;     // scratch: [max_rows * top_k]
  float* inputs;     // scratch: [max_rows * top_k, hidden]
  float* middle;     // scratch: [max_rows * top_k, intermediate rounded up to 16]
  float* parts;      // scratch: [max_rows * top_k, hidden]
  int8_t* integers;  // see Linear, for max_rows * top_k rows
  float* row_scales;
};

// Find the smallest logit of each row that may be drawn: top_k, then top_p, then min_p. See
// `lmi_kernels.logit_thresholds`.
struct Truncate {
  const float* logits;  // [num_rows, vocab_size]
  int64_t stride;       // from row to row
  int64_t vocab_size;
  const float* temperature;  // [num_rows]; 0: the row is greedy
  const int64_t* top_k;      // [num_rows]; 0, or at least vocab_size: off
  const double* top_p;       // [num_rows]; 1: off
  const double* min_p;       // [num_rows]; 0: off
  float* thresholds;         // [num_rows]
  int32_t* last_ids;         // [num_rows]
  float* scratch;            // [2, vocab_size + kSlack] per worker
};

// Choose each row's likeliest token, or draw a token with Gumbel noise. See `lmi_kernels.choose_tokens`.
struct Choose {
  const float* logits;  // [num_rows, vocab_size]
  int64_t stride;       // from row to row
  int64_t vocab_size;
  const float* temperature;  // [num_rows]; 0: the row is greedy
  const float* thresholds;   // [num_rows]: smaller logits are not drawn
  const int32_t* last_ids;   // [num_rows]: logits equal to the threshold are drawn only up to this id
  const int64_t* seeds;      // [num_rows]
  const int64_t* positions;  // [num_rows]
  int64_t* tokens;           // [num_rows]; 0 in rows that are not finite
  uint8_t* finite;           // [num_rows]
};

// Compute the log-probabilities of one token per row and of the row's likeliest tokens. See
// `lmi_kernels.row_logprobs`.
struct Logprobs {
  const float* logits;  // [any number, vocab_size]
  int64_t stride;       // from row to row
  int64_t vocab_size;
  const int64_t* rows;    // [num_rows]: rows of `logits`
  const int64_t* tokens;  // [num_rows]
  const int64_t* counts;  // [num_rows]: number of likeliest tokens
  float* logprobs;        // [num_rows]
  int64_t* top_tokens;    // [num_rows, top_stride], likeliest first; ties: lower id first
  float* top_logprobs;    // [num_rows, top_stride]
  int64_t top_stride;
  float* scratch;         // [2, vocab_size + kSlack] per worker
};

// y = each row's largest product with `exact` and its column, or NaN if the largest product is not finite. Bounds of
// all products come from an int8 copy of the weight. A product is computed exactly only if its upper bound is not below
// the row's largest lower bound, so the result is that of all exact products. If x' and w' are x and w after
// quantization, |x w - x' w'| <= |x - x'| |w'| + |x| |w - w'| (Cauchy-Schwarz).
//
// If bounds leave too much, as with random weights, all products are computed, also in the next calls.
//
// With several ranks, which have other columns, a product is computed only if it may be the largest of all ranks. If
// none may, y is -infinity.
struct GreedyHead {
  const float* x;
  float* y;  // [num_rows, 2]
  int64_t x_stride;
  int64_t y_stride;
  const Weight* exact;        // floating point
  const Weight* approximate;  // int8
  const float* column_norms;  // see Linear
  int64_t first_column;       // added to the columns
  int64_t max_rows;           // a multiple of 16
  float softcap;              // products become softcap * tanh(product / softcap); 0: they do not
  float max_exact_share;      // of the cost of all products; if bounds leave more, all products are computed
  int32_t* pause;    // [1]: number of next calls without bounds, at first 0
  int8_t* integers;  // scratch, see Linear; for both weights
  float* row_scales;
  float* row_norms;
  float* bounds;    // scratch: upper bounds of each segment of a panel, then lower bounds, [2, panels x 2, max_rows];
                    // or products, at least [max_rows, kPanel]
  float* products;  // scratch: [workers, max_rows, kSearchFloats]
  const float* const* y_of_ranks;  // [num_ranks]: y of each rank, in shared memory; null for a single rank
  Arrivals* const* arrivals;       // [num_ranks], in shared memory; null for a single rank
  int32_t rank;
  int32_t num_ranks;
};

// Floats of scratch for each worker and row: the products of a panel, a limit, a segment, the best product, and a mark.
constexpr int64_t kSearchFloats = kPanel + 6;

// y = the sum of all ranks' rows, in the order of ranks, plus `other`; y may alias other.
struct AllReduce {
  const float* const* x_of_ranks;  // [num_ranks]: rows of each rank, in shared memory
  const float* other;              // rows of this rank, or null
  float* y;
  int64_t x_stride;
  int64_t other_stride;
  int64_t y_stride;
  int64_t width;
  Arrivals* const* arrivals;  // [num_ranks], in shared memory
  int32_t rank;
  int32_t num_ranks;
};

// On rank 0, y = the rows of all ranks side by side. The other ranks write nothing.
struct GatherColumns {
  const float* const* x_of_ranks;  // [num_ranks]: rows of each rank, in shared memory
  const int64_t* first_columns;    // [num_ranks + 1]: of each rank in y
  float* y;
  int64_t x_stride;
  int64_t y_stride;
  Arrivals* const* arrivals;  // [num_ranks], in shared memory
  int32_t rank;
  int32_t num_ranks;
};

constexpr int64_t kSlack = 64;  // floats after a row of scratch, for whole-vector accesses

using Kernel = void (*)(const void* what, const Step& step, Worker& worker);

// Multiply rows [first_row, first_row + num_rows) by int8 weights. All workers call this together. The implementation
// depends on the AVX-512 extensions of the processor.
using Int8Product = void (*)(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);
void multiply_int8_avx512_vnni(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);
void multiply_int8_amx(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);

// The same for weights in bf16 pairs, which require AMX.
void multiply_pairs_amx(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);

// Multiply one row by one panel of such a weight: the first one.
void multiply_pairs_panel_amx(const Linear& op, int64_t row);

// Rotate and quantize a weight's row, [width] numbers of a floating-point storage. Writes its integers, [depth], and its
// scale; if `norms` is not null, also upper bounds of its norm, before and after quantization, and of the norm of its
// quantization error. numbers: scratch, [depth]. A row with an infinity or NaN has the scale NaN and such norms.
using QuantizeWeightRow = void (*)(const void* row, int32_t storage, int64_t width, float* numbers, int8_t* integers,
                                   float* scale, float* norms);

// The kernels of one instruction set.
struct Kernels {
  const char* name;
  Kernel by_kind[kNumKinds];
  QuantizeWeightRow quantize_weight_row;
};

extern const Kernels* active_kernels;

const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_vnni_kernels();
const Kernels* amx_kernels();

}  // namespace lmi
