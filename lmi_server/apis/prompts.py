"""Creation of `GenerationRequest`s from prompts and checked parameters. All length limits are enforced here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import gevent
from gevent import monkey
from gevent.lock import BoundedSemaphore

from engines.errors import InvalidRequest
from lmi_server.apis.base import ApiContext
from lmi_server.apis.parameters.checks import refuse
from lmi_server.apis.parameters.combinations import MAX_ANSWERS, AnswerCounts
from lmi_server.apis.parameters.row import Parameters
from lmi_server.apis.parameters.sampling import (
    LogprobReport,
    check_token_ids,
    make_seed,
    sampling_params,
    text_rules,
)
from lmi_server.errors import ContextTooLong, InvalidField
from lmi_server.generation.answer_text import GenerationRequest
from lmi_server.text.template_limits import tokenizes_in_thread
from lmi_server.values.show import as_json

MAX_PROMPTS = MAX_ANSWERS
"""Maximum number of prompts in one HTTP request. Each has at least one answer."""
MAX_PROMPT_TOKENS = 1 << 21
"""Maximum number of tokens of all texts in one HTTP request, unless the context is longer. Decoding stops while the
engine receives them."""
_LONG_TEXT_CHARS = 32_768
"""Tokenizing a longer text takes tens of milliseconds, so a thread does it. Otherwise all other streams would pause."""
_long_texts = BoundedSemaphore(2)
"""Limits the number of threads that tokenize, because each may need hundreds of megabytes."""
_PIECE_CHARS = 1 << 20
"""Maximum number of characters tokenized in one piece. A tokenizer needs hundreds of bytes of memory per token."""
_CUT_TOKENS = 64
"""Bound on the number of tokens that a cut between two pieces adds."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request body."""

    field: str
    """Place of the prompt in the body, for error messages: `inputs`, `prompt[3]`."""
    text: str
    token_ids: tuple[int, ...]
    truncated: bool = False
    """Whether `token_ids` is only a part of the text."""


def max_prompt_chars(context: ApiContext, limit: int | None = None) -> int:
    """Return an upper bound on the number of characters of a prompt that fits the context.

    `limit`: from `truncation_limit`. A truncated prompt may be longer, as far as it can be tokenized in little memory.
    """
    most = context.config.max_model_len * context.text.max_token_chars
    return most if limit is None else max(most, _PIECE_CHARS)


def _context_length(context: ApiContext) -> str:
    """Return the context limit for messages, in the words by which clients recognize that they exceed it."""
    limit = context.config.max_model_len
    return f"this model's maximum context length is {limit} tokens, prompt and output together (option.max_model_len)"


def too_many_chars(context: ApiContext, field: str, given: str) -> ContextTooLong:
    """Create the error for a text that is too long however it is tokenized."""
    return ContextTooLong(
        field,
        f"given {given} characters; accepted: at most {max_prompt_chars(context)}; {_context_length(context)}, and no"
        f" token is longer than {context.text.max_token_chars} characters",
    )


def encode_prompts(
    context: ApiContext, texts: Mapping[str, str], parameters: Parameters, *, add_special_tokens: bool
) -> tuple[Prompt, ...]:
    """Tokenize prompts, and truncate them if the body asks for it.

    `texts`: prompts by field. `add_special_tokens`: default for bodies that do not set it.

    Raises `InvalidRequest` if a text has no token or leaves no room for an output. A text that cannot fit the context,
    and is not truncated, is rejected before it is tokenized.
    """
    limit = truncation_limit(context, parameters)
    for field, text in texts.items():
        if len(text) > max_prompt_chars(context, limit):
            raise too_many_chars(context, field, str(len(text)))

    if parameters["add_special_tokens"] is not None:
        add_special_tokens = parameters["add_special_tokens"]

    def encode() -> tuple[Prompt, ...] | InvalidRequest:
        try:
            return tuple(_encoded(context, texts, limit, add_special_tokens))
        except InvalidRequest as error:
            return error  # gevent prints the traceback of an exception in a thread

    prompts: tuple[Prompt, ...] | InvalidRequest
    num_chars = sum(map(len, texts.values()))
    if num_chars > _LONG_TEXT_CHARS and monkey.is_module_patched("threading"):
        with _long_texts, tokenizes_in_thread(max(map(len, texts.values()))):
            prompts = gevent.get_hub().threadpool.apply(encode)
    else:
        prompts = encode()
    if isinstance(prompts, InvalidRequest):
        raise prompts
    return prompts


