"""Search spaces: axes from the table of options, or from --search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from container.measure.bench.workload import BenchError
from container.measure.compare.configurations import NamedPath
from container.measure.tune.space import SearchSpace, read_settings, search_spaces
from lmi_server.properties import loader

ROLLING = "engine=MPI\noption.model_id=m\noption.max_rolling_batch_size=8\n"
DYNAMIC = "engine=Python\noption.model_id=m\nbatch_size=4\n"


Spaces = Callable[..., list[SearchSpace]]
"""Returns the search spaces of a file with this text and of these settings."""


@pytest.fixture
def make_spaces(tmp_path: Path, copies: Path) -> Spaces:
    def effective(path: Path) -> Mapping[str, str]:
        loaded = loader.examine(path, {}).loaded
        return {value.key: value.value for value in loaded.values} if loaded else {}

    def make(text: str, *settings: str) -> list[SearchSpace]:
        file = NamedPath("file", tmp_path / "serving.properties")
        file.path.write_text(text)
        return list(search_spaces(file, read_settings(settings), copies, effective))

    return make


def test_a_rolling_file_is_searched_around_its_own_values(make_spaces: Spaces) -> None:
    (space,) = make_spaces(ROLLING)
    assert space.axes == {
        "option.max_rolling_batch_size": ("8", "2", "4", "16", "32"),
        # Not set in the file: values around the example in the table.
        "option.max_rolling_batch_prefill_tokens": ("", "256", "512", "2048", "4096", "8192"),
        "option.enable_chunked_prefill": ("true", "false"),
        "option.paged_attention": ("true", "false"),
        "option.batch_scheduler_policy": ("", "max_utilization", "guaranteed_no_evict"),
        "option.block_size": ("16", "8", "32"),
    }
    assert (space.changes(space.start), space.num_points) == ({}, 5 * 6 * 2 * 2 * 3 * 3)
    point = ("16", *space.start[1:])
    assert space.changes(point) == {"option.max_rolling_batch_size": "16"}


def test_a_dynamic_file_is_searched_by_batch_and_delay(make_spaces: Spaces) -> None:
    (space,) = make_spaces(DYNAMIC)
    assert set(space.axes) == {"batch_size", "max_batch_delay"}
    assert space.axes["batch_size"] == ("4", "1", "2", "8", "16", "32")
    assert "0" in space.axes["max_batch_delay"]


def test_the_users_values_replace_the_defaults_and_the_files_own_value_is_kept(make_spaces: Spaces) -> None:
    settings = ("max_dynamic_batch_size=16,32", "option.max_rolling_batch_size=4", "job_queue_size=9")
    (space,) = make_spaces(DYNAMIC, *settings)
    assert space.axes["batch_size"] == ("4", "16", "32")
    # An option of the other engine is not searched.
    assert set(space.axes) == {"batch_size", "max_batch_delay", "job_queue_size"}


def test_options_that_change_step_times_have_separate_spaces(make_spaces: Spaces) -> None:
    first, second = make_spaces(ROLLING, "option.quantize=int8,none", "option.block_size=16")
    assert (first.origin_changes, second.origin_changes) == ({}, {"option.quantize": "int8"})
    assert loader.load(second.origin.path, {}).config.options.quantize == "int8"
    assert second.changes(second.start) == {"option.quantize": "int8"}


def test_each_engine_of_a_search_has_its_own_options(make_spaces: Spaces) -> None:
    rolling, dynamic = make_spaces(ROLLING, "engine=Python,MPI")
    assert (rolling.engine, dynamic.engine) == ("MPI", "Python")
    assert "batch_size" in dynamic.axes
    assert "option.block_size" not in dynamic.axes


def test_an_invalid_combination_has_no_space(make_spaces: Spaces) -> None:
    assert len(make_spaces(DYNAMIC, "engine=MPI")) == 1


def test_an_option_and_its_alias_are_refused() -> None:
    with pytest.raises(BenchError, match="each key once"):
        read_settings(("batch_size=1,2", "max_dynamic_batch_size=4,8"))


def test_an_invalid_value_is_refused() -> None:
    message = r"--search: option.block_size is not a power of two \(got 12\); allowed: a power"
    with pytest.raises(BenchError, match=message):
        read_settings(("option.block_size=12",))
