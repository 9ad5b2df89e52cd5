"""The table of request parameters, for validation, defaults, error texts and suggestions.

A parameter has LMI names (`parameters` of `/invocations`) and OpenAI names (fields of `/v1/*`, some of chats or of
completions only). This table has the parameters that the server acts on; `unused.py` and `unsupported.toml` have the
others that it knows. Combinations are checked in `combinations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from lmi_server.apis.parameters.row import Names, Parameter, everywhere
from lmi_server.apis.parameters.unused import LABELS, UNSUPPORTED
from lmi_server.values.lists import BoundedText, ListOf, Pair, TokenBiases, token_ids
from lmi_server.values.scalars import Bool, Choice, Float, Int

MAX_TEXTS = 16
"""Stop strings, bad words, stop token ids."""
MAX_TEXT_BYTES = 256
MAX_CHOICES = 8
"""Answers to one prompt."""
MAX_BEAMS = 8
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 300
"""Biases, and single token ids that are banned."""
MAX_BAD_IDS = 64
"""Banned token sequences: each is looked for at every step."""
MAX_SEQUENCE = 32
"""Token ids that are looked for as one sequence."""
MAX_NGRAM = 1024
DEFAULT_MAX_NEW_TOKENS = 30
"""LMI's."""
DEFAULT_MAX_TOKENS = 16
"""Of OpenAI's completions."""

_TEXTS = ListOf(BoundedText(MAX_TEXT_BYTES), MAX_TEXTS, or_one=True, plural="strings")
_SOME_IDS = token_ids(MAX_TEXTS, or_one=True)
_MANY_IDS = token_ids(MAX_BIASES, or_one=True)
_SEQUENCE = token_ids(MAX_SEQUENCE, min_items=1)
_BIAS = Float(-100, 100)
_SHARE = Float(0, 1)
_PENALTY = Float(-2, 2)
_FACTOR = Float(0.01, 10)
_LOGPROBS = Int(0, MAX_TOP_LOGPROBS)

_LENGTH: tuple[Parameter, ...] = (
    everywhere("max_new_tokens", "max_tokens", "max_completion_tokens", type=Int(1)),
    # As in transformers: prompt and output together, and `max_new_tokens` wins where both are given.
    everywhere("max_length", type=Int(1)),
    everywhere("min_new_tokens", "min_length", "min_tokens", type=Int(0), default=0),
    everywhere("stop", "stop_sequences", "stop_strings", type=_TEXTS, default=()),
    everywhere("stop_token_ids", type=_SOME_IDS, default=()),
    # Replaces the model's own.
    everywhere("eos_token_id", type=_SOME_IDS),
    everywhere("ignore_eos", "ignore_eos_token", type=Bool(), default=False),
    everywhere("truncate", "truncate_prompt_tokens", type=Int(1)),
    # When absent, true; in chats false, because the template writes the special tokens.
    everywhere("add_special_tokens", type=Bool()),
)

_SAMPLING: tuple[Parameter, ...] = (
    everywhere("do_sample", type=Bool()),
    Parameter("temperature", Float(0, 100), lmi=("temperature",)),
    Parameter("temperature", Float(0, 2), openai=("temperature",)),
    # -1 is vLLM's word for 'all'.
    everywhere("top_k", type=Int(-1, 2**31 - 1), default=0),
    # 0 is greedy.
    everywhere("top_p", type=_SHARE, default=1.0),
    everywhere("min_p", type=_SHARE, default=0.0),
    everywhere("typical_p", type=Float(0, 1, above=True), default=1.0),
    everywhere("repetition_penalty", type=_FACTOR, default=1.0),
    everywhere("presence_penalty", type=_PENALTY, default=0.0),
    everywhere("frequency_penalty", type=_PENALTY, default=0.0),
    everywhere("logit_bias", type=TokenBiases(_BIAS, MAX_BIASES), default=()),
    everywhere("bad_words", "bad_sequences", type=_TEXTS, default=()),
    everywhere("bad_words_ids", type=ListOf(_SEQUENCE, MAX_BAD_IDS), default=()),
    everywhere("suppress_tokens", type=_MANY_IDS, default=()),
    # -1 is a random seed, as without one.
    everywhere("seed", "random_seed", type=Int(0, 2**64 - 1), absent=(-1,)),
    everywhere("n", "num_return_sequences", type=Int(1, MAX_CHOICES)),
    everywhere("best_of", type=Int(1, MAX_CHOICES)),
    everywhere("num_beams", type=Int(1, MAX_BEAMS), default=1),
    everywhere("length_penalty", type=Float(-10, 10), default=1.0),
    everywhere("early_stopping", type=Bool(), default=False),
)

_ANSWER: tuple[Parameter, ...] = (
    Parameter("details", Bool(), lmi=("details",), default=False),
    Parameter("decoder_input_details", Bool(), lmi=("decoder_input_details",), default=False),
    Parameter("return_full_text", Bool(), lmi=("return_full_text",), default=False),
    Parameter(
        "output_formatter", Choice(("json", "jsonlines", "sse"), any_case=False), lmi=("output_formatter",)
    ),
    Parameter("echo", Bool(), completions=("echo",), default=False),
    # `logprobs` is vLLM's own name for the same number.
    Parameter("top_n_tokens", _LOGPROBS, lmi=("top_n_tokens", "logprobs"), default=0, absent=(False,)),
    Parameter("logprobs", Bool(), chat=("logprobs",), default=False),
    Parameter("logprobs", Int(0, 5), completions=("logprobs",)),
    Parameter("top_logprobs", _LOGPROBS, chat=("top_logprobs",), default=0),
    everywhere("prompt_logprobs", type=_LOGPROBS),
    everywhere("include_stop_str_in_output", type=Bool(), default=False),
    everywhere("skip_special_tokens", type=Bool(), default=True),
)

_SERVICE: tuple[Parameter, ...] = (
    everywhere("priority", type=Int(-(2**31), 2**31 - 1), default=0),
    # At most option.predict_timeout, which is checked where the configuration is known.
    everywhere("timeout", type=Float(0, 1e9, unit="seconds", above=True)),
)

GENERATE: tuple[Parameter, ...] = (
    everywhere("no_repeat_ngram_size", type=Int(0, MAX_NGRAM), default=0),
    everywhere("encoder_no_repeat_ngram_size", type=Int(0, MAX_NGRAM), default=0),
    everywhere("encoder_repetition_penalty", type=_FACTOR, default=1.0),
    everywhere("begin_suppress_tokens", type=_MANY_IDS, default=()),
    everywhere("forced_bos_token_id", type=token_ids(1, or_one=True), default=()),
    everywhere("forced_eos_token_id", type=_SOME_IDS, default=()),
    everywhere("sequence_bias", type=ListOf(Pair(_SEQUENCE, _BIAS), MAX_BIASES), default=()),
)
"""Parameters of transformers' `generate`, for engines that use it.

Each is a field of `engines.core.GenerateParams` with the same default.
"""

PARAMETERS: tuple[Parameter, ...] = _LENGTH + _SAMPLING + _ANSWER + _SERVICE + GENERATE + UNSUPPORTED + LABELS


@cache
def rows(names: Names) -> Mapping[str, Parameter]:
    """Map every name of a column to its row."""
    return MappingProxyType({name: row for row in PARAMETERS for name in row.names(names)})


@cache
def defaults(names: Names) -> Mapping[str, Any]:
    """Map every key of a column to its default."""
    return MappingProxyType({row.name: row.default for row in PARAMETERS if row.names(names)})
