"""Arguments of the decorated functions of a file."""

from __future__ import annotations

from typing import Any

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
