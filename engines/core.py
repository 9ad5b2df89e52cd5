"""Data types that every part of an engine shares. Plain Python: neither torch, numpy nor any wire library.

A `Request` is what the web process asks for, a `RequestOutput` what it gets back, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    """Why a request ended, in the words of the LMI reply (`details.finish_reason`)."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"  # noqa: S105
    STOP_SEQUENCE = "stop_sequence"


class AbortReason(StrEnum):
    """Why a client wants no more of a request."""

    STOP_SEQUENCE = "stop_sequence"
    """Its text has reached a stop string, so its answer is complete: it counts as finished."""
    CLIENT_LEFT = "client_left"
    TIMEOUT = "timeout"
    FAILED = "failed"
    """The HTTP request that it belongs to has failed."""
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class GenerateParams:
    """Parameters of transformers' `generate` that engine=Python applies by that library's own logits processors.

    Their meaning is that of transformers' `GenerationConfig`; each default changes nothing.
    """

    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    begin_suppress_tokens: tuple[int, ...] = ()
    forced_bos_token_id: tuple[int, ...] = ()
    """None or one."""
    forced_eos_token_id: tuple[int, ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """(token ids, the bias of the last of them after the others)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    Values are checked where a body is parsed (`lmi_server/apis`), so past that point each is in range.
    """

    max_new_tokens: int
    """At least 1."""
    temperature: float = 0.0
    """0 is greedy; else logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches p (Holtzman et al. 2020, arXiv:1904.09751)."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least min_p times that of the likeliest (Nguyen et al. 2024)."""
    typical_p: float = 1.0
    """Keep the most typical tokens, up to probability p (Meister et al. 2022); 1 keeps all."""
    repetition_penalty: float = 1.0
    """Divides (multiplies, when negative) the logits of tokens already in the sequence (Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that stand in the output."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit once for each time that it stands in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit), each id once."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences, none empty, that the output must not contain: after the others the last one is ruled out."""
    min_new_tokens: int = 0
    """Until there are so many, no stop token can be drawn."""
    seed: int = 0
    """Seed of this request's own random stream, 0 <= seed < 2**64; unused when greedy."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with any of these: the model's EOS ids, or none under `ignore_eos_token`."""
    logprobs: bool = False
    """Report the log-probability of each token, under the model's distribution before any processing."""
    top_logprobs: int = 0
    """With each token, report so many of the likeliest and their log-probabilities."""
    prompt_logprobs: int | None = None
    """Report those of the prompt's tokens, each under what stands before it, and with each so many of the likeliest."""
    num_beams: int = 1
    """Above 1: beam search with so many hypotheses, no sampling; the best is the output, all of it at the end."""
    length_penalty: float = 1.0
    """A finished hypothesis scores the sum of its log-probabilities over its output length to this power."""
    early_stopping: bool = False
    """Beam search ends as soon as `num_beams` hypotheses are finished, though a better one might come."""
    generate: GenerateParams | None = None
    """engine=Python only; None where the request asks for none of them."""

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
    """One prompt to be continued. `id` is made by the server; a client's own id is only a label in the log."""

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time: float
    """`time.monotonic()` when the HTTP request arrived; one clock for all processes of a host."""
    deadline: float | None = None
    """`time.monotonic()` at which the engine gives up on the request, waiting or running."""
    priority: int = 0
    """Smaller comes first, under the `priority` policy."""
    tenant: str = ""
    """Whose request it is: the `fair` policy shares out among tenants, and no page is shared across them."""
    same_prompt_as: str = ""
    """Id of a request with the same prompt and tenant, submitted just before: its pages may be shared."""


TokenLogprobs = tuple[tuple[int, float], ...]
"""(token id, log-probability), the likeliest first."""


class SampledToken(NamedTuple):
    """What sampling gave one sequence."""

    token_id: int
    logprob: float | None = None
    """Under the model's distribution before any processing; None where not asked for."""
    finite: bool = True
    """False when the sequence's logits were not; the token means nothing then."""
    top: TokenLogprobs = ()
    """The `top_logprobs` likeliest under the same distribution. In beam search what `BeamSearch.advance` asks for:
    the likeliest continuations after penalties and bans."""


class PromptLogprob(NamedTuple):
    """Of one prompt token, under what stands before it."""

    logprob: float
    top: TokenLogprobs = ()


class RequestOutput(NamedTuple):
    """What one step, or an error, gave one request. The last one has a `finish_reason` or an `error_kind`.

    A tuple: hundreds are made in every step.
    """

    id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """As many as `token_ids`, or none where the request did not ask."""
    top_logprobs: tuple[TokenLogprobs, ...] = ()
    """As many as `token_ids`, or none where the request did not ask."""
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    """With the first token, where the request asked: of each prompt token from the second on."""
    finish_reason: FinishReason | None = None
    error_kind: str = ""
    """A `kind` of `engines.errors`, empty when all is well."""
    error_message: str = ""
    num_cached_tokens: int = 0
    """With the first token: how many of the prompt's came from the prefix cache."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or bool(self.error_kind)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the start-up line tells about a running engine."""

    model: str
    engine: str
    world_size: int
    device: str
    dtype: str
    kv_capacity_tokens: int
    kv_capacity_bytes: int
    """Over all ranks together."""
    block_size: int
    max_num_seqs: int
    max_model_len: int
    paged_attention: bool
    load_seconds: dict[str, float] = field(default_factory=dict)
    """Where the start-up time went, by part."""


@dataclass(frozen=True, slots=True)
class HistogramData:
    """One Prometheus histogram: `counts[i]` observations were at most `bounds[i]`, the last count is +Inf's.

    Counts are not cumulative: each observation is in exactly one.
    """

    name: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine's own counters, taken at a step boundary."""

    info: EngineInfo
    gauges: dict[str, float]
    counters: dict[str, float]
    histograms: tuple[HistogramData, ...]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What can be changed while engine=MPI runs: order, limits of a step, bounds of the queue. Swapped as a whole."""

    max_num_seqs: int
    """Sequences running at once."""
    max_prefill_tokens: int
    """Prompt tokens in one step, over all sequences."""
    max_num_batched_tokens: int
    """All tokens in one step."""
    max_waiting: int
    """Requests waiting for a place that is not free; more are refused. Preempted ones are not counted."""
    max_queued_tokens: int | None = None
    """Prompt tokens of these requests together; a request that goes beyond is refused. None: no bound."""
    scheduling_policy: str = "fcfs"
    """Who is next: `fcfs`, `priority` or `fair`."""
    chunked_prefill: bool = True
    """True: chunks of prompts ride with decodes. False: decodes wait while whole prompts run."""
    waiting_served_ratio: float = 0.3
    """Without chunks: decodes pause only for so many waiting requests, as a share of the running ones."""
    max_waiting_tokens: int = 20
    """Without chunks: after so many steps of decodes they pause for any waiting request."""
    waiting_steps: int = 0
    """Without chunks: decodes run at least so many steps between two pauses."""
