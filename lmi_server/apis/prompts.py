"""From a prompt's text or tokens and checked parameters to a `GenerationRequest`; all length limits stand here."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
from gevent import monkey

from engines.core import SamplingParams
from lmi_server.apis.base import ApiContext
from lmi_server.apis.checks import shown
from lmi_server.apis.parameters import Parsed
from lmi_server.continuation import GenerationRequest
from lmi_server.errors import ContextTooLong, InvalidField

MAX_PROMPTS = 128
"""Prompts in one HTTP request."""
_MIN_TEMPERATURE = 0.01
# Below this all weight is on the likeliest token anyway, and the division would leave the range of 32-bit floats.
_LONG_TEXT_CHARS = 32_768
# From here on tokenising takes so long (tens of ms) that other requests' streams would stand still.


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a body."""

    field: str
    """Where the body has it, for error texts: `inputs`, `prompt[3]`."""
    text: str
    token_ids: tuple[int, ...]


def max_prompt_chars(context: ApiContext) -> int:
    """Characters that no prompt that fits the context can pass."""
    return context.config.max_model_len * context.text.longest_token


def too_many_chars(context: ApiContext, field: str, given: str) -> ContextTooLong:
    """The error for a text that is too long whatever its tokens may be."""
    return ContextTooLong(
        field,
        f"given {given} characters; accepted: at most {max_prompt_chars(context)}, as prompt and output together "
        f"may have {context.config.max_model_len} tokens (option.max_model_len), none of them longer than "
        f"{context.text.longest_token} characters",
    )


def encode_prompts(
    context: ApiContext, texts: Mapping[str, str], *, add_special_tokens: bool
) -> tuple[Prompt, ...]:
    """Prompts with their token ids, at least one, leaving room for at least one more. `texts`: by field.

    Raises `InvalidRequest`: a text is absurdly long (found before it is tokenised), too long or too short.
    """
    for field, text in texts.items():
        if len(text) > max_prompt_chars(context):
            raise too_many_chars(context, field, str(len(text)))

    def encode() -> list[tuple[int, ...]]:
        return [context.text.encode(text, add_special_tokens) for text in texts.values()]

    num_chars = sum(map(len, texts.values()))
    if num_chars > _LONG_TEXT_CHARS and monkey.is_module_patched("threading"):
        ids = gevent.get_hub().threadpool.apply(encode)
    else:
        ids = encode()
    prompts = tuple(Prompt(*each, one) for each, one in zip(texts.items(), ids, strict=True))
    for prompt in prompts:
        check_length(context, prompt.field, len(prompt.token_ids))
    return prompts


def check_number_of_prompts(field: str, prompts: Sequence[Any]) -> None:
    """Raises `InvalidField`: more prompts than one request may bring."""
    if len(prompts) > MAX_PROMPTS:
        raise InvalidField(field, f"given {len(prompts)} prompts; accepted: at most {MAX_PROMPTS}")


def check_length(context: ApiContext, field: str, num_tokens: int) -> None:
    """Raises `InvalidRequest`: there is no token, or no room for another one."""
    limit = context.config.max_model_len
    if num_tokens == 0:
        raise InvalidField(field, "comes to no token; accepted: a prompt of at least 1 token")
    if num_tokens >= limit:
        raise ContextTooLong(
            field,
            f"given {num_tokens} tokens; accepted: at most {limit - 1}, as prompt and output together may have "
            f"{limit} tokens (option.max_model_len)",
        )


def generation_request(
    context: ApiContext,
    prompt: Prompt,
    parsed: Parsed,
    *,
    default_max_new_tokens: int | None,
    logprobs: bool,
    continues_prompt: bool,
) -> GenerationRequest:
    """Put the parts together. `default_max_new_tokens`: None for the rest of the context.

    Raises `ContextTooLong` when prompt and asked-for output do not fit.
    """
    sampling = SamplingParams(
        max_new_tokens=_max_new_tokens(context, prompt, parsed, default_max_new_tokens),
        temperature=(heat := temperature(parsed)),
        top_k=max(parsed["top_k"], 0),
        top_p=parsed["top_p"],
        repetition_penalty=parsed["repetition_penalty"],
        seed=_seed(parsed, heat),
        stop_token_ids=() if parsed["ignore_eos"] else context.text.eos_token_ids,
        logprobs=logprobs,
    )
    return GenerationRequest(
        prompt.text, prompt.token_ids, sampling, parsed["stop"], continues_prompt, prompt.field
    )


def _max_new_tokens(context: ApiContext, prompt: Prompt, parsed: Parsed, default: int | None) -> int:
    limit = context.config.max_model_len
    num_prompt = len(prompt.token_ids)
    rest = limit - num_prompt
    asked: int | None = parsed["max_new_tokens"]
    if asked is None:
        return rest if default is None else min(default, rest)
    if asked > rest:
        raise ContextTooLong(
            parsed.given["max_new_tokens"],
            f"given {shown(asked)}; accepted: at most {rest}, as the prompt ({prompt.field}) has {num_prompt} tokens "
            f"and prompt and output together may have {limit} (option.max_model_len)",
        )
    return asked


def temperature(parsed: Parsed) -> float:
    """Greedy (0) unless `do_sample` is true or a temperature above 0 is given; `do_sample: false` is greedy."""
    do_sample: bool | None = parsed["do_sample"]
    asked: float | None = parsed["temperature"]
    if do_sample is False or (asked is None and not do_sample):
        return 0.0
    if asked is None:
        return 1.0
    return max(asked, _MIN_TEMPERATURE) if asked > 0 else 0.0


def _seed(parsed: Parsed, heat: float) -> int:
    """The one that is given, for every prompt of a list too; else a new one each time."""
    seed: int | None = parsed["seed"]
    if seed is not None:
        return seed
    return secrets.randbits(64) if heat > 0 else 0
