"""Changes to the settings of a running scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.core import SchedulerSettings, SettingValue
from engines.mpi.runner.largest_step import LargestStep
from engines.mpi.scheduler.settings import InvalidSettings, apply_changes

_SETTINGS = SchedulerSettings(
    max_num_seqs=8, max_prefill_tokens=64, max_num_batched_tokens=64, max_waiting=10
)
_MAX_MODEL_LEN = 256


def _refused(changes: dict[str, SettingValue], settings: SchedulerSettings = _SETTINGS) -> dict[str, str]:
    """Return the refused changes of an engine that was started with `settings`."""
    with pytest.raises(InvalidSettings) as refusal:
        apply_changes(settings, changes, LargestStep.of(settings, _MAX_MODEL_LEN))
    return refusal.value.refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"chunked_prefill": False},
            ["given false", "at most 64 tokens", "up to 256 tokens", "max_model_len"],
        ),
        ({"max_num_seqs": 9}, ["given 9", "at most 8", "memory was reserved"]),
        ({"max_num_batched_tokens": 65}, ["given 65", "at most 64", "memory was reserved"]),
    ],
)
def test_a_change_that_allows_a_larger_step_than_profiled_is_refused(
    changes: dict[str, SettingValue], words: list[str]
) -> None:
    refused = _refused({**changes, "max_waiting": 3})
    assert refused.keys() == changes.keys()
    for word in words:
        assert word in str(refused)


def test_limits_that_do_not_enlarge_a_step_can_be_raised() -> None:
    changes: dict[str, SettingValue] = {
        "max_prefill_tokens": 1000,
        "max_waiting": 1000,
        "max_queued_tokens": 10**6,
        "max_waiting_tokens": 1000,
        "waiting_steps": 1000,
        "waiting_served_ratio": 2.0,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "chunked_prefill": True,
    }
    assert apply_changes(_SETTINGS, changes, LargestStep.of(_SETTINGS, _MAX_MODEL_LEN)) == replace(
        _SETTINGS,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "start",
    [{"chunked_prefill": False}, {"max_num_batched_tokens": 256}],
    ids=["whole prompts", "large chunks"],
)
def test_whole_prompts_are_accepted_when_they_were_profiled(start: dict[str, SettingValue]) -> None:
    settings = replace(_SETTINGS, **start)  # type: ignore[arg-type]
    profiled_step = LargestStep.of(settings, _MAX_MODEL_LEN)
    for chunked in (True, False):
        changes: dict[str, SettingValue] = {"chunked_prefill": chunked, "max_num_batched_tokens": 256}
        assert apply_changes(settings, changes, profiled_step).chunked_prefill is chunked
    assert "256" in _refused({"max_num_batched_tokens": 257}, settings)["max_num_batched_tokens"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", True),
        ("max_waiting", "many"),
        ("max_queued_tokens", 0),
        ("waiting_served_ratio", -1),
        ("chunked_prefill", 1),
        ("scheduling_policy", "lifo"),
        ("block_size", 16),
    ],
)
def test_an_invalid_value_or_name_is_refused(name: str, value: SettingValue) -> None:
    assert _refused({name: value}).keys() == {name}
