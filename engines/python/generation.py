"""A batch of requests through `generate` of transformers: one call, each row by its own parameters.

`generate` itself is greedy here. One logits processor lets each row that samples or penalises choose its token and
leaves it no other; one stopping criterion looks at each row's new token and says which rows have ended.
"""

from __future__ import annotations

import gc
import logging
from collections import defaultdict
from collections.abc import Sequence

import torch

from engines.core import Request, RequestOutput
from engines.errors import DeadlineExceeded, InvalidRequest, RequestFailed
from engines.python.batch import Batch, Listener, Waste
from engines.python.model import Model
from engines.python.padding import generate, padding_is_harmless
from engines.python.pulse import Pulse, TimeIsOver
from engines.python.rows import Row
from engines.python.steps import Advance, Choose, Steps
from engines.vocabulary import check_token_ids

logger = logging.getLogger(__name__)


class Generation:
    """Runs batches, one after the other."""

    def __init__(self, model: Model, pulse: Pulse, batch_timeout: float) -> None:
        """Computes a little, so that a model that is ready is one that has computed.

        batch_timeout: seconds, for the text of an error.

        Raises: whatever goes wrong with the model.
        """
        self._model = model
        self._pulse = pulse
        self._batch_timeout = batch_timeout
        self._pads = model.takes_mask and padding_is_harmless(model)
        if not self._pads:
            logger.warning("this model cannot leave padding out: only prompts of equal length share a call")

    def run(self, requests: Sequence[Request], deadline: float, listener: Listener) -> Waste:
        """Generate until each request has had its last output, or is not wanted any more.

        deadline: by the pulse's clock; what is not done then ends with an error.
        """
        batch = Batch([Row(request) for request in requests], listener)
        refusals = [output for row in batch.rows if (output := self._check(row)) is not None]
        if refusals:
            batch.tell(refusals)
        self._pulse.deadline = deadline
        try:
            for group in self._groups(batch.rows):
                self._run(batch, group)
        finally:
            self._pulse.deadline = None
        return batch.waste

    def _check(self, row: Row) -> RequestOutput | None:
        """The refusal of a prompt with a token that the model lacks."""
        try:
            check_token_ids(row.request.prompt_token_ids, self._model.num_embeddings)
        except InvalidRequest as error:
            return row.fail(error)
        return None

    def _groups(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Rows that can share a call: all of them, but for a model that cannot leave padding out."""
        if self._pads:
            return [list(rows)]
        by_length: defaultdict[int, list[Row]] = defaultdict(list)
        for row in rows:
            by_length[len(row.request.prompt_token_ids)].append(row)
        return list(by_length.values())

    def _run(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Rows whose call fails are halved until the culprit is alone, and only that one ends with an error."""
        rows = [row for row in rows if not row.ended]
        if not rows or self._try(batch, rows):
            return
        self._free_memory()
        left = [row for row in rows if not row.ended]
        if len(rows) == 1:
            batch.tell([row.fail(RequestFailed("this request failed in the engine")) for row in left])
            return
        middle = (len(left) + 1) // 2
        self._run(batch, left[:middle])
        self._run(batch, left[middle:])

    def _try(self, batch: Batch, rows: Sequence[Row]) -> bool:
        """One call of `generate`; False when it failed for a reason that may lie in one of its rows."""
        steps = Steps(batch, rows, self._pulse, self._model.is_encoder_decoder)
        try:
            self._pulse.beat()
            self._generate(rows, steps)
        except TimeIsOver:
            batch.tell([row.fail(self._deadline_exceeded(row)) for row in rows if not row.ended])
        except Exception:  # the batch's edge: whatever a request can break, it breaks for itself
            logger.exception("a batch of %d failed", len(rows))
            return False
        return True

    def _generate(self, rows: Sequence[Row], steps: Steps) -> None:
        """Raises: whatever the model or sampling raises; `TimeIsOver`."""
        prompts = [row.request.prompt_token_ids for row in rows]
        for row, prompt in zip(rows, prompts, strict=True):
            row.begin(prompt)
        longest = max(row.request.sampling.max_new_tokens for row in rows)
        steps.waste.prompt_padding += max(map(len, prompts)) * len(prompts) - sum(map(len, prompts))
        generate(self._model, prompts, longest, Choose(steps), Advance(steps))

    def _deadline_exceeded(self, row: Row) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"the batch took longer than {self._batch_timeout:g} s (option.predict_timeout); "
            f"{row.num_delivered} tokens were generated"
        )

    def _free_memory(self) -> None:
        """After a failure, which may have been for want of memory. Raises when the GPU itself has failed."""
        gc.collect()
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
            torch.cuda.empty_cache()
