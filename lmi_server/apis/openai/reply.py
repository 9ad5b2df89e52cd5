"""Common parts of OpenAI's answers: the object around the choices, chunks, token counts, the end of a stream."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from engines.core import FinishReason
from lmi_server.apis.pipeline import BodyFields, Conventions
from lmi_server.errors import ErrorReply
from lmi_server.generation.answer_text import Completion, GenerationRequest, TextOutput, TokenText
from lmi_server.generation.generation import GenerationResult
from lmi_server.generation.turns import in_turns
from lmi_server.http.framing import SSE, SSE_DONE
from lmi_server.request_log import current_record

FINISH_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
}
"""OpenAI's names of finish reasons."""


class OpenAiReply(ABC):
    """The part of a `Reply` that chats and completions share."""

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    """Value of `object` in a whole answer."""
    chunk_kind: ClassVar[str]
    """Value of `object` in a chunk of a stream."""

    def __init__(
        self, fields: BodyFields, requests: Sequence[GenerationRequest], conventions: Conventions
    ) -> None:
        """Create the reply to the current HTTP request."""
        self.streamed = fields.streamed
        self._framing = fields.framing or SSE
        self._id = f"{self.id_prefix}-{current_record().id}"
        self._created = int(time.time())
        self._model = fields.model
        self._prompts = [request.prompt_token_ids for request in requests]
        self._num_prompt_tokens = sum(map(len, self._prompts))
        self._returns_token_ids: bool = fields.parameters["return_token_ids"]
        self._include_usage = fields.include_usage
        self._continuous_usage = fields.continuous_usage
        self._num_generated = 0
        self._error_form = conventions.error_form

    @property
    def content_type(self) -> str:
        return self._framing.content_type

    def records(self, output: TextOutput) -> list[str]:
        self._num_generated += len(output.tokens)
        return self._records(output)

    @abstractmethod
    def _records(self, output: TextOutput) -> list[str]:
        """Return the chunk for one output. Tokens without visible text have one too, as in vLLM, because clients
        measure the times between chunks."""

    def end(self, result: GenerationResult) -> list[str]:
        """Return the token counts, if the client requested them, and the end of the stream."""
        done = [SSE_DONE] if self._framing is SSE else []
        if not self._include_usage:
            return done
        counts = self._usage(result.num_generated, result.num_cached_tokens)
        usage = {**self._head(self.chunk_kind), "choices": [], "usage": counts}
        return [self._framing.frame(usage), *done]

    def failure(self, error: ErrorReply) -> str:
        return self._framing.frame(error.body(self._error_form))

    def _body(self, choices: list[dict[str, Any]], result: GenerationResult) -> dict[str, Any]:
        counts = self._usage(result.num_generated, result.num_cached_tokens)
        return {**self._head(self.kind), "choices": choices, "usage": counts}

    def _chunk(self, choice: dict[str, Any], more: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return one chunk of a stream, with one choice and `more` fields."""
        record = {**self._head(self.chunk_kind), "choices": [choice], **more}
        if self._include_usage:
            record["usage"] = self._usage(self._num_generated) if self._continuous_usage else None
        return self._framing.frame(record)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _listed(
        self, released: tuple[TokenText, ...], completion: Completion | None
    ) -> tuple[TokenText, ...]:
        """Return the tokens that a choice lists: `released`. With token ids, those that a stop cut off follow at the
        end, so that token ids and log-probabilities match one to one."""
        if completion is None or not self._returns_token_ids:
            return released
        return released + completion.tokens[completion.num_released :]

    def _token_ids(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        """Return vLLM's field `token_ids` of a choice. Empty if the client did not request it."""
        return {"token_ids": [token.id for token in tokens]} if self._returns_token_ids else {}

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        """Return vLLM's field `prompt_token_ids` for a prompt. Empty if the client did not request it."""
        return {"prompt_token_ids": self._prompts[index]} if self._returns_token_ids else {}

    def _usage(self, num_generated: int, num_cached: int | None = None) -> dict[str, Any]:
        """Return the token counts. Each prompt counts once. Tokens of dropped answers count too."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": num_generated,
            "total_tokens": self._num_prompt_tokens + num_generated,
            **({} if num_cached is None else {"prompt_tokens_details": {"cached_tokens": num_cached}}),
        }


def prompt_logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    """Return vLLM's field `prompt_logprobs`, with an object by token id for each token. Empty without tokens."""
    if not tokens:
        return {}
    return {"prompt_logprobs": [_by_id(token) for token in in_turns(tokens)]}


def _by_id(token: TokenText) -> dict[str, Any] | None:
    if token.logprob is None:
        return None
    found = {
        str(one.id): {"logprob": one.logprob, "rank": rank, "decoded_token": one.text}
        for rank, one in enumerate(token.top_as(token.name), 1)
    }
    # The token's rank is known only if it is among the most likely tokens.
    own = {"logprob": token.logprob, "rank": None, "decoded_token": token.name}
    return {str(token.id): found.get(str(token.id), own), **found}
