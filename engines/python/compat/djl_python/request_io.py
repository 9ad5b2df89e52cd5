"""Types for formatters of text generation: a request's input, and the output generated so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Token:
    """One token."""

    id: int = -1
    text: str = ""
    log_prob: float | None = None
    special_token: bool | None = None
    error_msg: str | None = None
    request_id: int | None = field(default=None, init=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the token as a record of LMI. `special_token` and `error_msg` are left out if they are not set."""
        record: dict[str, Any] = {"id": self.id, "text": self.text, "log_prob": self.log_prob}
        if self.special_token:
            record["special_token"] = self.special_token
        if self.error_msg:
            record["error_msg"] = self.error_msg
        return record

    def as_tgi_dict(self) -> dict[str, Any]:
        """Return the token as a record of TGI. `special` is left out if it is not set."""
        record: dict[str, Any] = {"id": self.id, "text": self.text, "logprob": self.log_prob}
        if self.special_token:
            record["special"] = self.special_token
        return record


class Iterator:
    """A position in a list."""

    def __init__(self) -> None:
        self.index = 0

    def get_index(self) -> int:
        return self.index

    def next_index(self) -> int:
        """Return the position and advance it."""
        self.index += 1
        return self.index - 1


@dataclass
class Sequence:
    """One generated text. `get_next_token` iterates over its tokens."""

    tokens: list[Token] = field(default_factory=list)
    top_tokens: list[list[Token]] = field(default_factory=list)
    """The most likely tokens at each position, if the request has `top_n_tokens`."""
    cumulative_log_prob: float = 0.0
    finish_reason: str | None = None
    last_token_index: int | None = None
    """Position of the last token of the whole text; None while tokens may follow."""
    stop_reason: str | None = None
    returns_index: bool = field(init=False, default=False)
    """Whether `get_next_token` returns four values, as in LMI from 0.32 on, or three."""
    tokens_iterator: Iterator = field(init=False, default_factory=Iterator)
    top_tokens_iterator: Iterator = field(init=False, default_factory=Iterator)

    def set_next_token(self, token: Token, is_last_token: bool = False) -> None:
        """Append a token."""
        self.tokens.append(token)
        if is_last_token:
            self.last_token_index = len(self.tokens) - 1

    def set_next_top_tokens(self, top_tokens: list[Token]) -> None:
        """Append the most likely tokens at the next position."""
        self.top_tokens.append(top_tokens)

    def has_next_token(self) -> bool:
        return self.tokens_iterator.get_index() < len(self.tokens)

    def has_next_top_tokens(self) -> bool:
        return self.top_tokens_iterator.get_index() < len(self.top_tokens)

    def get_next_token(self) -> tuple[Any, ...]:
        """Return the next token or None, its index if `returns_index`, and whether it is the first and the last one."""
        token, index, is_last = None, 0, False
        found = self.has_next_token()
        if found:
            index = self.tokens_iterator.next_index()
            token, is_last = self.tokens[index], index == self.last_token_index
        flags = found and index == 0, is_last
        return (token, index, *flags) if self.returns_index else (token, *flags)

    def get_last_token(self) -> Token | None:
        """Return the last token of the whole text; None while tokens may follow."""
        return None if self.last_token_index is None else self.tokens[self.last_token_index]

    def get_next_top_tokens(self) -> list[Token] | None:
        """Return the most likely tokens at the next position; None if there is none."""
        if not self.has_next_top_tokens():
            return None
        return self.top_tokens[self.top_tokens_iterator.next_index()]


@dataclass
class RequestInput:
    """A request."""

    request_id: int | str | None = None
    client_request_id: str | None = None
    output_formatter: Callable[..., Any] | str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    server_parameters: dict[str, Any] = field(default_factory=dict)
    tgi_compat: bool = False


@dataclass
class TextInput(RequestInput):
    """A request for text."""

    input_text: Any = None
    adapters: Any = None
    tokenizer: Any = None
    input_ids: list[int] = field(default_factory=list)

    def prompt_tokens_length(self) -> int:
        """Return the number of tokens of the prompt. Older versions of LMI have this method."""
        return len(self.input_ids)


@dataclass
class RequestOutput:
    """The output of a request so far."""

    request_id: int | str | None = None
    input: RequestInput = field(default_factory=RequestInput)
    finished: bool = False


@dataclass
class TextGenerationOutput(RequestOutput):
    """The generated texts of a request. They include the best one, at first without tokens."""

    sequences: dict[int, Sequence] = field(default_factory=dict)
    best_sequence_index: int = 0
    prompt_tokens_details: list[Token] = field(default_factory=list)
    other_sequences_indices: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sequences.setdefault(self.best_sequence_index, Sequence())

    def set_next_token(
        self,
        token: Token,
        sequence_index: int = 0,
        is_last_token: bool = False,
        finish_reason: str | None = None,
    ) -> None:
        """Append a token to a sequence, which is created if it is missing."""
        sequence = self.sequences.setdefault(sequence_index, Sequence())
        sequence.set_next_token(token, is_last_token)
        if finish_reason:
            sequence.finish_reason = finish_reason

    def set_next_top_tokens(self, top_tokens: list[Token], sequence_index: int) -> None:
        self.sequences[sequence_index].set_next_top_tokens(top_tokens)

    def set_best_sequence_index(self, sequence_index: int) -> None:
        self.best_sequence_index = sequence_index

    def set_finish_reason(self, finish_reason: str, sequence_index: int = 0) -> None:
        self.sequences[sequence_index].finish_reason = finish_reason

    def get_tokens_as_dict(self, sequence_index: int = 0) -> list[dict[str, Any]]:
        """Return the tokens of a sequence as records."""
        return self._records(self.sequences[sequence_index].tokens)

    def get_prompt_tokens_as_dict(self) -> list[dict[str, Any]]:
        """Return the tokens of the prompt as records."""
        return self._records(self.prompt_tokens_details)

    def get_top_tokens_as_dict(self, sequence_index: int = 0) -> list[list[dict[str, Any]]]:
        """Return the most likely tokens at each position of a sequence as records."""
        return [self._records(tokens) for tokens in self.sequences[sequence_index].top_tokens]

    def _records(self, tokens: list[Token]) -> list[dict[str, Any]]:
        tgi = self.input.tgi_compat
        return [token.as_tgi_dict() if tgi else token.as_dict() for token in tokens]
