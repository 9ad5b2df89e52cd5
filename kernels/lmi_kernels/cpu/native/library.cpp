// Functions that the shared library exports. `library.py` calls them by ctypes.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <exception>

#include "operations.h"
#include "team.h"

namespace lmi {

const Kernels* active_kernels = nullptr;

namespace {

// Request the AMX tile registers from Linux, which a process must do once. Returns false if the request is denied.
bool request_tile_permission() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool is_supported(const Kernels* kernels) {
  __builtin_cpu_init();
  if (kernels == avx2_kernels())
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (kernels == avx512_kernels()) return avx512;
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (kernels == avx512_vnni_kernels()) return vnni;
#if LMI_HAS_AMX
  return vnni && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
         __builtin_cpu_supports("amx-bf16") && request_tile_permission();
#else
  return false;
#endif
}

struct Run {
  const Op* ops;
  int64_t num_ops;
  const Step* step;
  double* seconds;  // [kNumKinds], accumulated; or null
};

// The weight of the first linear layer from operation `i` on, or null.
const Weight* weight_from(const Run& run, int64_t i) {
  while (i < run.num_ops && run.ops[i].kind != kLinear) ++i;
  return i < run.num_ops ? static_cast<const Linear*>(run.ops[i].what)->weight : nullptr;
}

void run(void* argument, Worker& worker) {
  using Clock = std::chrono::steady_clock;
  const Run& run = *static_cast<Run*>(argument);
  Step at_places = *run.step;
  at_places.num_rows = at_places.num_places;
  const bool timed = run.seconds && worker.index() == 0;
  Clock::time_point before;
  if (timed) before = Clock::now();
  for (int64_t i = 0; i < run.num_ops; ++i) {
    const Op& op = run.ops[i];
    worker.next_weight = op.kind == kLinear ? weight_from(run, i + 1) : nullptr;
    active_kernels->by_kind[op.kind](op.what, op.at_places ? at_places : *run.step, worker);
    worker.barrier();
    if (timed) {
      const auto now = Clock::now();
      run.seconds[op.kind] += std::chrono::duration<double>(now - before).count();
      before = now;
    }
  }
}

}  // namespace
}  // namespace lmi

using namespace lmi;

// Select the kernels of this instruction set (null: the processor's best). Returns its name, or null if the
// processor lacks it.
EXPORT const char* lmi_use_instructions(const char* wanted) {
  for (const Kernels* kernels : {amx_kernels(), avx512_vnni_kernels(), avx512_kernels(), avx2_kernels()})
    if ((!wanted || !std::strcmp(wanted, kernels->name)) && is_supported(kernels)) {
      active_kernels = kernels;
      return kernels->name;
    }
  return nullptr;
}

// The sizes of the structs that Python fills, so that it refuses a library that was built from other sources.
EXPORT int64_t lmi_struct_sizes() {
  return sizeof(KvLayer) + sizeof(Sequence) + sizeof(Step) + sizeof(Layout) + sizeof(Op) + sizeof(Embed) +
         sizeof(Gather) + sizeof(Norm) + sizeof(Add) + sizeof(Elementwise) + sizeof(Linear) + sizeof(RopeAndStore) +
         sizeof(Attention) + sizeof(Experts) + sizeof(Truncate) + sizeof(Choose) + sizeof(Logprobs) +
         sizeof(GreedyHead) + sizeof(AllReduce) + sizeof(GatherColumns);
}

// Start a team of threads. Returns null if the system refuses a thread or its memory.
EXPORT Team* lmi_team_new(int32_t num_threads) {
  try {
    return new Team(num_threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

EXPORT void lmi_team_free(Team* team) { delete team; }

// Let the team write a heartbeat to `place` while it works: seconds of CLOCK_MONOTONIC.
EXPORT void lmi_team_show_alive_at(Team* team, double* place) { team->show_alive_at(place); }

// Run operations [0, num_ops) over a step's rows. seconds: [kNumKinds], accumulates the time of each kind; or null.
EXPORT void lmi_run(Team* team, const Op* ops, int64_t num_ops, const Step* step, double* seconds) {
  Run argument{ops, num_ops, step, seconds};
  team->run(run, &argument);
}

// Return the bytes of scratch that `Attention` needs for a team of this size.
EXPORT int64_t lmi_attention_scratch_bytes(int32_t num_threads, int32_t num_heads, int32_t num_kv_heads,
                                           int32_t head_dim) {
  const int64_t split = kSplitRows * (attention_width(head_dim) + 2);
  const int64_t floats = attention_floats(num_heads, num_kv_heads, head_dim);
  return num_threads * (floats + split) * static_cast<int64_t>(sizeof(float));
}
