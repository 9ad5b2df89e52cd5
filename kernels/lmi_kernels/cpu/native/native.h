// Shared declarations of the native CPU kernels: the structs that Python fills and a worker's view of its team.
// `structs.py` mirrors the structs, and `lmi_struct_sizes` counts them.
//
// A program is a list of operations over the rows of one step, or over those that the step's `places` select. A row is
// a token. Every worker of a team runs the whole list. Workers claim parts of an operation with `Worker::claim`, so
// results must not depend on which worker computes what. Between two operations there is a barrier. The order of sums
// in a row does not depend on the number of rows or workers, so a row's results are bit-identical in any batch.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Whether the compiler supports AMX. GCC does since version 11.
#ifndef LMI_HAS_AMX
#define LMI_HAS_AMX (__GNUC__ >= 11)
#endif

namespace lmi {

// Storage format of numbers. Arithmetic is fp32, except in int8 products.
enum Storage : int32_t { kBf16 = 0, kFp16 = 1, kFp32 = 2, kInt8 = 3, kBf16Pairs = 4 };

constexpr int64_t kPanel = 32;  // output features in a panel of a weight
constexpr int64_t kMaxCopied = 4096;  // input features of a panel that may be copied: 512 KiB of the L2 cache

// Number of integers in a row or column of an int8 product, padded with zeros.
static inline int64_t depth_of(int64_t in_features) { return (in_features + 63) / 64 * 64; }

// The same for bf16 pairs (kBf16Pairs), the layout for AMX.
static inline int64_t pairs_depth_of(int64_t in_features) { return (in_features + 31) / 32 * 32; }

// A weight in panels of 32 output features. `weight.cpp` describes the layout of a panel for each storage. Columns of
// the last panel beyond the last output feature are zero.
struct Weight {
  void* panels;
  const float* bias;    // [panels x 32]; null if there is none, but never null for int8
  const float* scales;  // int8: scale of each column, [panels x 32]; else null
  const int32_t* sums;  // int8: sum of each column's integers, [panels x 32]; else null
  int64_t in_features;
  int64_t out_features;
  int32_t storage;
  int32_t reserved;
};

// Keys and values of one layer. Block b starts at `data + b * block_bytes`. For each KV head it holds a page of keys
// [head_dim, block_size], then a page of values [block_size, head_dim]. With int8, fp32 scales follow the pages of all
// heads: for each head, key scales [block_size], then value scales [block_size].
struct KvLayer {
  char* data;
  int64_t block_bytes;
  int32_t storage;
  int32_t block_size;
  int32_t num_kv_heads;
  int32_t head_dim;
};

// Consecutive rows of one sequence: its last `query_len` tokens.
struct Sequence {
  int64_t first_row;
  int32_t query_len;
  int32_t kv_len;         // number of keys, including this step's
  const int32_t* blocks;  // block table
};

// Inputs of one step.
struct Step {
  int64_t num_rows;
  const int32_t* ids;        // [num_rows], token ids
  const int32_t* positions;  // [num_rows]
  const int32_t* slots;      // [num_rows]: cache slot, block * block_size + offset in the block
  const Sequence* sequences;
  int64_t num_sequences;
  const int32_t* places;  // [num_places]: rows that `Gather` selects
  int64_t num_places;
};

// A plan, and the arrays of a step that `lmi_lay_out` fills.
struct Layout {
  int64_t num_sequences;
  int64_t num_rows;
  const int32_t* plan;    // table, first position and number of rows of each sequence, [3, num_sequences]; then the ids
  const int32_t* tables;  // [num_tables, table_width]: block tables
  int64_t num_tables;
  int64_t table_width;
  int64_t num_blocks;
  int64_t num_positions;
  int32_t block_size;
  int32_t reserved;
  int32_t* positions;   // [num_rows]
  int32_t* slots;       // [num_rows]
  Sequence* sequences;  // [num_sequences]
};

// A part of an operation's work: [start, stop).
struct Range {
  int64_t start;
  int64_t stop;
};

// Number of meetings that a rank has come to. In memory that the processes of all ranks share.
struct alignas(64) Arrivals {
  std::atomic<uint64_t> count;
};

class Team;

// One thread of a team, within an operation.
class Worker {
 public:
  Worker(Team& team, int index) : team_(team), index_(index) {}
  int index() const { return index_; }
  int count() const;
  // Claim the next pieces of [0, total): at least `min_size` unless fewer are left, and more while many are left
  // (guided self-scheduling, Polychronopoulos and Kuck 1987), so that all workers finish together even if one is
  // interrupted. Returns an empty range when nothing is left.
  Range claim(int64_t total, int64_t min_size = 1);
  // Take this worker's share of the first half of [0, total). Unlike claims, it is known in advance. Either all workers
  // call this before they claim the rest, or none does. May be empty only if nothing is left.
  Range take_share(int64_t total);
  // That share. Empty if there are fewer pieces than twice the workers.
  Range share(int64_t total) const;
  // Let the claims of this worker restart at 0 for other work, without waiting for pieces that others still do. All
  // workers call it when the pieces of the same total are claimed.
  void next() {
    first_ += total_ - shared_;
    shared_ = 0;
  }
  // Wait until all workers reach the barrier. Claims then restart at 0.
  void barrier();
  // Wait until all workers of all ranks meet. arrivals: [num_ranks]. Claims then restart at 0.
  void meet(Arrivals* const* arrivals, int rank, int num_ranks);
  // Memory of this worker for one panel of up to kMaxCopied input features in fp32.
  float* panel_copy() const;
  // Write a heartbeat. `claim` does so too.
  void show_alive();

  const Weight* next_weight = nullptr;  // of the next linear layer; null if unknown

 private:
  Team& team_;
  int index_;
  int64_t first_ = 0;  // claims of the team before this work, since the last barrier
  int64_t total_ = 0;
  int64_t shared_ = 0;  // pieces that are not claimed, but taken as shares
};

}  // namespace lmi
