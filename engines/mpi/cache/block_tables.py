"""Each running sequence's blocks, as a rank remembers them from plan to plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class BlockTables:
    """One row a running sequence. What stands beyond a sequence's need is left from an earlier owner of its row, or
    from no one: whoever reads a row knows how many of its entries count.
    """

    def __init__(self) -> None:
        self.entries: npt.NDArray[np.int32] = np.zeros((8, 16), dtype=np.int32)
        """[rows, columns]: at least as large as any update so far asked for."""

    def apply(self, updates: Sequence[int]) -> None:
        """Take in a plan's `table_updates`.

        Raises:
            ValueError: a group is cut short, or says that something stands before the table's begin.
        """
        if not updates:
            return
        numbers = np.asarray(updates, dtype=np.int32)
        at = 0
        while at < len(numbers):
            row, first, count = (int(number) for number in numbers[at : at + 3])
            at += 3
            if min(row, first, count) < 0 or at + count > len(numbers):
                raise ValueError(
                    f"a table update of row {row}, entries {first} to {first + count}, cannot be applied"
                )
            self._grow(row + 1, first + count)
            self.entries[row, first : first + count] = numbers[at : at + count]
            at += count

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
