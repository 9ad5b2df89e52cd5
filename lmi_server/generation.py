"""Drives one request through the engine: tokens in, readable text out, until it ends in one way or another.

Here text meets tokens: the engine knows no stop strings, so a match aborts the request there and ends it here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engines.base import Engine, RequestStream
from engines.core import FinishReason, Request, RequestOutput, SamplingParams
from engines.errors import DeadlineExceeded, error_from_kind
from lmi_server.client_gone import ClientWatch
from lmi_server.text.detokenizer import IncrementalDetokenizer
from lmi_server.text.stop_strings import StopMatcher
from lmi_server.text.tokenizer import TextModel

POLL_SECONDS = 0.25
"""How often a wait for the engine looks at the clock and at the client."""


class ClientGone(Exception):
    """Nobody is there to answer."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request: past this point nothing is optional or unchecked."""

    prompt: str
    """The prompt as the client wrote it; for `return_full_text` and `details.inputs`."""
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_strings: tuple[str, ...]
    continues_prompt: bool
    """True: the output goes on where the prompt ends. False: it is a text of its own, as in a chat."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """One generated token."""

    id: int
    text: str
    """The text that this token completes; all of it, stop strings included."""
    shown: str
    """The text that can be shown from this token on: never part of a stop string, perhaps an earlier token's."""
    logprob: float | None
    special: bool


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    text: str
    tokens: tuple[TokenText, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Step:
    """What one output of the engine comes to."""

    tokens: tuple[TokenText, ...]
    rest: str
    """Text held back so far that comes out at the end."""
    completion: Completion | None
    """Set on the last step."""


class Generation:
    """One request's way. Iterate once; `close` when done, however it went."""

    def __init__(
        self,
        request_id: str,
        request: GenerationRequest,
        *,
        engine: Engine,
        text: TextModel,
        client: ClientWatch,
        arrival_time: float,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`arrival_time` and `clock` in seconds of one clock; `timeout` bounds the whole request, in seconds."""
        self._request = Request(request_id, request.prompt_token_ids, request.sampling, arrival_time)
        self._engine = engine
        self._client = client
        self._clock = clock
        self._timeout = timeout
        self._deadline = arrival_time + timeout
        self._text = text
        self._detokenizer = IncrementalDetokenizer(
            text, request.prompt_token_ids if request.continues_prompt else ()
        )
        self._stops = StopMatcher(request.stop_strings)
        # A stop string may be the name of a special token, which no decoded text contains.
        self._stop_ids = {text.special_tokens[s] for s in request.stop_strings if s in text.special_tokens}
        self._tokens: list[TokenText] = []
        self._shown: list[str] = []
        self._engine_done = False
        self.num_generated = 0
        self.first_token_time: float | None = None

    def __iter__(self) -> Iterator[Step]:
        """One step for each output of the engine.

        Raises:
            EngineError: the engine refused or failed the request, or its time is over.
            ClientGone: the client left.
        """
        self._client.start(lambda: self._engine.abort(self._request.id))
        stream = self._engine.submit(self._request)
        while True:
            output = self._next(stream)
            if output.error_kind:
                raise error_from_kind(output.error_kind, output.error_message)
            step = self._take(output)
            if step.completion is not None:
                # Before the last text is written: what a stop string ended must not go on computing.
                self.close()
            yield step
            if step.completion is not None:
                return

    def close(self) -> None:
        """Free what the engine still holds for the request. Idempotent."""
        self._client.stop()
        if not self._engine_done:
            self._engine_done = True
            self._engine.abort(self._request.id)

    def _next(self, stream: RequestStream) -> RequestOutput:
        while True:
            if self._client.left:
                raise ClientGone
            remaining = self._deadline - self._clock()
            if remaining <= 0:
                raise DeadlineExceeded(
                    f"the request took longer than {self._timeout:g} s (option.predict_timeout); "
                    f"{self.num_generated} tokens were generated"
                )
            output = stream.next(min(POLL_SECONDS, remaining))
            if output is not None:
                self._engine_done = output.finished
                return output

    def _take(self, output: RequestOutput) -> Step:
        """Turn an output into text; at a stop string the rest of it is dropped."""
        if output.token_ids and self.first_token_time is None:
            self.first_token_time = self._clock()
        first = len(self._tokens)
        stopped = False
        for index, token_id in enumerate(output.token_ids):
            logprob = output.logprobs[index] if index < len(output.logprobs) else None
            self._take_token(token_id, logprob)
            stopped = self._stops.matched is not None or token_id in self._stop_ids
            if stopped:
                break
        self.num_generated = len(self._tokens)
        finish_reason = FinishReason.STOP_SEQUENCE if stopped else output.finish_reason
        rest = self._end() if finish_reason is not None else ""
        if self._stops.matched is not None:
            finish_reason = FinishReason.STOP_SEQUENCE
        tokens = tuple(self._tokens[first:])
        if finish_reason is None:
            return Step(tokens, rest, None)
        return Step(tokens, rest, Completion("".join(self._shown), tuple(self._tokens), finish_reason))

    def _take_token(self, token_id: int, logprob: float | None) -> None:
        piece = self._detokenizer.push(token_id)
        shown = self._stops.push(piece)
        self._shown.append(shown)
        special = token_id in self._text.special_ids
        self._tokens.append(TokenText(token_id, piece, shown, logprob, special))

    def _end(self) -> str:
        """The text held back by the detokenizer, then by the stop strings."""
        rest = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        self._shown.append(rest)
        return rest
