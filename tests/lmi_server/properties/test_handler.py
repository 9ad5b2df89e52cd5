"""Handlers are detected, or refused, without running any code."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from lmi_server.config import UserHandler
from lmi_server.properties.examination import Loaded
from lmi_server.properties.loader import load
from lmi_server.properties.problems import PropertiesError

HANDLE = "open('ran', 'w')\n\n\ndef handle(inputs):\n    return None\n"
"""Creates a file if it is ever run."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.py").write_text(HANDLE)
    return folder


def with_properties(folder: Path, *lines: str, **environ: str) -> Loaded:
    (folder / "serving.properties").write_text("".join(f"{line}\n" for line in lines))
    return load(folder, environ)


def refusal(folder: Path, *lines: str, **environ: str) -> str:
    with pytest.raises(PropertiesError) as caught:
        with_properties(folder, *lines, **environ)
    assert not Path("ran").exists(), "the handler was run"
    return str(caught.value)


def handler(folder: Path, *lines: str, **environ: str) -> UserHandler:
    found = with_properties(folder, *lines, **environ).config
    assert found.engine == "Python"
    assert found.handler is not None
    return found.handler


def test_model_py_is_found_without_configuration(folder: Path) -> None:
    found = load(folder, {}).config.handler
    assert found == UserHandler(str(folder / "model.py"), "handle", {}, "")


def test_all_options_are_passed_to_the_handler(folder: Path) -> None:
    lines = (
        "engine=Python",
        "option.model_id=gpt2",
        "option.task=translation",
        "option.dtype=any",
        "option.own=x",
    )
    found = handler(folder, *lines, OPTION_MORE="y", OPTION_OWN="z", OPTION_ENTRY_POINT="model.py")
    passed = {"model_id": "gpt2", "task": "translation", "dtype": "any", "own": "x", "more": "y"}
    assert found.options == {**passed, "entryPoint": "model.py"}


def test_all_files_of_a_handlers_model_are_fetched(folder: Path) -> None:
    source = "option.model_id=s3://bucket/prefix"
    assert with_properties(folder, source).config.source.fetch_all_files
    (folder / "model.py").unlink()
    assert not with_properties(folder, source).config.source.fetch_all_files


def test_workers_and_function_are_configurable(folder: Path) -> None:
    (folder / "model.py").write_text("from x import predict\n")
    found = handler(folder, "minWorkers=2", "maxWorkers=3", "max_idle_time=9", "option.handler=predict")
    assert (found.min_workers, found.max_workers, found.max_idle_seconds) == (2, 3, 9)
    assert found.function == "predict"
    found = handler(folder, "option.handler=predict", SAGEMAKER_NUM_MODEL_WORKERS="4")
    assert (found.min_workers, found.max_workers) == (4, 4)


@pytest.mark.parametrize("entry", ["src/serve.py", "src.serve", "./src/serve.py"])
def test_an_entry_point_is_a_file_or_a_module_in_the_folder(folder: Path, entry: str) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "serve.py").write_text("import os\n\nif os.name:\n    async def handle(inputs): ...\n")
    (folder / "model.py").unlink()
    found = handler(folder, f"option.entryPoint={entry}")
    assert found.file == str(folder / "src" / "serve.py")
    assert found.module == ("src.serve" if entry == "src.serve" else "")


def test_a_handler_that_lmi_calls_once_per_step_is_refused(folder: Path) -> None:
    text = refusal(folder, "option.rolling_batch=auto")
    assert "option.rolling_batch=auto: LMI would call the handler once per step" in text
    assert "accepted: disable" in text
    handler(folder, "option.rolling_batch=disable")
    handler(folder, "option.rolling_batch=vllm", "option.async_mode=true")


@pytest.mark.parametrize(
    "code",
    [
        "from djl_python.input_parser import init_handler, prediction_handler\n\n@prediction_handler\ndef p(x, m): ...",
        "import djl_python.input_parser as p\n\n@p.init_handler\ndef load(model_dir): ...",
        "def model_fn(model_dir): ...\ndef predict_fn(data, model): ...",
        "def transform_fn(model, body, content_type, accept): ...",
        "from handlers import *",
        "try:\n    import fast\nexcept ImportError:\n    handle = print",
    ],
)
def test_supported_kinds_of_handlers(folder: Path, code: str) -> None:
    (folder / "model.py").write_text(code)
    assert handler(folder).file == str(folder / "model.py")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def handel(inputs): ...", "defines no function handle (option.handler)"),
        ("def handle(inputs:", "is not valid Python: line 1"),
        ("\0", "is not valid Python"),
    ],
)
def test_a_file_without_a_handler_is_refused(folder: Path, code: str, reason: str) -> None:
    (folder / "model.py").write_text(code)
    assert reason in refusal(folder, "engine=Python")


def test_an_entry_point_outside_the_folder_is_refused(folder: Path) -> None:
    outside = folder.parent / "outside.py"
    outside.write_text(HANDLE)
    (folder / "linked.py").symlink_to(outside)
    (folder / "inside.py").symlink_to("model.py")
    assert "outside of the folder" in refusal(folder, "option.entryPoint=../outside.py")
    assert "outside of the folder" in refusal(folder, f"option.entryPoint={outside}")
    assert "outside of the folder" in refusal(folder, "option.entryPoint=linked.py")
    assert "code is not downloaded" in refusal(folder, "option.entryPoint=https://host/model.py")
    assert "there is no file" in refusal(folder, "option.entryPoint=missing.py")
    assert handler(folder, "option.entryPoint=inside.py").file == str(folder / "model.py")
    (folder / "model.py").unlink()
    (folder / "model.py").symlink_to(outside)
    assert "outside of the folder" in refusal(folder)


