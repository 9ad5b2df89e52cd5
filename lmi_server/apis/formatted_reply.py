"""Replies that a user's output formatter rewrites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from lmi_server.apis.base import Reply
from lmi_server.errors import ErrorReply
from lmi_server.generation.answer_text import TextOutput, TokenText
from lmi_server.generation.formatter import Formatter
from lmi_server.generation.generation import GenerationResult
from lmi_server.http.client_gone import ClientWatch
from lmi_server.http.json_reply import dump

_DATA = "data: "


class FormattedReply:
    """A reply with records rewritten by a user's formatter. Stateful: it counts the tokens of each answer."""

    def __init__(self, reply: Reply, formatter: Formatter, client: ClientWatch) -> None:
        self._reply = reply
        self._formatter = formatter
        self._client = client
        self._num_tokens: Counter[int] = Counter()
        self.streamed = reply.streamed
        self.content_type = reply.content_type

    def body(self, result: GenerationResult) -> Any:
        first = result.completions[0]
        flushed_text = first.text[sum(len(token.shown) for token in first.tokens) :]
        content = {
            "id": 0,
            "records": [self._reply.body(result)],
            "tokens": _tokens(first.tokens, flushed_text, ended=True),
            "num_before": 0,
            "finish_reason": first.finish_reason,
        }
        (value,) = self._formatter.rewrite_response(content, self._client)
        return msgspec.Raw(value.encode()) if isinstance(value, str) else value

    def start(self) -> str:
        return self._reply.start()

    def records(self, output: TextOutput) -> str:
        frames = [line for line in self._reply.records(output).splitlines() if line]
        framed = bool(frames) and frames[0].startswith(_DATA)
        content = {
            "id": output.index,
            "records": [msgspec.json.decode(frame.removeprefix(_DATA)) for frame in frames],
            "tokens": _tokens(output.tokens, output.flushed_text, ended=output.completion is not None),
            "num_before": self._num_tokens[output.index],
            "finish_reason": output.completion.finish_reason if output.completion is not None else None,
        }
        self._num_tokens[output.index] += len(output.tokens)
        return "".join(
            _frame(value, framed) for value in self._formatter.rewrite_response(content, self._client)
        )

    def end(self, result: GenerationResult) -> str:
        return self._reply.end(result)

    def failure(self, error: ErrorReply) -> str:
        return self._reply.failure(error)


def _tokens(tokens: Sequence[TokenText], flushed_text: str, *, ended: bool) -> list[dict[str, Any]]:
    """Return the tokens for the formatter. Their texts, joined, are the shown text, ending in `flushed_text`."""
    entries: list[dict[str, Any]] = [
        {
            "id": token.id,
            "text": token.shown,
            "log_prob": token.logprob,
            "special_token": token.special or None,
        }
        for token in tokens
    ]
    if ended and not entries:  # the last output has no token
        entries.append({"id": -1, "text": "", "log_prob": 0.0, "special_token": True})
    if entries:
        entries[-1]["text"] += flushed_text
    return entries


def _frame(value: Any, as_events: bool) -> str:
    """Return a string as it is, because the user has framed it. Frame other values like records of the stream."""
    if isinstance(value, str):
        return value
    return f"{_DATA}{dump(value)}\n\n" if as_events else dump(value) + "\n"
