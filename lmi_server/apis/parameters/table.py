"""The table of request parameters, used for validation, defaults, error messages and suggestions.

A parameter has LMI names (`parameters` of `/invocations`) and OpenAI names (fields of `/v1/*`, some only in chats or
only in completions). This table has the supported parameters; `unused.py` and `unsupported.toml` have the other known
parameters. Combinations are checked in `combinations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from lmi_server.apis.parameters.row import Names, Parameter, everywhere
from lmi_server.apis.parameters.unused import LABELS, UNSUPPORTED
from lmi_server.values.lists import BoundedText, ListOf, Pair, TokenBiases, token_ids
from lmi_server.values.scalars import Bool, Choice, Float, Int
from lmi_server.values.template_variables import TemplateVariables

MAX_STOPS = 64
"""Maximum number of stop strings. Editors send many of them for code completion."""
MAX_TEXTS = 16
"""Maximum number of bad words, which each step of the engine searches for, or of stop token ids."""
MAX_TEXT_BYTES = 256
MAX_CHOICES = 128
"""Maximum number of answers to one prompt."""
MAX_BEAMS = 8
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 300
"""Maximum number of biases, and of single banned token ids."""
MAX_BAD_IDS = 64
"""Maximum number of banned token sequences. Each step searches for all of them."""
MAX_SEQUENCE = 32
"""Maximum number of token ids in a banned or biased sequence."""
MAX_NGRAM = 64
"""Maximum length of an n-gram. Each step of a batch copies all n-grams of each sequence."""
DEFAULT_MAX_NEW_TOKENS = 30
"""LMI's default of `max_new_tokens`."""
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default of `max_tokens` in completions."""

_STOPS = ListOf(BoundedText(MAX_TEXT_BYTES), MAX_STOPS, allow_single=True, plural="strings")
_BAD_WORDS = replace(_STOPS, max_items=MAX_TEXTS)
_SOME_IDS = token_ids(MAX_TEXTS, allow_single=True)
_MANY_IDS = token_ids(MAX_BIASES, allow_single=True)
_SEQUENCE = token_ids(MAX_SEQUENCE, min_items=1)
_BIAS = Float(-100, 100)
_SHARE = Float(0, 1)
_PENALTY = Float(-2, 2)
_FACTOR = Float(0.01, 10)
_LOGPROBS = Int(0, MAX_TOP_LOGPROBS)
_MAX_TOKENS = ("max_new_tokens", "max_tokens", "max_completion_tokens")

_LENGTH: tuple[Parameter, ...] = (
    Parameter("max_new_tokens", Int(1), lmi=_MAX_TOKENS, chat=_MAX_TOKENS),
    # Completions accept 0 together with `echo`, to score a prompt.
    Parameter("max_new_tokens", Int(0), completions=_MAX_TOKENS),
    # As in transformers: prompt and output together. `max_new_tokens` overrides it.
    everywhere("max_length", type=Int(1)),
    everywhere("min_new_tokens", "min_length", "min_tokens", type=Int(0), default=0),
    everywhere("stop", "stop_sequences", "stop_strings", type=_STOPS, default=()),
    everywhere("stop_token_ids", type=_SOME_IDS, default=()),
    # Overrides the model's EOS token ids.
    everywhere("eos_token_id", type=_SOME_IDS),
    everywhere("ignore_eos", "ignore_eos_token", type=Bool(), default=False),
    # As in vLLM, -1 means the longest prompt that fits the context. `truncation_limit` rejects 0.
    everywhere("truncate", "truncate_prompt_tokens", type=Int(-1)),
    # Defaults to true, in chats to false, because the chat template adds the special tokens.
    everywhere("add_special_tokens", type=Bool()),
)

_SAMPLING: tuple[Parameter, ...] = (
    everywhere("do_sample", type=Bool()),
    Parameter("temperature", Float(0, 100), lmi=("temperature",)),
    Parameter("temperature", Float(0, 2), openai=("temperature",)),
    # As in vLLM, -1 means all tokens.
    everywhere("top_k", type=Int(-1, 2**31 - 1), default=0),
    # 0 means greedy decoding.
    everywhere("top_p", type=_SHARE, default=1.0),
    everywhere("min_p", type=_SHARE, default=0.0),
    everywhere("typical_p", type=Float(0, 1, exclude_minimum=True), default=1.0),
    everywhere("repetition_penalty", type=_FACTOR, default=1.0),
    everywhere("presence_penalty", type=_PENALTY, default=0.0),
    everywhere("frequency_penalty", type=_PENALTY, default=0.0),
    everywhere("logit_bias", type=TokenBiases(_BIAS, MAX_BIASES), default=()),
    everywhere("bad_words", "bad_sequences", type=_BAD_WORDS, default=()),
    everywhere("bad_words_ids", type=ListOf(_SEQUENCE, MAX_BAD_IDS), default=()),
    everywhere("suppress_tokens", type=_MANY_IDS, default=()),
    # -1 means a random seed, which is also the default. Seeds are taken modulo 2**64.
    everywhere("seed", "random_seed", type=Int(-(2**63), 2**64 - 1), unset_values=(-1,)),
    everywhere("n", "num_return_sequences", type=Int(1, MAX_CHOICES)),
    everywhere("best_of", type=Int(1, MAX_CHOICES)),
    everywhere("num_beams", type=Int(1, MAX_BEAMS), default=1),
    everywhere("length_penalty", type=Float(-10, 10), default=1.0),
    everywhere("early_stopping", type=Bool(), default=False),
    # Without beams no answer depends on it.
    everywhere("renormalize_logits", type=Bool(), default=False),
)

_ANSWER: tuple[Parameter, ...] = (
    Parameter("details", Bool(), lmi=("details",), default=False),
    Parameter("decoder_input_details", Bool(), lmi=("decoder_input_details",), default=False),
    Parameter("return_full_text", Bool(), lmi=("return_full_text",), default=False),
    # LMI's own place of the flag. The field `stream` of the body means the same.
    Parameter("stream", Bool(), lmi=("stream",)),
    Parameter(
        "output_formatter", Choice(("json", "jsonlines", "sse"), any_case=False), lmi=("output_formatter",)
    ),
    Parameter("echo", Bool(), completions=("echo",), default=False),
    Parameter("chat_template_kwargs", TemplateVariables(), chat=("chat_template_kwargs",), default={}),
    # `logprobs` is vLLM's name for the same number.
    Parameter("top_n_tokens", _LOGPROBS, lmi=("top_n_tokens", "logprobs"), default=0, unset_values=(False,)),
    Parameter("logprobs", Bool(), chat=("logprobs",), default=False),
    Parameter("logprobs", _LOGPROBS, completions=("logprobs",)),
    Parameter("top_logprobs", _LOGPROBS, chat=("top_logprobs",), default=0),
    everywhere("prompt_logprobs", type=_LOGPROBS),
    # As in vLLM. Tokens of `/invocations` always have their ids.
    Parameter("return_token_ids", Bool(), openai=("return_token_ids",), default=False),
    everywhere("include_stop_str_in_output", type=Bool(), default=False),
    everywhere("skip_special_tokens", type=Bool(), default=True),
)

_SERVICE: tuple[Parameter, ...] = (
    everywhere("priority", type=Int(-(2**31), 2**31 - 1), default=0),
    # At most option.predict_timeout, which `check_timeout` enforces.
    everywhere("timeout", type=Float(0, 1e9, unit="seconds", exclude_minimum=True)),
)

GENERATE: tuple[Parameter, ...] = (
    everywhere("no_repeat_ngram_size", type=Int(0, MAX_NGRAM), default=0),
    everywhere("encoder_no_repeat_ngram_size", type=Int(0, MAX_NGRAM), default=0),
    everywhere("encoder_repetition_penalty", type=_FACTOR, default=1.0),
    everywhere("begin_suppress_tokens", type=_MANY_IDS, default=()),
    everywhere("forced_bos_token_id", type=token_ids(1, allow_single=True), default=()),
    everywhere("forced_eos_token_id", type=_SOME_IDS, default=()),
    everywhere("sequence_bias", type=ListOf(Pair(_SEQUENCE, _BIAS), MAX_BIASES), default=()),
)
"""Parameters of transformers' `generate`, for engines that use it.

Each is a field of `engines.core.GenerateParams` with the same default.
"""

PARAMETERS: tuple[Parameter, ...] = _LENGTH + _SAMPLING + _ANSWER + _SERVICE + GENERATE + UNSUPPORTED + LABELS


@cache
def rows(names: Names) -> Mapping[str, Parameter]:
    """Return the rows of a column by name."""
    return MappingProxyType({name: row for row in PARAMETERS for name in row.names(names)})


@cache
def defaults(names: Names) -> Mapping[str, Any]:
    """Return the defaults of a column by key."""
    return MappingProxyType({row.name: row.default for row in PARAMETERS if row.names(names)})
