"""Sampling without the host: what is asked of each running sequence stands in a table on the device, and a step's
tokens are chosen by kernels alone, so that the next step can start before anybody has seen them.

A request gets the tokens that a `Sampler` on this device would give it, bit by bit: penalties are the same operations,
and truncation and draw the same kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engines.core import SamplingParams
from engines.sampling.batch import SamplingRow
from engines.sampling.plan import seed_bits
from engines.sampling.token_counts import TokenCounts, penalizes
from lmi_kernels import Penalties, choose_tokens, count_tokens_, logit_thresholds, token_logprobs

_GREEDY = SamplingParams(max_new_tokens=1)
_SEED, _TOP_K, _PENALIZES, _LOGPROBS, _TEMPERATURE = range(5)


def device_samples(params: SamplingParams) -> bool:
    """Whether a `DeviceSampler` gives such a request all that it asks for; else it needs a `Sampler`."""
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
    """What `DeviceSampler.sample` gives, all on the device."""

    tokens: torch.Tensor
    """[n], int64."""
    finite: torch.Tensor
    """[n], bool: the row's logits were numbers; else its token means nothing."""
    logprobs: torch.Tensor
    """[n], fp32: of the token, under the model's distribution before any processing; 0 where nobody asks."""


class DeviceSampler:
    """Chooses tokens for the sequences of a table with `num_rows` rows, and one more for padding: row `num_rows`."""

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        # 64 bits each, so that one copy fills a row and one gather reads a batch, whatever the parameters' types.
        padding = self._columns([_GREEDY])
        self._table = padding.repeat(1, num_rows + 1).to(device)
        """[10, num_rows + 1], int64: seeds, top_k, whether penalties and log-probabilities are asked for, and the bits
        of temperature, top_p, min_p and the penalties of repetition, presence and frequency in fp64."""
        self._counts = TokenCounts(vocab_size, num_rows, device)
        self._told: dict[int, SamplingParams] = {}
        """By row, what the table was told: a request's own object, so another request's is never taken for it."""
        self._of_host: set[int] = set()
        self._with_logprobs: set[int] = set()

    def admit(self, table_rows: Sequence[int], rows: Sequence[SamplingRow]) -> None:
        """Before each `sample`: tell the device what it does not know of these sequences. It counts their tokens by
        itself as long as each `sample` gives each of them one; one that comes again, or later, is told anew.

        Ordered after what the current stream has been told so far, without waiting for it.

        Args:
            table_rows: in [0, num_rows), each once.
            rows: as many. Those without `device_samples` get a greedy token, which means nothing.
        """
        told, counts = self._told, self._counts
        new = [
            (at, row)
            for at, row in zip(table_rows, rows, strict=False)
            if told.get(at) is not row.params or (at in counts.known and not counts.follow(at, row))
        ]
        if not new:
            return
        params = [row.params if device_samples(row.params) else _GREEDY for _, row in new]
        columns = torch.cat([torch.tensor([[at for at, _ in new]]), self._columns(params)])
        if self._device.type == "cuda":
            columns = columns.pin_memory()
        moved = columns.to(self._device, non_blocking=True)
        self._table.index_copy_(1, moved[0], moved[1:])
        counts.fill([(at, row) for (at, row), each in zip(new, params, strict=True) if penalizes(each)])
        for (at, row), each in zip(new, params, strict=True):
            told[at] = row.params
            (self._of_host.discard if each is row.params else self._of_host.add)(at)
            (self._with_logprobs.add if each.logprobs else self._with_logprobs.discard)(at)
            if not penalizes(each):
                counts.forget(at)

    def forget(self, table_rows: Sequence[int]) -> None:
        """These go along with a `sample` that gives their sequences nothing: what it counts there is wrong."""
        for at in table_rows:
            self._told.pop(at, None)

    def of_host(self, table_rows: Sequence[int]) -> list[int]:
        """Which of these, as places among them, need a `Sampler`."""
        return _places(table_rows, self._of_host)

    def with_logprobs(self, table_rows: Sequence[int]) -> list[int]:
        """Which of these, as places among them, get log-probabilities here."""
        return _places(table_rows, self._with_logprobs)

    def sample(self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> DeviceTokens:
        """Kernels only, in the same number whatever is asked for: can be captured in a CUDA graph. The tokens are
        counted as their sequences' next.

        Args:
            logits: [n, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed.
            rows: [n], int64, on the device: whose logits they are, each once; `num_rows` for padding, also more often.
            positions: [n], int64, on the device: of the token that is chosen, in its sequence.
        """
        asked = self._table.index_select(1, rows)
        numbers = asked[_TEMPERATURE:].view(torch.float64)
        temperature, top_p, min_p = numbers[:3]
        asks, counts = asked[_PENALIZES], self._counts.table
        penalties = Penalties(counts, rows, asks, numbers[3:])
        thresholds, last_ids = logit_thresholds(logits, temperature, asked[_TOP_K], top_p, min_p, penalties)
        tokens, finite = choose_tokens(
            logits, temperature, thresholds, last_ids, asked[_SEED], positions, penalties
        )
        count_tokens_(counts, rows, tokens, asks)
        return DeviceTokens(tokens, finite, token_logprobs(logits, tokens, asked[_LOGPROBS]))

    def _columns(self, params: Sequence[SamplingParams]) -> torch.Tensor:
        """[10, len(params)], int64, on the CPU."""
        whole = [
            [seed_bits(each) for each in params],
            [min(each.top_k, self._vocab_size) for each in params],
            [penalizes(each) for each in params],
            [each.logprobs for each in params],
        ]
        broken = [
            [each.temperature for each in params],
            [each.top_p for each in params],
            [each.min_p for each in params],
            [each.repetition_penalty for each in params],
            [each.presence_penalty for each in params],
            [each.frequency_penalty for each in params],
        ]
        return torch.cat([torch.tensor(whole), torch.tensor(broken, dtype=torch.float64).view(torch.int64)])


def _places(table_rows: Sequence[int], wanted: set[int]) -> list[int]:
    return [i for i, at in enumerate(table_rows) if at in wanted] if wanted else []
