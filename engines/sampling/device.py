"""Sampling without the host: what is asked of each running sequence stands in a table on the device, and a step's
tokens are chosen by kernels alone, so that the next step can start before anybody has seen them.

Draws are not those of `Sampler`, which inverts a cumulative distribution at a number of its own; which of the two
serves a request depends on the request alone, so the same seed gives the same tokens every time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engines.core import SamplingParams
from lmi_kernels import choose_tokens, logit_thresholds

_GREEDY = SamplingParams(max_new_tokens=1)
_SEED, _TOP_K, _TEMPERATURE, _TOP_P, _MIN_P = range(5)


def device_samples(params: SamplingParams) -> bool:
    """Whether a `DeviceSampler` gives such a request all that it asks for; else it needs a `Sampler`."""
    return (
        params.num_beams == 1
        and not params.logprobs
        and params.top_logprobs == 0
        and params.prompt_logprobs is None
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
        and not params.logit_bias
        and not params.bad_words
        and params.min_new_tokens == 0
        and (params.greedy or params.typical_p == 1.0)
    )


class DeviceSampler:
    """Chooses tokens for the sequences of a table with `num_rows` rows, and one more for padding: row `num_rows`."""

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        # 64 bits each, so that one copy fills a row and one gather reads a batch, whatever the parameters' types.
        padding = self._columns([_GREEDY])
        self._table = padding.repeat(1, num_rows + 1).to(device)
        """[5, num_rows + 1], int64: seeds, top_k, and the bits of temperature, top_p and min_p in fp64."""

    def admit(self, rows: Sequence[int], params: Sequence[SamplingParams]) -> None:
        """From the next `sample` on these rows ask for this; what stood there is forgotten.

        Ordered after what the current stream has been told so far, without waiting for it.

        Args:
            rows: in [0, num_rows), each once.
            params: as many, each with `device_samples`.
        """
        if not rows:
            return
        columns = self._columns(params)
        upload = torch.cat([torch.tensor([list(rows)]), columns])
        if self._device.type == "cuda":
            upload = upload.pin_memory()
        moved = upload.to(self._device, non_blocking=True)
        self._table.index_copy_(1, moved[0], moved[1:])

    def sample(
        self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Kernels only, in the same number whatever is asked for: can be captured in a CUDA graph.

        Args:
            logits: [n, vocab_size], fp16, bf16 or fp32, rows contiguous, not changed.
            rows: [n], int64, on the device: whose logits they are; `num_rows` for padding, also more than once.
            positions: [n], int64, on the device: of the token that is chosen, in its sequence.

        Returns: token ids, [n], int64, and which rows' logits were finite, [n], bool; as `choose_tokens`.
        """
        asked = self._table.index_select(1, rows)
        temperature, top_p, min_p = asked[_TEMPERATURE:].view(torch.float64)
        thresholds, last_ids = logit_thresholds(logits, temperature, asked[_TOP_K], top_p, min_p)
        return choose_tokens(logits, temperature, thresholds, last_ids, asked[_SEED], positions)

    def _columns(self, params: Sequence[SamplingParams]) -> torch.Tensor:
        """[5, len(params)], int64, on the CPU."""
        # A seed's 64 bits, as a number with a sign.
        whole = [
            [each.seed - ((each.seed >> 63) << 64) for each in params],
            [min(each.top_k, self._vocab_size) for each in params],
        ]
        broken = [
            [each.temperature for each in params],
            [each.top_p for each in params],
            [each.min_p for each in params],
        ]
        return torch.cat([torch.tensor(whole), torch.tensor(broken, dtype=torch.float64).view(torch.int64)])
