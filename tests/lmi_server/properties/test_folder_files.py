"""Unused handlers, requirements and adapters next to a model are refused, not ignored silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lmi_server.properties.loading import load_text, single_problem

FILES = {
    "model.py": "it defines no function handle",
    "requirements.txt": "packages are only installed for a handler",
    "adapters/french/adapter_config.json": "adapters are not supported yet",
}


def place(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("x")


@pytest.mark.parametrize("name", FILES)
def test_an_unused_file_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    place(tmp_path, name)
    problem = single_problem(tmp_path, "engine=MPI\n")
    assert str(problem).startswith(f"{tmp_path / name.split('/')[0]}: not used here: ")
    assert FILES[name] in problem.reason
    assert "--lenient" in problem.reason


@pytest.mark.parametrize("name", FILES)
def test_lenient_mode_only_warns(tmp_path: Path, name: str) -> None:
    place(tmp_path, name)
    [warning] = load_text(tmp_path, "engine=MPI\n", lenient=True).warnings
    assert FILES[name] in warning


def test_a_file_without_a_handler_is_reported_once_for_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place(tmp_path, "folder/model.py")
    problem = single_problem(Path("folder"), "engine=Python\n")
    assert str(problem).startswith("folder/model.py: not used here: it defines no function handle ")


@pytest.mark.parametrize(
    ("line", "function", "hint"),
    [("option.handler=predct", "predct", "; did you mean predict?"), ("", "handle", " ignores it)")],
)
def test_the_configured_function_and_the_nearest_one_are_named(
    tmp_path: Path, line: str, function: str, hint: str
) -> None:
    (tmp_path / "model.py").write_text("def load(): ...\n\n\ndef predict(inputs): ...\n")
    text = str(single_problem(tmp_path, f"engine=Python\n{line}\n"))
    assert f"it defines no function {function} (option.handler), no @prediction_handler" in text
    assert text.endswith(hint)


@pytest.mark.parametrize("model_id", ["model", "./model", "{absolute}/model"])
def test_the_model_folder_is_checked_too(tmp_path: Path, model_id: str) -> None:
    place(tmp_path, "model/model.py")
    problem = single_problem(tmp_path, f"option.model_id={model_id.format(absolute=tmp_path)}\n")
    assert "model/model.py: not used here" in str(problem)


def test_a_copy_of_the_handler_in_the_model_folder_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for path in (tmp_path, tmp_path / "model"):
        (path / "model.py").write_text("def handle(inputs): ...\n")
    text = "option.model_id=model\n"
    assert load_text(tmp_path, text).config.handler is not None
    (tmp_path / "model" / "model.py").write_text("def handle(inputs): raise\n")
    assert "model/model.py: not used here" in str(single_problem(tmp_path, text))


def test_a_served_folder_that_is_also_the_model_folder_is_checked_once(tmp_path: Path) -> None:
    place(tmp_path, "model.py")
    single_problem(tmp_path, "option.model_id=.\n")


@pytest.mark.parametrize("folder", [".", "model"])
def test_a_handler_may_use_its_adapters(tmp_path: Path, folder: str) -> None:
    place(tmp_path, f"{folder}/adapters/french/adapter_config.json")
    text = f"option.model_id={folder}\n"
    (tmp_path / "model.py").write_text("def handle(inputs): ...\n")
    assert load_text(tmp_path, text).notes == ()
    (tmp_path / "model.py").write_text("def handle(inputs): ...\ndef register_adapter(inputs): ...\n")
    [note] = load_text(tmp_path, text).notes
    assert note.startswith(f"{tmp_path / 'model.py'}: its function register_adapter is never called: ")


def test_adapters_beside_formatters_are_refused(tmp_path: Path) -> None:
    place(tmp_path, "adapters/french/adapter_config.json")
    (tmp_path / "model.py").write_text("@output_formatter\ndef f(output): ...\n")
    assert "adapters: not used here" in str(single_problem(tmp_path, "engine=MPI\n"))


def test_other_files_are_accepted(tmp_path: Path) -> None:
    for name in ("modeling_falcon.py", "code/model.py", "model.py.txt"):
        place(tmp_path, name)
    (tmp_path / "adapters").mkdir()
    assert load_text(tmp_path, "option.model_id=owner/model\n").warnings == ()


@pytest.mark.parametrize(
    ("line", "code"),
    [("", "def handle(:"), ("option.entryPoint=inference.py", "def handle(inputs): ..."), ("", "x = 1\x00")],
)
def test_the_files_of_an_invalid_handler_are_not_called_unused(tmp_path: Path, line: str, code: str) -> None:
    (tmp_path / "model.py").write_text(code)
    place(tmp_path, "requirements.txt")
    assert "not used here" not in str(single_problem(tmp_path, f"{line}\n"))
