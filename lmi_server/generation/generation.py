"""Run the prompts of one HTTP request through the engine until all have finished or one has failed.

`answer_text.py` converts each output to text. If it finds a stop string, the engine's request is aborted here.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engines.base import Engine, RequestStream
from engines.core import AbortReason, RequestOutput
from engines.errors import (
    DeadlineExceeded,
    EngineError,
    InvalidRequest,
    TooManyOutputs,
    error_from_kind,
    tokens_generated,
)
from lmi_server.errors import InvalidField
from lmi_server.generation.answer_text import (
    Completion,
    CompletionText,
    GenerationRequest,
    PromptText,
    TextOutput,
)
from lmi_server.generation.candidates import HttpRequest, best_completions, candidates
from lmi_server.generation.time_limit import TimeLimit
from lmi_server.http.client_gone import ClientDisconnected, ClientWatch
from lmi_server.text.tokenizer import TextModel


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The completions of all prompts of one HTTP request."""

    completions: tuple[Completion, ...]
    """`n` completions for each prompt, in the order of the prompts."""
    num_generated: int
    """Generated tokens, including those of completions that `best_of` dropped."""
    num_cached_tokens: int
    """Prompt tokens that were in the engine's cache; each prompt counts once."""


class TextGeneration:
    """All prompts of one HTTP request. Iterate once, and always call `close`."""

    def __init__(
        self,
        http: HttpRequest,
        requests: Sequence[GenerationRequest],
        *,
        engine: Engine,
        text: TextModel,
        client: ClientWatch,
        max_top_tokens: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_top_tokens`: maximum number of most likely tokens reported with all generated tokens. `clock`: the clock
        of `http.arrival_time`."""
        self._http = http
        self._prompts = tuple(requests)
        self._candidates = candidates(http, requests)
        prompts = [PromptText(request, text) for request in requests]
        self._texts = [
            CompletionText(index, prompts[candidate.prompt])
            for index, candidate in enumerate(self._candidates)
        ]
        self._open = {
            candidate.request.id: answer
            for candidate, answer in zip(self._candidates, self._texts, strict=True)
        }
        """Texts of the requests that the engine still runs, by request id."""
        self._completions: dict[int, Completion] = {}
        """Finished completions by index."""
        self._engine = engine
        self._max_top_tokens = max_top_tokens
        self._num_top_tokens = 0
        self._client = client
        self._clock = clock
        self._abort_reason = AbortReason.CLIENT_LEFT
        """Reason for aborting open requests. Without an error, requests stay open only if the client disconnects."""
        self.first_token_time: float | None = None

    @property
    def num_prompts(self) -> int:
        return len(self._prompts)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self._prompts)

    @property
    def num_generated(self) -> int:
        """Generated tokens of all completions."""
        return sum(answer.num_generated for answer in self._texts)

    @property
    def result(self) -> GenerationResult:
        """The completions and token counts. Complete after the last output."""
        done = [self._completions[index] for index in sorted(self._completions)]
        cached: dict[int, int] = {}
        for candidate, answer in zip(self._candidates, self._texts, strict=True):
            # Only the first completion counts: the later ones share its pages, not pages of earlier requests.
            cached.setdefault(candidate.prompt, answer.num_cached_tokens)
        return GenerationResult(
            best_completions(self._prompts, done), self.num_generated, sum(cached.values())
        )

    @property
    def finished(self) -> bool:
        """Whether the last output has been yielded."""
        return len(self._completions) == len(self._candidates)

    def __iter__(self) -> Iterator[TextOutput]:
        """Yield the text of each output of the engine; outputs of several completions are interleaved.

        Raises:
            EngineError: the engine rejected or failed one of the requests, or the request timed out.
            InvalidRequest: there are more than `max_top_tokens`.
            ClientDisconnected: the client disconnected.
        """
        # Submit all requests at once, so that they can share a batch.
        stream = self._engine.submit(*(candidate.request for candidate in self._candidates))
        # A later choice may overtake the first one, which reports the prompt's log-probabilities.
        early: list[RequestOutput] = []
        ready: deque[RequestOutput] = deque()
        self._client.start(self._abort)
        try:
            while not self.finished:
                output = ready.popleft() if ready else self._next(stream)
                answer = self._open.get(output.id)
                if answer is None:  # the output was sent before a stop string ended the request
                    continue
                if not output.error_kind and answer.prompt.lacks_logprobs(output):
                    early.append(output)
                    continue
                if output.prompt_logprobs:
                    ready.extend(early)
                    early.clear()
                if output.finished:
                    del self._open[output.id]
                if output.error_kind:
                    raise self._failure(answer, output)
                yield self._process_output(answer, output)
        except ClientDisconnected:
            raise
        except DeadlineExceeded:
            self._abort_reason = AbortReason.TIMEOUT
            raise
        except Exception:  # unexpected errors too: the response cannot be completed
            self._abort_reason = AbortReason.FAILED
            raise

    def close(self) -> None:
        """Stop watching the client, and abort the requests that the engine still runs. Idempotent."""
        self._client.stop()
        self._abort()

    def _abort(self) -> None:
        while self._open:
            request_id, _ = self._open.popitem()
            self._engine.abort(request_id, self._abort_reason)

    def _next(self, stream: RequestStream) -> RequestOutput:
        limit = self._http.limit
        if limit is None:
            return self._client.next_output(stream.next)
        return self._client.next_output(
            stream.next, limit.deadline, lambda: self._timed_out(limit), self._clock
        )

    def _process_output(self, answer: CompletionText, output: RequestOutput) -> TextOutput:
        if output.token_ids and self.first_token_time is None:
            self.first_token_time = self._clock()
        self._num_top_tokens += len(output.token_ids) * answer.request.sampling.top_logprobs
        if self._num_top_tokens > self._max_top_tokens:
            most = self._max_top_tokens
            raise InvalidRequest(
                f"request: more than {most} most likely tokens (top_logprobs, logprobs, top_n_tokens), with those of"
                f" candidates that best_of drops; accepted: at most {most} in an answer that is not streamed"
            )
        text = answer.add_output(output)
        if text.completion is not None:
            self._completions[text.index] = text.completion
            # Abort before the last text is written, so that the engine does not compute past a stop string.
            if self._open.pop(output.id, None) is not None:
                self._engine.abort(output.id, AbortReason.STOP_SEQUENCE)
            if self.finished:
                self.close()
        return text

    def _failure(self, answer: CompletionText, output: RequestOutput) -> EngineError:
        """Return the error of the whole HTTP request. With several prompts, the message names the one that failed."""
        # The engine may time out first, but only the web process knows the limit and its name.
        limit = self._http.limit if self._http.engine_enforces_deadline else None
        if limit is not None and output.error_kind == DeadlineExceeded.kind:
            return self._timed_out(limit)
        if output.error_kind == TooManyOutputs.kind:
            return InvalidField(answer.request.count_field, output.error_message)
        where = f"{answer.request.field}: " if len(self._prompts) > 1 else ""
        return error_from_kind(output.error_kind, where + output.error_message)

    def _timed_out(self, limit: TimeLimit) -> DeadlineExceeded:
        return limit.exceeded(tokens_generated(self.num_generated))
