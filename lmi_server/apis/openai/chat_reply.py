"""OpenAI's format of chat answers: `chat.completion` objects and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmi_server.apis.openai.reply import FINISH_REASONS, OpenAiReply, prompt_logprobs
from lmi_server.apis.pipeline import BodyFields, Conventions
from lmi_server.generation.answer_text import Completion, GenerationRequest, TextOutput, TokenText
from lmi_server.generation.generation import GenerationResult
from lmi_server.generation.turns import in_turns


class ChatReply(OpenAiReply):
    """Writes the answer to a chat."""

    id_prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self, fields: BodyFields, requests: Sequence[GenerationRequest], conventions: Conventions
    ) -> None:
        super().__init__(fields, requests, conventions)
        self._num_choices = requests[0].n
        self._shows_logprobs: bool = fields.parameters["logprobs"]

    def body(self, result: GenerationResult) -> Any:
        choices = [self._full_choice(index, done) for index, done in enumerate(result.completions)]
        prompt = {**self._prompt_ids(0), **prompt_logprobs(result.completions[0].prompt_tokens)}
        return {**self._body(choices, result), **prompt}

    def _full_choice(self, index: int, done: Completion) -> dict[str, Any]:
        tokens = self._listed(done.released, done)
        return {
            "index": index,
            "message": {"role": "assistant", "content": done.text},
            "logprobs": self._logprobs(tokens),
            "finish_reason": FINISH_REASONS[done.finish_reason],
            **self._token_ids(tokens),
        }

    def start(self) -> list[str]:
        role = {"role": "assistant", "content": ""}
        first, *others = (self._delta(index, role) for index in range(self._num_choices))
        prompt = self._prompt_ids(0)
        return [self._chunk(first, prompt), *map(self._chunk, others)]

    def _records(self, output: TextOutput) -> list[str]:
        if not output.tokens and output.completion is None:
            return []
        tokens = self._listed(output.released, output.completion)
        reason = None if output.completion is None else FINISH_REASONS[output.completion.finish_reason]
        delta = self._delta(output.index, {"content": output.shown}, tokens, reason)
        return [self._chunk(delta | self._token_ids(tokens))]

    def _delta(
        self,
        index: int,
        delta: dict[str, str],
        tokens: Sequence[TokenText] = (),
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        """Return the choice of one chunk."""
        logprobs = self._logprobs(tokens) if tokens else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
        if not self._shows_logprobs:
            return None
        return {"content": [_entry(token) for token in in_turns(tokens)], "refusal": None}


def _entry(token: TokenText) -> dict[str, Any]:
    top = [_token(other.text, other.logprob) for other in token.top_as(token.name)]
    return {**_token(token.name, token.logprob), "top_logprobs": top}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    # The token that completes a character has all its bytes, and those before it none. The bytes of a character that
    # stays incomplete cannot be recovered from the text.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": known}
