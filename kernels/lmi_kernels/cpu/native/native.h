// What the native CPU kernels share: the structs that Python fills (`structs.py` mirrors them) and a worker's view of
// its team.
//
// A program is a list of operations over the rows of one step, a row being a token. Every worker of a team runs the
// whole list. An operation deals its work out by `Worker::claim`, so it must not matter who does what; between two
// operations all wait for each other. One summation order per row, whatever the number of rows and workers, makes a
// row's bits independent of its company.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Whether the compiler knows AMX: GCC does from 11 on.
#ifndef LMI_HAS_AMX
#define LMI_HAS_AMX (__GNUC__ >= 11)
#endif

namespace lmi {

// How numbers are stored. Arithmetic is fp32 everywhere but in int8 products.
enum Storage : int32_t { kBf16 = 0, kFp16 = 1, kFp32 = 2, kInt8 = 3, kBf16Pairs = 4 };

constexpr int64_t kPanel = 32;  // output features of a panel of a weight

// How many integers a row or column has in its products: zeros fill it up.
static inline int64_t depth_of(int64_t in_features) { return (in_features + 63) / 64 * 64; }

// The same of bf16 in pairs, as AMX multiplies it.
static inline int64_t pairs_depth_of(int64_t in_features) { return (in_features + 31) / 32 * 32; }

// A weight in panels of 32 output features; `weight.cpp` says how each storage lays a panel out. Columns of the last
// panel beyond the last output feature are zero.
struct Weight {
  void* panels;
  const float* bias;    // [panels x 32]; null where there is none, but not with integers
  const float* scales;  // of integers, [panels x 32]; else null
  const int32_t* sums;  // of the integers of each column, [panels x 32]; else null
  int64_t in_features;
  int64_t out_features;
  int32_t storage;
  int32_t reserved;
};

// The keys and values of one layer. Block b begins at `data + b * block_bytes` and has, for each KV head, a page of
// keys [head_dim, block_size], then a page of values [block_size, head_dim]; with int8 the pages of all heads are
// followed by scales, fp32: for each head those of its keys [block_size], then those of its values [block_size].
struct KvLayer {
  char* data;
  int64_t block_bytes;
  int32_t storage;
  int32_t block_size;
  int32_t num_kv_heads;
  int32_t head_dim;
};

// Consecutive rows of one sequence: its last `query_len` tokens so far.
struct Sequence {
  int64_t first_row;
  int32_t query_len;
  int32_t kv_len;         // keys, the step's own included
  const int32_t* blocks;  // its block table
};

// What differs from step to step. Rows of a program may be fewer than the step's tokens: `places` picks them.
struct Step {
  int64_t num_rows;
  const int32_t* ids;        // [num_rows], token ids
  const int32_t* positions;  // [num_rows]
  const int32_t* slots;      // [num_rows]: block * block_size + offset in the block, where keys and values go
  const Sequence* sequences;
  int64_t num_sequences;
  const int32_t* places;  // [num_rows]: rows that `gather` picks
};

// A part of an operation's work: [start, stop).
struct Range {
  int64_t start;
  int64_t stop;
};

class Team;

// One thread of a team, within an operation.
class Worker {
 public:
  Worker(Team& team, int index) : team_(team), index_(index) {}
  int index() const { return index_; }
  int count() const;
  // Some of the pieces of [0, total) that nobody has claimed yet, from the first on: at least `least` unless fewer are
  // left, more while many are (guided self-scheduling, Polychronopoulos and Kuck 1987), so that all workers end together
  // even when one is interrupted. Empty when none are left.
  Range claim(int64_t total, int64_t least = 1);
  // Wait until all workers have come here; claims then begin anew.
  void barrier();

 private:
  Team& team_;
  int index_;
};

// An operation of a program: `what` points to the struct of its kind.
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
  kNumKinds = 12,
};

struct Op {
  int32_t kind;
  int32_t reserved;
  const void* what;
};

