"""The layout of a step for native kernels, in buffers that all steps use."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import torch

from lmi_kernels.cpu import structs
from lmi_kernels.cpu.library import Library


class StepInput:
    """Input of a step for native kernels. The next `lay_out` overwrites it."""

    def __init__(
        self, library: Library, max_tokens: int, num_positions: int, num_blocks: int, block_size: int
    ) -> None:
        """num_positions, num_blocks: limits of the positions and blocks that a step may name."""
        self._library = library
        self._max_tokens = max_tokens
        self._plan = (ctypes.c_int32 * (4 * max_tokens))()
        self._positions = torch.empty(max_tokens, dtype=torch.int32)
        self._slots = torch.empty(max_tokens, dtype=torch.int32)
        self._sequences = (structs.Sequence * max_tokens)()
        self._layout = structs.Layout(
            num_positions=num_positions,
            num_blocks=num_blocks,
            block_size=block_size,
            plan=ctypes.addressof(self._plan),
            positions=self._positions.data_ptr(),
            slots=self._slots.data_ptr(),
            sequences=ctypes.addressof(self._sequences),
        )
        self._tables = torch.empty(0, 0, dtype=torch.int32)
        self.places = torch.empty(0, dtype=torch.int32)
        """[num_places], int32: see `select`."""
        self.step = structs.Step(
            positions=self._layout.positions, slots=self._layout.slots, sequences=self._layout.sequences
        )

    @property
    def ids(self) -> torch.Tensor:
        """[num_tokens], int32. This and the others are views of the buffers."""
        first = 3 * self.step.num_sequences
        return torch.frombuffer(self._plan, dtype=torch.int32)[first : first + self.step.num_rows]

    @property
    def positions(self) -> torch.Tensor:
        """[num_tokens], int32."""
        return self._positions[: self.step.num_rows]

    @property
    def slots(self) -> torch.Tensor:
        """[num_tokens], int32: slots of the KV cache."""
        return self._slots[: self.step.num_rows]

    def lay_out(
        self,
        tables: torch.Tensor,
        rows: Sequence[int],
        starts: Sequence[int],
        query_lens: Sequence[int],
        token_ids: Sequence[int],
    ) -> None:
        """Lay out a step.

        tables: block tables, [num_tables, table_width], int32, contiguous.
        rows, starts, query_lens: [num_sequences]: table, position of the first token and number of tokens of each
            sequence. Its blocks are those of the positions up to its last token.
        token_ids: [sum of query_lens], sequence by sequence.

        Raises:
            ValueError: the step is too large, the lengths do not add up, a token is negative, or a table, position or
                block does not exist. The vocabulary is not known here.
        """
        num_sequences, num_tokens = len(rows), len(token_ids)
        if num_tokens > self._max_tokens:
            raise ValueError(f"a step of {num_tokens} tokens is too large: the maximum is {self._max_tokens}")
        layout, self._tables = self._layout, tables
        layout.tables, (layout.num_tables, layout.table_width) = tables.data_ptr(), tables.shape
        format_ = f"{3 * num_sequences + num_tokens}i"
        struct.pack_into(format_, self._plan, 0, *rows, *starts, *query_lens, *token_ids)
        layout.num_sequences, layout.num_rows = num_sequences, num_tokens
        if not self._library.lay_out(layout, self.step):
            raise ValueError(
                "a step has wrong lengths, a negative token, or a table, position or block that does not exist"
            )

    def select(self, places: torch.Tensor) -> None:
        """Select the rows whose hidden states are wanted.

        places: their numbers, [num_places], int32.
        """
        self.places = places
        self.step.places, self.step.num_places = places.data_ptr(), len(places)
