"""Token counts of running sequences, kept on the device for penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engines.sampling.batch import SamplingRow
from lmi_kernels import MAX_TOKEN_COUNT

_Numbers = npt.NDArray[np.int64]


class TokenCounts:
    """A table of token counts on the device, and the sequences in it. Kernels add the tokens that they choose.

    Rows of sequences without penalties are not kept up to date.
    """

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        """num_rows: rows of sequences; one more row is for padding."""
        self._vocab_size = vocab_size
        self._device = device
        # Created once, so that nothing is allocated while serving: 256 sequences with a vocabulary of 151,936 take 78
        # MB.
        self.table = torch.zeros(num_rows + 1, vocab_size, dtype=torch.int16, device=device)
        """[num_rows + 1, vocab_size]; see `lmi_kernels.Penalties`."""
        self.known: dict[int, tuple[str, int]] = {}
        """Sequence id and counted length of each row. The device adds the token chosen after that length."""

    def follow(self, at: int, row: SamplingRow) -> bool:
        """Return whether a known row counts exactly this sequence's tokens, including the last one, which the device
        added."""
        sequence_id, length = self.known[at]
        now = len(row.token_ids)
        # A sequence that is computed again has the same length, and the device has counted one token too many.
        if now != length + 1 or sequence_id != row.id:
            return False
        self.known[at] = sequence_id, now
        return True

    def fill(self, rows: Sequence[tuple[int, SamplingRow]]) -> None:
        """Overwrite rows of the table with the counts of sequences whose tokens are all known to the host.

        Ids outside the vocabulary are ignored: they have no logit. Ordered on the current stream, without waiting.
        """
        if not rows:
            return
        entries = [_entries(row, self._vocab_size) for _, row in rows]
        places = [at * self._vocab_size + tokens for (at, _), (tokens, _) in zip(rows, entries, strict=True)]
        numbers = torch.from_numpy(
            np.concatenate([[at for at, _ in rows], *places, *(values for _, values in entries)])
        )
        if self._device.type == "cuda":
            numbers = numbers.pin_memory()
        moved = numbers.to(self._device, non_blocking=True)
        filled, values = moved[len(rows) :].view(2, -1)
        self.table.index_fill_(0, moved[: len(rows)], 0)
        self.table.view(-1).index_copy_(0, filled, values.to(torch.int16))
        self.known.update((at, (row.id, len(row.token_ids))) for at, row in rows)

    def forget(self, at: int) -> None:
        """Mark that the row now belongs to a sequence without penalties."""
        self.known.pop(at, None)


def _entries(row: SamplingRow, vocab_size: int) -> tuple[_Numbers, _Numbers]:
    """Return the distinct tokens of the sequence, and the table entry of each."""
    ids = np.asarray(row.token_ids, dtype=np.int64)
    inside = (ids >= 0) & (ids < vocab_size)
    in_output = np.arange(len(ids))[inside] >= row.num_prompt_tokens
    tokens, places = np.unique(ids[inside], return_inverse=True)
    entries = 2 * np.bincount(places[in_output], minlength=len(tokens)).clip(max=MAX_TOKEN_COUNT)
    entries[places[~in_output]] |= 1
    return tokens, entries
