"""Decorators for `model.py`. They mark functions with a role, so that the server can find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])
MARK = "_lmi_role"
SAGEMAKER_ADAPTER_IDENTIFIER_HEADER = "X-Amzn-SageMaker-Adapter-Identifier"


def mark(role: str) -> Callable[[_Function], _Function]:
    """Return the decorator for a role."""

    def decorator(function: _Function) -> _Function:
        setattr(function, MARK, role)
        return function

    return decorator


input_formatter = mark("input_formatter")
prediction_handler = mark("prediction_handler")
init_handler = mark("init_handler")
