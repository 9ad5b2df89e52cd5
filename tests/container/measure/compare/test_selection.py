"""Configurations selected by a command line: grids, files, running servers, and added configurations."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from container.measure.compare.configurations import BadConfiguration, Configuration
from container.measure.compare.plan import Plan
from container.measure.compare.selection import Selection, grid, point_name, read_selection, tokenizers_for
from container.progress import LogLines
from tests.container.measure.compare.made_up import MACHINE, SCENARIO, write_model, write_properties
from tests.container.measure.conftest import StartScripted

PLAN = Plan((SCENARIO,), 5, seed=0)


def read(
    selection: Selection, tmp_path: Path, copies: str = "copies"
) -> tuple[tuple[Configuration, ...], Plan]:
    folder = tmp_path / copies
    folder.mkdir()
    return read_selection(selection, PLAN, folder, {}, MACHINE, LogLines(io.StringIO()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration with its model in the same folder."""
    return write_properties(write_model(tmp_path / "rolling"), "engine=MPI", "option.kv_cache_gb=1")


def test_a_grid_has_all_combinations_with_the_first_values_as_the_baseline() -> None:
    points = grid(["option.max_rolling_batch_size=8, 16", "option.dtype=fp32,bf16"])
    assert [point_name(point, "file") for point in points] == [
        "max_rolling_batch_size=8 dtype=fp32",
        "max_rolling_batch_size=8 dtype=bf16",
        "max_rolling_batch_size=16 dtype=fp32",
        "max_rolling_batch_size=16 dtype=bf16",
    ]


def test_a_single_point_is_compared_with_the_unchanged_file() -> None:
    points = grid(["option.dtype=bf16"])
    assert [point_name(point, "file") for point in points] == ["file", "dtype=bf16"]


def test_the_points_of_a_grid_are_configurations_of_the_same_model(folder: Path, tmp_path: Path) -> None:
    settings = ("option.max_rolling_batch_size=8,16",)
    configs, plan = read(Selection((str(folder),), settings), tmp_path)
    assert [(one.name, one.batch_limit) for one in configs] == [
        ("max_rolling_batch_size=8", 8),
        ("max_rolling_batch_size=16", 16),
    ]
    assert {one.model_folder for one in configs} == {folder}
    assert configs[0].origin == f"{folder} with option.max_rolling_batch_size=8"
    assert plan is PLAN


def test_errors_in_the_file_and_in_a_grid_value_are_reported(folder: Path, tmp_path: Path) -> None:
    write_properties(folder, "engine=MPI", "option.dtipe=fp32")
    with pytest.raises(BadConfiguration, match=rf"rolling: {folder}/serving.properties"):
        read(Selection((str(folder),), ("option.max_rolling_batch_size=8,16",)), tmp_path)
    write_properties(folder, "engine=MPI")
    with pytest.raises(BadConfiguration, match="max_rolling_batch_size=none: "):
        read(Selection((str(folder),), ("option.max_rolling_batch_size=8,none",)), tmp_path, "others")


def test_an_option_without_effect_is_refused(folder: Path, tmp_path: Path) -> None:
    def refusal(*settings: str) -> str:
        with pytest.raises(BadConfiguration) as caught:
            read(Selection((str(folder),), settings), tmp_path, settings[0])
        return str(caught.value)

    assert refusal("option.swap_space=1,2").startswith("--set: option.swap_space has no effect: ")
    write_properties(folder, "engine=Python")
    message = (
        "--set: option.max_rolling_batch_size has no effect: it applies to engine=MPI (got engine=Python)"
    )
    assert refusal("option.max_rolling_batch_size=8") == message
    both = ("engine=Python,MPI", "option.max_rolling_batch_size=8,16")
    assert len(read(Selection((str(folder),), both), tmp_path)[0]) == 4


def test_files_can_be_compared_with_running_servers(
    folder: Path, tmp_path: Path, scripted: StartScripted
) -> None:
    server = scripted(metrics=lambda: b"x 1\n")
    configs, _ = read(Selection((server.url, str(folder))), tmp_path)
    assert [(one.name, one.url) for one in configs] == [(server.url[7:], server.url), ("rolling", "")]
    assert tokenizers_for(configs, None) == dict.fromkeys([one.name for one in configs], folder)
    assert tokenizers_for(configs, tmp_path)["rolling"] == tmp_path
    with pytest.raises(BadConfiguration, match="--tokenizer: required"):
        tokenizers_for(configs[:1], None)


def test_attribute_adds_configurations_between_the_two(folder: Path, tmp_path: Path) -> None:
    lines = ("engine=Python", "batch_size=4", f"option.model_id={folder}")
    dynamic = write_properties(tmp_path / "dynamic", *lines)
    configs, plan = read(Selection((str(dynamic), str(folder)), attribute=True), tmp_path)
    assert [one.name for one in configs] == ["dynamic", "rolling", "contiguous", "static-32", "static-4"]
    assert [(part.name, part.base) for part in plan.parts][-1] == ("static-4", "dynamic")
    # Four pairs with the first configuration, and four others: all parts except the last, and all except the kernels.
    assert plan.num_error_shares([one.name for one in configs], 1) == 4 + 4
