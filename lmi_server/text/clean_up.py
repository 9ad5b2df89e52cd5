"""`clean_up_tokenization_spaces`: no space before punctuation, for tokenizers that write one between all words."""

from __future__ import annotations

_CHANGES = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""Changes in transformers' order: each is made in the whole text that those before it left."""


def cleaned_up(text: str) -> str:
    """Return the text as transformers cleans it up."""
    for old, new in _CHANGES:
        text = text.replace(old, new)
    return text


class CleanUp:
    """`cleaned_up` for a text that comes in pieces. Mutable.

    What `push` and `flush` return, joined, is the cleaned-up text. Each change holds back what may be the beginning of
    its pattern.
    """

    def __init__(self) -> None:
        self._held = [""] * len(_CHANGES)

    def push(self, piece: str) -> str:
        for place, (old, new) in enumerate(_CHANGES):
            piece = (self._held[place] + piece).replace(old, new)
            num_held = next((size for size in range(len(old) - 1, 0, -1) if piece.endswith(old[:size])), 0)
            self._held[place] = piece[len(piece) - num_held :]
            piece = piece[: len(piece) - num_held]
        return piece

    def flush(self) -> str:
        """Return the text held back."""
        text = ""
        for place, (old, new) in enumerate(_CHANGES):
            text = (self._held[place] + text).replace(old, new)
            self._held[place] = ""
        return text
