"""What stands in running sequences, for penalties on the device: a table there, which the tokens chosen there are added
to, and on the host how far each row of it has come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from lmi_kernels import MOST_COUNTED

_Numbers = npt.NDArray[np.int64]


def penalizes(params: SamplingParams) -> bool:
    """Whether tokens that stand in the sequence change what comes next."""
    return (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )


class TokenCounts:
    """The table, and whose rows are in it. Rows of sequences without penalties are not kept."""

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        """A row of padding comes behind the last."""
        self._vocab_size = vocab_size
        self._device = device
        # Made once, so that nothing is allocated while serving: 256 sequences of a vocabulary of 151,936 take 78 MB.
        self.table = torch.zeros(num_rows + 1, vocab_size, dtype=torch.int16, device=device)
        """[num_rows + 1, vocab_size], as `lmi_kernels.Penalties` has it."""
        self.known: dict[int, tuple[str, int]] = {}
        """By row: whose tokens were counted up to which length, before that length's token was chosen."""

    def follow(self, at: int, row: SamplingRow) -> bool:
        """For a known row: whether it holds just this sequence's tokens, the last one counted there by the device."""
        sequence_id, length = self.known[at]
        now = len(row.token_ids)
        # Computed again it has the same length, and the device has counted a token too many.
        if now != length + 1 or sequence_id != row.id:
            return False
        self.known[at] = sequence_id, now
        return True

    def fill(self, rows: Sequence[tuple[int, SamplingRow]]) -> None:
        """Forget what stands in these rows of the table, and count the sequences' tokens, all of which are known.
        Ids outside the vocabulary are left out: they have no logit. Ordered as all on the current stream, without
        waiting for it."""
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
        """The row's sequence asks for no penalties."""
        self.known.pop(at, None)


def _entries(row: SamplingRow, vocab_size: int) -> tuple[_Numbers, _Numbers]:
    """Each token of the sequence once, and what stands in the table for it."""
    ids = np.asarray(row.token_ids, dtype=np.int64)
    inside = (ids >= 0) & (ids < vocab_size)
    in_output = np.arange(len(ids))[inside] >= row.num_prompt_tokens
    tokens, places = np.unique(ids[inside], return_inverse=True)
    entries = 2 * np.bincount(places[in_output], minlength=len(tokens)).clip(max=MOST_COUNTED)
    entries[places[~in_output]] |= 1
    return tokens, entries
