"""One request's row in a batch: the tokens generated for it, and whether it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from engines.core import FinishReason, Request, RequestOutput, SampledToken
from engines.errors import EngineError, RequestFailed
from engines.sampling.batch import SamplingRow


class Row:
    """Lives as long as its batch, through several calls of `generate` when one fails.

    A later call generates from the prompt again. Tokens that were delivered are not delivered twice, but they must come
    out the same: greedy tokens do, and sampled ones, which depend on seed and position alone.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ended = False
        self.plain = request.sampling.plain
        """Whether its tokens are those with the largest logit, and nothing else is requested."""
        self._delivered: list[int] = []
        self._context: list[int] = []
        self._num_start = 0

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_delivered(self) -> int:
        return len(self._delivered)

    def begin(self, context: Sequence[int]) -> None:
        """Start a call of `generate`. context: tokens before the first new one: the prompt, or a decoder's start."""
        self._context = list(context)
        self._num_start = len(self._context)

    def sampling_row(self) -> SamplingRow:
        return SamplingRow(self.id, self.request.sampling, self._context, self._num_start)

    def take(self, token: SampledToken) -> RequestOutput | None:
        """Append the next token. Returns the output; None for a token that was delivered before."""
        if not token.finite:
            return self.fail(RequestFailed("the model's output for this request is not finite"))
        place = len(self._context) - self._num_start
        self._context.append(token.token_id)
        if place < len(self._delivered):
            if self._delivered[place] != token.token_id:
                return self.fail(RequestFailed("this request's batch failed, and it could not be repeated"))
            return None
        self._delivered.append(token.token_id)
        reason = None
        sampling = self.request.sampling
        if token.token_id in sampling.stop_token_ids:
            reason = FinishReason.EOS_TOKEN
        elif len(self._delivered) >= sampling.max_new_tokens:
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
