"""Each running sequence's blocks, as a rank remembers them from plan to plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]


def table_triples(updates: Sequence[int]) -> Numbers:
    """A plan's `table_updates` as [num_entries, 3]: row, index, block.

    Raises:
        ValueError: a group is cut short, or says that something stands before the table's begin.
    """
    numbers: list[int] = []
    at = 0
    while at < len(updates):
        row, first, count = updates[at : at + 3]
        blocks = updates[at + 3 : at + 3 + count]
        if min(row, first, count) < 0 or len(blocks) != count:
            raise ValueError(
                f"a table update of row {row}, entries {first} to {first + count}, cannot be applied"
            )
        for index, block in enumerate(blocks, first):
            numbers += (row, index, block)
        at += 3 + count
    return np.array(numbers, dtype=np.int32).reshape(-1, 3)


class BlockTables:
    """One row a running sequence. What stands beyond a sequence's need is left from an earlier owner of its row, or
    from no one: whoever reads a row knows how many of its entries count.
    """

    def __init__(self) -> None:
        self.entries: Numbers = np.zeros((8, 16), dtype=np.int32)
        """[rows, columns]: at least as large as any update so far asked for."""

    def apply(self, updates: Sequence[int]) -> Numbers:
        """Take in a plan's `table_updates`; returns the rows that begin anew. Raises as `table_triples`."""
        rows, columns, blocks = table_triples(updates).T
        if len(rows):
            self._grow(int(rows.max()) + 1, int(columns.max()) + 1)
            self.entries[rows, columns] = blocks
        begun: Numbers = rows[columns == 0]
        return begun

    def _grow(self, rows: int, columns: int) -> None:
        """Doubling, so that growth costs little however often it comes."""
        old = self.entries
        if rows <= old.shape[0] and columns <= old.shape[1]:
            return
        shape = tuple(
            length if wanted <= length else max(wanted, 2 * length)
            for wanted, length in zip((rows, columns), old.shape, strict=True)
        )
        self.entries = np.zeros(shape, dtype=np.int32)
        self.entries[: old.shape[0], : old.shape[1]] = old
