"""What is decided for a user's handler, and what it needs permission for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from container.explain.check import check
from container.explain.resolve import CannotServe, obstacles, resolve
from container.machine import Machine
from engines.config import BatchConfig, HandlerEngineConfig
from lmi_server.config import ServerConfig
from lmi_server.properties.loader import load
from tests.container.explain.questions import CPU, GPUS, config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("def handle(inputs): ...\n")
    text = "engine=Python\nbatch_size=4\nmax_batch_delay=50\njob_queue_size=7\noption.predict_timeout=9\noption.a=b\n"
    (tmp_path / "serving.properties").write_text(text)
    return tmp_path


def engine(
    folder: Path, machine: Machine = CPU, allow_code: bool = False, **environ: str
) -> HandlerEngineConfig:
    found = resolve(load(folder, environ).config, None, machine, allow_code).config
    assert isinstance(found, HandlerEngineConfig)
    return found


def test_batching_time_limits_and_properties_are_what_the_file_says(folder: Path) -> None:
    found = engine(folder, SERVING_MIN_WORKERS="2")
    assert found.batching == BatchConfig(4, 0.05, 7, 9.0)
    assert found.model.path == str(folder)
    assert found.handler.properties == {"a": "b", "predict_timeout": "9"}
    assert (found.handler.min_workers, found.handler.max_workers) == (2, 2)
    assert found.parallel.threads_per_rank == 4


def test_requirements_need_permission(folder: Path) -> None:
    (folder / "requirements.txt").write_text("package\n")
    with pytest.raises(
        CannotServe,
        match=r"requirements.txt: installing its packages runs third-party code.*--allow-remote-code",
    ):
        engine(folder)
    assert engine(folder, allow_code=True).handler.file == str(folder / "model.py")


def test_gpus_of_a_worker_must_be_there(folder: Path) -> None:
    assert engine(folder, GPUS, TENSOR_PARALLEL_DEGREE="4").parallel.tp_size == 4
    with pytest.raises(CannotServe, match="this machine has none"):
        engine(folder, TENSOR_PARALLEL_DEGREE="4")


def test_a_body_must_fit_into_a_message(folder: Path) -> None:
    with pytest.raises(CannotServe, match="allowed: at most 134217728"):
        engine(folder, SERVING_MAX_REQUEST_SIZE="134217729")


def test_a_body_for_an_input_formatter_must_fit_too() -> None:
    large = dataclasses.replace(config(), server=ServerConfig(max_request_size=134217729))
    assert obstacles(dataclasses.replace(large, formatter_roles=("output_formatter",)), CPU) == ()
    (reason,) = obstacles(dataclasses.replace(large, formatter_roles=("input_formatter",)), CPU)
    assert reason == (
        "max_request_size: too large for an input formatter (got 134217729); allowed: at most 134217728"
    )


def test_check_explains_a_handler(folder: Path) -> None:
    report = check(folder, {}, CPU)
    assert report.can_serve
    assert any(line.explanation == "passed to the handler" for line in report.lines)
    text = report.render()
    assert f"requests are served by the handler {folder / 'model.py'}" in text
    assert "option.dtype" not in text, "it is the handler's own"
