"""Request parameters of transformers' `generate` that only engine=Python supports, where that library generates."""

from __future__ import annotations

from typing import Any

from lmi_server.apis.parameter import Kind, Parameter, both

_MAX_NGRAM = 1024
_MAX_IDS = 300


def _generate(name: str, kind: Kind, **fields: Any) -> Parameter:
    return Parameter(**both(name), kind=kind, engine="Python", **fields)


GENERATE: tuple[Parameter, ...] = (
    _generate("no_repeat_ngram_size", Kind.INTEGER, default=0, minimum=0, maximum=_MAX_NGRAM),
    _generate("encoder_no_repeat_ngram_size", Kind.INTEGER, default=0, minimum=0, maximum=_MAX_NGRAM),
    _generate("encoder_repetition_penalty", Kind.NUMBER, default=1.0, minimum=0.01, maximum=10),
    _generate("begin_suppress_tokens", Kind.IDS, default=(), max_items=_MAX_IDS),
    _generate("forced_bos_token_id", Kind.IDS, default=(), max_items=1),
    _generate("forced_eos_token_id", Kind.IDS, default=(), max_items=16),
    _generate("sequence_bias", Kind.SEQUENCE_BIAS, default=(), minimum=-100, maximum=100, max_items=_MAX_IDS),
)
"""Each is a field of `engines.core.GenerateParams`, with the same default."""
