"""From checked parameters to `SamplingParams`, as far as all prompts of a body have them in common."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from engines.core import GenerateParams, SamplingParams
from lmi_server.apis.base import ApiContext
from lmi_server.apis.checks import refuse
from lmi_server.apis.parameter import Parsed
from lmi_server.apis.parameters import GENERATE
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
    named = _ids(context, parsed, "stop_token_ids")
    return SamplingParams(
        max_new_tokens=1,
        temperature=temperature(parsed),
        top_k=max(parsed["top_k"], 0),
        top_p=parsed["top_p"] or 1.0,  # 0 is greedy
        min_p=parsed["min_p"],
        typical_p=parsed["typical_p"],
        repetition_penalty=parsed["repetition_penalty"],
        presence_penalty=parsed["presence_penalty"],
        frequency_penalty=parsed["frequency_penalty"],
        logit_bias=_logit_bias(context, parsed),
        bad_words=_bad_words(context, parsed),
        min_new_tokens=parsed["min_new_tokens"],
        stop_token_ids=_without(_eos_token_ids(context, parsed) + named, parsed["suppress_tokens"]),
        logprobs=report.logprobs or report.top > 0,
        top_logprobs=report.top,
        prompt_logprobs=report.prompt,
        num_beams=parsed["num_beams"],
        length_penalty=parsed["length_penalty"],
        early_stopping=parsed["early_stopping"],
        generate=_generate_params(context, parsed),
    )


def text_rules(context: ApiContext, parsed: Parsed, *, continues_prompt: bool) -> TextRules:
    """Raises `InvalidField`: a stop token id that the vocabulary lacks."""
    return TextRules(
        continues_prompt,
        stop_strings=parsed["stop"],
        stop_token_ids=frozenset(_ids(context, parsed, "stop_token_ids"))
        - frozenset(_eos_token_ids(context, parsed)),
        include_stop=parsed["include_stop_str_in_output"],
        skip_special_tokens=parsed["skip_special_tokens"],
    )


def temperature(parsed: Parsed) -> float:
    """Return the temperature, 0 for greedy.

    Greedy are `do_sample: false`, `top_p: 0`, a temperature of 0, and where neither the body nor the dialect's defaults
    have a temperature all but `do_sample: true`. Beam search samples only when the body itself asks for it, so that it
    can be refused.
    """
    do_sample: bool | None = parsed["do_sample"]
    value: float | None = parsed["temperature"]
    if parsed["num_beams"] > 1 and "temperature" not in parsed.fields:
        value = None
    if do_sample is False or parsed["top_p"] == 0 or (value is None and not do_sample):
        return 0.0
    if value is None:
        return 1.0
    return max(value, _MIN_TEMPERATURE) if value > 0 else 0.0


def make_seed(parsed: Parsed) -> int:
    """The one that is given, for every prompt of a list too; else a new one each time."""
    seed: int | None = parsed["seed"]
    if seed is not None:
        return seed
    return secrets.randbits(64) if temperature(parsed) > 0 else 0


def _eos_token_ids(context: ApiContext, parsed: Parsed) -> tuple[int, ...]:
    if parsed["ignore_eos"]:
        return ()
    return (
        context.text.eos_token_ids
        if parsed["eos_token_id"] is None
        else _ids(context, parsed, "eos_token_id")
    )


def _without(ids: tuple[int, ...], suppressed: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out what never comes: a stop token that is banned by itself would be exempt from the ban."""
    return tuple(one for one in dict.fromkeys(ids) if one not in suppressed)


def _ids(context: ApiContext, parsed: Parsed, name: str) -> tuple[int, ...]:
    """The ids of a parameter, all of them in the vocabulary."""
    ids: tuple[int, ...] = parsed[name]
    for index, one in enumerate(ids):
        _check_id(context, f"{parsed.fields[name]}[{index}]", one)
    return ids


def _generate_params(context: ApiContext, parsed: Parsed) -> GenerateParams | None:
    """Raises `InvalidField`: an id that the vocabulary lacks."""
    for name in ("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"):
        _ids(context, parsed, name)
    for ids, _ in parsed["sequence_bias"]:
        for one in ids:
            _check_id(context, parsed.fields["sequence_bias"], one)
    params = GenerateParams(**{row.name: parsed[row.name] for row in GENERATE})
    return None if params == GenerateParams() else params


def _logit_bias(context: ApiContext, parsed: Parsed) -> tuple[tuple[int, float], ...]:
    biases: tuple[tuple[int, float], ...] = parsed["logit_bias"]
    for one, _ in biases:
        _check_id(context, parsed.fields["logit_bias"], one)
    return biases


def _check_id(context: ApiContext, field: str, token_id: int) -> None:
    last = context.text.vocabulary_size - 1
    if not 0 <= token_id <= last:
        raise refuse(field, token_id, f"a token id from 0 to {last}")


def _bad_words(context: ApiContext, parsed: Parsed) -> tuple[tuple[int, ...], ...]:
    """Each word as it stands at the start of a text, and as it stands after a space: these are other tokens. Ids as
    they are given.
    """
    found: dict[tuple[int, ...], None] = {(one,): None for one in _ids(context, parsed, "suppress_tokens")}
    for ids in parsed["bad_words_ids"]:
        for one in ids:
            _check_id(context, parsed.fields["bad_words_ids"], one)
        found[ids] = None
    for word in parsed["bad_words"]:
        plain = context.text.encode(word.lstrip() or word, add_special_tokens=False)
        spaced = context.text.encode(" " + word.lstrip(), add_special_tokens=False)
        if not plain or not spaced:
            raise refuse(parsed.fields["bad_words"], word, "words that come to at least one token")
        for token_id in plain + spaced:
            if token_id >= context.text.vocabulary_size:
                raise InvalidField(
                    parsed.fields["bad_words"], f"given {word!r}, whose token {token_id} the model lacks"
                )
        found[plain] = None
        # With a space as a token of its own before the same tokens, the word is banned already.
        if spaced[-len(plain) :] != plain:
            found[spaced] = None
    return tuple(found)
