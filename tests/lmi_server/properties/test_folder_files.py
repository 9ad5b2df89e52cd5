"""Unused handlers, requirements and adapters next to a model are refused, not ignored silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_server.properties.loader import load
from lmi_server.properties.problems import PropertiesError

FILES = {
    "model.py": "it defines no function handle",
    "requirements.txt": "packages are only installed for a handler",
    "adapters/french/adapter_config.json": "adapters are not supported yet",
}


def place(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serving.properties").write_text("engine=MPI\n")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_an_unused_file_is_refused_with_the_reason(folder: Path, name: str) -> None:
    place(folder, name)
    with pytest.raises(PropertiesError) as caught:
        load(folder, {})
    [problem] = caught.value.problems
    assert str(problem).startswith(f"{folder / name.split('/')[0]}: not used here: ")
    assert FILES[name] in problem.reason
    assert "--lenient" in problem.reason


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("lenient", "environ"), [(True, {}), (False, {"LMI_LENIENT": "true"})])
def test_lenient_mode_only_warns(folder: Path, name: str, lenient: bool, environ: dict[str, str]) -> None:
    place(folder, name)
    [warning] = load(folder, environ, lenient).warnings
    assert FILES[name] in warning


@pytest.mark.parametrize("model_id", ["model", "./model", "{absolute}/model"])
def test_the_model_folder_is_checked_too(folder: Path, model_id: str) -> None:
    place(folder, "model/model.py")
    line = f"option.model_id={model_id.format(absolute=folder)}\n"
    (folder / "serving.properties").write_text(line)
    with pytest.raises(PropertiesError, match=r"model/model\.py: not used here"):
        load(folder, {})


def test_a_copy_of_the_handler_in_the_model_folder_is_accepted(folder: Path) -> None:
    (folder / "model").mkdir()
    for path in (folder, folder / "model"):
        (path / "model.py").write_text("def handle(inputs): ...\n")
    (folder / "serving.properties").write_text("option.model_id=model\n")
    assert load(folder, {}).config.handler is not None
    (folder / "model" / "model.py").write_text("def handle(inputs): raise\n")
    with pytest.raises(PropertiesError, match=r"model/model\.py: not used here"):
        load(folder, {})


def test_a_served_folder_that_is_also_the_model_folder_is_checked_once(folder: Path) -> None:
    place(folder, "model.py")
    (folder / "serving.properties").write_text("option.model_id=.\n")
    with pytest.raises(PropertiesError) as caught:
        load(folder, {})
    assert len(caught.value.problems) == 1


def test_other_files_are_accepted(folder: Path) -> None:
    for name in ("modeling_falcon.py", "code/model.py", "model.py.txt"):
        place(folder, name)
    (folder / "adapters").mkdir()
    (folder / "serving.properties").write_text("option.model_id=owner/model\n")
    assert load(folder, {}).warnings == ()
