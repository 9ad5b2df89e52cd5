"""`clean_up_tokenization_spaces`: remove spaces before punctuation, for tokenizers that put one between all words."""

from __future__ import annotations

_REPLACEMENTS = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""Replacements in transformers' order. Each applies to the whole result of the previous ones."""


def cleaned_up(text: str) -> str:
    """Return the text as transformers cleans it up."""
    for old, new in _REPLACEMENTS:
        text = text.replace(old, new)
    return text


class CleanUp:
    """`cleaned_up` for a text that arrives in pieces.

    The results of `push` and `flush`, joined, are the cleaned-up text. Each replacement holds back text that may be the
    start of its pattern.
    """

    def __init__(self) -> None:
        self._held = [""] * len(_REPLACEMENTS)

    def push(self, piece: str) -> str:
        for index, (old, new) in enumerate(_REPLACEMENTS):
            piece = (self._held[index] + piece).replace(old, new)
            num_held = next((size for size in range(len(old) - 1, 0, -1) if piece.endswith(old[:size])), 0)
            self._held[index] = piece[len(piece) - num_held :]
            piece = piece[: len(piece) - num_held]
        return piece

    def flush(self) -> str:
        """Return the text that was held back."""
        text = ""
        for index, (old, new) in enumerate(_REPLACEMENTS):
            text = (self._held[index] + text).replace(old, new)
            self._held[index] = ""
        return text
