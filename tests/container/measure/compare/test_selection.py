"""Which configurations a command line names: grids, files beside running servers, and the post's."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from container.measure.compare.configurations import BadConfiguration, Configuration
from container.measure.compare.plan import Plan
from container.measure.compare.selection import Selection, grid, point_name, read_selection, tokenizers_for
from container.progress import LogLines
from tests.container.measure.bench.scripted_server import Script, ScriptedServer
from tests.container.measure.compare.made_up import SCENARIO
from tests.container.measure.compare.test_configurations import CONFIG, MACHINE

PLAN = Plan((SCENARIO,), 5, seed=0)


def read(selection: Selection, tmp_path: Path) -> tuple[tuple[Configuration, ...], Plan]:
    made = tmp_path / "made"
    made.mkdir()
    return read_selection(selection, PLAN, made, {}, MACHINE, LogLines(io.StringIO()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration with a model beside its file."""
    place = tmp_path / "rolling"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    (place / "tokenizer.json").write_text("{}")
    (place / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (place / "serving.properties").write_text("engine=MPI\noption.kv_cache_gb=1\n")
    return place


def test_a_grid_has_all_combinations_and_the_first_values_are_the_baseline() -> None:
    points = grid(["option.max_rolling_batch_size=8, 16", "option.dtype=fp32,bf16"])
    assert [point_name(point, "file") for point in points] == [
        "max_rolling_batch_size=8 dtype=fp32",
        "max_rolling_batch_size=8 dtype=bf16",
        "max_rolling_batch_size=16 dtype=fp32",
        "max_rolling_batch_size=16 dtype=bf16",
    ]


def test_a_single_point_is_compared_with_the_file_as_it_is() -> None:
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


def test_faults_of_the_file_and_of_a_value_are_reported_as_such(folder: Path, tmp_path: Path) -> None:
    (folder / "serving.properties").write_text("engine=MPI\noption.dtipe=fp32\n")
    with pytest.raises(BadConfiguration, match=rf"rolling: {folder}/serving.properties"):
        read(Selection((str(folder),), ("option.max_rolling_batch_size=8,16",)), tmp_path)
    (folder / "serving.properties").write_text("engine=MPI\n")
    (tmp_path / "made").rmdir()
    with pytest.raises(BadConfiguration, match="max_rolling_batch_size=none: "):
        read(Selection((str(folder),), ("option.max_rolling_batch_size=8,none",)), tmp_path)


def test_an_option_that_acts_on_no_configuration_is_refused(folder: Path, tmp_path: Path) -> None:
    def refusal(*settings: str) -> str:
        made = tmp_path / settings[0]
        made.mkdir()
        with pytest.raises(BadConfiguration) as refused:
            read(Selection((str(folder),), settings), made)
        return str(refused.value)

    assert refusal("option.swap_space=1,2").startswith("--set: option.swap_space has no effect: ")
    (folder / "serving.properties").write_text("engine=Python\n")
    said = "--set: option.max_rolling_batch_size has no effect: it applies to engine=MPI (got engine=Python)"
    assert refusal("option.max_rolling_batch_size=8") == said
    both = ("engine=Python,MPI", "option.max_rolling_batch_size=8,16")
    assert len(read(Selection((str(folder),), both), tmp_path)[0]) == 4


def test_files_stand_beside_running_servers(folder: Path, tmp_path: Path) -> None:
    with ScriptedServer(lambda number, body: Script(), metrics=lambda: b"x 1\n") as server:
        configs, _ = read(Selection((server.url, str(folder))), tmp_path)
    assert [(one.name, one.url) for one in configs] == [(server.url[7:], server.url), ("rolling", "")]
    assert tokenizers_for(configs, None) == dict.fromkeys([one.name for one in configs], folder)
    assert tokenizers_for(configs, tmp_path)["rolling"] == tmp_path
    with pytest.raises(BadConfiguration, match="--tokenizer: required"):
        tokenizers_for(configs[:1], None)


def test_a_gain_is_divided_between_the_two(folder: Path, tmp_path: Path) -> None:
    dynamic = tmp_path / "dynamic"
    dynamic.mkdir()
    (dynamic / "serving.properties").write_text(f"engine=Python\nbatch_size=4\noption.model_id={folder}\n")
    configs, plan = read(Selection((str(dynamic), str(folder)), attribute=True), tmp_path)
    assert [one.name for one in configs] == [
        "dynamic",
        "rolling",
        "contiguous",
        "static-32",
        "static-4",
    ]
    assert [(part.name, part.base) for part in plan.parts][-1] == ("static-4", "dynamic")
    # Four with the first, and four others: each part but the last, and all but the kernels.
    assert plan.num_error_shares([one.name for one in configs], 1) == 4 + 4
