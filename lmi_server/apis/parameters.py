"""THE table of request parameters. Validation, defaults, error texts and suggestions all come from it.

A parameter stands under its LMI names (`parameters` of `/invocations`) and its OpenAI names (fields of `/v1/*`; some
of chats only, or of completions only). Parameters that this server acts on stand here, those of transformers'
`generate` in `parameters_generate.py`, and those that are only known in `parameters_known.py`. Combinations that
contradict each other are refused in `combinations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from lmi_server.apis.parameter import Kind, Names, Parameter, both
from lmi_server.apis.parameters_generate import GENERATE
from lmi_server.apis.parameters_known import LABELS, NOT_SUPPORTED

MAX_TEXTS = 16
"""Stop strings, bad words, stop token ids."""
MAX_TEXT_BYTES = 256
MAX_CHOICES = 8
"""Answers to one prompt."""
MAX_BEAMS = 8
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 300
"""Biases, and single ids that must not come."""
MAX_BAD_IDS = 64
"""Lists of ids that must not come: each is looked for at every step."""
DEFAULT_MAX_NEW_TOKENS = 30
"""LMI's."""
DEFAULT_MAX_TOKENS = 16
"""Of OpenAI's completions."""

_LENGTH: tuple[Parameter, ...] = (
    Parameter(
        "max_new_tokens",
        Kind.INTEGER,
        lmi=("max_new_tokens", "max_tokens", "max_completion_tokens"),
        openai=("max_completion_tokens", "max_tokens", "max_new_tokens"),
        minimum=1,
    ),
    # transformers': prompt and output together. `max_new_tokens` wins where both are given, as it does there.
    Parameter(**both("max_length"), kind=Kind.INTEGER, minimum=1),
    Parameter(
        "min_new_tokens",
        Kind.INTEGER,
        lmi=("min_new_tokens", "min_length", "min_tokens"),
        openai=("min_tokens", "min_new_tokens", "min_length"),
        default=0,
        minimum=0,
    ),
    Parameter(
        "stop",
        Kind.TEXTS,
        lmi=("stop_sequences", "stop", "stop_strings"),
        openai=("stop", "stop_sequences", "stop_strings"),
        default=(),
        max_items=MAX_TEXTS,
        max_bytes=MAX_TEXT_BYTES,
    ),
    Parameter(**both("stop_token_ids"), kind=Kind.IDS, default=(), max_items=MAX_TEXTS),
    # In place of the model's own.
    Parameter(**both("eos_token_id"), kind=Kind.IDS, max_items=MAX_TEXTS),
    Parameter(**both("ignore_eos", "ignore_eos_token"), kind=Kind.FLAG, default=False),
    Parameter(**both("truncate", "truncate_prompt_tokens"), kind=Kind.INTEGER, minimum=1),
    # Without it: true, but in chats, whose template writes the special tokens.
    Parameter(**both("add_special_tokens"), kind=Kind.FLAG),
)