// y = the embedding of each row's token or position, 0 where it is not one of [first_id, first_id + num_ids).
struct Embed {
  const Weight* table;  // in panels, as the head's: out_features are the ids
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
  const float* bias;  // of a LayerNorm, or null
  int64_t x_stride;
  int64_t y_stride;
  int64_t width;
  float eps;
  int32_t is_layer_norm;
};

// y = x + other; y may be one of them.
struct Add {
  const float* x;
  const float* other;
  float* y;
  int64_t x_stride;
  int64_t other_stride;
  int64_t y_stride;
  int64_t width;
};

// Functions of single numbers. `parameter` is the factor of kScale and the cap of kSoftcap; the others are activations.
enum Function : int32_t {
  kGelu = 0,  // by erf
  kGeluTanh = 1,
  kRelu = 2,
  kSilu = 3,
  kQuickGelu = 4,    // x sigmoid(1.702 x)
  kRelu2 = 5,  // relu(x)^2
  kScale = 6,        // parameter x
  kSoftcap = 7,      // parameter tanh(x / parameter)
};

// y = function(x); y may be x.
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
  kActivateAndMul = 2,  // of a panel, columns 0..15 are gates, 16..31 what they let through: y has half as many columns
};

struct Linear {
  const Weight* weight;
  const float* x;
  float* y;
  int64_t x_stride;
  int64_t y_stride;
  int32_t epilogue;
  int32_t gate;  // of kActivateAndMul: the gates' `Function`
  // Where rows are put as they are multiplied. With int8 weights: integers, [max_rows, in_features rounded up to 64],
  // and their scales, [max_rows]. With bf16 in pairs: three parts of bf16, [max_rows, 3, in_features rounded up to 32].
  // Null for others.
  int8_t* integers;
  float* row_scales;
};

// On rows of query heads, then key heads, then value heads: norms of query and key heads (where there are weights),
// rotary embedding of both in place (half-split), keys and values into the cache.
struct RopeAndStore {
  float* qkv;
  int64_t qkv_stride;
  const float* q_norm;   // [head_dim], or null
  const float* k_norm;   // [head_dim], or null
  const float* cos_sin;  // [positions, rotary_dim]: cosines, then sines; null: heads are not turned
  const KvLayer* cache;
  int32_t num_heads;
  int32_t rotary_dim;  // so many of a head's first numbers are turned
  float eps;
  int32_t interleaved;  // numbers 2i and 2i + 1 are turned together; else i and i + rotary_dim / 2
};

// y = softmax(score) v of each row's query heads over the last `window` of its sequence's keys up to its own position;
// score = cap tanh(scale q k^T / cap) + slope (the key's position - the query's).
struct Attention {
  const float* q;  // rows of heads [num_heads, head_dim]
  float* y;        // likewise
  int64_t q_stride;
  int64_t y_stride;
  const KvLayer* cache;
  int32_t num_heads;
  float scale;
  int32_t window;       // 0: all keys. Blocks whose keys are before all windows are not read
  float softcap;        // 0: none
  const float* slopes;  // [num_heads], of ALiBi; or null
  const float* sinks;   // [num_heads], a score whose value is zero; or null
  float* scratch;  // one for all layers: `lmi_attention_scratch_bytes`
  int64_t scratch_bytes;
};

// What attention works on at once, by one worker. Keys are counted from the sequence's first, whatever the step, so
// that a query's sums have one order.
constexpr int64_t kTileKeys = 64;    // between two looks at the largest score
constexpr int64_t kPartKeys = 512;   // summed up by themselves, then added in order
constexpr int64_t kItemRows = 96;    // queries (tokens x heads of a group) that share a tile of keys
constexpr int64_t kSplitRows = 2048; // for each worker: queries x parts that may be computed by several workers

// Where a worker keeps its item: [rows] queries, sums and totals, and a tile of widened keys and values.
static inline int64_t attention_rows(int64_t num_heads, int64_t num_kv_heads) {
  const int64_t share = num_heads / num_kv_heads;
  return share > kItemRows ? share : kItemRows;
}

