"""Marks on functions, by which the server finds what a `model.py` supplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])
MARK = "_lmi_role"


def mark(role: str) -> Callable[[_Function], _Function]:
    """Make the decorator of a role."""

    def decorator(function: _Function) -> _Function:
        setattr(function, MARK, role)
        return function

    return decorator
