"""Parameters that are fine each by itself and cannot go together, and what several of them come to."""

from __future__ import annotations

from dataclasses import dataclass

from lmi_server.apis.base import ApiContext, Service
from lmi_server.apis.parameter import Parsed
from lmi_server.apis.parameters import PARAMETERS
from lmi_server.apis.sampling import Report, temperature
from lmi_server.errors import InvalidField
from lmi_server.values.show import as_json

_GENERATE_ONLY = tuple(row for row in PARAMETERS if row.generate)
MAX_ANSWERS = 256
"""Answers that one HTTP request may have generated, over all its prompts."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How many answers to each prompt."""

    n: int
    best_of: int


def choices(parsed: Parsed, *, num_prompts: int, streamed: bool, n_follows: bool, streams_n: bool) -> Choices:
    """`n` and `best_of`, checked.

    `n_follows`: without `n` all `best_of` answers are given (LMI), else one (OpenAI). `streams_n`: whether a stream can
    carry more than one answer.

    Raises `InvalidField`.
    """
    asked_n: int | None = parsed["n"]
    asked_best_of: int | None = parsed["best_of"]
    n = asked_n or ((asked_best_of or 1) if n_follows else 1)
    best_of = asked_best_of or n
    name = parsed.fields.get("best_of", parsed.fields.get("n", ""))
    if best_of < n:
        raise _refused(parsed, "best_of", f"as {parsed.fields['n']} is {n}", f"at least {n}")
    if streamed and best_of > n:
        raise _refused(parsed, "best_of", "and which are best is only known at the end", f"{n} in a stream")
    if streamed and n > 1 and not streams_n:
        raise InvalidField(
            name, f"given {n} with a streamed answer, which carries one; accepted: 1 in a stream"
        )
    if num_prompts * best_of > MAX_ANSWERS:
        raise InvalidField(
            name,
            f"given {best_of} for {num_prompts} prompts; accepted: at most {MAX_ANSWERS} answers in one request",
        )
    return Choices(n, best_of)


def check_beams(
    context: ApiContext, parsed: Parsed, many: Choices, report: Report, *, streamed: bool
) -> None:
    """Beam search is a search for the one likeliest answer, known at the end.

    Raises `InvalidField`.
    """
    beams: int = parsed["num_beams"]
    if beams == 1:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if parsed[name] != neutral:
                raise _refused(
                    parsed, name, "but num_beams is 1", f"{as_json(neutral)}, or num_beams above 1"
                )
        return
    if context.config.engine == "Python":
        raise _refused(parsed, "num_beams", "but engine=Python has no beam search", "1; engine=MPI does it")
    hindrances = (
        (temperature(parsed) > 0, "sampling (do_sample or temperature)"),
        (many.n > 1, "n above 1"),
        (many.best_of > 1, "best_of above 1"),
        (streamed, "a streamed answer"),
        (report.logprobs or report.top > 0 or report.prompt is not None, "log-probabilities"),
    )
    for hinders, what in hindrances:
        if hinders:
            raise _refused(
                parsed, "num_beams", f"but beam search does not go with {what}", "1, or without that"
            )


def check_engine(context: ApiContext, parsed: Parsed) -> None:
    """Raises `InvalidField`: a parameter that only the other engine supports asks for something."""
    for row in _GENERATE_ONLY:
        asked = row.name in parsed.fields and parsed[row.name] != row.default
        if asked and context.config.engine != "Python":
            raise _refused(
                parsed, row.name, "but only engine=Python supports it", "leave it out, or that engine"
            )


def check_prompt_report(context: ApiContext, parsed: Parsed, *names: str, streamed: bool) -> None:
    """What tells of the prompt's tokens: `names` are parameters that ask for it.

    Raises `InvalidField`.
    """
    for name in names:
        if name not in parsed.fields or parsed[name] is False:
            continue
        if context.config.engine == "Python":
            raise _refused(
                parsed,
                name,
                "but engine=Python does not report on prompts",
                "leave it out; engine=MPI does it",
            )
        if streamed:
            raise _refused(parsed, name, "but a stream does not carry it", "leave it out, or no stream")


def service(context: ApiContext, parsed: Parsed) -> Service:
    """How the body asks to be served. Raises `InvalidField`."""
    timeout: float | None = parsed["timeout"]
    limit = context.config.server.predict_timeout
    if timeout is not None and timeout > limit:
        raise InvalidField(
            parsed.fields["timeout"],
            f"given {as_json(timeout)} seconds; accepted: at most {limit:g} (option.predict_timeout)",
        )
    return Service(parsed["priority"], timeout)


def _refused(parsed: Parsed, name: str, reason: str, accepted: str) -> InvalidField:
    return InvalidField(parsed.fields[name], f"given {as_json(parsed[name])}, {reason}; accepted: {accepted}")
