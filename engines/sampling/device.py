"""Sampling on the device: only kernels choose tokens, so the next step can start before the host knows the tokens.

The sampling parameters of running sequences are kept in a table on the device. A request gets exactly the tokens that
`Sampler` would give it: penalties are the same operations, and truncation and draw are the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.plan import seed_bits
from engines.sampling.token_counts import TokenCounts
from lmi_kernels import Penalties, choose_tokens, count_tokens_, logit_thresholds, token_logprobs

_GREEDY = SamplingParams(max_new_tokens=1)
_SEED, _TOP_K, _PENALIZES, _LOGPROBS, _TEMPERATURE = range(5)


def device_samples(params: SamplingParams) -> bool:
    """Return whether `DeviceSampler` supports such a request; otherwise it needs `Sampler`."""
    return (
        params.num_beams == 1
        and params.top_logprobs == 0
        and params.prompt_logprobs is None
        and not params.logit_bias
        and not params.bad_words
        and params.min_new_tokens == 0
        and (params.greedy or params.typical_p == 1.0)
    )


class DeviceTokens(NamedTuple):
    """The result of `DeviceSampler.sample`, all on the device."""

    tokens: torch.Tensor
    """[n], int64."""
    finite: torch.Tensor
    """[n], bool: whether the row's logits were finite; otherwise its token is meaningless."""
    logprobs: torch.Tensor
    """[n], fp32: log-probability of the token, under the model's distribution before any processing; 0 where not
    requested."""


class DeviceSampler:
    """Sampler for the sequences of a table with `num_rows` rows. Row `num_rows` is for padding."""

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        # 64 bits each, so that one copy fills a row and one gather reads a batch, whatever the parameters' types.
        padding = self._columns([_GREEDY])
        self._table = padding.repeat(1, num_rows + 1).to(device)
        """[10, num_rows + 1], int64: seeds, top_k, whether penalties and log-probabilities are requested, and the bits
        of temperature, top_p, min_p and the penalties of repetition, presence and frequency in fp64."""
        self._counts = TokenCounts(vocab_size, num_rows, device)
        self._params: dict[int, SamplingParams] = {}
        """The parameters in each row of the table. Compared by identity: each request has its own object."""
        self._host_rows: set[int] = set()
        self._with_logprobs: set[int] = set()

    def admit(self, table_rows: Sequence[int], rows: Sequence[SamplingRow]) -> None:
        """Send the parameters of new sequences to the device. Must be called before each `sample`.

        The device counts tokens itself as long as each `sample` gives each sequence one token. A sequence that skipped
        a step, or is computed again, is sent again. Ordered on the current stream, without waiting for it.

        Args:
            table_rows: in [0, num_rows), each once.
            rows: one for each of `table_rows`. Rows that the device does not support get a meaningless greedy token.
        """
        counts = self._counts
        new = [
            (at, row)
            for at, row in zip(table_rows, rows, strict=False)
            if self._params.get(at) is not row.params or (at in counts.known and not counts.follow(at, row))
        ]
        if not new:
            return
        params = [row.params if device_samples(row.params) else _GREEDY for _, row in new]
        columns = torch.cat([torch.tensor([[at for at, _ in new]]), self._columns(params)])
        if self._device.type == "cuda":
            columns = columns.pin_memory()
        moved = columns.to(self._device, non_blocking=True)
        self._table.index_copy_(1, moved[0], moved[1:])
        counts.fill([(at, row) for (at, row), each in zip(new, params, strict=True) if each.penalized])
        for (at, row), each in zip(new, params, strict=True):
            self._params[at] = row.params
            (self._host_rows.discard if each is row.params else self._host_rows.add)(at)
            (self._with_logprobs.add if each.logprobs else self._with_logprobs.discard)(at)
            if not each.penalized:
                counts.forget(at)

    def forget(self, table_rows: Sequence[int]) -> None:
        """Send these rows again at the next `admit`. Needed when a `sample` gives their sequences no token, as it
        miscounts them."""
        for at in table_rows:
            self._params.pop(at, None)

    def host_rows(self, table_rows: Sequence[int]) -> list[int]:
        """Return the indices in `table_rows` of the rows that need `Sampler`."""
        return _places(table_rows, self._host_rows)

    def with_logprobs(self, table_rows: Sequence[int]) -> list[int]:
        """Return the indices in `table_rows` of the rows whose log-probabilities are computed here."""
        return _places(table_rows, self._with_logprobs)

    def sample(self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> DeviceTokens:
        """Choose the next tokens, and count them. Always launches the same kernels, so a CUDA graph can capture it.

        Args:
            logits: [n, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed.
            rows: [n], int64, on the device: table row of each sequence, all distinct except `num_rows`, which is
                padding.
            positions: [n], int64, on the device: position of the token to be chosen in its sequence.
        """
        params_by_row = self._table.index_select(1, rows)
        numbers = params_by_row[_TEMPERATURE:].view(torch.float64)
        temperature, top_p, min_p = numbers[:3]
        penalizes, counts = params_by_row[_PENALIZES], self._counts.table
        penalties = Penalties(counts, rows, penalizes, numbers[3:])
        thresholds, last_ids = logit_thresholds(
            logits, temperature, params_by_row[_TOP_K], top_p, min_p, penalties
        )
        tokens, finite = choose_tokens(
            logits, temperature, thresholds, last_ids, params_by_row[_SEED], positions, penalties
        )
        count_tokens_(counts, rows, tokens, penalizes)
        return DeviceTokens(tokens, finite, token_logprobs(logits, tokens, params_by_row[_LOGPROBS]))

    def _columns(self, params: Sequence[SamplingParams]) -> torch.Tensor:
        """Return the table's columns for these parameters: [10, len(params)], int64, on the CPU."""
        integers = [
            [seed_bits(each) for each in params],
            [min(each.top_k, self._vocab_size) for each in params],
            [each.penalized for each in params],
            [each.logprobs for each in params],
        ]
        floats = [
            [each.temperature for each in params],
            [each.top_p for each in params],
            [each.min_p for each in params],
            [each.repetition_penalty for each in params],
            [each.presence_penalty for each in params],
            [each.frequency_penalty for each in params],
        ]
        return torch.cat(
            [torch.tensor(integers), torch.tensor(floats, dtype=torch.float64).view(torch.int64)]
        )


def _places(table_rows: Sequence[int], wanted: set[int]) -> list[int]:
    return [i for i, at in enumerate(table_rows) if at in wanted] if wanted else []
