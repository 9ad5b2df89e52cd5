"""Block tables of the running sequences, as a rank keeps them from plan to plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]


def table_triples(updates: Sequence[int]) -> Numbers:
    """Return a plan's `table_updates` as [num_entries, 3]: row, index, block.

    Raises:
        ValueError: a group is cut short, or has a negative row, index or length.
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
    """One row per running sequence. Entries beyond a sequence's blocks are unused or left from an earlier owner of
    the row. Readers know how many entries of a row are valid."""

    def __init__(self) -> None:
        self.entries: Numbers = np.zeros((8, 16), dtype=np.int32)
        """[rows, columns]: at least as large as the largest update so far."""

    def apply(self, updates: Sequence[int]) -> None:
        """Apply a plan's `table_updates`. Raises the same errors as `table_triples`."""
        if not updates:  # as in most steps
            return
        rows, columns, blocks = table_triples(updates).T
        if len(rows):
            self._grow(int(rows.max()) + 1, int(columns.max()) + 1)
            self.entries[rows, columns] = blocks

    def _grow(self, rows: int, columns: int) -> None:
        """Grow each axis at least to double its length, so that the amortized cost is low."""
        old = self.entries
        if rows <= old.shape[0] and columns <= old.shape[1]:
            return
        shape = tuple(
            length if wanted <= length else max(wanted, 2 * length)
            for wanted, length in zip((rows, columns), old.shape, strict=True)
        )
        self.entries = np.zeros(shape, dtype=np.int32)
        self.entries[: old.shape[0], : old.shape[1]] = old
