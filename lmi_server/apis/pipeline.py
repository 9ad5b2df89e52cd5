"""From a body to a `Call`: one pipeline for all bodies. A `BodyFormat` holds what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from lmi_server.errors import ErrorForm
from lmi_server.generation.answer_text import GenerationRequest
from lmi_server.http.framing import Framing

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conventions:
    """What depends on a request's path: `/v1/*` and `/invocations` read the same body differently."""

    error_form: ErrorForm
    """How a failing stream ends."""
    cut_to_context: bool
    """Cut an output that is longer than the context has room for, so that it ends with `length`; else refuse it."""
    completions_sample: bool
    """Completions have OpenAI's and the model's sampling defaults, as chats always have; else they are greedy."""


OPENAI = Conventions(ErrorForm.OPENAI, cut_to_context=False, completions_sample=True)
LMI = Conventions(ErrorForm.LMI, cut_to_context=True, completions_sample=False)


@dataclass(frozen=True, slots=True)
class BodyFields:
    """The checked fields of a body, its prompt apart."""

    parameters: Parameters
    framing: Framing | None
    """Of a streamed answer; None for a whole one."""
    model: str = ""
    """Any name is accepted; an OpenAI answer repeats it."""
    include_usage: bool = False

    @property
    def streamed(self) -> bool:
        return self.framing is not None


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """How one kind of body is read and answered. The functions raise `engines.errors.InvalidRequest`."""

    read_fields: Callable[[ApiContext, Body, Conventions], BodyFields]
    read_prompts: Callable[[ApiContext, Body, BodyFields], tuple[Prompt, ...]]
    report: Callable[[BodyFields, AnswerCounts], LogprobReport]
    """Decides which log-probabilities the engine reports."""
    make_reply: Callable[[ApiContext, BodyFields, tuple[GenerationRequest, ...], Conventions], Reply]
    default_max_new_tokens: int | None
    """None: the rest of the context."""
    continues_prompt: bool = True
    """The output continues the prompt's text; else it is a text of its own, as in a chat."""
    best_of_is_n: bool = False
    """Without `n`, all `best_of` answers are returned, as in LMI; else one."""
    streams_choices: bool = True
    """A stream may carry several answers."""


def parse(context: ApiContext, body: Body, dialect: BodyFormat, conventions: Conventions) -> Call:
    """Check a body and make its requests. Raises `engines.errors.InvalidRequest`."""
    fields = dialect.read_fields(context, body, conventions)
    parameters, streamed = fields.parameters, fields.streamed
    prompts = dialect.read_prompts(context, body, fields)
    counts = answer_counts(
        parameters,
        num_prompts=len(prompts),
        streamed=streamed,
        best_of_is_n=dialect.best_of_is_n,
        streams_choices=dialect.streams_choices,
    )
    report = dialect.report(fields, counts)
    check_generate_parameters(context, parameters)
    check_vocabulary(context, parameters)
    check_beams(context, parameters, counts, report, streamed=streamed)
    check_prompt_report(context, parameters, report, streamed=streamed)
    check_timeout(context, parameters)
    requests = generation_requests(
        context,
        prompts,
        parameters,
        report=report,
        counts=counts,
        default_max_new_tokens=dialect.default_max_new_tokens,
        cut_to_context=conventions.cut_to_context,
        continues_prompt=dialect.continues_prompt,
    )
    reply = dialect.make_reply(context, fields, requests, conventions)
    return Call(requests, reply, parameters["priority"], parameters["timeout"])
