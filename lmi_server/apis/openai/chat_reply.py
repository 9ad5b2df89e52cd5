"""OpenAI's format of chat answers: `chat.completion` objects and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmi_server.apis.openai.reply import FINISH_REASONS, OpenAiReply, prompt_logprobs
from lmi_server.apis.pipeline import BodyFields, Conventions
from lmi_server.generation.answer_text import GenerationRequest, TextOutput, TokenText
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
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": completion.text},
                "logprobs": self._logprobs(completion.released),
                "finish_reason": FINISH_REASONS[completion.finish_reason],
            }
            for index, completion in enumerate(result.completions)
        ]
        return {**self._body(choices, result), **prompt_logprobs(result.completions[0].prompt_tokens)}

    def start(self) -> str:
        role = {"role": "assistant", "content": ""}
        return "".join(self._delta(index, role) for index in range(self._num_choices))

    def _records(self, output: TextOutput) -> str:
        if not output.tokens and output.completion is None:
            return ""
        tokens = output.released if self._shows_logprobs else ()
        reason = None if output.completion is None else FINISH_REASONS[output.completion.finish_reason]
        return self._delta(output.index, {"content": output.shown}, tokens, reason)

    def _delta(
        self,
        index: int,
        delta: dict[str, str],
        tokens: Sequence[TokenText] = (),
        finish_reason: str | None = None,
    ) -> str:
        logprobs = self._logprobs(tokens) if tokens else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._chunk(choice)

    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
        if not self._shows_logprobs:
            return None
        return {"content": [_entry(token) for token in in_turns(tokens)], "refusal": None}


def _entry(token: TokenText) -> dict[str, Any]:
    top = [_token(other.text, other.logprob) for other in token.top_as(token.name)]
    return {**_token(token.name, token.logprob), "top_logprobs": top}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    # The bytes of an incomplete character cannot be recovered from the token's text.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": known}
