"""OpenAI's form of a chat answer: `chat.completion` objects and chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.core import FinishReason
from lmi_server.errors import ErrorForm, Problem
from lmi_server.generation import Completion, Step
from lmi_server.streaming import SSE, SSE_DONE

_FINISH_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.EOS_TOKEN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
}


@dataclass(frozen=True, slots=True)
class ChatReply:
    """How a chat is answered."""

    id: str
    model: str
    """Whatever name the client used."""
    created: int
    """Seconds since 1970."""
    num_prompt_tokens: int
    streamed: bool
    include_usage: bool
    """A last chunk of a stream carries the token counts."""
    error_form: ErrorForm

    @property
    def content_type(self) -> str:
        return SSE.content_type

    def whole(self, completion: Completion) -> Any:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": completion.text},
            "logprobs": None,
            "finish_reason": _FINISH_REASONS[completion.finish_reason],
        }
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": self._usage(completion),
        }

    def start(self) -> str:
        return self._chunk({"role": "assistant", "content": ""}, None)

    def step(self, step: Step) -> str:
        text = "".join(token.shown for token in step.tokens) + step.rest
        frames = self._chunk({"content": text}, None) if text else ""
        if step.completion is not None:
            frames += self._chunk({}, _FINISH_REASONS[step.completion.finish_reason])
            if self.include_usage:
                usage = self._usage(step.completion)
                frames += SSE.frame({**self._head("chat.completion.chunk"), "choices": [], "usage": usage})
            frames += SSE_DONE
        return frames

    def failure(self, problem: Problem) -> str:
        return SSE.frame(problem.body(self.error_form))

    def _chunk(self, delta: dict[str, str], finish_reason: str | None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        record = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self.include_usage:
            record["usage"] = None
        return SSE.frame(record)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _usage(self, completion: Completion) -> dict[str, int]:
        generated = len(completion.tokens)
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.num_prompt_tokens + generated,
        }
