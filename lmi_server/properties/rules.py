"""What keys mean to each other: rules over several options at once, after each value is known by itself."""

from __future__ import annotations

from dataclasses import dataclass

from lmi_server.properties.kinds import Scalar
from lmi_server.properties.option import Option, show
from lmi_server.properties.options import by_name
from lmi_server.properties.problems import Problem, Source


@dataclass(frozen=True, slots=True)
class Chosen:
    """The value that an option has, and where from."""

    option: Option
    value: Scalar
    text: str
    source: Source
    written: str
    """The key as the user wrote it: an alias, perhaps."""

    @property
    def place(self) -> str:
        return str(self.source)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say."""

    engine: str
    engine_source: str
    """Why it is this engine, where no key says it; else empty."""
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


_SAME_AS = {
    "option.tensor_parallel_size": "option.tensor_parallel_degree",
    "option.max_num_seqs": "option.max_rolling_batch_size",
}


def apply(chosen: dict[str, Chosen]) -> Verdict:
    """Decide the engine and hold the values against it and against each other. Keys are option names."""
    engine, engine_source = _engine(chosen)
    problems = [*_equal_names(chosen), *_needs_paging(chosen)]
    notes = _needs_pauses(chosen) if engine == "MPI" else []
    for item in chosen.values():
        reason, nothing = _under_engine(item, engine)
        if reason:
            problems.append(Problem(item.source, item.written, item.text, reason))
        elif nothing:
            notes.append(f"{item.place}: {item.written}={item.text}: {nothing}")
    return Verdict(engine, engine_source, tuple(problems), tuple(notes))


def _engine(chosen: dict[str, Chosen]) -> tuple[str, str]:
    if "engine" in chosen:
        return str(chosen["engine"].value), ""
    batch, rolling = chosen.get("batch_size"), chosen.get("option.rolling_batch")
    if rolling is not None and rolling.value == "disable":
        return "Python", f"inferred from {rolling.written}=disable"
    if batch is not None and batch.value != 1:
        return "Python", f"inferred from {batch.written}={batch.text}"
    return "MPI", ""


def _under_engine(item: Chosen, engine: str) -> tuple[str, str]:
    """(why the value cannot stand under this engine, or why it changes nothing there); both may be empty."""
    name, value = item.option.name, item.value
    if name == "option.rolling_batch":
        if engine == "MPI" and value == "disable":
            return "engine=MPI is rolling batching; to do without it write engine=Python", ""
        if engine == "Python" and value == "lmi-dist":
            return "rolling batching is served by engine=MPI; under engine=Python write disable", ""
        if engine == "Python" and value == "auto":
            return "", "engine=Python batches whole requests; rolling batching is engine=MPI"
    elif name == "batch_size" and engine == "MPI":
        if value != 1:
            reason = (
                "dynamic batching belongs to engine=Python; under engine=MPI the batch is bounded by"
                " option.max_rolling_batch_size"
            )
            return reason, ""
        return "", "no effect under engine=MPI"
    elif name == "option.load_format" and value == "dummy" and engine == "Python":
        return "engine=Python loads weights from files; random weights are made by engine=MPI", ""
    elif name == "option.mpi_mode" and value is True and engine == "Python":
        return "engine=Python runs no MPI ranks; write engine=MPI", ""
    elif item.option.engine not in ("any", engine):
        return "", f"no effect under engine={engine}"
    return "", ""


_PAGED_ONLY = {
    "option.batch_scheduler_policy": (
        "max_utilization",
        "a consecutive run is taken whole at admission, so nobody has to give way; write guaranteed_no_evict",
    ),
    "option.enable_prefix_caching": (True, "a consecutive run cannot begin with another sequence's blocks"),
}
_PAUSE_ONLY = ("option.waiting_served_ratio", "option.max_waiting_tokens", "option.waiting_steps")


def _needs_paging(chosen: dict[str, Chosen]) -> list[Problem]:
    paged = chosen.get("option.paged_attention")
    if paged is None or paged.value is not False:
        return []
    return [
        Problem(item.source, item.written, item.text, f"it needs option.paged_attention=true: {why}")
        for name, (value, why) in _PAGED_ONLY.items()
        if (item := chosen.get(name)) is not None and item.value == value
    ]


def _needs_pauses(chosen: dict[str, Chosen]) -> list[str]:
    chunked = chosen.get("option.enable_chunked_prefill")
    if chunked is not None and chunked.value is False:
        return []
    return [
        f"{item.place}: {item.written}={item.text}: no effect unless option.enable_chunked_prefill=false"
        for name in _PAUSE_ONLY
        if (item := chosen.get(name)) is not None
    ]


def _equal_names(chosen: dict[str, Chosen]) -> list[Problem]:
    """The back end's name of a key is accepted only where it says the same as LMI's name."""
    problems = []
    for name, other in _SAME_AS.items():
        item = chosen.get(name)
        if item is None:
            continue
        twin = chosen.get(other)
        expected = twin.value if twin is not None else by_name()[other].default
        if item.value != expected:
            where = f"as {twin.place} says" if twin is not None else "its default"
            reason = (
                f"must be equal to {other}, which is {show(expected)}, {where}; write {other}={item.text}"
            )
            problems.append(Problem(item.source, item.written, item.text, reason, show(expected)))
    return problems
