"""Containers as processes, and their model folders."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import pytest
from boto3.exceptions import RetriesExceededError

from container.endpoint.model_data import ModelData, NoModelData
from container.endpoint.process import Launcher
from container.run.local_server import LocalServer, NotHealthy, stop_all
from container.run.processes import session_members
from tests.container.endpoint.fake_s3 import FakeS3
from tests.support.paths import child_environment
from tests.support.waiting import wait_until

TINY = Path(__file__).with_name("tiny_container.py")


def make_launcher(folder: Path, **environ: str) -> Launcher:
    data = ModelData(folder / "models", lambda: None)
    environment = child_environment(environ)
    return Launcher(
        folder / "logs", environment, data, lambda model: [sys.executable, "-S", str(TINY), str(model)]
    )


def source(uri: str) -> dict[str, Any]:
    """Return a container definition with this model data."""
    fields = {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"ModelDataSource": {"S3DataSource": fields}}


def start(folder: Path, **environment: str) -> LocalServer:
    return make_launcher(folder).launch("made-up", {"Environment": environment})


def test_a_container_gets_its_environment_port_and_model_folder(tmp_path: Path) -> None:
    model = tmp_path / "my model"
    model.mkdir()
    (model / "serving.properties").write_text("engine=MPI\n")
    definition = {**source(f"file://{model}/"), "Environment": {"OPTION_BLOCK_SIZE": "16"}}
    container = make_launcher(tmp_path).launch("made-up", definition)
    container.wait_healthy(200.0, threading.Event())
    with urlopen(f"http://127.0.0.1:{container.port}", b"x") as response:
        answer = json.load(response)
    stop_all([container])
    assert answer["files"] == ["serving.properties"]
    assert answer["environment"]["OPTION_BLOCK_SIZE"] == "16"
    assert answer["environment"]["SAGEMAKER_BIND_TO_PORT"] == str(container.port)
    assert "up" in next((tmp_path / "logs").iterdir()).read_text()


def recorder(started: list[Mapping[str, str]]) -> Callable[..., None]:
    """Return a replacement for `LocalServer.start` that records the environment."""

    def start(what: str, command: Sequence[str], environ: Mapping[str, str], log: IO[bytes]) -> None:
        log.close()
        started.append(environ)

    return start


CONFIGURING = (
    *("OPTION_DTYPE", "SERVING_BATCH_SIZE", "SAGEMAKER_MULTI_MODEL", "MAX_BATCH_SIZE", "HF_REVISION"),
    *("LMI_LENIENT", "LMI_ALLOW_REMOTE_CODE", "LMI_MODEL_DIR", "LMI_MODELS_MEMORY_MB", "LMI_ADMIN_TOKEN"),
)


def test_variables_that_configure_a_server_are_not_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Mapping[str, str]] = []

    monkeypatch.setattr(LocalServer, "start", recorder(started))
    launcher = make_launcher(tmp_path, **dict.fromkeys(CONFIGURING, "shell"), LMI_CACHE_DIR="/cache")
    own = dict.fromkeys(CONFIGURING, "endpoint")
    launcher.launch("inherited", {})
    launcher.launch("own", {"Environment": own})
    assert [environ["LMI_CACHE_DIR"] for environ in started] == ["/cache", "/cache"]
    assert not started[0].keys() & own.keys()
    assert own.items() <= started[1].items()


def test_variables_that_name_the_mounted_model_name_the_local_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Mapping[str, str]] = []
    monkeypatch.setattr(LocalServer, "start", recorder(started))
    model = tmp_path / "m=1"
    model.mkdir()
    given = {
        "HF_MODEL_ID": "/opt/ml/model",
        "OPTION_MODEL_ID": "/opt/ml/model/m.gguf",
        "SERVING_LOAD_MODELS": "test::MPI=file:///opt/ml/model/",
        "OPTION_OTHER": "/opt/ml/models",
        "TEXT": "x=/opt/ml/model",
    }
    make_launcher(tmp_path).launch("any", {**source(f"file://{model}"), "Environment": given})
    assert {name: started[0][name] for name in given} == {
        "HF_MODEL_ID": str(model),
        "OPTION_MODEL_ID": f"{model}/m.gguf",
        "SERVING_LOAD_MODELS": f"test::MPI=file://{model}/",
        "OPTION_OTHER": "/opt/ml/models",
        "TEXT": "x=/opt/ml/model",
    }


def test_the_logs_of_earlier_processes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalServer, "start", recorder([]))
    make_launcher(tmp_path).launch("a", {})
    log = tmp_path / "logs" / "a-1.log"
    log.write_text("why it failed")
    launcher = make_launcher(tmp_path)
    launcher.launch("a", {})
    launcher.launch("b", {})
    assert log.read_text() == "why it failed"
    assert {path.name for path in log.parent.iterdir()} == {"a-1.log", "a-2.log", "b-3.log"}


def test_the_cause_is_the_last_line_of_the_server_log(tmp_path: Path) -> None:
    container = start(tmp_path, EXIT="Error: option.dtype: got fp17")
    with pytest.raises(NotHealthy) as caught:
        container.wait_healthy(200.0, threading.Event())
    assert str(caught.value) == "the container ended with exit code 1: Error: option.dtype: got fp17"
    stop_all([container])


def test_a_container_that_is_not_healthy_in_time_has_failed(tmp_path: Path) -> None:
    container = start(tmp_path, SICK="1")
    wait_until(lambda: "up" in Path(container.log).read_text())
    with pytest.raises(NotHealthy, match=r"/ping did not return 200 within 0.5 s"):
        container.wait_healthy(0.5, threading.Event())
    stop_all([container])


def test_a_container_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    container = start(tmp_path, DEAF="1")
    container.wait_healthy(200.0, threading.Event())
    stop_all([container], seconds=0.05)
    assert container.death() is not None
    assert "SIGKILL" in container.death()  # type: ignore[operator]
    assert session_members(container._child.pid) == set()


def test_a_container_outlives_its_launcher_and_may_exit_gracefully(tmp_path: Path) -> None:
    """The kernel would kill the container with the thread that started it."""
    container = start(tmp_path)
    gc.collect()
    assert container._child.wait(0.3) is None
    container.wait_healthy(200.0, threading.Event())
    stop_all([container], seconds=200.0)
    assert container.death() == "the container ended with exit code 0: up"


def test_an_s3_prefix_is_downloaded_once_and_read_only(s3: FakeS3, tmp_path: Path) -> None:
    s3.objects |= {"bucket/m/serving.properties": b"engine=MPI\n", "bucket/m/code/a.py": b"1\n"}
    s3.objects["bucket/other/x"] = b"2"
    data = ModelData(tmp_path, lambda: s3.client)
    folder = data.folder_of(source("s3://bucket/m/"))
    assert data.folder_of(source("s3://bucket/m/")) == folder
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert set(files) == {"serving.properties", "code/a.py"}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o444}
    data.close()
    assert list(tmp_path.iterdir()) == []


def test_a_changed_s3_prefix_is_downloaded_again(s3: FakeS3, tmp_path: Path) -> None:
    s3.objects["bucket/m/serving.properties"] = b"option.dtype=fp16\n"
    data = ModelData(tmp_path, lambda: s3.client)
    before = data.folder_of(source("s3://bucket/m"))
    s3.objects["bucket/m/serving.properties"] = b"option.dtype=bf16\n"
    after = data.folder_of(source("s3://bucket/m"))
    assert (before / "serving.properties").read_text() == "option.dtype=fp16\n"
    assert (after / "serving.properties").read_text() == "option.dtype=bf16\n"
    data.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("uri", "key", "words"),
    [
        ("s3://bucket/m/", "bucket/m/../../escaped", "file name not allowed"),
        ("s3://bucket/m/", "bucket/other", "no object below this prefix"),
        ("file:///no/such/folder", "", "there is no folder /no/such/folder"),
    ],
)
def test_model_data_that_cannot_be_read_is_rejected(
    uri: str, key: str, words: str, s3: FakeS3, tmp_path: Path
) -> None:
    s3.objects[key] = b""
    with pytest.raises(NoModelData, match=words):
        ModelData(tmp_path / "models", lambda: s3.client).folder_of(source(uri))
    assert list(tmp_path.rglob("*escaped*")) == []
    assert list((tmp_path / "models").iterdir()) == []


def test_a_download_that_breaks_off_leaves_no_copy(
    s3: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download_file(*arguments: object) -> None:
        raise RetriesExceededError(TimeoutError())

    s3.objects["bucket/m/serving.properties"] = b""
    monkeypatch.setattr(s3.client, "download_file", download_file)
    with pytest.raises(NoModelData, match=r"^s3://bucket/m: Max Retries Exceeded$"):
        ModelData(tmp_path, lambda: s3.client).folder_of(source("s3://bucket/m"))
    assert list(tmp_path.iterdir()) == []
