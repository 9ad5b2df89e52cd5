"""The layout of a step for native kernels, in buffers that all steps use."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence as List

import numpy as np
import numpy.typing as npt

from lmi_kernels.cpu.library import Library
from lmi_kernels.cpu.structs import Layout, Sequence, Step

Numbers = npt.NDArray[np.int32]


class StepInput:
    """Input of a step for native kernels. The next `lay_out` overwrites it."""

    def __init__(
        self, library: Library, max_tokens: int, num_positions: int, num_blocks: int, block_size: int
    ) -> None:
        """num_positions, num_blocks: limits of the positions and blocks that a step may name."""
        self._library = library
        self._max_tokens = max_tokens
        self._positions, self._slots = np.empty((2, max_tokens), dtype=np.int32)
        self._sequences = (Sequence * max_tokens)()
        self._layout = Layout(
            num_positions=num_positions,
            num_blocks=num_blocks,
            block_size=block_size,
            positions=self._positions.ctypes.data,
            slots=self._slots.ctypes.data,
            sequences=ctypes.addressof(self._sequences),
        )
        self._plan = b""
        self._tables: Numbers | None = None
        self.step = Step(
            positions=self._layout.positions, slots=self._layout.slots, sequences=self._layout.sequences
        )

    @property
    def ids(self) -> Numbers:
        """[num_tokens]"""
        return np.frombuffer(self._plan, dtype=np.int32)[3 * self.step.num_sequences :]

    @property
    def positions(self) -> Numbers:
        """[num_tokens]"""
        return self._positions[: self.step.num_rows]

    @property
    def slots(self) -> Numbers:
        """[num_tokens]: slots of the KV cache."""
        return self._slots[: self.step.num_rows]

    def lay_out(
        self,
        tables: Numbers,
        rows: List[int],
        starts: List[int],
        query_lens: List[int],
        token_ids: List[int],
    ) -> None:
        """Lay out a step.

        tables: block tables, [num_tables, table_width], C-contiguous.
        rows, starts, query_lens: [num_sequences]: table, position of the first token and number of tokens of each
            sequence. Its blocks are those of the positions up to its last token.
        token_ids: [sum of query_lens], sequence by sequence.

        Raises:
            ValueError: the step is too large, the lengths do not add up, or a token, position or block does not exist.
        """
        num_sequences, num_tokens = len(rows), len(token_ids)
        if num_tokens > self._max_tokens:
            raise ValueError(f"a step of {num_tokens} tokens is too large: the maximum is {self._max_tokens}")
        self._plan = struct.pack(
            f"{3 * num_sequences + num_tokens}i", *rows, *starts, *query_lens, *token_ids
        )
        layout = self._layout
        if tables is not self._tables:
            self._tables = tables
            layout.tables, (layout.num_tables, layout.table_width) = tables.ctypes.data, tables.shape
        layout.num_sequences, layout.num_rows, layout.plan = num_sequences, num_tokens, self._plan
        if not self._library.lay_out(layout, self.step):
            raise ValueError(
                "a step has wrong lengths, or names a token, position or block that does not exist"
            )
