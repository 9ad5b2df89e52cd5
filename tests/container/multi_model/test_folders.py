"""Detection of folders with several models, and their configuration by environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.errors import BadVariable
from container.models.model_folders import model_folders
from container.multi_model.router import child_environment
from container.multi_model.serve import router_config
from container.run.serve import ServeOptions


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name, file in (
        ("chat", "serving.properties"),
        ("code.v2", "config.json"),
        ("own", "model.py"),
        ("small", "small-Q4_K_M.gguf"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    return tmp_path


def options(path: Path) -> ServeOptions:
    return ServeOptions(path, "127.0.0.1", 0)


def test_a_folder_that_contains_only_model_folders_is_several_models(store: Path) -> None:
    (store / ".cache").mkdir()
    assert model_folders(store, {}) == {name: store / name for name in ("chat", "code.v2", "own", "small")}


@pytest.mark.parametrize(
    "change",
    [
        lambda store: (store / "serving.properties").touch(),
        lambda store: (store / "config.json").touch(),
        lambda store: (store / "model.py").touch(),
        lambda store: (store / "README").touch(),
        lambda store: (store / "code").mkdir(),
        lambda store: (store / "chat").rename(store / "-chat"),
    ],
)
def test_any_other_folder_is_one_model(change: object, store: Path) -> None:
    change(store)  # type: ignore[operator]
    assert model_folders(store, {}) == {}


def test_an_explicit_model_is_one_model(store: Path) -> None:
    assert model_folders(store, {"HF_MODEL_ID": "x/y"}) == {}
    assert model_folders(store / "chat", {}) == {}
    assert model_folders(store / "chat" / "serving.properties", {}) == {}


def test_a_named_folder_is_one_model(store: Path) -> None:
    assert model_folders(store, {"SERVING_LOAD_MODELS": f"chat::MPI={store / 'chat'}"}) == {}
    for text in ("ALL", f"test::MPI={store}"):
        assert len(model_folders(store, {"SERVING_LOAD_MODELS": text})) == 4


def test_one_model_is_served_without_a_router(store: Path) -> None:
    assert router_config(options(store / "chat"), {}) is None
    assert router_config(options(store / "chat"), {"SAGEMAKER_MULTI_MODEL": "false"}) is None


def test_the_sagemaker_variable_overrides_the_folder(store: Path) -> None:
    config = router_config(options(store), {"SAGEMAKER_MULTI_MODEL": "true"})
    assert config is not None
    assert config.folders == {}
    assert config.models_root == "/opt/ml/models"
    assert (config.memory_limit, config.memory_reserved) == (None, 500 << 20)
    assert config.from_json(config.to_json()) == config


def test_environment_variables_set_the_limits(store: Path) -> None:
    config = router_config(
        options(store),
        {
            "LMI_MODELS_MEMORY_MB": "4000",
            "SERVING_RESERVED_MEMORY_MB": "100",
            "SAGEMAKER_MAX_PAYLOAD_IN_MB": "6",
        },
    )
    assert config is not None
    assert config.memory_limit == 4000 << 20
    assert config.memory_reserved == 100 << 20
    assert config.max_request_size == 6 << 20
    with pytest.raises(
        BadVariable, match=r"LMI_MODELS_MEMORY_MB='4 GB' is not a whole .*; allowed: MiB in digits"
    ):
        router_config(options(store), {"LMI_MODELS_MEMORY_MB": "4 GB"})


def test_a_variable_sets_the_status_of_an_overloaded_router(store: Path) -> None:
    def status(environ: dict[str, str]) -> int:
        config = router_config(options(store), environ)
        assert config is not None
        return config.throttle_error_http_code

    assert status({}) == 503
    assert status({"SERVING_THROTTLE_ERROR_HTTP_CODE": "429"}) == 429
    for text, reason in (("many", "is not an integer"), ("200", "is out of range")):
        message = f"SERVING_THROTTLE_ERROR_HTTP_CODE='{text}' {reason}; allowed: an integer from 400 to 599"
        with pytest.raises(BadVariable, match=message):
            status({"SERVING_THROTTLE_ERROR_HTTP_CODE": text})


def test_the_server_of_a_model_does_not_inherit_multi_model_mode_or_port() -> None:
    environment = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": "8080", "OPTION_DTYPE": "fp32"}
    assert child_environment(environment) == {"OPTION_DTYPE": "fp32"}


def test_bodies_may_be_as_large_as_any_of_the_models_allows(store: Path) -> None:
    def largest(environ: dict[str, str]) -> int:
        config = router_config(options(store), environ)
        assert config is not None
        return config.max_request_size

    assert largest({}) == 64 << 20
    (store / "chat" / "serving.properties").write_text("max_request_size=100000000\n")
    assert largest({}) == 100_000_000
    assert largest({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "6"}) == 6 << 20, "the variable overrides the file"
    (store / "chat" / "serving.properties").write_text("max_request_size=many\n")
    assert largest({}) == 64 << 20, "the model's server reports the error"
