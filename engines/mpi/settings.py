"""Changes of the scheduler's settings while it runs, checked as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from engines.core import SchedulerSettings
from engines.mpi.policies import POLICIES

Value = int | float | bool | str | None

_LEAST: dict[str, int] = {
    "max_num_seqs": 1,
    "max_prefill_tokens": 1,
    "max_num_batched_tokens": 1,
    "max_waiting": 1,
    "max_queued_tokens": 1,
    "max_waiting_tokens": 0,
    "waiting_steps": 0,
}


class BadSettings(Exception):
    """Nothing was changed. `refused`: by field, why."""

    def __init__(self, refused: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in refused.items()))
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What memory was sized for at the start, where that was done: no limit may be raised beyond it later."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


def change(
    settings: SchedulerSettings, changes: Mapping[str, Value], ceilings: Ceilings
) -> SchedulerSettings:
    """The settings with these changes.

    Raises:
        BadSettings: one of the values is not accepted, or no such setting exists.
    """
    refused = {name: why for name, value in changes.items() if (why := _problem(name, value, ceilings))}
    if refused:
        raise BadSettings(refused)
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]


def _problem(name: str, value: Value, ceilings: Ceilings) -> str:
    """Why a value is not accepted; empty when it is."""
    if name == "scheduling_policy":
        return "" if value in POLICIES else f"given {value!r}; accepted: {', '.join(POLICIES)}"
    if name == "chunked_prefill":
        return "" if isinstance(value, bool) else f"given {value!r}; accepted: true or false"
    if name == "waiting_served_ratio":
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1000
        return "" if good else f"given {value!r}; accepted: a number from 0 to 1000"
    if name not in _LEAST:
        return "cannot be changed while the engine runs"
    if name == "max_queued_tokens" and value is None:
        return ""
    if not isinstance(value, int) or isinstance(value, bool) or value < _LEAST[name]:
        return f"given {value!r}; accepted: a whole number of at least {_LEAST[name]}"
    ceiling: int | None = getattr(ceilings, name, None)
    if ceiling is not None and value > ceiling:
        return f"given {value}; accepted: at most {ceiling}, for which memory was sized at the start"
    return ""
