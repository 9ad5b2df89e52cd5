"""Choice of the batching mode, rolling (continuous) or dynamic, and with it the engine.

The `engine` key alone does not decide. Files written for today's LMI say `engine=Python` and request rolling batching
with `option.rolling_batch`, `option.async_mode` or `option.mpi_mode`. This server's rolling engine, engine=MPI, serves
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmi_server.properties.option import OptionValue
from lmi_server.properties.options import by_name
from lmi_server.properties.problems import Problem

_LARGE_BATCHES = ("vllm", "lmi-dist", "trtllm")
"""Values of option.rolling_batch for which LMI's default batch size is larger."""
_NOT_ROLLING = (
    "without batch_size or option.rolling_batch: dynamic batching, one request at a time; LMI uses rolling batching"
    " here (option.rolling_batch=auto)"
)


@dataclass(frozen=True, slots=True)
class Batching:
    """The chosen engine. `rules.apply` adds the problems and notes of the other rules."""

    engine: str
    """`MPI` (rolling batching) or `Python` (dynamic batching)."""
    source: str
    """Keys that determine the engine; `default` if there are none."""
    problems: tuple[Problem, ...] = ()
    """Keys that contradict keys for rolling batching, or a handler."""
    notes: tuple[str, ...] = ()
    """Messages about a batching mode that differs from what the file seems to request."""


def decide(values: dict[str, OptionValue]) -> Batching:
    """Choose the engine. The keys of `values` are option names."""
    rolling, dynamic = _rolling_keys(values), _dynamic_keys(values)
    if rolling and dynamic:
        named = " and ".join(f"{item} ({item.place})" for item in rolling)
        select, other = ("selects", "other") if len(rolling) == 1 else ("select", "others")
        reason = (
            f"dynamic batching conflicts with {named}, which {select} rolling batching; for rolling batching, remove"
            " this setting (option.max_rolling_batch_size limits the batch); for dynamic batching, remove the"
            f" {other}"
        )
        problems = (item.problem(reason) for item in dynamic)
        return Batching("MPI", rolling[0].place, tuple(problems))
    engine = values.get("engine")
    if rolling:
        return Batching("MPI", _source("MPI", engine, rolling), notes=_notes(engine, rolling, values))
    if dynamic:
        return Batching("Python", _source("Python", engine, dynamic))
    if engine is not None:
        notes = () if "batch_size" in values else (f"{engine.place}: {engine} {_NOT_ROLLING}",)
        return Batching("Python", _source("Python", engine, dynamic), notes=notes)
    return Batching("MPI", "default")


def for_handler(values: dict[str, OptionValue]) -> Batching:
    """Choose the engine for a user's handler. It is always engine=Python, which calls the handler with batches."""
    engine, mpi = values.get("engine"), values.get("option.mpi_mode")
    problems = []
    if engine is not None and engine.value != "Python":
        reason = "the folder contains a handler, which requires engine=Python"
        problems.append(engine.problem(reason, "Python"))
    if mpi is not None and mpi.value is True:
        reason = "a handler does not use MPI"
        problems.append(mpi.problem(reason, "false"))
    return Batching("Python", engine.place if engine else "inferred from the handler", tuple(problems))


def _rolling_keys(values: dict[str, OptionValue]) -> list[OptionValue]:
    """Return the options that request rolling batching."""
    engine, batch = values.get("engine"), values.get("option.rolling_batch")
    candidates = (
        engine if engine and engine.value != "Python" else None,
        batch if batch and batch.value != "disable" else None,
        _true("option.async_mode", values),
        _true("option.mpi_mode", values),
    )
    return [item for item in candidates if item is not None]


def _dynamic_keys(values: dict[str, OptionValue]) -> list[OptionValue]:
    """Return the options that request dynamic batching, except `engine`."""
    size, batch = values.get("batch_size"), values.get("option.rolling_batch")
    # rolling_batch=disable with async_mode=true is LMI's asynchronous handler, which uses rolling batching.
    disabled = (
        batch if batch and batch.value == "disable" and _true("option.async_mode", values) is None else None
    )
    candidates = (size if size and size.value != 1 else None, disabled)
    return [item for item in candidates if item is not None]


def _true(name: str, values: dict[str, OptionValue]) -> OptionValue | None:
    item = values.get(name)
    return item if item is not None and item.value is True else None


def _source(decided: str, engine: OptionValue | None, because: list[OptionValue]) -> str:
    if engine is None:
        return f"inferred from {because[0]}"
    if engine.value == decided:
        return engine.place
    return f"{engine.place}: {_joined(engine, because)}"


def _notes(
    engine: OptionValue | None, rolling: list[OptionValue], values: dict[str, OptionValue]
) -> tuple[str, ...]:
    ours = engine is None or engine.value == "MPI"
    if ours and all(item.option.name == "engine" or item.value in ("auto", True) for item in rolling):
        return ()
    return (
        f"{(engine or rolling[0]).place}: {_joined(engine, rolling)} selects rolling batching, which this server's"
        f" own rolling-batch engine (engine=MPI) provides{_limit_note(values)}",
    )


def _limit_note(values: dict[str, OptionValue]) -> str:
    batch = values.get("option.rolling_batch")
    sizes = ("option.max_rolling_batch_size", "option.max_num_seqs")
    if batch is None or batch.value not in _LARGE_BATCHES or any(name in values for name in sizes):
        return ""
    ours = by_name()[sizes[0]].default
    return f"; at most {ours} sequences run, where LMI's default for it is 256 ({sizes[0]})"


def _joined(engine: OptionValue | None, because: list[OptionValue]) -> str:
    items = [engine, *(item for item in because if item is not engine)]
    return " with ".join(str(item) for item in items if item is not None)
