"""Checks of parameters that are valid individually, but not together or not under this engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.capabilities import engines_with
from lmi_server.apis.base import ApiContext
from lmi_server.apis.parameters.row import Parameters
from lmi_server.apis.parameters.sampling import LogprobReport, temperature
from lmi_server.apis.parameters.table import GENERATE
from lmi_server.errors import InvalidField
from lmi_server.generation.answer_text import GenerationRequest
from lmi_server.values.show import as_json

MAX_ANSWERS = 1024
"""Maximum number of answers that one HTTP request may generate, over all its prompts."""
MAX_PROMPT_LOGPROBS = 500_000
"""Maximum number of log-probabilities of prompt tokens in one response. While it is written, other requests wait."""
MAX_REPEATED_CHARS = 16 * 1024 * 1024
"""Maximum number of characters that prompts take in one response, in which each answer may repeat its prompt."""
CHARS_PER_TOKEN_ID = 8
"""Number of these characters that a repeated token id counts as."""
_PROMPT_REPORTS = ("decoder_input_details", "prompt_logprobs")
"""Parameters that request log-probabilities of the prompt's tokens. `logprobs` with `echo` requests them too."""


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Numbers of answers to each prompt that are returned (`n`) and generated (`best_of`)."""

    n: int
    best_of: int
    ranked: bool
    """Whether the answers are ordered by their log-probabilities, the most likely one first."""
    field: str
    """The body's field that sets `best_of`; empty for the default."""


def answer_counts(
    parameters: Parameters, *, num_prompts: int, streamed: bool, best_of_is_n: bool, streams_choices: bool
) -> AnswerCounts:
    """Return the checked `n` and `best_of`. See `BodyFormat` for the last two arguments. Raises `InvalidField`."""
    best_of = parameters["best_of"]
    n: int = parameters["n"] or (best_of if best_of and best_of_is_n else 1)
    best_of = best_of or n
    name = parameters.fields.get("best_of", parameters.fields.get("n", ""))
    if best_of < n:
        raise _refused(parameters, "best_of", f"as {parameters.fields['n']} is {n}", f"at least {n}")
    if streamed and best_of > n:
        why = "but the best answers are only known at the end"
        raise _refused(parameters, "best_of", why, f"{n} in a stream")
    if streamed and n > 1 and not streams_choices:
        raise InvalidField(
            name, f"given {n} for a streamed answer, which has a single one; accepted: 1 in a stream"
        )
    if num_prompts * best_of > MAX_ANSWERS:
        raise InvalidField(
            name,
            f"given {best_of} for {num_prompts} prompts; accepted: at most {MAX_ANSWERS} answers in one request",
        )
    # In LMI, generated_text is the most likely answer, and best_of_sequences has the others.
    return AnswerCounts(n, best_of, ranked=best_of > (1 if best_of_is_n else n), field=name)


def check_beams(
    context: ApiContext,
    parameters: Parameters,
    counts: AnswerCounts,
    report: LogprobReport,
    *,
    streamed: bool,
) -> None:
    """Reject parameters that beam search does not support. It finds only the most likely answer, known at the end.

    Without beam search, `length_penalty` and `early_stopping` have no effect, as in transformers.

    Raises `InvalidField`.
    """
    if parameters["num_beams"] == 1:
        return
    _check_engine(context, parameters, "num_beams", "beam_search")
    hindrances = {
        "sampling (do_sample or temperature)": temperature(parameters) > 0,
        "n above 1": counts.n > 1,
        "best_of above 1": counts.best_of > 1,
        "a streamed answer": streamed,
        "renormalize_logits": parameters["renormalize_logits"],
        "log-probabilities": report.logprobs or report.top > 0 or report.prompt is not None,
    }
    for what, hinders in hindrances.items():
        if hinders:
            why = f"but beam search does not support {what}"
            raise _refused(parameters, "num_beams", why, "1, or a request without that")


def check_generate_parameters(context: ApiContext, parameters: Parameters) -> None:
    """Reject parameters of transformers' `generate` under an engine that does not use it. Raises `InvalidField`."""
    for row in GENERATE:
        if parameters[row.name] != row.default:
            _check_engine(context, parameters, row.name, "generate_params")


def check_prompt_report(
    context: ApiContext,
    parameters: Parameters,
    counts: AnswerCounts,
    report: LogprobReport,
    *,
    num_prompt_tokens: int,
    streamed: bool,
) -> None:
    """Reject log-probabilities of the prompt if the engine or a stream has none, or if there are too many.

    Raises `InvalidField`.
    """
    if report.prompt is None:
        return
    names = (*_PROMPT_REPORTS, "logprobs")
    name = next(name for name in names if name in parameters.fields and parameters[name] is not False)
    what = "it" if name in _PROMPT_REPORTS else "it together with echo"
    _check_engine(context, parameters, name, "prompt_logprobs", what)
    if streamed and name in _PROMPT_REPORTS:
        raise _refused(parameters, name, "but streams do not return it", "leave it out, or do not stream")
    number = num_prompt_tokens * (report.prompt + 1) * counts.n
    if number > MAX_PROMPT_LOGPROBS:
        answers = f" and {counts.n} answers to each prompt" if counts.n > 1 else ""
        why = f"for {num_prompt_tokens} prompt tokens{answers}, which makes {number} log-probabilities"
        accepted = f"at most {MAX_PROMPT_LOGPROBS} for all prompt tokens of one request"
        raise _refused(parameters, name, why, accepted)


def check_repeated_prompts(requests: Sequence[GenerationRequest], num_chars: int) -> None:
    """Raise `InvalidField` if the prompts, in all answers that repeat them, have more than `MAX_REPEATED_CHARS`."""
    if num_chars > MAX_REPEATED_CHARS:
        why = f"the answers repeat their prompts (n={requests[0].n}), which makes {num_chars} characters"
        accepted = f"at most {MAX_REPEATED_CHARS} in one response"
        raise InvalidField(requests[0].field.partition("[")[0], f"{why}; accepted: {accepted}")


def check_timeout(context: ApiContext, parameters: Parameters) -> None:
    """Raise `InvalidField` if the timeout is longer than `option.predict_timeout`."""
    timeout: float | None = parameters["timeout"]
    limit = context.config.server.predict_timeout
    if timeout is not None and timeout > limit:
        raise InvalidField(
            parameters.fields["timeout"],
            f"given {as_json(timeout)} seconds; accepted: at most {limit:g} (option.predict_timeout)",
        )


def _check_engine(
    context: ApiContext, parameters: Parameters, name: str, capability: str, what: str = "it"
) -> None:
    """Raise `InvalidField` if the engine lacks the capability that a parameter needs. `what`: what it lacks."""
    if not getattr(context.capabilities, capability):
        why = f"but engine={context.config.engine} does not support {what}"
        raise _refused(parameters, name, why, f"leave it out; {engines_with(capability)} supports it")


def _refused(parameters: Parameters, name: str, reason: str, accepted: str) -> InvalidField:
    text = f"given {as_json(parameters[name])}, {reason}; accepted: {accepted}"
    return InvalidField(parameters.fields[name], text)
