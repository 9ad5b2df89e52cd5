"""Replies that a user's output formatter rewrites."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from lmi_server.apis.base import Call
from lmi_server.apis.lmi.reply import NO_TOKEN, token_record, top_token_records
from lmi_server.errors import ErrorReply
from lmi_server.generation.answer_text import Completion, TextOutput, TokenText
from lmi_server.generation.formatter import Formatter
from lmi_server.generation.generation import GenerationResult
from lmi_server.generation.time_limit import TimeLimit
from lmi_server.http.client_gone import ClientWatch
from lmi_server.http.framing import JSON_LINES, SSE, SSE_DONE, Framing

_RECORD = re.compile(r"\{[^\n]*\}\n(?!\n)|.+?(?:\n\n|\Z)", re.DOTALL)
"""A JSON line or a server-sent event in the text of a formatter, which may write several. Other text stays together."""


class FormattedReply:
    """A reply with records rewritten by a user's formatter. Stateful: it keeps the tokens of each streamed answer."""

    def __init__(self, call: Call, formatter: Formatter, client: ClientWatch, limit: TimeLimit) -> None:
        """`call`: the call with the reply to rewrite; `limit`: the request's."""
        self._reply = reply = call.reply
        self._requests = call.requests
        self._parameters = call.parameters
        self._formatter = formatter
        self._client = client
        self._limit = limit
        self._reads_tokens = True
        """Whether the formatter reads tokens. Known after its first response."""
        self._tokens: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        self._opening: list[str] = []
        """Records that begin the stream. The formatter gets them with the first output."""
        self.streamed = reply.streamed
        self.content_type = reply.content_type

    def body(self, result: GenerationResult) -> Any:
        body, n = self._reply.body(result), self._requests[0].n
        content = {
            "records": body if isinstance(body, list) else [body],
            "answers": [
                self._whole_answer(prompt, result.completions[prompt * n : (prompt + 1) * n])
                for prompt in range(len(self._requests))
            ],
        }
        values = self._formatter.rewrite_response(content, self._client, self._limit).results
        if len(values) == 1 and isinstance(values[0], str):
            return msgspec.Raw(values[0].encode())
        return values if isinstance(body, list) or len(values) > 1 else values[0]

    def start(self) -> list[str]:
        self._opening = self._reply.start()
        return []

    def records(self, output: TextOutput) -> list[str]:
        frames, self._opening = [*self._opening, *self._reply.records(output)], []
        answers = {"answers": [self._all_tokens(output)]} if self._reads_tokens else {}
        return self._rewritten(frames, answers)

    def end(self, result: GenerationResult) -> list[str]:
        if self._reads_tokens:
            return []  # the formatter has written the whole response
        frames = self._reply.end(result)
        done = [frame for frame in frames if frame == SSE_DONE]
        rest = frames[: len(frames) - len(done)]
        return [*self._rewritten(rest, {}), *done] if rest else done

    def failure(self, error: ErrorReply) -> str:
        return self._reply.failure(error)

    def _rewritten(self, frames: Sequence[str], answers: dict[str, Any]) -> list[str]:
        """Return the records in `frames`, or the tokens in `answers`, as the formatter rewrites them."""
        records = [msgspec.json.decode(frame.removeprefix(SSE.prefix)) for frame in frames]
        content = {"records": records, **answers}
        rewritten = self._formatter.rewrite_response(content, self._client, self._limit)
        self._reads_tokens = rewritten.reads_tokens
        framing = SSE if frames and frames[0].startswith(SSE.prefix) else JSON_LINES
        if rewritten.reads_tokens:
            texts = rewritten.results
        else:
            texts = [
                _ended(value, framing) if isinstance(value, str) else framing.frame(value)
                for value in rewritten.results
            ]
        return _RECORD.findall("".join(texts))

    def _whole_answer(self, prompt: int, completions: Sequence[Completion]) -> dict[str, Any]:
        """Return all answers to a prompt for the formatter, with the prompt's tokens if they are reported."""
        answer = self._answer(prompt, prompt, [_sequence(one) for one in completions])
        tokens = [token_record(token, token.name) for token in completions[0].prompt_tokens]
        return {**answer, "prompt_tokens": tokens}

    def _all_tokens(self, output: TextOutput) -> dict[str, Any]:
        """Return the tokens of an answer so far, with its request. The formatter's process keeps no state."""
        tokens = self._tokens[output.index]
        num_before = len(tokens)
        tokens += _tokens(output.tokens, output.flushed_text, ended=output.completion is not None)
        finish_reason = output.completion.finish_reason if output.completion is not None else None
        prompt = output.index // self._requests[0].best_of
        sequences = [{"tokens": tokens, "finish_reason": finish_reason}]
        return self._answer(output.index, prompt, sequences, num_before)

    def _answer(
        self, number: int, prompt: int, sequences: list[dict[str, Any]], num_before: int = 0
    ) -> dict[str, Any]:
        """Return the answers to a prompt for the formatter. num_before: tokens that an earlier call had."""
        request = self._requests[prompt]
        return {
            "id": number,
            "input": {
                "input_text": request.prompt,
                "input_ids": request.prompt_token_ids,
                "parameters": self._parameters,
            },
            "sequences": sequences,
            "num_before": num_before,
        }


def _ended(text: str, framing: Framing) -> str:
    """Return a record that the user has framed, with the line end before the next record, which LMI adds too."""
    if not text or text.endswith(framing.suffix):
        return text
    return text.removesuffix("\n") + framing.suffix


def _sequence(completion: Completion) -> dict[str, Any]:
    flushed_text = completion.text[sum(len(token.shown) for token in completion.tokens) :]
    return {
        "tokens": _tokens(completion.tokens, flushed_text, ended=True),
        "finish_reason": completion.finish_reason,
    }


def _tokens(tokens: Sequence[TokenText], flushed_text: str, *, ended: bool) -> list[dict[str, Any]]:
    """Return the tokens for the formatter. Their texts, joined, are the shown text, ending in `flushed_text`."""
    entries = [_token(token, token.shown) for token in tokens]
    if ended and not entries:  # the last output has no token
        entries.append(dict(NO_TOKEN))
    if entries:
        entries[-1]["text"] += flushed_text
    return entries


def _token(token: TokenText, text: str) -> dict[str, Any]:
    record = token_record(token, text)
    if token.top:
        record["top_tokens"] = top_token_records(token, text)
    return record
