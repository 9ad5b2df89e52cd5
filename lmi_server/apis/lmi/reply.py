"""LMI's answer format: a JSON object (engine=Python: an array of objects), or a stream with one record per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmi_server.apis.openai.reply import prompt_logprobs
from lmi_server.apis.parameters.row import Parameters
from lmi_server.errors import ErrorForm, ErrorReply
from lmi_server.generation.answer_text import Completion, GenerationRequest, TextOutput, TokenText
from lmi_server.generation.generation import GenerationResult
from lmi_server.generation.turns import in_turns
from lmi_server.http.framing import JSON_LINES, Framing

NO_TOKEN = {"id": -1, "text": "", "log_prob": 0.0, "special_token": True}
"""Record of a last output without a token."""


def shows_details(parameters: Parameters, best_of: int) -> bool:
    """Return True if answers have `details`: they or a part of them were requested, or there are several candidates."""
    return bool(
        parameters["details"]
        or parameters["decoder_input_details"]
        or parameters["prompt_logprobs"] is not None
        or parameters["top_n_tokens"]
        or best_of > 1
        or parameters["num_beams"] > 1
    )


class LmiReply:
    """Writes the answer of `/invocations`."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        parameters: Parameters,
        framing: Framing | None,
        *,
        as_list: bool,
    ) -> None:
        """`requests`: one for each prompt. `framing`: None for a whole answer. `as_list`: return an array."""
        self.streamed = framing is not None
        self._framing = framing or JSON_LINES
        self.content_type = self._framing.content_type
        self._requests = requests
        self._as_list = as_list
        self._shows_details = shows_details(parameters, requests[0].best_of)
        self._shows_prompt: bool = parameters["decoder_input_details"]
        self._shows_prompt_logprobs = parameters["prompt_logprobs"] is not None
        self._shows_top_tokens = parameters["top_n_tokens"] > 0
        self._shows_full_text: bool = parameters["return_full_text"]

    def body(self, result: GenerationResult) -> Any:
        n = self._requests[0].n
        bodies = [
            self._prompt_body(request, result.completions[prompt * n : (prompt + 1) * n])
            for prompt, request in enumerate(self._requests)
        ]
        return bodies if self._as_list else bodies[0]

    def start(self) -> list[str]:
        return []

    def records(self, output: TextOutput) -> list[str]:
        """Return a record for each token. The last record of an answer also carries the whole text and the details."""
        records = [self._record(token) for token in output.tokens]
        if output.completion is not None:
            if not records:  # the last output has no token
                records.append({"token": dict(NO_TOKEN)})
            request = self._requests[0]
            last: dict[str, Any] = records[-1]
            last["token"]["text"] += output.flushed_text
            last["generated_text"] = self._text(request, output.completion)
            if self._shows_details:
                last["details"] = self._details(request, output.completion)
        return [self._framing.frame(record) for record in records]

    def end(self, result: GenerationResult) -> list[str]:
        return []

    def failure(self, error: ErrorReply) -> str:
        return self._framing.frame(error.body(ErrorForm.LMI))

    def _record(self, token: TokenText) -> dict[str, Any]:
        """Return a record of a stream. Text that cannot be shown yet is left out."""
        record: dict[str, Any] = {"token": token_record(token, token.shown)}
        if self._shows_top_tokens:
            record["top_tokens"] = top_token_records(token, token.shown)
        return record

    def _prompt_body(self, request: GenerationRequest, completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the answers to one prompt: the first one in LMI's fields, the others in its details."""
        first = completions[0]
        body: dict[str, Any] = {"generated_text": self._text(request, first)}
        if self._shows_details:
            details = self._full_details(request, first)
            if self._shows_prompt:
                details["prefill"] = [token_record(token, token.name) for token in first.prompt_tokens]
            if self._shows_prompt_logprobs:
                details |= prompt_logprobs(first.prompt_tokens)
            if len(completions) > 1:
                details["best_of_sequences"] = [
                    {"generated_text": self._text(request, other), **self._full_details(request, other)}
                    for other in completions[1:]
                ]
            body["details"] = details
        return body

    def _full_details(self, request: GenerationRequest, completion: Completion) -> dict[str, Any]:
        details = self._details(request, completion)
        details["tokens"] = [token_record(token, token.text) for token in in_turns(completion.tokens)]
        return details

    def _details(self, request: GenerationRequest, completion: Completion) -> dict[str, Any]:
        """Return the details that the last record of a stream has too."""
        details: dict[str, Any] = {
            "finish_reason": completion.finish_reason,
            "generated_tokens": len(completion.tokens),
            "inputs": request.prompt,
        }
        if self._shows_top_tokens:
            details["top_tokens"] = [
                top_token_records(token, token.shown if self.streamed else token.text)
                for token in in_turns(completion.tokens)
            ]
        return details

    def _text(self, request: GenerationRequest, completion: Completion) -> str:
        return request.prompt + completion.text if self._shows_full_text else completion.text


def token_record(token: TokenText, text: str) -> dict[str, Any]:
    record: dict[str, Any] = {"id": token.id, "text": text, "log_prob": token.logprob}
    if token.special:
        record["special_token"] = True
    return record


def top_token_records(token: TokenText, text: str) -> list[dict[str, Any]]:
    return [{"id": one.id, "text": one.text, "log_prob": one.logprob} for one in token.top_as(text)]
