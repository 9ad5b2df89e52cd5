"""From checked parameters to `SamplingParams`, as far as all prompts of a body have them in common."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from engines.core import SamplingParams
from lmi_server.apis.base import ApiContext
from lmi_server.apis.checks import refuse
from lmi_server.apis.parameter import Parsed
from lmi_server.continuation import TextRules
from lmi_server.errors import InvalidField

_MIN_TEMPERATURE = 0.01
# Below this all weight is on the likeliest token anyway, and the division would leave the range of 32-bit floats.


@dataclass(frozen=True, slots=True)
class Report:
    """Which log-probabilities an answer tells."""

    logprobs: bool = False
    """Of each token."""
    top: int = 0
    """Besides, of so many of the likeliest in its place."""
    prompt: int | None = None
    """Of the prompt's tokens, and of so many of the likeliest in the place of each; None: of none."""


def sampling_params(context: ApiContext, parsed: Parsed, report: Report) -> SamplingParams:
    """All but what depends on a prompt: `max_new_tokens` and `seed` are still to be set.

    Raises `InvalidField`: an id that the vocabulary lacks, a word of no token.
    """
    eos = () if parsed["ignore_eos"] else context.text.eos_token_ids
    named = _stop_token_ids(context, parsed)
    return SamplingParams(
        max_new_tokens=1,
        temperature=temperature(parsed),
        top_k=max(parsed["top_k"], 0),
        top_p=parsed["top_p"],
        min_p=parsed["min_p"],
        typical_p=parsed["typical_p"],
        repetition_penalty=parsed["repetition_penalty"],
        presence_penalty=parsed["presence_penalty"],
        frequency_penalty=parsed["frequency_penalty"],
        logit_bias=_logit_bias(context, parsed),
        bad_words=_bad_words(context, parsed),
        min_new_tokens=parsed["min_new_tokens"],
        stop_token_ids=tuple(dict.fromkeys(eos + named)),
        logprobs=report.logprobs or report.top > 0,
        top_logprobs=report.top,
        prompt_logprobs=report.prompt,
        num_beams=parsed["num_beams"],
        length_penalty=parsed["length_penalty"],
        early_stopping=parsed["early_stopping"],
    )


def text_rules(context: ApiContext, parsed: Parsed, *, continues_prompt: bool) -> TextRules:
    """Raises `InvalidField`: a stop token id that the vocabulary lacks."""
    eos = () if parsed["ignore_eos"] else context.text.eos_token_ids
    return TextRules(
        continues_prompt,
        stop_strings=parsed["stop"],
        stop_token_ids=frozenset(_stop_token_ids(context, parsed)) - frozenset(eos),
        include_stop=parsed["include_stop_str_in_output"],
        skip_special_tokens=parsed["skip_special_tokens"],
    )


def temperature(parsed: Parsed) -> float:
    """Greedy (0) unless `do_sample` is true or a temperature above 0 is given; `do_sample: false` is greedy."""
    do_sample: bool | None = parsed["do_sample"]
    asked: float | None = parsed["temperature"]
    if do_sample is False or (asked is None and not do_sample):
        return 0.0
    if asked is None:
        return 1.0
    return max(asked, _MIN_TEMPERATURE) if asked > 0 else 0.0


def make_seed(parsed: Parsed) -> int:
    """The one that is given, for every prompt of a list too; else a new one each time."""
    seed: int | None = parsed["seed"]
    if seed is not None:
        return seed
    return secrets.randbits(64) if temperature(parsed) > 0 else 0


def _stop_token_ids(context: ApiContext, parsed: Parsed) -> tuple[int, ...]:
    ids: tuple[int, ...] = parsed["stop_token_ids"]
    for index, one in enumerate(ids):
        _check_id(context, f"{parsed.given['stop_token_ids']}[{index}]", one)
    return ids


def _logit_bias(context: ApiContext, parsed: Parsed) -> tuple[tuple[int, float], ...]:
    biases: tuple[tuple[int, float], ...] = parsed["logit_bias"]
    for one, _ in biases:
        _check_id(context, parsed.given["logit_bias"], one)
    return biases


def _check_id(context: ApiContext, field: str, token_id: int) -> None:
    last = context.text.vocabulary_size - 1
    if not 0 <= token_id <= last:
        raise refuse(field, token_id, f"a token id, a whole number from 0 to {last}")


def _bad_words(context: ApiContext, parsed: Parsed) -> tuple[tuple[int, ...], ...]:
    """Each word as it stands at the start of a text, and as it stands after a space: these are other tokens."""
    found: dict[tuple[int, ...], None] = {}
    for word in parsed["bad_words"]:
        plain = context.text.encode(word.lstrip() or word, add_special_tokens=False)
        spaced = context.text.encode(" " + word.lstrip(), add_special_tokens=False)
        if not plain or not spaced:
            raise refuse(parsed.given["bad_words"], word, "words that come to at least one token")
        for token_id in plain + spaced:
            if token_id >= context.text.vocabulary_size:
                raise InvalidField(
                    parsed.given["bad_words"], f"given {word!r}, whose token {token_id} the model lacks"
                )
        found[plain] = None
        # With a space as a token of its own before the same tokens, the word is banned already.
        if spaced[-len(plain) :] != plain:
            found[spaced] = None
    return tuple(found)
