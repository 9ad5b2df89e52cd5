"""Rules that involve several options. They are applied after all values are parsed."""

from __future__ import annotations

from dataclasses import replace

from lmi_server.properties import batching
from lmi_server.properties.batching import Batching
from lmi_server.properties.option import OptionValue
from lmi_server.properties.problems import Problem
from lmi_server.values.base import Scalar


def apply(values: dict[str, OptionValue], has_handler: bool = False) -> Batching:
    """Choose the engine, and check the values against it and against each other.

    The keys of `values` are option names. `has_handler`: whether a user's handler answers requests.
    """
    decided = batching.for_handler(values) if has_handler else batching.decide(values)
    problems = [*decided.problems, *_needs_paging(values), *_needs_s3(values)]
    problems += [] if has_handler else _copies(values)
    notes = [*decided.notes, *_needs_pauses(values, decided.engine)]
    contradicting = {problem.source for problem in decided.problems}
    for item in values.values():
        if item.source in contradicting:
            continue
        reason = _MPI_ONLY.get((item.option.name, item.value), "")
        if reason and decided.engine != "MPI":
            problems.append(item.problem(reason))
        elif _is_unused(item, decided.engine):
            notes.append(f"{item.place}: {item}: no effect under engine={decided.engine}")
    return replace(decided, problems=tuple(problems), notes=tuple(notes))


def _copies(values: dict[str, OptionValue]) -> list[Problem]:
    """Return a problem for each pair of copy numbers that contradict each other."""
    size, least, most = (
        values.get(name) for name in ("option.data_parallel_size", "minWorkers", "maxWorkers")
    )
    return [
        high.problem(f"less than {low} ({low.place})", f"at least {low.value}")
        for low, high in ((least, most), (least, size), (size, most))
        if low is not None and high is not None and _is_less(high.value, low.value)
    ]


def _is_less(one: Scalar, other: Scalar) -> bool:
    return isinstance(one, int) and isinstance(other, int) and one < other


def _is_unused(item: OptionValue, engine: str) -> bool:
    """Return True if the option has no effect under this engine. `option.rolling_batch` helped to choose the engine."""
    return item.option.engine not in ("any", engine) and item.option.name != "option.rolling_batch"


_FROM_FILES = "engine=Python only loads weights from files; use engine=MPI"
_MPI_ONLY: dict[tuple[str, Scalar | None], str] = {
    ("option.load_format", "dummy"): f"{_FROM_FILES} for random weights",
    ("option.load_format", "stream"): f"{_FROM_FILES} to stream them",
}
_PAGED_ONLY = {
    "option.batch_scheduler_policy": (
        "max_utilization",
        "contiguous blocks are all allocated at admission, so sequences are never preempted; use guaranteed_no_evict",
    ),
    "option.enable_prefix_caching": (True, "contiguous blocks cannot be shared between sequences"),
}
_PAUSE_ONLY = ("option.waiting_served_ratio", "option.max_waiting_tokens", "option.waiting_steps")


def _needs_paging(values: dict[str, OptionValue]) -> list[Problem]:
    paged = values.get("option.paged_attention")
    if paged is None or paged.value is not False:
        return []
    return [
        item.problem(f"requires option.paged_attention=true: {why}")
        for name, (value, why) in _PAGED_ONLY.items()
        if (item := values.get(name)) is not None and item.value == value
    ]


def _needs_s3(values: dict[str, OptionValue]) -> list[Problem]:
    model, load = values.get("option.model_id"), values.get("option.load_format")
    if load is None or load.value != "stream" or (model and str(model.value).startswith("s3://")):
        return []
    reason = "weights can only be streamed from S3; set option.model_id=s3://bucket/prefix, or option.load_format=auto"
    return [load.problem(reason)]


def _needs_pauses(values: dict[str, OptionValue], engine: str) -> list[str]:
    chunked = values.get("option.enable_chunked_prefill")
    if chunked is not None and chunked.value is False:
        return []
    return [
        f"{item.place}: {item}: no effect unless option.enable_chunked_prefill=false"
        for name in _PAUSE_ONLY
        if (item := values.get(name)) is not None and item.option.engine == engine
    ]
