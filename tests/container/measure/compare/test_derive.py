"""Configurations made from others: what is changed and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.measure.compare.derive import derive
from lmi_server.properties import loader


def written(path: Path) -> list[str]:
    return (path / "serving.properties").read_text().splitlines()


def test_deriving_changes_and_adds_and_leaves_the_rest(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "made"
    source.mkdir()
    made.mkdir()
    (source / "serving.properties").write_text(
        "# batch_size\nengine=Python\n max_dynamic_batch_size : 4\noption.dtype=\\\n  fp16\n"
    )
    one = derive("one", source, made, {"batch_size": "32", "option.rolling_batch": "disable"})
    two = derive("two", source / "serving.properties", made, {"option.dtype": "fp32"})
    # Another name of the key is the same option: both would contradict each other.
    kept = ["engine=Python", "option.dtype=\\", "  fp16"]
    assert written(one.path) == [*kept, "batch_size=32", "option.rolling_batch=disable"]
    assert written(two.path) == ["engine=Python", " max_dynamic_batch_size : 4", "option.dtype=fp32"]
    assert one.path != two.path
    assert one.origin == f"{source} with batch_size=32, option.rolling_batch=disable"


@pytest.mark.parametrize("line", ["option.model_id=../model", ""], ids=["relative", "in the folder"])
def test_the_model_stays_the_same(tmp_path: Path, line: str) -> None:
    source, model, made = tmp_path / "source", tmp_path / "model", tmp_path / "made"
    for folder in (source, model, made):
        folder.mkdir()
    ((model if line else source) / "config.json").write_text("{}")
    (source / "serving.properties").write_text(f"engine=MPI\n{line}\n")
    before = loader.load(source, {}).config.source.local_path
    made_path = derive("made", source, made, {"option.dtype": "fp32"}).path
    assert loader.load(made_path, {}).config.source.local_path == before


def test_the_name_of_a_hub_model_stays(tmp_path: Path) -> None:
    (tmp_path / "x.properties").write_text("option.model_id=org/model\n")
    (tmp_path / "made").mkdir()
    path = derive("made", tmp_path / "x.properties", tmp_path / "made", {"option.dtype": "fp32"}).path
    assert loader.load(path, {}).config.source.model_id == "org/model"
