// Layout of a step: turn a plan, which names block tables and positions, into the slots and addresses of kernels.
#include "native.h"

namespace lmi {
namespace {

bool in_range(int32_t number, int64_t limit) { return number >= 0 && number < limit; }

}  // namespace
}  // namespace lmi

using namespace lmi;

// Fill the layout's arrays and the step's fields. Returns false if the plan names a table, a position or a block that
// does not exist, or a negative token, or if its lengths do not add up. The vocabulary is not known here.
EXPORT bool lmi_lay_out(const Layout* layout, Step* step) {
  const int32_t *tables = layout->plan, *starts = tables + layout->num_sequences,
                *query_lens = starts + layout->num_sequences, *ids = query_lens + layout->num_sequences;
  int64_t row = 0;
  for (int64_t i = 0; i < layout->num_sequences; ++i) {
    const int64_t start = starts[i], stop = start + query_lens[i];
    const int64_t num_blocks = (stop + layout->block_size - 1) / layout->block_size;
    if (!in_range(tables[i], layout->num_tables) || start < 0 || query_lens[i] < 1 ||
        stop > layout->num_positions || num_blocks > layout->table_width || row + query_lens[i] > layout->num_rows)
      return false;
    const int32_t* blocks = layout->tables + tables[i] * layout->table_width;
    for (int64_t block = 0; block < num_blocks; ++block)
      if (!in_range(blocks[block], layout->num_blocks)) return false;
    layout->sequences[i] = {row, query_lens[i], static_cast<int32_t>(stop), blocks};
    for (int64_t position = start; position < stop; ++position, ++row) {
      if (ids[row] < 0) return false;
      layout->positions[row] = static_cast<int32_t>(position);
      layout->slots[row] = blocks[position / layout->block_size] * layout->block_size +
                           static_cast<int32_t>(position % layout->block_size);
    }
  }
  step->num_rows = layout->num_rows;
  step->ids = ids;
  step->num_sequences = layout->num_sequences;
  return row == layout->num_rows;
}
