"""The steps of one call of `generate`: each row samples and stops by its own parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessorList

from engines.core import SampledToken
from engines.python.batch import BatchRow, DynamicBatch
from engines.python.heartbeat_hook import HeartbeatHook
from engines.python.processors import row_processors
from engines.sampling.batch import SamplingRow
from engines.sampling.report import report
from engines.sampling.sampler import Sampler


class Steps:
    """The hooks of one call of `generate`: `choose` runs before its argmax, `advance` after it."""

    def __init__(
        self, batch: DynamicBatch, rows: Sequence[BatchRow], heartbeat: HeartbeatHook, from_decoder: bool
    ) -> None:
        """from_decoder: whether rows continue the decoder's start tokens instead of their prompts."""
        self.waste = batch.waste
        self._batch = batch
        self._rows = rows
        self._heartbeat = heartbeat
        self._from_decoder = from_decoder
        self._sampler: Sampler | None = None
        self._logits = torch.empty(0)
        self._sampled: dict[int, SampledToken] = {}
        self._processors: dict[int, LogitsProcessorList] = {}
        """Logits processors by row index, for rows that use any. Created with the row's first token."""

    def choose(self, input_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Sample a token for each row that is not plain, and mask the row's other tokens.

        input_ids: [num_rows, length], int64; logits: [num_rows, vocab_size], fp32, a copy made for processors.
        Returns `logits`, modified in place.
        """
        if self._from_decoder:
            self._from_decoder = False
            for row, start in zip(self._rows, input_ids.tolist(), strict=True):
                row.begin(start)
        self._logits = logits
        self._sampled = {}
        places = [i for i, row in enumerate(self._rows) if not row.ended and not row.plain]
        if places:
            self._sample(logits, places)
        return logits

    def advance(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Record each row's new token and deliver the outputs.

        input_ids: [num_rows, length], int64, new tokens last. Returns [num_rows], bool: true for rows that have ended.
        """
        tokens = input_ids[:, -1]
        # Checking the largest logit is enough: torch's argmax treats NaN as larger than every number.
        finite = self._logits.gather(1, tokens[:, None])[:, 0].isfinite().tolist()
        outputs = []
        for i, (row, token) in enumerate(zip(self._rows, tokens.tolist(), strict=True)):
            if row.ended:
                self.waste.ended_row_tokens += 1
                continue
            output = row.append_token(self._sampled.get(i) or SampledToken(token, finite=finite[i]))
            if output is not None:
                outputs.append(output)
        self._batch.deliver(outputs)
        self._heartbeat.beat()
        return torch.tensor([row.ended for row in self._rows], device=input_ids.device)

    def _sample(self, logits: torch.Tensor, places: list[int]) -> None:
        """Sample a token for each row in `places`, and mask the row's other tokens."""
        if self._sampler is None:
            self._sampler = Sampler(logits.shape[-1], logits.device)
        index = torch.tensor(places, device=logits.device)
        rows = [self._rows[i].sampling_row() for i in places]
        processed = self._process(logits[index], places, rows)
        sampled = self._sampler.sample(logits[index] if processed is None else processed, rows)
        chosen = torch.tensor([each.token_id for each in sampled], device=logits.device)
        if processed is not None:  # log-probabilities are the model's own, before processing
            logprobs, tops = report(logits[index], chosen, rows)
            sampled = [
                each._replace(logprob=logprobs.get(i), top=tops.get(i, ())) for i, each in enumerate(sampled)
            ]
        logits[index] = -torch.inf
        logits[index, chosen] = 0.0
        self._sampled = dict(zip(places, sampled, strict=True))

    def _process(
        self, logits: torch.Tensor, places: list[int], rows: Sequence[SamplingRow]
    ) -> torch.Tensor | None:
        """Apply the logits processors of the rows that use any.

        logits: [num_places, vocab_size], fp32, row i for `rows[i]`, modified in place. Returns `logits`, or None if no
        row uses processors.
        """
        asking = [(i, row.params.generate) for i, row in enumerate(rows) if row.params.generate is not None]
        for i, params in asking:
            processors = self._processors.get(places[i])
            if processors is None:
                request = self._rows[places[i]].request
                processors = row_processors(params, request, rows[i].num_prompt_tokens, logits.device)
                self._processors[places[i]] = processors
            token_ids = torch.tensor([rows[i].token_ids], device=logits.device)
            logits[i] = processors(token_ids, logits[i : i + 1].clone())[0]
        return logits if asking else None
