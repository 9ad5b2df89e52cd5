"""Conversion of checked parameters to the `SamplingParams` that all prompts of a body share."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from engines.core import GenerateParams, SamplingParams
from lmi_server.apis.base import ApiContext
from lmi_server.apis.parameters.checks import refuse
from lmi_server.apis.parameters.row import Parameters
from lmi_server.apis.parameters.table import GENERATE
from lmi_server.errors import InvalidField
from lmi_server.generation.answer_text import TextRules
from lmi_server.values.base import is_integer
from lmi_server.values.show import as_json

_MIN_TEMPERATURE = 0.01
"""Minimum above 0. Below it the most likely token has all the weight, and 32-bit floats would overflow."""
_UNCHANGED = (
    *("min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("min_new_tokens", "num_beams", "length_penalty", "early_stopping"),
)
"""Parameters that are copied to the `SamplingParams` fields of the same names."""
_TOKEN_ID_LISTS = (
    *("stop_token_ids", "eos_token_id", "suppress_tokens"),
    *("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
)


@dataclass(frozen=True, slots=True)
class LogprobReport:
    """Log-probabilities that the engine reports."""

    logprobs: bool = False
    """Whether to report the log-probability of each generated token."""
    top: int = 0
    """Number of most likely tokens to report with each generated token."""
    prompt: int | None = None
    """Number of most likely tokens to report with each prompt token. None: report nothing for the prompt."""


def sampling_params(context: ApiContext, parameters: Parameters, report: LogprobReport) -> SamplingParams:
    """Create the sampling parameters, except `max_new_tokens` and `seed`, which depend on the prompt.

    Raises `InvalidField` if a banned word has no token.
    """
    stop_token_ids = _eos_token_ids(context, parameters) + parameters["stop_token_ids"]
    generate = GenerateParams(**{row.name: parameters[row.name] for row in GENERATE})
    return SamplingParams(
        max_new_tokens=1,
        temperature=temperature(parameters),
        top_k=max(parameters["top_k"], 0),
        top_p=parameters["top_p"] or 1.0,  # 0 is greedy
        bad_words=_bad_words(context, parameters),
        # The sampler exempts stop tokens from bans, so a banned token must not be a stop token.
        stop_token_ids=tuple(
            one for one in dict.fromkeys(stop_token_ids) if one not in parameters["suppress_tokens"]
        ),
        logprobs=report.logprobs or report.top > 0,
        top_logprobs=report.top,
        prompt_logprobs=report.prompt,
        generate=None if generate == GenerateParams() else generate,
        **{name: parameters[name] for name in _UNCHANGED},
    )


def text_rules(context: ApiContext, parameters: Parameters, *, continues_prompt: bool) -> TextRules:
    """Return the rules for turning tokens into text."""
    named = frozenset(parameters["stop_token_ids"])
    return TextRules(
        continues_prompt and not context.text.is_encoder_decoder,
        stop_strings=parameters["stop"],
        stop_token_ids=named - frozenset(_eos_token_ids(context, parameters)),
        include_stop=parameters["include_stop_str_in_output"],
        skip_special_tokens=parameters["skip_special_tokens"],
        drops_output=parameters["max_new_tokens"] == 0,
    )


def temperature(parameters: Parameters) -> float:
    """Return the temperature. 0 means greedy decoding.

    Decoding is greedy with `do_sample: false`, `top_p: 0` or a temperature of 0. If neither the body nor the defaults
    set a temperature, it is greedy without `do_sample: true`. Beam search ignores default temperatures, so that only a
    body that requests sampling is rejected.
    """
    do_sample: bool | None = parameters["do_sample"]
    value: float | None = parameters["temperature"]
    if parameters["num_beams"] > 1 and "temperature" not in parameters.fields:
        value = None
    if do_sample is False or parameters["top_p"] == 0 or (value is None and not do_sample):
        return 0.0
    if value is None:
        return 1.0
    return max(value, _MIN_TEMPERATURE) if value > 0 else 0.0


def make_seed(parameters: Parameters) -> int:
    """Return the seed of the body, which is the same for every prompt, or a new random seed."""
    seed: int | None = parameters["seed"]
    if seed is not None:
        return seed % 2**64
    return secrets.randbits(64) if temperature(parameters) > 0 else 0


def check_vocabulary(context: ApiContext, parameters: Parameters) -> None:
    """Check every token id in the body. Raises `InvalidField` if the vocabulary lacks one."""
    for name in _TOKEN_ID_LISTS:
        if parameters[name]:
            check_token_ids(context, parameters.fields[name], parameters[name])
    nested = {
        "logit_bias": [one for one, _ in parameters["logit_bias"]],
        "bad_words_ids": [one for ids in parameters["bad_words_ids"] for one in ids],
        "sequence_bias": [one for ids, _ in parameters["sequence_bias"] for one in ids],
    }
    for name, ids in nested.items():
        for one in ids:
            check_token_id(context, parameters.fields[name], one)


def check_token_ids(context: ApiContext, field: str, values: Iterable[Any]) -> None:
    """Raise `InvalidField` for the first value that is not a token id of the vocabulary.

    Calls no function for a valid value: a body may have half a million, and all other requests wait meanwhile.
    """
    size = context.text.vocabulary_size
    for index, value in enumerate(values):
        if type(value) is not int or not 0 <= value < size:
            check_token_id(context, f"{field}[{index}]", value)


def check_token_id(context: ApiContext, field: str, value: Any) -> None:
    """Raise `InvalidField` if the value is not a token id of the vocabulary."""
    last = context.text.vocabulary_size - 1
    if not is_integer(value) or not 0 <= value <= last:
        raise refuse(field, value, f"a token id from 0 to {last}")


def _eos_token_ids(context: ApiContext, parameters: Parameters) -> tuple[int, ...]:
    if parameters["ignore_eos"]:
        return ()
    ids: tuple[int, ...] | None = parameters["eos_token_id"]
    return context.text.eos_token_ids if ids is None else ids


def _bad_words(context: ApiContext, parameters: Parameters) -> tuple[tuple[int, ...], ...]:
    """Return the banned token sequences, without duplicates.

    A word is banned both at the start of a text and after a space, because its tokens differ.
    """
    banned = dict.fromkeys([*((one,) for one in parameters["suppress_tokens"]), *parameters["bad_words_ids"]])
    for word in parameters["bad_words"]:
        plain = context.text.encode(word.lstrip() or word, add_special_tokens=False)
        spaced = context.text.encode(" " + word.lstrip(), add_special_tokens=False)
        field = parameters.fields["bad_words"]
        if not plain or not spaced:
            raise refuse(field, word, "words of at least one token")
        for token_id in plain + spaced:
            if token_id >= context.text.vocabulary_size:
                reason = f"given {as_json(word)}, but its token {token_id} is not in the model's vocabulary"
                raise InvalidField(field, f"{reason}; accepted: other words")
        banned[plain] = None
        # If the space is a separate token before the same tokens, the word is already banned.
        if spaced[-len(plain) :] != plain:
            banned[spaced] = None
    return tuple(banned)
