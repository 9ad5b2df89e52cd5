"""Choice of the engine from `engine`, `batch_size` and the options rolling_batch, async_mode and mpi_mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server.properties.examination import Loaded
from lmi_server.properties.loader import load
from tests.lmi_server.properties.loading import examine_text, load_text, single_problem


def engine_source(loaded: Loaded) -> str:
    [value] = [value for value in loaded.values if value.key == "engine"]
    assert value.value == loaded.config.engine
    return value.source


ROLLING = [
    *(f"option.rolling_batch={value}" for value in ("auto", "vllm", "lmi-dist", "scheduler", "trtllm")),
    "option.async_mode=true",
    "option.mpi_mode=true",
    "option.rolling_batch=disable\noption.async_mode=true",
]


@pytest.mark.parametrize("engine", ["Python", "Rolling"])
@pytest.mark.parametrize("lines", ROLLING)
def test_rolling_options_select_engine_mpi_with_one_note(tmp_path: Path, engine: str, lines: str) -> None:
    loaded = load_text(tmp_path, f"engine={engine}\n{lines}\nbatch_size=1\n")
    assert loaded.config.engine == "MPI"
    [note] = [note for note in loaded.notes if "selects rolling batching" in note]
    assert note.startswith(f"{tmp_path / 'serving.properties'}:1: engine={engine} with {lines.split()[-1]} ")
    assert "(engine=MPI) provides" in note
    assert f"engine={engine} with {lines.split()[-1]}" in engine_source(loaded)


@pytest.mark.parametrize(
    "text",
    [
        "engine=Python\nbatch_size=4\n",
        "engine=Python\nmax_dynamic_batch_size=4\n",
        "engine=Python\noption.rolling_batch=disable\n",
        "engine=Python\nbatch_size=4\noption.rolling_batch=disable\noption.async_mode=false\n",
        "engine=Python\nbatch_size=1\n",
    ],
)
def test_engine_python_without_a_rolling_key_uses_dynamic_batching(tmp_path: Path, text: str) -> None:
    loaded = load_text(tmp_path, text)
    assert loaded.config.engine == "Python"
    assert engine_source(loaded) == f"{tmp_path / 'serving.properties'}:1"
    assert loaded.notes == ()


@pytest.mark.parametrize("lines", ["", "option.async_mode=false\n"])
def test_engine_python_alone_uses_dynamic_batching_with_a_note(tmp_path: Path, lines: str) -> None:
    loaded = load_text(tmp_path, f"engine=Python\n{lines}")
    assert loaded.config.engine == "Python"
    assert engine_source(loaded) == f"{tmp_path / 'serving.properties'}:1"
    assert loaded.warnings == ()
    [note] = loaded.notes
    assert note.startswith(f"{tmp_path / 'serving.properties'}:1: engine=Python without batch_size or ")
    assert "dynamic batching, one request at a time" in note


@pytest.mark.parametrize("lines", ["option.rolling_batch=auto", "", "option.async_mode=true"])
def test_engine_mpi_uses_rolling_batching_without_a_note(tmp_path: Path, lines: str) -> None:
    loaded = load_text(tmp_path, f"engine=MPI\n{lines}\n")
    assert loaded.config.engine == "MPI"
    assert loaded.notes == ()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("engine=MPI\noption.rolling_batch=vllm\n", "engine=MPI with option.rolling_batch=vllm"),
        ("engine=Rolling\n", ":1: engine=Rolling"),
    ],
)
def test_other_names_of_rolling_batching_are_noted(tmp_path: Path, text: str, note: str) -> None:
    loaded = load_text(tmp_path, text)
    assert loaded.config.engine == "MPI"
    assert f"{note} selects rolling batching" in loaded.notes[0]
    assert ("LMI's default for it is 256" in loaded.notes[0]) == ("vllm" in note)
    loaded = load_text(tmp_path, f"{text}option.max_rolling_batch_size=64\n")
    assert "default for it" not in loaded.notes[0]


@pytest.mark.parametrize(
    ("text", "engine", "source"),
    [
        ("", "MPI", "default"),
        ("batch_size=1\n", "MPI", "default"),
        ("option.async_mode=false\n", "MPI", "default"),
        ("max_dynamic_batch_size=4\n", "Python", "inferred from max_dynamic_batch_size=4"),
        ("option.rolling_batch=disable\n", "Python", "inferred from option.rolling_batch=disable"),
        ("option.rolling_batch=vllm\n", "MPI", "inferred from option.rolling_batch=vllm"),
        ("option.async_mode=true\n", "MPI", "inferred from option.async_mode=true"),
    ],
)
def test_the_engine_is_inferred_when_it_is_not_set(
    tmp_path: Path, text: str, engine: str, source: str
) -> None:
    loaded = load_text(tmp_path, text)
    assert loaded.config.engine == engine
    assert engine_source(loaded) == source


@pytest.mark.parametrize(
    ("dynamic", "rolling"),
    [
        ("batch_size=4", "option.rolling_batch=vllm"),
        ("batch_size=4", "option.async_mode=true"),
        ("batch_size=4", "option.mpi_mode=true"),
        ("max_dynamic_batch_size=4", "option.rolling_batch=auto"),
        ("batch_size=4", "engine=Rolling"),
        ("batch_size=4", "engine=MPI"),
        ("option.rolling_batch=disable", "engine=MPI"),
        ("option.rolling_batch=disable", "engine=Rolling"),
    ],
)
@pytest.mark.parametrize("with_engine", [True, False])
def test_combining_dynamic_and_rolling_keys_raises_an_error_naming_both(
    tmp_path: Path, dynamic: str, rolling: str, with_engine: bool
) -> None:
    engine = "engine=Python\n" if with_engine and "engine" not in rolling else "\n"
    problem = single_problem(tmp_path, f"{engine}{dynamic}\n{rolling}\n")
    file = tmp_path / "serving.properties"
    assert str(problem).startswith(f"{file}:2: {dynamic}: ")
    assert f"{rolling} ({file}:3)" in problem.reason


@pytest.mark.parametrize(
    ("environ", "engine"),
    [
        ({"OPTION_ENGINE": "Python", "OPTION_ROLLING_BATCH": "vllm"}, "MPI"),
        ({"OPTION_ROLLING_BATCH": "disable", "OPTION_ASYNC_MODE": "true"}, "MPI"),
        ({"OPTION_ASYNC_MODE": "true"}, "MPI"),
        ({"OPTION_ROLLING_BATCH": "disable"}, "Python"),
        ({"SERVING_BATCH_SIZE": "8"}, "Python"),
        ({}, "MPI"),
    ],
)
def test_the_engine_can_be_set_by_the_environment_alone(
    tmp_path: Path, environ: dict[str, str], engine: str
) -> None:
    assert load(tmp_path, {"HF_MODEL_ID": "some/model", **environ}).config.engine == engine


def test_rolling_batch_in_the_environment_conflicts_with_batch_size_in_the_file(tmp_path: Path) -> None:
    problem = single_problem(tmp_path, "engine=Python\nbatch_size=4\n", {"OPTION_ROLLING_BATCH": "auto"})
    assert "OPTION_ROLLING_BATCH), which selects rolling batching" in problem.reason


def test_several_rolling_keys_are_all_to_be_removed_for_dynamic_batching(tmp_path: Path) -> None:
    file = tmp_path / "serving.properties"
    problem = single_problem(tmp_path, "engine=MPI\noption.rolling_batch=auto\nbatch_size=4\n")
    assert problem.reason == (
        f"dynamic batching conflicts with engine=MPI ({file}:1) and option.rolling_batch=auto ({file}:2), which select"
        " rolling batching; for rolling batching, remove this setting (option.max_rolling_batch_size limits the batch);"
        " for dynamic batching, remove the others"
    )
    problem = single_problem(tmp_path, "engine=MPI\nbatch_size=4\n")
    assert "which selects rolling batching" in problem.reason
    assert problem.reason.endswith("for dynamic batching, remove the other")


def test_an_invalid_batching_key_has_no_note_about_the_engine(tmp_path: Path) -> None:
    text = "engine=Python\noption.rolling_batch=deepspeed\noption.max_rolling_batch_size=8\n"
    found = examine_text(tmp_path, text)
    assert [problem.key for problem in found.problems] == ["option.rolling_batch"]
    assert found.notes == []