def test_requirements_must_be_in_the_folder(folder: Path) -> None:
    (folder / "requirements.txt").write_text("x\n")
    assert handler(folder).requirements == str(folder / "requirements.txt")
    (folder / "requirements.txt").rename(folder.parent / "elsewhere.txt")
    (folder / "requirements.txt").symlink_to(folder.parent / "elsewhere.txt")
    assert "outside of the folder" in refusal(folder)


def test_a_handler_requires_engine_python(folder: Path) -> None:
    assert "requires engine=Python" in refusal(folder, "engine=MPI")
    loaded = with_properties(folder, "engine=Python", "option.rolling_batch=auto", "option.async_mode=true")
    assert loaded.config.engine == "Python"


def test_a_handler_has_no_mpi_ranks(folder: Path) -> None:
    for engine in ("engine=Python", ""):
        found = refusal(folder, engine, "option.mpi_mode=true")
        assert found.count("option.mpi_mode=true") == 1
        assert "a handler does not use MPI" in found
    assert "use engine=MPI; engine=Python for a handler" in refusal(folder, "engine=DeepSpeed")
    assert handler(folder, "option.mpi_mode=false").options == {"mpi_mode": "false"}


def test_the_built_in_handler_is_noted(folder: Path) -> None:
    (folder / "model.py").unlink()
    loaded = with_properties(folder, "option.entryPoint=djl_python.huggingface")
    assert loaded.config.handler is None
    assert any("the server's own text generation is used" in note for note in loaded.notes)


def test_a_built_in_entry_point_replaces_the_handler_of_model_py(folder: Path) -> None:
    entry = "option.entryPoint=djl_python.huggingface"
    loaded = with_properties(folder, "engine=MPI", entry)
    assert (loaded.config.engine, loaded.config.handler, loaded.config.formatter) == ("MPI", None, None)
    assert any(f"its handler is not used, because {entry}" in note for note in loaded.notes)
    (folder / "model.py").write_text(f"{HANDLE}\n\n@output_formatter\ndef f(x): ...\n")
    loaded = with_properties(folder, entry)
    assert loaded.config.handler is None
    assert loaded.config.formatter_roles == ("output_formatter",)
    assert any("its handler is not used" in note for note in loaded.notes)


def test_the_format_none_requires_an_output_formatter(folder: Path) -> None:
    lines = ("option.output_formatter=none",)
    (folder / "model.py").write_text("@output_formatter\ndef f(output): ...\n")
    loaded = with_properties(folder, *lines, OPTION_OUTPUT_FORMATTER="json")
    assert loaded.config.server.output_formatter is None
    assert loaded.config.formatter is not None
    assert loaded.config.formatter.options == {"output_formatter": "none"}
    assert any(
        "option.output_formatter=none: model.py formats the responses" in note for note in loaded.notes
    )
    (folder / "model.py").write_text("@input_formatter\ndef f(body: dict) -> dict: ...\n")
    assert "only accepted with an @output_formatter in model.py" in refusal(folder, *lines)


def test_requirements_of_an_unused_handler_are_refused(folder: Path) -> None:
    (folder / "requirements.txt").write_text("x\n")
    assert "only installed for a handler" in refusal(folder, "option.entryPoint=djl_python.huggingface")


@pytest.mark.parametrize("name", ["lmi_vllm.vllm_async_service", "sklearn_handler"])
def test_some_built_in_entry_points_call_the_handler_of_model_py(folder: Path, name: str) -> None:
    loaded = with_properties(folder, f"option.entryPoint=djl_python.{name}")
    assert loaded.config.handler is not None
    assert any(
        f"its handler answers requests, as option.entryPoint=djl_python.{name}" in note
        for note in loaded.notes
    )


@pytest.mark.parametrize("engine", ["Python", "MPI"])
def test_without_a_handler_workers_are_copies_of_the_model(folder: Path, engine: str) -> None:
    (folder / "model.py").unlink()
    options = with_properties(folder, f"engine={engine}", "minWorkers=2", "maxWorkers=3").config.options
    assert (options.min_workers, options.max_workers) == (2, 3)


def test_an_archive_is_not_unpacked(folder: Path) -> None:
    archive = folder.parent / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder / "model.py", "../model.py")
    with pytest.raises(PropertiesError, match=r"model\.tar\.gz: archives are not supported"):
        load(archive, {})
    assert sorted(path.name for path in folder.parent.iterdir()) == ["folder", "model.tar.gz"]


@pytest.mark.parametrize("engine", ["MPI", "Python"])
def test_formatters_alone_keep_the_configured_engine(folder: Path, engine: str) -> None:
    code = "from djl_python.input_parser import input_formatter\n\n@input_formatter\ndef f(x): ...\n"
    (folder / "model.py").write_text(code)
    loaded = with_properties(folder, f"engine={engine}", "option.dtype=fp32", "option.predict_timeout=9")
    config = loaded.config
    assert (config.engine, config.handler, config.options.dtype) == (engine, None, "fp32")
    assert config.formatter_roles == ("input_formatter",)
    assert config.formatter is not None
    assert config.formatter.function == ""
    assert config.formatter.options == {"dtype": "fp32", "predict_timeout": "9"}
    loaded = with_properties(folder, f"engine={engine}", "option.own=x", "option.dtpye=fp32")
    assert loaded.config.formatter is not None
    assert loaded.config.formatter.options == {"own": "x", "dtpye": "fp32"}
    [note] = [note for note in loaded.notes if "option.dtpye" in note]
    assert note.endswith("unknown key; did you mean option.dtype?; passed to the formatters in model.py")
    assert "unknown key" in refusal(folder, f"engine={engine}", "own=x")
