"""THE table of request parameters. Validation, defaults, error texts and suggestions all come from it.

A parameter stands under its LMI names (`parameters` of `/invocations`) and its OpenAI names (fields of `/v1/*`; some
of chats only, or of completions only). Those that this server acts on stand here; those that it only knows in
`parameters_known.py`. What cannot go together is in `combinations.py`.
"""

from __future__ import annotations

from lmi_server.apis.parameter import Kind, Names, Parameter, both
from lmi_server.apis.parameters_known import LABELS, NOT_DONE

MAX_TEXTS = 16
"""Stop strings, bad words, stop token ids."""
MAX_TEXT_BYTES = 256
MAX_CHOICES = 8
"""Answers to one prompt."""
MAX_BEAMS = 8
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 300
DEFAULT_MAX_NEW_TOKENS = 30
"""LMI's."""
DEFAULT_MAX_TOKENS = 16
"""Of OpenAI's completions."""

_LENGTH: tuple[Parameter, ...] = (
    Parameter(
        "max_new_tokens",
        Kind.INTEGER,
        lmi=("max_new_tokens",),
        openai=("max_completion_tokens", "max_tokens"),
        minimum=1,
    ),
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
        lmi=("stop_sequences", "stop"),
        openai=("stop",),
        default=(),
        max_items=MAX_TEXTS,
        max_bytes=MAX_TEXT_BYTES,
    ),
    Parameter(**both("stop_token_ids"), kind=Kind.IDS, default=(), max_items=MAX_TEXTS),
    Parameter(
        "ignore_eos",
        Kind.FLAG,
        lmi=("ignore_eos_token", "ignore_eos"),
        openai=("ignore_eos",),
        default=False,
    ),
    Parameter(
        "truncate",
        Kind.INTEGER,
        lmi=("truncate",),
        openai=("truncate_prompt_tokens", "truncate"),
        minimum=1,
    ),
)

_SAMPLING: tuple[Parameter, ...] = (
    Parameter(**both("do_sample"), kind=Kind.FLAG),
    Parameter("temperature", Kind.NUMBER, lmi=("temperature",), minimum=0, maximum=100),
    Parameter("temperature", Kind.NUMBER, openai=("temperature",), minimum=0, maximum=2),
    # -1 is what vLLM calls 'all'.
    Parameter(**both("top_k"), kind=Kind.INTEGER, default=0, minimum=-1, maximum=2**31 - 1),
    Parameter(**both("top_p"), kind=Kind.NUMBER, default=1.0, above=0, maximum=1),
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
        openai=("bad_words",),
        default=(),
        max_items=MAX_TEXTS,
        max_bytes=MAX_TEXT_BYTES,
    ),
    Parameter(**both("seed"), kind=Kind.INTEGER, minimum=0, maximum=2**64 - 1),
    Parameter(**both("n"), kind=Kind.INTEGER, minimum=1, maximum=MAX_CHOICES),
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

PARAMETERS: tuple[Parameter, ...] = _LENGTH + _SAMPLING + _ANSWER + _SERVICE + NOT_DONE + LABELS


def rows(names: Names) -> dict[str, Parameter]:
    """Every name of a column with its row."""
    return {name: row for row in PARAMETERS for name in row.names(names)}
