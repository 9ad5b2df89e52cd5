"""`resolve` and `check` for a user's handler."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from container.explain.check import check
from container.explain.resolve import CannotServe, missing_modules, obstacles, resolve
from container.explain.target import device_target, this_machine
from container.machine import Machine
from engines.config import BatchConfig, HandlerEngineConfig
from lmi_server.config import ServerConfig
from lmi_server.properties.loader import load
from tests.container.explain.questions import CPU, GPUS, config, make_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("def handle(inputs): ...\n")
    text = "engine=Python\nbatch_size=4\nmax_batch_delay=50\njob_queue_size=7\noption.predict_timeout=9\noption.a=b\n"
    (tmp_path / "serving.properties").write_text(text)
    return tmp_path


def resolve_engine(
    folder: Path, machine: Machine = CPU, allow_code: bool = False, **environ: str
) -> HandlerEngineConfig:
    resolved_engine = resolve(load(folder, environ).config, None, machine, allow_code).config
    assert isinstance(resolved_engine, HandlerEngineConfig)
    return resolved_engine


def test_batching_timeouts_and_properties_come_from_the_file(folder: Path) -> None:
    resolved_engine = resolve_engine(folder, SERVING_MIN_WORKERS="2")
    assert resolved_engine.batching == BatchConfig(4, 0.05, 7, 9.0)
    assert resolved_engine.model.path == str(folder)
    assert resolved_engine.handler.properties == {
        "a": "b",
        "predict_timeout": "9",
        "tensor_parallel_degree": "1",
    }
    assert (resolved_engine.handler.min_workers, resolved_engine.handler.max_workers) == (2, 2)
    assert resolved_engine.parallel.threads_per_rank == 4


def test_a_handler_gets_the_folder_of_a_fetched_model(folder: Path) -> None:
    requested = load(folder, {"OPTION_MODEL_ID": "s3://bucket/m"}).config
    resolved_engine = resolve(requested, folder / "fetched", CPU).config
    assert isinstance(resolved_engine, HandlerEngineConfig)
    assert resolved_engine.handler.properties["model_id"] == str(folder / "fetched")


def test_requirements_need_allow_remote_code(folder: Path) -> None:
    (folder / "requirements.txt").write_text("package\n")
    with pytest.raises(
        CannotServe,
        match=r"requirements.txt: installing its packages runs third-party code.*--allow-remote-code",
    ):
        resolve_engine(folder)
    assert resolve_engine(folder, allow_code=True).handler.file == str(folder / "model.py")


def test_a_worker_needs_as_many_gpus_as_its_tensor_parallel_degree(folder: Path) -> None:
    with pytest.raises(CannotServe, match="this machine has none"):
        resolve_engine(folder, TENSOR_PARALLEL_DEGREE="4")


@pytest.mark.parametrize(
    ("machine", "environ", "degree"),
    [
        (CPU, {"TENSOR_PARALLEL_DEGREE": "max"}, 1),
        (GPUS, {"TENSOR_PARALLEL_DEGREE": "2"}, 2),
        (GPUS, {"TENSOR_PARALLEL_DEGREE": "max"}, 4),
        (GPUS, {}, 4),
        (GPUS, {"SERVING_MAX_WORKERS": "2"}, 1),
    ],
)
def test_the_handler_gets_the_number_of_gpus_of_its_worker(
    folder: Path, machine: Machine, environ: dict[str, str], degree: int
) -> None:
    resolved_engine = resolve_engine(folder, machine, **environ)
    assert resolved_engine.parallel.tp_size == degree
    assert resolved_engine.handler.properties["tensor_parallel_degree"] == str(degree)


def test_idle_gpus_are_noted(folder: Path) -> None:
    def notes(**environ: str) -> str:
        return "\n".join(resolve(load(folder, environ).config, None, GPUS, False).notes)

    assert "3 of 4 GPUs stay idle: maxWorkers is 1, and each worker has 1; set maxWorkers=4" in notes(
        TENSOR_PARALLEL_DEGREE="1"
    )
    for environ in (
        {},
        {"TENSOR_PARALLEL_DEGREE": "2", "SERVING_MAX_WORKERS": "2"},
        {"TENSOR_PARALLEL_DEGREE": "3"},
    ):
        assert "stay idle" not in notes(**environ)


def test_max_request_size_is_limited_for_handlers(folder: Path) -> None:
    with pytest.raises(CannotServe, match="allowed: at most 134217728"):
        resolve_engine(folder, SERVING_MAX_REQUEST_SIZE="134217729")


def test_max_request_size_is_limited_for_input_formatters() -> None:
    large = dataclasses.replace(config(), server=ServerConfig(max_request_size=134217729))
    assert obstacles(dataclasses.replace(large, formatter_roles=("output_formatter",)), CPU) == ()
    (reason,) = obstacles(dataclasses.replace(large, formatter_roles=("input_formatter",)), CPU)
    assert reason == (
        "max_request_size: too large for an input formatter (got 134217729); allowed: at most 134217728"
    )


FORMATTER = "from djl_python import output_formatter\n@output_formatter\ndef f(response): ...\n"


def test_formatters_have_one_worker(folder: Path) -> None:
    (folder / "model.py").write_text(FORMATTER)
    environ = {"SERVING_MIN_WORKERS": "2", "SERVING_MAX_WORKERS": "4"}
    formatter = resolve(load(folder, environ).config, make_model(folder / "model"), CPU).formatter
    assert formatter is not None
    assert (formatter.handler.min_workers, formatter.handler.max_workers) == (1, 1)


def test_requirements_of_formatters_need_allow_remote_code(folder: Path) -> None:
    (folder / "model.py").write_text(FORMATTER)
    (folder / "requirements.txt").write_text("package\n")
    model, requested = make_model(folder / "model"), load(folder, {}).config
    with pytest.raises(CannotServe, match=r"requirements.txt: installing its packages runs third-party code"):
        resolve(requested, model, CPU)
    assert resolve(requested, model, CPU, allow_remote_code=True).formatter is not None


MISSING = "the module no_such is missing; install it into the image or list it in requirements.txt"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("from no_such import LLM\n", 1),
        ("import os, no_such.part\n", 1),
        ("VERSION = 1\ntry:\n    import other\nexcept ImportError:\n    pass\nimport no_such\n", 6),
    ],
)
@pytest.mark.parametrize("style", ["def handle(inputs): ...\n", FORMATTER], ids=["handler", "formatter"])
def test_a_missing_module_is_found_without_running_the_file(
    folder: Path, code: str, line: int, style: str
) -> None:
    (folder / "model.py").write_text(code + style)
    make_model(folder)
    (folder / "tokenizer.json").write_text("{}")
    reason = f"{folder / 'model.py'}: line {line}: {MISSING}"
    report = check(folder, {}, this_machine(CPU))
    assert report.reasons == (reason,)
    with pytest.raises(CannotServe, match=re.escape(reason)):
        resolve(load(folder, {}).config, folder, CPU)
    other = check(folder, {}, device_target("CPU", 1))
    assert (other.reasons, other.warnings) == ((), (reason,)), "its environment is unknown"


@pytest.mark.parametrize(
    "code",
    [
        "import json, torch, djl_python.inputs\nfrom __future__ import annotations\nimport __main__\n",
        "try:\n    import no_such\nexcept ImportError:\n    pass\n",
        "if sys.version_info > (4,):\n    import no_such\n",
        "from . import no_such\n",
        "import sibling, package.part\n",
        "import sys\nsys.path.append('code')\nimport no_such\n",
        "import sys\nsys.path += ['code']\nimport no_such\n",
        "import sibling\nimport no_such\n",
    ],
)
def test_a_module_that_may_be_there_is_not_called_missing(folder: Path, code: str) -> None:
    (folder / "package").mkdir()
    (folder / "sibling.py").touch()
    (folder / "model.py").write_text(f"{code}def handle(inputs): ...\n")
    assert missing_modules(load(folder, {}).config) == ()


def test_the_modules_of_a_handler_in_a_package_are_not_called_missing(folder: Path) -> None:
    """Its package may change `sys.path` first, or the modules that it imports with relative imports."""
    (folder / "package").mkdir()
    code = "from . import paths\nimport no_such\ndef handle(inputs): ...\n"
    (folder / "model.py").rename(folder / "package" / "handler.py").write_text(code)
    assert missing_modules(load(folder, {"OPTION_ENTRYPOINT": "package.handler"}).config) == ()


def test_the_modules_of_a_requirements_file_are_not_called_missing(folder: Path) -> None:
    (folder / "requirements.txt").write_text("no-such\n")
    (folder / "model.py").write_text("import no_such\ndef handle(inputs): ...\n")
    assert resolve_engine(folder, allow_code=True)


def test_check_explains_a_handler(folder: Path) -> None:
    report = check(folder, {}, this_machine(CPU))
    assert report.can_serve
    assert any(line.explanation == "passed to the handler" for line in report.lines)
    text = report.render()
    assert f"requests are served by the handler {folder / 'model.py'}" in text
    assert "option.dtype" not in text, "not used by handlers"


def test_check_leaves_the_options_of_an_invalid_handler_unchecked(folder: Path) -> None:
    (folder / "model.py").write_text("import djl_python.huggingface\n\n\ndef handle(inputs): ...\n")
    with (folder / "serving.properties").open("a") as file:
        file.write("\noption.mine=x\n")
    report = check(folder, {}, this_machine(CPU))
    assert report.lines[-1].explanation == "not checked; the handler may use it"
    assert "unknown key" not in report.render()
