"""Parsing of a body into a `Call`. All bodies use one pipeline; a `BodyFormat` holds the differences between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lmi_server.apis.base import ApiContext, Call, Reply
from lmi_server.apis.parameters.combinations import (
    AnswerCounts,
    answer_counts,
    check_beams,
    check_generate_parameters,
    check_prompt_report,
    check_timeout,
)
from lmi_server.apis.parameters.row import Parameters
from lmi_server.apis.parameters.sampling import LogprobReport, check_vocabulary
from lmi_server.apis.prompts import Prompt, generation_requests
from lmi_server.errors import ErrorForm, InvalidField
from lmi_server.generation.answer_text import GenerationRequest
from lmi_server.http.framing import SSE, Framing
from lmi_server.http.json_reply import dump

Body = Mapping[str, Any]

_MAX_FORMATTER_BYTES = 64 * 1024
"""Maximum number of bytes of the parameters, as JSON, that an output formatter gets."""


@dataclass(frozen=True, slots=True)
class Conventions:
    """Rules that depend on the path. `/v1/*` and `/invocations` treat the same body differently."""

    error_form: ErrorForm
    """Form of the record that ends a failed stream."""
    cut_to_context: bool
    """Whether an output that does not fit the context is cut and ends with `length`. Otherwise it is rejected."""
    completions_sample: bool
    """Whether completions use the sampling defaults of OpenAI and the model, as chats do. Otherwise they are greedy."""
    openai_framing: Callable[[], Framing]
    """Returns the framing of streams in OpenAI's format."""
    streams_by_default: bool = False
    """Whether a body that selects neither a stream nor a whole answer gets a stream."""


OPENAI = Conventions(
    ErrorForm.OPENAI, cut_to_context=False, completions_sample=True, openai_framing=lambda: SSE
)


@dataclass(frozen=True, slots=True)
class BodyFields:
    """Checked fields of a body, without the prompt."""

    parameters: Parameters
    framing: Framing | None
    """Framing of a streamed answer; None for a whole answer."""
    model: str = ""
    """Model name. Any name is accepted; an OpenAI answer repeats it."""
    include_usage: bool = False
    """Whether the last chunk of a stream in OpenAI's format has the token counts."""
    continuous_usage: bool = False
    """Whether every chunk has them."""

    @property
    def streamed(self) -> bool:
        return self.framing is not None


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Functions that read and answer one kind of body. They raise `engines.errors.InvalidRequest`."""

    read_fields: Callable[[ApiContext, Body, Conventions], BodyFields]
    read_prompts: Callable[[ApiContext, Body, BodyFields], tuple[Prompt, ...]]
    report: Callable[[BodyFields, AnswerCounts], LogprobReport]
    """Selects the log-probabilities that the engine reports."""
    make_reply: Callable[[ApiContext, BodyFields, tuple[GenerationRequest, ...], Conventions], Reply]
    default_max_new_tokens: int | None
    """Default of `max_new_tokens`. None: the rest of the context."""
    continues_prompt: bool = True
    """Whether the output continues the prompt's text. In a chat it is a separate text."""
    best_of_is_n: bool = False
    """Whether `n` defaults to `best_of`, and the most likely answer comes first, as in LMI. Otherwise `n` defaults to
    1, and answers are only ranked if `best_of` is more than `n`."""
    shows_prompt: Callable[[BodyFields, AnswerCounts], bool] = lambda *_: False
    """Returns whether the answer contains the prompt as the client wrote it."""
    streams_choices: bool = True
    """Whether a stream may carry several answers."""


def parse(context: ApiContext, body: Body, body_format: BodyFormat, conventions: Conventions) -> Call:
    """Check a body and create its requests and reply. Raises `engines.errors.InvalidRequest`."""
    fields = body_format.read_fields(context, body, conventions)
    parameters, streamed = fields.parameters, fields.streamed
    prompts = body_format.read_prompts(context, body, fields)
    counts = answer_counts(
        parameters,
        num_prompts=len(prompts),
        streamed=streamed,
        best_of_is_n=body_format.best_of_is_n,
        streams_choices=body_format.streams_choices,
    )
    report = body_format.report(fields, counts)
    if context.output_formatter is not None and parameters["num_beams"] == 1:
        report = replace(report, logprobs=True)  # formatters receive them
    check_generate_parameters(context, parameters)
    check_vocabulary(context, parameters)
    check_beams(context, parameters, counts, report, streamed=streamed)
    check_prompt_report(
        context,
        parameters,
        counts,
        report,
        num_prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        streamed=streamed,
    )
    check_timeout(context, parameters)
    requests = generation_requests(
        context,
        prompts,
        parameters,
        report=report,
        counts=counts,
        default_max_new_tokens=body_format.default_max_new_tokens,
        cut_to_context=conventions.cut_to_context,
        continues_prompt=body_format.continues_prompt,
        keeps_text=context.output_formatter is not None or body_format.shows_prompt(fields, counts),
    )
    reply = body_format.make_reply(context, fields, requests, conventions)
    given = _formatter_parameters(context, parameters, streamed)
    return Call(requests, reply, given, parameters["priority"], parameters["timeout"])


def _formatter_parameters(context: ApiContext, parameters: Parameters, streamed: bool) -> dict[str, Any]:
    """Return the body's parameters for the output formatter; empty without one. Raises `InvalidField`."""
    if context.output_formatter is None:
        return {}  # the body is not needed while the answer is generated
    given = {**parameters.given, "stream": streamed}
    size = len(dump(given).encode())
    if size > _MAX_FORMATTER_BYTES:
        accepted = (
            f"at most {_MAX_FORMATTER_BYTES} with an output formatter, which gets them with every output"
        )
        raise InvalidField("parameters", f"given {size} bytes; accepted: {accepted}")
    return given
