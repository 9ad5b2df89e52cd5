"""Incremental detokenization.

A character may spread over several tokens, and some tokenizers write a space differently at the start of a text.
So a new token is decoded together with those before it, and only what it adds is returned (the prefix and read
offsets of text-generation-inference). An incomplete character at the end, which may still change, is held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmi_server.text.clean_up import CleanUp
from lmi_server.text.tokenizer import TextModel

_INCOMPLETE = "\ufffd"
_PROMPT_TAIL = 6
"""Prompt tokens that give a continuation its left context."""


class IncrementalDetokenizer:
    """The text of one answer. Mutable.

    What `push` and `flush` return, joined, is the decoded text of all tokens. One exception: where bytes of a byte
    fallback are no UTF-8, decoding at once also replaces valid characters beside them, which are kept here.
    """

    def __init__(
        self, text: TextModel, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        """`prompt_token_ids`: only where the output continues the prompt's text, to keep a space between the two."""
        self._decode = text.tokenizer.decode
        self._clean_up = CleanUp() if text.cleans_up_spaces else None
        self._hidden_ids = text.special_ids if skip_special_tokens else frozenset()
        self._skip_special_tokens = skip_special_tokens
        self._window = list(prompt_token_ids[-_PROMPT_TAIL:])
        self._num_read = len(self._window)
        """window[:num_read] is context, whose text is returned already; the rest is new."""
        self._num_context_chars = len(self._decode(self._window, skip_special_tokens))
        self._num_returned = 0
        """Characters of the new tokens' text that are returned already."""

    def push(self, token_id: int) -> str:
        """Take one token and return the text that it completes, often empty."""
        piece = self._completed(token_id)
        return self._clean_up.push(piece) if self._clean_up else piece

    def _completed(self, token_id: int) -> str:
        if token_id in self._hidden_ids:
            return ""
        self._window.append(token_id)
        new = self._new_text()
        if new.endswith(_INCOMPLETE):
            # The rest of a character is missing. Text before the incomplete run does not change any more.
            stable = new.rstrip(_INCOMPLETE)
            piece = stable[self._num_returned :]
            self._num_returned = max(self._num_returned, len(stable))
            return piece
        piece = new[self._num_returned :]
        if new:
            self._advance()
        return piece

    def flush(self) -> str:
        """Return the text held back, at the end of the output; an incomplete character shows as U+FFFD."""
        piece = self._new_text()[self._num_returned :]
        self._advance()
        return self._clean_up.push(piece) + self._clean_up.flush() if self._clean_up else piece

    def _new_text(self) -> str:
        return self._decode(self._window, self._skip_special_tokens)[self._num_context_chars :]

    def _advance(self) -> None:
        """Make the new tokens the context of later ones."""
        del self._window[: self._num_read]
        self._num_read = len(self._window)
        self._num_context_chars = len(self._decode(self._window, self._skip_special_tokens))
        self._num_returned = 0
