"""Changes of the scheduler's settings at run time. All changes are applied, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from engines.core import SchedulerSettings, SettingValue
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.scheduler.policies import POLICIES

_MINIMUMS: dict[str, int] = {
    "max_num_seqs": 1,
    "max_prefill_tokens": 1,
    "max_num_batched_tokens": 1,
    "max_waiting": 1,
    "max_queued_tokens": 1,
    "max_waiting_tokens": 0,
    "waiting_steps": 0,
}


class InvalidSettings(Exception):
    """Rejected changes; none was applied. `refused`: the reason for each rejected field."""

    def __init__(self, refused: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in refused.items()))
        self.refused = refused


def apply_changes(
    settings: SchedulerSettings, changes: Mapping[str, SettingValue], largest_step: LargestStep
) -> SchedulerSettings:
    """Return the settings with these changes.

    largest_step: the step that memory was measured for at start-up; no step may become larger.

    Raises:
        InvalidSettings: a value is not accepted, or a setting does not exist.
    """
    refused = _too_large(changes, largest_step)
    refused |= {name: why for name, value in changes.items() if (why := _problem(name, value))}
    if refused:
        raise InvalidSettings(refused)
    return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]


def _too_large(changes: Mapping[str, SettingValue], largest_step: LargestStep) -> dict[str, str]:
    """Return the changes that would allow steps larger than the measured one, with the reasons.

    `max_prefill_tokens` needs no check: `max_num_batched_tokens` limits prefills too.
    """
    refused: dict[str, str] = {}
    for name, limit in (
        ("max_num_seqs", largest_step.num_seqs),
        ("max_num_batched_tokens", largest_step.num_tokens),
    ):
        value = changes.get(name)
        if isinstance(value, int) and value > limit:
            refused[name] = (
                f"given {value}; accepted: at most {limit}, because memory was reserved for steps of this size at"
                " start-up"
            )
    if changes.get("chunked_prefill") is False and largest_step.max_model_len > largest_step.num_tokens:
        refused["chunked_prefill"] = (
            f"given false; accepted: true, because memory was reserved at start-up for steps of at most"
            f" {largest_step.num_tokens} tokens (option.max_num_batched_tokens), and without chunks a whole prompt runs"
            f" in one step, up to {largest_step.max_model_len} tokens (option.max_model_len)"
        )
    return refused


def _problem(name: str, value: SettingValue) -> str:
    """Return why a value is not accepted; empty when it is accepted."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "scheduling_policy":
        accepted, good = ", ".join(POLICIES), value in POLICIES
    elif name == "chunked_prefill":
        accepted, good = "true or false", isinstance(value, bool)
    elif name == "waiting_served_ratio":
        accepted, good = "a number from 0 to 1000", is_number and 0 <= value <= 1000  # type: ignore[operator]
    elif name in _MINIMUMS:
        accepted = f"an integer of at least {_MINIMUMS[name]}"
        good = is_number and isinstance(value, int) and value >= _MINIMUMS[name]
        good = good or (name == "max_queued_tokens" and value is None)
    else:
        return "cannot be changed while the engine runs"
    return "" if good else f"given {value!r}; accepted: {accepted}"