def _encoded(
    context: ApiContext, texts: Mapping[str, str], limit: int | None, add_special_tokens: bool
) -> Iterator[Prompt]:
    """Yield the prompts, truncated to `limit` tokens. Raises `InvalidRequest`."""
    # The tokens that the tokenizer adds, such as BOS. They are kept as in transformers.
    added = context.text.encode("") if add_special_tokens and limit is not None else ()
    most = max(MAX_PROMPT_TOKENS, context.config.max_model_len)
    num_tokens = 0
    for field, text in texts.items():
        _check_pieces(context, field, text)
        whole = context.text.encode(text, add_special_tokens)
        kept = truncated(whole, limit, added)
        check_length(context, field, len(kept))
        num_tokens += len(kept)
        if num_tokens > most:
            raise InvalidField(
                field,
                f"with it the prompts have {num_tokens} tokens; accepted: at most {most} in one request",
            )
        yield Prompt(field, text, kept, len(kept) < len(whole))


def _check_pieces(context: ApiContext, field: str, text: str) -> None:
    """Raise `ContextTooLong` if a text of more than one piece has more tokens than the context."""
    limit = context.config.max_model_len
    num_tokens = num_cut = 0
    for start in range(0, len(text), _PIECE_CHARS) if len(text) > _PIECE_CHARS else ():
        num_tokens += len(context.text.encode(text[start : start + _PIECE_CHARS], False))
        num_cut += _CUT_TOKENS
        if num_tokens - num_cut >= limit:
            raise ContextTooLong(
                field,
                f"given at least {num_tokens - num_cut} tokens; accepted: at most {limit - 1}, or at most"
                f" {_PIECE_CHARS} characters with 'truncate'; {_context_length(context)}",
            )


def truncation_limit(context: ApiContext, parameters: Parameters) -> int | None:
    """Return the maximum number of prompt tokens to keep. None: keep all. Raises `InvalidField`."""
    limit: int | None = parameters["truncate"]
    if limit == 0:
        raise refuse(parameters.fields["truncate"], 0, "an integer of at least 1, or -1 for the context")
    return context.config.max_model_len - 1 if limit == -1 else limit


