"""One batch: its rows, the callback that receives their outputs, and the tokens it wasted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from engines.core import FinishReason, Request, RequestOutput, SampledToken
from engines.errors import EngineError, RequestFailed
from engines.python.messages import BatchWaste
from engines.python.running import Delivered
from engines.sampling.batch import SamplingRow

Deliver = Callable[[list[RequestOutput]], Collection[str]]
"""Callback that takes the outputs of one step, possibly none, and returns the ids of requests no longer wanted."""

CallStarted = Callable[[list[str]], None]
"""Callback that takes the ids of the requests of a call of `generate` when it starts."""


class BatchRow:
    """One request of a batch. Lives as long as the batch, across several calls of `generate` if one fails.

    A later call continues after the tokens that were delivered. A model with an encoder starts again and must reproduce
    them: greedy decoding does, and so does sampling, which depends only on seed and position.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ended = False
        self.plain = request.sampling.plain
        """Whether each token is the one with the largest logit, and nothing else is requested."""
        self._delivered = Delivered()
        self._context: list[int] = []
        self._num_start = 0

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_delivered(self) -> int:
        return len(self._delivered.tokens)

    def resume(self) -> list[int]:
        """Start a call of `generate` after the prompt and all delivered tokens. Return these."""
        self.begin([*self.request.prompt_token_ids, *self._delivered.tokens])
        self._num_start = len(self.request.prompt_token_ids)
        self._delivered.restart(self.num_delivered)
        return self._context.copy()

    def begin(self, context: Sequence[int]) -> None:
        """Start a call of `generate`. context: the tokens before the first new one (prompt or decoder start)."""
        self._delivered.restart()
        self._context = list(context)
        self._num_start = len(self._context)

    def sampling_row(self) -> SamplingRow:
        return SamplingRow(self.id, self.request.sampling, self._context, self._num_start)

    def append_token(self, token: SampledToken) -> RequestOutput | None:
        """Append the next token. Return its output, or None if the token was already delivered."""
        if not token.finite:
            return self.fail(RequestFailed("the model's output for this request is not finite"))
        self._context.append(token.token_id)
        try:
            if not self._delivered.record((token.token_id,)):
                return None
        except RequestFailed as error:
            return self.fail(error)
        reason = None
        sampling = self.request.sampling
        if token.token_id in sampling.stop_token_ids:
            reason = FinishReason.EOS_TOKEN
        elif self.num_delivered >= sampling.max_new_tokens:
            reason = FinishReason.LENGTH
        self.ended = reason is not None
        return RequestOutput(
            self.id,
            (token.token_id,),
            () if token.logprob is None else (token.logprob,),
            (token.top,) if sampling.top_logprobs else (),
            finish_reason=reason,
        )

    def fail(self, error: EngineError) -> RequestOutput:
        """End the row with an error."""
        self.ended = True
        return RequestOutput.failed(self.id, error)


class DynamicBatch:
    """All rows of a batch, across all calls of `generate`."""

    def __init__(self, rows: Sequence[BatchRow], deliver: Deliver, call_started: CallStarted) -> None:
        self.rows = rows
        self.waste = BatchWaste()
        self._by_id = {row.id: row for row in rows}
        self._deliver = deliver
        self.call_started = call_started

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """Deliver outputs, and end the rows that are no longer wanted."""
        for request_id in self._deliver(outputs):
            if request_id in self._by_id:
                self._by_id[request_id].ended = True
