"""One request's row in a batch: what was generated for it, and whether it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from engines.core import FinishReason, Request, RequestOutput
from engines.errors import EngineError, RequestFailed
from engines.sampling.batch import SamplingRow


class Row:
    """Lives as long as its batch, through several tries where one fails. Changed by `Generation` only.

    A later try generates from the prompt again. What was delivered by an earlier one is not delivered twice, but it
    has to come out the same: greedy tokens do, and drawn ones, which depend on seed and position alone.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ended = False
        sampling = request.sampling
        self.plain = sampling.greedy and sampling.repetition_penalty == 1.0 and not sampling.logprobs
        """Its next token is the one with the largest logit, and nothing else is asked for."""
        self._delivered: list[int] = []
        self._context: list[int] = []
        self._position = 0

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_delivered(self) -> int:
        return len(self._delivered)

    def begin(self, context: Sequence[int]) -> None:
        """A new try. context: what stands before the first new token; the prompt, or what a decoder starts with."""
        self._context = list(context)
        self._position = 0

    def sampling_row(self) -> SamplingRow:
        return SamplingRow(self.id, self.request.sampling, self._context)

    def take(self, token_id: int, logprob: float | None, finite: bool) -> RequestOutput | None:
        """The next token; `finite` is False when its logits were not. Returns the output, None for a repeated one."""
        if not finite:
            return self.fail(RequestFailed("the model's output for this request is not finite"))
        self._context.append(token_id)
        place, self._position = self._position, self._position + 1
        if place < len(self._delivered):
            if self._delivered[place] != token_id:
                return self.fail(RequestFailed("this request's batch failed, and it could not be repeated"))
            return None
        self._delivered.append(token_id)
        reason = None
        sampling = self.request.sampling
        if token_id in sampling.stop_token_ids:
            reason = FinishReason.EOS_TOKEN
        elif len(self._delivered) >= sampling.max_new_tokens:
            reason = FinishReason.LENGTH
        self.ended = reason is not None
        return RequestOutput(self.id, (token_id,), () if logprob is None else (logprob,), reason)

    def fail(self, error: EngineError) -> RequestOutput:
        """The row ends with an error."""
        self.ended = True
        return RequestOutput(self.id, error_kind=error.kind, error_message=str(error))
