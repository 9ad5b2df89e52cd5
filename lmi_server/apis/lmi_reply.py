"""LMI's form of an answer: a JSON object (engine=Python: an array of them), or records of one token each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmi_server.continuation import Completion, GenerationRequest, Step, TokenText
from lmi_server.errors import ErrorForm, Problem
from lmi_server.streaming import JSON_LINES, Framing


@dataclass(frozen=True, slots=True)
class LmiReply:
    """How `/invocations` writes."""

    requests: tuple[GenerationRequest, ...]
    """In the order of the prompts; a stream has one."""
    details: bool
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

    def whole(self, completions: Sequence[Completion]) -> Any:
        bodies = [self._body(*each) for each in zip(self.requests, completions, strict=True)]
        return bodies if self.as_list else bodies[0]

    def start(self) -> str:
        return ""

    def step(self, step: Step) -> str:
        """A record for each token; the last of all also carries the whole text and the details."""
        records = [{"token": _token(token, token.shown)} for token in step.tokens]
        if step.completion is not None:
            if not records:  # the end came in a step without a token
                records.append({"token": {"id": -1, "text": "", "log_prob": 0.0, "special_token": True}})
            request = self.requests[step.index]
            last: dict[str, Any] = records[-1]
            last["token"]["text"] += step.rest
            last["generated_text"] = self._text(request, step.completion)
            if self.details:
                last["details"] = _details(request, step.completion)
        return "".join(self._framing.frame(record) for record in records)

    def end(self, completions: Sequence[Completion]) -> str:
        return ""

    def failure(self, problem: Problem) -> str:
        return self._framing.frame(problem.body(ErrorForm.LMI))

    def _body(self, request: GenerationRequest, completion: Completion) -> dict[str, Any]:
        body: dict[str, Any] = {"generated_text": self._text(request, completion)}
        if self.details:
            tokens = [_token(token, token.text) for token in completion.tokens]
            body["details"] = {**_details(request, completion), "tokens": tokens}
        return body

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
