"""Notes on variables and files that TGI and SageMaker's other containers read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server.properties.loader import load
from lmi_server.properties.other_servers import variable_notes
from lmi_server.properties.problems import PropertiesError
from tests.lmi_server.properties.loading import load_text


@pytest.mark.parametrize(
    ("variable", "effect"),
    [
        ("MAX_TOTAL_TOKENS", "; set OPTION_MAX_MODEL_LEN"),
        ("NUM_SHARD", "; set TENSOR_PARALLEL_DEGREE"),
        ("MAX_INPUT_LENGTH", ", and has no counterpart"),
        ("SAGEMAKER_PROGRAM", "; set OPTION_ENTRYPOINT"),
        ("SM_VLLM_MAX_MODEL_LEN", "; set OPTION_MAX_MODEL_LEN"),
        ("SM_VLLM_TENSOR_PARALLEL_SIZE", "; set OPTION_TENSOR_PARALLEL_SIZE"),
        ("SM_VLLM_ENABLE_LORA", ", and has no counterpart"),
        ("SM_VLLM_HOST", ", and has no counterpart"),
    ],
)
def test_variables_are_noted_with_their_counterpart(tmp_path: Path, variable: str, effect: str) -> None:
    [note] = load(tmp_path, {"HF_MODEL_ID": "a/b", variable: "8"}).notes
    assert note == f"environment variable {variable} is not read{effect}"


def test_variables_are_only_noted_beside_ours_or_on_a_platform(tmp_path: Path) -> None:
    environ = {"DTYPE": "float16", "SM_VLLM_MODEL": "a/b"}
    assert load_text(tmp_path, "", environ).notes == ()
    assert len(variable_notes(environ, Path("/opt/ml/model"))) == 2
    assert len(load_text(tmp_path, "", environ | {"SAGEMAKER_BIND_TO_PORT": "9000"}).notes) == 2


def test_variables_are_not_noted_if_their_counterpart_is_set_or_they_are_empty(tmp_path: Path) -> None:
    environ = {"HF_MODEL_ID": "a/b", "MODEL_ID": "a/b", "DTYPE": "float16", "OPTION_DTYPE": "fp16"}
    assert load(tmp_path, environ | {"QUANTIZE": "", "SM_VLLM_DTYPE": ""}).notes == ()


@pytest.mark.parametrize("variable", ["MODEL_ID", "SM_VLLM_MODEL"])
def test_the_error_of_a_missing_model_explains_a_variable_that_names_it(
    tmp_path: Path, variable: str
) -> None:
    with pytest.raises(PropertiesError, match=f"; {variable} is not read, set HF_MODEL_ID$"):
        load(tmp_path, {variable: "a/b"})


@pytest.mark.parametrize("name", ["inference.py", "code/inference.py"])
def test_a_script_is_noted(tmp_path: Path, name: str) -> None:
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_text("def predict_fn(data, model): ...")
    [note] = load_text(tmp_path, "").notes
    assert note == f"{script}: not used; a handler belongs in model.py beside serving.properties"
    assert load_text(tmp_path, f"option.entryPoint={name}\n").notes == ()


def test_nothing_is_noted_if_a_handler_may_use_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def handle(inputs): ...")
    (tmp_path / "inference.py").touch()
    assert load_text(tmp_path, "", {"HF_MODEL_ID": "a/b", "MODEL_ID": "a/b", "DTYPE": "fp16"}).notes == ()
