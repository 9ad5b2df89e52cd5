"""Incremental detokenization.

A character may span several tokens, and some tokenizers write a space differently at the start of a text. Each new
token is therefore decoded together with the tokens before it, and only the added text is returned (the prefix and read
offsets of text-generation-inference). An incomplete character at the end is held back, because it may still change.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmi_server.text.clean_up import CleanUp
from lmi_server.text.tokenizer import TextModel

_INCOMPLETE = "\ufffd"
_PROMPT_TAIL = 6
"""Number of prompt tokens that are the left context of a continuation."""
_MAX_CHARACTER_BYTES = 4
"""Bytes of the longest character in UTF-8, and so the most byte tokens of a character."""
_MAX_HELD_CHARS = 32
"""Longest run of U+FFFD to hold back. More of them than a character has bytes are not the start of a character."""
_KEPT_TOKENS = 8
"""Number of tokens with final text that stay the context of an incomplete character."""


class IncrementalDetokenizer:
    """Detokenizer of one completion.

    The results of `push` and `flush`, joined, are the decoded text of all tokens, with one exception. If the bytes of
    a byte fallback are not valid UTF-8, decoding all tokens at once also replaces valid characters next to those bytes.
    This class keeps them.
    """

    def __init__(
        self, text: TextModel, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        """`prompt_token_ids`: set only if the output continues the prompt's text, to keep a space between the two."""
        self._decode = text.tokenizer.decode
        self._name_of = text.tokenizer.id_to_token
        self._clean_up = CleanUp() if text.cleans_up_spaces else None
        self._hidden_ids = text.special_ids if skip_special_tokens else frozenset()
        self._skip_special_tokens = skip_special_tokens
        self._window = self._prompt_tail(prompt_token_ids)
        self._num_read = len(self._window)
        """window[:num_read] is context whose text has been returned. The rest is new."""
        self._num_context_chars = len(self._decode(self._window, skip_special_tokens))
        self._num_returned = 0
        """Number of characters of the new tokens' text that have been returned."""

    def _prompt_tail(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """Return the last tokens of the prompt, cut between two characters if a character is several byte tokens."""
        for size in range(_PROMPT_TAIL, _PROMPT_TAIL + _MAX_CHARACTER_BYTES):
            tail = list(prompt_token_ids[-size:])
            if _INCOMPLETE not in self._decode(tail, self._skip_special_tokens):
                return tail
        return list(prompt_token_ids[-_PROMPT_TAIL:])

    def push(self, token_id: int) -> str:
        """Add one token and return the text that it completes, which is often empty."""
        piece = self._decode_next(token_id)
        return self._clean_up.push(piece) if self._clean_up else piece

    def _decode_next(self, token_id: int) -> str:
        if token_id in self._hidden_ids or self._name_of(token_id) is None:  # the model may know more ids
            return ""
        self._window.append(token_id)
        new = self._new_text()
        if new.endswith(_INCOMPLETE):
            # The rest of a character is missing. The text before the incomplete run is final.
            stable = new.rstrip(_INCOMPLETE)
            num_new = len(self._window) - self._num_read
            if len(new) - len(stable) > _MAX_HELD_CHARS and num_new >= _MAX_CHARACTER_BYTES:
                return self._take_invalid()
            piece = stable[self._num_returned :]
            self._num_returned = max(self._num_returned, len(stable))
            self._forget_final(len(new) - self._num_returned)
            return piece
        return self._take(new) if new else ""

    def flush(self) -> str:
        """Return the held-back text at the end of the output. An incomplete character becomes U+FFFD."""
        piece = self._take(self._new_text())
        return self._clean_up.push(piece) + self._clean_up.flush() if self._clean_up else piece

    def _take_invalid(self) -> str:
        """Return the held-back text of all tokens but the last ones, which may be the start of a character."""
        start = self._window[1 - _MAX_CHARACTER_BYTES :]
        del self._window[1 - _MAX_CHARACTER_BYTES :]
        piece = self._take(self._new_text())
        self._window += start
        return piece

    def _forget_final(self, num_held: int) -> None:
        """Forget most tokens whose text is final, if there are many: each new token is decoded with all of the window.

        `num_held`: number of characters at the end that have not been returned.
        """
        # A held-back U+FFFD stands for at most three bytes, which may be tokens. The window may then begin within a
        # character. Its rest is counted as returned text.
        num_kept = _KEPT_TOKENS + (_MAX_CHARACTER_BYTES - 1) * num_held
        if len(self._window) >= 2 * num_kept:
            self._window = self._window[-num_kept:]
            self._num_read = self._num_context_chars = 0
            self._num_returned = len(self._new_text()) - num_held

    def _new_text(self) -> str:
        return self._decode(self._window, self._skip_special_tokens)[self._num_context_chars :]

    def _take(self, new: str) -> str:
        """Return the part of the new tokens' text, `new`, not yet returned. Make them the context of later tokens."""
        piece = new[self._num_returned :]
        del self._window[: self._num_read]
        self._num_read = len(self._window)
        self._num_context_chars = len(self._decode(self._window, self._skip_special_tokens))
        self._num_returned = 0
        return piece
