"""Translation of a serving.properties into environment variables of a container."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from container.deploy import CannotDeploy, variables
from container.deploy.variables import ShellSecret
from lmi_server.config import LmiConfig
from lmi_server.properties.loader import examine, load
from tests.container.deploy.endpoints import write_properties
from tests.support.paths import REPO_ROOT

EXAMPLES = sorted(
    path.parent
    for path in (REPO_ROOT / "properties_examples").glob("*/serving.properties")
    if not path.with_name("model.py").exists()
)
"""Without handlers: their serving.properties is deployed with their files, so no variables are needed."""


def without_folder(config: LmiConfig) -> LmiConfig:
    return dataclasses.replace(config, source=dataclasses.replace(config.source, model_dir=""))


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_the_variables_give_the_same_configuration_as_the_file(folder: Path, tmp_path: Path) -> None:
    examined = examine(folder, {})
    assert examined.loaded is not None
    assert examined.loaded.config.handler is None
    environment = variables.from_file(examined.entries)
    (tmp_path / "config.json").write_text("{}")
    assert without_folder(load(tmp_path, environment).config) == without_folder(examined.loaded.config)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("batch_size=4", {"SERVING_BATCH_SIZE": "4"}),
        ("minWorkers=2", {"SERVING_MIN_WORKERS": "2"}),
        ("option.predict_timeout=60", {"OPTION_PREDICT_TIMEOUT": "60"}),
        ("option.s3url=s3://b/p/", {"OPTION_MODEL_ID": "s3://b/p/"}),
        ("option.myOwn=x", {"OPTION_myOwn": "x"}),
        ("option.max_num_batched_tokens=9", {"OPTION_MAX_NUM_BATCHED_TOKENS": "9"}),
        ("option.dtype=fp16\noption.dtype=bf16", {"OPTION_DTYPE": "bf16"}),
    ],
)
def test_each_key_becomes_the_variable_that_sets_it(
    line: str, expected: dict[str, str], tmp_path: Path
) -> None:
    entries = examine(write_properties(tmp_path, line), {}).entries
    assert variables.from_file(entries) == expected


def test_a_key_without_a_variable_is_rejected(tmp_path: Path) -> None:
    entries = examine(write_properties(tmp_path, "cpu.minWorkers=1"), {}).entries
    with pytest.raises(CannotDeploy, match=r"line 1: cpu\.minWorkers has no environment variable"):
        variables.from_file(entries)


def test_secrets_in_the_file_are_rejected_and_not_quoted(tmp_path: Path) -> None:
    entries = examine(write_properties(tmp_path, "engine=Python", "option.api_key=abc"), {}).entries
    with pytest.raises(CannotDeploy, match=r"line 2: option\.api_key .* --env OPTION_API_KEY") as caught:
        variables.from_file(entries)
    assert "abc" not in str(caught.value)


def test_variables_from_the_command_line() -> None:
    shell = {"HF_TOKEN": "hf_abc", "HF_HOME": "/tmp/hf"}
    environment = variables.from_command_line(["HF_TOKEN", "HF_HOME", "A=b=c", "EMPTY="], shell)
    assert environment == {"HF_TOKEN": ShellSecret("HF_TOKEN"), "HF_HOME": "/tmp/hf", "A": "b=c", "EMPTY": ""}
    assert "hf_abc" not in f"{environment} {environment['HF_TOKEN']}"


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("HF_TOKEN=hf_abc", "secrets are not accepted on the command line"),
        ("HF_TOKEN", "--env HF_TOKEN: not set in this shell; export it first$"),
        ("HF_HOME", "--env HF_HOME: not set in this shell; export it, or pass HF_HOME=VALUE$"),
        ("1A=2", "not a valid variable name"),
        ("=2", "not a valid variable name"),
    ],
)
def test_bad_variables_on_the_command_line_are_rejected(argument: str, reason: str) -> None:
    with pytest.raises(CannotDeploy, match=reason) as caught:
        variables.from_command_line([argument], {})
    assert "hf_abc" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "secret"),
    [
        (["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "DB_PASSWORD", "apikey"], True),
        (["OPTION_MAX_NUM_BATCHED_TOKENS", "OPTION_TOKENIZER", "KEYSTORE", "HF_HOME"], False),
    ],
)
def test_secrets_are_recognized_by_name(names: list[str], secret: bool) -> None:
    assert {name: variables.is_secret(name) for name in names} == dict.fromkeys(names, secret)


def test_long_values_are_rejected() -> None:
    with pytest.raises(CannotDeploy, match=r"OPTION_X: .* at most 1024 characters \(got 1025\)"):
        variables.require_short({"OPTION_X": "x" * 1025})


def test_long_secrets_are_rejected_by_their_own_length() -> None:
    secret = variables.from_command_line(["HF_TOKEN"], {"HF_TOKEN": "x" * 1025})
    with pytest.raises(CannotDeploy, match=r"HF_TOKEN: .* at most 1024 characters \(got 1025\)$"):
        variables.require_short(secret)
