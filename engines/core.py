"""Data types that every part of an engine shares. Plain Python: neither torch, numpy nor any wire library.

A `Request` is what the web process asks for, a `RequestOutput` what it gets back, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended, in the words of the LMI reply (`details.finish_reason`)."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"  # noqa: S105
    STOP_SEQUENCE = "stop_sequence"


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
    repetition_penalty: float = 1.0
    """Divides (multiplies, when negative) the logits of tokens already in the sequence (Keskar et al. 2019)."""
    seed: int = 0
    """Seed of this request's own random stream, 0 <= seed < 2**64; unused when greedy."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with any of these: the model's EOS ids, or none under `ignore_eos_token`."""
    logprobs: bool = False
    """Report the log-probability of each token, under the model's distribution before any processing."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued. `id` is made by the server; a client's own id is only a label in the log."""

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time: float
    """`time.monotonic()` when the HTTP request arrived; one clock for all processes of a host."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step, or an error, gave one request. The last one has a `finish_reason` or an `error_kind`."""

    id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """As many as `token_ids`, or none where the request did not ask."""
    finish_reason: FinishReason | None = None
    error_kind: str = ""
    """A `kind` of `engines.errors`, empty when all is well."""
    error_message: str = ""

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
