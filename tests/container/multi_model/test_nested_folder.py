"""A folder that contains only a model folder, as in most archives of models: one model, served as in LMI."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from container.cli import main
from container.machine import Machine
from container.models.model_folders import model_folders
from container.multi_model.memory import predict_need
from container.multi_model.serve import router_config
from container.run.serve import ServeOptions
from lmi_server.properties.loader import examine, load
from tests.support.paths import REPO_ROOT

DUMMY = REPO_ROOT / "properties_examples" / "llama-dummy"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder with a model in its only folder, `mymodel`."""
    model = tmp_path / "mymodel"
    model.mkdir()
    (model / "serving.properties").write_text("engine=MPI\noption.load_format=dummy\noption.dtype=bf16\n")
    (model / "config.json").write_text((DUMMY / "config.json").read_text())
    (tmp_path / ".cache").mkdir()
    return tmp_path


def test_the_only_folder_is_served_without_a_router(store: Path) -> None:
    assert model_folders(store, {}) == {}
    assert router_config(ServeOptions(store, "127.0.0.1", 0), {}) is None
    loaded = load(store, {})
    assert loaded.config.source.local_path == store / "mymodel"
    (dtype,) = (value for value in loaded.values if value.key == "option.dtype")
    assert (dtype.value, dtype.source) == ("bf16", f"{store}/mymodel/serving.properties:3")


@pytest.mark.parametrize("variable", ["HF_MODEL_ID", "OPTION_MODEL_ID"])
def test_its_files_count_also_if_a_variable_names_a_model(variable: str, store: Path) -> None:
    (store / "mymodel" / "model.py").write_text("def handle(inputs):\n    return inputs\n")
    (store / "mymodel" / "serving.properties").write_text("engine=Python\n")
    found = examine(store, {variable: "some/model"})
    assert found.file == store / "mymodel" / "serving.properties"
    assert found.handler is not None
    assert found.values["option.model_id"].value == "some/model"


def test_serving_load_models_may_name_the_outer_folder(store: Path) -> None:
    for folder in (store, store / "mymodel"):
        loaded = load(store, {"SERVING_LOAD_MODELS": f"test::MPI=file://{folder}"})
        assert loaded.config.source.local_path == store / "mymodel"
        assert loaded.notes == load(store, {}).notes
    (store / ".cache" / "empty").mkdir()
    elsewhere = load(store / ".cache" / "empty", {"SERVING_LOAD_MODELS": f"test::MPI={store}"})
    assert elsewhere.config.source.model_dir == str(store / "mymodel")


def test_a_model_that_cannot_be_loaded_fails_the_start(store: Path) -> None:
    text = "engine=MPI\noption.model_id=/no/such/model\n"
    (store / "mymodel" / "serving.properties").write_text(text)
    (store / "mymodel" / "config.json").unlink()
    served = CliRunner().invoke(main, ["serve", str(store), "--port", "0"])
    assert served.exit_code == 1
    assert "/no/such/model" in served.output
    checked = CliRunner().invoke(main, ["check", str(store)])
    assert f"{store}/mymodel/serving.properties" in checked.output
    assert "/no/such/model" in checked.output


def test_any_other_folder_is_not_replaced(store: Path) -> None:
    (store / "README").touch()
    assert examine(store, {}).folder == store
    (store / "README").unlink()
    (store / "mymodel" / "serving.properties").unlink()
    (store / "mymodel" / "config.json").unlink()
    assert examine(store, {}).folder == store


def test_the_memory_of_a_nested_model_is_predicted(store: Path) -> None:
    """Archives for multi-model endpoints are extracted to `.../model`, often with a folder of their own."""
    machine = Machine(cpu_count=2, memory_available_bytes=16 << 30, cpu_kernels="avx2")
    outer, inner = (predict_need(path, {}, machine, False, False) for path in (store, store / "mymodel"))
    assert outer == inner