static inline int64_t attention_width(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats for each worker. Of each row: three vectors, lanes of a sum, and four numbers.
static inline int64_t attention_floats(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t width = attention_width(head_dim);
  return attention_rows(num_heads, num_kv_heads) * (3 * width + 16 + 4) + 2 * kTileKeys * (width + 1);
}

// Mixture of experts: each row goes through its `top_k` likeliest gated MLPs, weighted by the softmax over all experts
// or, renormalised, over these.
struct Experts {
  const float* x;
  const float* logits;  // the router's, [rows, num_experts]
  float* y;
  int64_t x_stride;
  int64_t logits_stride;
  int64_t y_stride;
  const Weight* const* gate_up;  // [num_experts], interleaved as for kActivateAndMul
  const Weight* const* down;     // [num_experts]
  int32_t num_experts;
  int32_t top_k;
  int32_t gate;  // the gates' `Function`
  int32_t renormalise;
  int32_t* choices;  // scratch: [max_rows * top_k * 2 + num_experts + 1]
  float* shares;     // scratch: [max_rows * top_k]
  float* inputs;     // scratch: [max_rows * top_k, hidden]
  float* middle;     // scratch: [max_rows * top_k, intermediate rounded up to 16]
  float* parts;      // scratch: [max_rows * top_k, hidden]
  int8_t* integers;  // as of Linear, for max_rows * top_k rows
  float* row_scales;
};

// From which logit on a row's token may be drawn, by top_k, then top_p, then min_p: `lmi_kernels.logit_thresholds`.
struct Truncate {
  const float* const* rows;  // [num_rows]: each row's logits, [vocab_size]
  int64_t vocab_size;
  const float* temperature;  // [num_rows]; 0: the row is greedy
  const int64_t* top_k;      // [num_rows]; 0, or vocab_size and more: off
  const double* top_p;       // [num_rows]; 1: off
  const double* min_p;       // [num_rows]; 0: off
  float* thresholds;         // [num_rows]
  int32_t* last_ids;         // [num_rows]
  float* scratch;            // of each worker [2, vocab_size + kSlack]
};

// The likeliest token of each row, or one drawn by Gumbel noise: `lmi_kernels.choose_tokens`.
struct Choose {
  const float* const* rows;  // [num_rows]: each row's logits, [vocab_size]
  int64_t vocab_size;
  const float* temperature;   // [num_rows]; 0: the row is greedy
  const float* thresholds;    // [num_rows]: smaller logits are not drawn
  const int32_t* last_ids;    // [num_rows]: of the logits that equal the threshold, those of larger ids are not drawn
  const int64_t* seeds;       // [num_rows]
  const int64_t* positions;   // [num_rows]
  int64_t* tokens;            // [num_rows]; 0 in rows that are not finite
  uint8_t* finite;            // [num_rows]
};

// Log-probabilities of a token of each row, and of its likeliest ones: `lmi_kernels.row_logprobs`.
struct Logprobs {
  const float* const* rows;  // [num_rows]: each row's logits, [vocab_size]
  int64_t vocab_size;
  const int64_t* tokens;  // [num_rows]
  const int64_t* counts;  // [num_rows]: so many of the likeliest
  float* logprobs;        // [num_rows]
  int64_t* top_tokens;    // [num_rows, top_stride], likeliest first, of equal ones the lower id
  float* top_logprobs;    // [num_rows, top_stride]
  int64_t top_stride;
  float* scratch;         // of each worker [2, vocab_size + kSlack]
};

constexpr int64_t kSlack = 64;  // behind numbers in scratch memory, for whole vectors

using Kernel = void (*)(const void* what, const Step& step, Worker& worker);

// The products with int8 weights of rows [first_row, first_row + num_rows), which all workers compute together: what
// differs between processors with AVX-512.
using Int8Product = void (*)(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);
void multiply_int8_avx512_vnni(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);
void multiply_int8_amx(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);

// The same with weights of bf16 in pairs, which only AMX multiplies.
void multiply_pairs_amx(const Linear& op, int64_t first_row, int64_t num_rows, Worker& worker);

// The kernels of one instruction set, by kind.
struct Kernels {
  const char* name;
  Kernel by_kind[kNumKinds];
};

const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_vnni_kernels();
const Kernels* amx_kernels();

}  // namespace lmi
