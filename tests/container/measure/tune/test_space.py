"""Search spaces: axes from the table of options, or from --search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from container.measure.bench.workload import BenchError
from container.measure.compare.configurations import NamedPath
from container.measure.tune.space import SearchSpace, read_settings, search_spaces
from lmi_server.properties import loader

ROLLING = "engine=MPI\noption.model_id=m\noption.max_rolling_batch_size=8\n"
DYNAMIC = "engine=Python\noption.model_id=m\nbatch_size=4\n"


def make_spaces(tmp_path: Path, text: str, *settings: str) -> list[SearchSpace]:
    (tmp_path / "serving.properties").write_text(text)
    copies = tmp_path / "copies"
    copies.mkdir()

    def effective(path: Path) -> Mapping[str, str]:
        loaded = loader.examine(path, {}).loaded
        return {value.key: value.value for value in loaded.values} if loaded else {}

    file = NamedPath("file", tmp_path / "serving.properties")
    return list(search_spaces(file, read_settings(settings), copies, effective))


def test_a_rolling_file_is_searched_around_its_own_values(tmp_path: Path) -> None:
    (space,) = make_spaces(tmp_path, ROLLING)
    assert space.axes == {
        "option.max_rolling_batch_size": ("8", "2", "4", "16", "32"),
        # Not set in the file: values around the example in the table.
        "option.max_rolling_batch_prefill_tokens": ("", "256", "512", "2048", "4096", "8192"),
        "option.enable_chunked_prefill": ("true", "false"),
        "option.paged_attention": ("true", "false"),
        "option.batch_scheduler_policy": ("", "max_utilization", "guaranteed_no_evict"),
        "option.block_size": ("", "8", "32"),
    }
    assert (space.changes(space.start), space.num_points) == ({}, 5 * 6 * 2 * 2 * 3 * 3)
    point = ("16", *space.start[1:])
    assert space.changes(point) == {"option.max_rolling_batch_size": "16"}


def test_a_dynamic_file_is_searched_by_batch_and_delay(tmp_path: Path) -> None:
    (space,) = make_spaces(tmp_path, DYNAMIC)
    assert set(space.axes) == {"batch_size", "max_batch_delay"}
    assert space.axes["batch_size"] == ("4", "1", "2", "8", "16", "32")
    assert "0" in space.axes["max_batch_delay"]


def test_the_users_values_replace_the_defaults_and_the_files_own_value_is_kept(tmp_path: Path) -> None:
    settings = ("max_dynamic_batch_size=16,32", "option.max_rolling_batch_size=4", "job_queue_size=9")
    (space,) = make_spaces(tmp_path, DYNAMIC, *settings)
    assert space.axes["batch_size"] == ("4", "16", "32")
    # An option of the other engine is not searched.
    assert set(space.axes) == {"batch_size", "max_batch_delay", "job_queue_size"}


def test_options_that_change_step_times_have_separate_spaces(tmp_path: Path) -> None:
    first, second = make_spaces(tmp_path, ROLLING, "option.quantize=int8,none", "option.block_size=16")
    assert (first.origin_changes, second.origin_changes) == ({}, {"option.quantize": "int8"})
    assert loader.load(second.origin.path, {}).config.options.quantize == "int8"
    assert second.changes(second.start) == {"option.quantize": "int8"}


def test_each_engine_of_a_search_has_its_own_options(tmp_path: Path) -> None:
    rolling, dynamic = make_spaces(tmp_path, ROLLING, "engine=Python,MPI")
    assert (rolling.engine, dynamic.engine) == ("MPI", "Python")
    assert "batch_size" in dynamic.axes
    assert "option.block_size" not in dynamic.axes


def test_an_invalid_combination_has_no_space(tmp_path: Path) -> None:
    assert len(make_spaces(tmp_path, DYNAMIC, "engine=MPI")) == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "option.block_sise=16",
            r"--search: unknown key \(got option.block_sise\); did you mean option.block_size",
        ),
        (
            "option.block_size=12",
            r"--search: option.block_size is not a power of two \(got 12\); allowed: a power",
        ),
        ("option.block_size=16,16", "not a key with distinct values"),
    ],
)
def test_wrong_settings_are_refused(setting: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_settings((setting,))
