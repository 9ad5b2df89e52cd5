"""Decorators of `model.py`: they mark functions, by which the server finds what the file supplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])
MARK = "_lmi_role"
SAGEMAKER_ADAPTER_IDENTIFIER_HEADER = "X-Amzn-SageMaker-Adapter-Identifier"


def mark(role: str) -> Callable[[_Function], _Function]:
    """Make the decorator of a role."""

    def decorator(function: _Function) -> _Function:
        setattr(function, MARK, role)
        return function

    return decorator


input_formatter = mark("input_formatter")
prediction_handler = mark("prediction_handler")
init_handler = mark("init_handler")
