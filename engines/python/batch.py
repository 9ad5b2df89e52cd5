"""One batch: its rows, who receives their outputs, and what it computed in vain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engines.core import FinishReason, Request, RequestOutput, SampledToken
from engines.errors import EngineError, RequestFailed
from engines.python.running import Delivered
from engines.sampling.batch import SamplingRow

Deliver = Callable[[list[RequestOutput]], Collection[str]]
"""Takes the outputs of one step, perhaps none; returns the ids of requests that want no more."""


class BatchRow:
    """Lives as long as its batch, through several calls of `generate` when one fails.

    A later call generates from the prompt again. Tokens that were delivered are not delivered twice, but they must come
    out the same: greedy tokens do, and sampled ones, which depend on seed and position alone.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ended = False
        self.plain = request.sampling.plain
        """Whether its tokens are those with the largest logit, and nothing else is requested."""
        self._delivered = Delivered()
        self._context: list[int] = []
        self._num_start = 0

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_delivered(self) -> int:
        return len(self._delivered.tokens)

    def begin(self, context: Sequence[int]) -> None:
        """Start a call of `generate`. context: tokens before the first new one: the prompt, or a decoder's start."""
        self._delivered.restart()
        self._context = list(context)
        self._num_start = len(self._context)

    def sampling_row(self) -> SamplingRow:
        return SamplingRow(self.id, self.request.sampling, self._context, self._num_start)

    def take(self, token: SampledToken) -> RequestOutput | None:
        """Append the next token. Returns the output; None for a token that was delivered before."""
        if not token.finite:
            return self.fail(RequestFailed("the model's output for this request is not finite"))
        self._context.append(token.token_id)
        try:
            if not self._delivered.take((token.token_id,)):
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
        return RequestOutput(self.id, error_kind=error.kind, error_message=str(error))


@dataclass(slots=True)
class BatchWaste:
    """Tokens computed in vain. Counted by `Steps` and `BatchRunner` while a batch runs."""

    prompt_padding: int = 0
    """Tokens added to pad prompts to the length of the longest."""
    ended_row_tokens: int = 0
    """Tokens computed for rows that had ended while others went on."""


class DynamicBatch:
    """All rows of a batch, whichever call of `generate` they are in."""

    def __init__(self, rows: Sequence[BatchRow], deliver: Deliver) -> None:
        self.rows = rows
        self.waste = BatchWaste()
        self._by_id = {row.id: row for row in rows}
        self._deliver = deliver

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """Pass outputs on, and end the rows that nobody wants any more."""
        for request_id in self._deliver(outputs):
            if request_id in self._by_id:
                self._by_id[request_id].ended = True
