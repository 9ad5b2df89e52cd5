"""OpenAI's form of completions: `text_completion` objects, with one choice for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmi_server.apis.openai_envelope import FINISH_REASONS, Envelope
from lmi_server.continuation import Completion, Step, TokenText
from lmi_server.errors import Problem


class CompletionsReply:
    """How completions are answered. Mutable: in a stream it counts the characters of each choice."""

    def __init__(
        self, envelope: Envelope, streamed: bool, echoed: Sequence[str], logprobs: int | None
    ) -> None:
        """`echoed`: for each prompt what its choice begins with, the prompt itself or nothing. `logprobs`: None,
        or how many of the likeliest tokens are listed beside the chosen one, 0 or 1.
        """
        self._envelope = envelope
        self._streamed = streamed
        self._echoed = echoed
        self._logprobs = logprobs
        self._offsets = [0] * len(echoed)

    @property
    def streamed(self) -> bool:
        return self._streamed

    @property
    def content_type(self) -> str:
        return self._envelope.content_type

    def whole(self, completions: Sequence[Completion]) -> Any:
        choices = [
            self._choice(index, self._echoed[index] + done.text, done.tokens, done)
            for index, done in enumerate(completions)
        ]
        return self._envelope.whole(choices, completions)

    def start(self) -> str:
        chunks = (self._choice(index, text, (), None) for index, text in enumerate(self._echoed) if text)
        return "".join(map(self._envelope.chunk, chunks))

    def step(self, step: Step) -> str:
        text = step.shown
        if not text and step.completion is None and self._logprobs is None:
            return ""
        return self._envelope.chunk(self._choice(step.index, text, step.tokens, step.completion))

    def end(self, completions: Sequence[Completion]) -> str:
        return self._envelope.end(completions)

    def failure(self, problem: Problem) -> str:
        return self._envelope.failure(problem)

    def _choice(
        self, index: int, text: str, tokens: Sequence[TokenText], completion: Completion | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": None if self._logprobs is None else self._token_lists(index, tokens),
            "finish_reason": None if completion is None else FINISH_REASONS[completion.finish_reason],
        }

    def _token_lists(self, index: int, tokens: Sequence[TokenText]) -> dict[str, Any]:
        """The tokens with their log-probabilities, and where in the choice's text each begins."""
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token.text)
        return {
            "text_offset": offsets,
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            # Asked for only where the chosen token is the likeliest.
            "top_logprobs": [{token.text: token.logprob} for token in tokens] if self._logprobs else None,
        }
