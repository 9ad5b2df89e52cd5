"""Handlers that cannot run here are found without running them: missing modules of LMI, and missing functions."""

from __future__ import annotations

from pathlib import Path

import djl_python
import pytest

from engines.python.handlers import djl_modules
from lmi_server.properties.problems import Problem
from tests.lmi_server.properties.loading import examine_text, load_text, single_problem

HANDLER = "def handle(inputs): ...\n"
FORMATTER = "@output_formatter\ndef f(output): ...\n"


def import_problem(folder: Path, code: str) -> Problem:
    (folder / "model.py").write_text(code)
    problem = single_problem(folder, "option.own=x\n")
    assert problem.source.file == str(folder / "model.py")
    return problem


def test_the_provided_modules_are_known() -> None:
    files = Path(djl_python.__file__).parent.glob("[!_]*.py")
    assert {file.stem for file in files} == set(djl_modules.PROVIDED)
    assert set(djl_python.__all__) == set(djl_modules.NAMES)


@pytest.mark.parametrize("rest", [HANDLER, FORMATTER])
def test_an_import_of_a_missing_module_is_a_problem(tmp_path: Path, rest: str) -> None:
    code = f"from djl_python.huggingface import HuggingFaceService\n\n_service = HuggingFaceService()\n{rest}"
    reason = import_problem(tmp_path, code).reason
    assert reason.startswith("line 1: djl_python.huggingface is not part of this server; ")
    assert "remove this import and what uses it: the server generates text itself" in reason


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import djl_python.rolling_batch.rolling_batch as rb", "djl_python.rolling_batch.rolling_batch"),
        ("from djl_python import Input, SessionManager", "djl_python.SessionManager"),
        (
            "from djl_python.properties_manager.properties import *",
            "djl_python.properties_manager.properties",
        ),
    ],
)
def test_every_kind_of_import_is_read(tmp_path: Path, line: str, name: str) -> None:
    assert import_problem(tmp_path, f"{HANDLER}{line}\n").reason.startswith(f"line 2: {name} is not part")


@pytest.mark.parametrize(
    "line",
    [
        "from djl_python import Input, Output, PairList, encode_decode",
        "from djl_python import *",
        "import djl_python.inputs, djl_python",
        "from djl_python.output_formatter import RequestOutput",
        "from .djl_python.huggingface import x",
        "from djl_python_extras.huggingface import x",
        "try:\n    import djl_python.huggingface\nexcept ImportError:\n    pass",
        "def f():\n    import djl_python.huggingface",
    ],
)
def test_other_imports_are_accepted(tmp_path: Path, line: str) -> None:
    (tmp_path / "model.py").write_text(f"{line}\n{HANDLER}")
    assert load_text(tmp_path, "").config.handler is not None


def test_imports_of_a_file_that_is_not_run_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(f"import djl_python.huggingface\n{HANDLER}")
    assert load_text(tmp_path, "option.entryPoint=djl_python.huggingface\n").config.handler is None


@pytest.mark.parametrize("name", ["sklearn_handler", "xgboost_handler"])
@pytest.mark.parametrize(
    "code",
    [
        "",
        "def input_fn(request_body, content_type): ...\ndef output_fn(prediction, accept): ...\n",
        "@input_formatter\ndef f(inputs): ...\n",
        "def model_fn(model_dir): ...\n",
        "@init_handler\ndef f(model_dir): ...\n",
    ],
)
def test_a_built_in_predictor_without_a_function_that_predicts_is_one_problem(
    tmp_path: Path, code: str, name: str
) -> None:
    if code:
        (tmp_path / "model.py").write_text(code)
    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    entry = f"option.entryPoint=djl_python.{name}"
    examined = examine_text(tmp_path, f"engine=Python\n{entry}\noption.model_format=joblib\n")
    [problem] = examined.problems
    assert examined.notes == []
    assert str(problem).startswith(
        f"{tmp_path / 'serving.properties'}:2: {entry}: this server does not include it"
    )
    assert "(or model_fn and predict_fn) in model.py" in problem.reason


@pytest.mark.parametrize("function", ["predict_fn", "transform_fn"])
def test_a_built_in_predictor_with_a_function_that_predicts_is_a_handler(
    tmp_path: Path, function: str
) -> None:
    (tmp_path / "model.py").write_text(f"def model_fn(model_dir): ...\ndef {function}(data, model): ...\n")
    loaded = load_text(tmp_path, "option.entryPoint=djl_python.sklearn_handler\noption.model_format=joblib\n")
    assert loaded.config.handler is not None
