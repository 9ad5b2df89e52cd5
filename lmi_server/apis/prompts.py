"""From a prompt's text or tokens and checked parameters to a `GenerationRequest`; all length limits stand here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gevent
from gevent import monkey

from lmi_server.apis.base import ApiContext
from lmi_server.apis.checks import refuse, shown
from lmi_server.apis.combinations import Choices
from lmi_server.apis.parameter import Parsed
from lmi_server.apis.sampling import Report, make_seed, sampling_params, text_rules
from lmi_server.continuation import GenerationRequest
from lmi_server.errors import ContextTooLong, InvalidField

MAX_PROMPTS = 128
"""Prompts in one HTTP request."""
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
    context: ApiContext, texts: Mapping[str, str], *, add_special_tokens: bool, truncate: int | None = None
) -> tuple[Prompt, ...]:
    """Prompts with their token ids, at least one, leaving room for at least one more. `texts`: by field. `truncate`:
    keep the last so many tokens of each.

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
    prompts = tuple(
        Prompt(*each, truncated(one, truncate)) for each, one in zip(texts.items(), ids, strict=True)
    )
    for prompt in prompts:
        check_length(context, prompt.field, len(prompt.token_ids))
    return prompts


def truncated(token_ids: tuple[int, ...], truncate: int | None) -> tuple[int, ...]:
    """The last `truncate` of them; None for all."""
    return token_ids if truncate is None else token_ids[-truncate:]


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


def generation_requests(
    context: ApiContext,
    prompts: Sequence[Prompt],
    parsed: Parsed,
    *,
    report: Report,
    many: Choices,
    default_max_new_tokens: int | None,
    continues_prompt: bool,
) -> tuple[GenerationRequest, ...]:
    """Put the parts together. `default_max_new_tokens`: None for the rest of the context.

    Raises `ContextTooLong` when a prompt and the asked-for output do not fit, `InvalidField`.
    """
    sampling = sampling_params(context, parsed, report)
    rules = text_rules(context, parsed, continues_prompt=continues_prompt)
    requests = []
    for prompt in prompts:
        max_new_tokens = _max_new_tokens(context, prompt, parsed, default_max_new_tokens)
        own = replace(sampling, max_new_tokens=max_new_tokens, seed=make_seed(parsed))
        requests.append(
            GenerationRequest(prompt.text, prompt.token_ids, own, rules, prompt.field, many.n, many.best_of)
        )
    return tuple(requests)


def _max_new_tokens(context: ApiContext, prompt: Prompt, parsed: Parsed, default: int | None) -> int:
    limit = context.config.max_model_len
    num_prompt = len(prompt.token_ids)
    rest = limit - num_prompt
    asked: int | None = parsed["max_new_tokens"]
    most = asked or (rest if default is None else min(default, rest))
    if parsed["min_new_tokens"] > most:
        raise refuse(
            parsed.given["min_new_tokens"],
            parsed["min_new_tokens"],
            f"at most {most}, which is how many tokens there may be"
            + ("" if asked else " without max_new_tokens or max_tokens"),
        )
    if asked is None:
        return most
    if asked > rest:
        raise ContextTooLong(
            parsed.given["max_new_tokens"],
            f"given {shown(asked)}; accepted: at most {rest}, as the prompt ({prompt.field}) has {num_prompt} tokens "
            f"and prompt and output together may have {limit} (option.max_model_len)",
        )
    return asked