def truncated(token_ids: tuple[int, ...], limit: int | None, added: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the last token ids, `limit` in total. `added`: ids to keep if the token ids begin with them."""
    if limit is None or len(token_ids) <= limit:
        return token_ids
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(added[:limit], token_ids, strict=False))
    num_added = len(list(equal))
    return token_ids[:num_added] + token_ids[len(token_ids) - limit + num_added :]


def texts_by_field(field: str, value: Any, accepted: str) -> dict[str, str]:
    """Return one text or a list of texts, by field. `accepted`: for the error message. Raises `InvalidField`."""
    if isinstance(value, str) and value:
        return {field: value}
    if not isinstance(value, list) or not value:
        raise refuse(field, value, accepted)
    texts = prompts_by_field(field, value)
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise refuse(name, text, "a string that is not empty, as others in the list are")
    return texts


def prompts_by_field(field: str, prompts: Sequence[Any]) -> dict[str, Any]:
    """Return the prompts of a list by field. Raises `InvalidField` if there are too many."""
    if len(prompts) > MAX_PROMPTS:
        raise InvalidField(field, f"given {len(prompts)} prompts; accepted: at most {MAX_PROMPTS}")
    return {f"{field}[{index}]": prompt for index, prompt in enumerate(prompts)}


def check_length(context: ApiContext, field: str, num_tokens: int) -> None:
    """Raise `InvalidRequest` if a prompt has no token or leaves no room for an output."""
    limit = context.config.max_model_len
    if num_tokens == 0:
        raise InvalidField(field, "has no token; accepted: a prompt of at least 1 token")
    if num_tokens >= limit:
        raise ContextTooLong(
            field,
            f"given {num_tokens} tokens; accepted: at most {limit - 1}; {_context_length(context)}",
        )


def prompt_of_token_ids(context: ApiContext, field: str, value: Any, limit: int | None) -> Prompt:
    """Return a prompt of token ids, without a text. No special tokens are added. `limit`: from `truncation_limit`.

    Raises `InvalidRequest` if the value is not a list of token ids, or leaves no room for an output.
    """
    if not isinstance(value, list):
        raise refuse(field, value, "a list of token ids, as others in the list are")
    check_length(context, field, len(value) if limit is None else min(len(value), limit))
    check_token_ids(context, field, value)
    return Prompt(field, "", truncated(tuple(value), limit))


def generation_requests(
    context: ApiContext,
    prompts: Sequence[Prompt],
    parameters: Parameters,
    *,
    report: LogprobReport,
    counts: AnswerCounts,
    default_max_new_tokens: int | None,
    cut_to_context: bool,
    continues_prompt: bool,
    keeps_text: bool,
) -> tuple[GenerationRequest, ...]:
    """Create one request for each prompt.

    `default_max_new_tokens`: None for the rest of the context. `cut_to_context`: cut an output that does not fit the
    context instead of rejecting the request. `keeps_text`: keep the texts of the prompts.

    Raises `ContextTooLong` if a prompt and its output do not fit, and `InvalidField`.
    """
    sampling = sampling_params(context, parameters, report)
    rules = text_rules(context, parameters, continues_prompt=continues_prompt)
    requests = []
    for prompt in prompts:
        max_new_tokens = _max_new_tokens(context, prompt, parameters, default_max_new_tokens, cut_to_context)
        own = replace(sampling, max_new_tokens=max_new_tokens, seed=make_seed(parameters))
        requests.append(
            GenerationRequest(
                prompt.text if keeps_text else "",
                prompt.token_ids,
                own,
                rules,
                prompt.field,
                counts.n,
                counts.best_of,
                counts.ranked,
                prompt.truncated,
                counts.field if counts.best_of > 1 else prompt.field.partition("[")[0],
            )
        )
    return tuple(requests)


def _max_new_tokens(
    context: ApiContext, prompt: Prompt, parameters: Parameters, default: int | None, cut_to_context: bool
) -> int:
    limit = context.config.max_model_len
    num_prompt = len(prompt.token_ids)
    room = limit - num_prompt
    wanted = _requested_length(context, prompt, parameters)
    if wanted is not None and cut_to_context:
        wanted = min(wanted, room)
    most = wanted or (room if default is None else min(default, room))
    if parameters["min_new_tokens"] > most:
        reason = "the largest number of new tokens"
        if most == room:
            reason = "the rest of the context after the prompt (option.max_model_len)"
        elif wanted is None:
            reason += " without max_new_tokens or max_tokens"
        raise refuse(
            parameters.fields["min_new_tokens"], parameters["min_new_tokens"], f"at most {most}, {reason}"
        )
    if most > room:
        name = "max_length" if parameters["max_new_tokens"] is None else "max_new_tokens"
        value: int = parameters[name]
        raise ContextTooLong(
            parameters.fields[name],
            f"given {as_json(value)}; accepted: at most {value - most + room}, as {prompt.field} has"
            f" {num_prompt} token{'' if num_prompt == 1 else 's'}; {_context_length(context)}",
        )
    return most


def _requested_length(context: ApiContext, prompt: Prompt, parameters: Parameters) -> int | None:
    """Return `max_new_tokens`, or `max_length` minus the prompt. A prompt of an encoder does not count."""
    length: int | None = parameters["max_new_tokens"]
    total: int | None = parameters["max_length"]
    if length is not None:
        return max(length, 1)  # the engine always generates a token
    if total is None:
        return None
    num_before = 0 if context.text.is_encoder_decoder else len(prompt.token_ids)
    if total <= num_before:
        raise refuse(
            parameters.fields["max_length"],
            total,
            f"at least {num_before + 1}, as it includes the prompt ({prompt.field}) of {num_before} tokens",
        )
    return total - num_before
