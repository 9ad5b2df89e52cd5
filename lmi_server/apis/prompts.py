"""From checked parameters and a prompt's text to a `GenerationRequest`; all length limits stand here."""

from __future__ import annotations

import secrets

import gevent
from gevent import monkey

from engines.core import SamplingParams
from engines.errors import InvalidRequest
from lmi_server.apis.base import ApiContext
from lmi_server.apis.checks import shown
from lmi_server.apis.parameters import Parsed
from lmi_server.errors import ContextTooLong
from lmi_server.generation import GenerationRequest

_MIN_TEMPERATURE = 0.01
# Below this all weight is on the likeliest token anyway, and the division would leave the range of 32-bit floats.
_LONG_TEXT_CHARS = 32_768
# From here on tokenising takes so long (tens of ms) that other requests' streams would stand still.


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


def encode_prompt(context: ApiContext, field: str, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Token ids of a prompt, at least one, leaving room for at least one more.

    Raises `InvalidRequest`: the text is absurdly long (found before it is tokenised), too long or too short.
    """
    limit = context.config.max_model_len
    if len(text) > max_prompt_chars(context):
        raise too_many_chars(context, field, str(len(text)))
    if len(text) > _LONG_TEXT_CHARS and monkey.is_module_patched("threading"):
        ids: tuple[int, ...] = gevent.get_hub().threadpool.apply(
            context.text.encode, (text, add_special_tokens)
        )
    else:
        ids = context.text.encode(text, add_special_tokens)
    if not ids:
        raise InvalidRequest(f"{field}: the text comes to no token; accepted: a prompt of at least 1 token")
    if len(ids) >= limit:
        raise ContextTooLong(
            field,
            f"given {len(ids)} tokens; accepted: at most {limit - 1}, as prompt and output together may have "
            f"{limit} tokens (option.max_model_len)",
        )
    return ids


def generation_request(
    context: ApiContext,
    *,
    prompt: str,
    token_ids: tuple[int, ...],
    parsed: Parsed,
    default_max_new_tokens: int | None,
    logprobs: bool,
    continues_prompt: bool,
) -> GenerationRequest:
    """Put the parts together. `default_max_new_tokens`: None for the rest of the context.

    Raises `ContextTooLong` when prompt and asked-for output do not fit.
    """
    sampling = SamplingParams(
        max_new_tokens=_max_new_tokens(context, len(token_ids), parsed, default_max_new_tokens),
        temperature=(temperature := _temperature(parsed)),
        top_k=max(parsed["top_k"], 0),
        top_p=parsed["top_p"],
        repetition_penalty=parsed["repetition_penalty"],
        seed=_seed(parsed, temperature),
        stop_token_ids=() if parsed["ignore_eos"] else context.text.eos_token_ids,
        logprobs=logprobs,
    )
    return GenerationRequest(prompt, token_ids, sampling, parsed["stop"], continues_prompt)


def _max_new_tokens(context: ApiContext, num_prompt: int, parsed: Parsed, default: int | None) -> int:
    limit = context.config.max_model_len
    rest = limit - num_prompt
    asked: int | None = parsed["max_new_tokens"]
    if asked is None:
        return rest if default is None else min(default, rest)
    if asked > rest:
        raise ContextTooLong(
            parsed.given["max_new_tokens"],
            f"given {shown(asked)}; accepted: at most {rest}, as the prompt has {num_prompt} tokens and prompt and "
            f"output together may have {limit} (option.max_model_len)",
        )
    return asked


def _temperature(parsed: Parsed) -> float:
    """Greedy (0) unless `do_sample` is true or a temperature above 0 is given; `do_sample: false` is greedy."""
    do_sample: bool | None = parsed["do_sample"]
    temperature: float | None = parsed["temperature"]
    if do_sample is False or (temperature is None and not do_sample):
        return 0.0
    if temperature is None:
        return 1.0
    return max(temperature, _MIN_TEMPERATURE) if temperature > 0 else 0.0


def _seed(parsed: Parsed, temperature: float) -> int:
    seed: int | None = parsed["seed"]
    if seed is not None:
        return seed
    return secrets.randbits(64) if temperature > 0 else 0
