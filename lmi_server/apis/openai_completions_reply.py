"""OpenAI's form of completions: `text_completion` objects, with `n` choices for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmi_server.apis.openai_envelope import FINISH_REASONS, Envelope, prompt_logprobs
from lmi_server.continuation import Completion, Step, TokenText
from lmi_server.errors import ErrorReply
from lmi_server.generation import Outcome


@dataclass(frozen=True, slots=True)
class ChoiceShape:
    """What a choice tells beside its text."""

    logprobs: int | None
    """None, or how many of the likeliest tokens are listed beside the chosen one."""
    prompt_logprobs: bool
    """Whether vLLM's field of that name is there."""


class CompletionsReply:
    """How completions are answered. Mutable: it counts the characters of each choice."""

    def __init__(self, envelope: Envelope, streamed: bool, echoed: Sequence[str], shape: ChoiceShape) -> None:
        """`echoed`: for each choice what it begins with, the prompt itself or nothing."""
        self._envelope = envelope
        self._streamed = streamed
        self._echoed = echoed
        self._shape = shape
        self._offsets = [0] * len(echoed)

    @property
    def streamed(self) -> bool:
        return self._streamed

    @property
    def content_type(self) -> str:
        return self._envelope.content_type

    def whole(self, outcome: Outcome) -> Any:
        choices = [self._whole_choice(index, done) for index, done in enumerate(outcome.completions)]
        return self._envelope.whole(choices, outcome)

    def start(self) -> str:
        if self._shape.logprobs is not None:
            return ""  # with its log-probabilities the prompt is told when these are known
        chunks = (self._choice(index, text, (), None) for index, text in enumerate(self._echoed) if text)
        return "".join(map(self._envelope.chunk, chunks))

    def step(self, step: Step) -> str:
        text = step.shown
        tokens: tuple[TokenText, ...] = ()
        if self._shape.logprobs is not None:
            tokens = step.released
            if step.prompt_tokens and self._echoed[step.index]:
                text = self._echoed[step.index] + text
                tokens = step.prompt_tokens + tokens
        if not text and not tokens and step.completion is None:
            return ""
        return self._envelope.chunk(self._choice(step.index, text, tokens, step.completion))

    def end(self, outcome: Outcome) -> str:
        return self._envelope.end(outcome)

    def failure(self, problem: ErrorReply) -> str:
        return self._envelope.failure(problem)

    def _whole_choice(self, index: int, done: Completion) -> dict[str, Any]:
        echoed = self._echoed[index]
        tokens = done.prompt_tokens + done.released if echoed else done.released
        choice = self._choice(index, echoed + done.text, tokens, done)
        if self._shape.prompt_logprobs:
            choice |= prompt_logprobs(done.prompt_tokens)
        return choice

    def _choice(
        self, index: int, text: str, tokens: Sequence[TokenText], completion: Completion | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": None if self._shape.logprobs is None else self._token_lists(index, tokens),
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
            "top_logprobs": [self._top(token) for token in tokens] if self._shape.logprobs else None,
        }

    def _top(self, token: TokenText) -> dict[str, float] | None:
        """The likeliest, and the token itself; None for a prompt's first token, of which nothing is known."""
        if token.logprob is None:
            return None
        found: dict[str, float] = {}
        # Several may have the same text: parts of a character have none. The likeliest then stands for all.
        for one in token.top_told(token.text)[: self._shape.logprobs]:
            found.setdefault(one.text, one.logprob)
        found.setdefault(token.text, token.logprob)
        return found
