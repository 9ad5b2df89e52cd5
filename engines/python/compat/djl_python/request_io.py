"""Types for formatters of text generation: a request's input, and the output generated so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Token:
    """One token."""

    id: int = -1
    text: str = ""
    log_prob: float | None = None
    special_token: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass
class Sequence:
    """One generated text. `get_next_token` iterates over its tokens."""

    tokens: list[Token] = field(default_factory=list)
    cumulative_log_prob: float = 0.0
    finish_reason: str | None = None
    complete: bool = False
    """Whether no token will follow."""
    position: int = 0
    """Number of tokens that `get_next_token` has returned."""

    def has_next_token(self) -> bool:
        return self.position < len(self.tokens)

    def get_next_token(self) -> tuple[Token | None, bool, bool]:
        """Return the next token, whether it is the first, and whether it is the last of the whole text."""
        if not self.has_next_token():
            return None, False, False
        token = self.tokens[self.position]
        self.position += 1
        return token, self.position == 1, self.complete and self.position == len(self.tokens)


@dataclass
class RequestInput:
    """A request."""

    request_id: int | str = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    output_formatter: Callable[..., Any] | str | None = None
    server_parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class TextInput(RequestInput):
    """A request for text."""

    input_text: Any = None
    input_ids: list[int] = field(default_factory=list)
    adapters: Any = None
    tokenizer: Any = None


@dataclass
class RequestOutput:
    """The output of a request so far."""

    request_id: int | str = 0
    finished: bool = False
    input: RequestInput | None = None


@dataclass
class TextGenerationOutput(RequestOutput):
    """The generated texts of a request."""

    sequences: dict[int, Sequence] = field(default_factory=dict)
    best_sequence_index: int = 0
    prompt_tokens_details: list[Token] = field(default_factory=list)
    other_sequences_indices: list[int] = field(default_factory=list)
