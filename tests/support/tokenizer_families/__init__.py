"""Model folders like those of published families: the same files and keys, with tiny vocabularies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.tokenizer_families import byte_level, other_kinds, pieces

_SAVE = (
    *(pieces.llama2, pieces.mistral, pieces.mistral_v3, pieces.gemma2, pieces.gemma3, pieces.phi3),
    *(pieces.llama2_pieces, pieces.mistral_pieces, pieces.gemma_pieces),
    *(
        byte_level.llama3,
        byte_level.qwen2,
        byte_level.qwen3,
        byte_level.phi4,
        byte_level.gpt2,
        byte_level.opt,
    ),
    *(
        byte_level.gpt_neox,
        byte_level.mpt,
        byte_level.bloom,
        byte_level.falcon,
        byte_level.tiktoken,
        byte_level.tekken,
    ),
    *(other_kinds.t5, other_kinds.word_level, other_kinds.word_piece, other_kinds.unigram),
)
FAMILIES: dict[str, Callable[[Path], None]] = {save.__name__: save for save in _SAVE}
"""Functions that write a model folder, by the name of the family."""
