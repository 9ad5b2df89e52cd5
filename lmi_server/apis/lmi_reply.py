"""LMI's form of an answer: a JSON object (engine=Python: an array of them), or records of one token each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmi_server.apis.openai_envelope import prompt_logprobs
from lmi_server.continuation import Completion, GenerationRequest, Step, TokenText, TopToken
from lmi_server.errors import ErrorForm, ErrorReply
from lmi_server.generation import Outcome
from lmi_server.streaming import JSON_LINES, Framing


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer tells beside its text."""

    details: bool
    prefill: bool
    """`details.prefill`: the prompt's tokens."""
    prompt_logprobs: bool
    """`details.prompt_logprobs`: the same in vLLM's form, with the likeliest in the place of each."""
    top_tokens: bool
    """`top_tokens`, in details and beside each token of a stream."""


@dataclass(frozen=True, slots=True)
class LmiReply:
    """How `/invocations` writes."""

    requests: tuple[GenerationRequest, ...]
    """In the order of the prompts; a stream has one."""
    told: Told
    return_full_text: bool
    as_list: bool
    """engine=Python answers an array with one element for each prompt."""
    framing: Framing | None
    """None: a whole answer."""

    @property
    def streamed(self) -> bool:
        return self.framing is not None

    @property
    def content_type(self) -> str:
        return self._framing.content_type

    @property
    def _framing(self) -> Framing:
        return self.framing or JSON_LINES

    def whole(self, outcome: Outcome) -> Any:
        bodies = []
        start = 0
        for request in self.requests:
            bodies.append(self._body(request, outcome.completions[start : start + request.n]))
            start += request.n
        return bodies if self.as_list else bodies[0]

    def start(self) -> str:
        return ""

    def step(self, step: Step) -> str:
        """A record for each token; the last of all also carries the whole text and the details."""
        records = [self._record(token) for token in step.tokens]
        if step.completion is not None:
            if not records:  # the end came in a step without a token
                records.append({"token": {"id": -1, "text": "", "log_prob": 0.0, "special_token": True}})
            request = self.requests[0]
            last: dict[str, Any] = records[-1]
            last["token"]["text"] += step.rest
            last["generated_text"] = self._text(request, step.completion)
            if self.told.details:
                last["details"] = _details(request, step.completion)
        return "".join(self._framing.frame(record) for record in records)

    def end(self, outcome: Outcome) -> str:
        return ""

    def failure(self, problem: ErrorReply) -> str:
        return self._framing.frame(problem.body(ErrorForm.LMI))

    def _record(self, token: TokenText) -> dict[str, Any]:
        """Of a stream: nothing in it shows more of the generated text than can be shown."""
        record: dict[str, Any] = {"token": _token(token, token.shown)}
        if self.told.top_tokens:
            record["top_tokens"] = _top_tokens(token.top_told(token.shown))
        return record

    def _body(self, request: GenerationRequest, completions: Sequence[Completion]) -> dict[str, Any]:
        """One prompt's answers: the first in the place of the only one, the others among its details."""
        first = completions[0]
        body: dict[str, Any] = {"generated_text": self._text(request, first)}
        if self.told.details:
            details = self._whole_details(request, first)
            if self.told.prefill:
                details["prefill"] = [_token(token, token.text) for token in first.prompt_tokens]
            if self.told.prompt_logprobs:
                details |= prompt_logprobs(first.prompt_tokens)
            if len(completions) > 1:
                details["best_of_sequences"] = [
                    {"generated_text": self._text(request, other), **self._whole_details(request, other)}
                    for other in completions[1:]
                ]
            body["details"] = details
        return body

    def _whole_details(self, request: GenerationRequest, completion: Completion) -> dict[str, Any]:
        details = _details(request, completion)
        details["tokens"] = [_token(token, token.text) for token in completion.tokens]
        if self.told.top_tokens:
            details["top_tokens"] = [_top_tokens(token.top_told(token.text)) for token in completion.tokens]
        return details

    def _text(self, request: GenerationRequest, completion: Completion) -> str:
        return request.prompt + completion.text if self.return_full_text else completion.text


def _details(request: GenerationRequest, completion: Completion) -> dict[str, Any]:
    return {
        "finish_reason": completion.finish_reason,
        "generated_tokens": len(completion.tokens),
        "inputs": request.prompt,
    }


def _token(token: TokenText, text: str) -> dict[str, Any]:
    record: dict[str, Any] = {"id": token.id, "text": text, "log_prob": token.logprob}
    if token.special:
        record["special_token"] = True
    return record


def _top_tokens(top: Sequence[TopToken]) -> list[dict[str, Any]]:
    return [{"id": one.id, "text": one.text, "log_prob": one.logprob} for one in top]
