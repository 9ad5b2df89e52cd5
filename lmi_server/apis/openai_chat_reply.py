"""OpenAI's form of a chat answer: `chat.completion` objects and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmi_server.apis.openai_envelope import FINISH_REASONS, Envelope, prompt_logprobs
from lmi_server.continuation import Step, TokenText
from lmi_server.errors import ErrorReply
from lmi_server.generation import Outcome


@dataclass(frozen=True, slots=True)
class ChatReply:
    """How a chat is answered."""

    envelope: Envelope
    streamed: bool
    n: int
    """Choices."""
    logprobs: bool
    """Whether each token is told with its log-probability."""

    @property
    def content_type(self) -> str:
        return self.envelope.content_type

    def whole(self, outcome: Outcome) -> Any:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": completion.text},
                "logprobs": self._logprobs(completion.released),
                "finish_reason": FINISH_REASONS[completion.finish_reason],
            }
            for index, completion in enumerate(outcome.completions)
        ]
        return {
            **self.envelope.whole(choices, outcome),
            **prompt_logprobs(outcome.completions[0].prompt_tokens),
        }

    def start(self) -> str:
        return "".join(self._chunk(i, {"role": "assistant", "content": ""}, (), None) for i in range(self.n))

    def step(self, step: Step) -> str:
        text = step.shown
        tokens = step.released if self.logprobs else ()
        frames = self._chunk(step.index, {"content": text}, tokens, None) if text or tokens else ""
        if step.completion is not None:
            frames += self._chunk(step.index, {}, (), FINISH_REASONS[step.completion.finish_reason])
        return frames

    def end(self, outcome: Outcome) -> str:
        return self.envelope.end(outcome)

    def failure(self, problem: ErrorReply) -> str:
        return self.envelope.failure(problem)

    def _chunk(
        self, index: int, delta: dict[str, str], tokens: Sequence[TokenText], finish_reason: str | None
    ) -> str:
        logprobs = self._logprobs(tokens) if tokens else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self.envelope.chunk(choice)

    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        return {"content": [_entry(token) for token in tokens], "refusal": None}


def _entry(token: TokenText) -> dict[str, Any]:
    top = [_token(other.text, other.logprob) for other in token.top_told(token.text)]
    return {**_token(token.text, token.logprob), "top_logprobs": top}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    # A token that is part of a character has no text of its own, so its bytes are not known from it.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": known}
