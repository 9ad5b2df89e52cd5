"""What OpenAI's answers have in common: the object round the choices, chunks, token counts, the end of a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.core import FinishReason
from lmi_server.apis.openai_fields import OpenAiFields
from lmi_server.continuation import GenerationRequest, TokenText
from lmi_server.errors import ErrorForm, ErrorReply
from lmi_server.generation import Outcome
from lmi_server.request_log import current_record
from lmi_server.streaming import SSE, SSE_DONE

FINISH_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
}
"""LMI's words in OpenAI's."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The part of an answer that does not depend on what was generated."""

    id: str
    kind: str
    """`object` of a whole answer."""
    chunk_kind: str
    """`object` of a stream's chunk."""
    model: str
    """Whatever name the client used."""
    created: int
    """Seconds since 1970."""
    num_prompt_tokens: int
    """Over all prompts."""
    include_usage: bool
    """A last chunk of a stream carries the token counts."""
    error_form: ErrorForm
    """Whose words a failing stream ends with; it goes by the path, not by the body."""

    @property
    def content_type(self) -> str:
        return SSE.content_type

    def whole(self, choices: list[dict[str, Any]], outcome: Outcome) -> dict[str, Any]:
        return {**self._head(self.kind), "choices": choices, "usage": self._usage(outcome)}

    def chunk(self, choice: dict[str, Any]) -> str:
        """One chunk of a stream, with one choice."""
        record = {**self._head(self.chunk_kind), "choices": [choice]}
        if self.include_usage:
            record["usage"] = None
        return SSE.frame(record)

    def end(self, outcome: Outcome) -> str:
        usage = ""
        if self.include_usage:
            record = {**self._head(self.chunk_kind), "choices": [], "usage": self._usage(outcome)}
            usage = SSE.frame(record)
        return usage + SSE_DONE

    def failure(self, problem: ErrorReply) -> str:
        return SSE.frame(problem.body(self.error_form))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _usage(self, outcome: Outcome) -> dict[str, Any]:
        """Each prompt once, however many answers it has; all generated tokens, also of answers that are not given."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": outcome.num_generated,
            "total_tokens": self.num_prompt_tokens + outcome.num_generated,
            "prompt_tokens_details": {"cached_tokens": outcome.num_cached_tokens},
        }


def make_envelope(
    prefix: str,
    kind: str,
    chunk_kind: str,
    fields: OpenAiFields,
    requests: Sequence[GenerationRequest],
    error_form: ErrorForm,
) -> Envelope:
    """The envelope of the answer to the current HTTP request. `prefix`: what its id starts with."""
    return Envelope(
        id=f"{prefix}-{current_record().id}",
        kind=kind,
        chunk_kind=chunk_kind,
        model=fields.model,
        created=int(time.time()),
        num_prompt_tokens=sum(len(request.prompt_token_ids) for request in requests),
        include_usage=fields.include_usage,
        error_form=error_form,
    )


def prompt_logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    """vLLM's field of that name: for each token of the prompt an object by token id; empty where not asked for."""
    if not tokens:
        return {}
    return {"prompt_logprobs": [_by_id(token) for token in tokens]}


def _by_id(token: TokenText) -> dict[str, Any] | None:
    if token.logprob is None:
        return None
    found = {
        str(one.id): {"logprob": one.logprob, "rank": rank, "decoded_token": one.text}
        for rank, one in enumerate(token.top_told(token.text), 1)
    }
    # Its own rank is only known where it is among the likeliest.
    own = {"logprob": token.logprob, "rank": None, "decoded_token": token.text}
    return {str(token.id): found.get(str(token.id), own), **found}
