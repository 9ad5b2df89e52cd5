"""Arguments of the decorated functions of a file."""

from __future__ import annotations

import json
from typing import Any

import numpy
import pytest
from djl_python import Input

from engines.python.handlers.stages import Function, Stages
from tests.engines.python.handlers.line import make_input

PROPERTIES = {"model_dir": "/models/a", "device_id": "0"}


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        (lambda path: [path], ["/models/a"]),
        (lambda model_dir, device_id: [model_dir, device_id], ["/models/a", "0"]),
        (lambda path, **options: [path, options], ["/models/a", PROPERTIES]),
    ],
)
def test_an_init_handler_gets_the_folder_and_the_options_it_declares(
    init: Function, expected: list[Any]
) -> None:
    models: list[Any] = []
    stages = Stages(
        {"init_handler": init, "prediction_handler": lambda _, model: models.append(model)}, PROPERTIES
    )
    stages(Input())
    stages(make_input(b"[]"))
    assert models == [expected]


@pytest.mark.parametrize("name", ["predict_fn", "prediction_handler"])
def test_a_function_that_only_predicts_gets_a_csv_of_numbers_as_an_array(name: str) -> None:
    stages = Stages({name: lambda data, model: data * 2}, PROPERTIES)
    inputs = make_input(b"1,2\n3,4\n", "text/csv")
    inputs.properties["Accept"] = "text/csv"
    output = stages(inputs)
    assert output is not None
    assert output.content.value_at(0) == b"2.0,4.0\n6.0,8.0\n"


@pytest.mark.parametrize("function", ["input_fn", "transform_fn"])
@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", "1,2"),
        ("text/csv; charset=utf-8", "1,2"),
        ("text/plain", b"1,2"),
        ("application/x-npy", b"1,2"),
        ("", b"1,2"),
    ],
)
def test_toolkit_functions_get_json_and_csv_as_strings(
    content_type: str, expected: str | bytes, function: str
) -> None:
    bodies: list[Any] = []

    def record(*arguments: Any) -> str:
        bodies.append(arguments[0 if function == "input_fn" else 1])
        return ""

    stages = Stages({function: record, "predict_fn": lambda data, model: data}, PROPERTIES)
    stages(make_input(b"1,2", content_type))
    assert bodies == [expected]
    if isinstance(expected, str):
        with pytest.raises(ValueError, match="utf-8"):
            stages(make_input(b"\xff", content_type))


@pytest.mark.parametrize("entry", ["djl_python.sklearn_handler", "djl_python.xgboost_handler"])
@pytest.mark.parametrize("name", ["predict_fn", "prediction_handler"])
@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"inputs": [[1, 2], [3, 4]]}', "application/json", [3, 7]),
        (b'{"inputs": [1, 2]}', "application/json", [3]),
        (b"[1, 2]", "application/json", [3]),
        (b"1,2\n3,4\n", "text/csv", [3, 7]),
        (b"1,2\n", "text/csv", [3]),
    ],
)
def test_a_predictor_gets_a_table_and_responds_with_predictions(
    body: bytes, content_type: str, expected: list[int], name: str, entry: str
) -> None:
    stages = Stages({name: lambda table, model: table.sum(axis=1)}, {**PROPERTIES, "entryPoint": entry})
    output = stages(make_input(body, content_type))
    assert output is not None
    assert json.loads(output.content.value_at(0)) == {"predictions": expected}
    assert output.properties == {"Content-Type": "application/json"}


def test_a_body_without_inputs_is_refused_by_a_predictor() -> None:
    options = {**PROPERTIES, "entryPoint": "djl_python.sklearn_handler"}
    stages = Stages({"predict_fn": lambda table, model: table.sum(axis=1)}, options)
    with pytest.raises(ValueError, match="inputs: missing"):
        stages(make_input(b'{"instances": [[1, 2]]}', "application/json"))


def test_the_functions_of_a_predictor_replace_its_forms() -> None:
    functions: dict[str, Function] = {
        "input_formatter": lambda inputs: numpy.array(inputs.get_as_json()["rows"]),
        "prediction_handler": lambda table, model: table.shape,
        "output_formatter": list,
    }
    stages = Stages(functions, {**PROPERTIES, "entryPoint": "djl_python.sklearn_handler"})
    output = stages(make_input(b'{"rows": [1, 2, 3]}'))
    assert output is not None
    assert json.loads(output.content.value_at(0)) == [1, 3]


def test_a_predictor_responds_in_the_default_form() -> None:
    options = {"entryPoint": "djl_python.sklearn_handler", "default_accept": "text/csv"}
    stages = Stages({"prediction_handler": lambda table, model: table * 2}, {**PROPERTIES, **options})
    output = stages(make_input(b'{"inputs": [1, 2]}', "application/json"))
    assert output is not None
    assert output.content.value_at(0) == b"2,4\n"
