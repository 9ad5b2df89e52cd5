"""OpenAI's form of a chat answer: `chat.completion` objects and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmi_server.apis.openai_envelope import FINISH_REASONS, Envelope
from lmi_server.continuation import Completion, Step
from lmi_server.errors import Problem


@dataclass(frozen=True, slots=True)
class ChatReply:
    """How a chat is answered."""

    envelope: Envelope
    streamed: bool

    @property
    def content_type(self) -> str:
        return self.envelope.content_type

    def whole(self, completions: Sequence[Completion]) -> Any:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": completion.text},
                "logprobs": None,
                "finish_reason": FINISH_REASONS[completion.finish_reason],
            }
            for index, completion in enumerate(completions)
        ]
        return self.envelope.whole(choices, completions)

    def start(self) -> str:
        return self._chunk(0, {"role": "assistant", "content": ""}, None)

    def step(self, step: Step) -> str:
        text = step.shown
        frames = self._chunk(step.index, {"content": text}, None) if text else ""
        if step.completion is not None:
            frames += self._chunk(step.index, {}, FINISH_REASONS[step.completion.finish_reason])
        return frames

    def end(self, completions: Sequence[Completion]) -> str:
        return self.envelope.end(completions)

    def failure(self, problem: Problem) -> str:
        return self.envelope.failure(problem)

    def _chunk(self, index: int, delta: dict[str, str], finish_reason: str | None) -> str:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self.envelope.chunk(choice)
