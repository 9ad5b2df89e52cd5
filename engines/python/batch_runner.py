"""Run a batch of requests through one call of transformers' `generate`, each row with its own parameters.

`generate` itself is greedy. For rows that sample or use penalties, a logits processor chooses the token and masks all
others. A stopping criterion reads each row's new token and reports which rows have ended (`steps.py`).
"""

from __future__ import annotations

import gc
import logging
from collections import defaultdict
from collections.abc import Sequence

import torch

from engines.core import Request, RequestOutput
from engines.errors import InvalidRequest, RequestFailed
from engines.python.batch import BatchRow, CallStarted, Deliver, DynamicBatch
from engines.python.heartbeat_hook import DeadlineReached, HeartbeatHook
from engines.python.messages import BatchWaste
from engines.python.model import LoadedModel
from engines.python.padding import generate, padding_is_harmless
from engines.python.rotary import reset_frequencies
from engines.python.running import batch_timed_out
from engines.python.steps import Steps
from engines.vocabulary import check_token_ids

logger = logging.getLogger(__name__)


class BatchRunner:
    """Runs one batch at a time."""

    def __init__(self, model: LoadedModel, heartbeat: HeartbeatHook, batch_timeout: float) -> None:
        """Test whether padding is harmless, which also runs the model before it is reported as ready.

        batch_timeout: limit of each call of `generate`, in seconds.

        Raises: any error of the model.
        """
        self._model = model
        self._heartbeat = heartbeat
        self._batch_timeout = batch_timeout
        self._pads = model.takes_mask and padding_is_harmless(model)
        if not self._pads:
            logger.warning(
                "padding changes the output of this model: only prompts of equal length are batched together"
            )

    def run(self, requests: Sequence[Request], deliver: Deliver, call_started: CallStarted) -> BatchWaste:
        """Generate until every request has had its last output or is no longer wanted.

        Requests that are unfinished at the time limit of their call end with an error.
        """
        batch = DynamicBatch([BatchRow(request) for request in requests], deliver, call_started)
        refusals = [output for row in batch.rows if (output := self._check(row)) is not None]
        if refusals:
            batch.deliver(refusals)
        try:
            for group in self._groups(batch.rows):
                self._run(batch, group)
        finally:
            self._heartbeat.deadline = None
        return batch.waste

    def _check(self, row: BatchRow) -> RequestOutput | None:
        """End the row if the model cannot run its request. Return the error output, or None."""
        new, limit = row.request.sampling.max_new_tokens, self._model.max_decoder_positions
        try:
            check_token_ids(row.request.prompt_token_ids, self._model.num_embeddings)
            if limit is not None and new > limit:
                raise InvalidRequest(
                    f"max_new_tokens: given {new}; accepted: at most {limit}, the positions of the model's decoder"
                )
        except InvalidRequest as error:
            return row.fail(error)
        return None

    def _groups(self, rows: Sequence[BatchRow]) -> list[list[BatchRow]]:
        """Group the rows that can share a call: all rows, or rows of equal length if padding changes the output."""
        if self._pads:
            return self._split_by_reach(rows)
        by_length: defaultdict[int, list[BatchRow]] = defaultdict(list)
        for row in rows:
            by_length[len(row.request.prompt_token_ids)].append(row)
        return [group for each in by_length.values() for group in self._split_by_reach(each)]

    def _split_by_reach(self, rows: Sequence[BatchRow]) -> list[list[BatchRow]]:
        """Split rows so that none changes the rotary frequencies of others: each call stays within `unscaled_length`.

        A row that exceeds this length itself runs alone.
        """
        limit = self._model.unscaled_length
        if limit is None:
            return [list(rows)]
        groups: list[list[BatchRow]] = []
        for row in rows:
            fitting = (group for group in groups if _reach([*group, row]) <= limit)
            if (group := next(fitting, None)) is not None:
                group.append(row)
            else:
                groups.append([row])
        return groups

    def _run(self, batch: DynamicBatch, rows: Sequence[BatchRow]) -> None:
        """Generate for rows. If the call fails, retry in halves, so that only the request at fault fails."""
        rows = [row for row in rows if not row.ended]
        if not rows or self._try(batch, rows):
            return
        self._free_memory()
        remaining = [row for row in rows if not row.ended]
        if len(rows) == 1:
            error = RequestFailed("this request failed in the engine; the server's log has the details")
            batch.deliver([row.fail(error) for row in remaining])
            return
        middle = (len(remaining) + 1) // 2
        self._run(batch, remaining[:middle])
        self._run(batch, remaining[middle:])

    def _try(self, batch: DynamicBatch, rows: Sequence[BatchRow]) -> bool:
        """Call `generate` once. Return False if it failed, possibly because of a single row."""
        steps = Steps(batch, rows, self._heartbeat, self._model.is_encoder_decoder)
        try:
            batch.call_started([row.id for row in rows])
            self._heartbeat.start_call(self._batch_timeout)
            self._heartbeat.beat()
            self._generate(rows, steps)
        except DeadlineReached:
            unfinished = [row for row in rows if not row.ended]
            batch.deliver(
                [row.fail(batch_timed_out(self._batch_timeout, row.num_delivered)) for row in unfinished]
            )
        except Exception:  # one request's error must not fail the others
            logger.exception("a batch of %d failed", len(rows))
            return False
        return True

    def _generate(self, rows: Sequence[BatchRow], steps: Steps) -> None:
        """Call `generate` for rows. Raises: `DeadlineReached`; any error of the model or the sampler."""
        if self._model.is_encoder_decoder:  # the rows begin with the decoder's start tokens
            prompts = [list(row.request.prompt_token_ids) for row in rows]
            longest = max(row.request.sampling.max_new_tokens for row in rows)
        else:
            prompts = [row.resume() for row in rows]
            longest = max(row.request.sampling.max_new_tokens - row.num_delivered for row in rows)
        steps.waste.prompt_padding += max(map(len, prompts)) * len(prompts) - sum(map(len, prompts))
        if self._model.unscaled_length is not None:
            reset_frequencies(self._model.module)
        generate(self._model, prompts, longest, steps.choose, steps.advance)

    def _free_memory(self) -> None:
        """Free memory after a failure, perhaps an out-of-memory error. Raises if the GPU itself has failed."""
        gc.collect()
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
            torch.cuda.empty_cache()


def _reach(rows: Sequence[BatchRow]) -> int:
    """Return the length that a call of these rows can reach. Prompts are padded to the longest one."""
    longest = max(len(row.request.prompt_token_ids) for row in rows)
    return longest + max(row.request.sampling.max_new_tokens for row in rows)