_SAMPLING: tuple[Parameter, ...] = (
    Parameter(**both("do_sample"), kind=Kind.FLAG),
    Parameter("temperature", Kind.NUMBER, lmi=("temperature",), minimum=0, maximum=100),
    Parameter("temperature", Kind.NUMBER, openai=("temperature",), minimum=0, maximum=2),
    # -1 is what vLLM calls 'all'.
    Parameter(**both("top_k"), kind=Kind.INTEGER, default=0, minimum=-1, maximum=2**31 - 1),
    # 0 is greedy.
    Parameter(**both("top_p"), kind=Kind.NUMBER, default=1.0, minimum=0, maximum=1),
    Parameter(**both("min_p"), kind=Kind.NUMBER, default=0.0, minimum=0, maximum=1),
    Parameter(**both("typical_p"), kind=Kind.NUMBER, default=1.0, above=0, maximum=1),
    Parameter(**both("repetition_penalty"), kind=Kind.NUMBER, default=1.0, minimum=0.01, maximum=10),
    Parameter(**both("presence_penalty"), kind=Kind.NUMBER, default=0.0, minimum=-2, maximum=2),
    Parameter(**both("frequency_penalty"), kind=Kind.NUMBER, default=0.0, minimum=-2, maximum=2),
    Parameter(
        **both("logit_bias"), kind=Kind.BIAS, default=(), minimum=-100, maximum=100, max_items=MAX_BIASES
    ),
    Parameter(
        "bad_words",
        Kind.TEXTS,
        lmi=("bad_sequences", "bad_words"),
        openai=("bad_words", "bad_sequences"),
        default=(),
        max_items=MAX_TEXTS,
        max_bytes=MAX_TEXT_BYTES,
    ),
    Parameter(**both("bad_words_ids"), kind=Kind.ID_LISTS, default=(), max_items=MAX_BAD_IDS),
    Parameter(**both("suppress_tokens"), kind=Kind.IDS, default=(), max_items=MAX_BIASES),
    # -1 is a random seed, as without one.
    Parameter(**both("seed", "random_seed"), kind=Kind.INTEGER, minimum=0, maximum=2**64 - 1, nothing=(-1,)),
    Parameter(**both("n", "num_return_sequences"), kind=Kind.INTEGER, minimum=1, maximum=MAX_CHOICES),
    Parameter(**both("best_of"), kind=Kind.INTEGER, minimum=1, maximum=MAX_CHOICES),
    Parameter(**both("num_beams"), kind=Kind.INTEGER, default=1, minimum=1, maximum=MAX_BEAMS),
    Parameter(**both("length_penalty"), kind=Kind.NUMBER, default=1.0, minimum=-10, maximum=10),
    Parameter(**both("early_stopping"), kind=Kind.FLAG, default=False),
)

_ANSWER: tuple[Parameter, ...] = (
    Parameter("details", Kind.FLAG, lmi=("details",), default=False),
    Parameter("decoder_input_details", Kind.FLAG, lmi=("decoder_input_details",), default=False),
    Parameter("return_full_text", Kind.FLAG, lmi=("return_full_text",), default=False),
    Parameter("output_formatter", Kind.TEXT, lmi=("output_formatter",), choices=("json", "jsonlines", "sse")),
    Parameter("echo", Kind.FLAG, completions=("echo",), default=False),
    Parameter(
        "top_n_tokens",
        Kind.INTEGER,
        # vLLM's own name for the same number.
        lmi=("top_n_tokens", "logprobs"),
        default=0,
        minimum=0,
        maximum=MAX_TOP_LOGPROBS,
        nothing=(False,),
    ),
    Parameter("logprobs", Kind.FLAG, chat=("logprobs",), default=False),
    Parameter("logprobs", Kind.INTEGER, completions=("logprobs",), minimum=0, maximum=5),
    Parameter(
        "top_logprobs",
        Kind.INTEGER,
        chat=("top_logprobs",),
        default=0,
        minimum=0,
        maximum=MAX_TOP_LOGPROBS,
    ),
    Parameter(**both("prompt_logprobs"), kind=Kind.INTEGER, minimum=0, maximum=MAX_TOP_LOGPROBS),
    Parameter(**both("include_stop_str_in_output"), kind=Kind.FLAG, default=False),
    Parameter(**both("skip_special_tokens"), kind=Kind.FLAG, default=True),
)

_SERVICE: tuple[Parameter, ...] = (
    Parameter(**both("priority"), kind=Kind.INTEGER, default=0, minimum=-(2**31), maximum=2**31 - 1),
    # At most option.predict_timeout, which is not known here.
    Parameter(**both("timeout"), kind=Kind.NUMBER, above=0),
)

PARAMETERS: tuple[Parameter, ...] = (
    _LENGTH + _SAMPLING + _ANSWER + _SERVICE + GENERATE + NOT_SUPPORTED + LABELS
)


@cache
def rows(names: Names) -> Mapping[str, Parameter]:
    """Map every name of a column to its row."""
    return MappingProxyType({name: row for row in PARAMETERS for name in row.names(names)})


@cache
def defaults(names: Names) -> Mapping[str, Any]:
    """Map every key of a column to its default."""
    return MappingProxyType({row.name: row.default for row in PARAMETERS if row.names(names)})
