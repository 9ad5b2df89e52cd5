"""Arguments of the decorated functions of a file."""

from __future__ import annotations

from typing import Any

import pytest
from djl_python import Input

from engines.python.handlers.stages import Function, Stages

PROPERTIES = {"model_dir": "/models/a", "device_id": "0"}


def _any_name(path: str) -> list[Any]:
    return [path]


def _options(model_dir: str, device_id: str) -> list[Any]:
    return [model_dir, device_id]


def _all_options(path: str, **options: str) -> list[Any]:
    return [path, options]


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        (_any_name, ["/models/a"]),
        (_options, ["/models/a", "0"]),
        (_all_options, ["/models/a", PROPERTIES]),
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
    request = Input()
    request.content.add("data", b"[]")
    stages(request)
    assert models == [expected]
