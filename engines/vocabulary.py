"""The check of a prompt's token ids, which every engine applies to every request.

An id without a row in the embedding table would crash a GPU engine, or all ranks, instead of failing its own request.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.errors import InvalidRequest


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Check that the model has an embedding for each token of a prompt. The prompt must not be empty.

    Raises:
        InvalidRequest: a token has no embedding; the text names the first such id, its position and the vocabulary's
            size.
    """
    if min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    position, token_id = next(
        (place, one) for place, one in enumerate(token_ids) if not 0 <= one < vocab_size
    )
    raise InvalidRequest(
        f"the prompt's token id {token_id} at position {position} is not in the model's vocabulary of {vocab_size}"
        f" tokens; allowed: 0 to {vocab_size - 1}. If the prompt was given as text, the tokenizer has tokens that the"
        " model has no embedding for"
    )
