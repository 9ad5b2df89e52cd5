"""Data types that all parts of an engine share. Plain Python: no torch, no numpy, no wire library.

The web process sends a `Request`, and receives `RequestOutput`s step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from engines.errors import DeadlineExceeded, EngineError


class FinishReason(StrEnum):
    """Why a request ended, in the words of the LMI reply (`details.finish_reason`)."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"  # noqa: S105
    STOP_SEQUENCE = "stop_sequence"


class AbortReason(StrEnum):
    """Why the web process aborts a request."""

    STOP_SEQUENCE = "stop_sequence"
    """The text has reached a stop string: the answer is complete, and the request counts as finished."""
    CLIENT_LEFT = "client_left"
    TIMEOUT = DeadlineExceeded.kind
    """The web process and the engine may both enforce the deadline, so both ends have the same name."""
    FAILED = "failed"
    """The HTTP request has failed."""
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class GenerateParams:
    """Parameters of transformers' `GenerationConfig` that engine=Python supports. The defaults change nothing."""

    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: tuple[int, ...] = ()
    """Empty, or one id."""
    forced_eos_token_id: tuple[int, ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """(token ids, number added to the logit of the last one when the others precede it)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for choosing tokens and ending generation. `lmi_server/apis` has checked that they are in range."""

    max_new_tokens: int
    """At least 1."""
    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches p (Holtzman et al. 2020, arXiv:1904.09751)."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least min_p times that of the most likely token (Nguyen et al. 2024)."""
    typical_p: float = 1.0
    """Keep the most typical tokens, up to probability p (Meister et al. 2022); 1 keeps all."""
    repetition_penalty: float = 1.0
    """Divides (multiplies, when negative) the logits of tokens already in the sequence (Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that appear in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each occurrence in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, number added to its logit), each id once."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences, none empty, that the output must not contain: the last token is banned after the others."""
    min_new_tokens: int = 0
    """Ban stop tokens until the output has this many tokens."""
    seed: int = 0
    """Seed of the request's random stream, 0 <= seed < 2**64; unused when greedy."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end generation: the model's EOS ids, or none under `ignore_eos_token`."""
    logprobs: bool = False
    """Report the log-probability of each token, under the model's distribution before any processing."""
    top_logprobs: int = 0
    """Number of most likely tokens to report with each token, with their log-probabilities."""
    prompt_logprobs: int | None = None
    """Report log-probabilities of prompt tokens, with this many of the most likely tokens for each; None: do not
    report."""
    num_beams: int = 1
    """Above 1: beam search with this many hypotheses, without sampling. The best one is the output, sent at the end."""
    length_penalty: float = 1.0
    """A finished hypothesis scores the sum of its log-probabilities, divided by its output length to this power."""
    early_stopping: bool = False
    """Beam search ends as soon as `num_beams` hypotheses are finished, though a better one might come."""
    generate: GenerateParams | None = None
    """For engine=Python only; None if the request has no such parameters."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn at random."""
        return self.temperature != 0.0 and self.num_beams == 1

    @property
    def penalized(self) -> bool:
        """Whether tokens of the sequence change the logits of the next one."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def plain(self) -> bool:
        """Whether the next token is the one with the model's largest logit, and nothing else is requested."""
        return (
            self.temperature == 0.0
            and not self.penalized
            and not self.logit_bias
            and not self.bad_words
            and self.min_new_tokens == 0
            and not self.logprobs
            and self.top_logprobs == 0
            and self.prompt_logprobs is None
            and self.num_beams == 1
            and self.generate is None
        )


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued. The server creates `id`; a client's own id is only a label in the log."""

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time: float
    """`time.monotonic()` when the HTTP request arrived; all processes of a host share this clock."""
    deadline: float | None = None
    """`time.monotonic()` at which the engine stops the request, waiting or running."""
    priority: int = 0
    """Smaller comes first, under the `priority` policy."""
    tenant: str = ""
    """Tenant of the request: the `fair` policy is fair among tenants, and they share no pages."""
    same_prompt_as: str = ""
    """Id of a request with the same prompt and tenant, submitted just before, whose pages may be shared."""


TokenLogprobs = tuple[tuple[int, float], ...]
"""(token id, log-probability) pairs, the most likely first."""


class SampledToken(NamedTuple):
    """The result of sampling for one sequence."""

    token_id: int
    logprob: float | None = None
    """Log-probability under the model's distribution before any processing; None if not requested."""
    finite: bool = True
    """Whether the sequence's logits were finite; if not, the token is meaningless."""
    top: TokenLogprobs = ()
    """The `top_logprobs` most likely tokens under the same distribution. In beam search, the most likely
    continuations after penalties and bans."""


class PromptLogprob(NamedTuple):
    """The log-probability of one prompt token, given the tokens before it."""

    logprob: float
    top: TokenLogprobs = ()


class RequestOutput(NamedTuple):
    """The output of one step for one request. The last one has a `finish_reason` or an `error_kind`.

    A tuple for speed, because every step creates hundreds.
    """

    id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """One for each token; empty if not requested."""
    top_logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token; empty if not requested."""
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    """Sent with the first token if requested: one for each prompt token from the second on."""
    finish_reason: FinishReason | None = None
    error_kind: str = ""
    """A `kind` of `engines.errors`; empty without an error."""
    error_message: str = ""
    num_cached_tokens: int = 0
    """Sent with the first token: number of prompt tokens that came from the prefix cache."""

    @classmethod
    def failed(cls, request_id: str, error: EngineError) -> Self:
        """Return the only or last output of a request that ends with an error."""
        return cls(request_id, error_kind=error.kind, error_message=str(error))

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or bool(self.error_kind)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts about a running engine, as reported in its start-up line."""

    model: str
    engine: str
    world_size: int
    device: str
    dtype: str
    kv_capacity_tokens: int = 0
    kv_capacity_bytes: int = 0
    """Bytes over all ranks."""
    block_size: int = 0
    max_num_seqs: int = 0
    max_model_len: int = 0
    paged_attention: bool = False
    load_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of the start-up, by part."""


@dataclass(frozen=True, slots=True)
class HistogramData:
    """One Prometheus histogram. Counts are not cumulative: each observation counts in the first bucket that holds
    it, and the last count is that of +Inf."""

    name: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine's counters, taken between two steps."""

    info: EngineInfo
    gauges: dict[str, float]
    counters: dict[str, float]
    histograms: tuple[HistogramData, ...]
    copies: dict[str, EngineStats] = field(default_factory=dict)
    """With several copies: the stats of each copy that replied, by its number from 1 on. They are not added up."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings that can change while engine=MPI runs: order of requests, limits of a step, and limits of the queue."""

    max_num_seqs: int
    """Maximum number of running sequences."""
    max_prefill_tokens: int
    """Maximum number of prompt tokens in one step, over all sequences."""
    max_num_batched_tokens: int
    """Maximum number of tokens in one step."""
    max_waiting: int
    """Maximum number of requests in the waiting queue; more are refused. Preempted requests do not count."""
    max_queued_tokens: int | None = None
    """Maximum number of prompt tokens in the waiting queue; requests beyond it are refused. None: no limit."""
    scheduling_policy: str = "fcfs"
    """Order of requests: `fcfs`, `priority` or `fair`."""
    chunked_prefill: bool = True
    """True: chunks of prompts share steps with decodes. False: decodes pause while whole prompts run."""
    waiting_served_ratio: float = 0.3
    """Without chunked prefill: decodes pause once this many requests wait, as a share of the running ones."""
    max_waiting_tokens: int = 20
    """Without chunked prefill: decodes pause for any waiting request after this many steps."""
    waiting_steps: int = 0
    """Without chunked prefill: decodes run for at least this many steps between two pauses."""

    @property
    def max_running(self) -> int:
        """Maximum number of running sequences. With chunked prefill, each takes at least one token of every step."""
        if not self.chunked_prefill:
            return self.max_num_seqs
        return min(self.max_num_seqs, self.max_num_batched_tokens)


SettingValue = int | float | bool | str | None
"""Value of a field of `SchedulerSettings`."""


class SchedulerReply(NamedTuple):
    """The engine's reply to a change of its scheduler's settings."""

    settings: SchedulerSettings | None
    """The settings in force; None if this engine has no such scheduler."""
    refused: dict[str, str]
    """Reasons for refused values, by field. If there are any, nothing has changed."""
