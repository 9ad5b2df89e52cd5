"""Replies that a user's output formatter rewrites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from lmi_server.apis.base import Call
from lmi_server.errors import ErrorReply
from lmi_server.generation.answer_text import Completion, TextOutput, TokenText
from lmi_server.generation.formatter import Formatter
from lmi_server.generation.generation import GenerationResult
from lmi_server.http.client_gone import ClientWatch
from lmi_server.http.json_reply import dump

_DATA = "data: "


class FormattedReply:
    """A reply with records rewritten by a user's formatter. Stateful: it keeps the tokens of each streamed answer."""

    def __init__(self, call: Call, formatter: Formatter, client: ClientWatch) -> None:
        """`call`: the call with the reply to rewrite."""
        self._reply = reply = call.reply
        self._requests = call.requests
        self._parameters = call.parameters
        self._formatter = formatter
        self._client = client
        self._reads_tokens = True
        """Whether the formatter reads tokens. Known after its first response."""
        self._tokens: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        self.streamed = reply.streamed
        self.content_type = reply.content_type

    def body(self, result: GenerationResult) -> Any:
        content = {
            "id": 0,
            "records": [self._reply.body(result)],
            "input": self._input(0),
            "sequences": [_sequence(one) for one in result.completions[: self._requests[0].n]],
            "num_before": 0,
        }
        (value,) = self._formatter.rewrite_response(content, self._client).results
        return msgspec.Raw(value.encode()) if isinstance(value, str) else value

    def start(self) -> str:
        return self._reply.start()

    def records(self, output: TextOutput) -> str:
        frames = [line for line in self._reply.records(output).splitlines() if line]
        framed = bool(frames) and frames[0].startswith(_DATA)
        content: dict[str, Any] = {
            "id": output.index,
            "records": [msgspec.json.decode(frame.removeprefix(_DATA)) for frame in frames],
        }
        if self._reads_tokens:
            content |= self._all_tokens(output)
        rewritten = self._formatter.rewrite_response(content, self._client)
        self._reads_tokens = rewritten.reads_tokens
        return "".join(_frame(value, framed) for value in rewritten.results)

    def end(self, result: GenerationResult) -> str:
        return self._reply.end(result)

    def failure(self, error: ErrorReply) -> str:
        return self._reply.failure(error)

    def _all_tokens(self, output: TextOutput) -> dict[str, Any]:
        """Return the tokens of an answer so far, with its request. The formatter's process keeps no state."""
        tokens = self._tokens[output.index]
        num_before = len(tokens)
        tokens += _tokens(output.tokens, output.flushed_text, ended=output.completion is not None)
        finish_reason = output.completion.finish_reason if output.completion is not None else None
        return {
            "input": self._input(output.index // self._requests[0].best_of),
            "sequences": [{"tokens": tokens, "finish_reason": finish_reason}],
            "num_before": num_before,
        }

    def _input(self, prompt: int) -> dict[str, Any]:
        request = self._requests[prompt]
        return {
            "input_text": request.prompt,
            "input_ids": request.prompt_token_ids,
            "parameters": self._parameters,
        }


def _sequence(completion: Completion) -> dict[str, Any]:
    flushed_text = completion.text[sum(len(token.shown) for token in completion.tokens) :]
    return {
        "tokens": _tokens(completion.tokens, flushed_text, ended=True),
        "finish_reason": completion.finish_reason,
    }


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
